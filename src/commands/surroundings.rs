//! What surrounds pods, read alike for `status` and `doctor`: nodes, the configuration, the Lease.
//!
//! Invariant: nothing is written; what cannot be read is a note, and then what was known of it before goes on to hold.
//! Absent on purpose: pods and their Events (each command reads other ones), what any of it means.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::access::Access;
use super::status::outlook::{Ground, clock};
use crate::config::{self, Configuration, Injection, RegistryConfig};
use crate::names;
use crate::reconcile::cluster::{ApiError, Cluster, LeaseRecord, NodeView};
use crate::reconcile::kubernetes::{KubeCluster, decode};

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// What decides where a pod stands.
    pub(super) ground: Ground,
    /// The rules of admission that are in force, where they could be read.
    pub(super) injection: Option<Injection>,
    /// The registries.
    pub(super) registries: Vec<RegistryConfig>,
    /// `cluster` of the configuration that is in force.
    pub(super) cluster: Option<Arc<str>>,
    /// Its text.
    pub(super) text: Option<String>,
    /// What is wrong with the newest text of the configuration.
    pub(super) fault: Option<String>,
    /// The Lease, where it could be read; an empty one where there is none.
    pub(super) lease: Option<LeaseRecord>,
    /// What could not be read, and why.
    pub(super) notes: Vec<String>,
}

impl Surroundings {
    /// Reads all of it, again if it was read before.
    pub(super) async fn read(&mut self, access: &Access, cluster: &KubeCluster) {
        self.notes.clear();
        match access.list("/api/v1/nodes", "", decode::node).await {
            Ok(nodes) => self.ground.nodes = Some(by_name(nodes)),
            Err(error) => self.note("nodes cannot be read, so every node is taken for well", &error),
        }
        match configuration(cluster).await {
            Ok((fault, in_force)) => {
                self.fault = fault;
                if let Some((text, configuration)) = in_force {
                    (self.text, self.cluster) = (Some(text), Some(configuration.cluster));
                    (self.ground.rules, self.ground.bindings) = (configuration.registration, configuration.bindings);
                    (self.injection, self.registries) = (Some(configuration.injection), configuration.registries);
                }
            }
            Err(error) => {
                self.note("the configuration cannot be read, so bindings are not known, and times are those of its defaults", &error)
            }
        }
        match cluster.read_lease().await {
            Ok(lease) => self.lease = Some(lease),
            Err(error) if error.code() == Some(404) => self.lease = Some(LeaseRecord::default()),
            Err(error) => self.note("the Lease cannot be read, so nobody knows whether a replica reconciles", &error),
        }
    }

    /// Leaves a note of what could not be read.
    pub(super) fn note(&mut self, what: &str, error: &ApiError) {
        self.notes.push(format!("{what}: {error}"));
    }
}

/// A text, and the configuration that it is.
type InForce = (String, Configuration);

/// Who held the Lease last, and until when, as a sentence has it.
pub(super) fn last_held(lease: &LeaseRecord) -> String {
    match (&*lease.holder, lease.renewed) {
        (_, None) => "nobody has held it yet".to_owned(),
        (names::RELEASE_HOLDER, Some(at)) => format!("`lockstep release --all` took it at {}", clock(at)),
        ("", Some(at)) => format!("given back at {}", clock(at)),
        (holder, Some(at)) => format!("last renewed at {}, by {holder}", clock(at)),
    }
}

fn by_name(nodes: Vec<NodeView>) -> BTreeMap<Arc<str>, NodeView> {
    nodes.into_iter().map(|node| (node.name.clone(), node)).collect()
}

/// What is wrong with the newest text, and what is in force: the last good one where something is.
async fn configuration(cluster: &KubeCluster) -> Result<(Option<String>, Option<InForce>), ApiError> {
    let text = text(cluster, names::CONFIG_MAP).await?;
    let fault = match config::parse(&text) {
        Ok(configuration) => return Ok((None, Some((text, configuration)))),
        Err(_) if text.is_empty() => "it is not there, or has no text".to_owned(),
        Err(errors) => errors.errors.first().map(ToString::to_string).unwrap_or_default(),
    };
    Ok((Some(fault), last_good(cluster).await))
}

async fn last_good(cluster: &KubeCluster) -> Option<InForce> {
    let text = text(cluster, names::LAST_GOOD_CONFIG_MAP).await.ok()?;
    config::parse(&text).ok().map(|configuration| (text, configuration))
}

async fn text(cluster: &KubeCluster, name: &str) -> Result<String, ApiError> {
    match cluster.config_map(name, names::CONFIG_KEY).await {
        Ok(stored) => Ok(stored.text),
        Err(error) if error.code() == Some(404) => Ok(String::new()),
        Err(error) => Err(error),
    }
}
