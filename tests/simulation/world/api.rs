//! The simulated API server as the product's `Cluster`.
//!
//! Requests take effect in the world at once when they are sent (in a noisy world the answer comes later), with the real server's codes.
//!
//! Invariant: a process that is dead or cut off changes nothing.
//! Invariant: every rule about a write is judged when it arrives, before it is done.
//! Absent on purpose: watches (`watch`) and what users and kubelets do (`pods`).

mod server;

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use lockstep::pod::PodView;
use lockstep::reconcile::Cluster;
use lockstep::reconcile::cluster::{
    ApiError, Event, LeaseRecord, NamespaceChange, NodeChange, Page, PodPage, PodPatch, Store, Stored, UnmanagedPage,
};
use lockstep::target::PodKey;

use super::pods::PodId;
use super::watch::{PodWatch, Reflection};
use super::{Shared, World};
use crate::executor::{ProcessId, Sleep};
use crate::sabotage::{self, Sabotage};
use server::{Stumble, slot};

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
                world.count_vain_request();
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
