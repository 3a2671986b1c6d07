//! What every target is run with: a binding that selects every pod of every namespace.

use std::sync::{Arc, OnceLock};

use lockstep::admission::{Delays, SleepForm, Snapshot};
use lockstep::config;

const CONFIGURATION: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: Configuration
cluster: fuzz
registries: [{name: lan, haproxy: {addresses: ['127.0.0.1:9999']}}]
bindings:
- {name: all, namespaces: ['*'], registry: lan, service: all, port: 80, drain: {fixed: 30s}}
- {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: 80, drain: {fixed: 60s}}
";

pub fn snapshot() -> &'static Snapshot {
    static SNAPSHOT: OnceLock<Snapshot> = OnceLock::new();
    SNAPSHOT.get_or_init(|| {
        let configuration = config::parse(CONFIGURATION).expect("it is valid");
        let delays = Delays::resolve(&configuration, |_| None);
        Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from("lockstep-system"), delays, sleep: SleepForm::Native }
    })
}
