//! Carrying out the steps of a plan, and what the answers to writes change.
//!
//! Invariant: at most one write of a pod is on its way; after one that failed the pod is read before the next.
//! Absent on purpose: which steps (`registration`), sending to registries (`calls`).

use std::collections::BTreeSet;

use super::Drivers;
use super::actor::Actor;
use super::clock::Clock;
use super::cluster::{ApiError, Cluster, ConditionPatch, PodPatch, Presence};
use super::input::Input;
use super::look::Asked;
use super::pods::Busy;
use super::service::Key;
use crate::metrics::pods::Ends;
use crate::metrics::reconcile::{OutcomeLabel, ReasonLabel};
use crate::names;
use crate::pod::PodView;
use crate::registration::claim;
use crate::registration::plan::{ConditionChange, Patch, Plan, Step, Urgency};
use crate::registration::{Reason, life};
use crate::target::{PodUid, ServiceId};
use crate::traces::{Part, Span, Way};

/// Writes to pods that are on their way at a time: enough for a storm, not enough to hurt an API server.
const WRITES: usize = 64;
/// Not found: the pod is gone.
const NOT_FOUND: u16 = 404;
/// The patch names another version than the present one.
const CONFLICT: u16 = 409;
/// The patch names another UID, or puts a finalizer on a pod that is being deleted.
const UNPROCESSABLE: u16 = 422;

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// Starts the steps of a plan.
    pub(super) fn execute(&mut self, uid: &PodUid, plan: Plan, asked: &mut BTreeSet<Asked>) {
        self.note_reason(uid, plan.reason);
        self.note_wake(uid, plan.wake);
        if let Some(term) = &mut self.term {
            if plan.held {
                term.held.insert(uid.clone());
            } else {
                term.held.remove(uid);
            }
        }
        let mut waits = Vec::new();
        for step in plan.steps {
            match step {
                Step::Patch(patch) => self.write(uid, patch),
                Step::Record(claims) => self.record_debts(uid, &claims),
                Step::Change { service, address, operation } => {
                    let weight = self.weight(&service);
                    let now = self.clock.now();
                    if let Some(known) = self.service_mut(&service) {
                        known.enqueue(&Key { address, uid: uid.clone() }, operation, weight, now);
                        self.touched.insert(service);
                    }
                }
                Step::Withdraw { service, address } => {
                    if let Some(known) = self.service_mut(&service) {
                        known.withdraw(&Key { address, uid: uid.clone() });
                    }
                }
                Step::Ask { service, address } => {
                    asked.insert(Asked { service, key: Key { address, uid: uid.clone() } });
                }
                Step::Read { service, urgency } => waits.push((service, urgency)),
                Step::Tell(notice) => {
                    if let Some(entry) = self.pods.get_mut(uid) {
                        entry.memory.told = entry.memory.told.with(notice.reason);
                    }
                    self.notice(uid, notice);
                }
            }
        }
        self.wait_for(uid, waits);
    }

    /// The answer to a write.
    pub(super) fn patched(&mut self, term: u64, uid: &PodUid, ends: Ends, answer: Option<Result<PodView, ApiError>>) {
        let (now, jitter) = (self.clock.now(), self.clock.jitter());
        let Some(current) = self.term.as_mut().filter(|current| current.number == term) else {
            if let Some(Ok(pod)) = answer
                && self.pods.get(uid).is_some()
            {
                self.bring(pod);
            }
            return;
        };
        current.writes = current.writes.saturating_sub(1);
        let label = OutcomeLabel { outcome: outcome(answer.as_ref()) };
        self.metrics.reconcile.pod_writes.get_or_create(&label).inc();
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.busy == Busy::Writing {
            entry.busy = Busy::No;
        }
        let tell = entry.tell.take();
        match answer {
            Some(Ok(pod)) => {
                entry.backoff.succeed();
                entry.conflicted = false;
                entry.dropping.clear();
                entry.unwatched = entry.unwatched.filter(|_| !pod.is_labelled());
                self.metrics.pods.written(ends, self.clock.wall());
                self.trace_ends(uid, ends);
                self.bring(pod);
                if let Some(notice) = tell {
                    self.notice(uid, notice);
                }
            }
            Some(Err(error)) => {
                let key = entry.view.key.clone();
                tracing::debug!(namespace = %key.namespace, pod = %key.name, error = %error, "a pod cannot be written");
                let conflict = error.code() == Some(CONFLICT);
                entry.doubtful = true;
                if !std::mem::replace(&mut entry.conflicted, conflict) && conflict {
                    // It was changed meanwhile: look at it as it is now, at once, but not again and again.
                    self.fetch(uid);
                    return;
                }
                entry.backoff.fail(now, jitter);
                self.retries.insert((entry.backoff.until(), uid.clone()));
                if matches!(error.code(), Some(NOT_FOUND | UNPROCESSABLE)) {
                    self.fetch(uid);
                }
            }
            None => {
                entry.dropping.clear();
                // The tenure had run out. Where the Lease is renewed after all the term goes on, and nothing else would bring the pod back.
                entry.backoff.fail(now, jitter);
                self.retries.insert((entry.backoff.until(), uid.clone()));
            }
        }
    }

    /// Has the pods looked at that wait for room to write, as many as there is room for. A pod that turns out to need no write
    /// takes no room: so this is asked again until there is no room, or nobody waits.
    pub(super) fn call_up_writers(&mut self) {
        let Some(term) = &mut self.term else { return };
        let mut room = WRITES.saturating_sub(term.writes);
        while room > 0
            && let Some(uid) = term.write_queue.pop_front()
        {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.queued = false;
                self.dirty.insert(uid);
                room -= 1;
            }
        }
    }

    /// A pod is gone: what it still has in registries is owed.
    pub(super) fn vanished(&mut self, uid: &PodUid) {
        let owed = self.owed(uid);
        let now = self.clock.now();
        let Some((entry, neighbours)) = self.pods.remove(uid, now) else { return };
        self.dirty.extend(neighbours);
        self.dirty.remove(uid);
        if let Some(at) = entry.wake {
            self.wakes.remove(&(at, uid.clone()));
        }
        let Some(term) = &mut self.term else {
            self.pods.mourn(uid, &entry, now);
            return;
        };
        term.held.remove(uid);
        for (service, address) in &entry.booked {
            let Some(known) = term.services.get_mut(service) else { continue };
            let key = Key { address: *address, uid: uid.clone() };
            known.waiting.remove(uid);
            known.budget.forget(&key);
            if owed.iter().any(|claim| claim.service == *service && claim.address == *address) {
                known.withdraw(&key);
            } else {
                known.close_book(&key);
            }
        }
        if !owed.is_empty() {
            self.add_debts(uid, &entry.view.key, &owed);
        }
    }

    /// The claims of a pod that are not known to be gone.
    fn owed(&self, uid: &PodUid) -> Vec<claim::Claim> {
        let Some(entry) = self.pods.get(uid).filter(|_| self.term.is_some()) else { return Vec::new() };
        let life = life::Life { stage: life::Stage::Gone, forced: false };
        let Some(observation) = self.observation(uid, life) else { return Vec::new() };
        let gone = |claim: &claim::Claim| {
            let target = observation.targets.iter().find(|target| target.address == claim.address && target.service == claim.service);
            target.is_some_and(|target| target.let_go(true) && entry.ended.is_some())
        };
        entry.claims.iter().filter(|claim| !gone(claim)).cloned().collect()
    }

    fn write(&mut self, uid: &PodUid, patch: Patch) {
        let now = self.clock.now();
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.busy != Busy::No {
            return;
        }
        if now < entry.backoff.until() {
            self.retries.insert((entry.backoff.until(), uid.clone()));
            return;
        }
        if entry.doubtful {
            self.fetch(uid);
            return;
        }
        let Some(term) = &mut self.term else { return };
        if term.writes >= WRITES {
            if !std::mem::replace(&mut entry.queued, true) {
                term.write_queue.push_back(uid.clone());
            }
            return;
        }
        term.writes += 1;
        entry.busy = Busy::Writing;
        entry.tell.clone_from(&patch.tell);
        if let Some(claims) = &patch.claims {
            let written = if claims.status { claim::parse(&claims.message) } else { Vec::new() };
            let without = |these: &[claim::Claim], those: &[claim::Claim]| {
                let left = these.iter().filter(|one| !those.iter().any(|other| other.same_target(one)));
                left.map(|claim| (claim.service.clone(), claim.address)).collect()
            };
            entry.dropping = without(&entry.claims, &written);
            entry.writing = without(&written, &entry.claims);
        }
        if patch.gate.as_ref().is_some_and(|gate| gate.status) {
            entry.memory.told = entry.memory.told.without(Reason::GateTimeout).without(Reason::RegistryFailing);
        }
        if let Some(exception) = patch.exception.filter(|exception| !entry.counted.contains(*exception)) {
            entry.counted = entry.counted.with(exception);
            self.metrics.reconcile.exceptions.get_or_create(&ReasonLabel { reason: exception.as_str() }).inc();
        }
        tracing::trace!(elapsed_ms = now.0.as_millis(), pod = %entry.view.key, uid = %uid, patch = ?patch, "a pod is written");
        let opened = patch.gate.as_ref().filter(|gate| gate.status).map(|gate| gate.reason);
        let ends = Ends::of(&entry.view, opened, entry.reason.filter(|_| patch.release), self.clock.wall());
        let (key, body, number) = (entry.view.key.clone(), body(&entry.view, patch), term.number);
        let (cluster, clock, tenure, uid) = (self.cluster.clone(), self.clock.clone(), self.tenure.clone(), uid.clone());
        self.post(async move {
            let answer = if tenure.holds(clock.now()) {
                Some(super::calls::api_limited(&clock, cluster.patch_pod(&key, &body)).await)
            } else {
                None
            };
            Input::Patched { term: number, uid, ends, answer }
        });
    }

    /// The services that a pod waits for, from now on.
    fn wait_for(&mut self, uid: &PodUid, waits: Vec<(ServiceId, Urgency)>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let before = std::mem::replace(&mut entry.waits, waits.iter().map(|(service, _)| service.clone()).collect());
        for service in before {
            if !waits.iter().any(|(waited, _)| *waited == service)
                && let Some(known) = self.service_mut(&service)
            {
                known.waiting.remove(uid);
                self.touched.insert(service);
            }
        }
        for (service, urgency) in waits {
            let Some(known) = self.service_mut(&service) else { continue };
            let news = known.waiting.insert(uid.clone());
            if urgency == Urgency::Now {
                known.need_read();
            }
            if news || urgency == Urgency::Now {
                self.touched.insert(service);
            }
        }
    }

    fn note_reason(&mut self, uid: &PodUid, reason: Reason) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.reason == Some(reason) {
            return;
        }
        let before = entry.reason.replace(reason);
        if self.options.traces.is_on() {
            let now = self.clock.wall();
            let entered = entry.entered.replace((now, Way::of(&entry.view)));
            // Whoever is registered waits for nothing.
            if let (Some(state), Some((since, way))) = (before.filter(|state| *state != Reason::Registered), entered) {
                self.options.traces.tell(|| Span::of(uid, &entry.view.key, way, Part::State(state), since, now));
            }
        }
        let key = &entry.view.key;
        tracing::info!(namespace = %key.namespace, pod = %key.name, uid = %uid, reason = reason.as_str(), "a pod has another state");
        self.metrics.reconcile.transitions.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    fn trace_ends(&self, uid: &PodUid, ends: Ends) {
        let Some(entry) = self.pods.get(uid).filter(|_| self.options.traces.is_on()) else { return };
        for (way, ended) in [(Way::In, ends.registration), (Way::Out, ends.deregistration)] {
            if let Some((since, reason)) = ended {
                self.options.traces.tell(|| Span::of(uid, &entry.view.key, way, Part::Whole(reason), since, self.clock.wall()));
            }
        }
    }

    fn note_wake(&mut self, uid: &PodUid, wake: Option<jiff::Timestamp>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let before = std::mem::replace(&mut entry.wake, wake);
        if before == wake {
            if let Some(at) = wake {
                self.wakes.insert((at, uid.clone()));
            }
            return;
        }
        if let Some(at) = before {
            self.wakes.remove(&(at, uid.clone()));
        }
        if let Some(at) = wake {
            self.wakes.insert((at, uid.clone()));
        }
    }

    fn weight(&self, service: &ServiceId) -> u16 {
        let bindings = self.settings.current.iter().flat_map(|current| &current.bindings);
        bindings.filter(|binding| binding.service == *service).map(|binding| binding.weight).next().unwrap_or(100)
    }
}

