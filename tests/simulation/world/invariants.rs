//! The invariants that hold in every world: I1, I2 and A1 to A8, judged when a request arrives.
//!
//! Each rule stands as one function, in the words of `scenarios/README.md`.
//!
//! Invariant: judging changes nothing but the list of failures and the exceptions that must have been counted.
//! Absent on purpose: expectations of one story (`judge`), the drain budget (`budget`).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lockstep::config::{Ack, Binding, Configuration, Family, Mode, OnDrainTimeout, OnGateTimeout, Port};
use lockstep::names;
use lockstep::pod::{Condition, ContainerPort, Labels, Phase, PodView};
use lockstep::reconcile::cluster::{ConditionPatch, PodPatch, Presence};
use lockstep::registry::{Change, DrainKind, GoneWhen, Operation, TargetKeys};
use lockstep::target::{PodUid, ServiceId, TargetState};

use super::pods::{Pod, PodId};
use super::record::WriteKind;
use super::registry::{Held, Seen, SimRegistryState, Track, at_address};
use super::{Moment, World};
use crate::executor::ProcessId;

/// What a product may take to act on what it was shown.
const TO_ACT: Duration = Duration::from_secs(1);
/// A condition's time may have been cut to whole seconds.
const SECOND: Duration = Duration::from_secs(1);
/// Prefix of the annotations that are ours.
const OUR_PREFIX: &str = "lockstep.dev/";

/// One line of a pod's claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) service: ServiceId,
    pub(crate) address: SocketAddr,
    pub(crate) observed: bool,
}

/// One claim of a pod that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Debt {
    pub(crate) service: ServiceId,
    pub(crate) address: SocketAddr,
    pub(crate) uid: PodUid,
}

/// What a process has been shown of a pod.
pub(crate) struct Shown {
    version: u64,
    view: Arc<PodView>,
    /// When it was first shown the present state of the containers, and of which version that is.
    ready: (u64, Duration),
    /// When it was first shown that the pod was released.
    released: Option<Duration>,
}

/// Exceptions that were used and must be counted by the end of the instant.
#[derive(Default)]
pub(crate) struct Exceptions {
    used: BTreeSet<(&'static str, PodId)>,
    fresh: Vec<(&'static str, ProcessId)>,
}

/// Reads the claims out of a condition.
pub(crate) fn claims_of(condition: Option<&Condition>) -> Vec<Claim> {
    condition.filter(|condition| condition.status).map_or_else(Vec::new, |condition| condition.message.lines().filter_map(claim).collect())
}

/// One line `registry/service address:port[ observed]`.
pub(crate) fn claim(line: &str) -> Option<Claim> {
    let line = line.trim();
    let (line, observed) = line.strip_suffix(" observed").map_or((line, false), |line| (line, true));
    let (service, address) = line.rsplit_once(' ')?;
    let (registry, service) = service.split_once('/')?;
    Some(Claim { service: ServiceId::new(registry, service), address: address.parse().ok()?, observed })
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{}", self.service, self.address, if self.observed { " observed" } else { "" })
    }
}

impl World {
    /// A process is shown a version of a pod.
    pub(crate) fn show(&mut self, process: ProcessId, id: PodId, view: &Arc<PodView>) {
        let version = view.resource_version.parse().unwrap_or(0);
        let (now, pod) = (self.now, &self.pods[id]);
        let ready = if version >= pod.ready_version { (pod.ready_version, now) } else { (0, now) };
        let released = view.released.then_some(now);
        let shown = self.processes[process].shown.entry(id).or_insert_with(|| Shown { version: 0, view: view.clone(), ready, released });
        if version < shown.version {
            return;
        }
        shown.version = version;
        shown.view = view.clone();
        if shown.ready.0 < ready.0 {
            shown.ready = ready;
        }
        shown.released = shown.released.or(released);
    }

    /// Puts what a process was last shown in the place of what is there; only a deliberate fault asks.
    pub(super) fn age(&self, process: ProcessId, id: PodId, view: &mut Arc<PodView>) {
        if let Some(shown) = self.processes[process].shown.get(&id) {
            *view = shown.view.clone();
        }
    }

