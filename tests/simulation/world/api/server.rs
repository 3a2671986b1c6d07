//! What the simulated API server does with a request.
//!
//! Invariant: every rule about a write is judged when it arrives, before it is done.
//! Absent on purpose: how a process reaches it (`api`).

use std::sync::Arc;

use lockstep::names;
use lockstep::pod::{Condition, PodView};
use lockstep::reconcile::cluster::{
    ApiError, Event, LeaseRecord, Page, PodPage, PodPatch, Presence, Store, Stored, Subject, UnmanagedPage, UnmanagedPod,
};
use lockstep::target::PodKey;

use super::{Fate, Views};
use crate::executor::ProcessId;
use crate::world::invariants::claims_of;
use crate::world::pods::{Pod, PodId};
use crate::world::record::{EventObject, Write, WriteKind, meant};
use crate::world::{Trap, Trigger, World};

/// How a noisy world spoils a request.
pub(super) enum Stumble {
    No,
    Refused(ApiError),
    AnswerLost(ApiError),
}

impl World {
    pub(super) fn stumble(&mut self, name: &'static str) -> Stumble {
        let now = self.now;
        let Some(noise) = self.noise.as_mut().filter(|noise| noise.failures > 0 && noise.until > now) else { return Stumble::No };
        if !noise.random.chance(noise.failures) {
            return Stumble::No;
        }
        let draw = noise.random.below(5);
        let status = |code, text: &str| ApiError::Status { code, text: text.to_owned() };
        let (fault, stumble) = match draw {
            0 => ("API server 500", Stumble::Refused(status(500, "internal error"))),
            1 => ("API server 429", Stumble::Refused(status(429, "too many requests"))),
            2 => ("API server unreachable", Stumble::Refused(ApiError::Unreachable("connection refused".to_owned()))),
            3 if name == "patch pod" => ("API server 409", Stumble::Refused(status(409, "conflict"))),
            _ => ("API server's answer lost", Stumble::AnswerLost(ApiError::Unreachable("connection reset".to_owned()))),
        };
        self.record.fault(fault);
        stumble
    }

    pub(super) fn list_pods(&mut self, page: &Page) -> Result<(PodPage, Views), ApiError> {
        let limit = if page.limit == 0 { usize::MAX } else { page.limit as usize };
        let (version, views, from) = match &page.token {
            None => {
                let managed = self.by_key.values().filter(|id| self.pods[**id].is_managed());
                (self.version, Arc::new(managed.map(|id| (*id, self.pods[*id].view.clone())).collect::<Vec<_>>()), 0)
            }
            Some(token) => {
                let expired = || ApiError::Status { code: 410, text: "the continue token is too old".to_owned() };
                let (number, from) = token.split_once('/').ok_or_else(expired)?;
                let number: u64 = number.parse().map_err(|_| expired())?;
                let (version, views) = self.pages.open.remove(&number).ok_or_else(expired)?;
                (version, views, from.parse().map_err(|_| expired())?)
            }
        };
        let to = from + limit.min(views.len().saturating_sub(from));
        let part = views[from..to].to_vec();
        let pods = part.iter().map(|(_, view)| (**view).clone()).collect();
        let mut next = None;
        if to < views.len() {
            self.pages.next += 1;
            next = Some(format!("{}/{to}", self.pages.next));
            self.pages.open.insert(self.pages.next, (version, views));
        }
        Ok((PodPage { pods, resource_version: version.to_string(), next }, part))
    }

    pub(super) fn list_unmanaged(&self, namespace: &str, page: &Page) -> UnmanagedPage {
        let limit = if page.limit == 0 { usize::MAX } else { page.limit as usize };
        let after = page.token.as_deref().unwrap_or("");
        let mut found = self.objects().filter(|pod| &*pod.key.namespace == namespace && !pod.is_managed() && &*pod.key.name > after);
        let pods: Vec<UnmanagedPod> = found
            .by_ref()
            .take(limit)
            .map(|pod| UnmanagedPod {
                key: pod.key.clone(),
                uid: pod.uid.clone(),
                labels: pod.labels.clone(),
                deleting: pod.deletion.is_some(),
                mirror: pod.spec.mirror,
                job: pod.spec.controller.as_ref().is_some_and(|owner| owner.kind == "Job"),
                released: pod.annotations.contains_key(names::RELEASED_ANNOTATION),
                finalizer: pod.finalizer,
            })
            .collect();
        let next = found.next().and(pods.last()).map(|last| last.key.name.to_string());
        UnmanagedPage { pods, next }
    }

    pub(super) fn patch(&mut self, process: ProcessId, key: &PodKey, patch: &PodPatch) -> Fate<(PodId, Arc<PodView>)> {
        let kind = kind_of(patch);
        let meant_for = self.pod_of_uid(&patch.uid);
        let sets_off = |world: &World, trap: &Trap| {
            let handle = meant_for.map_or("", |id| &world.pods[id].handle);
            trap.on == Trigger::Write(kind) && meant(trap.pods.as_deref(), handle)
        };
        if self.sprung(process, true, sets_off) {
            return Fate::Dead;
        }
        if let Some(pod) = meant_for {
            let at = self.now;
            self.tick();
            self.record.writes.push(Write { at, pod, kind });
            self.judge_write(process, pod, patch);
        }
        let answer = self.answer_patch(process, key, kind, patch, meant_for);
        if self.sprung(process, false, sets_off) {
            return Fate::Dead;
        }
        Fate::Answered(answer)
    }

