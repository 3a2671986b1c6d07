//! The reconcile shell: watch → observe → plan → execute.
//!
//! Generic over cluster, registry and clock: the simulation runs this very code on virtual time.
//!
//! Invariant: all time, jitter and spawning pass through [`Clock`]; everything asked of Kubernetes passes through [`Cluster`].
//! Absent on purpose: what should happen (`registration`), how a registry is told (`registry`).

pub mod clock;
pub mod cluster;
pub mod kubernetes;
pub mod tokio_clock;

use std::future::Future;
use std::sync::Arc;

pub use clock::Clock;
pub use cluster::Cluster;

use crate::config::RegistryConfig;
use crate::metrics::Metrics;
use crate::registry::Registry;

/// Opens the registries that a configuration names.
pub trait Drivers: Send + Sync + 'static {
    /// What an opened registry is.
    type Registry: Registry;

    /// A client of that registry; `cluster` is the configuration's, for stamps. Does no I/O.
    fn open(&self, config: &RegistryConfig, cluster: &Arc<str>) -> Result<Arc<Self::Registry>, OpenError>;
}

/// Why a registry of the configuration has no client.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This program has no driver for it.
    #[error("registry {name}: there is no driver for {driver} in this version")]
    NoDriver {
        /// Name of the registry.
        name: Arc<str>,
        /// Its driver.
        driver: &'static str,
    },
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
}

/// One replica's reconciler: waits for the Lease, reconciles while it holds it, gives it back when `stop` resolves, and returns.
pub async fn run<C, D, K>(
    _cluster: C,
    _drivers: D,
    _clock: K,
    _options: Options,
    _metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send,
) where
    C: Cluster,
    D: Drivers,
    K: Clock,
{
    stop.await;
}
