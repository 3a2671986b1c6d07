//! Certificates of our own CA on a real API server, with lives so short that several end while pods are created.
//!
//! The program's parts run in this process, three times, since nobody may give the program itself such lives.
//!
//! Invariant: no creation of a pod fails while CAs come and go.
//! Absent on purpose: certificates of others (`cert_manager`, and the integration tests for files).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use lockstep::admission::{Delays, SleepForm, Snapshot};
use lockstep::certificates::Serving;
use lockstep::certificates::authority::{Lifetimes, Wanted};
use lockstep::certificates::bundle::{Bundle, Kind, Origin, Seen};
use lockstep::certificates::keeper::Keeper;
use lockstep::config;
use lockstep::metrics::Metrics;
use lockstep::reconcile::kubernetes::Api;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::server::body::Bodies;
use lockstep::server::validate::Ours;
use lockstep::server::webhook::{self, Webhook};
use lockstep::server::{Limits, Server, Transport};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::eventually;
use crate::registry::ADDRESS;
use crate::stories::SOON;
use crate::stories::availability::{CREATED, while_pods_are_created};
use crate::world::{self, NAMESPACE, World};

/// A CA is renewed after two thirds of its life, and each lives through some serving certificates.
const LIVES: Lifetimes = Lifetimes { ca: Duration::from_secs(30), serving: Duration::from_secs(12), overlap: Duration::from_secs(5) };
/// As many CAs issue one after the other.
const CAS: usize = 3;
/// They have done so by then, on a busy machine.
const TIME: Duration = Duration::from_secs(180);
/// Replicas from nothing.
const REPLICAS: usize = 3;

pub(crate) fn short_lives(world: &World) {
    // What is made here has the names of an installation.
    world.cluster.run("helm", &["uninstall", "lockstep", "--namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout", "2m"], "");
    let mut running = JoinSet::new();
    let ports: Vec<u16> = world.cluster.runtime.block_on(async {
        let mut ports = Vec::new();
        for _ in 0..REPLICAS {
            ports.push(replica(world, &mut running).await);
        }
        ports
    });
    world.cluster.apply(&objects(&ports));
    let pod = world::pod(CREATED, "one", json!({}));
    let created = || world.cluster.rehearse(CREATED, &pod).map(drop);
    eventually("three replicas that began with nothing are trusted", SOON, created);

    let mut issuers = BTreeSet::new();
    while_pods_are_created(world, || {
        eventually(&format!("{CAS} CAs have issued certificates"), TIME, || {
            issuers.insert(issuing(world));
            if issuers.len() >= CAS { Ok(()) } else { Err(format!("{} have", issuers.len())) }
        });
    });

    // Until it is healed nobody can call the webhook, so a strict namespace takes no pod; it is healed within seconds.
    let reset = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]).to_string();
    world.cluster.kubectl(&["patch", "mutatingwebhookconfiguration", "lockstep", "--type", "json", "--patch", &reset]);
    eventually("a caBundle that somebody reset is healed", Duration::from_secs(10), || {
        let template = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let bundle = world.cluster.kubectl(&["get", "mutatingwebhookconfiguration", "lockstep", "-o", template]);
        if bundle.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) }
    });
    eventually("pods are created again", Duration::from_secs(10), created);

    world.cluster.kubectl(&["delete", "mutatingwebhookconfiguration/lockstep"]);
    world.cluster.kubectl(&["delete", "secret/lockstep-certificate", "service/lockstep", "--namespace", NAMESPACE]);
}

/// Key of the CA that issues, so that each is counted once.
fn issuing(world: &World) -> String {
    let path = r"jsonpath={.data.ca\.key}";
    world.cluster.kubectl(&["get", "secret", "lockstep-certificate", "--namespace", NAMESPACE, "-o", path])
}

