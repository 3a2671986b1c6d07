//! The simulated API server as the product's `Cluster`.
//!
//! Requests take effect in the world at once when they are sent (in a noisy world the answer comes later), with the real server's codes.
//!
//! Invariant: a process that is dead or cut off changes nothing.
//! Invariant: every rule about a write is judged when it arrives, before it is done.
//! Absent on purpose: watches (`watch`) and what users and kubelets do (`pods`).

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use lockstep::names;
use lockstep::pod::{Condition, PodView};
use lockstep::reconcile::Cluster;
use lockstep::reconcile::cluster::{
    ApiError, Event, LeaseRecord, NamespaceChange, NodeChange, Page, PodPage, PodPatch, Presence, Store, Stored, Subject, UnmanagedPage,
    UnmanagedPod,
};
use lockstep::target::PodKey;

use super::pods::{Pod, PodId};
use super::record::{EventObject, Write, WriteKind, meant};
use super::watch::{PodWatch, Reflection};
use super::{Shared, Trigger, World};
use crate::executor::{ProcessId, Sleep};
use crate::sabotage::{self, Sabotage};

/// Versions of pods.
type Views = Vec<(PodId, Arc<PodView>)>;

/// Snapshots behind the tokens of lists that are under way.
#[derive(Default)]
pub(crate) struct Pages {
    next: u64,
    open: BTreeMap<u64, (u64, Arc<Views>)>,
}

/// The API server, as one process reaches it.
#[derive(Clone)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    process: ProcessId,
    sabotage: Option<Sabotage>,
    /// Whether this process ever held the Lease; only a deliberate fault asks.
    led: Arc<AtomicBool>,
}

/// What becomes of a request in the world.
enum Fate<T> {
    Answered(Result<T, ApiError>),
    /// The process died on the way.
    Dead,
}

impl Api {
    /// The API server, as `process` reaches it.
    pub(crate) fn new(shared: Arc<Shared>, process: ProcessId) -> Self {
        let sabotage = shared.world().sabotage;
        Self { shared, process, sabotage, led: Arc::default() }
    }

    /// A pod as the product is shown it.
    fn shown(&self, view: &PodView) -> PodView {
        self.shared.world().spoiled(view)
    }

    /// The patch as it is sent; with a deliberate fault it may not be, or be another.
    fn sent(&self, key: &PodKey, patch: &PodPatch) -> Option<PodPatch> {
        let Some(sabotage) = self.sabotage else { return Some(patch.clone()) };
        let mut sent = sabotage.patch(patch, self.shared.exec.wall())?;
        if sabotage == Sabotage::IgnoresUid {
            let world = self.shared.world();
            sent.resource_version = None;
            sent.uid = world.pod_of_key(key).map_or(sent.uid, |id| world.pods[id].uid.clone());
        }
        Some(sent)
    }

    /// The pod as if a patch had been done that was not.
    fn pretend(&self, patch: &PodPatch) -> Result<PodView, ApiError> {
        let world = self.shared.world();
        let pod = world.pod_of_uid(&patch.uid).map(|id| world.pods[id].view.clone());
        pod.map(|view| sabotage::as_if(&view, patch)).ok_or(ApiError::Status { code: 404, text: "not found".to_owned() })
    }

    /// Carries one request to the world and its answer back.
    async fn call<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut World, ProcessId) -> Fate<T>,
        seen: impl FnOnce(&mut World, ProcessId, &T),
    ) -> Result<T, ApiError> {
        let fate = {
            let mut world = self.shared.world();
            world.count_request();
            if !world.processes[self.process].alive {
                Fate::Dead
            } else if world.is_cut(self.process) {
                world.record.fault("API server cut off");
                Fate::Answered(Err(ApiError::Unreachable("no route to host".to_owned())))
            } else {
                match world.stumble(name) {
                    Stumble::No => act(&mut world, self.process),
                    Stumble::Refused(error) => Fate::Answered(Err(error)),
                    Stumble::AnswerLost(error) => match act(&mut world, self.process) {
                        Fate::Answered(_) => Fate::Answered(Err(error)),
                        Fate::Dead => Fate::Dead,
                    },
                }
            }
        };
        let Fate::Answered(answer) = fate else { return pending().await };
        self.travel().await;
        Yield::default().await;
        if let Ok(value) = &answer {
            seen(&mut self.shared.world(), self.process, value);
        }
        answer
    }

    /// The way of an answer, where it takes time.
    async fn travel(&self) {
        let until = {
            let mut world = self.shared.world();
            let now = world.now;
            match world.noise.as_mut().filter(|noise| noise.latency > 0 && noise.until > now) {
                Some(noise) if noise.steady => now + Duration::from_millis(noise.latency),
                Some(noise) => now + Duration::from_millis(noise.random.below(noise.latency + 1)),
                None => return,
            }
        };
        Sleep::until(&self.shared.exec, until).await;
    }
}

