//! The webhook server over real TLS on loopback: what it answers, what it cuts off, how it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::routing::get;
use lockstep::admission::{Delays, SleepForm, Snapshot};
use lockstep::certificates::Serving;
use lockstep::certificates::authority::{Due, Lifetimes, Material, Wanted};
use lockstep::config;
use lockstep::metrics::Metrics;
use lockstep::reconcile::Clock;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::server::body::{BODY_BYTES, Bodies};
use lockstep::server::validate::Ours;
use lockstep::server::webhook::{self, Webhook};
use lockstep::server::{self, Limits, Server, Transport};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Nothing in these tests takes this long, unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);
/// A limit of the server that a test waits for.
const SHORT: Duration = Duration::from_millis(150);
/// A limit of the server that no test reaches.
const LONG: Duration = Duration::from_secs(120);

const REVIEW: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","operation":"CREATE","namespace":"shop","name":"other","resource":{"group":"","version":"v1","resource":"configmaps"},"object":{}}}"#;

/// A server on loopback.
struct Ground {
    address: SocketAddr,
    serving: Arc<Serving>,
    material: Material,
    started: Arc<Notify>,
    release: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

const CONFIGURATION: &str = "
apiVersion: lockstep.dev/v1alpha1
kind: Configuration
cluster: test
registries:
  - {name: first, http: {url: 'http://registry.example'}}
bindings:
  - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: first, service: web, port: 8080, drain: {fixed: 5s}}
";

fn snapshot() -> Snapshot {
    let configuration = config::parse(CONFIGURATION).unwrap();
    let delays = Delays::resolve(&configuration, |_| None);
    Snapshot { configuration: Arc::new(configuration), own_namespace: "lockstep-system".into(), delays, sleep: SleepForm::Native }
}

fn patient() -> Limits {
    Limits { connections: 64, handshake: LONG, head: LONG, idle: LONG, write: LONG, linger: Duration::ZERO, finish: LONG }
}

fn wanted() -> Wanted {
    Wanted::new(vec!["lockstep.lockstep-system.svc".into()], Lifetimes::default()).unwrap()
}

fn fresh() -> Material {
    Material::default().after(Due::Everything, &wanted(), TokioClock::start().wall()).unwrap()
}

async fn ground(limits: Limits, body: Duration) -> Ground {
    ground_with(limits, body, Some(snapshot())).await
}

async fn ground_with(limits: Limits, body: Duration, snapshot: Option<Snapshot>) -> Ground {
    let (material, serving) = (fresh(), Arc::new(Serving::default()));
    serving.exchange(&material.chain, &material.key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begun, wait) = (started.clone(), release.clone());
    let slow = get(move || async move {
        begun.notify_one();
        wait.notified().await;
        "done"
    });
    let ours = Ours { namespace: "lockstep-system".into(), name: "lockstep-config".into() };
    let state = Webhook {
        snapshot: Arc::new(ArcSwapOption::from_pointee(snapshot)),
        bodies: Bodies::new(body),
        ours,
        metrics: Arc::new(Metrics::new()),
    };
    let router = webhook::router(Arc::new(state)).merge(Router::new().route("/slow", slow));
    let (stop, stopped) = oneshot::channel::<()>();
    let tls = Transport::Tls(Arc::new(serving.clone().tls(None)));
    let server = Server { listener, transport: tls, router, limits, open: Default::default() };
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Ground { address, serving, material, started, release, stop: Some(stop), running }
}

impl Ground {
    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_as(&self.material, &[&rustls::version::TLS13]).await
    }

    async fn connect_as(&self, trusted: &Material, versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsStream<TcpStream> {
        let config = self.client(trusted, versions);
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("lockstep.lockstep-system.svc").unwrap();
        timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap().unwrap()
    }

    fn client(&self, trusted: &Material, versions: &[&'static rustls::SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(trusted.ca.as_bytes()).map(Result::unwrap));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    async fn ask(&self, request: &str) -> (u16, String) {
        ask(&mut self.connect().await, request).await
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    async fn stopped(self) {
        timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }
}

fn post(path: &str, content: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn review() -> String {
    post("/validate", "application/json", REVIEW)
}

const SLOW: &str = "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";

/// Sends a request and reads one response: its status, and its head and body as text.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    response(stream).await
}

async fn response(stream: &mut TlsStream<TcpStream>) -> (u16, String) {
    let mut text = String::new();
    timeout(PATIENCE, async {
        let mut buffer = [0; 4096];
        loop {
            let read = stream.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "closed after {text:?}");
            text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
                if body.len() >= length {
                    return;
                }
            }
        }
    })
    .await
    .unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

/// Waits until the peer has closed, whichever way.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut buffer = [0; 4096];
    timeout(PATIENCE, async { while !matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {} }).await.unwrap();
}