    /// The text of the debts was written.
    pub(super) fn read_debts(&mut self, text: &str) {
        self.debts = crate::debts::parse(text);
    }

    /// Whether any target stands where a claim says.
    pub(crate) fn stands(&self, claim: &Claim) -> bool {
        let service = self.registries.get(&claim.service.registry).and_then(|one| one.services.get(&claim.service.service));
        service.is_some_and(|service| service.targets.values().any(|held| held.address == claim.address))
    }

    /// How many claims the debts hold.
    pub(crate) fn debt_count(&self) -> usize {
        self.debts.len()
    }

    fn owes(&self, service: &ServiceId, address: SocketAddr, uid: &PodUid) -> bool {
        let Some(registry) = self.registries.get(&service.registry) else { return false };
        let slot = |address| registry.behaviour.key(address, Some(uid));
        self.debts.iter().any(|debt| debt.service == *service && debt.uid == *uid && slot(debt.address) == slot(address))
    }

    /// A4, A8 and the parts of A5 that speak of the request itself.
    pub(super) fn judge_write(&mut self, process: ProcessId, id: PodId, patch: &PodPatch) {
        self.judge_lease(process, "a pod write");
        self.judge_released(process, id, "a pod write");
        let handle = self.pods[id].handle.clone();
        for condition in &patch.conditions {
            if condition.type_ != names::GATE && condition.type_ != names::CLAIMS {
                self.fail("A5", format!("{handle}: only our own conditions are written"), condition.type_);
            }
        }
        for (key, _) in &patch.annotations {
            if !key.starts_with(OUR_PREFIX) {
                self.fail("A5", format!("{handle}: only our own annotations are written"), *key);
            }
        }
        let Some(shown) = self.processes[process].shown.get(&id) else { return };
        let told = |condition: &ConditionPatch| {
            let known = if condition.type_ == names::GATE { &shown.view.gate } else { &shown.view.claims };
            known.as_ref().is_some_and(|known| {
                known.status == condition.status && known.reason == condition.reason && known.message == condition.message
            })
        };
        let is_status = patch.finalizer.is_none() && !patch.label;
        if is_status && !patch.conditions.is_empty() && patch.conditions.iter().all(told) {
            let found = patch.conditions.iter().map(|one| format!("{} {} again", one.type_, one.reason)).collect::<Vec<_>>().join(", ");
            self.fail("A5", format!("{handle}: a status write repeats nothing that this process was shown"), found);
        }
    }

    fn judge_lease(&mut self, process: ProcessId, what: &str) {
        let (name, holder) = (self.processes[process].name.clone(), &self.lease.holder);
        if !holder.is_empty() && **holder != *name {
            let found = format!("the Lease names {holder}, {name} sent it");
            self.fail("A4", format!("{what} only from the replica that the Lease names"), found);
        }
    }

    fn judge_released(&mut self, process: ProcessId, id: PodId, what: &str) {
        let pod = &self.pods[id];
        let Some(released) = pod.released.filter(|_| pod.gone.is_none()) else { return };
        let known = if self.seeded { self.processes[process].shown.get(&id).and_then(|shown| shown.released) } else { Some(released) };
        if known.is_some_and(|known| self.now >= known + TO_ACT + self.watch_delay()) {
            let handle = pod.handle.clone();
            self.fail("A8", format!("{handle} was released and is left alone"), what);
        }
    }

    /// I1, I2, A6 and the part of A5 that speaks of the object; called just before the write is done.
    pub(super) fn judge_effect(&mut self, process: ProcessId, id: PodId, kind: WriteKind, patch: &PodPatch) {
        self.count_write(patch);
        for condition in &patch.conditions {
            self.judge_transition(process, id, condition);
        }
        let gate = patch.conditions.iter().find(|one| one.type_ == names::GATE);
        let open = self.pods[id].gate.as_ref().is_some_and(|gate| gate.status);
        if gate.is_some_and(|gate| gate.status) && !open {
            self.judge_gate(process, id);
        }
        if kind == WriteKind::Finalizer && patch.finalizer == Some(Presence::Absent) && self.pods[id].finalizer {
            self.judge_finalizer(process, id);
        }
        if let Some(claims) = patch.conditions.iter().find(|one| one.type_ == names::CLAIMS) {
            self.judge_dropped(process, id, claims);
        }
    }

