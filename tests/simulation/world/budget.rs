//! The drain budget, as seeded worlds judge it.
//!
//! Scenarios count targets instead; here the rule itself is asserted at every change that only the budget allows.
//!
//! Invariant: judged from the world's truth; pods that left the count in the last moments still count, since the product may have granted before.
//! Absent on purpose: deletions, debts and orphans, which need no budget.

use std::net::SocketAddr;
use std::time::Duration;

use lockstep::config::{Configuration, OnUnbound};
use lockstep::registry::{Change, Operation};
use lockstep::target::ServiceId;

use super::World;
use super::invariants::{Shown, wants};
use super::pods::Pod;
use crate::executor::ProcessId;

/// A grant may be this old when its change is sent: a call that was under way, and the time to act.
const GRANTED_BEFORE: Duration = Duration::from_secs(10);

impl World {
    /// At most floor(n × (1 − panicThreshold)) drains are outstanding, and never the last where n > 1.
    pub(super) fn judge_budget(&mut self, process: ProcessId, id: &ServiceId, change: &Change) {
        if !self.seeded || change.operation == Operation::Register {
            return;
        }
        let Some(held) = self.meant_target(id, change) else { return };
        let Some(owner) = held.owner.as_ref().and_then(|uid| self.pod_of_uid(uid)) else { return };
        let pod = &self.pods[owner];
        // What is sent once more has had its leave before.
        if !pod.is_live() || !self.needs_budget(pod, id, held.address) || self.is_out(pod, id, Some(held.address)) {
            return;
        }
        let shown = &self.processes[process].shown;
        let counted = self.pods.iter().enumerate().filter(|(of, pod)| self.counts(pod, shown.get(of), id)).count();
        let outstanding = self.pods.iter().filter(|one| one.uid != pod.uid && self.is_out(one, id, None)).count() + 1;
        let threshold = self.in_force().map(|one| one.registration.panic_threshold).min().unwrap_or(100);
        let share = counted * (100 - usize::from(threshold).min(100)) / 100;
        let allowed = if counted > 1 { share.min(counted - 1) } else { share };
        if outstanding > allowed {
            let wanted = format!("at most {allowed} of {counted} targets of {id} out of use for other reasons than a deletion");
            self.fail("budget", wanted, format!("{outstanding}, with {} of {}", change.operation.as_str(), change.address));
        }
    }

    /// Whether only the budget lets such a target be taken out.
    fn needs_budget(&self, pod: &Pod, id: &ServiceId, address: SocketAddr) -> bool {
        let wanted = |one: &Configuration| wants(one, pod, id, address);
        let unbound = |one: &Configuration| {
            pod.looks().bindings(one).all(|binding| binding.service != *id)
                && one.bindings.iter().any(|binding| binding.service == *id && binding.on_unbound == OnUnbound::Deregister)
        };
        self.in_force().all(|one| wanted(one) || (pod.ips.contains(&address.ip()) && unbound(one)))
    }

    /// Whether a pod's claim counts in n, did a moment ago, or does as far as the process was shown.
    fn counts(&self, pod: &Pod, shown: Option<&Shown>, id: &ServiceId) -> bool {
        let bound_then = |shown: &Shown| self.in_force().any(|one| shown.looks().bindings(one).any(|binding| binding.service == *id));
        if shown.is_some_and(|shown| shown.is_live() && shown.claims_in(id) && bound_then(shown)) {
            return true;
        }
        let recent = |at: Duration| self.is_recent(at);
        let ended = [pod.gone, pod.deleted_first.map(|one| one.at), pod.ended.filter(|_| pod.is_terminal()).map(|one| one.at)];
        let live = ended.into_iter().flatten().all(recent);
        let bound = self.in_force().any(|one| pod.looks().bindings(one).any(|binding| binding.service == *id)) || recent(pod.labelled);
        let claimed = pod.dropped.get(id).copied().is_some_and(recent);
        live && bound && (claimed || pod.claims.iter().any(|claim| claim.service == *id && !claim.observed))
    }

    /// Whether a grant may still be from before that.
    fn is_recent(&self, at: Duration) -> bool {
        self.now < at + GRANTED_BEFORE + self.watch_delay()
    }

    /// Whether the target of a live, bound pod, at that address if one is given, is out of use since the product took it out.
    fn is_out(&self, pod: &Pod, id: &ServiceId, at: Option<SocketAddr>) -> bool {
        let serves = pod.containers_ready.status && !self.is_node_lost(pod);
        let bound = self.in_force().all(|one| pod.looks().bindings(one).any(|binding| binding.service == *id));
        if !pod.is_live() || serves || !bound {
            return false;
        }
        let Some(registry) = self.registries.get(&id.registry) else { return false };
        let claimed = |at: SocketAddr| pod.claims.iter().any(|claim| claim.service == *id && claim.address == at);
        // While it served again it held no grant, and others may have been granted theirs; where it did so after its own drain, that is.
        let freed = |drained: Duration| pod.unready_since.is_some_and(|since| since > drained && self.is_recent(since));
        pod.registered.iter().any(|(one, address)| {
            one == id
                && pod.ips.contains(&address.ip())
                && at.is_none_or(|at| at == *address)
                && claimed(*address)
                && registry
                    .track(&id.service, &pod.uid, *address)
                    .is_some_and(|track| track.operation != Operation::Register && !freed(track.answered_at))
        })
    }
}
