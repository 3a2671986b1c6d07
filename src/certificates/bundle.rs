//! Keeps the caBundle of our webhook configurations: written by every replica, healed when somebody resets it.
//!
//! Server-side apply, so that helm and GitOps tools, which never render the field, have no quarrel with us about it.
//!
//! Invariant: before a caBundle is replaced the Secret is read once more: a replica whose watch is late never puts an old bundle back.
//! Invariant: only webhooks that call us are written: two installations that share a configuration by accident do not fight over it.
//! Absent on purpose: any other field of the configurations; the chart owns them.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::api::PatchKind;
use crate::reconcile::kubernetes::watch::{Reflected, reflect};
use crate::reconcile::kubernetes::{Api, decode, name_query};
use crate::reconcile::tokio_clock::TokioClock;

/// A caBundle that was seen for this long is with every API server: their watches bring it within a second.
const SETTLED: Duration = Duration::from_secs(5);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// The two kinds of webhook configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pods.
    Mutating,
    /// Our ConfigMap.
    Validating,
}

/// Where the caBundle is and where it comes from.
#[derive(Clone)]
pub struct Bundle {
    /// The API server.
    pub api: Api,
    /// Time.
    pub clock: TokioClock,
    /// Kind of the configuration.
    pub kind: Kind,
    /// Name of the configuration.
    pub name: String,
    /// Our own namespace: webhooks that call a Service elsewhere are not ours.
    pub namespace: String,
    /// Path of the Secret whose `ca.crt` it is.
    pub secret_path: String,
}

/// What was seen in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing yet, or not the same for each webhook.
    Nothing,
    /// There is no configuration that calls us.
    NotThere,
    /// This caBundle, since then.
    Holds(String, Instant),
}

/// Webhooks of a configuration with their caBundles; `None` where it is not there.
type Webhooks = Option<Vec<(String, String)>>;

impl Kind {
    /// `kind` of the object.
    pub fn object(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }

    /// Path of the collection.
    pub fn collection(self) -> &'static str {
        match self {
            Self::Mutating => "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            Self::Validating => "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        }
    }
}

impl Seen {
    /// The caBundle, once it was there for long enough.
    pub(super) fn settled(&self) -> Option<&str> {
        match self {
            Self::Holds(bundle, since) if since.elapsed() >= SETTLED => Some(bundle),
            _ => None,
        }
    }

    fn of(webhooks: &Webhooks, before: &Self) -> Self {
        let Some(webhooks) = webhooks else { return Self::NotThere };
        let Some((_, bundle)) = webhooks.first() else { return Self::NotThere };
        match before {
            _ if webhooks.iter().any(|(_, other)| other != bundle) => Self::Nothing,
            Self::Holds(same, since) if same == bundle => Self::Holds(bundle.clone(), *since),
            _ => Self::Holds(bundle.clone(), Instant::now()),
        }
    }
}

impl Bundle {
    /// Runs for good: writes what `wanted` says where the configuration says otherwise, and tells what is there.
    pub async fn run(self, mut wanted: watch::Receiver<Option<String>>, seen: watch::Sender<Seen>) {
        let mut configurations = self.configurations();
        let mut webhooks: Webhooks = None;
        loop {
            let bundle = wanted.borrow_and_update().clone();
            let differs = |bundle: &String| webhooks.iter().flatten().any(|(_, theirs)| theirs != bundle);
            let mut retry = None;
            if bundle.as_ref().is_some_and(differs)
                && let Err(error) = self.heal(&webhooks).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, operation = self.kind.object(), "the caBundle cannot be written");
                retry = Some(PAUSE);
            }
            tokio::select! {
                change = configurations.next() => if let Some(change) = change {
                    seen.send_modify(|seen| *seen = Seen::of(&change, seen));
                    webhooks = change;
                },
                changed = wanted.changed() => if changed.is_err() { return },
                () = pause(retry) => {}
            }
        }
    }

    async fn heal(&self, webhooks: &Webhooks) -> Result<(), ApiError> {
        let secret = self.api.list(&self.secret_path, None).await?;
        let secret = std::str::from_utf8(&secret).map_err(|_| ApiError::Unreadable("not UTF-8".into()))?;
        let (_, data) = decode::secret(secret)?;
        let Some(bundle) = data.get("ca.crt").filter(|bundle| !bundle.is_empty()) else { return Ok(()) };
        if webhooks.iter().flatten().all(|(_, theirs)| theirs == bundle) {
            return Ok(());
        }
        let path = format!("{}/{}", self.kind.collection(), self.name);
        self.api.patch(&path, PatchKind::Apply, &self.applied(webhooks, bundle)).await?;
        tracing::info!(operation = self.kind.object(), "caBundle written");
        Ok(())
    }

    fn applied(&self, webhooks: &Webhooks, bundle: &str) -> Value {
        let bundle = BASE64_STANDARD.encode(bundle);
        let webhooks = webhooks.iter().flatten().map(|(name, _)| json!({ "name": name, "clientConfig": { "caBundle": bundle } }));
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": self.kind.object(),
            "metadata": { "name": self.name },
            "webhooks": webhooks.collect::<Vec<_>>(),
        })
    }

    fn configurations(&self) -> BoxStream<'static, Webhooks> {
        let collection = self.kind.collection().to_owned();
        reflect(
            self.api.clone(),
            self.clock.clone(),
            collection,
            name_query(&self.name),
            WebhooksReflection { namespace: self.namespace.clone() },
        )
    }
}

async fn pause(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

struct WebhooksReflection {
    namespace: String,
}

impl Reflected for WebhooksReflection {
    type Change = Webhooks;
    type Item = Vec<(String, String)>;

    fn decode(&self, json: &str) -> Result<Self::Item, ApiError> {
        decode::webhooks(json, &self.namespace)
    }

    fn all(&self, items: Vec<Self::Item>) -> Webhooks {
        items.into_iter().next()
    }

    fn applied(&self, item: Self::Item) -> Webhooks {
        Some(item)
    }

    fn gone(&self, _: Self::Item) -> Webhooks {
        None
    }
}
