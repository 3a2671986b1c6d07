//! `lockstep registry`: a small durable server of the open http contract, for first steps, tests and small sites.
//!
//! It exists so that the handshake can be tried, shown and tested with nothing else at hand, and it is its own example of the contract.
//!
//! Invariant: a write that was answered survives the end of the process at any moment.
//! Absent on purpose: replication (one process, one file), serving traffic (a proxy reads the listing).

mod api;
mod backup;
mod listener;
mod model;
mod refusal;
mod store;
mod token;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use api::Route;

use crate::args::RegistryArgs;
use crate::certificates::pair::PairFiles;
use crate::telemetry;

/// Runs the command until it is told to stop.
pub async fn run(args: RegistryArgs) -> anyhow::Result<ExitCode> {
    telemetry::start(&args.log)?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let server = Server::open(&args).await?;
    // The first line says where, so that port 0 can be asked for. Nobody may be reading it.
    let _ = writeln!(std::io::stdout(), "lockstep registry: listening on {}://{}", server.scheme(), server.address);
    server
        .serve(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

/// How long the server puts up with slow callers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A body that took longer to come is given up.
    pub body_time: Duration,
    /// A connection that sends no whole header for this long is closed, idle ones and handshakes of TLS included.
    pub header_time: Duration,
    /// Answers still under way get this long once the server shall end.
    pub last_answers: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Bodies are small and callers near.
            body_time: Duration::from_secs(10),
            // Longer than callers keep idle connections, so that none is closed while it is being used.
            header_time: Duration::from_secs(30),
            // Well within the usual grace period of a pod.
            last_answers: Duration::from_secs(10),
        }
    }
}

/// A server that has its port and its store.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it puts up with.
    pub limits: Limits,
    listener: TcpListener,
    store: store::Store,
    token: Option<Arc<token::TokenFile>>,
    strict: bool,
    pair: Option<PairFiles>,
}

impl Server {
    /// Opens the store and the port.
    pub async fn open(args: &RegistryArgs) -> anyhow::Result<Self> {
        let token = args.token_file.clone().map(token::TokenFile);
        if let Some(token) = &token {
            token.read().await.with_context(|| format!("the token file {} cannot be read", token.0.display()))?;
        }
        let pair = match args.tls_certificate.clone().zip(args.tls_key.clone()) {
            Some((certificate, key)) => Some(PairFiles::open(certificate, key).await?),
            None => None,
        };
        let store = store::Store::open(&args.store, args.require_services)?;
        let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
        let address = listener.local_addr().context("the listener has no address")?;
        let (token, strict) = (token.map(Arc::new), args.require_services);
        Ok(Self { address, limits: Limits::default(), listener, store, token, strict, pair })
    }

    /// What a URL of it begins with.
    pub fn scheme(&self) -> &'static str {
        if self.pair.is_some() { "https" } else { "http" }
    }

    /// Answers until `stopped` resolves; then finishes what it answers. Blocking reads are answered at once.
    pub async fn serve(self, stopped: impl Future<Output = ()>) {
        let Self { limits, listener, store, token, strict, pair, .. } = self;
        let (stop, stopping) = watch::channel(false);
        let router = api::router(api::Api { store, token, strict, body_time: limits.body_time, stopping });
        let stopped = async {
            stopped.await;
            stop.send_replace(true);
        };
        let tls = pair.as_ref().map(|pair| Arc::new(pair.tls()));
        let serving = listener::serve(listener, tls, router, limits, stopped);
        match pair {
            Some(pair) => tokio::select! {
                () = serving => {}
                () = pair.run() => {}
            },
            None => serving.await,
        }
    }
}
