//! How a simulated registry behaves, and how it answers.
//!
//! Invariant: one model of all kinds of registry; the defaults are those of the scenario format.
//! Absent on purpose: what a registry holds (`registry`).

use std::net::SocketAddr;
use std::time::Duration;

use lockstep::registry::{DrainKind, GoneWhen, Operation, TargetKeys};
use lockstep::target::{PodUid, TargetState};

use super::TargetKey;

/// How a registry behaves.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) drains: DrainKind,
    pub(crate) keys: TargetKeys,
    pub(crate) marks: bool,
    /// `None`: never.
    pub(crate) active_after: Option<Duration>,
    pub(crate) active_as: TargetState,
    /// `None`: never.
    pub(crate) draining_after: Option<Duration>,
    /// `None`: never.
    pub(crate) gone_after: Option<Duration>,
    pub(crate) gone_when: Option<GoneWhen>,
    pub(crate) answers: Answers,
    pub(crate) capacity: Option<usize>,
    pub(crate) batch: usize,
    pub(crate) latency: Duration,
    pub(crate) list_lag: Duration,
    pub(crate) duplicates: Option<Duration>,
    /// Whether reads can wait; never in a scenario.
    pub(crate) blocking: bool,
}

/// One word for each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) register: Answer,
    pub(crate) drain: Answer,
    pub(crate) deregister: Answer,
    pub(crate) list: Answer,
}

/// How a registry answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    Ok,
    Throttled,
    Unavailable,
    Denied,
    Timeout,
    Lost,
    Missing,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            drains: DrainKind::Explicit,
            keys: TargetKeys::Uid,
            marks: true,
            active_after: Some(Duration::ZERO),
            active_as: TargetState::Active,
            draining_after: Some(Duration::ZERO),
            gone_after: Some(Duration::ZERO),
            gone_when: None,
            answers: Answers::all(Answer::Ok),
            capacity: None,
            batch: 100,
            latency: Duration::ZERO,
            list_lag: Duration::ZERO,
            duplicates: None,
            blocking: false,
        }
    }
}

impl Answers {
    /// The same word for all.
    pub(crate) fn all(answer: Answer) -> Self {
        Self { register: answer, drain: answer, deregister: answer, list: answer }
    }

    pub(super) fn of(self, operation: Operation) -> Answer {
        match operation {
            Operation::Register => self.register,
            Operation::Drain => self.drain,
            Operation::Deregister => self.deregister,
        }
    }
}

impl Behaviour {
    /// When a target counts as gone.
    pub(crate) fn gone_when(&self) -> GoneWhen {
        self.gone_when.unwrap_or(match self.drains {
            DrainKind::Explicit => GoneWhen::Absent,
            DrainKind::ByDeregistering => GoneWhen::Draining,
        })
    }

    /// What tells a pod's target at that address from others.
    pub(crate) fn key(&self, address: SocketAddr, owner: Option<&PodUid>) -> TargetKey {
        match (self.keys, owner) {
            (TargetKeys::Exact, Some(uid)) => TargetKey::Exact(uid.clone(), address),
            (TargetKeys::Uid, Some(uid)) => TargetKey::Uid(uid.clone(), address.port()),
            _ => TargetKey::Address(address),
        }
    }
}
