//! What metrics tell of all pods and services at once.
//!
//! Invariant: shown only while this replica leads, so that sums over replicas are right.
//! Absent on purpose: what is counted as it happens (`execute`, `calls`).

use std::collections::BTreeMap;

use super::Drivers;
use super::actor::Actor;
use super::clock::Clock;
use super::cluster::Cluster;
use super::pods::Entry;
use crate::metrics::pods::{Holder, waits_at_gate};
use crate::registration::Reason;

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// Shows how many pods stand where, the longest waits, and who was refused a drain.
    pub(super) fn show_gauges(&self) {
        let Some(term) = &self.term else { return };
        let mut states: BTreeMap<Reason, usize> = BTreeMap::new();
        for reason in self.pods.iter().filter_map(|(_, entry)| entry.reason) {
            *states.entry(reason).or_default() += 1;
        }
        for reason in Reason::ALL {
            let pods = states.get(&reason).copied().unwrap_or_default();
            self.metrics.pods.stand(reason, pods);
        }
        for holder in Holder::ALL {
            let since = self.pods.iter().filter_map(|(_, entry)| waits_at(entry, holder)).min();
            self.metrics.pods.waits(holder, since);
        }
        for (id, service) in &term.services {
            let refused = i64::try_from(service.budget.refused()).unwrap_or(i64::MAX);
            self.metrics.reconcile.drains_refused.get_or_create(&id.into()).set(refused);
        }
    }

    /// Takes back what only a leader shows.
    pub(super) fn hide_gauges(&self) {
        self.metrics.pods.forget();
        self.metrics.reconcile.drains_refused.clear();
    }
}

/// Since when the pod waits there; `None` where it does not.
fn waits_at(entry: &Entry, holder: Holder) -> Option<jiff::Timestamp> {
    let pod = &entry.view;
    match holder {
        Holder::Gate => waits_at_gate(pod),
        Holder::Finalizer => {
            entry.ended.filter(|_| pod.finalizer)?;
            pod.finished.or(pod.deletion.map(|deletion| deletion.at))
        }
    }
}
