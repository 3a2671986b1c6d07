//! The reconcile shell: watch → observe → plan → execute.
//!
//! Generic over cluster, registry and clock: the simulation runs this very code on virtual time.
//!
//! Invariant: all time, jitter and spawning pass through [`Clock`]; everything asked of Kubernetes passes through [`Cluster`].
//! Absent on purpose: what should happen (`registration`), how a registry is told (`registry`).

mod actor;
mod adoption;
pub mod budget;
mod calls;
pub mod clock;
pub mod cluster;
mod debts;
mod events;
mod execute;
mod gauges;
pub mod input;
pub mod kubernetes;
mod leading;
pub mod limits;
mod look;
pub mod pods;
pub mod service;
pub mod settings;
mod sweep;
pub mod tokio_clock;
pub mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::mpsc;

pub use clock::Clock;
pub use cluster::Cluster;
use input::Input;

use crate::config::RegistryConfig;
use crate::lease::{self, Tenure};
use crate::metrics::Metrics;
use crate::names;
use crate::registry::Registry;
use crate::traces::Traces;

/// Opens the registries that a configuration names.
pub trait Drivers: Send + Sync + 'static {
    /// What an opened registry is.
    type Registry: Registry;

    /// A client of that registry, the same for all who ask where it can be; `cluster` is the configuration's, for stamps. Does no I/O.
    /// It is to be told of its bindings ([`Registry::bind`]) by the one who has the configuration in force.
    fn open(&self, config: &RegistryConfig, cluster: &Arc<str>) -> Result<Arc<Self::Registry>, OpenError>;
}

/// Why a registry of the configuration has no client.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its settings cannot be used.
    #[error("registry {name}: {reason}")]
    Unusable {
        /// Name of the registry.
        name: Arc<str>,
        /// Why, and what to change.
        reason: String,
    },
}

/// Settings of one replica's reconciler.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of this replica, as the Lease shows it.
    pub identity: String,
    /// Our own namespace; pods in it are never adopted.
    pub namespace: Arc<str>,
    /// Turns true once pods, nodes, namespaces and configuration are known.
    pub filled: Arc<AtomicBool>,
    /// Where the handshakes of single pods are told.
    pub traces: Traces,
}

impl Options {
    /// The usual settings of the replica of that name.
    pub fn new(identity: impl Into<String>) -> Self {
        Self { identity: identity.into(), namespace: names::OWN_NAMESPACE.into(), filled: Arc::default(), traces: Traces::default() }
    }
}

/// One replica's reconciler: waits for the Lease, reconciles while it holds it, gives it back when `stop` resolves, and returns.
pub async fn run<C, D, K>(cluster: C, drivers: D, clock: K, options: Options, metrics: Arc<Metrics>, stop: impl Future<Output = ()> + Send)
where
    C: Cluster,
    D: Drivers,
    K: Clock,
{
    let (inbox, inputs) = mpsc::channel(actor::INBOX);
    let tenure = Tenure::default();
    let (give_back, given_back) = tokio::sync::watch::channel(false);
    let (wish, wished) = tokio::sync::watch::channel(0);
    clock.spawn(watch::reflect(cluster.configuration(), inbox.clone(), Input::Configuration));
    clock.spawn(watch::reflect(cluster.nodes(), inbox.clone(), Input::Node));
    clock.spawn(watch::reflect(cluster.namespaces(), inbox.clone(), Input::Namespace));
    clock.spawn(watch::pods(cluster.clone(), clock.clone(), inbox.clone()));
    clock.spawn(watch::relist(cluster.clone(), clock.clone(), inbox.clone(), wished));
    clock.spawn(lead(cluster.clone(), clock.clone(), options.identity.clone(), tenure.clone(), inbox.clone(), given_back));
    let wires = actor::Wires { give_back, wish };
    actor::Actor::new((cluster, drivers, clock), options, metrics, inbox, tenure, wires).run(inputs, stop).await;
}

/// Pursues the Lease and tells the loop of it.
async fn lead<C: Cluster, K: Clock>(
    cluster: C,
    clock: K,
    identity: String,
    tenure: Tenure,
    inbox: mpsc::Sender<Input>,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    let (told, mut leadership) = mpsc::channel(1);
    let pursuit = lease::pursue(cluster, clock, identity, tenure, told, stop);
    let forward = async {
        while let Some(change) = leadership.recv().await {
            if inbox.send(Input::Leadership(change)).await.is_err() {
                return;
            }
        }
    };
    futures_util::future::join(pursuit, forward).await;
    // Nobody listens where the loop has ended by itself.
    let _ = inbox.send(Input::LeaseEnded).await;
}
