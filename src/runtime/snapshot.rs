//! What admission answers from, made anew whenever something that it depends on has changed.
//!
//! Invariant: there is no snapshot before the configuration, the nodes and the API server's version were read once.
//! Absent on purpose: decisions; the parts are only brought together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::admission::prestop::sleep_form;
use crate::admission::{Delays, Snapshot};
use crate::config::Configuration;
use crate::probes::Readiness;
use crate::reconcile::Clock;
use crate::reconcile::cluster::{Cluster, NodeChange};
use crate::reconcile::kubernetes::{Api, KubeCluster};
use crate::reconcile::tokio_clock::TokioClock;
use crate::registry::delays::Known;

/// The API server is asked for its version this often: an upgrade, or a way back, takes longer.
const VERSION_REFRESH: Duration = Duration::from_secs(60);
/// And this often until it has told it once.
const VERSION_RETRY: Duration = Duration::from_secs(1);

/// Brings the parts of a snapshot together.
pub(super) struct Maker {
    pub(super) api: Api,
    pub(super) cluster: KubeCluster,
    pub(super) clock: TokioClock,
    pub(super) own_namespace: Arc<str>,
    pub(super) configuration: watch::Receiver<Option<Arc<Configuration>>>,
    pub(super) delays: watch::Receiver<Known>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) snapshot: Arc<ArcSwapOption<Snapshot>>,
}

/// Versions of the cluster; `None` until they were read once.
#[derive(Default)]
struct Versions {
    server: Option<String>,
    nodes: Option<BTreeMap<Arc<str>, String>>,
}

impl Maker {
    /// Runs for good.
    pub(super) async fn run(mut self) {
        let mut nodes = self.cluster.nodes();
        let mut versions = Versions { server: self.version().await, nodes: None };
        let mut ask = tokio::time::interval(VERSION_REFRESH);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The tick is also when an answer of a registry is noticed to be stale.
            tokio::select! {
                change = nodes.next() => if let Some(change) = change { versions.take(change) },
                _ = ask.tick() => {
                    if let Some(version) = self.version().await {
                        versions.server = Some(version);
                    }
                    ask.reset_after(if versions.server.is_some() { VERSION_REFRESH } else { VERSION_RETRY });
                }
                changed = self.configuration.changed() => if changed.is_err() { return },
                changed = self.delays.changed() => if changed.is_err() { return },
            }
            self.make(&versions);
        }
    }

    fn make(&mut self, versions: &Versions) {
        // Both are marked as seen before anything else, or the loop would come back at once.
        let configuration = self.configuration.borrow_and_update().clone();
        let known = self.delays.borrow_and_update();
        let (Some(server), Some(nodes)) = (&versions.server, &versions.nodes) else { return };
        self.readiness.versions.store(true, Ordering::Relaxed);
        let Some(configuration) = configuration else { return };
        let now = self.clock.now();
        let delays = Delays::resolve(&configuration, |binding| known.answer(&binding.service, now))
            .told_at(&configuration, |binding| known.told_at(&binding.service));
        let sleep = sleep_form(configuration.injection.pre_stop, server, nodes.values().map(String::as_str));
        let own_namespace = self.own_namespace.clone();
        self.snapshot.store(Some(Arc::new(Snapshot { configuration, own_namespace, delays, sleep })));
    }

    async fn version(&self) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        match self.api.read::<Version>("/version").await {
            Ok(version) => Some(version.git_version),
            Err(error) => {
                tracing::warn!(%error, "the API server's version cannot be read");
                None
            }
        }
    }
}

impl Versions {
    fn take(&mut self, change: NodeChange) {
        match change {
            NodeChange::All(all) => self.nodes = Some(all.into_iter().map(|node| (node.name, node.kubelet_version)).collect()),
            NodeChange::Applied(node) => _ = self.nodes.get_or_insert_default().insert(node.name, node.kubelet_version),
            NodeChange::Gone(name) => _ = self.nodes.get_or_insert_default().remove(&name),
        }
    }
}
