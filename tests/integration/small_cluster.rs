//! A cluster in memory with a few pods, for the reconciler itself in front of a real driver.
//!
//! Everything works at once and nothing is lost; what a cluster can do to the reconciler is the simulation's affair.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use lockstep::names;
use lockstep::pod::{Condition, ContainerPort, ContainerView, Deletion, Phase, PodView};
use lockstep::reconcile::clock::Clock;
use lockstep::reconcile::cluster::{
    ApiError, Cluster, Event, LeaseRecord, NamespaceChange, NodeChange, NodeView, Page, PodEvent, PodPage, PodPatch, Presence, Store,
    Stored, UnmanagedPage,
};
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::registration::record::Record;
use lockstep::target::{PodKey, PodUid};
use tokio::sync::{mpsc, watch};

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);
const NODE: &str = "node-1";

/// The cluster; clones share it.
#[derive(Clone)]
pub(crate) struct SmallCluster {
    configuration: Arc<str>,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<PodKey, PodView>,
    watchers: Vec<mpsc::UnboundedSender<PodEvent>>,
    debts: Stored,
    last_good: Stored,
    lease: LeaseRecord,
}

impl SmallCluster {
    pub(crate) fn new(configuration: &str) -> Self {
        Self { configuration: configuration.into(), state: Arc::default(), changed: watch::channel(0).0 }
    }

    /// A pod of namespace `shop` that admission has prepared and whose containers run and are ready.
    pub(crate) fn run(&self, name: &str, ips: &[&str]) {
        let now = TokioClock::start().wall();
        let ready = Condition { status: true, reason: String::new(), message: String::new(), since: Some(now) };
        let labels = [("app", "web"), (names::MANAGED_LABEL, names::MANAGED_VALUE)];
        self.write(PodView {
            key: PodKey::new("shop", name),
            uid: PodUid::new(format!("uid-of-{name}")),
            resource_version: String::new(),
            labels: labels.into_iter().collect(),
            record: Record::default(),
            released: false,
            finalizer: true,
            gated: true,
            controller: None,
            deletion: None,
            node: Some(NODE.into()),
            phase: Phase::Running,
            addresses: ips.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect(),
            ports: vec![ContainerPort { name: Some("http".into()), number: 8080 }],
            containers: vec![ContainerView { terminated: false, reported: true }],
            finished: None,
            completes: false,
            containers_ready: Some(ready),
            gate: None,
            claims: None,
        });
    }

    /// Asks for the end of a pod.
    pub(crate) fn delete(&self, name: &str) {
        let at = TokioClock::start().wall() + Duration::from_secs(300);
        self.change(name, |pod| pod.deletion = Some(Deletion { at, grace_seconds: 300 }));
    }

    /// The kubelet reports that the containers have ended.
    pub(crate) fn stop(&self, name: &str) {
        self.change(name, |pod| {
            pod.containers = vec![ContainerView { terminated: true, reported: true }];
            pod.finished = Some(TokioClock::start().wall());
            pod.containers_ready = None;
        });
    }

    /// The pod, while it is there.
    pub(crate) fn find(&self, name: &str) -> Option<PodView> {
        self.state.lock().unwrap().pods.get(&PodKey::new("shop", name)).cloned()
    }

    /// Whether the pod's gate is open.
    pub(crate) fn is_open(&self, name: &str) -> bool {
        self.find(name).and_then(|pod| pod.gate).is_some_and(|gate| gate.status)
    }

    /// Waits until the cluster is as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let mut changes = self.changed.subscribe();
        let waiting = changes.wait_for(|_| wanted(self));
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "it never came to this: {what}; {:?}", self.state.lock().unwrap().pods);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut PodView)) {
        let mut pod = self.find(name).unwrap();
        change(&mut pod);
        self.write(pod);
    }

    fn write(&self, mut pod: PodView) -> PodView {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        pod.resource_version = state.version.to_string();
        let event = if pod.deletion.is_some() && !pod.finalizer {
            state.pods.remove(&pod.key);
            PodEvent::Deleted(Box::new(pod.clone()))
        } else {
            state.pods.insert(pod.key.clone(), pod.clone());
            PodEvent::Applied(Box::new(pod.clone()))
        };
        state.watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
        drop(state);
        self.changed.send_modify(|version| *version += 1);
        pod
    }
}

