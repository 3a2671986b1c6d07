//! The drivers of this program, as one closed type.
//!
//! Invariant: a registry of the configuration has a driver here or an [`OpenError`] that says so; its pods wait then.
//! Absent on purpose: anything that two drivers share (`endpoint`, `credentials`, `reach`), or that stands above them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::metrics::family::Family as Gauges;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::{DriverConfig, Family, RegistryConfig, Services};
use crate::metrics::reconcile::RegistryLabel;
use crate::reconcile::{Drivers, OpenError};
use crate::registry::aws::Aws;
use crate::registry::consul::Consul;
use crate::registry::haproxy::Haproxy;
use crate::registry::http::Http;
use crate::registry::{CallError, Capabilities, Change, ChangeError, HealthCheck, Listing, Pace, Registry, Wait};

/// An opened registry.
#[derive(Debug)]
pub enum Driver {
    /// AWS target groups.
    Aws(Box<Aws>),
    /// Consul's catalog.
    Consul(Consul),
    /// HAProxy's runtime API.
    Haproxy(Haproxy),
    /// The open HTTP contract.
    Http(Http),
}

/// Opens the registries of a configuration; clones of it share what they open, so that a registry has one driver in a process, whoever
/// asks it: what it may be asked is counted in one place, and what it told is known to all.
#[derive(Clone, Debug)]
pub struct Opener {
    credentials: PathBuf,
    instances_out: Gauges<RegistryLabel, Gauge>,
    opened: Arc<Mutex<BTreeMap<Arc<str>, Opened>>>,
}

/// A driver that somebody may still use.
#[derive(Debug)]
struct Opened {
    config: RegistryConfig,
    cluster: Arc<str>,
    driver: Weak<Driver>,
}

impl Opener {
    /// One that has opened nothing yet: with the directory of the credential files, and where drivers show how many instances are counted out.
    pub fn new(credentials: PathBuf, instances_out: Gauges<RegistryLabel, Gauge>) -> Self {
        Self { credentials, instances_out, opened: Arc::default() }
    }

    fn driver(&self, config: &RegistryConfig, cluster: &Arc<str>) -> Result<Driver, OpenError> {
        let (name, credentials) = (&config.name, self.credentials.as_path());
        let label = RegistryLabel { registry: name.clone() };
        // Another gauge than that of the driver before, which may still be asked for a moment.
        self.instances_out.remove(&label);
        Ok(match &config.driver {
            DriverConfig::Http(config) => Driver::Http(Http::new(config, name, credentials)?),
            DriverConfig::Haproxy(config) => {
                let out = self.instances_out.get_or_create(&label).clone();
                Driver::Haproxy(Haproxy::new(config, name, cluster, credentials)?.showing(out))
            }
            DriverConfig::Consul(config) => Driver::Consul(Consul::new(config, name, credentials)?),
            DriverConfig::Aws(config) => Driver::Aws(Box::new(Aws::new(config, name, cluster)?)),
        })
    }
}

impl Drivers for Opener {
    type Registry = Driver;

    fn open(&self, config: &RegistryConfig, cluster: &Arc<str>) -> Result<Arc<Driver>, OpenError> {
        let mut all = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |opened: &&Opened| opened.config == *config && opened.cluster == *cluster;
        if let Some(driver) = all.get(&config.name).filter(same).and_then(|opened| opened.driver.upgrade()) {
            return Ok(driver);
        }
        let driver = Arc::new(self.driver(config, cluster)?);
        let opened = Opened { config: config.clone(), cluster: cluster.clone(), driver: Arc::downgrade(&driver) };
        all.insert(config.name.clone(), opened);
        Ok(driver)
    }
}

impl Registry for Driver {
    fn bind(&self, services: Services) {
        match self {
            Self::Aws(driver) => driver.bind(services),
            Self::Consul(driver) => driver.bind(services),
            Self::Haproxy(driver) => driver.bind(services),
            Self::Http(driver) => driver.bind(services),
        }
    }

