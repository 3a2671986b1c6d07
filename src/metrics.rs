//! Every metric of the program, by name, type and help, in one place.
//!
//! Dashboards, alerts and `docs/metrics.md` speak of these names; a test holds the page against this file.
//!
//! Invariant: labels have few values, all from closed sets or from the configuration.
//! Absent on purpose: the HTTP route (`probes`).

pub mod reconcile;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The metrics of one process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The reconciler's.
    pub reconcile: reconcile::ReconcileMetrics,
    registry: Registry,
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let mut metrics = Self::default();
        metrics.reconcile.register(&mut metrics.registry);
        metrics
    }

    /// The exposition in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing into a String cannot fail");
        text
    }
}
