//! The `bindings` of a configuration.
//!
//! Invariant: a binding's registry exists, and no setting stands on a driver for which it means nothing.
//! Invariant: bindings that can claim one target agree on what happens to it, and no service is swept by two registries.
//! Absent on purpose: which pods a binding selects now (`admission`, `registration`).

use std::sync::Arc;

use super::error::{ConfigErrors, quoted};
use super::fields::{Field, Fields};
use super::parse::{DELAYS, NAMESPACES, unknown, word};
use super::registries::Named;
use super::{Ack, AwsConfig, Binding, Drain, Driver, DriverConfig, Family, Mode, Namespaces, OnUnbound, OnUnready, Port, Servers, text};
use super::{LabelOperator, Requirement, Selector};
use crate::registry::GoneWhen;
use crate::target::ServiceId;
use crate::yaml::{Position, Value};

/// The most bindings: each pod that is admitted is held against all of them.
const BINDINGS: usize = 1_000;
/// The most requirements of one selector.
const REQUIREMENTS: usize = 50;
/// The most values of one requirement.
const VALUES: usize = 100;
/// The most states that count as active besides the driver's own.
const STATES: usize = 16;
/// HAProxy's own limit of a weight.
const WEIGHT: u32 = 256;
/// Nobody polls more often than this before giving up.
const POLLS: u32 = 1_000;

/// A binding, and where it stands.
struct Placed {
    binding: Binding,
    path: String,
    at: Position,
}

/// Reads the list.
pub(super) fn read(field: &Field<'_>, registries: &[Named], errors: &mut ConfigErrors) -> Vec<Binding> {
    let mut all: Vec<Placed> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for item in field.list(BINDINGS, errors) {
        let mut fields = Fields::of(&item, errors);
        let name = fields.required("name", "a name; the record and the events of a pod show it", errors);
        let name = name.and_then(|field| Some((field.checked(text::NAME, text::name, errors)?, field)));
        if let Some((name, field)) = &name {
            if names.contains(name) {
                field.fail(errors, format!("\"{name}\" stands twice"), "give each binding a name of its own");
            }
            names.push(name);
        }
        let binding = one(name.map_or("", |(name, _)| name), &mut fields, registries, errors);
        let at = fields.at;
        fields.finish(errors);
        all.extend(binding.map(|binding| Placed { binding, path: item.path.clone(), at }));
    }
    agree(&all, errors);
    keep_apart(&all, registries, errors);
    all.into_iter().map(|placed| placed.binding).collect()
}

fn one(name: &str, fields: &mut Fields<'_>, registries: &[Named], errors: &mut ConfigErrors) -> Option<Binding> {
    let namespaces = fields.required("namespaces", "a list of namespaces, or [\"*\"] for all that are opted in", errors);
    let namespaces = namespaces.and_then(|field| self::namespaces(&field, errors));
    let selector = fields.optional("podSelector").map(|field| selector(&field, errors)).unwrap_or_default();
    let registry = fields.required("registry", "the name of one of the registries", errors);
    let registry = registry.and_then(|field| self::registry(&field, registries, errors));
    let service = fields.required("service", "the registry's name for the service", errors);
    let service = service.and_then(|field| self::service(&field, registry, errors));
    let port = fields.required("port", "a container port's number or name", errors);
    let port = port.and_then(|field| self::port(&field, errors));
    let mode = word(fields, "mode", &[("own", Mode::Own), ("observe", Mode::Observe)], Mode::Own, errors);
    let ack = word(fields, "ack", &[("acknowledged", Ack::Acknowledged), ("accepted", Ack::Accepted)], Ack::Acknowledged, errors);
    let driver = registry.map(|registry| registry.driver);
    let driver_known = driver.flatten();
    let on_unready = on_unready(fields, driver_known, errors);
    let on_unbound =
        word(fields, "onUnbound", &[("keep", OnUnbound::Keep), ("deregister", OnUnbound::Deregister)], OnUnbound::Keep, errors);
    let drain = drain(fields, driver_known, errors);
    let family = word(fields, "family", &[("auto", Family::Auto), ("ipv4", Family::Ipv4), ("ipv6", Family::Ipv6)], Family::Auto, errors);
    let special = Special::read(fields, driver_known, errors);
    if driver_known == Some(Driver::Haproxy) && !special.check && ack == Ack::Acknowledged && mode == Mode::Own {
        let reason = "has no check, so HAProxy cannot report that it is up";
        errors.push(fields.at, fields.path.clone(), reason, "write ack: accepted, or check: true");
    }
    Some(Binding {
        name: Arc::from(name),
        namespaces: namespaces?,
        selector,
        service: ServiceId::new(registry?.name.clone(), service?),
        port: port?,
        mode,
        ack,
        on_unready,
        on_unbound,
        drain: drain?,
        family,
        weight: special.weight,
        servers: special.servers,
        check: special.check,
        exclusive: special.exclusive,
        accept_states: special.accept_states,
        gone_when: special.gone_when,
    })
}

