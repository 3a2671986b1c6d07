//! Where a pod stands in its life, from what Kubernetes says of it and its node.
//!
//! Kubelets die, pods say nothing when their node shuts down, and a forced deletion says nothing about the process;
//! so this is decided in one place, from all of it.
//!
//! Invariant: total and pure; a pod that is neither deleted nor ended is never called gone.
//! Absent on purpose: anything about registries.

use std::time::Duration;

use crate::pod::{Deletion, Phase, PodView};

/// What is known of a pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The pod was never scheduled.
    None,
    /// There and well.
    Well,
    /// Not Ready or unreachable: whether the containers run is not known.
    Lost,
    /// The object is gone, or tainted out-of-service: nothing runs there any more.
    Gone,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The stage.
    pub stage: Stage,
    /// Deleted with grace 0 while the kubelet has not reported the containers gone.
    pub forced: bool,
}

/// Stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// No address, or containers never ready.
    Waiting,
    /// Containers ready, on a node that is not lost.
    Serving,
    /// Was serving and is not now.
    NotServing(Cause),
    /// Being deleted, containers running as far as anybody knows.
    Terminating,
    /// Containers gone.
    Gone,
}

/// Why a pod does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Its containers are not ready.
    Unready,
    /// Its node is lost.
    NodeLost,
}

/// Where `pod` stands now. `served`: it has claims or an open gate, so its containers were ready once.
pub fn life(pod: &PodView, served: bool, node: Node, now: jiff::Timestamp, unreachable_after: Duration) -> Life {
    let forced = forced(pod, node);
    let stage = if pod.deletion.is_some() || ended(pod) {
        if containers_gone(pod, node, now, unreachable_after) { Stage::Gone } else { Stage::Terminating }
    } else {
        live_stage(pod, served, node)
    };
    Life { stage, forced }
}

/// Since when the containers of a pod that is gone are gone, as far as can be known; `now` where nobody says.
pub fn gone_since(pod: &PodView, now: jiff::Timestamp, unreachable_after: Duration) -> jiff::Timestamp {
    let deleted = pod.deletion.and_then(Deletion::requested);
    let reported = ended(pod) || pod.containers.iter().all(|container| container.terminated);
    let known = if reported {
        pod.finished.map(|finished| deleted.map_or(finished, |deleted| finished.max(deleted)))
    } else {
        pod.deletion.map(|deletion| later(deletion.at, unreachable_after)).filter(|at| *at <= now)
    };
    known.unwrap_or(now)
}

/// Whether the pod ended by itself: the kubelet writes such a phase only when nothing runs any more.
pub fn ended(pod: &PodView) -> bool {
    matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// Whether the pod is neither being deleted nor ended.
pub fn live(pod: &PodView) -> bool {
    pod.deletion.is_none() && !ended(pod)
}

impl Stage {
    /// Whether the pod is neither being deleted nor ended.
    pub fn live(self) -> bool {
        match self {
            Self::Waiting | Self::Serving | Self::NotServing(_) => true,
            Self::Terminating | Self::Gone => false,
        }
    }
}

fn live_stage(pod: &PodView, served: bool, node: Node) -> Stage {
    let ready = pod.containers_ready.as_ref().is_some_and(|condition| condition.status);
    let lost = matches!(node, Node::Lost | Node::Gone);
    match (pod.addresses.is_empty(), ready, served) {
        (true, _, _) | (false, false, false) => Stage::Waiting,
        (false, true, _) if lost => Stage::NotServing(Cause::NodeLost),
        (false, true, _) => Stage::Serving,
        (false, false, true) => Stage::NotServing(if lost { Cause::NodeLost } else { Cause::Unready }),
    }
}

/// Whether the kubelet itself says that nothing runs any more.
fn reported_gone(pod: &PodView) -> bool {
    ended(pod) || (pod.containers.iter().any(|container| container.reported) && pod.containers.iter().all(|container| container.terminated))
}

fn containers_gone(pod: &PodView, node: Node, now: jiff::Timestamp, unreachable_after: Duration) -> bool {
    reported_gone(pod)
        || matches!(node, Node::None | Node::Gone)
        || pod.deletion.is_some_and(|deletion| now >= later(deletion.at, unreachable_after))
}

fn forced(pod: &PodView, node: Node) -> bool {
    pod.deletion.is_some_and(|deletion| deletion.grace_seconds <= 0) && node != Node::None && !reported_gone(pod)
}

/// `at` plus `delay`; the far future where that is out of range.
pub fn later(at: jiff::Timestamp, delay: Duration) -> jiff::Timestamp {
    jiff::SignedDuration::try_from(delay).ok().and_then(|delay| at.checked_add(delay).ok()).unwrap_or(jiff::Timestamp::MAX)
}
