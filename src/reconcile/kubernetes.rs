//! The real Kubernetes: [`Cluster`] over an API server.
//!
//! Invariant: requests name resources by fixed paths; each of them stands here, so the rights that the chart must give can be read off.
//! Absent on purpose: retries and decisions (the reconciler's), creation of anything but Events (the chart renders what we keep things in).

pub mod api;
pub(crate) mod decode;
mod encode;
mod loose;
pub(crate) mod watch;

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde::Deserialize;

pub use api::Api;
use api::PatchKind;
use decode::RawPage;
use encode::Sender;
use watch::{RawEvent, Reflected, page_path, query_value};

use super::clock::Clock;
use super::cluster::{
    ApiError, Cluster, Event, LeaseRecord, NamespaceChange, NodeChange, NodeView, Page, PodEvent, PodPage, PodPatch, Store, Stored,
    UnmanagedPage,
};
use super::tokio_clock::TokioClock;
use crate::names;
use crate::pod::PodView;
use crate::target::PodKey;

/// A list that needs only metadata asks for it in this form.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Answer to a create whose name is taken, and to a write whose resource version has moved.
const CONFLICT: u16 = 409;

/// The cluster behind an API server.
#[derive(Clone)]
pub struct KubeCluster {
    api: Api,
    clock: TokioClock,
    own: Arc<Own>,
}

/// Names of what belongs to this replica.
#[derive(Clone, Debug)]
pub struct Own {
    /// Our own namespace.
    pub namespace: String,
    /// Name of this replica, as Events show it.
    pub identity: String,
    /// Name of the ConfigMap with the configuration.
    pub config_map: String,
}

impl KubeCluster {
    /// The cluster behind `api`.
    pub fn new(api: Api, clock: TokioClock, own: Own) -> Self {
        Self { api, clock, own: Arc::new(own) }
    }

    /// One page of all pods of the cluster, ours or not.
    pub async fn list_all_pods(&self, page: Page) -> Result<PodPage, ApiError> {
        self.pods("", page).await
    }

    /// A text in a ConfigMap of our own namespace.
    pub async fn config_map(&self, name: &str, key: &str) -> Result<Stored, ApiError> {
        let bytes = self.api.list(&self.config_map_path(name), None).await?;
        stored(&bytes, key)
    }

    /// The API server behind it.
    pub fn api(&self) -> &Api {
        &self.api
    }

    async fn pods(&self, query: &str, page: Page) -> Result<PodPage, ApiError> {
        let bytes = self.api.list(&page_path("/api/v1/pods", query, page.limit, page.token.as_deref()), None).await?;
        let raw: RawPage<'_> = api::decode(&bytes)?;
        let pods = raw.items.iter().flatten().map(|item| decode::pod(item.get())).collect::<Result<_, _>>()?;
        Ok(PodPage { pods, next: raw.metadata.next(), resource_version: raw.metadata.resource_version })
    }

    fn config_map_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{name}", self.own.namespace)
    }

    fn lease_path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}", self.own.namespace, names::LEASE)
    }

    fn reflect<R: Reflected>(&self, collection: String, query: String, reflected: R) -> BoxStream<'static, R::Change> {
        watch::reflect(self.api.clone(), self.clock.clone(), collection, query, reflected)
    }
}

impl Cluster for KubeCluster {
    type PodWatch = BoxStream<'static, Result<PodEvent, ApiError>>;
    type Reflection<T: Send + 'static> = BoxStream<'static, T>;

    async fn list_pods(&self, page: Page) -> Result<PodPage, ApiError> {
        self.pods(&managed_query(), page).await
    }

