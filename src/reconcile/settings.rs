//! The configuration in force and the clients of the registries that it names.
//!
//! Invariant: a text that cannot be used changes nothing but what is said about it; a client whose own settings did not change is kept,
//! with its pace and its breaker, whatever its bindings say now.
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

    /// What was believed of the registries is true no more.
    pub fn forget(&self) {
        self.registries.values().filter_map(|client| client.opened.as_ref().ok()).for_each(|registry| registry.forget());
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
            let same = |client: &&Client<R>| client.config == *config && client.cluster == configuration.cluster;
            if self.client(&config.name).filter(same).is_none() {
                self.registries.insert(Arc::clone(&config.name), Client::open(config, &configuration.cluster, drivers));
            }
            if let Some(Ok(registry)) = self.client(&config.name).map(|client| &client.opened) {
                registry.bind(configuration.services(&config.name));
            }
        }
        self.written = Some(configuration);
        self.enforce();
        true
    }
}

impl<R: Registry> Client<R> {
    fn open<D: Drivers<Registry = R>>(config: &RegistryConfig, cluster: &Arc<str>, drivers: &D) -> Self {
        let opened = drivers.open(config, cluster).map_err(|error| error.to_string());
        let pace = opened.as_ref().map_or(Pace::default(), |registry| registry.pace());
        Self { config: config.clone(), cluster: Arc::clone(cluster), opened, breaker: Breaker::default(), limiter: Limiter::new(pace) }
    }

    /// What the registry can do; `None` where there is no client.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.opened.as_ref().ok().map(|registry| registry.capabilities())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::config::Services;
    use crate::reconcile::OpenError;
    use crate::reconcile::clock::Instant;
    use crate::reconcile::limits::{BREAKER_AFTER, Request};
    use crate::registry::{CallError, Change, ChangeError, Listing, Rate, Wait};

    const GROUP: &str = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/web/0123456789abcdef";

    /// Opens registries that do nothing but note what they are told of their services.
    struct Noting;

    #[derive(Default)]
    struct Noted(Mutex<Vec<Services>>, AtomicUsize);

    impl Drivers for Noting {
        type Registry = Noted;

        fn open(&self, _: &RegistryConfig, _: &Arc<str>) -> Result<Arc<Noted>, OpenError> {
            Ok(Arc::default())
        }
    }

    impl Registry for Noted {
        fn bind(&self, services: Services) {
            self.0.lock().unwrap().push(services);
        }

        fn forget(&self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }

        fn capabilities(&self) -> Capabilities {
            unreachable!("nobody asks")
        }

        async fn list(&self, _: &str, _: Option<Wait>) -> Result<Listing, CallError> {
            unreachable!("nobody lists")
        }

        async fn apply(&self, _: &str, _: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
            unreachable!("nobody changes")
        }

        async fn drain_delay(&self, _: &str) -> Result<Option<Duration>, CallError> {
            unreachable!("nobody asks")
        }

        fn pace(&self) -> Pace {
            let slow = Rate { per_second: 0.001, burst: 1.0 };
            Pace { calls: slow, changes: slow }
        }
    }

    fn text(registry: &str, cluster: &str, more: &str) -> Arc<str> {
        let text = format!(
            "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: {cluster}, registries: [{{name: edge, aws: {{region: eu-west-1{registry}}}}}],
              bindings: [{{name: web, namespaces: [shop], registry: edge, service: '{GROUP}', port: 80{more}}}]}}"
        );
        text.into()
    }

    /// Whether the client of the registry is as worn as [`wear`] made it.
    fn is_worn(settings: &mut Settings<Noted>) -> (bool, bool) {
        let client = settings.client_mut("edge").unwrap();
        let now = Instant::default();
        (client.breaker.is_open(), client.limiter.free_at(Request::Read, now) > now)
    }

    fn wear(settings: &mut Settings<Noted>) {
        let client = settings.client_mut("edge").unwrap();
        (0..BREAKER_AFTER).for_each(|_| client.breaker.fail(Instant::default(), 0.0));
        client.limiter.take(Request::Read, Instant::default());
    }

    fn registry(settings: &Settings<Noted>) -> Arc<Noted> {
        Arc::clone(settings.client("edge").unwrap().opened.as_ref().unwrap())
    }

    #[test]
    fn what_was_believed_is_forgotten_in_every_client() {
        let mut settings = Settings::default();
        assert!(settings.take(Some(&text("", "here", "")), &Noting));
        settings.forget();
        assert_eq!(registry(&settings).1.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_edit_of_a_binding_keeps_client_breaker_and_pace_and_counts_at_once() {
        let mut settings = Settings::default();
        let texts = [text("", "here", ""), text("", "here", ", mode: observe")];
        assert!(settings.take(Some(&texts[0]), &Noting));
        let opened = registry(&settings);
        wear(&mut settings);
        assert!(settings.take(Some(&texts[1]), &Noting));
        assert!(Arc::ptr_eq(&opened, &registry(&settings)));
        assert_eq!(is_worn(&mut settings), (true, true));
        let told = texts.map(|text| config::parse(&text).unwrap().services("edge"));
        assert_ne!(told[0], told[1]);
        assert_eq!(*opened.0.lock().unwrap(), told);
    }

    #[test]
    fn an_edit_of_the_registry_or_the_cluster_opens_a_new_client_and_tells_it_of_its_services() {
        for edited in [text(", assumeRole: 'arn:aws:iam::123456789012:role/lockstep'", "here", ""), text("", "there", "")] {
            let mut settings = Settings::default();
            assert!(settings.take(Some(&text("", "here", "")), &Noting));
            let opened = registry(&settings);
            wear(&mut settings);
            assert!(settings.take(Some(&edited), &Noting));
            let reopened = registry(&settings);
            assert!(!Arc::ptr_eq(&opened, &reopened));
            assert_eq!(is_worn(&mut settings), (false, false));
            assert_eq!(*reopened.0.lock().unwrap(), [settings.current.as_ref().unwrap().services("edge")]);
        }
    }
}
