//! Every metric of the program, by name, type and help, in one place.
//!
//! Dashboards, alerts and `docs/metrics.md` speak of these names; a test holds the page against this file.
//!
//! Invariant: labels have few values, all from closed sets or from the configuration.
//! Invariant: every metric is registered through [`Catalog`], so that none is missing on the page.
//! Absent on purpose: the HTTP route (`probes`).

pub mod admission;
pub mod delays;
pub mod pods;
pub mod reconcile;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use admission::AdmissionMetrics;
use delays::DelayMetrics;
use pods::PodMetrics;
use reconcile::{OutcomeLabel, ReconcileMetrics};

/// The metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    /// The webhook.
    pub admission: AdmissionMetrics,
    /// Drain delays.
    pub delays: DelayMetrics,
    /// Pods.
    pub pods: PodMetrics,
    /// The reconciler.
    pub reconcile: ReconcileMetrics,
    /// Webhook connections that are open.
    pub connections: Gauge,
    /// When the certificate that is served ends, in seconds since 1970.
    pub certificate_expiry: Gauge,
    /// Rights that were missing at the start.
    pub missing_rights: Gauge,
    /// Spans of traces, by what became of them; none where nobody collects.
    pub traced: Family<OutcomeLabel, Counter<u64, AtomicU64>>,
    catalog: Catalog,
}

/// Names, types and help of the metrics, and the registry that writes them out.
#[derive(Debug, Default)]
pub struct Catalog {
    registry: Registry,
    described: Vec<Described>,
}

/// One line of `docs/metrics.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The name as Prometheus shows it.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// What it tells.
    pub help: &'static str,
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let mut catalog = Catalog::default();
        let build: Family<Vec<(&str, &str)>, Gauge> = catalog.add("lockstep_build_info", "Version of this program", Family::default());
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION"))]).set(1);
        Self {
            admission: AdmissionMetrics::new(&mut catalog),
            delays: DelayMetrics::new(&mut catalog),
            pods: PodMetrics::new(&mut catalog),
            reconcile: ReconcileMetrics::new(&mut catalog),
            connections: catalog.add("lockstep_webhook_connections", "Webhook connections that are open", Gauge::default()),
            certificate_expiry: catalog.add(
                "lockstep_certificate_expiry_timestamp_seconds",
                "When the certificate that is served ends, in seconds since 1970",
                Gauge::default(),
            ),
            missing_rights: catalog.add("lockstep_missing_rights", "Rights that were missing when this replica started", Gauge::default()),
            traced: catalog.add("lockstep_trace_spans", "Spans of traces: sent, refused by the collector, or dropped", Family::default()),
            catalog,
        }
    }

    /// Every metric there is.
    pub fn described(&self) -> &[Described] {
        &self.catalog.described
    }

    /// The exposition in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.catalog.registry).expect("writing into a String cannot fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Catalog {
    /// Registers `metric`; the `_total` of a counter is added here and must not be part of `name`.
    pub fn add<M: Metric + TypedMetric + Clone>(&mut self, name: &str, help: &'static str, metric: M) -> M {
        let suffix = if M::TYPE == MetricType::Counter { "_total" } else { "" };
        self.described.push(Described { name: format!("{name}{suffix}"), kind: M::TYPE.as_str(), help });
        self.registry.register(name, help, metric.clone());
        metric
    }
}
