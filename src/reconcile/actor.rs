//! The one loop that owns all state of a replica's reconciler.
//!
//! Inputs come by one channel, every request is a future of its own that posts its answer there; so there is nothing to lock and every
//! decision sees a whole state.
//!
//! Invariant: the loop never waits for a request; what it sends is sent by [`Actor::post`] only.
//! Absent on purpose: what each input means in detail (`look`, `execute`, `calls`, `leading`, `debts`, `sweep`, `adoption`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use tokio::sync::{mpsc, watch};

use super::clock::{Clock, Instant};
use super::cluster::{Cluster, NamespaceChange, NodeChange, NodeView, PodEvent, Store};
use super::input::Input;
use super::leading::Term;
use super::pods::{Pods, version_is_older};
use super::service::Seq;
use super::settings::Settings;
use super::{Drivers, Options};
use crate::lease::{Leadership, Tenure};
use crate::metrics::Metrics;
use crate::pod::PodView;
use crate::registration::life::Node;
use crate::target::{PodKey, PodUid, ServiceId};

/// Inputs that may wait for the loop.
pub(super) const INBOX: usize = 1024;
/// Inputs that are taken in before the state is looked at again.
const BURST: usize = 256;
/// Times that the wall clock tells are looked at this often at least: it may jump, and no timer fires for that.
const WALL_CHECK: std::time::Duration = std::time::Duration::from_secs(4);

/// A pod that lost our label and cannot get it back is read this often.
pub(super) const UNWATCHED: std::time::Duration = std::time::Duration::from_secs(15);

/// One replica's reconciler.
pub(super) struct Actor<C, D: Drivers, K> {
    pub(super) cluster: C,
    pub(super) drivers: D,
    pub(super) clock: K,
    pub(super) options: Options,
    pub(super) metrics: Arc<Metrics>,
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) pods: Pods,
    pub(super) nodes: Option<BTreeMap<Arc<str>, NodeView>>,
    pub(super) namespaces: Option<BTreeSet<Arc<str>>>,
    pub(super) settings: Settings<D::Registry>,
    pub(super) tenure: Tenure,
    pub(super) term: Option<Term>,
    pub(super) terms: u64,
    pub(super) wires: Wires,
    /// Pods to look at.
    pub(super) dirty: BTreeSet<PodUid>,
    /// Services to look at.
    pub(super) touched: BTreeSet<ServiceId>,
    /// Pods to look at again by the wall clock.
    pub(super) wakes: BTreeSet<(jiff::Timestamp, PodUid)>,
    /// Pods to look at again once their back-off is over.
    pub(super) retries: BTreeSet<(Instant, PodUid)>,
    /// Services and when they are due.
    pub(super) agenda: BTreeSet<(Instant, ServiceId)>,
    pub(super) armed: BTreeMap<ServiceId, Instant>,
    /// The process is stopping: nothing new is begun.
    pub(super) stopping: bool,
    listed: bool,
    /// Version of the newest list of all pods.
    newest_list: String,
    seq: u64,
    wall_check: Instant,
    lease_ended: bool,
}

/// How the loop speaks to the tasks beside it.
#[derive(Debug)]
pub(super) struct Wires {
    /// Gives the Lease back.
    pub(super) give_back: watch::Sender<bool>,
    /// Wishes for a list of all pods, counted.
    pub(super) wish: watch::Sender<u64>,
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    pub(super) fn new(
        world: (C, D, K),
        options: Options,
        metrics: Arc<Metrics>,
        inbox: mpsc::Sender<Input>,
        tenure: Tenure,
        wires: Wires,
    ) -> Self {
        let (cluster, drivers, clock) = world;
        Self {
            cluster,
            drivers,
            clock,
            options,
            metrics,
            inbox,
            pods: Pods::default(),
            nodes: None,
            namespaces: None,
            settings: Settings::default(),
            tenure,
            term: None,
            terms: 0,
            wires,
            dirty: BTreeSet::new(),
            touched: BTreeSet::new(),
            wakes: BTreeSet::new(),
            retries: BTreeSet::new(),
            agenda: BTreeSet::new(),
            armed: BTreeMap::new(),
            stopping: false,
            listed: false,
            newest_list: String::new(),
            seq: 1,
            wall_check: Instant::default(),
            lease_ended: false,
        }
    }