    async fn watch_pods(&self, resource_version: &str) -> Result<Self::PodWatch, ApiError> {
        let lines = self.api.watch(&watch::path("/api/v1/pods", &managed_query(), resource_version)).await?;
        let events = stream::unfold(Some(lines), |lines| async {
            let mut lines = lines?;
            match lines.next().await {
                Ok(Some(line)) => Some((pod_event(&line), Some(lines))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(events.boxed())
    }

    async fn pod(&self, key: &PodKey) -> Result<Option<PodView>, ApiError> {
        match self.api.list(&pod_path(key), None).await {
            Ok(bytes) => decode::pod(text(&bytes)?).map(Some),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list_unmanaged(&self, namespace: &str, page: Page) -> Result<UnmanagedPage, ApiError> {
        let query = format!("labelSelector={}", query_value(&format!("{}!={}", names::MANAGED_LABEL, names::MANAGED_VALUE)));
        let path = page_path(&format!("/api/v1/namespaces/{namespace}/pods"), &query, page.limit, page.token.as_deref());
        let bytes = self.api.list(&path, Some(METADATA_LIST)).await?;
        let raw: RawPage<'_> = api::decode(&bytes)?;
        let pods = raw.items.iter().flatten().map(|item| decode::unmanaged(item.get())).collect::<Result<_, _>>()?;
        Ok(UnmanagedPage { pods, next: raw.metadata.next() })
    }

    async fn patch_pod(&self, key: &PodKey, patch: &PodPatch) -> Result<PodView, ApiError> {
        let path = format!("{}/status", pod_path(key));
        let bytes = self.api.patch(&path, PatchKind::StrategicMerge, &encode::pod_patch(patch)).await?;
        decode::pod(text(&bytes)?)
    }

    async fn event(&self, event: &Event) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Counted {
            #[serde(default)]
            count: i64,
        }
        let own = &*self.own;
        let sender = Sender { namespace: &own.namespace, identity: &own.identity, config_map: &own.config_map };
        let now = self.clock.wall();
        let (namespace, name, body) = encode::event(event, &sender, now);
        let collection = format!("/api/v1/namespaces/{namespace}/events");
        match self.api.create(&collection, &body).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(CONFLICT) => {}
            Err(error) => return Err(error),
        }
        // It is there already. The answer of the first patch tells how often it happened, so that no right to read Events is needed.
        let path = format!("{collection}/{name}");
        let bytes = self.api.patch(&path, PatchKind::Merge, &encode::event_again(event, None, now)).await?;
        let Counted { count } = api::decode(&bytes)?;
        self.api.patch(&path, PatchKind::Merge, &encode::event_again(event, Some(count.saturating_add(1)), now)).await.map(drop)
    }

    fn nodes(&self) -> Self::Reflection<NodeChange> {
        self.reflect("/api/v1/nodes".into(), String::new(), Nodes)
    }

    fn namespaces(&self) -> Self::Reflection<NamespaceChange> {
        self.reflect("/api/v1/namespaces".into(), opted_in_query(), Namespaces)
    }

    fn configuration(&self) -> Self::Reflection<Option<Arc<str>>> {
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.own.namespace);
        self.reflect(collection, name_query(&self.own.config_map), ConfigurationText)
    }

    async fn read_store(&self, store: Store) -> Result<Stored, ApiError> {
        let (name, key) = store_names(store);
        self.config_map(name, key).await
    }

    async fn write_store(&self, store: Store, value: &Stored) -> Result<Stored, ApiError> {
        let (name, key) = store_names(store);
        let body = encode::store(&value.resource_version, key, &value.text);
        let bytes = self.api.patch(&self.config_map_path(name), PatchKind::Merge, &body).await?;
        stored(&bytes, key)
    }

    async fn read_lease(&self) -> Result<LeaseRecord, ApiError> {
        self.api.read::<Lease>(&self.lease_path()).await.map(LeaseRecord::from)
    }

    async fn write_lease(&self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        let bytes = self.api.patch(&self.lease_path(), PatchKind::Merge, &encode::lease(lease)).await?;
        api::decode::<Lease>(&bytes).map(LeaseRecord::from)
    }
}

/// Selects the one object of that name in a list or a watch.
pub(crate) fn name_query(name: &str) -> String {
    format!("fieldSelector={}", query_value(&format!("metadata.name={name}")))
}

struct Nodes;

impl Reflected for Nodes {
    type Change = NodeChange;
    type Item = NodeView;

    fn decode(&self, json: &str) -> Result<NodeView, ApiError> {
        decode::node(json)
    }

    fn all(&self, items: Vec<NodeView>) -> NodeChange {
        NodeChange::All(items)
    }

    fn applied(&self, item: NodeView) -> NodeChange {
        NodeChange::Applied(item)
    }

    fn gone(&self, item: NodeView) -> NodeChange {
        NodeChange::Gone(item.name)
    }
}

struct Namespaces;

impl Reflected for Namespaces {
    type Change = NamespaceChange;
    type Item = Arc<str>;

    fn decode(&self, json: &str) -> Result<Arc<str>, ApiError> {
        decode::name(json)
    }

    fn all(&self, items: Vec<Arc<str>>) -> NamespaceChange {
        NamespaceChange::All(items)
    }

    fn applied(&self, item: Arc<str>) -> NamespaceChange {
        NamespaceChange::In(item)
    }

    fn gone(&self, item: Arc<str>) -> NamespaceChange {
        NamespaceChange::Out(item)
    }
}

struct ConfigurationText;

impl Reflected for ConfigurationText {
    type Change = Option<Arc<str>>;
    type Item = Option<Arc<str>>;

    fn decode(&self, json: &str) -> Result<Self::Item, ApiError> {
        decode::config_map_text(json, names::CONFIG_KEY)
    }

    fn all(&self, items: Vec<Self::Item>) -> Self::Change {
        items.into_iter().next().flatten()
    }

    fn applied(&self, item: Self::Item) -> Self::Change {
        item
    }

    fn gone(&self, _: Self::Item) -> Self::Change {
        None
    }
}

/// A Lease as the API server has it.
#[derive(Deserialize)]
struct Lease {
    metadata: LeaseMetadata,
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseMetadata {
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    acquire_time: Option<jiff::Timestamp>,
    renew_time: Option<jiff::Timestamp>,
    lease_transitions: Option<u32>,
}

impl From<Lease> for LeaseRecord {
    fn from(Lease { metadata, spec }: Lease) -> Self {
        Self {
            resource_version: metadata.resource_version,
            holder: spec.holder_identity.unwrap_or_default(),
            duration_seconds: spec.lease_duration_seconds.unwrap_or_default(),
            acquired: spec.acquire_time,
            renewed: spec.renew_time,
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

/// Selects the opted-in namespaces in a list or a watch.
pub(crate) fn opted_in_query() -> String {
    let selector = format!("{} in ({},{})", names::INJECT_LABEL, names::INJECT_ENABLED, names::INJECT_STRICT);
    format!("labelSelector={}", query_value(&selector))
}

/// Selects the managed pods in a list or a watch.
pub(crate) fn managed_query() -> String {
    format!("labelSelector={}", query_value(&format!("{}={}", names::MANAGED_LABEL, names::MANAGED_VALUE)))
}

fn pod_path(key: &PodKey) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", key.namespace, key.name)
}

fn pod_event(line: &[u8]) -> Result<PodEvent, ApiError> {
    Ok(match watch::event(line)? {
        RawEvent::Applied(json) => PodEvent::Applied(Box::new(decode::pod(json)?)),
        RawEvent::Deleted(json) => PodEvent::Deleted(Box::new(decode::pod(json)?)),
        RawEvent::Bookmark(version) => PodEvent::Bookmark(version),
    })
}

fn store_names(store: Store) -> (&'static str, &'static str) {
    match store {
        Store::Debts => (names::DEBTS_CONFIG_MAP, names::DEBTS_KEY),
        Store::LastGood => (names::LAST_GOOD_CONFIG_MAP, names::CONFIG_KEY),
    }
}

fn stored(bytes: &[u8], key: &str) -> Result<Stored, ApiError> {
    let json = text(bytes)?;
    let value = decode::config_map_text(json, key)?;
    Ok(Stored { resource_version: decode::resource_version(json)?, text: value.as_deref().unwrap_or_default().to_owned() })
}

fn text(bytes: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(bytes).map_err(|_| ApiError::Unreadable("not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use kube::client::Body;

    use super::*;
    use crate::reconcile::cluster::Subject;
    use crate::target::PodUid;

    type Asked = Arc<Mutex<Vec<(String, String)>>>;

    /// A cluster that answers one request after the other, and what it was asked: method with path, and body.
    fn scripted(answers: Vec<(u16, &'static str)>) -> (KubeCluster, Asked) {
        let (answers, asked) = (Arc::new(Mutex::new(answers.into_iter())), Asked::default());
        let seen = asked.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (answers, seen) = (answers.clone(), seen.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
                seen.lock().unwrap().push((format!("{} {}", head.method, head.uri), body));
                let (code, text) = answers.lock().unwrap().next().expect("no more is asked");
                Ok::<_, Infallible>(http::Response::builder().status(code).body(Full::new(Bytes::from(text))).unwrap())
            }
        });
        let own = Own { namespace: "lockstep-system".into(), identity: "a".into(), config_map: "lockstep-config".into() };
        (KubeCluster::new(Api::new(kube::Client::new(service, "default")), TokioClock::start(), own), asked)
    }

    fn event() -> Event {
        Event {
            about: Subject::Pod { key: PodKey::new("shop", "web-1"), uid: PodUid::new("u-1") },
            warning: true,
            reason: "Held",
            action: "Wait",
            note: "waits for lan".into(),
            discriminator: String::new(),
        }
    }

    #[tokio::test]
    async fn an_event_that_happens_again_is_counted_up_without_being_read() {
        let (cluster, asked) = scripted(vec![(409, "{}"), (200, r#"{"count":4}"#), (200, "{}")]);
        cluster.event(&event()).await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked[0].0.starts_with("POST /api/v1/namespaces/shop/events?"), "{asked:?}");
        assert!(asked[1].0.starts_with("PATCH /api/v1/namespaces/shop/events/web-1.") && asked[1].1.contains("waits for lan"), "{asked:?}");
        assert_eq!(asked[2].1, r#"{"count":5}"#);
    }

    #[tokio::test]
    async fn an_event_into_a_terminating_namespace_is_refused() {
        let (cluster, _) = scripted(vec![(403, r#"{"code":403,"message":"being terminated"}"#)]);
        assert_eq!(cluster.event(&event()).await.unwrap_err().code(), Some(403));
    }

    #[tokio::test]
    async fn a_pod_that_is_not_there_is_no_error() {
        let (cluster, _) = scripted(vec![(404, r#"{"code":404}"#), (500, "{}")]);
        assert_eq!(cluster.pod(&PodKey::new("shop", "web-1")).await, Ok(None));
        assert_eq!(cluster.pod(&PodKey::new("shop", "web-1")).await.unwrap_err().code(), Some(500));
    }

    #[tokio::test]
    async fn pages_are_of_managed_pods_and_name_the_next() {
        let pod =
            r#"{"metadata":{"resourceVersion":"9","continue":"to/ken"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
        let (cluster, asked) = scripted(vec![(200, pod), (200, r#"{"metadata":{"resourceVersion":"9"},"items":null}"#)]);
        let first = cluster.list_pods(Page { limit: 2, token: None }).await.unwrap();
        assert_eq!((first.pods.len(), first.next.as_deref(), &*first.resource_version), (2, Some("to/ken"), "9"));
        let last = cluster.list_pods(Page { limit: 2, token: first.next }).await.unwrap();
        assert_eq!((last.pods.len(), last.next), (0, None));
        let asked = asked.lock().unwrap();
        assert_eq!(asked[1].0, "GET /api/v1/pods?limit=2&continue=to%2Fken&labelSelector=lockstep.dev%2Fmanaged%3Dtrue");
    }

    #[tokio::test]
    async fn stores_and_the_lease_name_the_version_that_was_read() {
        let store = r#"{"metadata":{"resourceVersion":"7"},"data":{"debts":"d"}}"#;
        let lease = r#"{"metadata":{"resourceVersion":"8"},"spec":{"holderIdentity":"a","leaseDurationSeconds":12,"renewTime":"2026-11-29T16:53:41.123456Z"}}"#;
        let (cluster, asked) = scripted(vec![(200, store), (409, "{}"), (200, lease), (200, lease)]);
        let stored = cluster.read_store(Store::Debts).await.unwrap();
        assert_eq!(stored, Stored { resource_version: "7".into(), text: "d".into() });
        assert_eq!(cluster.write_store(Store::Debts, &stored).await.unwrap_err().code(), Some(409));
        let read = cluster.read_lease().await.unwrap();
        assert_eq!((&*read.holder, read.duration_seconds, read.transitions), ("a", 12, 0));
        cluster.write_lease(&read).await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked[1].1.contains(r#""resourceVersion":"7""#) && asked[3].1.contains(r#""resourceVersion":"8""#), "{asked:?}");
        assert!(asked[3].1.contains(r#""renewTime":"2026-11-29T16:53:41.123456Z""#), "{asked:?}");
    }
}