    /// A5: `lastTransitionTime` changes exactly when the status does, to the wall clock.
    fn judge_transition(&mut self, process: ProcessId, id: PodId, condition: &ConditionPatch) {
        let pod = &self.pods[id];
        let old = if condition.type_ == names::GATE { &pod.gate } else { &pod.claims_condition };
        let changes = old.as_ref().is_none_or(|old| old.status != condition.status);
        let since = old.as_ref().and_then(|old| old.since);
        let wall = self.exec.wall();
        let slack = SECOND + if self.seeded { 10 * SECOND } else { Duration::ZERO };
        let fresh = condition.transition.is_some_and(|at| at.duration_since(wall).unsigned_abs() < slack && at <= wall);
        let stale = self.seeded && self.processes[process].shown.get(&id).is_none_or(|shown| shown.version < pod.version);
        let handle = &pod.handle;
        let problem = if changes && !fresh && !stale {
            Some((format!("{handle}: lastTransitionTime of {} becomes {wall}", condition.type_), format!("{:?}", condition.transition)))
        } else if !changes && !stale && condition.transition.is_some() && condition.transition != since {
            Some((format!("{handle}: lastTransitionTime of {} stays {since:?}", condition.type_), format!("{:?}", condition.transition)))
        } else {
            None
        };
        if let Some((wanted, found)) = problem {
            self.fail("A5", wanted, found);
        }
    }

    /// I1: a gate opens only on an acknowledgement.
    fn judge_gate(&mut self, process: ProcessId, id: PodId) {
        let problems: Vec<String> = self.in_force().map(|one| self.unacknowledged(process, id, one)).collect();
        let handle = self.pods[id].handle.clone();
        if problems.is_empty() || problems.iter().any(String::is_empty) {
            return;
        }
        let pod = &self.pods[id];
        let believed = self.processes[process].shown.get(&id).filter(|_| self.seeded).and_then(|shown| shown.view.containers_ready.clone());
        let believed = believed.filter(|ready| ready.status).and_then(|ready| ready.since);
        let waited = |limit: Duration| {
            pod.ready_since.is_some_and(|since| self.since(since) >= limit)
                || believed.is_some_and(|since| {
                    self.exec.wall().duration_since(since) >= jiff::SignedDuration::try_from(limit).unwrap_or_default()
                })
        };
        let opened =
            self.in_force().any(|one| one.registration.on_gate_timeout == OnGateTimeout::Open && waited(one.registration.gate_timeout));
        if opened {
            self.exceptions.use_one("GateTimeout", id, process);
        } else {
            self.fail("I1", format!("{handle}: every binding's target acknowledged before the gate opens"), problems.join("; or "));
        }
    }

    /// What keeps a gate shut under one configuration; empty: nothing.
    fn unacknowledged(&self, process: ProcessId, id: PodId, configuration: &Configuration) -> String {
        let pod = &self.pods[id];
        let truth = self.unacknowledged_as(&pod.uid, &pod.looks(), pod.containers_ready.status, configuration);
        let shown = self.processes[process].shown.get(&id).filter(|_| self.seeded && !truth.is_empty());
        let Some(shown) = shown else { return truth };
        let ready = shown.view.containers_ready.as_ref().is_some_and(|ready| ready.status);
        let looks = shown.looks();
        if self.unacknowledged_as(&pod.uid, &looks, ready, configuration).is_empty() { String::new() } else { truth }
    }

    fn unacknowledged_as(&self, uid: &PodUid, looks: &Looks<'_>, ready: bool, configuration: &Configuration) -> String {
        let bindings: Vec<&Binding> = looks.bindings(configuration).collect();
        if bindings.is_empty() {
            return String::new();
        }
        if !ready {
            return "ContainersReady is not True".to_owned();
        }
        for binding in bindings {
            let Some(address) = looks.target(binding) else { return format!("binding {}: no port or no address", binding.name) };
            if !self.acknowledged(binding, address, uid) {
                return format!("no listing sent after the last change was answered showed {address} of {} active", binding.service);
            }
        }
        String::new()
    }

