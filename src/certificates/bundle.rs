//! Keeps the caBundle of our webhook configurations: written by every replica, healed when somebody resets it.
//!
//! Server-side apply, so that helm and GitOps tools, which never render the field, have no quarrel with us about it.
//!
//! Invariant: with a Secret, it is read once more before a caBundle is replaced: a replica whose watch is late never puts an old one back.
//! Invariant: with files, a replica adds its CA and leaves those of others, so that two that see different files do not fight; with a
//! Secret it leaves them for as long as a rollout takes, so that replicas from before and after a change of the source do not fight either.
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

use super::x509::{self, Authority};
use crate::reconcile::Clock;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::api::PatchKind;
use crate::reconcile::kubernetes::watch::{Reflected, reflect};
use crate::reconcile::kubernetes::{Api, decode, name_query};
use crate::reconcile::tokio_clock::TokioClock;

/// A caBundle that was seen for this long is with every API server: their watches bring it within a second.
const SETTLED: Duration = Duration::from_secs(5);
/// Pause after a write that failed, or that could not be made yet.
const PAUSE: Duration = Duration::from_secs(2);
/// A CA that no file of ours has is left in a caBundle for this long: kubelets bring new files to every node within minutes.
const FORGET: Duration = Duration::from_secs(2 * 3600);

/// With a Secret, a CA that is not in it is left for this long: a rollout that changes where certificates come from is over by then.
const TURNOVER: Duration = Duration::from_secs(5 * 60);

/// When the last of the CAs of a bundle ends, in seconds of Unix time; `None` where there is none.
pub(crate) fn last_end(bundle: &str) -> Option<i64> {
    x509::authorities(bundle).iter().map(|ca| ca.span.to).max()
}

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
    /// Who says what it is.
    pub origin: Origin,
}

/// Who says what the caBundle is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `ca.crt` of the Secret at this path of the API, and soon nothing else.
    Secret(String),
    /// Each replica by its own files: all of their CAs.
    Replicas,
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

impl Origin {
    /// How long the CAs of others are left, after the last change of a configuration.
    fn forgets_after(&self) -> Duration {
        match self {
            Self::Secret(_) => TURNOVER,
            Self::Replicas => FORGET,
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
        let mut changed_at = Instant::now();
        loop {
            let bundle = wanted.borrow_and_update().clone();
            // Never in the past: what cannot be forgotten yet must not be tried without a pause.
            let forgets_at = || (changed_at + self.origin.forgets_after()).max(Instant::now() + PAUSE);
            let mut next = self.is_forgetting(&webhooks, bundle.as_deref()).then(forgets_at);
            if let (Some(webhooks), Some(bundle)) = (&webhooks, &bundle)
                && let Err(error) = self.heal(webhooks, bundle, changed_at).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, operation = self.kind.object(), "the caBundle cannot be written");
                next = Some(Instant::now() + PAUSE);
            }
            tokio::select! {
                change = configurations.next() => if let Some(change) = change {
                    seen.send_modify(|seen| *seen = Seen::of(&change, seen));
                    if webhooks != change {
                        (webhooks, changed_at) = (change, Instant::now());
                    }
                },
                changed = wanted.changed() => if changed.is_err() { return },
                () = until(next) => {}
            }
        }
    }

    async fn heal(&self, webhooks: &[(String, String)], wanted: &str, changed_at: Instant) -> Result<(), ApiError> {
        let now = self.clock.wall().as_second();
        let is_kept = changed_at.elapsed() < self.origin.forgets_after();
        let kept = |theirs| if is_kept { theirs } else { "" };
        let healed: Vec<(&str, String)> = match &self.origin {
            Origin::Secret(_) if webhooks.iter().all(|(_, theirs)| theirs == wanted) => return Ok(()),
            // In whatever order others write it: who wrote it in another would be answered in the same way.
            Origin::Secret(_) if is_kept && all_hold(webhooks, wanted) => return Ok(()),
            Origin::Secret(path) => {
                let Some(bundle) = self.bundle_of(path).await? else { return Ok(()) };
                let theirs: String = webhooks.iter().map(|(_, theirs)| kept(theirs)).collect();
                let bundle = beside(bundle, &theirs, now);
                webhooks.iter().map(|(name, _)| (name.as_str(), bundle.clone())).collect()
            }
            Origin::Replicas => webhooks.iter().map(|(name, theirs)| (name.as_str(), merged(kept(theirs), wanted, now))).collect(),
        };
        if webhooks.iter().zip(&healed).all(|((_, theirs), (_, ours))| theirs == ours) {
            return Ok(());
        }
        let path = format!("{}/{}", self.kind.collection(), self.name);
        self.api.patch(&path, PatchKind::Apply, &self.applied(&healed)).await?;
        tracing::info!(operation = self.kind.object(), "caBundle written");
        Ok(())
    }

    async fn bundle_of(&self, path: &str) -> Result<Option<String>, ApiError> {
        let secret = self.api.list(path, None).await?;
        let secret = std::str::from_utf8(&secret).map_err(|_| ApiError::Unreadable("not UTF-8".into()))?;
        let (_, mut data) = decode::secret(secret)?;
        Ok(data.remove("ca.crt").filter(|bundle| !bundle.is_empty()))
    }

    /// Whether there are CAs that go by themselves once nobody has put them back for [`FORGET`].
    fn is_forgetting(&self, webhooks: &Webhooks, wanted: Option<&str>) -> bool {
        let Some(wanted) = wanted else { return false };
        webhooks.iter().flatten().any(|(_, theirs)| x509::authorities(theirs).iter().any(|ca| !x509::holds(wanted, ca)))
    }

    fn applied(&self, healed: &[(&str, String)]) -> Value {
        let webhook =
            |(name, bundle): &(&str, String)| json!({ "name": name, "clientConfig": { "caBundle": BASE64_STANDARD.encode(bundle) } });
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": self.kind.object(),
            "metadata": { "name": self.name },
            "webhooks": healed.iter().map(webhook).collect::<Vec<_>>(),
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

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The CAs of `theirs` that have not ended, in their order, then those of `wanted` that are not among them.
fn merged(theirs: &str, wanted: &str, now: i64) -> String {
    let mut all: Vec<Authority> = x509::authorities(theirs).into_iter().filter(|ca| ca.span.to > now).collect();
    for ca in x509::authorities(wanted) {
        if all.iter().all(|other| other.der != ca.der) {
            all.push(ca);
        }
    }
    all.iter().map(|ca| x509::pem(&ca.der)).collect()
}

/// Whether all webhooks have one bundle, with every CA of `wanted`.
fn all_hold(webhooks: &[(String, String)], wanted: &str) -> bool {
    let Some((_, first)) = webhooks.first() else { return true };
    let are_alike = webhooks.iter().all(|(_, bundle)| bundle == first);
    are_alike && x509::authorities(wanted).iter().all(|ca| x509::holds(first, ca))
}

/// `ours` as it is, then the CAs of `theirs` that have not ended and are not among them.
fn beside(mut ours: String, theirs: &str, now: i64) -> String {
    for ca in x509::authorities(theirs).into_iter().filter(|ca| ca.span.to > now) {
        if !x509::holds(&ours, &ca) {
            ours.push_str(&x509::pem(&ca.der));
        }
    }
    ours
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
