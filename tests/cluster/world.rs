//! What is installed: Lockstep by its chart, and for each story a namespace with a binding of its own.
//!
//! Invariant: the drain delays are short and the same everywhere, so a story can say how long a pod sleeps.
//! Absent on purpose: workloads that know of Lockstep.

use std::fs;
use std::process::Output;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::account::{Account, GROUPED};
use crate::cluster::Cluster;
use crate::collector::Collector;
use crate::outside::{BACKENDS, Outside};
use crate::registry::{ADDRESS, Beside, Registry};

/// The chart.
pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lockstep");
/// Namespace of Lockstep.
pub(crate) const NAMESPACE: &str = "lockstep-system";
/// A secret that every workload carries in the clear, as many do.
pub(crate) const PASSWORD: &str = "correct-horse-battery-staple";
/// Seconds that every injected pod sleeps: a drain delay of 1 s and a margin of 2 s.
pub(crate) const SLEEP: i64 = 3;
/// Grace period that every workload asks for.
pub(crate) const GRACE: i64 = 5;

/// Namespaces with a binding each, of the same name as the service; opted in with that label if it is not empty, registered there.
/// Strict where replicas come and go under the story: a pod that nobody could be asked about would not be prepared.
const BOUND: &[(&str, &str, &str)] = &[
    ("prepared", "enabled", "local"),
    ("generated", "enabled", "local"),
    ("found", "enabled", "local"),
    ("handshake", "enabled", "local"),
    ("rollout", "enabled", "local"),
    ("drained", "enabled", "local"),
    ("scaled", "enabled", "local"),
    ("outage", "enabled", "beside"),
    ("leader", "strict", "local"),
    ("open", "enabled", "local"),
    ("broken", "enabled", "local"),
    ("closed", "strict", "local"),
    ("kept", "enabled", "local"),
    ("stubborn", "enabled", "local"),
    ("forced", "enabled", "local"),
    ("hurried", "enabled", "local"),
    ("evicted", "enabled", "local"),
    ("doomed", "enabled", "local"),
    ("joining", "", "local"),
    ("stateful", "enabled", "local"),
    ("crashing", "enabled", "local"),
    ("flapping", "enabled", "local"),
    ("everywhere", "enabled", "local"),
    ("evacuated", "enabled", "local"),
    ("lost", "enabled", "local"),
    ("interrupted", "strict", "local"),
    ("created", "strict", "local"),
    ("upgraded", "strict", "local"),
    ("certified", "strict", "local"),
    ("documented", "", "local"),
    ("watched", "strict", "local"),
    ("doubled", "strict", "local"),
    ("leaving", "enabled", "local"),
    ("first", "strict", "local"),
    ("shown", "enabled", "local"),
    ("freed", "enabled", "local"),
    ("ailing", "enabled", "local"),
    ("sound", "enabled", "local"),
    ("followed", "enabled", "local"),
    ("traced", "enabled", "local"),
];

/// Namespace that a binding selects, but that is not opted in.
pub(crate) const UNLABELLED: &str = "unlabelled";

/// What every story finds.
pub(crate) struct World {
    /// The cluster, with Lockstep installed.
    pub cluster: Cluster,
    /// A registry that a story may end and start again.
    pub beside: Beside,
    /// Load balancers outside of the cluster.
    pub outside: Outside,
    /// An AWS account outside of it.
    pub account: Account,
    /// A collector of traces outside of it.
    pub collector: Collector,
    /// Its URL.
    traces: String,
}

impl World {
    /// Makes the namespaces and installs the chart.
    pub(crate) fn install(cluster: Cluster) -> Self {
        let account = Account::start(&cluster);
        let collector = Collector::default();
        let traces = cluster.runtime.block_on(collector.start_at(ADDRESS));
        let world = Self { cluster, beside: Beside::new(), outside: Outside::start(), account, collector, traces };
        world.furnish();
        let output = helm(&world.cluster, &["install"], &world.values());
        if !output.status.success() {
            world.record();
            panic!("helm install: {}", String::from_utf8_lossy(&output.stderr));
        }
        world
    }