fn namespaces(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<Namespaces> {
    const ALL: &str = "*";
    let before = errors.errors.len();
    let items = field.list(NAMESPACES, errors);
    let is_all = |item: &Field<'_>| matches!(&item.node.value, Value::Text(text) if text == ALL);
    if let [only] = &items[..]
        && is_all(only)
    {
        return Some(Namespaces::All);
    }
    let mut named = Vec::new();
    for item in &items {
        if is_all(item) {
            item.fail(errors, "stands beside other names", "[\"*\"] alone, or names alone");
        } else if let Some(name) = item.checked(text::NAME, text::namespace, errors) {
            named.push(Arc::from(name));
        }
    }
    if items.is_empty() && errors.errors.len() == before {
        field.fail(errors, "is empty", "a list of namespaces, or [\"*\"] for all that are opted in");
    }
    Some(Namespaces::Named(named))
}

fn selector(field: &Field<'_>, errors: &mut ConfigErrors) -> Selector {
    let mut requirements = Vec::new();
    let mut fields = Fields::of(field, errors);
    if let Some(labels) = fields.optional("matchLabels") {
        match_labels(&labels, &mut requirements, errors);
    }
    if let Some(expressions) = fields.optional("matchExpressions") {
        let items = expressions.list(REQUIREMENTS, errors);
        requirements.extend(items.iter().filter_map(|item| expression(item, errors)));
    }
    fields.finish(errors);
    Selector { requirements }
}

fn match_labels(field: &Field<'_>, requirements: &mut Vec<Requirement>, errors: &mut ConfigErrors) {
    let Value::Map(entries) = &field.node.value else {
        field.fail(errors, "is no mapping", "labels, as in {app: web}");
        return;
    };
    if entries.len() > REQUIREMENTS {
        field.fail(errors, format!("has {} labels", entries.len()), format!("at most {REQUIREMENTS}"));
        return;
    }
    for (i, entry) in entries.iter().enumerate() {
        let path = format!("{}[{}]", field.path, quoted(&entry.key));
        if entries[..i].iter().any(|other| other.key == entry.key) {
            errors.push(entry.at, path.clone(), "stands twice", "remove one of them");
        }
        if let Err((reason, remedy)) = text::label_key(&entry.key) {
            errors.push(entry.at, path.clone(), reason, remedy);
        }
        if let Some(value) = label_value(&Field { node: &entry.value, path }, errors) {
            requirements.push(Requirement { key: Arc::from(&*entry.key), operator: LabelOperator::In(vec![value]) });
        }
    }
}

fn expression(item: &Field<'_>, errors: &mut ConfigErrors) -> Option<Requirement> {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        In,
        NotIn,
        Exists,
        DoesNotExist,
    }
    const WORDS: [(&str, Word); 4] =
        [("In", Word::In), ("NotIn", Word::NotIn), ("Exists", Word::Exists), ("DoesNotExist", Word::DoesNotExist)];
    let mut fields = Fields::of(item, errors);
    let key = fields.required("key", "the key of a label", errors);
    let key = key.and_then(|field| field.checked(text::ADDRESS, text::label_key, errors));
    let operator = fields.required("operator", "In, NotIn, Exists or DoesNotExist", errors);
    let operator = operator.and_then(|field| field.word(&WORDS, errors));
    let values_field = fields.optional("values");
    let values: Vec<Arc<str>> = values_field
        .as_ref()
        .map(|field| field.list(VALUES, errors).iter().filter_map(|item| label_value(item, errors)).collect())
        .unwrap_or_default();
    match (operator, &values_field) {
        (Some(Word::In | Word::NotIn), None) => {
            errors.push(fields.at, format!("{}.values", fields.path), "is missing", "the values to compare with");
        }
        (Some(Word::In | Word::NotIn), Some(field)) if matches!(&field.node.value, Value::List(items) if items.is_empty()) => {
            field.fail(errors, "is empty", "the values to compare with");
        }
        (Some(Word::Exists | Word::DoesNotExist), Some(field)) if field.node.value != Value::List(Vec::new()) => {
            field.fail(errors, "means nothing with this operator", "leave it out");
        }
        _ => {}
    }
    fields.finish(errors);
    let operator = match operator? {
        Word::In => LabelOperator::In(values),
        Word::NotIn => LabelOperator::NotIn(values),
        Word::Exists => LabelOperator::Exists,
        Word::DoesNotExist => LabelOperator::DoesNotExist,
    };
    Some(Requirement { key: Arc::from(key?), operator })
}

