//! Reading the cluster for `status`, once or for as long as somebody looks.
//!
//! Invariant: nothing is written; pods that cannot be read are an error, all else that cannot be read is a note.
//! Absent on purpose: what any of it means (`report`).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use tokio::time::Instant;

use super::report::{self, Life, Report, Wanted};
use super::sight::{Sight, Told};
use crate::commands::access::{Access, collection, no_pods, our_warnings};
use crate::commands::surroundings::{Surroundings, last_held};
use crate::names;
use crate::reconcile::Clock;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::watch::{self, Reflected, query_value};
use crate::reconcile::kubernetes::{KubeCluster, managed_query, name_query};
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
    /// By UID.
    told: BTreeMap<String, Told>,
    around: Surroundings,
    streams: Option<Streams>,
    seldom: Instant,
}

impl Reading {
    /// Reads all of it once.
    pub(super) async fn start(access: Access, scope: Scope) -> anyhow::Result<Self> {
        let mut reading = Self {
            cluster: access.cluster(""),
            access,
            scope,
            pods: BTreeMap::new(),
            told: BTreeMap::new(),
            around: Surroundings::default(),
            streams: None,
            seldom: Instant::now(),
        };
        let (collection, query) = reading.scope.pods();
        let pods = reading.access.list(&collection, &query, Sight::read).await.map_err(no_pods)?;
        take(&mut reading.pods, Change::All(pods), Sight::id);
        reading.surroundings().await;
        let (collection, query) = reading.scope.events();
        match reading.access.list(&collection, &query, Told::read).await {
            Ok(told) => take(&mut reading.told, Change::All(told), Told::id),
            Err(error) => reading.around.note("Events cannot be read, so what a registry said last may be missing", &error),
        }
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
                Some(change) = pods.next() => {
                    take(&mut self.pods, change, Sight::id);
                    news = true;
                }
                Some(change) = told.next() => {
                    take(&mut self.told, change, Told::id);
                    news = true;
                }
                () = tokio::time::sleep_until(beat) => {
                    if self.seldom.elapsed() >= SELDOM {
                        self.surroundings().await;
                        news = true;
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
        report::report(&sights, &told, &self.around.ground, wanted, self.notes(now), now)
    }

    /// The one pod.
    pub(super) fn life(&self, now: Timestamp) -> Life {
        let sight = self.pods.values().next();
        // A pod of the same name may have been there before.
        let latest = self.told.values().max_by_key(|told| told.last).map(|told| told.uid.clone());
        let uid = sight.map_or_else(|| latest.unwrap_or_default(), |sight| sight.pod.uid.to_string());
        let told: Vec<&Told> = self.told.values().filter(|told| told.uid == uid).collect();
        report::life(sight, &told, &self.around.ground, self.notes(now), now)
    }

    /// The present time.
    pub(super) fn now(&self) -> Timestamp {
        TokioClock::start().wall()
    }

    async fn surroundings(&mut self) {
        self.seldom = Instant::now();
        self.around.read(&self.access, &self.cluster).await;
    }

    fn notes(&self, now: Timestamp) -> Vec<String> {
        let mut notes = self.around.notes.clone();
        if let Some(fault) = &self.around.fault {
            let (namespace, name) = (&self.access.own_namespace, names::CONFIG_MAP);
            notes.push(format!("the configuration in {namespace}/{name} is invalid, and the last good one counts: {fault}"));
        }
        if let Some(lease) = self.around.lease.as_ref().filter(|lease| !lease.is_held(now)) {
            notes.push(format!("no replica of Lockstep reconciles, and pods wait until one does: {}", last_held(lease)));
        }
        notes
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

impl Sight {
    fn id(&self) -> String {
        self.pod.uid.to_string()
    }
}

impl Told {
    fn id(&self) -> String {
        self.id.clone()
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

fn take<T>(known: &mut BTreeMap<String, T>, change: Change<T>, key: impl Fn(&T) -> String) {
    match change {
        Change::All(items) => *known = items.into_iter().map(|item| (key(&item), item)).collect(),
        Change::Applied(item) => _ = known.insert(key(&item), item),
        Change::Gone(item) => _ = known.remove(&key(&item)),
    }
}