    fn forget(&self) {
        match self {
            Self::Aws(driver) => driver.forget(),
            Self::Consul(driver) => driver.forget(),
            Self::Haproxy(driver) => driver.forget(),
            Self::Http(driver) => driver.forget(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        match self {
            Self::Aws(driver) => driver.capabilities(),
            Self::Consul(driver) => driver.capabilities(),
            Self::Haproxy(driver) => driver.capabilities(),
            Self::Http(driver) => driver.capabilities(),
        }
    }

    fn capabilities_of(&self, service: &str) -> Capabilities {
        match self {
            Self::Aws(driver) => driver.capabilities_of(service),
            Self::Consul(driver) => driver.capabilities_of(service),
            Self::Haproxy(driver) => driver.capabilities_of(service),
            Self::Http(driver) => driver.capabilities_of(service),
        }
    }

    async fn list(&self, service: &str, wait: Option<Wait>) -> Result<Listing, CallError> {
        match self {
            Self::Aws(driver) => driver.list(service, wait).await,
            Self::Consul(driver) => driver.list(service, wait).await,
            Self::Haproxy(driver) => driver.list(service, wait).await,
            Self::Http(driver) => driver.list(service, wait).await,
        }
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        match self {
            Self::Aws(driver) => driver.apply(service, changes).await,
            Self::Consul(driver) => driver.apply(service, changes).await,
            Self::Haproxy(driver) => driver.apply(service, changes).await,
            Self::Http(driver) => driver.apply(service, changes).await,
        }
    }

    async fn drain_delay(&self, service: &str) -> Result<Option<Duration>, CallError> {
        match self {
            Self::Aws(driver) => driver.drain_delay(service).await,
            Self::Consul(driver) => driver.drain_delay(service).await,
            Self::Haproxy(driver) => driver.drain_delay(service).await,
            Self::Http(driver) => driver.drain_delay(service).await,
        }
    }

    fn family(&self, service: &str) -> Option<Family> {
        match self {
            Self::Aws(driver) => driver.family(service),
            Self::Consul(driver) => driver.family(service),
            Self::Haproxy(driver) => driver.family(service),
            Self::Http(driver) => driver.family(service),
        }
    }

    fn health_check(&self, service: &str) -> Option<HealthCheck> {
        match self {
            Self::Aws(driver) => driver.health_check(service),
            Self::Consul(driver) => driver.health_check(service),
            Self::Haproxy(driver) => driver.health_check(service),
            Self::Http(driver) => driver.health_check(service),
        }
    }

    async fn refusal(&self, service: &str) -> Result<Option<String>, CallError> {
        match self {
            Self::Aws(driver) => driver.refusal(service).await,
            Self::Consul(driver) => driver.refusal(service).await,
            Self::Haproxy(driver) => driver.refusal(service).await,
            Self::Http(driver) => driver.refusal(service).await,
        }
    }

    fn pace(&self) -> Pace {
        match self {
            Self::Aws(driver) => driver.pace(),
            Self::Consul(driver) => driver.pace(),
            Self::Haproxy(driver) => driver.pace(),
            Self::Http(driver) => driver.pace(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AwsConfig, HaproxyConfig};

    fn aws(region: &str) -> RegistryConfig {
        let config = AwsConfig { region: region.into(), endpoint: None, assume_role: None };
        RegistryConfig { name: "edge".into(), driver: DriverConfig::Aws(config) }
    }

    /// The driver before may be in the middle of a call, and is dropped after the new one has begun.
    #[test]
    fn a_driver_that_is_replaced_shows_nothing_any_more() {
        let opener = Opener::new(PathBuf::new(), Gauges::default());
        let label = RegistryLabel { registry: "edge".into() };
        let open = |port| {
            let config =
                HaproxyConfig { addresses: vec![format!("lb:{port}")], instance_timeout: HaproxyConfig::INSTANCE_TIMEOUT, tls_ca: None };
            opener.open(&RegistryConfig { name: "edge".into(), driver: DriverConfig::Haproxy(config) }, &"here".into()).unwrap()
        };
        let (first, before) = (open(1), opener.instances_out.get_or_create(&label).clone());
        let _second = open(2);
        opener.instances_out.get_or_create(&label).set(1);
        before.set(7);
        drop(first);
        assert_eq!(opener.instances_out.get_or_create(&label).get(), 1);
    }

    #[test]
    fn a_registry_has_one_driver_as_long_as_its_settings_are_the_same() {
        let opener = Opener::new(PathBuf::new(), Gauges::default());
        let (here, there) = (Arc::from("here"), Arc::from("there"));
        let first = opener.open(&aws("eu-west-1"), &here).unwrap();
        assert!(Arc::ptr_eq(&first, &opener.clone().open(&aws("eu-west-1"), &here).unwrap()));
        assert!(!Arc::ptr_eq(&first, &opener.open(&aws("eu-west-1"), &there).unwrap()));
        let moved = opener.open(&aws("us-east-1"), &here).unwrap();
        assert!(!Arc::ptr_eq(&first, &moved));
        assert!(Arc::ptr_eq(&moved, &opener.open(&aws("us-east-1"), &here).unwrap()));
    }
}