fn label_value(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<Arc<str>> {
    if matches!(&field.node.value, Value::Text(text) if text.is_empty()) {
        return Some(Arc::from(""));
    }
    field.checked(text::ADDRESS, text::label_value, errors).map(Arc::from)
}

fn registry<'r>(field: &Field<'_>, registries: &'r [Named], errors: &mut ConfigErrors) -> Option<&'r Named> {
    let name = field.text(text::ADDRESS, errors)?;
    let found = registries.iter().find(|registry| &*registry.name == name);
    if found.is_none() {
        unknown(field, "registry", name, registries.iter().map(|registry| &*registry.name), errors);
    }
    found
}

fn service<'n>(field: &Field<'n>, registry: Option<&Named>, errors: &mut ConfigErrors) -> Option<&'n str> {
    let service = field.checked(text::ADDRESS, text::service, errors)?;
    let Some(Named { driver: Some(Driver::Aws), config, name }) = registry else { return Some(service) };
    match text::target_group(service) {
        Err((reason, remedy)) => {
            field.fail(errors, format!("{} {reason}", quoted(service)), remedy);
            None
        }
        Ok(place) => {
            if let Some(DriverConfig::Aws(aws)) = config.as_ref().map(|config| &config.driver)
                && let Some((reason, remedy)) = out_of_reach(place, aws)
            {
                field.fail(errors, format!("{reason} (registry {name})"), remedy);
            }
            Some(service)
        }
    }
}

/// Why the registry cannot reach a target group of that region and account; nobody works on those of another account.
fn out_of_reach((region, account): (&str, &str), aws: &AwsConfig) -> Option<(String, String)> {
    if aws.region != region {
        let remedy = format!("a registry of that region, or a target group in {}", aws.region);
        return Some((format!("is in {region}, and its registry in {}", aws.region), remedy));
    }
    let role = aws.assume_role.as_deref().and_then(text::role_account).filter(|own| *own != account)?;
    let reason = format!("is in account {account}, and the role that its registry assumes in {role}");
    Some((reason, format!("a registry that assumes a role of {account}, or a target group in {role}")))
}

