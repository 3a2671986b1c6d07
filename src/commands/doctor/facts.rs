//! What the checks look at, read before any of them begins.
//!
//! Invariant: a fact that could not be read is absent, and then nothing is found about it.
//! Absent on purpose: reading (`reading`), judging (the checks).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::backing::Backing;
use super::trial::Tried;
use crate::commands::registries::{Answer, Answers};
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
    /// What stands in the cluster behind registries that fail, by their names.
    pub(super) backings: BTreeMap<String, Vec<Backing>>,
    /// UIDs of targets that registries hold for us, and that no pod of the cluster has.
    pub(super) strays: BTreeSet<String>,
    /// Pods of Lockstep itself, as they stand; absent where they could not be read.
    pub(super) replicas: Option<Vec<Value>>,
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
            backings: BTreeMap::new(),
            strays: BTreeSet::new(),
            replicas: None,
            missing_rights: BTreeMap::new(),
        }
    }

    /// Whether a namespace is opted in; where that could not be read, every one is taken for it.
    pub(super) fn is_opted_in(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.iter().any(|name| name == namespace))
    }

    /// What the registries answered, one for each service; nothing where they were not asked.
    pub(super) fn answered(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().flat_map(|answers| &answers.services)
    }

    /// What the registry of a service answered.
    pub(super) fn answer_of(&self, service: &ServiceId) -> Option<&Answer> {
        self.answered().find(|answer| *answer.registry == *service.registry && *answer.service == *service.service)
    }

    /// The page of a registry's kind.
    pub(super) fn page_of(&self, registry: &str) -> String {
        let known = self.around.registries.iter().find(|known| *known.name == *registry);
        known.map_or_else(|| "docs/registries".to_owned(), |known| format!("docs/registries/{}.md", known.driver.driver().as_str()))
    }

    /// Whether no replica of Lockstep runs; `None` where that could not be read.
    pub(super) fn is_down(&self) -> Option<bool> {
        let runs = |pod: &Value| pod.pointer("/status/phase").and_then(Value::as_str) == Some("Running");
        self.replicas.as_ref().map(|replicas| !replicas.iter().any(runs))
    }

    /// The bindings that select a pod.
    pub(super) fn bindings_of<'f>(&'f self, pod: &'f PodView) -> impl Iterator<Item = &'f Binding> {
        self.around.ground.bindings.iter().filter(|binding| pod.is_selected_by(binding))
    }
}
