//! What we change on a Pod and what we never touch.
//!
//! ```text
//! bytes ─▶ review ─▶ PodRequest ─▶ decide ─▶ Decision ─▶ patch ─▶ review ─▶ bytes
//! ```
//!
//! Only the CREATE of a pod is ever changed: it gets the readiness gate, the finalizer, the managed label and the record, and where
//! a sleep is wanted, that sleep and a grace period that is longer by as much. Everything else in it is foreign and is not looked at.
//!
//! Invariant: pure: the same bytes and the same [`Snapshot`] give the same answer; no clock, no call, no log.
//! Invariant: a pod is never refused; what cannot be handled is let through as it is, with a reason.
//! Absent on purpose: HTTP and TLS (`server`), where the snapshot comes from (`runtime`).

mod decide;
mod finding;
mod hook;
pub mod offline;
mod part;
mod patch;
mod pod;
pub mod prestop;
pub mod record;
pub mod review;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub use decide::Reason;
pub use finding::Finding;
pub use prestop::SleepForm;
pub use review::{Answered, Refusal, answer};

use crate::config::{Binding, Configuration};

/// Everything an answer depends on besides the review.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The configuration.
    pub configuration: Arc<Configuration>,
    /// Our own namespace, whose pods are never injected.
    pub own_namespace: Arc<str>,
    /// What the registries say.
    pub delays: Delays,
    /// Form of the sleep, from the configuration and the cluster's versions ([`prestop::sleep_form`]).
    pub sleep: SleepForm,
}

/// What the registries say about drain delays; made anew with every change of the configuration or of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    answers: Vec<Option<Duration>>,
    told_at: Vec<Option<Timestamp>>,
}

impl Delays {
    /// Asks `answered` for each binding in turn: the registry's present answer, `None` where there is none or it is stale.
    pub fn resolve(configuration: &Configuration, answered: impl FnMut(&Binding) -> Option<Duration>) -> Self {
        Self { answers: configuration.bindings.iter().map(answered).collect(), told_at: Vec::new() }
    }

    /// The same, with the time of each binding's answer, where it is known.
    #[must_use]
    pub fn told_at(self, configuration: &Configuration, told_at: impl FnMut(&Binding) -> Option<Timestamp>) -> Self {
        Self { told_at: configuration.bindings.iter().map(told_at).collect(), ..self }
    }

    /// The answer for the binding at that place of the configuration.
    pub fn answer(&self, index: usize) -> Option<Duration> {
        self.answers.get(index).copied().flatten()
    }

    /// When that answer came.
    fn answered_at(&self, index: usize) -> Option<Timestamp> {
        self.answer(index).and(self.told_at.get(index).copied().flatten())
    }
}