/// Starts one, and answers its port.
async fn replica(world: &World, running: &mut JoinSet<()>) -> u16 {
    let (api, clock, serving) = (Api::new(world.cluster.client.clone()), TokioClock::start(), Arc::new(Serving::default()));
    let keeper = Keeper {
        api: api.clone(),
        clock: clock.clone(),
        namespace: NAMESPACE.into(),
        secret: "lockstep-certificate".into(),
        wanted: Wanted::new(vec![format!("lockstep.{NAMESPACE}.svc")], LIVES).expect("it is a name"),
        serving: serving.clone(),
        metrics: Arc::new(Metrics::new()),
    };
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/lockstep-certificate");
    let (kind, name, namespace) = (Kind::Mutating, "lockstep".into(), NAMESPACE.into());
    let healer = Bundle { api, clock, kind, name, namespace, origin: Origin::Secret(secret) };
    let ((bundle, wanted), (tell, seen)) = (watch::channel(None), watch::channel(Seen::Nothing));
    running.spawn(healer.run(wanted, tell));
    running.spawn(keeper.run(bundle, vec![seen]));
    let listener = TcpListener::bind((ADDRESS, 0)).await.expect("the address is there");
    let port = listener.local_addr().expect("it listens").port();
    let transport = Transport::Tls(Arc::new(serving.tls(None)));
    let server =
        Server { listener, transport, router: webhook::router(Arc::new(answers())), limits: Limits::default(), open: Default::default() };
    running.spawn(server.run(std::future::pending()));
    port
}

/// Prepares the pods of one namespace.
fn answers() -> Webhook {
    let text = json!({
        "apiVersion": "lockstep.dev/v1alpha1", "kind": "Configuration", "cluster": "test",
        "registries": [{ "name": "lan", "http": { "url": "http://registry.example" } }],
        "bindings": [{
            "name": CREATED, "namespaces": [CREATED], "podSelector": { "matchLabels": { "app": "web" } },
            "registry": "lan", "service": CREATED, "port": "http", "drain": { "fixed": "1s" },
        }],
    });
    let configuration = config::parse(&text.to_string()).expect("it is well formed");
    let delays = Delays::resolve(&configuration, |_| None);
    let snapshot = Snapshot { configuration: Arc::new(configuration), own_namespace: NAMESPACE.into(), delays, sleep: SleepForm::Native };
    Webhook {
        snapshot: Arc::new(ArcSwapOption::from_pointee(Some(snapshot))),
        bodies: Bodies::new(SOON),
        ours: Ours { namespace: NAMESPACE.into(), name: "lockstep-config".into() },
        metrics: Arc::new(Metrics::new()),
    }
}

/// As the chart makes them, with one webhook; behind the Service stand the replicas here.
fn objects(ports: &[u16]) -> Vec<Value> {
    let subsets: Vec<Value> =
        ports.iter().map(|port| json!({ "addresses": [{ "ip": ADDRESS }], "ports": [{ "name": "https", "port": port }] })).collect();
    let slice = |port: &u16| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": format!("lockstep-{port}"), "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "lockstep" } },
            "endpoints": [{ "addresses": [ADDRESS], "conditions": { "ready": true } }],
            "ports": [{ "name": "https", "port": port }],
        })
    };
    let others = [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "lockstep-certificate", "namespace": NAMESPACE } }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "lockstep", "namespace": NAMESPACE },
            "spec": { "ports": [{ "name": "https", "port": 443 }] },
        }),
        // API servers look at these up to some version, and at the slices from then on.
        json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "lockstep", "namespace": NAMESPACE }, "subsets": subsets }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": "lockstep" },
            "webhooks": [{
                "name": "strict.lockstep.dev", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 5,
                "clientConfig": { "service": { "name": "lockstep", "namespace": NAMESPACE, "path": "/mutate", "port": 443 } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
                "namespaceSelector": { "matchLabels": { "lockstep.dev/inject": "strict" } },
            }],
        }),
    ];
    ports.iter().map(slice).chain(others).collect()
}