/// The patch as the API server gets it.
fn body(pod: &PodView, patch: Patch) -> PodPatch {
    let mut conditions = Vec::new();
    conditions.extend(patch.gate.map(|change| condition(names::GATE, change)));
    conditions.extend(patch.claims.map(|change| condition(names::CLAIMS, change)));
    let finalizer = match (patch.release, patch.adopt) {
        (true, _) => Some(Presence::Absent),
        (false, true) => Some(Presence::Present),
        (false, false) => None,
    };
    PodPatch {
        uid: pod.uid.clone(),
        resource_version: patch.as_seen.then(|| pod.resource_version.clone()),
        conditions,
        finalizer,
        label: patch.adopt,
        annotations: Vec::new(),
    }
}

fn condition(type_: &'static str, change: ConditionChange) -> ConditionPatch {
    ConditionPatch { type_, status: change.status, reason: change.reason.as_str(), message: change.message, transition: change.transition }
}

fn outcome(answer: Option<&Result<PodView, ApiError>>) -> &'static str {
    match answer {
        None => "unsent",
        Some(Ok(_)) => "ok",
        Some(Err(ApiError::Unreachable(_))) => "unreachable",
        Some(Err(ApiError::Unreadable(_))) => "unreadable",
        Some(Err(ApiError::Status { .. })) => "refused",
    }
}