    fn acknowledged(&self, binding: &Binding, address: SocketAddr, uid: &PodUid) -> bool {
        let Some(registry) = self.registries.get(&binding.service.registry) else { return false };
        let Some(service) = registry.services.get(&binding.service.service) else { return false };
        let observed = binding.mode == Mode::Observe;
        let track = registry.track(&binding.service.service, uid, address).filter(|_| !observed);
        let accepted = binding.ack == Ack::Accepted;
        if accepted && track.is_some_and(|track| track.accepted) {
            return true;
        }
        let states = |one: &Seen| if accepted { one.state != TargetState::Draining } else { one.state == TargetState::Active };
        service.received.iter().rev().any(|listing| {
            track.is_none_or(|track| listing.sent > track.answered.max(track.sent) && listing.sent_at >= track.answered_at)
                && at_address(&listing.snapshot, address).iter().any(|one| {
                    // Without marks a listing of the past cannot tell the pod's own target from the last owner's.
                    let own = one.owner.as_ref() == Some(uid) || (!registry.behaviour.marks && track.is_some());
                    states(one) && (observed || own)
                })
        })
    }

    /// I2: the finalizer goes only once the registries have let go.
    fn judge_finalizer(&mut self, process: ProcessId, id: PodId) {
        let pod = &self.pods[id];
        let handle = pod.handle.clone();
        if pod.deletion.is_none() && !pod.is_terminal() {
            self.fail("I2", format!("{handle}: the finalizer stays until the pod is deleted or has ended"), "it was taken off");
            return;
        }
        let held = self.still_held(process, id);
        if held.is_empty() {
            return;
        }
        let owed = held.iter().all(|(service, address, _)| match address {
            Some(address) => self.owes(service, *address, &pod.uid),
            None => true,
        });
        let release = self.in_force().any(|one| {
            let since = [pod.deleted_first, pod.ended].into_iter().flatten().map(|since| self.since(since)).max().unwrap_or_default();
            one.registration.on_drain_timeout == OnDrainTimeout::Release && since >= one.registration.drain_timeout
        });
        let forced = self.in_force().any(|one| {
            let limit = one.registration.force_timeout;
            let leads = *self.lease.holder == *self.processes[process].name && self.since(self.lease_since) >= limit;
            leads && pod.forced.is_some_and(|since| self.since(since) >= limit)
        });
        if owed && (release || forced) {
            self.exceptions.use_one(if forced && !release { "ForceTimeout" } else { "any" }, id, process);
            return;
        }
        let found: Vec<String> = held.into_iter().map(|(service, _, why)| format!("{service}: {why}")).collect();
        let found = format!("{}{}", found.join("; "), if owed { "" } else { "; not among the debts" });
        self.fail("I2", format!("{handle}: every registry was read to have let go before the finalizer goes"), found);
    }

    /// What of a pod the registries still hold, or were not read to have let go.
    fn still_held(&self, process: ProcessId, id: PodId) -> Vec<(ServiceId, Option<SocketAddr>, String)> {
        let pod = &self.pods[id];
        let mut found = Vec::new();
        for (service_id, address) in &pod.registered {
            if let Some(why) = self.why_held(process, id, service_id, *address) {
                found.push((service_id.clone(), Some(*address), why));
            }
        }
        for claim in pod.claims.iter().filter(|claim| claim.observed) {
            let Some(service) = self.registries.get(&claim.service.registry).and_then(|one| one.services.get(&claim.service.service))
            else {
                continue;
            };
            let stands =
                service.targets.values().any(|held| held.address == claim.address && !self.counts_as_gone(pod, &claim.service, held.state));
            if stands && !self.has_newer_owner(id, claim.address.ip()) && !self.was_read_as_gone(id, claim) {
                found.push((claim.service.clone(), None, format!("{} still stands there", claim.address)));
            }
        }
        found
    }

