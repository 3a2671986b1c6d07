//! The invariants that hold in every world: I1, I2 and A1 to A8, judged when a request arrives.
//!
//! Each rule stands as one function, in the words of `scenarios/README.md`.
//!
//! Invariant: judging changes nothing but the list of failures and the exceptions that must have been counted.
//! Absent on purpose: expectations of one story (`judge`), the drain budget (`budget`).

mod changes;
mod letting_go;
mod looks;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep::config::{Ack, Binding, Configuration, Mode, OnGateTimeout};
use lockstep::names;
use lockstep::pod::{Condition, PodView};
use lockstep::reconcile::cluster::{ConditionPatch, PodPatch, Presence};
use lockstep::target::{PodUid, ServiceId, TargetState};

use super::pods::PodId;
use super::record::WriteKind;
use super::registry::{Seen, at_address};
use super::{Moment, World};
use crate::executor::ProcessId;
pub(crate) use looks::{Looks, wants};

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
