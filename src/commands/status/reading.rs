//! Reading the cluster for `status`, once or for as long as somebody looks.
//!
//! Invariant: nothing is written; pods that cannot be read are an error, all else that cannot be read is a note.
//! Absent on purpose: what any of it means (`report`).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::outlook::{Ground, span};
use super::report::{self, Life, Report, Wanted};
use super::sight::{Sight, Told};
use crate::commands::access::{Access, collection, our_warnings, remedy};
use crate::config;
use crate::names;
use crate::reconcile::Clock;
use crate::reconcile::cluster::{ApiError, Cluster, LeaseRecord};
use crate::reconcile::kubernetes::watch::{self, Reflected, query_value};
use crate::reconcile::kubernetes::{KubeCluster, Own, managed_query, name_query};
use crate::reconcile::tokio_clock::TokioClock;
use crate::target::PodKey;

/// What is shown is brought up to date so often, and no more often.
const BEAT: Duration = Duration::from_secs(1);
/// What changes seldom (nodes, configuration, Lease) is read again after this long.
const SELDOM: Duration = Duration::from_secs(15);

/// Which pods are read.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// The managed pods of all namespaces.
    Everywhere,
    /// The managed pods of one.
    Namespace(String),
    /// One pod, managed or not.
    Pod(PodKey),
}

/// What was read.
pub(super) struct Reading {
    access: Access,
    cluster: KubeCluster,
    scope: Scope,
    /// By UID.
    pods: BTreeMap<String, Sight>,
    /// By UID of the object, reason and first time.
    told: BTreeMap<(String, String, Option<Timestamp>), Told>,
    ground: Ground,
    notes: Vec<String>,
    streams: Option<Streams>,
    seldom: Instant,
}

impl Reading {
    /// Reads all of it once.
    pub(super) async fn start(access: Access, scope: Scope) -> anyhow::Result<Self> {
        let own = Own { namespace: access.own_namespace.clone(), identity: String::new(), config_map: String::new() };
        let mut reading = Self {
            cluster: KubeCluster::new(access.api.clone(), TokioClock::start(), own),
            access,
            scope,
            pods: BTreeMap::new(),
            told: BTreeMap::new(),
            ground: Ground::default(),
            notes: Vec::new(),
            streams: None,
            seldom: Instant::now(),
        };
        let (collection, query) = reading.scope.pods();
        let pods = reading.access.list(&collection, &query, Sight::read).await;
        reading.take_pods(
            pods.map_err(|error| anyhow::Error::new(error.clone()).context(format!("pods cannot be listed: {}", remedy(&error))))?,
        );
        reading.surroundings().await;
        Ok(reading)
    }

    /// Waits until what is shown may be another; `always`: also where only time has passed.
    pub(super) async fn changed(&mut self, always: bool) {
        let mut beat = Instant::now() + BEAT;
        let mut news = always;
        if self.streams.is_none() {
            self.streams = Some(self.open());
        }
        loop {
            let Some((pods, told)) = &mut self.streams else { return };
            tokio::select! {
                Some(change) = pods.next() => { news |= take(&mut self.pods, change, |sight| sight.pod.uid.to_string()); }
                Some(change) = told.next() => { news |= take(&mut self.told, change, Told::key); }
                () = tokio::time::sleep_until(beat) => {
                    if self.seldom.elapsed() >= SELDOM {
                        self.surroundings().await;
                    }
                    if news {
                        return;
                    }
                    beat = Instant::now() + BEAT;
                }
            }
        }
    }

    /// The pod that is asked for, where it is one.
    pub(super) fn pod(&self) -> Option<&PodKey> {
        match &self.scope {
            Scope::Pod(key) => Some(key),
            Scope::Everywhere | Scope::Namespace(_) => None,
        }
    }

    /// All pods.
    pub(super) fn report(&self, wanted: &Wanted, now: Timestamp) -> Report {
        let (sights, told): (Vec<&Sight>, Vec<&Told>) = (self.pods.values().collect(), self.told.values().collect());
        report::report(&sights, &told, &self.ground, wanted, self.notes.clone(), now)
    }

    /// The one pod.
    pub(super) fn life(&self, now: Timestamp) -> Life {
        let sight = self.pods.values().next();
        // A pod of the same name may have been there before.
        let latest = self.told.values().max_by_key(|told| told.last).map(|told| told.uid.clone());
        let uid = sight.map_or_else(|| latest.unwrap_or_default(), |sight| sight.pod.uid.to_string());
        let told: Vec<&Told> = self.told.values().filter(|told| told.uid == uid).collect();
        report::life(sight, &told, &self.ground, self.notes.clone(), now)
    }

    /// The present time.
    pub(super) fn now(&self) -> Timestamp {
        TokioClock::start().wall()
    }

    fn take_pods(&mut self, pods: Vec<Sight>) {
        take(&mut self.pods, Change::All(pods), |sight| sight.pod.uid.to_string());
    }

