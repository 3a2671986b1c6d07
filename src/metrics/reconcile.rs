//! Metrics of the reconciler.
//!
//! Invariant: labels are reasons, operations and names of registries, all from closed sets or the configuration.
//! Absent on purpose: pods as labels; there are too many of them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The reconciler's metrics.
#[derive(Debug, Default)]
pub struct ReconcileMetrics {
    /// Uses of an exception to the two invariants, once a pod.
    pub exceptions: Family<ReasonLabel, Counter<u64, AtomicU64>>,
    /// Pods held beyond `gateTimeout` or `drainTimeout`.
    pub held_pods: Gauge,
    /// Managed pods without our gate.
    pub adopted_pods: Gauge,
    /// Managed pods.
    pub managed_pods: Gauge,
    /// Claims whose pods are gone.
    pub debts: Gauge,
    /// Whether the newest configuration is the one in force.
    pub config_valid: Gauge,
    /// Whether this replica reconciles.
    pub leader: Gauge,
    /// Calls to registries, by what came of them.
    pub registry_calls: Family<CallLabels, Counter<u64, AtomicU64>>,
    /// Registries that are let rest because they cannot be reached.
    pub registry_down: Family<RegistryLabel, Gauge>,
    /// Writes to pods, by what came of them.
    pub pod_writes: Family<OutcomeLabel, Counter<u64, AtomicU64>>,
    /// Changes of a pod's state, by what it is now.
    pub transitions: Family<ReasonLabel, Counter<u64, AtomicU64>>,
}

/// Label of a reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// The reason.
    pub reason: &'static str,
}

/// Label of an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// The outcome.
    pub outcome: &'static str,
}

/// Label of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RegistryLabel {
    /// Its name in the configuration.
    pub registry: Arc<str>,
}

/// Labels of a call to a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Name of the registry in the configuration.
    pub registry: Arc<str>,
    /// `list` or `apply`.
    pub operation: &'static str,
    /// What came of it.
    pub outcome: &'static str,
}

impl ReconcileMetrics {
    /// Puts them into `registry`.
    pub(super) fn register(&self, registry: &mut Registry) {
        let mut name = |name: &str, help: &str, metric: Metric| match metric {
            Metric::Gauge(gauge) => registry.register(format!("lockstep_{name}"), help, gauge),
            Metric::Reasons(family) => registry.register(format!("lockstep_{name}"), help, family),
            Metric::Outcomes(family) => registry.register(format!("lockstep_{name}"), help, family),
            Metric::Calls(family) => registry.register(format!("lockstep_{name}"), help, family),
            Metric::Registries(family) => registry.register(format!("lockstep_{name}"), help, family),
        };
        name("exceptions", "Pods let through or let go without the registry's acknowledgement", Metric::Reasons(self.exceptions.clone()));
        name("held_pods", "Pods held beyond gateTimeout or drainTimeout", Metric::Gauge(self.held_pods.clone()));
        name("adopted_pods", "Managed pods without the readiness gate", Metric::Gauge(self.adopted_pods.clone()));
        name("managed_pods", "Pods that are taken care of", Metric::Gauge(self.managed_pods.clone()));
        name("debts", "Claims whose pods are gone", Metric::Gauge(self.debts.clone()));
        name("config_valid", "Whether the newest configuration is in force", Metric::Gauge(self.config_valid.clone()));
        name("leader", "Whether this replica reconciles", Metric::Gauge(self.leader.clone()));
        name("registry_calls", "Calls to registries", Metric::Calls(self.registry_calls.clone()));
        name("registry_down", "Whether a registry cannot be reached", Metric::Registries(self.registry_down.clone()));
        name("pod_writes", "Writes to pods", Metric::Outcomes(self.pod_writes.clone()));
        name("pod_transitions", "Changes of a pod's state", Metric::Reasons(self.transitions.clone()));
    }
}

enum Metric {
    Gauge(Gauge),
    Reasons(Family<ReasonLabel, Counter<u64, AtomicU64>>),
    Outcomes(Family<OutcomeLabel, Counter<u64, AtomicU64>>),
    Calls(Family<CallLabels, Counter<u64, AtomicU64>>),
    Registries(Family<RegistryLabel, Gauge>),
}
