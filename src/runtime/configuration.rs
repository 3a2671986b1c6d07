//! The present configuration of this replica: the ConfigMap's text if it is valid, else the last good one.
//!
//! Invariant: a bad text never replaces a good configuration, and is said aloud with path and line.
//! Absent on purpose: keeping the last good text and Events about a bad one (the leader's, in `reconcile`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;

use crate::config::{self, Configuration};
use crate::probes::Readiness;
use crate::reconcile::cluster::{Cluster, Store};

/// Errors of one text that are logged; a person fixes the first ones and looks again.
const LOGGED: usize = 20;
/// Until there is any configuration, the last good one is looked for this often.
const RETRY: Duration = Duration::from_secs(5);

/// Follows the ConfigMap.
pub(super) struct Follower<C: Cluster> {
    pub(super) cluster: C,
    pub(super) readiness: Arc<Readiness>,
    pub(super) current: watch::Sender<Option<Arc<Configuration>>>,
}

impl<C: Cluster> Follower<C> {
    /// Runs for good.
    pub(super) async fn run(self) {
        let mut texts = self.cluster.configuration();
        let mut bad = false;
        loop {
            let text = if bad && self.current.borrow().is_none() {
                match tokio::time::timeout(RETRY, texts.next()).await {
                    Ok(text) => text,
                    Err(_) => {
                        self.fall_back().await;
                        continue;
                    }
                }
            } else {
                texts.next().await
            };
            let Some(text) = text else { return };
            bad = !self.take(text.as_deref());
            if bad && self.current.borrow().is_none() {
                self.fall_back().await;
            }
        }
    }

    /// Takes a text over if it is valid.
    fn take(&self, text: Option<&str>) -> bool {
        let Some(text) = text else {
            tracing::error!(error = "the ConfigMap or its key is missing", "the configuration cannot be used; the last good one is kept");
            return false;
        };
        match config::parse(text) {
            Ok(configuration) => {
                self.set(configuration);
                tracing::info!("configuration read");
                true
            }
            Err(errors) => {
                for error in errors.errors.iter().take(LOGGED) {
                    tracing::error!(%error, "the configuration is not valid; the last good one is kept");
                }
                false
            }
        }
    }

    /// After a start with a bad text: the one that the leader kept.
    async fn fall_back(&self) {
        match self.cluster.read_store(Store::LastGood).await {
            Ok(stored) => match config::parse(&stored.text) {
                Ok(configuration) => {
                    self.set(configuration);
                    tracing::warn!("the last good configuration is used");
                }
                Err(_) => tracing::error!("there is no last good configuration either; no review can be answered"),
            },
            Err(error) => tracing::error!(%error, "the last good configuration cannot be read"),
        }
    }

    fn set(&self, configuration: Configuration) {
        self.current.send_replace(Some(Arc::new(configuration)));
        self.readiness.configuration.store(true, Ordering::Relaxed);
    }
}