    fn answer_patch(
        &mut self,
        process: ProcessId,
        key: &PodKey,
        kind: WriteKind,
        patch: &PodPatch,
        meant_for: Option<PodId>,
    ) -> Result<(PodId, Arc<PodView>), ApiError> {
        let refused = |code, text: &str| Err(ApiError::Status { code, text: text.to_owned() });
        if let Some((code, applied)) = self.ruled(kind, meant_for) {
            self.record.fault(if applied { "write done, answered with an error" } else { "write refused" });
            if applied && meant_for.is_some() && meant_for == self.pod_of_key(key) {
                self.apply(process, meant_for.unwrap_or_default(), kind, patch);
            }
            return refused(code, "as the story says");
        }
        let Some(id) = self.pod_of_key(key) else {
            return refused(404, "not found");
        };
        if self.pods[id].uid != patch.uid {
            return refused(422, "metadata.uid: field is immutable");
        }
        if patch.resource_version.as_ref().is_some_and(|version| *version != self.pods[id].version.to_string()) {
            return refused(409, "the object has been modified");
        }
        if patch.finalizer == Some(Presence::Present) && self.pods[id].deletion.is_some() && !self.pods[id].finalizer {
            return refused(422, "metadata.finalizers: no new finalizers can be added if the object is being deleted");
        }
        self.apply(process, id, kind, patch);
        Ok((id, self.pods[id].view.clone()))
    }

    /// The answer of the first rule that still applies.
    fn ruled(&mut self, kind: WriteKind, pod: Option<PodId>) -> Option<(u16, bool)> {
        let now = self.now;
        let handle = pod.map_or("", |id| &*self.pods[id].handle);
        let rule = self.api_rules.iter_mut().find(|rule| {
            rule.kind == kind
                && meant(rule.pods.as_deref(), handle)
                && rule.times.is_none_or(|times| times > 0)
                && rule.until.is_none_or(|until| now < until)
        })?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some((rule.code, rule.applied))
    }

    fn apply(&mut self, process: ProcessId, id: PodId, kind: WriteKind, patch: &PodPatch) {
        self.judge_effect(process, id, kind, patch);
        for condition in &patch.conditions {
            let count = self.record.reasons.entry(condition.reason.to_owned()).or_default();
            *count += 1;
        }
        self.change(id, |pod, _| write(pod, patch));
    }

    pub(super) fn write_event(&mut self, event: &Event) {
        let (about, pod) = match &event.about {
            Subject::Pod { uid, .. } => (format!("pod {uid}"), self.pod_of_uid(uid)),
            Subject::Owner { kind, name, uid, .. } => (format!("owner {kind} {name} {uid}"), None),
            Subject::Configuration => ("configuration".to_owned(), None),
            Subject::Debts => ("debts".to_owned(), None),
        };
        self.tick();
        let index = (about, event.warning, event.reason.to_owned(), event.discriminator.clone());
        if let Some(known) = self.record.event_index.get(&index) {
            self.record.events[*known].count += 1;
            return;
        }
        *self.record.reasons.entry(event.reason.to_owned()).or_default() += 1;
        self.record.event_index.insert(index, self.record.events.len());
        self.record.events.push(EventObject { at: self.now, pod, warning: event.warning, reason: event.reason.to_owned(), count: 1 });
    }

    pub(super) fn write_store(&mut self, store: Store, value: &Stored) -> Result<Stored, ApiError> {
        if self.stores[slot(store)].resource_version != value.resource_version {
            return Err(ApiError::Status { code: 409, text: "the object has been modified".to_owned() });
        }
        let version = self.next_version().to_string();
        self.tick();
        self.stores[slot(store)] = Stored { resource_version: version, text: value.text.clone() };
        if store == Store::Debts {
            self.read_debts(&value.text);
        }
        Ok(self.stores[slot(store)].clone())
    }

    pub(super) fn write_lease(&mut self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        if self.lease.resource_version != lease.resource_version {
            return Err(ApiError::Status { code: 409, text: "the object has been modified".to_owned() });
        }
        self.tick();
        if self.lease.holder != lease.holder {
            self.lease_since = self.moment();
        }
        self.lease = LeaseRecord { resource_version: self.next_version().to_string(), ..lease.clone() };
        Ok(self.lease.clone())
    }
}

impl World {
    /// The configuration that a leader kept last.
    pub(in crate::world) fn last_good(&self) -> &str {
        &self.stores[slot(Store::LastGood)].text
    }
}

/// What a patch changes, as the record counts it.
fn kind_of(patch: &PodPatch) -> WriteKind {
    match patch.finalizer {
        Some(Presence::Absent) => WriteKind::Finalizer,
        Some(Presence::Present) => WriteKind::Adopt,
        None if patch.label => WriteKind::Adopt,
        None => WriteKind::Status,
    }
}

/// Merges a patch into a pod as the API server does.
fn write(pod: &mut Pod, patch: &PodPatch) {
    for condition in &patch.conditions {
        let slot = match condition.type_ {
            names::GATE => &mut pod.gate,
            names::CLAIMS => &mut pod.claims_condition,
            _ => continue,
        };
        let since = condition.transition.or_else(|| slot.as_ref().and_then(|old| old.since));
        *slot =
            Some(Condition { status: condition.status, reason: condition.reason.to_owned(), message: condition.message.clone(), since });
    }
    pod.claims = claims_of(pod.claims_condition.as_ref());
    match patch.finalizer {
        Some(Presence::Present) => pod.finalizer = true,
        Some(Presence::Absent) => pod.finalizer = false,
        None => {}
    }
    if patch.label {
        pod.labels.insert(names::MANAGED_LABEL.to_owned(), names::MANAGED_VALUE.to_owned());
    }
    for (key, value) in &patch.annotations {
        pod.annotations.insert((*key).to_owned(), value.clone());
    }
}

/// Where a store stands.
pub(super) fn slot(store: Store) -> usize {
    match store {
        Store::Debts => 0,
        Store::LastGood => 1,
    }
}
