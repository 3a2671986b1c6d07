//! Watches of the simulated API server: of pods, with all that can go wrong, and of the rest, which always work.
//!
//! Each connection has its own queue, so that events can be late, lost or silent for one and not for another.
//!
//! Invariant: a connection delivers in order of versions; what a rule lost is in no connection and no replay, but in every list.
//! Absent on purpose: lists and writes (`api`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::Stream;
use lockstep::pod::PodView;
use lockstep::reconcile::cluster::{ApiError, NamespaceChange, NodeChange, NodeView, PodEvent};

use super::pods::PodId;
use super::record::means;
use super::{Agenda, Shared, World};
use crate::executor::ProcessId;
use crate::sabotage::Sabotage;

/// A working watch gets a bookmark this often.
const BOOKMARK: Duration = Duration::from_secs(60);

/// Events about these pods that arise before `until` are lost.
pub(crate) struct Drop {
    pub(crate) pattern: String,
    pub(crate) until: Duration,
}

/// Events that arise before `until` come this much later.
pub(crate) struct Delay {
    pub(crate) by: Duration,
    pub(crate) until: Duration,
}

/// One change of a pod object, as watches tell it.
pub(crate) struct LogEntry {
    version: u64,
    pod: PodId,
    view: Arc<PodView>,
    deleted: bool,
    lost: bool,
}

/// An open watch of pods.
pub(crate) struct Connection {
    pub(crate) process: ProcessId,
    life: u64,
    open: bool,
    silent: bool,
    queue: VecDeque<(Duration, Item)>,
    last: Duration,
    waker: Option<Waker>,
}

enum Item {
    Applied(PodId, Arc<PodView>),
    Deleted(PodId, Arc<PodView>),
    Bookmark(u64),
    Gone,
}

impl Connection {
    /// Nobody reads it any more.
    pub(crate) fn close(&mut self) {
        self.open = false;
        self.queue.clear();
        self.waker = None;
    }