/// Fails if the peer closes within that time.
async fn open(stream: &mut TlsStream<TcpStream>, time: Duration) {
    assert!(timeout(time, stream.read(&mut [0; 16])).await.is_err(), "closed, or something came unasked");
}

#[tokio::test]
async fn answers_over_both_versions_of_tls_and_speaks_http_1_1_alone() {
    let ground = ground(patient(), LONG).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut stream = ground.connect_as(&ground.material, &[version]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        for _ in 0..3 {
            let (status, text) = ask(&mut stream, &review()).await;
            assert_eq!(status, 200);
            assert!(text.contains("content-type: application/json") && text.contains(r#""uid":"u-1","allowed":true"#), "{text}");
        }
    }
}

/// A review of a pod that a binding selects, with a variable of that many bytes.
fn pod_review(bytes: usize) -> String {
    let note = "x".repeat(bytes);
    post(
        "/mutate",
        "application/json",
        &format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u-2","operation":"CREATE","namespace":"shop","kind":{{"group":"","version":"v1","kind":"Pod"}},"resource":{{"group":"","version":"v1","resource":"pods"}},"object":{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-1","labels":{{"app":"web"}}}},"spec":{{"containers":[{{"name":"web","image":"web","env":[{{"name":"NOTE","value":"{note}"}}]}}]}}}}}}}}"#
        ),
    )
}

