//! The configuration in force and the clients of the registries that it names.
//!
//! Invariant: a text that cannot be used changes nothing but what is said about it; a client whose settings did not change is kept.
//! Absent on purpose: the text's meaning (`config`), what changes for pods (`registration`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Drivers;
use super::limits::{Breaker, Limiter};
use crate::config::{self, Configuration, Family, RegistryConfig};
use crate::registration::observe::Traits;
use crate::registry::{Capabilities, Pace, Registry};
use crate::target::ServiceId;

/// The configuration in force, and what came of the newest text.
#[derive(Debug)]
pub struct Settings<R> {
    /// The newest good configuration.
    pub current: Option<Arc<Configuration>>,
    /// Its text.
    pub text: Option<Arc<str>>,
    /// What is wrong with the newest text.
    pub problem: Option<String>,
    /// The newest good configuration as it is written: `family: auto` may mean another family in the one in force.
    written: Option<Configuration>,
    /// Services that take one family of addresses only.
    families: BTreeMap<ServiceId, Family>,
    registries: BTreeMap<Arc<str>, Client<R>>,
}

/// One registry of the configuration, or of an earlier one.
#[derive(Debug)]
pub struct Client<R> {
    config: RegistryConfig,
    cluster: Arc<str>,
    /// The client, or why there is none.
    pub opened: Result<Arc<R>, String>,
    /// Lets it rest while it cannot be reached.
    pub breaker: Breaker,
    /// How many requests it gets.
    pub limiter: Limiter,
}

impl<R> Default for Settings<R> {
    /// No configuration yet.
    fn default() -> Self {
        Self { current: None, text: None, problem: None, written: None, families: BTreeMap::new(), registries: BTreeMap::new() }
    }
}

impl<R: Registry> Settings<R> {
    /// Takes a new text; whether the configuration in force is another one now.
    pub fn take<D: Drivers<Registry = R>>(&mut self, text: Option<&Arc<str>>, drivers: &D) -> bool {
        let Some(text) = text else {
            self.problem = Some("the ConfigMap or its key is missing".to_owned());
            return false;
        };
        match config::parse(text) {
            Ok(configuration) => {
                self.problem = None;
                self.text = Some(Arc::clone(text));
                self.apply(configuration, drivers)
            }
            Err(errors) => {
                self.problem = Some(errors.to_string());
                false
            }
        }
    }

    /// Takes the last good text, of an earlier process, where there is nothing better.
    pub fn fall_back<D: Drivers<Registry = R>>(&mut self, text: &str, drivers: &D) -> bool {
        match config::parse(text) {
            Ok(configuration) if self.current.is_none() => self.apply(configuration, drivers),
            _ => false,
        }
    }

    /// The registry of that name, of this configuration or, as long as the process lives, of an earlier one.
    pub fn client(&self, name: &str) -> Option<&Client<R>> {
        self.registries.get(name)
    }

    /// As [`Settings::client`].
    pub fn client_mut(&mut self, name: &str) -> Option<&mut Client<R>> {
        self.registries.get_mut(name)
    }

    /// All registries.
    pub fn clients(&self) -> impl Iterator<Item = (&Arc<str>, &Client<R>)> {
        self.registries.iter()
    }

    /// What the registry of a service can do; `None` where there is no client.
    pub fn traits(&self, service: &ServiceId) -> Option<Traits> {
        let capabilities = self.client(&service.registry)?.opened.as_ref().ok()?.capabilities_of(&service.service);
        let binding = self.current.as_ref().and_then(|current| current.bindings.iter().find(|binding| binding.service == *service));
        Some(Traits {
            drain: capabilities.drain,
            keys: capabilities.keys,
            stamps: capabilities.stamps,
            gone_when: binding.and_then(|binding| binding.gone_when).unwrap_or(capabilities.gone_when),
        })
    }

    /// A service was read, so its registry may know now which family it takes; whether the configuration in force is another one now.
    pub fn learn_family(&mut self, service: &ServiceId) -> bool {
        let registry = self.client(&service.registry).and_then(|client| client.opened.as_ref().ok());
        let Some(family) = registry.and_then(|registry| registry.family(&service.service)) else { return false };
        if self.families.insert(service.clone(), family) == Some(family) {
            return false;
        }
        let before = self.current.clone();
        self.enforce();
        self.current != before
    }

    fn enforce(&mut self) {
        let Some(mut configuration) = self.written.clone() else { return };
        for binding in configuration.bindings.iter_mut().filter(|binding| binding.family == Family::Auto) {
            binding.family = self.families.get(&binding.service).copied().unwrap_or(Family::Auto);
        }
        self.current = Some(Arc::new(configuration));
    }

    fn apply<D: Drivers<Registry = R>>(&mut self, configuration: Configuration, drivers: &D) -> bool {
        if self.written.as_ref() == Some(&configuration) {
            return false;
        }
        for config in &configuration.registries {
            let known = self.registries.get(&config.name);
            if known.is_some_and(|client| client.config == *config && client.cluster == configuration.cluster) {
                continue;
            }
            let opened = drivers.open(config, &configuration.cluster).map_err(|error| error.to_string());
            let pace = opened.as_ref().map_or(Pace::default(), |registry| registry.pace());
            let client = Client {
                config: config.clone(),
                cluster: Arc::clone(&configuration.cluster),
                opened,
                breaker: Breaker::default(),
                limiter: Limiter::new(pace),
            };
            self.registries.insert(Arc::clone(&config.name), client);
        }
        self.written = Some(configuration);
        self.enforce();
        true
    }
}

impl<R: Registry> Client<R> {
    /// What the registry can do; `None` where there is no client.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.opened.as_ref().ok().map(|registry| registry.capabilities())
    }
}