    fn why_held(&self, process: ProcessId, id: PodId, service_id: &ServiceId, address: SocketAddr) -> Option<String> {
        let pod = &self.pods[id];
        let registry = self.registries.get(&service_id.registry)?;
        let service = registry.services.get(&service_id.service)?;
        let track = registry.track(&service_id.service, &pod.uid, address);
        let told = |track: &Track| track.absent || (track.deregistered && self.accepts(service_id));
        if track.is_some_and(told) || self.is_inherited(process, id, service_id, address) {
            return None;
        }
        let key = registry.behaviour.key(address, Some(&pod.uid));
        let still = |held: &Held| !(self.counts_as_gone(pod, service_id, held.state) || self.is_hidden(registry, held));
        if let Some(held) = service.targets.get(&key).filter(|held| held.owner.as_ref() == Some(&pod.uid) && still(held)) {
            return Some(format!("{} is still held as {}", held.address, held.state.as_str()));
        }
        let newer = |held: &Held| {
            let owner = held.owner.as_ref().and_then(|uid| self.pod_of_uid(uid));
            owner.is_some_and(|owner| owner > id && self.pods[owner].is_live())
        };
        if registry.behaviour.keys == TargetKeys::Address && service.targets.get(&key).is_some_and(newer) {
            return None;
        }
        let mine = |one: &Seen| one.owner.as_ref() == Some(&pod.uid) && one.address == address;
        let shown = service.received.iter().rev().any(|listing| {
            track.is_none_or(|track| listing.sent > track.answered.max(track.sent) && listing.sent_at >= track.answered_at)
                && listing.snapshot.iter().filter(|one| mine(one)).all(|one| self.counts_as_gone(pod, service_id, one.state))
        });
        (!shown).then(|| format!("no answer after the last change showed that {address} is gone"))
    }

    /// Whether a live pod that has the address claims the same target, so that whatever stands there is worked off from its claim.
    /// It may have ended, or moved, without the process having been shown that; its claim stays its own to work off.
    fn is_inherited(&self, process: ProcessId, id: PodId, service: &ServiceId, address: SocketAddr) -> bool {
        let by_address = self.registries.get(&service.registry).is_some_and(|one| one.behaviour.keys == TargetKeys::Address);
        let claims = |pod: &Pod| pod.claims.iter().any(|claim| claim.service == *service && claim.address == address && !claim.observed);
        let shown = &self.processes[process].shown;
        let is_live = |of: PodId, pod: &Pod| pod.is_live() || (self.seeded && shown.get(&of).is_some_and(Shown::is_live));
        let seen_there = |of: PodId| self.seeded && shown.get(&of).is_some_and(|shown| shown.view.addresses.contains(&address.ip()));
        let is_there = |of: PodId, pod: &Pod| pod.ips.contains(&address.ip()) || seen_there(of);
        let heir = |(of, pod): (PodId, &Pod)| of != id && is_there(of, pod) && claims(pod) && is_live(of, pod);
        by_address && self.pods.iter().enumerate().any(heir)
    }

    /// Whether the last listing that was asked for after the pod's end, if any, did not show its observed target any more: the other
    /// controller may have put it there since, and nobody could know.
    fn was_read_as_gone(&self, id: PodId, claim: &Claim) -> bool {
        let pod = &self.pods[id];
        let Some(end) = [pod.deleted_first, pod.ended].into_iter().flatten().map(|one| one.at).min().filter(|_| self.seeded) else {
            return false;
        };
        let registry = self.registries.get(&claim.service.registry);
        let Some(service) = registry.and_then(|one| one.services.get(&claim.service.service)) else { return false };
        let last = service.received.iter().filter(|listing| listing.sent_at >= end).max_by_key(|listing| listing.sent);
        let gone = |one: &Seen| self.counts_as_gone(pod, &claim.service, one.state);
        last.is_some_and(|listing| at_address(&listing.snapshot, claim.address).iter().all(gone))
    }