#[tokio::test]
async fn a_pod_is_injected_whatever_its_size() {
    let ground = ground(patient(), LONG).await;
    for bytes in [0, 20_000, 200_000, 400_000] {
        let (status, text) = ground.ask(&pod_review(bytes)).await;
        assert_eq!(status, 200, "{bytes}");
        assert!(text.contains(r#""uid":"u-2","allowed":true"#) && text.contains(r#""patchType":"JSONPatch""#), "{bytes}: {text}");
    }
    let (status, text) = ground.ask(&post("/mutate", "application/json", REVIEW)).await;
    assert_eq!(status, 200);
    assert!(!text.contains("patch"), "{text}");
}

#[tokio::test]
async fn without_a_configuration_no_review_is_answered() {
    let ground = ground_with(patient(), LONG, None).await;
    assert_eq!(ground.ask(&pod_review(0)).await.0, 503);
}

#[tokio::test]
async fn refuses_what_is_no_review() {
    let ground = ground(patient(), LONG).await;
    assert_eq!(ground.ask(&post("/validate", "text/plain", REVIEW)).await.0, 415);
    assert_eq!(ground.ask(&post("/mutate", "text/plain", REVIEW)).await.0, 415);
    for path in ["/validate", "/mutate"] {
        for body in ["{}", "", "\u{feff}"] {
            assert_eq!(ground.ask(&post(path, "application/json", body)).await.0, 400, "{path} {body:?}");
        }
    }
    assert_eq!(ground.ask(&post("/nothing", "application/json", REVIEW)).await.0, 404);
    assert_eq!(ground.ask("GET /validate HTTP/1.1\r\nhost: x\r\n\r\n").await.0, 405);
}

#[tokio::test]
async fn refuses_a_body_that_is_too_long_before_it_is_sent() {
    let ground = ground(patient(), LONG).await;
    let head =
        format!("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", BODY_BYTES + 1);
    let mut stream = ground.connect().await;
    let (status, text) = ask(&mut stream, &head).await;
    assert_eq!(status, 413);
    assert!(text.contains("connection: close"), "{text}");
    closed(&mut stream).await;
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_off_and_nobody_else_notices() {
    let ground = ground(Limits { handshake: SHORT, ..patient() }, LONG).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(ground.address).await.unwrap();
        stream.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
        silent.push(stream);
    }
    assert_eq!(ground.ask(&review()).await.0, 200);
    for mut stream in silent {
        closed(&mut stream).await;
    }
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let ground = ground(Limits { head: SHORT, ..patient() }, LONG).await;
    let mut silent = ground.connect().await;
    let mut half = ground.connect().await;
    half.write_all(b"POST /validate HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    closed(&mut silent).await;
    closed(&mut half).await;
    let mut second = ground.connect().await;
    assert_eq!(ask(&mut second, &review()).await.0, 200);
    second.write_all(b"POST /validate").await.unwrap();
    closed(&mut second).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let ground = ground(patient(), LONG).await;
    let head = format!("GET /validate HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n", "x".repeat(server::HEAD_BYTES + 1));
    assert_eq!(ground.ask(&head).await.0, 431);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head() {
    let ground = ground(Limits { head: SHORT, ..patient() }, LONG).await;
    let mut stream = ground.connect().await;
    for _ in 0..2 {
        assert_eq!(ask(&mut stream, &review()).await.0, 200);
        open(&mut stream, SHORT * 3).await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_the_end() {
    let ground = ground(Limits { idle: SHORT, ..patient() }, LONG).await;
    let mut stream = ground.connect().await;
    assert_eq!(ask(&mut stream, &review()).await.0, 200);
    closed(&mut stream).await;
}

#[tokio::test]
async fn half_a_body_and_then_silence_is_answered_408() {
    let ground = ground(patient(), SHORT).await;
    let mut stream = ground.connect().await;
    let request = "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"api";
    assert_eq!(ask(&mut stream, request).await.0, 408);
    closed(&mut stream).await;
}

#[tokio::test]
async fn work_has_no_deadline_of_the_connection() {
    let ground = ground(Limits { head: SHORT, idle: SHORT, ..patient() }, LONG).await;
    let mut stream = ground.connect().await;
    stream.write_all(SLOW.as_bytes()).await.unwrap();
    ground.started.notified().await;
    open(&mut stream, SHORT * 3).await;
    ground.release.notify_one();
    assert_eq!(response(&mut stream).await.0, 200);
}

#[tokio::test]
async fn a_crowd_that_says_nothing_keeps_nobody_out() {
    let ground = ground(Limits { connections: 16, ..patient() }, LONG).await;
    let mut regular = ground.connect().await;
    assert_eq!(ask(&mut regular, &review()).await.0, 200);
    let mut silent = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(ground.address).await.unwrap();
        // Not all of them are silent from the beginning.
        if silent.len() % 2 == 0 {
            stream.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
        }
        silent.push(stream);
    }
    assert_eq!(ground.ask(&review()).await.0, 200, "a new client");
    assert_eq!(ask(&mut regular, &review()).await.0, 200, "a client that was there before");
    let (mut first, mut closed_ones) = (silent.swap_remove(0), 0);
    closed(&mut first).await;
    for stream in &mut silent {
        closed_ones += usize::from(timeout(Duration::ZERO, stream.read(&mut [0; 16])).await.is_ok());
    }
    assert!(closed_ones >= 200 - 1 - 16, "{closed_ones} of the silent ones were closed");
}

#[tokio::test]
async fn one_more_than_can_be_served_waits() {
    let ground = ground(Limits { connections: 1, ..patient() }, LONG).await;
    let mut busy = ground.connect().await;
    busy.write_all(SLOW.as_bytes()).await.unwrap();
    ground.started.notified().await;
    let request = review();
    let second = ground.ask(&request);
    tokio::pin!(second);
    assert!(timeout(SHORT, &mut second).await.is_err(), "it was answered without a place");
    ground.release.notify_one();
    assert_eq!(response(&mut busy).await.0, 200);
    assert_eq!(second.await.0, 200);
}

#[tokio::test]
async fn hostile_bodies_are_answered_and_nobody_else_notices() {
    let ground = ground(patient(), LONG).await;
    let pod = |spec: &str| {
        let resource = r#"{"group":"","version":"v1","resource":"pods"}"#;
        format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u-3","operation":"CREATE","namespace":"shop","resource":{resource},"object":{{"metadata":{{"labels":{{"app":"web"}}}},"spec":{spec}}}}}}}"#
        )
    };
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let bodies: [(&str, Vec<u8>, u16); 7] = [
        ("not UTF-8", b"{\"apiVersion\":\"\xff\xfe\"}".to_vec(), 400),
        ("half a character", REVIEW.as_bytes()[..40].iter().copied().chain([0xc3]).collect(), 400),
        ("deep", deep.clone().into_bytes(), 400),
        ("deep in a pod", pod(&format!(r#"{{"containers":[],"later":{deep}}}"#)).into_bytes(), 200),
        ("twice", pod(r#"{"containers":7,"containers":[{"name":"web","name":"web"}]}"#).into_bytes(), 200),
        ("megabytes", pod(&format!(r#"{{"containers":[{{"name":"{}"}}]}}"#, "x".repeat(7 << 20))).into_bytes(), 200),
        ("many", pod(&format!(r#"{{"containers":[{}{{"name":"web"}}]}}"#, r#"{"name":"web"},"#.repeat(100_000))).into_bytes(), 200),
    ];
    let mut other = ground.connect().await;
    for (what, body, wanted) in bodies {
        let mut stream = ground.connect().await;
        let head = format!("POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        let hostile = async {
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
            response(&mut stream).await.0
        };
        let ((), status) = tokio::join!(async { assert_eq!(ask(&mut other, &review()).await.0, 200, "beside {what}") }, hostile);
        assert_eq!(status, wanted, "{what}");
    }
}

#[tokio::test]
async fn a_wrong_name_or_none_in_the_handshake_changes_nothing() {
    let ground = ground(patient(), LONG).await;
    let handshake = async |name: &str, sni: bool| {
        let mut config = ground.client(&ground.material, &[&rustls::version::TLS13]);
        config.enable_sni = sni;
        let stream = TcpStream::connect(ground.address).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap()
    };
    let error = handshake("other.example", true).await.unwrap_err();
    assert!(error.to_string().contains("not valid for name"), "the client is shown the one certificate that there is: {error}");
    let mut nameless = handshake("lockstep.lockstep-system.svc", false).await.unwrap();
    assert_eq!(ask(&mut nameless, &review()).await.0, 200);
    assert_eq!(ground.ask(&review()).await.0, 200);
}

#[tokio::test]
async fn a_stop_finishes_what_was_asked_and_closes_what_idles() {
    let mut ground = ground(patient(), LONG).await;
    let (mut idle, mut busy) = (ground.connect().await, ground.connect().await);
    assert_eq!(ask(&mut idle, &review()).await.0, 200);
    busy.write_all(SLOW.as_bytes()).await.unwrap();
    ground.started.notified().await;
    ground.stop();
    closed(&mut idle).await;
    ground.release.notify_one();
    let (status, text) = response(&mut busy).await;
    assert_eq!(status, 200);
    assert!(text.contains("connection: close"), "{text}");
    closed(&mut busy).await;
    let address = ground.address;
    ground.stopped().await;
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_stop_lingers_for_clients_that_have_not_heard_of_it() {
    let mut ground = ground(Limits { linger: SHORT * 4, ..patient() }, LONG).await;
    let mut before = ground.connect().await;
    assert_eq!(ask(&mut before, &review()).await.0, 200);
    ground.stop();
    let (status, text) = ask(&mut before, &review()).await;
    assert_eq!(status, 200);
    assert!(text.contains("connection: close"), "{text}");
    closed(&mut before).await;
    let (status, text) = ground.ask(&review()).await;
    assert_eq!(status, 200);
    assert!(text.contains("connection: close"), "{text}");
    ground.stopped().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let mut ground = ground(Limits { finish: SHORT, ..patient() }, LONG).await;
    let mut busy = ground.connect().await;
    busy.write_all(SLOW.as_bytes()).await.unwrap();
    ground.started.notified().await;
    ground.stop();
    ground.stopped().await;
}

#[tokio::test]
async fn a_new_certificate_is_served_at_once_and_old_connections_live_on() {
    let ground = ground(patient(), LONG).await;
    let mut old = ground.connect().await;
    let renewed = fresh();
    ground.serving.exchange(&renewed.chain, &renewed.key).unwrap();
    let mut new = ground.connect_as(&renewed, &[&rustls::version::TLS13]).await;
    assert_eq!(ask(&mut new, &review()).await.0, 200);
    assert_eq!(ask(&mut old, &review()).await.0, 200);
    assert!(ground.serving.exchange(&renewed.chain, "odd").is_err());
    let mut still = ground.connect_as(&renewed, &[&rustls::version::TLS13]).await;
    assert_eq!(ask(&mut still, &review()).await.0, 200, "a pair that cannot be served replaced a good one");
}

#[tokio::test]
async fn without_a_certificate_no_handshake_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Transport::Tls(Arc::new(Arc::new(Serving::default()).tls(None)));
    let server = Server { listener, transport: tls, router: Router::new(), limits: patient(), open: Default::default() };
    let running = tokio::spawn(server.run(std::future::pending()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from("lockstep.lockstep-system.svc").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    assert!(timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap().is_err());
    running.abort();
}
