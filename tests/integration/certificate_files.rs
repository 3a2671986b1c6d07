//! Certificates from files that somebody else renews, against an API server in memory: what is served, what is trusted, what is refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockstep::certificates::Serving;
use lockstep::certificates::authority::{Lifetimes, Wanted};
use lockstep::certificates::bundle::{Bundle, Kind, Origin, Seen};
use lockstep::certificates::files::Files;
use lockstep::metrics::Metrics;
use lockstep::reconcile::kubernetes::Api;
use lockstep::reconcile::tokio_clock::TokioClock;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::Authority;
use crate::memory_api::MemoryApi;

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/lockstep";
const BUNDLE: &str = "/webhooks/0/clientConfig/caBundle";
/// Virtual time: longer than everything that the program waits for.
const PATIENCE: Duration = Duration::from_secs(600);

/// Replicas that share an API server, each with a mounted folder of its own.
struct Ground {
    /// For whom the pairs are made.
    name: &'static str,
    server: MemoryApi,
    folders: Vec<TempDir>,
    serving: Vec<Arc<Serving>>,
    _running: JoinSet<()>,
}

fn ground(pairs: &[&Authority]) -> Ground {
    ground_of(pairs, "localhost")
}

fn ground_of(pairs: &[&Authority], name: &'static str) -> Ground {
    let server = MemoryApi::default();
    server.put(HOOKS, json!({"metadata": {"name": "lockstep"}, "webhooks": [{"name": "enabled.lockstep.dev", "clientConfig": {}}]}));
    let mut running = JoinSet::new();
    let folders: Vec<TempDir> = pairs.iter().map(|pair| folder(pair)).collect();
    let serving = folders.iter().map(|folder| replica(&server, folder.path(), name, &mut running)).collect();
    Ground { name, server, folders, serving, _running: running }
}

/// A folder as a kubelet mounts a Secret: files that are links through `..data`.
fn folder(pair: &Authority) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), folder.path().join(name)).unwrap();
    }
    exchange(folder.path(), &pair.certificate, &pair.key, &pair.ca);
    folder
}

/// Exchanges all files at once, as a kubelet does.
fn exchange(folder: &Path, certificate: &str, key: &str, ca: &str) {
    let next = tempfile::Builder::new().prefix("..").tempdir_in(folder).unwrap().keep();
    for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)] {
        std::fs::write(next.join(name), text).unwrap();
    }
    std::os::unix::fs::symlink(next.file_name().unwrap(), folder.join("..data_tmp")).unwrap();
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
}

fn replica(server: &MemoryApi, folder: &Path, name: &str, running: &mut JoinSet<()>) -> Arc<Serving> {
    let (api, clock, serving) = (Api::new(server.client()), TokioClock::start(), Arc::new(Serving::default()));
    let files = Files {
        folder: folder.to_owned(),
        clock: clock.clone(),
        wanted: Wanted::new(vec![name.into()], Lifetimes::default()).unwrap(),
        serving: serving.clone(),
        metrics: Arc::new(Metrics::new()),
    };
    let healer =
        Bundle { api, clock, kind: Kind::Mutating, name: "lockstep".into(), namespace: "lockstep-system".into(), origin: Origin::Replicas };
    let ((bundle, wanted), (tell, seen)) = (watch::channel(None), watch::channel(Seen::Nothing));
    running.spawn(healer.run(wanted, tell));
    running.spawn(files.run(bundle, vec![seen]));
    serving
}

