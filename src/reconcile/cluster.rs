//! Everything the reconciler asks of Kubernetes.
//!
//! One trait: the real API server in production, a simulated one in the simulation.
//!
//! Invariant: a pod is written only by [`Cluster::patch_pod`], one strategic-merge patch to `pods/status` that names the UID.
//! Absent on purpose: retries (the caller's), decoding of fields that nobody uses ([`crate::pod::PodView`] is trimmed).

use std::future::Future;
use std::sync::Arc;

use futures_util::Stream;

use crate::names;
use crate::pod::PodView;
use crate::registration::life::Node;
use crate::target::{PodKey, PodUid};

/// The API server, as far as the reconciler uses it.
pub trait Cluster: Clone + Send + Sync + 'static {
    /// An open watch of managed pods; it ends or yields an error when the connection does.
    type PodWatch: Stream<Item = Result<PodEvent, ApiError>> + Send + Unpin + 'static;
    /// A watch that heals itself: it yields the present state first, then each change, and never ends.
    type Reflection<T: Send + 'static>: Stream<Item = T> + Send + Unpin + 'static;

    /// One page of the managed pods (label selector on the managed label).
    fn list_pods(&self, page: Page) -> impl Future<Output = Result<PodPage, ApiError>> + Send;

    /// Watches managed pods from a resource version on, with bookmarks.
    fn watch_pods(&self, resource_version: &str) -> impl Future<Output = Result<Self::PodWatch, ApiError>> + Send;

    /// The pod of that name as it is now, whatever its labels.
    fn pod(&self, key: &PodKey) -> impl Future<Output = Result<Option<PodView>, ApiError>> + Send;

    /// One page of the metadata of pods in `namespace` that do not carry the managed label.
    fn list_unmanaged(&self, namespace: &str, page: Page) -> impl Future<Output = Result<UnmanagedPage, ApiError>> + Send;

    /// Patches `pods/status`; answers the pod as it is afterwards.
    fn patch_pod(&self, key: &PodKey, patch: &PodPatch) -> impl Future<Output = Result<PodView, ApiError>> + Send;

    /// Writes an Event; one of the same object, type and reason is counted up instead.
    fn event(&self, event: &Event) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Nodes, trimmed.
    fn nodes(&self) -> Self::Reflection<NodeChange>;

    /// Namespaces and whether they are opted in.
    fn namespaces(&self) -> Self::Reflection<NamespaceChange>;

    /// Text of the configuration; `None` where the ConfigMap or its key is missing.
    fn configuration(&self) -> Self::Reflection<Option<Arc<str>>>;

    /// A small object that the chart rendered empty and that we keep something in.
    fn read_store(&self, store: Store) -> impl Future<Output = Result<Stored, ApiError>> + Send;

    /// Writes it back; 409 where its resource version has moved.
    fn write_store(&self, store: Store, value: &Stored) -> impl Future<Output = Result<Stored, ApiError>> + Send;

    /// The Lease.
    fn read_lease(&self) -> impl Future<Output = Result<LeaseRecord, ApiError>> + Send;

    /// Writes the Lease; 409 where its resource version has moved.
    fn write_lease(&self, lease: &LeaseRecord) -> impl Future<Output = Result<LeaseRecord, ApiError>> + Send;
}

/// Which part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The most items.
    pub limit: u32,
    /// Where the last page ended; `None` for the first.
    pub token: Option<String>,
}

/// Part of a list of pods.
#[derive(Clone, Debug, Default)]
pub struct PodPage {
    /// The pods.
    pub pods: Vec<PodView>,
    /// Version from which a watch goes on.
    pub resource_version: String,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
}

/// What a watch of pods says.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// Added or changed.
    Applied(Box<PodView>),
    /// Gone, or no longer selected.
    Deleted(Box<PodView>),
    /// Nothing happened up to this version.
    Bookmark(String),
}

/// Metadata of pods that are not managed.
#[derive(Clone, Debug, Default)]
pub struct UnmanagedPage {
    /// What adoption needs of each.
    pub pods: Vec<UnmanagedPod>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
}

/// What can be known of a pod from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmanagedPod {
    /// Namespace and name.
    pub key: PodKey,
    /// UID.
    pub uid: PodUid,
    /// Labels, for the bindings.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it carries the mirror annotation.
    pub mirror: bool,
    /// Whether a Job of the group `batch` controls it.
    pub job: bool,
    /// Whether `lockstep release` let it go.
    pub released: bool,
    /// Whether our finalizer is there: it was managed, and lost its label.
    pub finalizer: bool,
}