fn port(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<Port> {
    match &field.node.value {
        Value::Number(_) => {
            let number = field.whole(1..=u32::from(u16::MAX), errors)?;
            u16::try_from(number).ok().map(Port::Number)
        }
        _ => field.checked(text::NAME, text::port_name, errors).map(|name| Port::Name(Arc::from(name))),
    }
}

fn on_unready(fields: &mut Fields<'_>, driver: Option<Driver>, errors: &mut ConfigErrors) -> OnUnready {
    let default = match driver {
        Some(Driver::Aws) => OnUnready::Keep,
        _ => OnUnready::Drain,
    };
    let words = [("drain", OnUnready::Drain), ("keep", OnUnready::Keep), ("deregister", OnUnready::Deregister)];
    let Some(field) = fields.optional("onUnready") else { return default };
    match field.word(&words, errors) {
        Some(OnUnready::Drain) if driver == Some(Driver::Aws) => {
            field.fail(errors, "is drain, and on aws only deregistering drains", "keep, or deregister spelled out");
            default
        }
        word => word.unwrap_or(default),
    }
}

fn drain(fields: &mut Fields<'_>, driver: Option<Driver>, errors: &mut ConfigErrors) -> Option<Drain> {
    const REMEDY: &str = "how long the outside may still send traffic, as in drain: {fixed: 30s}";
    let field = match driver {
        Some(Driver::Aws) | None => fields.optional("drain"),
        Some(_) => fields.required("drain", REMEDY, errors),
    };
    let Some(field) = field else {
        return (driver == Some(Driver::Aws)).then_some(Drain::FromRegistry { fallback: Drain::AWS_FALLBACK });
    };
    let mut fields = Fields::of(&field, errors);
    let forms = ["from", "fixed", "healthCheck"];
    let found: Vec<&str> = forms.into_iter().filter(|form| fields.has(form)).collect();
    let before = errors.errors.len();
    if found.len() > 1 {
        field.fail(errors, format!("has both {} and {}", found[0], found[1]), "one of from, fixed, healthCheck");
    }
    let from = from_registry(&mut fields, driver, errors);
    let fixed = fields.optional("fixed").and_then(|field| field.duration(DELAYS, errors)).map(Drain::Fixed);
    let polled = fields.optional("healthCheck").and_then(|field| health_check(&field, errors));
    if found.is_empty() && errors.errors.len() == before && matches!(field.node.value, Value::Map(_)) {
        field.fail(errors, "says nothing", "one of from: registry, fixed, healthCheck");
    }
    fields.finish(errors);
    from.or(fixed).or(polled)
}

fn from_registry(fields: &mut Fields<'_>, driver: Option<Driver>, errors: &mut ConfigErrors) -> Option<Drain> {
    let from = fields.optional("from");
    let fallback_field = fields.optional("fallback");
    let fallback = fallback_field.as_ref().and_then(|field| field.duration(DELAYS, errors));
    let Some(from) = from else {
        if let Some(field) = fallback_field {
            field.fail(errors, "means nothing without from: registry", "leave it out, or write from: registry");
        }
        return None;
    };
    from.word(&[("registry", ())], errors)?;
    match (driver, fallback) {
        (Some(driver @ (Driver::Consul | Driver::Haproxy)), _) => {
            let reason = format!("is registry, and {} knows no drain delay", driver.as_str());
            from.fail(errors, reason, "fixed or healthCheck");
            None
        }
        (_, Some(fallback)) => Some(Drain::FromRegistry { fallback }),
        (_, None) if fallback_field.is_some() => None,
        (Some(Driver::Aws), None) => Some(Drain::FromRegistry { fallback: Drain::AWS_FALLBACK }),
        (Some(Driver::Http), None) => {
            let remedy = "the delay that counts until the registry has answered, as in fallback: 30s";
            errors.push(fields.at, format!("{}.fallback", fields.path), "is missing", remedy);
            None
        }
        (None, None) => None,
    }
}

fn health_check(field: &Field<'_>, errors: &mut ConfigErrors) -> Option<Drain> {
    let mut fields = Fields::of(field, errors);
    let interval = fields.required("interval", "the time between two polls, as in 10s", errors);
    let interval = interval.and_then(|field| field.duration(DELAYS, errors));
    let threshold = fields.required("unhealthyThreshold", "failed polls until the outside stops sending", errors);
    let threshold = threshold.and_then(|field| field.whole(1..=POLLS, errors));
    let timeout = fields.required("timeout", "the time until a poll has failed, as in 5s", errors);
    let timeout = timeout.and_then(|field| field.duration(DELAYS, errors));
    fields.finish(errors);
    Some(Drain::HealthCheck { interval: interval?, unhealthy_threshold: threshold?, timeout: timeout? })
}

/// Settings that mean something on one driver only.
struct Special {
    weight: u16,
    servers: Servers,
    check: bool,
    exclusive: bool,
    accept_states: Vec<String>,
    gone_when: Option<GoneWhen>,
}

impl Special {
    fn read(fields: &mut Fields<'_>, driver: Option<Driver>, errors: &mut ConfigErrors) -> Self {
        let mut only = |key, owner: Driver, errors: &mut ConfigErrors| {
            let field = fields.optional(key)?;
            if let Some(driver) = driver.filter(|driver| *driver != owner) {
                field.fail(errors, format!("means nothing on {}", driver.as_str()), format!("leave it out; it is for {}", owner.as_str()));
            }
            Some(field)
        };
        let weight = only("weight", Driver::Haproxy, errors).and_then(|field| field.whole(1..=WEIGHT, errors));
        let servers = only("servers", Driver::Haproxy, errors)
            .and_then(|field| field.word(&[("dynamic", Servers::Dynamic), ("template", Servers::Template)], errors));
        let check = only("check", Driver::Haproxy, errors).and_then(|field| field.boolean(errors));
        let exclusive = only("exclusive", Driver::Aws, errors).and_then(|field| field.boolean(errors));
        let states = only("acceptStates", Driver::Aws, errors).map(|field| field.list(STATES, errors)).unwrap_or_default();
        let states = states.iter().filter_map(|item| item.checked(text::ADDRESS, text::accepted_state, errors));
        let accept_states = states.map(str::to_owned).collect();
        let gone_when = only("goneWhen", Driver::Aws, errors)
            .and_then(|field| field.word(&[("absent", GoneWhen::Absent), ("draining", GoneWhen::Draining)], errors));
        Self {
            weight: weight.and_then(|weight| u16::try_from(weight).ok()).unwrap_or(Binding::WEIGHT),
            servers: servers.unwrap_or(Servers::Dynamic),
            check: check.unwrap_or(true),
            exclusive: exclusive.unwrap_or(false),
            accept_states,
            gone_when,
        }
    }
}

/// Reports bindings that can claim one target and disagree about it.
fn agree(all: &[Placed], errors: &mut ConfigErrors) {
    for (i, later) in all.iter().enumerate() {
        for earlier in &all[..i] {
            if later.binding.service == earlier.binding.service
                && let Some(policy) = service_difference(&later.binding, &earlier.binding)
            {
                let reason = format!("is in the same service as binding {} and differs in {policy}", earlier.binding.name);
                errors.push(later.at, later.path.clone(), reason, "write the same in both, or use another service");
                continue;
            }
            if !later.binding.can_share_a_target(&earlier.binding) {
                continue;
            }
            if let Some(policy) = difference(&later.binding, &earlier.binding) {
                let reason = format!("can claim the same target as binding {} and differs in {policy}", earlier.binding.name);
                errors.push(later.at, later.path.clone(), reason, "write the same in both, or selectors that no pod satisfies together");
            }
        }
    }
}

/// Reports bindings that fill one service through two registries, each of which takes out what only the other knows of.
fn keep_apart(all: &[Placed], registries: &[Named], errors: &mut ConfigErrors) {
    let config = |binding: &Binding| registries.iter().find(|one| one.name == binding.service.registry).and_then(|one| one.config.as_ref());
    for (i, later) in all.iter().enumerate() {
        let in_the_way = |earlier: &&Placed| {
            let (later, earlier) = (&later.binding, &earlier.binding);
            let Some((one, other)) = config(later).zip(config(earlier)) else { return false };
            let swept = later.sweeps_blindly() || earlier.sweeps_blindly() || one.differs_in_processes_from(other);
            swept && later.fills_the_service_of(earlier, one, other)
        };
        if let Some(earlier) = all[..i].iter().find(in_the_way) {
            let (binding, registry) = (&earlier.binding.name, &earlier.binding.service.registry);
            let reason = format!("is in the very service of binding {binding}, by way of registry {registry}; each takes out the other's");
            errors.push(later.at, later.path.clone(), reason, "one registry for both, or another service");
        }
    }
}

/// What is said of a whole service holds for each of its targets, whichever binding they come from.
fn service_difference(a: &Binding, b: &Binding) -> Option<&'static str> {
    let policies = [
        ("servers", a.servers != b.servers),
        ("check", a.check != b.check),
        ("exclusive", a.exclusive != b.exclusive),
        ("acceptStates", a.accept_states != b.accept_states),
        ("goneWhen", a.gone_when != b.gone_when),
    ];
    policies.into_iter().find(|(_, differs)| *differs).map(|(policy, _)| policy)
}

fn difference(a: &Binding, b: &Binding) -> Option<&'static str> {
    let policies = [
        ("mode", a.mode != b.mode),
        ("ack", a.ack != b.ack),
        ("onUnready", a.on_unready != b.on_unready),
        ("onUnbound", a.on_unbound != b.on_unbound),
        ("weight", a.weight != b.weight),
    ];
    policies.into_iter().find(|(_, differs)| *differs).map(|(policy, _)| policy)
}