    /// The registry that the chart runs.
    pub(crate) fn registry(&self) -> Registry<'_> {
        Registry::of_chart(&self.cluster)
    }

    /// The values of the install.
    pub(crate) fn values(&self) -> Value {
        let places = BOUND.iter().map(|&(name, _, registry)| (name, registry)).chain([(UNLABELLED, "local")]);
        let binding = |(name, registry): (&str, &str)| {
            json!({
                "name": name, "namespaces": [name], "podSelector": { "matchLabels": { "app": "web" } },
                "registry": registry, "service": name, "port": "http", "drain": { "fixed": "1s" },
            })
        };
        let registries: Vec<Value> = [self.beside.entry(), self.account.entry()].into_iter().chain(self.outside.registries()).collect();
        json!({
            "image": { "tag": "test", "pullPolicy": "Never" },
            "registry": { "enabled": true },
            "env": Account::key(),
            "log": { "filter": "info,lockstep=debug" },
            "traces": { "collector": self.traces },
            "config": {
                "cluster": "test",
                "injection": { "margin": "2s" },
                "registration": { "unreachableAfter": "10s" },
                "registries": registries,
                "bindings": places.map(binding).chain(self.outside.bindings()).chain([self.account.binding()]).collect::<Vec<_>>(),
            },
        })
    }

    /// The replicas of Lockstep.
    pub(crate) fn replicas(&self) -> Vec<Pod> {
        self.cluster.pods(NAMESPACE, "app.kubernetes.io/component=webhook")
    }

    /// What a pod of Lockstep's namespace shows at `/metrics`; empty where it shows nothing.
    pub(crate) fn metrics(&self, pod: &str) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics");
        String::from_utf8_lossy(&self.cluster.attempt("kubectl", &["get", "--raw", &path], "").stdout).into_owned()
    }

    /// Upgrades Lockstep to those values; it must go well.
    pub(crate) fn upgrade(&self, values: &Value) {
        let output = helm(&self.cluster, &["upgrade"], values);
        assert!(output.status.success(), "helm upgrade: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Writes what the cluster knows beside its logs, for whoever looks into a failure.
    pub(crate) fn record(&self) {
        let questions: [(&str, &[&str]); 4] = [
            ("objects", &["get", "pods,endpointslices,leases,configmaps", "--all-namespaces", "-o", "wide"]),
            ("pods", &["get", "pods", "--all-namespaces", "-o", "yaml"]),
            ("events", &["get", "events", "--all-namespaces", "--sort-by", ".lastTimestamp"]),
            ("lockstep", &["logs", "--namespace", NAMESPACE, "--selector", "app.kubernetes.io/name=lockstep", "--prefix", "--tail", "-1"]),
        ];
        for (name, question) in questions {
            let answer = self.cluster.attempt("kubectl", question, "");
            let file = self.cluster.path("log").join(format!("{name}.txt"));
            fs::write(file, [answer.stdout, answer.stderr].concat()).expect("the folder is ours");
        }
    }

    fn furnish(&self) {
        let bound = BOUND.iter().map(|&(name, label, _)| match label {
            "" => namespace(name, json!({})),
            label => namespace(name, json!({ "lockstep.dev/inject": label })),
        });
        // Our own namespace takes only what the strictest Pod Security level allows.
        let own = namespace(NAMESPACE, json!({ "pod-security.kubernetes.io/enforce": "restricted" }));
        // Strict: a pod that came while no replica answered would be sent requests, and lose them.
        let strict = |bound: bool| if bound { json!({ "lockstep.dev/inject": "strict" }) } else { json!({}) };
        let behind = BACKENDS.iter().map(|backend| namespace(backend.name, strict(backend.is_bound())));
        let grouped = namespace(GROUPED, json!({ "lockstep.dev/inject": "enabled" }));
        let others = [namespace(UNLABELLED, json!({})), grouped, own, volume(&self.cluster)];
        self.cluster.apply(&bound.chain(behind).chain(others).collect::<Vec<_>>());
        self.beside.start(&self.cluster);
    }
}

/// Runs helm on our chart with those values.
pub(crate) fn helm(cluster: &Cluster, verb: &[&str], values: &Value) -> Output {
    let rest = ["lockstep", CHART, "--namespace", NAMESPACE, "--values", "-", "--wait", "--timeout", "2m"];
    cluster.attempt("helm", &[verb, &rest].concat(), &values.to_string())
}

/// A Deployment of web servers that knows nothing of Lockstep.
pub(crate) fn deployment(namespace: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": namespace },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": pod_spec() },
        },
    })
}

/// A Pod alone, with those labels beside `app`.
pub(crate) fn pod(namespace: &str, name: &str, mut labels: Value) -> Value {
    labels["app"] = "web".into();
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace, "labels": labels }, "spec": pod_spec() })
}

/// A container's command: a shell below an init that passes signals on.
pub(crate) fn shell(script: &str) -> Value {
    json!(["/init", "--", "/bin/sh", "-c", script])
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// A volume for the chart's registry: a folder of the node that belongs to the image's user.
fn volume(cluster: &Cluster) -> Value {
    let folder = cluster.path("registry-volume");
    fs::create_dir_all(&folder).expect("the folder is ours");
    std::os::unix::fs::chown(&folder, Some(65532), Some(65532)).expect("we are root");
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "registry" },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": folder } },
    })
}

fn pod_spec() -> Value {
    json!({
        "terminationGracePeriodSeconds": GRACE,
        "containers": [{
            "name": "web", "image": "app:test", "imagePullPolicy": "Never",
            "env": [{ "name": "PASSWORD", "value": PASSWORD }],
            "ports": [{ "name": "http", "containerPort": 8080 }],
            // Patient, so that a busy machine makes no pod unready.
            "readinessProbe": { "httpGet": { "path": "/", "port": "http" }, "periodSeconds": 1, "timeoutSeconds": 10 },
        }],
    })
}
