//! Certificates of several replicas against an API server in memory: who comes first, what is healed, what is rotated.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use lockstep::certificates::Serving;
use lockstep::certificates::authority::{Lifetimes, Wanted};
use lockstep::certificates::bundle::{Bundle, Kind, Origin, Seen};
use lockstep::certificates::keeper::Keeper;
use lockstep::metrics::Metrics;
use lockstep::reconcile::kubernetes::Api;
use lockstep::reconcile::tokio_clock::TokioClock;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::authority::Authority;
use crate::memory_api::MemoryApi;

const NAMESPACE: &str = "lockstep-system";
const SECRET: &str = "/api/v1/namespaces/lockstep-system/secrets/lockstep-certificate";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/lockstep";
/// Nothing in these tests takes this long, unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// Replicas that share an API server.
struct Ground {
    server: MemoryApi,
    serving: Vec<Arc<Serving>>,
    _running: JoinSet<()>,
}

fn ground(replicas: usize, lives: Lifetimes) -> Ground {
    let server = MemoryApi::default();
    server.put(SECRET, json!({"metadata": {"name": "lockstep-certificate"}, "type": "Opaque"}));
    server.put(HOOKS, json!({"metadata": {"name": "lockstep"}, "webhooks": [hook("enabled.lockstep.dev"), hook("strict.lockstep.dev")]}));
    let mut running = JoinSet::new();
    let serving = (0..replicas).map(|_| replica(&server, lives, &mut running)).collect();
    Ground { server, serving, _running: running }
}

fn hook(name: &str) -> serde_json::Value {
    json!({"name": name, "clientConfig": {"service": {"namespace": NAMESPACE, "name": "lockstep"}}})
}

fn replica(server: &MemoryApi, lives: Lifetimes, running: &mut JoinSet<()>) -> Arc<Serving> {
    let (api, clock, serving) = (Api::new(server.client()), TokioClock::start(), Arc::new(Serving::default()));
    let keeper = Keeper {
        api: api.clone(),
        clock: clock.clone(),
        namespace: "lockstep-system".into(),
        secret: "lockstep-certificate".into(),
        wanted: Wanted::new(vec!["lockstep.lockstep-system.svc".into()], lives).unwrap(),
        serving: serving.clone(),
        metrics: Arc::new(Metrics::new()),
    };
    let healer = Bundle {
        api,
        clock,
        kind: Kind::Mutating,
        name: "lockstep".into(),
        namespace: NAMESPACE.into(),
        origin: Origin::Secret(SECRET.into()),
    };
    let ((bundle, wanted), (tell, seen)) = (watch::channel(None), watch::channel(Seen::Nothing));
    running.spawn(healer.run(wanted, tell));
    running.spawn(keeper.run(bundle, vec![seen]));
    serving
}

impl Ground {
    /// Waits until every webhook trusts the CAs of the Secret, and answers them.
    async fn settled(&self) -> String {
        self.until(|server| {
            let ca = server.text(SECRET, "/data/ca.crt")?;
            let bundles =
                [server.text(HOOKS, "/webhooks/0/clientConfig/caBundle")?, server.text(HOOKS, "/webhooks/1/clientConfig/caBundle")?];
            bundles.iter().all(|bundle| *bundle == ca).then_some(ca)
        })
        .await
    }

