//! What happens by itself, later: in order of time, then of entry.
//!
//! Invariant: of two things at one time the one that was entered first comes first.
//! Absent on purpose: what each does (`world`).

use std::sync::Arc;
use std::time::Duration;

use super::registry;
use crate::executor::ProcessId;

/// What happens by itself, later.
#[derive(Debug)]
pub(crate) enum Agenda {
    /// A clock of a target runs out.
    Target(registry::TargetClock),
    /// A registry does a change once more.
    Duplicate(registry::Repeat),
    /// A replica starts.
    Start(Arc<str>),
    /// A paused process goes on.
    Resume(ProcessId),
    /// A process that was asked to stop is ended.
    Kill(ProcessId),
    /// A watch has something to deliver by now.
    Deliver(usize),
    /// A watch is due for a bookmark.
    Bookmark(usize, u64),
    /// A replica reaches the API server again.
    Reconnect,
    /// There shall be an instant here.
    Nothing,
}

/// What the runner has to do after the world acted.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Start a process of this replica.
    Start(Arc<str>),
    /// Let a paused process go on.
    Resume(ProcessId),
}

/// Something on the agenda.
pub(super) struct Entry {
    pub(super) at: Duration,
    pub(super) sequence: u64,
    pub(super) what: Agenda,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed: a `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}
