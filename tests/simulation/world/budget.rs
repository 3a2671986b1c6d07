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
use lockstep::target::{ServiceId, TargetState};

use super::World;
use super::invariants::{Shown, wants};
use super::pods::Pod;
use super::registry::Held;
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
        // What may be out of use already has had its leave before, which ends only once it was put back: no more is taken out.
        if !pod.is_live() || !self.needs_budget(pod, id, held.address) || self.was_taken_out(pod, id, held.address) {
            return;
        }
        let shown = &self.processes[process].shown;
        // What stands at an address that the pod does not have, as far as the process was shown, is taken out without leave.
        if shown.get(&owner).is_some_and(|shown| !shown.has(held.address.ip())) {
            return;
        }
        let counted = self.pods.iter().enumerate().filter(|(of, pod)| self.counts(pod, shown.get(of), id)).count();
        let others = self.pods.iter().filter(|one| one.uid != pod.uid && self.is_out(one, id));
        let out: Vec<&str> = others.map(|one| &*one.handle).collect();
        let outstanding = out.len() + 1;
        let threshold = self.in_force().map(|one| one.registration.panic_threshold).min().unwrap_or(100);
        let share = counted * (100 - usize::from(threshold).min(100)) / 100;
        let allowed = if counted > 1 { share.min(counted - 1) } else { share };
        if outstanding > allowed {
            let wanted = format!("at most {allowed} of {counted} targets of {id} out of use for other reasons than a deletion");
            let found = format!("{outstanding}, with {} of {} beside [{}]", change.operation.as_str(), change.address, out.join(", "));
            self.fail("budget", wanted, found);
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

    /// Whether a target of a live, bound pod is out of use since the product took it out: it was told to, and so it stands there.
    fn is_out(&self, pod: &Pod, id: &ServiceId) -> bool {
        let serves = pod.containers_ready.status && !self.is_node_lost(pod);
        let bound = self.in_force().all(|one| pod.looks().bindings(one).any(|binding| binding.service == *id));
        if !pod.is_live() || serves || !bound {
            return false;
        }
        let out = |(one, address): &(ServiceId, SocketAddr)| {
            one == id && pod.ips.contains(&address.ip()) && self.was_taken_out(pod, id, *address) && !self.is_in_use(pod, id, *address)
        };
        pod.registered.iter().any(out)
    }

    /// Whether the product took a claimed target out of use and has not put it back since, as far as the answers tell.
    fn was_taken_out(&self, pod: &Pod, id: &ServiceId, address: SocketAddr) -> bool {
        let claimed = pod.claims.iter().any(|claim| claim.service == *id && claim.address == address);
        let registry = self.registries.get(&id.registry).filter(|_| claimed);
        registry.and_then(|registry| registry.track(&id.service, &pod.uid, address)).is_some_and(|track| track.out)
    }

    /// Whether the registry sends traffic to a pod's target, or will once it is healthy.
    fn is_in_use(&self, pod: &Pod, id: &ServiceId, address: SocketAddr) -> bool {
        let service = self.registries.get(&id.registry).and_then(|registry| registry.services.get(&id.service));
        let used = |held: &Held| held.address == address && held.state != TargetState::Draining && !held.drain_begun && !held.deregistering;
        service.is_some_and(|service| service.held_by(&pod.uid).any(used))
    }
}