impl Cluster for Api {
    type PodWatch = PodWatch;
    type Reflection<T: Send + 'static> = BoxStream<'static, T>;

    async fn list_pods(&self, page: Page) -> Result<PodPage, ApiError> {
        let stale = self.sabotage == Some(Sabotage::NeverRelists);
        let list = |world: &mut World, process| {
            Fate::Answered(world.list_pods(&page).map(|(page, mut views)| {
                if stale {
                    views.iter_mut().for_each(|(id, view)| world.age(process, *id, view));
                }
                (page, views)
            }))
        };
        let listed = self
            .call("list pods", list, |world, process, listed| {
                for (id, view) in &listed.1 {
                    world.show(process, *id, view);
                }
            })
            .await?;
        let mut page = listed.0;
        if self.sabotage == Some(Sabotage::NeverRelists) {
            page.pods = listed.1.iter().map(|(_, view)| (**view).clone()).collect();
        }
        if self.sabotage.is_some() {
            page.pods.iter_mut().for_each(|view| *view = self.shown(view));
        }
        Ok(page)
    }

    async fn watch_pods(&self, resource_version: &str) -> Result<Self::PodWatch, ApiError> {
        let version = resource_version.parse().unwrap_or(0);
        let opened = self
            .call(
                "watch pods",
                |world, process| {
                    Fate::Answered(world.open_watch(process, version).ok_or(ApiError::Status { code: 410, text: "too old".to_owned() }))
                },
                |_, _, _| {},
            )
            .await?;
        Ok(PodWatch::new(self.shared.clone(), opened, self.process))
    }

    async fn pod(&self, key: &PodKey) -> Result<Option<PodView>, ApiError> {
        let read = |world: &mut World, _| Fate::Answered(Ok(world.pod_of_key(key).map(|id| (id, world.pods[id].view.clone()))));
        let found = self
            .call("get pod", read, |world, process, found| {
                if let Some((id, view)) = found {
                    world.show(process, *id, view);
                }
            })
            .await?;
        Ok(found.map(|(_, view)| self.shown(&view)))
    }

    async fn list_unmanaged(&self, namespace: &str, page: Page) -> Result<UnmanagedPage, ApiError> {
        if self.sabotage == Some(Sabotage::NeverAdopts) {
            return Ok(UnmanagedPage::default());
        }
        self.call("list unmanaged pods", |world, _| Fate::Answered(Ok(world.list_unmanaged(namespace, &page))), |_, _, _| {}).await
    }

    async fn patch_pod(&self, key: &PodKey, patch: &PodPatch) -> Result<PodView, ApiError> {
        let Some(sent) = self.sent(key, patch) else { return self.pretend(patch) };
        let mut times = if self.sabotage == Some(Sabotage::RepeatsItself) { 2 } else { 1 };
        loop {
            let send = |world: &mut World, process| world.patch(process, key, &sent);
            let seen = |world: &mut World, process, done: &(PodId, Arc<PodView>)| world.show(process, done.0, &done.1);
            let done = self.call("patch pod", send, seen).await;
            times -= 1;
            return match done {
                Ok(_) if times > 0 => continue,
                Ok((_, view)) => Ok(self.shown(&view)),
                Err(error) if self.sabotage == Some(Sabotage::SwallowsConflict) && error.code() == Some(409) => self.pretend(patch),
                Err(error) => Err(error),
            };
        }
    }

