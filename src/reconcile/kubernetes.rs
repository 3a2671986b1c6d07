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
        let selector = format!("{} in ({},{})", names::INJECT_LABEL, names::INJECT_ENABLED, names::INJECT_STRICT);
        self.reflect("/api/v1/namespaces".into(), format!("labelSelector={}", query_value(&selector)), Namespaces)
    }

    fn configuration(&self) -> Self::Reflection<Option<Arc<str>>> {
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.own.namespace);
        self.reflect(collection, name_query(&self.own.config_map), ConfigurationText)
    }

    async fn read_store(&self, store: Store) -> Result<Stored, ApiError> {
        let (name, key) = store_names(store);
        let bytes = self.api.list(&self.config_map_path(name), None).await?;
        stored(&bytes, key)
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

fn managed_query() -> String {
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
