//! A1 to A4 and A6 to A8, as far as they speak of changes of targets.
//!
//! Invariant: judged just before a change is done, so against what the registry holds without it.
//! Absent on purpose: the drain budget (`budget`).

use std::sync::Arc;

use lockstep::config::Mode;
use lockstep::registry::{Change, DrainKind, Operation};
use lockstep::target::ServiceId;

use super::{Claim, TO_ACT, wants};
use crate::executor::ProcessId;
use crate::world::World;
use crate::world::pods::PodId;

impl World {
    /// A1 to A4 and A6 to A8, as far as they speak of a change; called just before it is done.
    pub(in crate::world) fn judge_change(&mut self, process: ProcessId, id: &ServiceId, change: &Change) {
        let what = format!("{} of {} in {id}", change.operation.as_str(), change.address);
        self.judge_lease(process, &what);
        let pod = self.pod_of_uid(&change.uid);
        if let Some(pod) = pod {
            self.judge_released(process, pod, &what);
        }
        self.count_change(pod, change);
        self.judge_foreign(id, change, &what);
        self.judge_live(process, id, change, &what);
        self.judge_budget(process, id, change);
        if change.operation == Operation::Register {
            let wanted = |claim: &Claim| claim.service == *id && claim.address == change.address && !claim.observed;
            if !pod.is_some_and(|pod| self.pods[pod].claims.iter().any(wanted)) {
                let found = pod.map_or_else(|| format!("no pod has the UID {}", change.uid), |pod| format!("{:?}", self.lines(pod)));
                self.fail("A6", format!("{what}: among the pod's claims"), found);
            }
        }
        let now = self.now;
        let registry = self.registries.get(&id.registry);
        let flying =
            registry.and_then(|registry| registry.track(&id.service, &change.uid, change.address)).and_then(|track| track.in_flight);
        if flying.is_some_and(|(_, until)| now < until) {
            self.fail("A7", format!("{what}: sent after the previous change of it was answered"), "that one is still under way");
        }
    }

    /// Which case of the table of pods a change belongs to.
    fn count_change(&mut self, pod: Option<PodId>, change: &Change) {
        let Some(pod) = pod.map(|pod| &self.pods[pod]).filter(|_| change.operation != Operation::Register) else { return };
        let row = if pod.is_live() {
            "not serving: drained"
        } else if pod.forced.is_some() && !pod.reported_gone() {
            "forced deletion"
        } else if self.containers_gone(pod) {
            "containers gone: deregistered"
        } else {
            "deleted, containers running: drained or deregistered"
        };
        self.record.row(row);
    }

    fn lines(&self, id: PodId) -> Vec<String> {
        self.pods[id].claims.iter().map(Claim::to_string).collect()
    }

    /// A1: foreign targets and observed services are never touched, and a drain goes only where there is one.
    fn judge_foreign(&mut self, id: &ServiceId, change: &Change, what: &str) {
        let held = self.meant_target(id, change);
        let (drains, marks) = {
            let behaviour = self.service(id).0;
            (behaviour.drains, behaviour.marks)
        };
        let unknowable = change.operation == Operation::Register && !marks;
        let ours = |cluster: &Option<Arc<str>>| cluster.as_ref().is_some_and(|cluster| self.in_force().any(|one| one.cluster == *cluster));
        let exclusive = self.in_force().any(|one| one.bindings.iter().any(|binding| binding.service == *id && binding.exclusive));
        let foreign = held.is_some_and(|held| !ours(&held.cluster)) && !unknowable && !exclusive;
        let observed = self.in_force().all(|one| {
            let mut here = one.bindings.iter().filter(|binding| binding.service == *id).peekable();
            here.peek().is_some() && here.all(|binding| binding.mode == Mode::Observe)
        });
        if foreign {
            self.fail("A1", "no change names a foreign target", what);
        }
        if observed {
            self.fail("A1", "no change goes to a service that is observed", what);
        }
        if change.operation == Operation::Drain && drains == DrainKind::ByDeregistering {
            self.fail("A1", "no drain goes to a registry that drains by deregistering", what);
        }
    }

    /// A2 and A3: a live pod's target is not taken out under it.
    fn judge_live(&mut self, process: ProcessId, id: &ServiceId, change: &Change, what: &str) {
        if change.operation == Operation::Register {
            return;
        }
        let Some(held) = self.meant_target(id, change) else { return };
        let Some(owner) = held.owner.as_ref().and_then(|uid| self.pod_of_uid(uid)) else { return };
        let pod = &self.pods[owner];
        let lost = self.is_node_lost(pod) || (self.seeded && self.is_node_lost_to(process, pod));
        if !pod.is_live() || lost || !self.in_force().all(|one| wants(one, pod, id, held.address)) {
            return;
        }
        let shown = self.processes[process].shown.get(&owner).filter(|_| self.seeded);
        if shown.is_some_and(|shown| !self.in_force().all(|one| shown.looks().wants(one, id, held.address))) {
            return;
        }
        let handle = pod.handle.clone();
        if let (true, Some(since)) = (pod.containers_ready.status, pod.ready_since) {
            let shown = self.processes[process].shown.get(&owner).filter(|shown| shown.ready.0 == pod.ready_version);
            let known = if self.seeded { shown.map(|shown| shown.ready.1) } else { Some(since.at) };
            if known.is_some_and(|known| self.now > known + TO_ACT + self.watch_delay()) {
                self.fail("A2", format!("the target of {handle}, which is live and ready, stays"), what);
            }
        } else if pod.spec.gated && pod.gate.as_ref().is_some_and(|gate| gate.status) {
            self.fail("A3", format!("the gate of {handle}, which is not ready, is False first"), what);
        }
    }
}
