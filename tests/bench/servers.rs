//! The two servers that are compared, each a process of its own on one core.
//!
//! Invariant: both have the same certificate, TLS library, runtime and HTTP library; the bare one only reads the body and answers a
//! constant of the length of the real answer.
//! Absent on purpose: an API server; the product's own accept loop, router and snapshot are all that a review passes through.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use lockstep::admission::{Snapshot, answer};
use lockstep::args::{LogArgs, LogFormat};
use lockstep::certificates::Serving;
use lockstep::metrics::Metrics;
use lockstep::names::MUTATE_PATH;
use lockstep::server::body::{BODY_TIME, Bodies};
use lockstep::server::validate::Ours;
use lockstep::server::webhook::{self, Webhook};
use lockstep::server::{Limits, Server, Transport};
use lockstep::telemetry;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::review::{review, snapshot};

/// Clock ticks a second in `/proc`, on every Linux there is.
const TICKS: f64 = 100.0;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Lockstep's.
    Lockstep,
    /// One that does nothing.
    Bare,
}

impl Kind {
    /// Its name, on the command line and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lockstep => "lockstep",
            Self::Bare => "bare",
        }
    }
}

/// A server's process; it ends with this value.
pub(crate) struct Process {
    child: Child,
    /// The server stops when this closes.
    _leash: ChildStdin,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts this program once more, as a server on the first core; the certificate lies in `folder`.
    pub(crate) fn start(kind: Kind, folder: &Path) -> Self {
        let here = std::env::current_exe().expect("this program runs");
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", "0"]).arg(here).args(["--serve", kind.name()]).arg(folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("taskset is part of every Linux");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("the server says where it listens");
        let leash = child.stdin.take().expect("it is piped");
        Self { child, _leash: leash, address: line.trim().parse().expect("the server says where it listens") }
    }

    /// CPU seconds that it has used, in user and in kernel mode.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("the name stands in brackets").1.split_whitespace().collect();
        // utime and stime, the 14th and 15th field of proc(5); the first two are in front of the bracket.
        let ticks = |field: usize| fields[field - 3].parse::<f64>().expect("it is a number");
        (ticks(14) + ticks(15)) / TICKS
    }

    /// MiB of memory that it holds.
    pub(crate) fn memory(&self) -> f64 {
        self.mebibytes("VmRSS:")
    }

    /// MiB of memory that it has held at the most.
    pub(crate) fn peak(&self) -> f64 {
        self.mebibytes("VmHWM:")
    }

    fn mebibytes(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("every process has it");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("it is a number") / 1024.0
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("the server runs")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until standard input closes.
pub(crate) fn serve(kind: &str, folder: &Path) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let chain = std::fs::read_to_string(folder.join("chain.pem")).expect("the bench wrote it");
    let key = std::fs::read_to_string(folder.join("key.pem")).expect("the bench wrote it");
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let stopped = runtime.spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback is up");
        say(&listener);
        if kind == Kind::Lockstep.name() {
            let log = LogArgs { log: "info".into(), log_format: LogFormat::Json };
            telemetry::start(&log).expect("it is the first one");
            lockstep(listener, &chain, &key).run(async { drop(stopped.await) }).await;
        } else {
            tokio::select! {
                () = bare(listener, &chain, &key) => {}
                _ = stopped => {}
            }
        }
    });
}

#[expect(clippy::print_stdout, reason = "it is how the bench learns where the server listens")]
fn say(listener: &TcpListener) {
    println!("{}", listener.local_addr().expect("it listens"));
}

fn lockstep(listener: TcpListener, chain: &str, key: &str) -> Server {
    let serving = Arc::new(Serving::default());
    serving.exchange(chain, key).expect("the pair was just made");
    let webhook = Webhook {
        snapshot: Arc::new(ArcSwapOption::from_pointee(snapshot())),
        bodies: Bodies::new(BODY_TIME),
        ours: Ours { namespace: "lockstep-system".into(), name: "lockstep-config".into() },
        metrics: Arc::new(Metrics::new()),
    };
    let transport = Transport::Tls(Arc::new(serving.tls(None)));
    Server { listener, transport, router: webhook::router(Arc::new(webhook)), limits: Limits::default(), open: Default::default() }
}

/// axum and rustls with nothing in between.
async fn bare(listener: TcpListener, chain: &str, key: &str) {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(|one| one.expect("it was just made")).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("it was just made");
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let constant = Bytes::from(vec![b'x'; answer_length(&snapshot())]);
    let handler = move |_body: Bytes| async move { ([(CONTENT_TYPE, "application/json")], constant) };
    let router = Router::new().route(MUTATE_PATH, post(handler));
    loop {
        let (stream, _) = listener.accept().await.expect("there are descriptors left");
        let _ = stream.set_nodelay(true);
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
        });
    }
}

fn answer_length(snapshot: &Snapshot) -> usize {
    answer(&review(crate::BODY), snapshot).expect("it is a review").body.len()
}
