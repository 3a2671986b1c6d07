//! What the checks look at, read before any of them begins.
//!
//! Invariant: a fact that could not be read is absent, and then nothing is found about it.
//! Absent on purpose: reading (`reading`), judging (the checks).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::trial::Tried;
use crate::commands::registries::Answers;
use crate::commands::status::sight::{Sight, Told};
use crate::commands::surroundings::Surroundings;
use crate::config::Binding;
use crate::pod::PodView;
use crate::registration::claim::Debt;
use crate::target::ServiceId;

/// The cluster, as far as the checks look at it.
#[derive(Debug)]
pub(super) struct Facts {
    /// When it was read.
    pub(super) now: Timestamp,
    /// Namespace of Lockstep.
    pub(super) own_namespace: String,
    /// Opted-in namespaces, without those that are left out of the look.
    pub(super) namespaces: Option<Vec<String>>,
    /// Deployments, StatefulSets and DaemonSets of those, as they stand.
    pub(super) workloads: Vec<Value>,
    /// Pods of those namespaces, managed or not.
    pub(super) pods: Vec<Sight>,
    /// Our warnings about them.
    pub(super) told: Vec<Told>,
    /// Nodes, the configuration, the Lease.
    pub(super) around: Surroundings,
    /// Our MutatingWebhookConfiguration: `Null` where it is not there.
    pub(super) webhook: Option<Value>,
    /// The debts.
    pub(super) debts: Vec<Debt>,
    /// The pod that the API server tried; absent where none could be.
    pub(super) tried: Option<Tried>,
    /// What the registries answered; absent where they were not asked.
    pub(super) answers: Option<Answers>,
    /// UIDs of targets that registries hold for us, and that no pod of the cluster has.
    pub(super) strays: BTreeSet<String>,
    /// Pods of Lockstep itself, as they stand.
    pub(super) replicas: Vec<Value>,
    /// Whether none of them runs; absent where that could not be read.
    pub(super) is_down: Option<bool>,
    /// Rights that the program lacks, each with what does not work without it.
    pub(super) missing_rights: BTreeMap<String, &'static str>,
}

impl Facts {
    /// Nothing but a time.
    pub(super) fn empty(now: Timestamp, own_namespace: &str) -> Self {
        Self {
            now,
            own_namespace: own_namespace.to_owned(),
            namespaces: None,
            workloads: Vec::new(),
            pods: Vec::new(),
            told: Vec::new(),
            around: Surroundings::default(),
            webhook: None,
            debts: Vec::new(),
            tried: None,
            answers: None,
            strays: BTreeSet::new(),
            replicas: Vec::new(),
            is_down: None,
            missing_rights: BTreeMap::new(),
        }
    }

    /// Whether a namespace is opted in; where that could not be read, every one is taken for it.
    pub(super) fn is_opted_in(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.iter().any(|name| name == namespace))
    }

    /// The drain delay that the registry of a service says at present, where it was asked and said so.
    pub(super) fn answered_delay(&self, service: &ServiceId) -> Option<Duration> {
        let mut services = self.answers.iter().flat_map(|answers| &answers.services);
        let of = services.find(|answer| *answer.registry == *service.registry && *answer.service == *service.service)?;
        of.drain_delay_seconds.map(Duration::from_secs)
    }

    /// The bindings that select a pod.
    pub(super) fn bindings_of<'f>(&'f self, pod: &'f PodView) -> impl Iterator<Item = &'f Binding> {
        let selects = |binding: &&Binding| binding.selects(&pod.key.namespace, |key| pod.labels.get(key));
        self.around.ground.bindings.iter().filter(selects)
    }
}