    /// Follows pods and Events from now on.
    fn open(&self) -> Streams {
        let (pods, told) = (self.scope.pods(), self.scope.events());
        let (api, clock) = (self.cluster.api(), TokioClock::start());
        (
            watch::reflect(api.clone(), clock.clone(), pods.0, pods.1, Each(Sight::read)),
            watch::reflect(api.clone(), clock, told.0, told.1, Each(Told::read)),
        )
    }

    /// Reads what surrounds the pods: Events, nodes, the configuration, the Lease.
    async fn surroundings(&mut self) {
        self.seldom = Instant::now();
        self.notes.clear();
        let (collection, query) = self.scope.events();
        match self.access.list(&collection, &query, Told::read).await {
            Ok(told) => _ = take(&mut self.told, Change::All(told), Told::key),
            Err(error) => self.note("Events cannot be read, so what a registry said last may be missing", &error),
        }
        match self.access.nodes().await {
            Ok(nodes) => self.ground.nodes = Some(nodes),
            Err(error) => self.note("nodes cannot be read, so every node is taken for well", &error),
        }
        self.configuration().await;
        let lease = self.cluster.read_lease().await;
        match lease {
            Ok(lease) => self.notes.extend(nobody_reconciles(&lease, self.now())),
            Err(error) => self.note("the Lease cannot be read, so nobody knows whether a replica reconciles", &error),
        }
    }

    async fn configuration(&mut self) {
        let (text, in_force) = match self.access.configuration().await {
            Ok(read) => read,
            Err(error) => return self.note("the configuration cannot be read, so times are those of its defaults", &error),
        };
        if config::parse(&text).is_err() {
            let (namespace, name) = (&self.access.own_namespace, names::CONFIG_MAP);
            self.notes.push(format!("the configuration in {namespace}/{name} is invalid; what counts is the last good one"));
        }
        if let Some(configuration) = in_force {
            (self.ground.rules, self.ground.bindings) = (configuration.registration, configuration.bindings);
        }
    }

    fn note(&mut self, what: &str, error: &ApiError) {
        self.notes.push(format!("{what}: {error}"));
    }
}

impl Scope {
    /// Collection and query of the pods.
    fn pods(&self) -> (String, String) {
        match self {
            Self::Everywhere => (collection("/api/v1", None, "pods"), managed_query()),
            Self::Namespace(namespace) => (collection("/api/v1", Some(namespace), "pods"), managed_query()),
            Self::Pod(key) => (collection("/api/v1", Some(&key.namespace), "pods"), name_query(&key.name)),
        }
    }

    /// Collection and query of their Events: of many pods only our warnings, of one pod all.
    fn events(&self) -> (String, String) {
        match self {
            Self::Everywhere => (collection("/api/v1", None, "events"), our_warnings()),
            Self::Namespace(namespace) => (collection("/api/v1", Some(namespace), "events"), our_warnings()),
            Self::Pod(key) => {
                let about = format!("involvedObject.kind=Pod,involvedObject.name={}", key.name);
                (collection("/api/v1", Some(&key.namespace), "events"), format!("fieldSelector={}", query_value(&about)))
            }
        }
    }
}

/// Changes of pods, and of Events.
type Streams = (BoxStream<'static, Change<Sight>>, BoxStream<'static, Change<Told>>);

impl Told {
    fn key(&self) -> (String, String, Option<Timestamp>) {
        (self.uid.clone(), self.reason.clone(), self.first)
    }
}

/// What happened to a set of objects.
enum Change<T> {
    All(Vec<T>),
    Applied(T),
    Gone(T),
}

/// Objects that are decoded each by itself.
struct Each<T>(fn(&str) -> Result<T, ApiError>);

impl<T: Send + 'static> Reflected for Each<T> {
    type Change = Change<T>;
    type Item = T;

    fn decode(&self, json: &str) -> Result<T, ApiError> {
        (self.0)(json)
    }

    fn all(&self, items: Vec<T>) -> Change<T> {
        Change::All(items)
    }

    fn applied(&self, item: T) -> Change<T> {
        Change::Applied(item)
    }

    fn gone(&self, item: T) -> Change<T> {
        Change::Gone(item)
    }
}

/// Takes a change in; answers that there are news.
fn take<K: Ord, T>(known: &mut BTreeMap<K, T>, change: Change<T>, key: impl Fn(&T) -> K) -> bool {
    match change {
        Change::All(items) => *known = items.into_iter().map(|item| (key(&item), item)).collect(),
        Change::Applied(item) => _ = known.insert(key(&item), item),
        Change::Gone(item) => _ = known.remove(&key(&item)),
    }
    true
}

/// A note where no replica holds the Lease.
fn nobody_reconciles(lease: &LeaseRecord, now: Timestamp) -> Option<String> {
    let ago = lease.renewed.map(|renewed| now.duration_since(renewed));
    let expired = ago.is_none_or(|ago| ago > SignedDuration::from_secs(i64::from(lease.duration_seconds)));
    if !expired && !lease.holder.is_empty() {
        return None;
    }
    let ago = ago.map(|ago| format!(", the last one did {} ago", span(ago))).unwrap_or_default();
    Some(format!("no replica of Lockstep reconciles{ago}; pods wait until one does"))
}