impl Cluster for SmallCluster {
    type PodWatch = BoxStream<'static, Result<PodEvent, ApiError>>;
    type Reflection<T: Send + 'static> = BoxStream<'static, T>;

    async fn list_pods(&self, _: Page) -> Result<PodPage, ApiError> {
        let state = self.state.lock().unwrap();
        Ok(PodPage { pods: state.pods.values().cloned().collect(), resource_version: state.version.to_string(), next: None })
    }

    async fn watch_pods(&self, version: &str) -> Result<Self::PodWatch, ApiError> {
        let since: u64 = version.parse().unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state.lock().unwrap();
        for pod in state.pods.values().filter(|pod| pod.resource_version.parse::<u64>().unwrap() > since) {
            sender.send(PodEvent::Applied(Box::new(pod.clone()))).unwrap();
        }
        state.watchers.push(sender);
        let next =
            |mut receiver: mpsc::UnboundedReceiver<PodEvent>| async move { receiver.recv().await.map(|event| (Ok(event), receiver)) };
        Ok(stream::unfold(receiver, next).boxed())
    }

    async fn pod(&self, key: &PodKey) -> Result<Option<PodView>, ApiError> {
        Ok(self.state.lock().unwrap().pods.get(key).cloned())
    }

    async fn list_unmanaged(&self, _: &str, _: Page) -> Result<UnmanagedPage, ApiError> {
        Ok(UnmanagedPage::default())
    }

    async fn patch_pod(&self, key: &PodKey, patch: &PodPatch) -> Result<PodView, ApiError> {
        let gone = ApiError::Status { code: 404, text: "gone".to_owned() };
        let mut pod = self.pod(key).await?.filter(|pod| pod.uid == patch.uid).ok_or(gone)?;
        for one in &patch.conditions {
            let slot = if one.type_ == names::GATE { &mut pod.gate } else { &mut pod.claims };
            let since = one.transition.or(slot.as_ref().and_then(|before| before.since));
            *slot = Some(Condition { status: one.status, reason: one.reason.to_owned(), message: one.message.clone(), since });
        }
        if let Some(presence) = patch.finalizer {
            pod.finalizer = presence == Presence::Present;
        }
        Ok(self.write(pod))
    }

    async fn event(&self, _: &Event) -> Result<(), ApiError> {
        Ok(())
    }

    fn nodes(&self) -> Self::Reflection<NodeChange> {
        let node =
            NodeView { name: NODE.into(), ready: true, unreachable: false, out_of_service: false, kubelet_version: "v1.33.0".to_owned() };
        forever(NodeChange::All(vec![node]))
    }

    fn namespaces(&self) -> Self::Reflection<NamespaceChange> {
        forever(NamespaceChange::All(vec!["shop".into()]))
    }

    fn configuration(&self) -> Self::Reflection<Option<Arc<str>>> {
        forever(Some(self.configuration.clone()))
    }

    async fn read_store(&self, store: Store) -> Result<Stored, ApiError> {
        let state = self.state.lock().unwrap();
        Ok(match store {
            Store::Debts => state.debts.clone(),
            Store::LastGood => state.last_good.clone(),
        })
    }

    async fn write_store(&self, store: Store, value: &Stored) -> Result<Stored, ApiError> {
        let mut state = self.state.lock().unwrap();
        match store {
            Store::Debts => state.debts = value.clone(),
            Store::LastGood => state.last_good = value.clone(),
        }
        Ok(value.clone())
    }

    async fn read_lease(&self) -> Result<LeaseRecord, ApiError> {
        Ok(self.state.lock().unwrap().lease.clone())
    }

    async fn write_lease(&self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        self.state.lock().unwrap().lease = lease.clone();
        Ok(lease.clone())
    }
}

/// A state that never changes.
fn forever<T: Send + 'static>(value: T) -> BoxStream<'static, T> {
    stream::once(async { value }).chain(stream::pending()).boxed()
}