impl Ground {
    /// Waits until the replica serves a certificate of this CA; meanwhile whatever it serves is always trusted.
    async fn serves(&self, replica: usize, ca: &Authority) {
        let found = async {
            loop {
                if takes(&self.serving[replica], self.name, &ca.ca).await {
                    return;
                }
                if self.serving[replica].is_loaded() && !self.bundle().is_empty() {
                    assert!(takes(&self.serving[replica], self.name, &self.bundle()).await, "what is served is trusted");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("it is served in time");
    }

    async fn trusts(&self, cas: &[&Authority]) {
        let wanted: String = cas.iter().map(|pair| pair.ca.replace('\r', "")).collect();
        let mut changes = self.server.changes();
        let found = async {
            while self.bundle() != wanted {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE * 20, found).await.expect("it is trusted in time");
    }

    fn bundle(&self) -> String {
        self.server.text(HOOKS, BUNDLE).unwrap_or_default()
    }
}

/// Whether a client that trusts the bundle takes what is served.
async fn takes(serving: &Arc<Serving>, name: &'static str, bundle: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = TlsConnector::from(Arc::new(client.with_root_certificates(roots).with_no_client_auth()));
    let server = TlsAcceptor::from(Arc::new(serving.clone().tls(None)));
    let (near, far) = tokio::io::duplex(1 << 14);
    let (client, _) = tokio::join!(client.connect(ServerName::try_from(name).unwrap(), near), server.accept(far));
    client.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_pair_of_a_mounted_secret_is_served_and_trusted() {
    let first = Authority::new("first");
    let ground = ground(&[&first]);
    ground.serves(0, &first).await;
    ground.trusts(&[&first]).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_is_trusted_before_it_is_served_and_the_old_one_goes_long_after() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let ground = ground(&[&first]);
    ground.trusts(&[&first]).await;
    exchange(ground.folders[0].path(), &second.certificate, &second.key, &second.ca);
    ground.trusts(&[&first, &second]).await;
    ground.serves(0, &second).await;
    assert!(ground.bundle().contains(first.ca.trim()), "another replica may still serve of the old one");
    ground.trusts(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_that_see_different_files_do_not_fight() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let ground = ground(&[&first, &second]);
    ground.serves(0, &first).await;
    ground.serves(1, &second).await;
    let both = |bundle: &str| bundle.contains(first.ca.trim()) && bundle.contains(second.ca.trim());
    let mut changes = ground.server.changes();
    while !both(&ground.bundle()) {
        changes.changed().await.unwrap();
    }
    let writes = ground.server.writes(HOOKS);
    tokio::time::sleep(PATIENCE).await;
    assert_eq!(ground.server.writes(HOOKS), writes, "nothing is written again");
    ground.server.change(HOOKS, |hooks| hooks["webhooks"][0]["clientConfig"]["caBundle"] = json!(null));
    let healed = async {
        while !both(&ground.bundle()) {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, healed).await.expect("each puts its own back");
}

#[tokio::test(start_paused = true)]
async fn files_that_api_servers_would_refuse_change_nothing() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let ground = ground(&[&first]);
    ground.trusts(&[&first]).await;
    let folder = ground.folders[0].path();
    for (certificate, key, ca) in [
        (&second.certificate, &first.key, &second.ca),
        (&second.certificate, &second.key, &first.ca),
        (&second.certificate, &second.key, &String::new()),
        (&"nonsense".to_owned(), &second.key, &second.ca),
        (&"x".repeat(300 << 10), &second.key, &second.ca),
    ] {
        exchange(folder, certificate, key, ca);
        tokio::time::sleep(PATIENCE).await;
        assert!(takes(&ground.serving[0], ground.name, &first.ca).await, "the last good pair stays");
        assert_eq!(ground.bundle(), first.ca);
    }
    exchange(folder, &second.certificate, &second.key, &second.ca);
    ground.serves(0, &second).await;
}

#[tokio::test(start_paused = true)]
async fn the_recipe_for_a_private_ca_makes_a_pair_that_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/certs/make");
    for what in ["a CA and a pair", "the next pair of the same CA"] {
        let ran = std::process::Command::new(recipe).arg("lockstep-system").arg(folder.path()).output().unwrap();
        assert!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
        let text = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let made = Authority { ca: text("ca.crt"), certificate: text("tls.crt"), key: text("tls.key") };
        let ground = ground_of(&[&made], "lockstep.lockstep-system.svc");
        ground.serves(0, &made).await;
    }
}