    /// Whether nobody could know that it is held: a change was done once more, or listings show the past.
    fn is_hidden(&self, registry: &SimRegistryState, held: &Held) -> bool {
        self.seeded && (held.repeated || registry.keeps_history)
    }

    /// Whether a successful send is an acknowledgement in that service.
    fn accepts(&self, service: &ServiceId) -> bool {
        self.in_force().any(|one| one.bindings.iter().any(|binding| binding.service == *service && binding.ack == Ack::Accepted))
    }

    fn counts_as_gone(&self, pod: &Pod, service: &ServiceId, state: TargetState) -> bool {
        let when = self.registries.get(&service.registry).map(|one| one.behaviour.gone_when());
        when == Some(GoneWhen::Draining) && state == TargetState::Draining && self.containers_gone(pod)
    }

    fn has_newer_owner(&self, id: PodId, ip: IpAddr) -> bool {
        self.pods[id + 1..].iter().any(|pod| pod.is_live() && pod.ips.contains(&ip))
    }

    /// A6, second part: no claim is dropped while its target is held.
    fn judge_dropped(&mut self, process: ProcessId, id: PodId, condition: &ConditionPatch) {
        let now = Condition { status: condition.status, reason: String::new(), message: condition.message.clone(), since: None };
        let kept = claims_of(Some(&now));
        let pod = &self.pods[id];
        let mut found = Vec::new();
        for claim in pod.claims.iter().filter(|claim| !kept.contains(claim)) {
            let Some(service) = self.registries.get(&claim.service.registry).and_then(|one| one.services.get(&claim.service.service))
            else {
                continue;
            };
            let here =
                |held: &&super::registry::Held| held.address == claim.address && !self.counts_as_gone(pod, &claim.service, held.state);
            let held = if claim.observed {
                service.targets.values().filter(here).any(|held| held.state != TargetState::Draining)
                    && !self.has_newer_owner(id, claim.address.ip())
                    && !self.was_read_as_gone(id, claim)
            } else {
                let registry = &self.registries[&claim.service.registry];
                let holds = |held: &Held| here(&held) && !self.is_hidden(registry, held);
                service.held_by(&pod.uid).any(holds)
            };
            let held = held
                && !self.is_inherited(process, id, &claim.service, claim.address)
                && !self.owes(&claim.service, claim.address, &pod.uid);
            if held {
                found.push(claim.to_string());
            }
        }
        if !found.is_empty() {
            let handle = pod.handle.clone();
            self.fail("A6", format!("{handle}: no claim is dropped while its target is held"), found.join(", "));
        }
    }

