//! What happened, in the order in which it happened.
//!
//! Judges count here; nothing is ever changed or removed.
//!
//! Invariant: every list is in order of time, so that a window is found by bisection.
//! Absent on purpose: states, which the world itself shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep::registry::Operation;

use super::pods::PodId;

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Virtual time.
    pub(crate) at: Duration,
    /// Which expectation or invariant.
    pub(crate) rule: String,
    /// What should have been.
    pub(crate) wanted: String,
    /// What was.
    pub(crate) found: String,
}

/// Pod writes by what they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WriteKind {
    /// Our conditions.
    Status,
    /// Takes our finalizer.
    Finalizer,
    /// Adds our label or finalizer.
    Adopt,
}

/// One change that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Duration,
    pub(crate) operation: Operation,
    pub(crate) pod: Option<PodId>,
    pub(crate) registry: Arc<str>,
    pub(crate) service: Arc<str>,
}

/// One message that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Duration,
    pub(crate) registry: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) apply: bool,
}

/// One pod write that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) at: Duration,
    pub(crate) pod: PodId,
    pub(crate) kind: WriteKind,
}

/// One thing that `order` can name.
#[derive(Clone, Debug)]
pub(crate) struct Milestone {
    pub(crate) at: Duration,
    pub(crate) pod: PodId,
    pub(crate) what: What,
    pub(crate) registry: Option<Arc<str>>,
}

/// What `order` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Sent(Operation),
    Active,
    Draining,
    Gone,
    GateTrue,
    GateFalse,
    FinalizerRemoved,
    FinalizerAdded,
    Reaped,
}

/// One event object.
#[derive(Clone, Debug)]
pub(crate) struct EventObject {
    pub(crate) at: Duration,
    pub(crate) pod: Option<PodId>,
    pub(crate) warning: bool,
    pub(crate) reason: String,
    pub(crate) count: u64,
}

/// Everything that was recorded.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) calls: Vec<Call>,
    pub(crate) requests: Vec<Request>,
    pub(crate) writes: Vec<Write>,
    pub(crate) milestones: Vec<Milestone>,
    pub(crate) events: Vec<EventObject>,
    pub(crate) event_index: BTreeMap<(String, bool, String, String), usize>,
    /// How often each fault was met, by its name.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// How often each case of the table of pods was reached.
    pub(crate) rows: BTreeMap<&'static str, u64>,
    /// How often each reason was written.
    pub(crate) reasons: BTreeMap<String, u64>,
}

impl Record {
    /// Counts a case of the table of pods.
    pub(crate) fn row(&mut self, name: &'static str) {
        *self.rows.entry(name).or_default() += 1;
    }

    /// Counts a fault that the product met.
    pub(crate) fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }
}

/// The part of a list that lies in a window, both ends included.
pub(crate) fn window<T>(list: &[T], from: Duration, to: Duration, at: impl Fn(&T) -> Duration) -> &[T] {
    let begin = list.partition_point(|one| at(one) < from);
    let end = list.partition_point(|one| at(one) <= to);
    &list[begin.min(end)..end]
}

/// Whether a handle is meant by a pattern: itself, or everything that begins so.
pub(crate) fn means(pattern: &str, handle: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == handle, |prefix| handle.starts_with(prefix))
}

/// Whether a handle is meant by one of the patterns; all are where there are none.
pub(crate) fn meant(patterns: Option<&[String]>, handle: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| means(pattern, handle)))
}
