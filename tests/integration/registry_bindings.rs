//! An edit of the configuration while drivers are at work: what they keep, what counts at once, and what begins anew.
//!
//! The configuration is taken as the reconciler takes it, and the registry is a real one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockstep::reconcile::settings::Settings;
use lockstep::registry::driver::{Driver, Opener};
use lockstep::registry::{Registry, TargetKeys};
use prometheus_client::metrics::family::Family;
use tokio::time::Instant;

use crate::haproxy_process::Haproxy;
use crate::registry_haproxy::{PATIENCE, ROUND};

/// Nobody waits that long in a test: an instance that is away counts for as long.
const FOR_GOOD: Duration = Duration::from_secs(3600);

/// The configuration in force.
struct Ground {
    processes: [Haproxy; 2],
    opener: Opener,
    settings: Settings<Driver>,
}

impl Ground {
    fn new() -> Self {
        let opener = Opener::new(PathBuf::from("/nowhere"), Family::default());
        Self { processes: [ROUND, ROUND].map(Haproxy::start), opener, settings: Settings::default() }
    }

    /// Takes a text with these bindings' own words; each word is one binding of backend `web`.
    fn take(&mut self, instance_timeout: Duration, bindings: &[&str]) -> Arc<Driver> {
        let [first, second] = self.processes.each_ref().map(Haproxy::address);
        let timeout = instance_timeout.as_secs();
        let bindings: String = bindings
            .iter()
            .enumerate()
            .map(|(n, more)| format!("{{name: b{n}, namespaces: [n{n}], registry: lan, port: 80, drain: {{fixed: 1s}}, {more}}},"))
            .collect();
        let text = format!(
            "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: here, bindings: [{bindings}],
              registries: [{{name: lan, haproxy: {{addresses: ['{first}', '{second}'], instanceTimeout: {timeout}s}}}}]}}"
        );
        assert!(self.settings.take(Some(&text.into()), &self.opener), "{:?}", self.settings.problem);
        self.settings.client("lan").unwrap().opened.clone().unwrap()
    }
}

#[tokio::test]
async fn an_edit_of_a_binding_leaves_an_instance_counted_out_and_an_edit_of_the_registry_does_not() {
    let mut ground = Ground::new();
    let driver = ground.take(Duration::from_secs(1), &["service: web"]);
    driver.list("web", None).await.unwrap();
    ground.processes[1].stop();
    let begun = Instant::now();
    while driver.list("web", None).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "the instance is not counted out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let edited = ground.take(Duration::from_secs(1), &["service: web, weight: 20", "service: api, servers: template"]);
    assert!(Arc::ptr_eq(&driver, &edited));
    edited.list("web", None).await.expect("it is known that one is away");
    assert_eq!(edited.capabilities_of("api").keys, TargetKeys::Address, "the new backend counts at once");

    let reopened = ground.take(FOR_GOOD, &["service: web"]);
    assert!(!Arc::ptr_eq(&driver, &reopened));
    assert!(reopened.list("web", None).await.is_err(), "it does not know yet that one is away");
}
