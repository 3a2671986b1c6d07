//! Keeps the Secret of the self-managed CA: serves what is in it, and renews what is due.
//!
//! Invariant: a write names the resource version that was read; a replica that came second (409) takes what the first one wrote.
//! Invariant: a Secret that somebody emptied is filled again with what is served, so that no other CA is needed.
//! Absent on purpose: creation of the Secret; the chart renders it empty.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::authority::{Due, MakeError, Material, Wanted};
use super::bundle::Seen;
use super::serving::{PairError, Serving};
use crate::metrics::Metrics;
use crate::reconcile::Clock;
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::api::PatchKind;
use crate::reconcile::kubernetes::watch::{Reflected, reflect};
use crate::reconcile::kubernetes::{Api, decode, name_query};
use crate::reconcile::tokio_clock::TokioClock;

/// The wall clock is looked at this often, whatever timers say: a machine may have slept.
const TICK: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// Where the Secret is and what is done with it.
#[derive(Clone)]
pub struct Keeper {
    /// The API server.
    pub api: Api,
    /// Time.
    pub clock: TokioClock,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// For whom certificates are made.
    pub wanted: Wanted,
    /// What is served.
    pub serving: Arc<Serving>,
    /// The metric of its end.
    pub metrics: Arc<Metrics>,
}

/// Why the certificate could not be kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("the Secret cannot be written")]
    Write(#[source] ApiError),
    #[error("a certificate cannot be made")]
    Make(#[from] MakeError),
    #[error("the certificate in the Secret cannot be served")]
    Serve(#[from] PairError),
}

/// The Secret at one moment.
#[derive(Clone, Debug)]
struct Version {
    resource_version: String,
    material: Material,
}

impl Keeper {
    /// Runs for good; publishes the CAs to trust, and waits for each webhook configuration of `seen` before a new CA issues.
    pub async fn run(self, bundle: watch::Sender<Option<String>>, seen: Vec<watch::Receiver<Seen>>) {
        let mut secrets = self.secrets();
        let mut stored: Option<Version> = None;
        let mut served = Material::default();
        loop {
            if let Some(version) = stored.take() {
                stored = Some(match self.pass(version.clone(), &served, &seen).await {
                    Ok(newer) => newer,
                    Err(error) => {
                        self.complain(&error).await;
                        version
                    }
                });
            }
            if let Some(Version { material, .. }) = &stored {
                self.serve(material, &mut served, &bundle);
            }
            let next = tokio::time::timeout(self.tick(), secrets.next());
            if let Ok(Some(change)) = next.await {
                if change.is_none() {
                    tracing::error!(error = "the Secret of the certificate is missing", "the certificate cannot be kept");
                }
                stored = change.or(stored);
            }
        }
    }

    /// Does one thing that is due, if there is one.
    async fn pass(&self, version: Version, served: &Material, seen: &[watch::Receiver<Seen>]) -> Result<Version, KeepError> {
        let now = self.clock.wall();
        let seen: Vec<Seen> = seen.iter().map(|seen| seen.borrow().clone()).collect();
        let trusted = trusted(&seen);
        let due = version.material.due(&self.wanted, &trusted, now);
        let renewed = match due {
            Due::Nothing(_) => return Ok(version),
            Due::Everything if served.due(&self.wanted, &trusted, now) != Due::Everything => served.clone(),
            _ => version.material.after(due, &self.wanted, now)?,
        };
        let written = self.write(&version.resource_version, &renewed).await.map_err(KeepError::Write)?;
        tracing::info!(reason = ?due, "certificates renewed");
        Ok(written)
    }

    fn serve(&self, material: &Material, served: &mut Material, bundle: &watch::Sender<Option<String>>) {
        if material == served || !material.is_usable(&self.wanted, self.clock.wall()) {
            return;
        }
        match self.serving.exchange(&material.chain, &material.key) {
            Ok(()) => {
                let ends = material.serving_ends().map_or(0, jiff::Timestamp::as_second);
                self.metrics.certificate_expiry.set(ends);
                bundle.send_replace(Some(material.ca.clone()));
                *served = material.clone();
            }
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the certificate in the Secret cannot be served"),
        }
    }

    async fn write(&self, resource_version: &str, material: &Material) -> Result<Version, ApiError> {
        let texts: Map<String, Value> = material.data().iter().map(|(key, text)| ((*key).to_owned(), (*text).into())).collect();
        let body = json!({ "metadata": { "resourceVersion": resource_version }, "stringData": texts });
        let bytes = self.api.patch(&self.path(), PatchKind::Merge, &body).await?;
        version(&bytes)
    }

    async fn complain(&self, error: &KeepError) {
        // Another replica was first; the watch brings what it wrote.
        if !matches!(error, KeepError::Write(error) if error.code() == Some(409)) {
            tracing::warn!(error = error as &dyn std::error::Error, "the certificate cannot be kept");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn secrets(&self) -> BoxStream<'static, Option<Version>> {
        let collection = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        reflect(self.api.clone(), self.clock.clone(), collection, name_query(&self.secret), SecretReflection)
    }

    /// Path of the Secret in the API.
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.secret)
    }

    fn tick(&self) -> Duration {
        // Short lives are looked at more often: a twentieth is small beside the third that is left at renewal.
        let lives = self.wanted.lives();
        TICK.min(lives.serving / 20).min(lives.overlap / 5).max(Duration::from_millis(100))
    }
}

/// caBundles that count: seen for long enough that every API server has them; none unless every configuration has one.
fn trusted(seen: &[Seen]) -> Vec<&str> {
    let settled = seen.iter().filter(|seen| !matches!(seen, Seen::NotThere)).map(Seen::settled);
    settled.collect::<Option<Vec<&str>>>().unwrap_or_default()
}

fn version(bytes: &[u8]) -> Result<Version, ApiError> {
    let json = std::str::from_utf8(bytes).map_err(|_| ApiError::Unreadable("not UTF-8".into()))?;
    let (resource_version, data) = decode::secret(json)?;
    Ok(Version { resource_version, material: Material::from_data(data) })
}

struct SecretReflection;

impl Reflected for SecretReflection {
    type Change = Option<Version>;
    type Item = Version;

    fn decode(&self, json: &str) -> Result<Version, ApiError> {
        version(json.as_bytes())
    }

    fn all(&self, items: Vec<Version>) -> Option<Version> {
        items.into_iter().next()
    }

    fn applied(&self, item: Version) -> Option<Version> {
        Some(item)
    }

    fn gone(&self, _: Version) -> Option<Version> {
        None
    }
}