    async fn event(&self, event: &Event) -> Result<(), ApiError> {
        let write = |world: &mut World, _| {
            world.write_event(event);
            Fate::Answered(Ok(()))
        };
        self.call("write event", write, |_, _, ()| {}).await
    }

    fn nodes(&self) -> Self::Reflection<NodeChange> {
        Reflection::<NodeChange>::new(self.shared.clone(), self.process).boxed()
    }

    fn namespaces(&self) -> Self::Reflection<NamespaceChange> {
        Reflection::<NamespaceChange>::new(self.shared.clone(), self.process).boxed()
    }

    fn configuration(&self) -> Self::Reflection<Option<Arc<str>>> {
        let sabotage = self.sabotage;
        let shown = move |text: Arc<str>| sabotage.map_or_else(|| text.clone(), |sabotage| Arc::from(sabotage.configuration(&text)));
        Reflection::<Option<Arc<str>>>::new(self.shared.clone(), self.process).map(move |text| text.map(&shown)).boxed()
    }

    async fn read_store(&self, store: Store) -> Result<Stored, ApiError> {
        self.call("read store", |world, _| Fate::Answered(Ok(world.stores[slot(store)].clone())), |_, _, _| {}).await
    }

    async fn write_store(&self, store: Store, value: &Stored) -> Result<Stored, ApiError> {
        let lost = self.sabotage == Some(Sabotage::LosesDebts) && store == Store::Debts;
        let write = |world: &mut World, _| {
            Fate::Answered(if lost {
                Ok(Stored { text: value.text.clone(), ..world.stores[slot(store)].clone() })
            } else {
                world.write_store(store, value)
            })
        };
        self.call("write store", write, |_, _, _| {}).await
    }

    async fn read_lease(&self) -> Result<LeaseRecord, ApiError> {
        let read = self.call("read lease", |world, _| Fate::Answered(Ok(world.lease.clone())), |_, _, _| {}).await;
        self.lease(read)
    }

    async fn write_lease(&self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        let written = self.call("write lease", |world, _| Fate::Answered(world.write_lease(lease)), |_, _, _| {}).await;
        let mine = self.shared.world().processes[self.process].name.clone();
        if written.as_ref().is_ok_and(|lease| lease.holder == *mine) {
            self.led.store(true, Ordering::Relaxed);
        }
        self.lease(written)
    }
}

impl Api {
    /// The Lease as the product is shown it: with a deliberate fault, a leader leads for ever.
    fn lease(&self, answer: Result<LeaseRecord, ApiError>) -> Result<LeaseRecord, ApiError> {
        if self.sabotage != Some(Sabotage::WritesWithoutLease) || !self.led.load(Ordering::Relaxed) {
            return answer;
        }
        let world = self.shared.world();
        let holder = world.processes[self.process].name.to_string();
        Ok(LeaseRecord { holder, renewed: Some(self.shared.exec.wall()), duration_seconds: 12, ..world.lease.clone() })
    }
}

/// How a noisy world spoils a request.
enum Stumble {
    No,
    Refused(ApiError),
    AnswerLost(ApiError),
}

impl World {
    fn stumble(&mut self, name: &'static str) -> Stumble {
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

    fn list_pods(&mut self, page: &Page) -> Result<(PodPage, Views), ApiError> {
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

    fn list_unmanaged(&self, namespace: &str, page: &Page) -> UnmanagedPage {
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

    fn patch(&mut self, process: ProcessId, key: &PodKey, patch: &PodPatch) -> Fate<(PodId, Arc<PodView>)> {
        let kind = kind_of(patch);
        let meant_for = self.pod_of_uid(&patch.uid);
        let sets_off = |world: &World, trap: &super::Trap| {
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

    fn write_event(&mut self, event: &Event) {
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

    fn write_store(&mut self, store: Store, value: &Stored) -> Result<Stored, ApiError> {
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

    fn write_lease(&mut self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
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
    pod.claims = super::invariants::claims_of(pod.claims_condition.as_ref());
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

fn slot(store: Store) -> usize {
    match store {
        Store::Debts => 0,
        Store::LastGood => 1,
    }
}

/// Lets everything else that is runnable go first, as any answer from afar does.
#[derive(Default)]
pub(super) struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}