    async fn until<T>(&self, look: impl Fn(&MemoryApi) -> Option<T>) -> T {
        let mut changes = self.server.changes();
        let found = async {
            loop {
                if let Some(found) = look(&self.server) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("it comes to that in time")
    }
}

#[tokio::test]
async fn three_replicas_that_start_at_once_agree() {
    let ground = ground(3, Lifetimes::default());
    let ca = ground.settled().await;
    assert!(!ca.is_empty());
    assert_eq!(ground.server.writes(SECRET), 1, "one wins, the others take what it wrote");
    ground.until(|_| ground.serving.iter().all(|serving| serving.is_loaded()).then_some(())).await;
}

#[tokio::test]
async fn a_bundle_that_somebody_reset_is_healed() {
    let ground = ground(2, Lifetimes::default());
    let ca = ground.settled().await;
    for reset in [json!("bm9uc2Vuc2U="), json!(null)] {
        ground.server.change(HOOKS, |hooks| hooks["webhooks"][1]["clientConfig"]["caBundle"] = reset.clone());
        assert_eq!(ground.settled().await, ca);
    }
    assert_eq!(ground.server.text(HOOKS, "/webhooks/1/clientConfig/service/name").as_deref(), Some("lockstep"), "the rest stays");
}

/// As while a rollout changes where certificates come from: the replicas from before serve a certificate of another CA.
#[tokio::test]
async fn a_ca_that_somebody_else_relies_on_is_left_beside_ours_and_nobody_fights() {
    let ground = ground(2, Lifetimes::default());
    let ca = ground.settled().await;
    let theirs = Authority::new("theirs").ca;
    let both = |server: &MemoryApi| {
        let bundles = ["/webhooks/0/clientConfig/caBundle", "/webhooks/1/clientConfig/caBundle"].map(|at| server.text(HOOKS, at));
        bundles.iter().flatten().filter(|bundle| bundle.contains(ca.trim()) && bundle.contains(theirs.trim())).count() == 2
    };
    ground.server.change(HOOKS, |hooks| hooks["webhooks"][0]["clientConfig"]["caBundle"] = json!(STANDARD.encode(&theirs)));
    ground.until(|server| both(server).then_some(())).await;

    // They write the same CAs in an order of their own; whoever answered that would be answered again.
    let writes = ground.server.writes(HOOKS);
    let theirs_first = json!(STANDARD.encode(format!("{theirs}{ca}")));
    ground.server.change(HOOKS, |hooks| {
        for hook in hooks["webhooks"].as_array_mut().unwrap() {
            hook["clientConfig"]["caBundle"] = theirs_first.clone();
        }
    });
    ground.server.change(SECRET, |secret| secret["data"]["tls.crt"] = json!(""));
    ground.until(|server| server.text(SECRET, "/data/tls.crt").filter(|chain| !chain.is_empty())).await;
    assert_eq!(ground.server.writes(HOOKS), writes, "by now both have seen it, and neither has answered");
}

#[tokio::test]
async fn a_configuration_that_calls_another_installation_is_left_to_it() {
    let ground = ground(1, Lifetimes::default());
    ground.settled().await;
    let theirs = json!({"namespace": "elsewhere", "name": "lockstep"});
    ground.server.change(HOOKS, |hooks| {
        hooks["webhooks"][0]["clientConfig"] = json!({"service": theirs, "caBundle": "dGhlaXJz"});
        hooks["webhooks"][1]["clientConfig"]["caBundle"] = json!("bm9uc2Vuc2U=");
    });
    let ca = ground.server.text(SECRET, "/data/ca.crt");
    ground.until(|server| (server.text(HOOKS, "/webhooks/1/clientConfig/caBundle") == ca).then_some(())).await;
    assert_eq!(ground.server.text(HOOKS, "/webhooks/0/clientConfig/caBundle").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn a_configuration_that_comes_anew_is_filled() {
    let ground = ground(1, Lifetimes::default());
    let ca = ground.settled().await;
    ground.server.remove(HOOKS);
    ground
        .server
        .put(HOOKS, json!({"metadata": {"name": "lockstep"}, "webhooks": [hook("enabled.lockstep.dev"), hook("more.lockstep.dev")]}));
    assert_eq!(ground.settled().await, ca);
}

#[tokio::test]
async fn a_secret_that_somebody_emptied_is_filled_with_what_is_served() {
    let ground = ground(2, Lifetimes::default());
    let ca = ground.settled().await;
    let key = ground.server.text(SECRET, "/data/tls.key");
    ground.server.change(SECRET, |secret| secret["data"] = json!(null));
    assert_eq!(ground.settled().await, ca, "no other CA is made");
    assert_eq!(ground.server.text(SECRET, "/data/tls.key"), key);
}

#[tokio::test]
async fn a_write_that_another_replica_forestalled_is_no_harm() {
    let ground = ground(1, Lifetimes::default());
    ground.settled().await;
    ground.server.change(SECRET, |secret| secret["metadata"]["labels"] = json!({"touched": "by helm"}));
    ground.server.change(SECRET, |secret| secret["data"]["tls.crt"] = json!(""));
    ground.until(|server| server.text(SECRET, "/data/tls.crt").filter(|chain| !chain.is_empty())).await;
    assert_eq!(ground.server.text(SECRET, "/metadata/labels/touched").as_deref(), Some("by helm"));
}
