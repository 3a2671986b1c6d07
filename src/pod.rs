//! A pod as the reconciler sees it: only the fields that decide, decoded into a small value.
//!
//! Ten thousand of them must fit into tens of megabytes, so nothing else is kept.
//!
//! Invariant: decoding is total: an unknown, missing or odd field never makes a pod unreadable.
//! Absent on purpose: the spec as a whole (admission reads it, from the raw review).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::config::Binding;
use crate::names;
use crate::registration::Reason;
use crate::registration::record::Record;
use crate::target::{PodKey, PodUid};

/// A pod, trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Namespace and name.
    pub key: PodKey,
    /// UID.
    pub uid: PodUid,
    /// Version of the object.
    pub resource_version: String,
    /// Labels.
    pub labels: Labels,
    /// What the record annotation says.
    pub record: Record,
    /// Whether the released annotation is there.
    pub released: bool,
    /// Whether our finalizer is there.
    pub finalizer: bool,
    /// Whether our readiness gate is there.
    pub gated: bool,
    /// The owner that controls it.
    pub controller: Option<Owner>,
    /// Deletion, once asked for.
    pub deletion: Option<Deletion>,
    /// Node; `None` while not scheduled.
    pub node: Option<Arc<str>>,
    /// Phase.
    pub phase: Phase,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Named and unnamed container ports, of regular and restartable init containers.
    pub ports: Vec<ContainerPort>,
    /// Containers that must be gone: regular ones and restartable init containers.
    pub containers: Vec<ContainerView>,
    /// When the last of `containers` terminated, as the kubelet says; `None` where it does not.
    pub finished: Option<jiff::Timestamp>,
    /// Whether it runs to completion (`restartPolicy` is not `Always`).
    pub completes: bool,
    /// The condition `ContainersReady`.
    pub containers_ready: Option<Condition>,
    /// Our gate's condition.
    pub gate: Option<Condition>,
    /// Our claims' condition.
    pub claims: Option<Condition>,
}

/// Labels in order of their keys: a map of a few short texts would take several times their room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

/// The owner that controls a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `apiVersion`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A deletion that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `deletionTimestamp`: the time of the request plus the grace.
    pub at: jiff::Timestamp,
    /// `deletionGracePeriodSeconds`.
    pub grace_seconds: i64,
}

impl Deletion {
    /// When it was asked for; `None` where that is no time.
    pub fn requested(self) -> Option<jiff::Timestamp> {
        self.at.checked_sub(jiff::SignedDuration::from_secs(self.grace_seconds)).ok()
    }
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers started yet.
    Pending,
    /// Bound to a node and started.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one badly.
    Failed,
    /// Anything else.
    Unknown,
}

/// A container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name, where it has one.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub number: u16,
}

/// A container that must be gone before the pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Whether its state is `terminated`; `false` without a status.
    pub terminated: bool,
    /// Whether it has a status at all.
    pub reported: bool,
}

/// A pod condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether the status is `True`.
    pub status: bool,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// `lastTransitionTime`.
    pub since: Option<jiff::Timestamp>,
}

impl PodView {
    /// Whether it carries our managed label, by which it is watched.
    pub fn is_labelled(&self) -> bool {
        self.labels.get(names::MANAGED_LABEL) == Some(names::MANAGED_VALUE)
    }

    /// Whether a label of its own keeps it from being prepared.
    pub fn is_opted_out(&self) -> bool {
        self.labels.get(names::INJECT_LABEL) == Some(names::INJECT_DISABLED)
    }

    /// Whether the binding selects it, by namespace and labels.
    pub fn is_selected_by(&self, binding: &Binding) -> bool {
        binding.selects(&self.key.namespace, |key| self.labels.get(key))
    }

    /// Whether our gate's condition is True.
    pub fn is_open(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.status)
    }
}

impl Condition {
    /// Of the gate: whether it is open because every registry acknowledged.
    pub fn is_registered(&self) -> bool {
        self.status && self.reason == Reason::Registered.as_str()
    }
}

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.0.get(place).map(|(_, value)| &**value)
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let ordered: BTreeMap<Box<str>, Box<str>> = labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self(ordered.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Labels;

    #[test]
    fn labels_are_found_whatever_their_order() {
        let labels: Labels = [("tier", "front"), ("app", "web"), ("app", "api")].into_iter().collect();
        assert_eq!(["app", "tier", "ap", ""].map(|key| labels.get(key)), [Some("api"), Some("front"), None, None]);
        assert_eq!(labels, [("app", "api"), ("tier", "front")].into_iter().collect());
    }
}