    /// Delivers nothing more, and does not end.
    pub(crate) fn silence(&mut self) {
        self.silent = true;
        self.queue.clear();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl World {
    /// How late watch events come now, for rules that allow for it.
    pub(crate) fn watch_delay(&self) -> Duration {
        self.delays.iter().filter(|delay| self.now < delay.until + delay.by).map(|delay| delay.by).max().unwrap_or_default()
    }

    /// Tells every watch about the newest version of a pod.
    pub(super) fn publish(&mut self, id: PodId, was_managed: bool) {
        let pod = &self.pods[id];
        let managed = pod.is_managed();
        let deleted = match (was_managed, managed && pod.gone.is_none()) {
            (_, true) => false,
            (true, false) => true,
            (false, false) => return,
        };
        let lost = self.drops.iter().any(|rule| self.now < rule.until && means(&rule.pattern, &pod.handle));
        let entry = LogEntry { version: pod.version, pod: id, view: pod.view.clone(), deleted, lost };
        if lost {
            self.record.fault("watch event lost");
        } else {
            for index in 0..self.connections.len() {
                self.enqueue(index, &entry);
            }
        }
        self.log.push_back(entry);
        while self.log.len() > self.log_limit {
            self.log.pop_front();
        }
    }

    /// Opens a watch that goes on from `version`; `None` where that is too long ago.
    pub(super) fn open_watch(&mut self, process: ProcessId, version: u64) -> Option<usize> {
        if self.log_limit != usize::MAX
            && self.log.len() == self.log_limit
            && self.log.front().is_some_and(|first| first.version > version + 1)
        {
            self.record.fault("watch too old");
            return None;
        }
        let life = self.tick();
        let connection = Connection { process, life, open: true, silent: false, queue: VecDeque::new(), last: self.now, waker: None };
        let index = match self.connections.iter().position(|one| !one.open) {
            Some(index) => {
                self.connections[index] = connection;
                index
            }
            None => {
                self.connections.push(connection);
                self.connections.len() - 1
            }
        };
        let log = std::mem::take(&mut self.log);
        let from = log.partition_point(|entry| entry.version <= version);
        for entry in log.range(from..).filter(|entry| !entry.lost) {
            self.enqueue(index, entry);
        }
        self.log = log;
        self.later(self.now + BOOKMARK, Agenda::Bookmark(index, life));
        Some(index)
    }

    /// No open connection delivers anything more.
    pub(crate) fn silence_watches(&mut self) {
        for connection in self.connections.iter_mut().filter(|one| one.open) {
            connection.silence();
            self.record.fault("watch silent");
        }
    }

    /// Every open connection ends with 410.
    pub(crate) fn expire_watches(&mut self) {
        for connection in self.connections.iter_mut().filter(|one| one.open && !one.silent) {
            connection.queue.clear();
            connection.queue.push_back((self.now, Item::Gone));
            connection.wake();
            self.record.fault("watch expired");
        }
    }

    pub(super) fn wake_connection(&mut self, index: usize) {
        self.connections[index].wake();
    }

    pub(super) fn bookmark(&mut self, index: usize, life: u64) {
        if self.connections[index].life != life || !self.connections[index].open || self.connections[index].silent {
            return;
        }
        let version = self.version;
        let at = self.now + self.delay_now();
        self.put(index, at, Item::Bookmark(version));
        self.later(self.now + BOOKMARK, Agenda::Bookmark(index, life));
    }

    fn delay_now(&self) -> Duration {
        self.delays.iter().filter(|delay| self.now < delay.until).map(|delay| delay.by).max().unwrap_or_default()
    }

    fn enqueue(&mut self, index: usize, entry: &LogEntry) {
        if !self.connections[index].open || self.connections[index].silent {
            return;
        }
        let item = || {
            if entry.deleted { Item::Deleted(entry.pod, entry.view.clone()) } else { Item::Applied(entry.pod, entry.view.clone()) }
        };
        let mut at = self.now + self.delay_now();
        let mut twice = false;
        if let Some(noise) = self.noise.as_mut().filter(|noise| noise.until > self.now) {
            at += Duration::from_millis(noise.random.below(noise.late + 1));
            twice = noise.repeats > 0 && !entry.deleted && noise.random.chance(noise.repeats);
        }
        if at > self.now {
            self.record.fault("watch event late");
        }
        self.put(index, at, item());
        if twice {
            self.record.fault("watch event twice");
            self.put(index, at, item());
        }
    }

    fn put(&mut self, index: usize, at: Duration, item: Item) {
        let connection = &mut self.connections[index];
        let at = at.max(connection.last);
        connection.last = at;
        connection.queue.push_back((at, item));
        if at <= self.now { connection.wake() } else { self.later(at, Agenda::Deliver(index)) }
    }
}

/// An open watch of pods, as the product holds it.
pub(crate) struct PodWatch {
    shared: Arc<Shared>,
    index: usize,
    life: u64,
    process: ProcessId,
    ended: bool,
}

impl PodWatch {
    /// The stream of an opened connection.
    pub(super) fn new(shared: Arc<Shared>, index: usize, process: ProcessId) -> Self {
        let life = shared.world().connections[index].life;
        Self { shared, index, life, process, ended: false }
    }
}

impl Stream for PodWatch {
    type Item = Result<PodEvent, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let shared = self.shared.clone();
        let mut world = shared.world();
        let now = world.now;
        let (index, life) = (self.index, self.life);
        let connection = &mut world.connections[index];
        if connection.life != life || !connection.open {
            return Poll::Pending;
        }
        if connection.queue.front().is_none_or(|(at, _)| *at > now) {
            connection.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let Some((_, item)) = connection.queue.pop_front() else { return Poll::Pending };
        let event = match item {
            Item::Applied(pod, view) => {
                world.show(self.process, pod, &view);
                PodEvent::Applied(Box::new(world.spoiled(&view)))
            }
            Item::Deleted(pod, view) => {
                world.show(self.process, pod, &view);
                PodEvent::Deleted(Box::new(world.spoiled(&view)))
            }
            Item::Bookmark(version) => PodEvent::Bookmark(version.to_string()),
            Item::Gone => {
                world.connections[index].close();
                self.ended = true;
                return Poll::Ready(Some(Err(ApiError::Status { code: 410, text: "too old resource version".to_owned() })));
            }
        };
        Poll::Ready(Some(Ok(event)))
    }
}

impl World {
    /// A pod as the product is shown it.
    pub(super) fn spoiled(&self, view: &PodView) -> PodView {
        let mut view = view.clone();
        if let Some(sabotage) = self.sabotage {
            sabotage.view(&mut view);
        }
        if self.sabotage == Some(Sabotage::IgnoresUid) {
            view.uid = self.pods.iter().find(|pod| pod.key == view.key).map_or(view.uid, |first| first.uid.clone());
        }
        view
    }
}

impl std::ops::Drop for PodWatch {
    fn drop(&mut self) {
        let mut world = self.shared.world();
        let connection = &mut world.connections[self.index];
        if connection.life == self.life {
            connection.close();
        }
    }
}

/// What happened to nodes, namespaces and the configuration, for watches that heal themselves.
#[derive(Default)]
pub(crate) struct Reflections {
    nodes: Vec<NodeChange>,
    namespaces: Vec<NamespaceChange>,
    configurations: Vec<Option<Arc<str>>>,
    wakers: Vec<Waker>,
}

impl Reflections {
    pub(super) fn node(&mut self, change: NodeChange) {
        self.nodes.push(change);
        self.wake_all();
    }

    pub(super) fn namespace(&mut self, name: &Arc<str>, opted_in: bool) {
        self.namespaces.push(if opted_in { NamespaceChange::In(name.clone()) } else { NamespaceChange::Out(name.clone()) });
        self.wake_all();
    }

    pub(super) fn set_configuration(&mut self, text: Option<Arc<str>>) {
        self.configurations.push(text);
        self.wake_all();
    }

    pub(super) fn wake_all(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

/// What a [`Reflection`] can be of.
pub(crate) trait Reflected: Sized + Send + 'static {
    /// The present state.
    fn all(world: &World) -> Self;
    /// What happened after the first `seen` changes.
    fn next(world: &World, seen: usize) -> Option<Self>;
    /// How many changes there were.
    fn seen(world: &World) -> usize;
    /// A process is shown it.
    fn show(&self, _world: &mut World, _process: ProcessId) {}
}

impl Reflected for NodeChange {
    fn all(world: &World) -> Self {
        Self::All(world.nodes.values().cloned().collect::<Vec<NodeView>>())
    }

    fn next(world: &World, seen: usize) -> Option<Self> {
        world.reflections.nodes.get(seen).cloned()
    }

    fn seen(world: &World) -> usize {
        world.reflections.nodes.len()
    }

    fn show(&self, world: &mut World, process: ProcessId) {
        let nodes = &mut world.processes[process].nodes;
        match self {
            Self::All(all) => *nodes = all.iter().map(|node| (node.name.clone(), node.clone())).collect(),
            Self::Applied(node) => drop(nodes.insert(node.name.clone(), node.clone())),
            Self::Gone(name) => drop(nodes.remove(name)),
        }
    }
}

impl Reflected for NamespaceChange {
    fn all(world: &World) -> Self {
        Self::All(world.namespaces.iter().filter(|(_, opted_in)| **opted_in).map(|(name, _)| name.clone()).collect())
    }

    fn next(world: &World, seen: usize) -> Option<Self> {
        world.reflections.namespaces.get(seen).cloned()
    }

    fn seen(world: &World) -> usize {
        world.reflections.namespaces.len()
    }
}

impl Reflected for Option<Arc<str>> {
    fn all(world: &World) -> Self {
        world.reflections.configurations.last().cloned().flatten()
    }

    fn next(world: &World, seen: usize) -> Option<Self> {
        world.reflections.configurations.get(seen).cloned()
    }

    fn seen(world: &World) -> usize {
        world.reflections.configurations.len()
    }
}

/// A watch that yields the present state, then each change, and never ends.
pub(crate) struct Reflection<T> {
    shared: Arc<Shared>,
    process: ProcessId,
    seen: Option<usize>,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T> Reflection<T> {
    pub(super) fn new(shared: Arc<Shared>, process: ProcessId) -> Self {
        Self { shared, process, seen: None, of: std::marker::PhantomData }
    }
}

impl<T: Reflected> Stream for Reflection<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let shared = self.shared.clone();
        let mut world = shared.world();
        if !world.is_cut(self.process) {
            let next = match self.seen {
                None => Some((T::all(&world), T::seen(&world))),
                Some(seen) => T::next(&world, seen).map(|change| (change, seen + 1)),
            };
            if let Some((change, seen)) = next {
                self.seen = Some(seen);
                change.show(&mut world, self.process);
                return Poll::Ready(Some(change));
            }
        }
        if !world.reflections.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            world.reflections.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
