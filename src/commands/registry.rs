//! `lockstep registry`: a small durable server of the open http contract, for first steps, tests and small sites.
//!
//! It exists so that the handshake can be tried, shown and tested with nothing else at hand, and it is its own example of the contract.
//!
//! Invariant: a write that was answered survives the end of the process at any moment.
//! Absent on purpose: replication (one process, one file), serving traffic (a proxy reads the listing).

mod api;
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

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use api::Route;

use crate::args::RegistryArgs;

/// Runs the command until it is told to stop.
pub async fn run(args: RegistryArgs) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let server = Server::open(&args).await?;
    // The first line says where, so that port 0 can be asked for. Nobody may be reading it.
    let _ = writeln!(std::io::stdout(), "lockstep registry: listening on http://{}", server.address);
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

/// A server that has its port and its store.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    listener: TcpListener,
    api: api::Api,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Opens the store and the port.
    pub async fn open(args: &RegistryArgs) -> anyhow::Result<Self> {
        let token = args.token_file.clone().map(token::TokenFile);
        if let Some(token) = &token {
            token.read().await.with_context(|| format!("the token file {} cannot be read", token.0.display()))?;
        }
        let store = store::Store::open(&args.store, args.require_services)?;
        let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
        let address = listener.local_addr().context("the listener has no address")?;
        let (stop, stopping) = watch::channel(false);
        let api = api::Api { store, token: token.map(Arc::new), strict: args.require_services, stopping };
        Ok(Self { address, listener, api, stop })
    }

    /// Answers until `stopped` resolves; then finishes what it answers. Blocking reads are answered at once.
    pub async fn serve(self, stopped: impl Future<Output = ()>) {
        let Self { listener, api, stop, .. } = self;
        listener::serve(listener, api::router(api), async {
            stopped.await;
            stop.send_replace(true);
        })
        .await;
    }
}
