//! Metrics of the reconciler.
//!
//! Invariant: labels are reasons, operations and names of registries and services, all from closed sets or the configuration.
//! Absent on purpose: pods as labels; there are too many of them. How long pods take and wait is in `pods`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use aws_lc_rs::digest::{SHA256, digest};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::Catalog;
use super::delays::ServiceLabels;
use crate::registration::Reason;

/// What can be an exception.
const EXCEPTIONS: [Reason; 3] = [Reason::GateTimeout, Reason::DrainTimeout, Reason::ForceTimeout];
/// Digits of a configuration's hash that are shown: enough to tell two texts apart.
const HASH_DIGITS: usize = 12;
/// Upper ends of the buckets: a runtime socket answers in a millisecond, a call is given up after 5 s, a read that waits after 30.
const SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 30.0];

/// Seconds that calls took, by registry and operation.
type CallSeconds = Family<OperationLabels, Histogram, fn() -> Histogram>;

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
    config_info: Family<HashLabel, Gauge>,
    /// Whether this replica reconciles.
    pub leader: Gauge,
    watches: Family<WatchLabel, Gauge>,
    call_seconds: CallSeconds,
    /// Targets that stay in use only because the drain budget of their service is spent.
    pub drains_refused: Family<ServiceLabels, Gauge>,
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

/// Label of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HashLabel {
    hash: String,
}

/// Label of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabel {
    watch: &'static str,
}

/// Labels of the time that a call took.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    registry: Arc<str>,
    operation: &'static str,
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
        let exceptions: Family<ReasonLabel, Counter> = Family::default();
        for reason in EXCEPTIONS {
            // A counter that is first seen at 1 has not grown, as far as an alert can tell.
            drop(exceptions.get_or_create(&ReasonLabel { reason: reason.as_str() }));
        }
        Self {
            exceptions: catalog.add("lockstep_exceptions", "Pods let through or let go without the registry's acknowledgement", exceptions),
            held_pods: catalog.add("lockstep_held_pods", "Pods held beyond gateTimeout or drainTimeout", Gauge::default()),
            adopted_pods: catalog.add("lockstep_adopted_pods", "Managed pods without the readiness gate", Gauge::default()),
            managed_pods: catalog.add("lockstep_managed_pods", "Pods that are taken care of", Gauge::default()),
            debts: catalog.add("lockstep_debts", "Claims whose pods are gone", Gauge::default()),
            config_valid: catalog.add("lockstep_config_valid", "Whether the newest configuration is in force", Gauge::default()),
            config_info: catalog.add(
                "lockstep_config_info",
                "Beginning of the SHA-256 of the text that is in force: the same on every replica, once a change has arrived",
                Family::default(),
            ),
            leader: catalog.add("lockstep_leader", "Whether this replica reconciles", Gauge::default()),
            watches: catalog.add(
                "lockstep_watch_last_event_timestamp_seconds",
                "When each watch last told of anything, in seconds since 1970; that of pods does so each minute at least",
                Family::default(),
            ),
            registry_calls: catalog.add("lockstep_registry_calls", "Calls to registries", Family::default()),
            call_seconds: catalog.add(
                "lockstep_registry_call_duration_seconds",
                "How long calls to registries took; `wait` is a read that waits for a change",
                Family::new_with_constructor(|| Histogram::new(SECONDS)),
            ),
            drains_refused: catalog.add(
                "lockstep_drains_refused",
                "Targets of pods that do not serve, still in use because the drain budget of their service is spent",
                Family::default(),
            ),
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

    /// That text is in force from now on.
    pub fn in_force(&self, text: &str) {
        let digest = digest(&SHA256, text.as_bytes());
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.config_info.clear();
        self.config_info.get_or_create(&HashLabel { hash: hash[..HASH_DIGITS].to_owned() }).set(1);
    }

    /// A watch told of something.
    pub fn heard(&self, watch: &'static str, at: jiff::Timestamp) {
        self.watches.get_or_create(&WatchLabel { watch }).set(at.as_second());
    }

    /// Where the seconds of such calls go.
    pub fn call_seconds(&self, registry: &Arc<str>, operation: &'static str) -> Histogram {
        self.call_seconds.get_or_create_owned(&OperationLabels { registry: Arc::clone(registry), operation })
    }
}
