//! The `registries` of a configuration.
//!
//! Invariant: a credential is the name of a file and never a path or the secret; no address is off limits.
//! Absent on purpose: opening them (`registry`).

use std::sync::Arc;
use std::time::Duration;

use super::error::ConfigErrors;
use super::fields::{Field, Fields};
use super::parse::duration;
use super::{AwsConfig, ConsulConfig, Driver, DriverConfig, HaproxyConfig, HttpConfig, RegistryConfig, text};

/// The most registries: each has a queue, a breaker and metrics of its own.
const REGISTRIES: usize = 100;
/// The most instances of one HAProxy registry: every change goes to each of them.
const INSTANCES: usize = 32;
/// An instance is counted out sooner than a rollout stalls.
const INSTANCE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A registry by name; the rest only where it could be read, so that bindings of a broken one are not reported too.
pub(super) struct Named {
    pub(super) name: Arc<str>,
    pub(super) driver: Option<Driver>,
    pub(super) config: Option<RegistryConfig>,
}

/// Reads the list.
pub(super) fn read(field: &Field<'_>, errors: &mut ConfigErrors) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for item in field.list(REGISTRIES, errors) {
        let mut fields = Fields::of(&item, errors);
        let name = fields.required("name", "a name for bindings to use", errors);
        if let Some(field) = &name
            && let Some(name) = field.checked(text::NAME, text::name, errors)
        {
            if all.iter().any(|other| &*other.name == name) {
                field.fail(errors, format!("\"{name}\" stands twice"), "give each registry a name of its own");
            }
            all.push(one(Arc::from(name), &mut fields, errors));
        } else {
            one(Arc::from(""), &mut fields, errors);
        }
        fields.finish(errors);
    }
    all
}

fn one(name: Arc<str>, fields: &mut Fields<'_>, errors: &mut ConfigErrors) -> Named {
    let mut found: Vec<(Driver, Field<'_>)> = Vec::new();
    for driver in Driver::ALL {
        found.extend(fields.optional(driver.as_str()).map(|field| (driver, field)));
    }
    if let [_, (_, second), ..] = &found[..] {
        second.fail(errors, "is a second driver", "one driver for each registry");
    }
    let Some((driver, field)) = found.first() else {
        let words = Driver::ALL.map(Driver::as_str).join(", ");
        errors.push(fields.at, fields.path.clone(), "has no driver", format!("one of {words}"));
        return Named { name, driver: None, config: None };
    };
    let config = match driver {
        Driver::Aws => aws(field, errors).map(DriverConfig::Aws),
        Driver::Consul => consul(field, errors).map(DriverConfig::Consul),
        Driver::Haproxy => haproxy(field, errors).map(DriverConfig::Haproxy),
        Driver::Http => http(field, errors).map(DriverConfig::Http),
    };
    let config = config.map(|driver| RegistryConfig { name: name.clone(), driver });
    Named { name, driver: Some(*driver), config }
}

fn aws(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<AwsConfig> {
    let mut fields = Fields::of(field, errors);
    let region = fields.required("region", "the region of the target groups, as in eu-west-1", errors);
    let region = region.and_then(|field| field.checked(text::NAME, text::region, errors)).map(str::to_owned);
    let endpoint = setting(&mut fields, "endpoint", text::ADDRESS, text::url, errors);
    let assume_role = setting(&mut fields, "assumeRole", text::ADDRESS, text::role, errors);
    fields.finish(errors);
    Some(AwsConfig { region: region?, endpoint, assume_role })
}

fn consul(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<ConsulConfig> {
    let mut fields = Fields::of(field, errors);
    let address = fields.required("address", "the URL of Consul's HTTP API", errors);
    let address = address.and_then(|field| field.withheld(text::ADDRESS, text::url, errors)).map(str::to_owned);
    let token = setting(&mut fields, "token", text::CREDENTIAL, text::credential, errors);
    let ca = setting(&mut fields, "ca", text::CREDENTIAL, text::credential, errors);
    fields.finish(errors);
    Some(ConsulConfig { address: address?, token, ca })
}

fn haproxy(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<HaproxyConfig> {
    let mut fields = Fields::of(field, errors);
    let list = fields.required("addresses", "the runtime API of each instance, as in [\"10.1.0.5:9999\"]", errors);
    let addresses = list.as_ref().map(|field| addresses(field, errors));
    let instance_timeout =
        duration(&mut fields, "instanceTimeout", Duration::from_secs(1)..=INSTANCE_TIMEOUT, HaproxyConfig::INSTANCE_TIMEOUT, errors);
    let tls = fields.optional("tls");
    let tls_ca = tls.as_ref().and_then(|field| {
        let mut fields = Fields::of(field, errors);
        let ca = fields.required("ca", "the name of the credential file with the CA", errors);
        let ca = ca.and_then(|field| field.withheld(text::CREDENTIAL, text::credential, errors)).map(str::to_owned);
        fields.finish(errors);
        ca
    });
    if let (Some(tls), Some(addresses)) = (&tls, &addresses)
        && addresses.iter().any(|address| address.starts_with("unix:"))
    {
        tls.fail(errors, "cannot protect a unix socket", "leave tls out, or write host:port");
    }
    fields.finish(errors);
    Some(HaproxyConfig { addresses: addresses?, instance_timeout, tls_ca })
}

fn addresses(field: &Field<'_>, errors: &mut ConfigErrors) -> Vec<String> {
    let before = errors.errors.len();
    let mut addresses: Vec<String> = Vec::new();
    for item in field.list(INSTANCES, errors) {
        let Some(address) = item.checked(text::ADDRESS, text::socket, errors) else { continue };
        if addresses.iter().any(|other| other == address) {
            item.fail(errors, format!("\"{address}\" stands twice"), "name each instance once");
        }
        addresses.push(address.to_owned());
    }
    if addresses.is_empty() && errors.errors.len() == before {
        field.fail(errors, "is empty", "the runtime API of at least one instance");
    }
    addresses
}

fn http(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<HttpConfig> {
    let mut fields = Fields::of(field, errors);
    let url = fields.required("url", "the base URL of the registry", errors);
    let url = url.and_then(|field| field.withheld(text::ADDRESS, text::url, errors)).map(str::to_owned);
    let token = setting(&mut fields, "token", text::CREDENTIAL, text::credential, errors);
    let ca = setting(&mut fields, "ca", text::CREDENTIAL, text::credential, errors);
    fields.finish(errors);
    Some(HttpConfig { url: url?, token, ca })
}

fn setting(
    fields: &mut Fields<'_>,
    key: &'static str,
    longest: usize,
    rule: impl FnOnce(&str) -> Result<(), text::Broken>,
    errors: &mut ConfigErrors,
) -> Option<String> {
    fields.optional(key).and_then(|field| field.withheld(longest, rule, errors)).map(str::to_owned)
}