    /// Runs until `stop` resolves and the Lease was given back.
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>, stop: impl Future<Output = ()> + Send) {
        let mut stop = std::pin::pin!(stop);
        let mut deadline = None;
        while !self.lease_ended {
            let until = deadline.map_or(self.next(), |deadline: Instant| deadline.min(self.next()));
            let input = {
                let sleep = std::pin::pin!(self.clock.sleep_until(until));
                let inputs = std::pin::pin!(inputs.recv());
                let received = select(inputs, sleep);
                if deadline.is_some() {
                    received.await.left()
                } else {
                    match select(received, stop.as_mut()).await {
                        Either::Left((received, _)) => received.left(),
                        Either::Right(_) => {
                            deadline = Some(self.begin_stop());
                            None
                        }
                    }
                }
            };
            if let Some(input) = input {
                self.take(input);
                for _ in 0..BURST {
                    match inputs.try_recv() {
                        Ok(input) => self.take(input),
                        Err(_) => break,
                    }
                }
            }
            self.turn();
            if deadline.is_some_and(|deadline| self.is_quiet() || self.clock.now() >= deadline) {
                deadline = Some(self.finish_stop());
            }
        }
    }

    /// The next position in the order of requests and answers.
    pub(super) fn next_seq(&mut self) -> Seq {
        self.seq += 1;
        Seq(self.seq)
    }

    /// Runs `work` beside the loop; what it brings is the next input.
    pub(super) fn post(&self, work: impl Future<Output = Input> + Send + 'static) {
        let inbox = self.inbox.clone();
        self.clock.spawn(async move {
            let input = work.await;
            // Nobody listens any more once the process ends.
            let _ = inbox.send(input).await;
        });
    }

    /// Whether all that is needed to decide is there.
    pub(super) fn is_filled(&self) -> bool {
        self.listed && self.nodes.is_some() && self.namespaces.is_some() && self.settings.current.is_some()
    }

    /// What is known of a pod's node.
    pub(super) fn node_of(&self, pod: &PodView) -> Node {
        let Some(name) = &pod.node else { return Node::None };
        NodeView::judge(self.nodes.as_ref().and_then(|nodes| nodes.get(name)))
    }

    /// Takes a pod in, from wherever it came.
    pub(super) fn bring(&mut self, pod: PodView) {
        let uid = pod.uid.clone();
        let upserted = self.pods.upsert(pod);
        if let Some(displaced) = upserted.displaced {
            self.vanished(&displaced);
        }
        self.dirty.extend(upserted.touched);
        self.dirty.insert(uid);
    }

    /// Reads a pod to see what it is now.
    pub(super) fn fetch(&mut self, uid: &PodUid) {
        let began = self.next_seq();
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.busy != super::pods::Busy::No {
            return;
        }
        entry.busy = super::pods::Busy::Reading;
        let key = entry.view.key.clone();
        let (cluster, clock, uid) = (self.cluster.clone(), self.clock.clone(), uid.clone());
        self.post(async move {
            let answer = super::calls::api_limited(&clock, cluster.pod(&key)).await;
            Input::Fetched { uid, key, began, answer }
        });
    }

    fn take(&mut self, input: Input) {
        if let Some(watch) = input.watch() {
            self.metrics.reconcile.heard(watch, self.clock.wall());
        }
        match input {
            Input::Page(pods) => pods.into_iter().for_each(|pod| self.bring(pod)),
            Input::ListEnd { version, uids, wish } => self.list_ended(&version, &uids, wish),
            Input::Pod(PodEvent::Applied(pod)) if self.is_history(&pod) => {}
            Input::Pod(PodEvent::Applied(pod)) => self.bring(*pod),
            Input::Pod(PodEvent::Deleted(pod)) => self.deleted(*pod),
            Input::Pod(PodEvent::Bookmark(_)) => {}
            Input::Node(change) => self.node_changed(change),
            Input::Namespace(change) => self.namespace_changed(change),
            Input::Configuration(text) => self.configured(text.as_ref()),
            Input::Leadership(Leadership::Gained) => self.gain(),
            Input::Leadership(Leadership::Lost) => self.lose(),
            Input::LeaseEnded => self.lease_ended = true,
            Input::Patched { term, uid, ends, answer } => self.patched(term, &uid, ends, answer),
            Input::Fetched { uid, key, began, answer } => self.fetched(&uid, &key, began, answer),
            Input::Applied { term, service, answer } => self.applied(term, &service, answer.as_ref()),
            Input::Read { term, service, began, blocking, answer } => self.read(term, &service, began, blocking, answer),
            Input::Loaded { term, store, answer } => self.loaded(term, store, answer),
            Input::Stored { term, store, answer } => self.stored(term, store, answer),
            Input::Adopted { term, pod } => self.adopted(term, *pod),
            Input::Stray(pod) => self.strayed(*pod),
            Input::AdoptionEnded { term, complete } => self.adoption_ended(term, complete),
            Input::Told => self.told(),
        }
    }

    /// Looks at everything that may have changed, until nothing more follows from it.
    fn turn(&mut self) {
        let now = self.clock.now();
        self.wall_check = now.after(WALL_CHECK);
        if !self.is_filled() {
            return;
        }
        self.options.filled.store(true, Ordering::Release);
        let wall = self.clock.wall();
        while let Some((at, uid)) = self.wakes.first().cloned().filter(|(at, _)| *at <= wall) {
            self.wakes.remove(&(at, uid.clone()));
            self.dirty.insert(uid);
        }
        while let Some((at, uid)) = self.retries.first().cloned().filter(|(at, _)| *at <= now) {
            self.retries.remove(&(at, uid.clone()));
            self.dirty.insert(uid);
        }
        self.look_at_dirty();
        while let Some((at, service)) = self.agenda.first().cloned().filter(|(at, _)| *at <= now) {
            self.agenda.remove(&(at, service.clone()));
            self.armed.remove(&service);
            self.touched.insert(service);
        }
        while let Some(service) = self.touched.pop_first() {
            self.pump(&service);
        }
        self.keep_house(now);
    }

    /// When there is something to do without being told.
    fn next(&self) -> Instant {
        let firsts = [
            self.agenda.first().map(|(at, _)| *at),
            self.retries.first().map(|(at, _)| *at),
            self.wakes.first().map(|(at, _)| self.by_the_wall(*at)),
            self.next_chore(),
        ];
        let now = self.clock.now();
        if self.stopping || !self.is_filled() {
            return now.after(WALL_CHECK * 15);
        }
        firsts.into_iter().flatten().min().map_or(now.after(WALL_CHECK * 15), |at| at.max(Instant::default()))
    }

    /// The time of a wall time, looked at again soon enough where the wall clock jumps.
    fn by_the_wall(&self, at: jiff::Timestamp) -> Instant {
        let ahead = std::time::Duration::try_from(at.duration_since(self.clock.wall())).unwrap_or_default();
        self.clock.now().after(ahead).min(self.wall_check.max(self.clock.now()))
    }

    /// Whether a watch that was opened anew tells of a pod that the newest list did not show any more.
    fn is_history(&self, pod: &PodView) -> bool {
        self.pods.get(&pod.uid).is_none() && version_is_older(&pod.resource_version, &self.newest_list)
    }

    fn list_ended(&mut self, version: &str, uids: &BTreeSet<PodUid>, wish: u64) {
        if !version_is_older(version, &self.newest_list) {
            version.clone_into(&mut self.newest_list);
        }
        let missing: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, entry)| !uids.contains(*uid) && !version_is_older(version, &entry.view.resource_version))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in missing {
            self.doubt(&uid);
        }
        if !self.listed {
            self.listed = true;
            self.dirty.extend(self.pods.iter().map(|(uid, _)| uid.clone()));
        }
        self.pods.tend(self.clock.now());
        if let Some(term) = self.term.as_mut().filter(|term| !term.listed && wish >= term.number) {
            term.listed = true;
            self.dirty.extend(self.pods.iter().map(|(uid, _)| uid.clone()));
        }
    }

    fn deleted(&mut self, pod: PodView) {
        let Some(entry) = self.pods.get(&pod.uid) else { return };
        let uid = pod.uid.clone();
        let replaced = self.pods.named(&pod.key).is_some_and(|now| *now != uid);
        // Nothing of ours was left and it was ending anyway: no need to ask.
        let expected = entry.view.deletion.is_some() && !entry.view.finalizer && entry.claims.is_empty();
        if replaced || expected {
            self.vanished(&uid);
        } else {
            self.doubt(&uid);
        }
    }

    /// A pod that a list or a watch does not show any more: only a read tells whether it is gone or lost its label.
    fn doubt(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.missing = true;
            self.fetch(uid);
        }
    }

    fn fetched(&mut self, uid: &PodUid, key: &PodKey, began: Seq, answer: Result<Option<PodView>, super::cluster::ApiError>) {
        let now = self.clock.now();
        let jitter = self.clock.jitter();
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.busy == super::pods::Busy::Reading {
            entry.busy = super::pods::Busy::No;
        }
        match answer {
            Ok(Some(pod)) if pod.uid == *uid => {
                entry.doubtful = false;
                entry.dropping.clear();
                entry.missing = false;
                entry.confirmed = began;
                entry.unwatched = (!pod.is_labelled()).then_some(now.after(UNWATCHED));
                if let Some(at) = entry.unwatched {
                    self.retries.insert((at, uid.clone()));
                }
                self.bring(pod);
                self.dirty.extend(self.pods.neighbours(uid));
            }
            Ok(other) => {
                self.vanished(uid);
                if let Some(pod) = other.filter(PodView::is_labelled) {
                    self.bring(pod);
                }
            }
            Err(error) => {
                tracing::debug!(namespace = %key.namespace, pod = %key.name, error = %error, "a pod cannot be read");
                entry.backoff.fail(now, jitter);
                self.retries.insert((entry.backoff.until(), uid.clone()));
            }
        }
    }

    fn node_changed(&mut self, change: NodeChange) {
        let nodes = self.nodes.get_or_insert_default();
        match change {
            NodeChange::All(all) => {
                *nodes = all.into_iter().map(|node| (Arc::clone(&node.name), node)).collect();
                self.dirty.extend(self.pods.iter().map(|(uid, _)| uid.clone()));
            }
            NodeChange::Applied(node) => {
                let name = Arc::clone(&node.name);
                if nodes.insert(Arc::clone(&name), node.clone()).as_ref() != Some(&node) {
                    self.dirty.extend(self.pods.on_node(&name));
                }
            }
            NodeChange::Gone(name) => {
                nodes.remove(&name);
                self.dirty.extend(self.pods.on_node(&name));
            }
        }
    }

    fn namespace_changed(&mut self, change: NamespaceChange) {
        let namespaces = self.namespaces.get_or_insert_default();
        let more = match change {
            NamespaceChange::All(all) => {
                let all: BTreeSet<Arc<str>> = all.into_iter().collect();
                let more = !all.is_subset(namespaces);
                *namespaces = all;
                more
            }
            NamespaceChange::In(namespace) => namespaces.insert(namespace),
            NamespaceChange::Out(namespace) => {
                namespaces.remove(&namespace);
                false
            }
        };
        if more {
            self.want_adoption();
        }
    }

    fn configured(&mut self, text: Option<&Arc<str>>) {
        let changed = self.settings.take(text, &self.drivers);
        self.metrics.reconcile.config_valid.set(i64::from(self.settings.problem.is_none()));
        if let (None, Some(text)) = (&self.settings.problem, text) {
            self.metrics.reconcile.in_force(text);
        }
        if let Some(problem) = &self.settings.problem {
            tracing::warn!(error = %problem, "the configuration cannot be used; the last good one stays in force");
        }
        if self.settings.current.is_none() {
            self.load(Store::LastGood, self.clock.now());
        }
        self.configuration_taken(changed);
    }
}

/// The part of a selection that an input came by.
trait Received {
    fn left(self) -> Option<Input>;
}

impl<A, B> Received for Either<(Option<Input>, A), ((), B)> {
    fn left(self) -> Option<Input> {
        match self {
            Either::Left((input, _)) => input,
            Either::Right(_) => None,
        }
    }
}