/// One patch of `pods/status`; what is `None` or empty stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPatch {
    /// The pod it is meant for; another incarnation is answered 422.
    pub uid: PodUid,
    /// The version it is meant for, where that matters; another one is answered 409.
    pub resource_version: Option<String>,
    /// Our conditions, merged by type.
    pub conditions: Vec<ConditionPatch>,
    /// Puts our finalizer in or takes it out.
    pub finalizer: Option<Presence>,
    /// Puts our managed label in.
    pub label: bool,
    /// Annotations of ours to set.
    pub annotations: Vec<(&'static str, String)>,
}

/// One condition as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionPatch {
    /// Condition type; one of ours.
    pub type_: &'static str,
    /// `True` or `False`.
    pub status: bool,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// One sentence for people, or the claims.
    pub message: String,
    /// Set only when the status changed.
    pub transition: Option<jiff::Timestamp>,
}

/// Whether something of ours shall be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Put in.
    Present,
    /// Take out.
    Absent,
}

/// An Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub about: Subject,
    /// Normal or Warning.
    pub warning: bool,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// What the program did or wants, in CamelCase.
    pub action: &'static str,
    /// One bounded sentence.
    pub note: String,
    /// Tells objects of one reason apart where one reason has several (each debt its own); else empty.
    pub discriminator: String,
}

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A pod.
    Pod {
        /// Namespace and name.
        key: PodKey,
        /// UID.
        uid: PodUid,
    },
    /// The controller of pods.
    Owner {
        /// Namespace.
        namespace: Arc<str>,
        /// `apiVersion` of the owner.
        api_version: String,
        /// Kind of the owner.
        kind: String,
        /// Name of the owner.
        name: String,
        /// UID of the owner.
        uid: String,
    },
    /// The ConfigMap with the configuration.
    Configuration,
    /// The ConfigMap with the debts.
    Debts,
}

/// A node, trimmed to what decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Name of the node.
    pub name: Arc<str>,
    /// Its Ready condition is True.
    pub ready: bool,
    /// Tainted `node.kubernetes.io/unreachable`.
    pub unreachable: bool,
    /// Tainted `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// `kubeletVersion`, as reported.
    pub kubelet_version: String,
}

impl NodeView {
    /// What a pod's node is to the pod; `None`: there is no such node.
    pub fn judge(node: Option<&Self>) -> Node {
        match node {
            None => Node::Gone,
            Some(node) if node.out_of_service => Node::Gone,
            Some(node) if !node.ready || node.unreachable => Node::Lost,
            Some(_) => Node::Well,
        }
    }
}

/// What happened to the set of nodes.
#[derive(Clone, Debug)]
pub enum NodeChange {
    /// All nodes as they are now; those not named are gone.
    All(Vec<NodeView>),
    /// Added or changed.
    Applied(NodeView),
    /// Gone.
    Gone(Arc<str>),
}

/// What happened to the set of opted-in namespaces.
#[derive(Clone, Debug)]
pub enum NamespaceChange {
    /// All opted-in namespaces; others are not.
    All(Vec<Arc<str>>),
    /// Opted in.
    In(Arc<str>),
    /// Opted out, or gone.
    Out(Arc<str>),
}

/// Small objects that the program keeps something in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// ConfigMap `lockstep-debts`.
    Debts,
    /// ConfigMap `lockstep-last-good`.
    LastGood,
}

/// Content of a [`Store`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Version that a write must name.
    pub resource_version: String,
    /// The one value; empty as the chart renders it.
    pub text: String,
}

/// The Lease, as far as it decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Version that a write must name.
    pub resource_version: String,
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// Seconds it lasts from the last renewal.
    pub duration_seconds: u32,
    /// When it was acquired.
    pub acquired: Option<jiff::Timestamp>,
    /// When it was last renewed.
    pub renewed: Option<jiff::Timestamp>,
    /// How often it changed hands.
    pub transitions: u32,
}

impl LeaseRecord {
    /// Whether a replica reconciles: it holds the Lease, and has not let it expire. `lockstep release --all` holds it so that none does.
    pub fn is_held(&self, now: jiff::Timestamp) -> bool {
        let lasts = jiff::SignedDuration::from_secs(self.duration_seconds.into());
        let expired = self.renewed.is_none_or(|renewed| now.duration_since(renewed) > lasts);
        !expired && !self.holder.is_empty() && self.holder != names::RELEASE_HOLDER
    }
}

/// Why a request to the API server brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Not connected, or no answer: it may have been done.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// Answered with a code that is not a success.
    #[error("the API server answered {code}: {text}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Its message, bounded.
        text: String,
    },
    /// An answer that cannot be read.
    #[error("the API server's answer cannot be read: {0}")]
    Unreadable(String),
}

impl ApiError {
    /// The status code, where there was an answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Unreachable(_) | Self::Unreadable(_) => None,
        }
    }
}
