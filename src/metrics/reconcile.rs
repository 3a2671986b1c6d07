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

use super::Catalog;

/// The reconciler's metrics.
#[derive(Debug)]
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
    /// Instances of a registry that are counted out because they cannot be reached while others can.
    pub registry_instances_out: Family<RegistryLabel, Gauge>,
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
    /// All at zero, in the catalog.
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            exceptions: catalog.add(
                "lockstep_exceptions",
                "Pods let through or let go without the registry's acknowledgement",
                Family::default(),
            ),
            held_pods: catalog.add("lockstep_held_pods", "Pods held beyond gateTimeout or drainTimeout", Gauge::default()),
            adopted_pods: catalog.add("lockstep_adopted_pods", "Managed pods without the readiness gate", Gauge::default()),
            managed_pods: catalog.add("lockstep_managed_pods", "Pods that are taken care of", Gauge::default()),
            debts: catalog.add("lockstep_debts", "Claims whose pods are gone", Gauge::default()),
            config_valid: catalog.add("lockstep_config_valid", "Whether the newest configuration is in force", Gauge::default()),
            leader: catalog.add("lockstep_leader", "Whether this replica reconciles", Gauge::default()),
            registry_calls: catalog.add("lockstep_registry_calls", "Calls to registries", Family::default()),
            registry_down: catalog.add("lockstep_registry_down", "Whether a registry cannot be reached", Family::default()),
            registry_instances_out: catalog.add(
                "lockstep_registry_instances_out",
                "Instances of a registry that are counted out: no change reaches them until they are back",
                Family::default(),
            ),
            pod_writes: catalog.add("lockstep_pod_writes", "Writes to pods", Family::default()),
            transitions: catalog.add("lockstep_pod_transitions", "Changes of a pod's state", Family::default()),
        }
    }
}