    /// A1 to A4 and A6 to A8, as far as they speak of a change; called just before it is done.
    pub(super) fn judge_change(&mut self, process: ProcessId, id: &ServiceId, change: &Change) {
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

    /// Which case of the table of pods a write belongs to.
    fn count_write(&mut self, patch: &PodPatch) {
        if patch.finalizer == Some(Presence::Absent) {
            self.record.row("containers gone: finalizer removed");
        }
        for condition in patch.conditions.iter().filter(|one| one.type_ == names::GATE) {
            match condition.reason {
                "WaitingForContainers" => self.record.row("no address, or containers never ready"),
                "Registered" => self.record.row("serving: acknowledged"),
                "NoBinding" => self.record.row("bound no longer"),
                "PortNotFound" | "NoMatchingAddress" => self.record.row("no such port or address"),
                _ => {}
            }
        }
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
        if !pod.is_live() || self.is_node_lost(pod) || !self.in_force().all(|one| wants(one, pod, id, held.address)) {
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

    /// Time since a moment, by the clock that went further; where the wall clock went back, from there.
    pub(super) fn since(&self, moment: Moment) -> Duration {
        let back = self.jumps.iter().filter(|jump| jump.at >= moment.at).map(|jump| jump.wall).min();
        let wall = self.exec.wall().duration_since(back.map_or(moment.wall, |back| back.min(moment.wall)));
        self.now.saturating_sub(moment.at).max(wall.try_into().unwrap_or_default())
    }

    /// What must hold when an instant ends: exceptions are counted.
    pub(crate) fn judge_instant(&mut self) {
        let fresh = std::mem::take(&mut self.exceptions.fresh);
        for (reason, process) in fresh {
            if !self.processes[process].alive {
                continue;
            }
            let used = self.exceptions.used.iter().filter(|(one, _)| *one == reason || reason == "any").count();
            let counted = if reason == "any" {
                self.counter("lockstep_exceptions_total", None)
            } else {
                self.counter("lockstep_exceptions_total", Some(("reason", reason)))
            };
            #[expect(clippy::cast_precision_loss, reason = "a count of pods is small")]
            if counted < used as f64 {
                self.fail("I2", format!("the exception {reason} is counted by the end of the instant: {used} times"), counted.to_string());
            }
        }
    }

    /// A counter, summed over all processes of the run.
    pub(crate) fn counter(&self, name: &str, label: Option<(&str, &str)>) -> f64 {
        self.processes.iter().map(|process| crate::exposition::value(&process.metrics.encode(), name, label)).sum::<f64>() + 0.0
    }
}

impl Exceptions {
    fn use_one(&mut self, reason: &'static str, pod: PodId, process: ProcessId) {
        if self.used.insert((reason, pod)) {
            self.fresh.push((reason, process));
        }
    }
}

/// A pod, as far as bindings ask.
pub(crate) struct Looks<'a> {
    namespace: &'a str,
    labels: &'a Labels,
    ips: &'a [IpAddr],
    ports: Vec<&'a ContainerPort>,
}

impl Shown {
    /// As the process was last shown it.
    pub(crate) fn looks(&self) -> Looks<'_> {
        let view = &self.view;
        Looks { namespace: &view.key.namespace, labels: &view.labels, ips: &view.addresses, ports: view.ports.iter().collect() }
    }

    /// Whether it was live when the process was last shown it.
    pub(crate) fn is_live(&self) -> bool {
        self.view.deletion.is_none() && !matches!(self.view.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Its claims of a service when the process was last shown it.
    pub(crate) fn claims_in(&self, service: &ServiceId) -> bool {
        claims_of(self.view.claims.as_ref()).iter().any(|claim| claim.service == *service && !claim.observed)
    }
}

impl Pod {
    /// As it truly is.
    pub(crate) fn looks(&self) -> Looks<'_> {
        let ports = self.containers.iter().filter(|one| one.counts()).flat_map(|one| &one.ports).collect();
        Looks { namespace: &self.key.namespace, labels: &self.view.labels, ips: &self.ips, ports }
    }
}

impl<'a> Looks<'a> {
    /// The bindings of a configuration that select it.
    pub(crate) fn bindings<'c>(&self, configuration: &'c Configuration) -> impl Iterator<Item = &'c Binding> + use<'a, 'c> {
        let (namespace, labels) = (self.namespace, self.labels);
        configuration.bindings.iter().filter(move |binding| binding.selects(namespace, |key| labels.get(key)))
    }

    /// Where the target of a binding is on it.
    pub(crate) fn target(&self, binding: &Binding) -> Option<SocketAddr> {
        let ip = match binding.family {
            Family::Auto => self.ips.first(),
            Family::Ipv4 => self.ips.iter().find(|ip| ip.is_ipv4()),
            Family::Ipv6 => self.ips.iter().find(|ip| ip.is_ipv6()),
        };
        Some(SocketAddr::new(*ip?, self.port(binding)?))
    }

    fn wants(&self, configuration: &Configuration, service: &ServiceId, address: SocketAddr) -> bool {
        let here = |binding: &Binding| binding.service == *service && self.port(binding) == Some(address.port());
        self.ips.contains(&address.ip()) && self.bindings(configuration).any(here)
    }

    fn port(&self, binding: &Binding) -> Option<u16> {
        match &binding.port {
            Port::Number(number) => Some(*number),
            Port::Name(name) => self.ports.iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number),
        }
    }
}

/// Whether a configuration wants that target of a pod in that service.
pub(crate) fn wants(configuration: &Configuration, pod: &Pod, service: &ServiceId, address: SocketAddr) -> bool {
    pod.looks().wants(configuration, service, address)
}
