//! What is known of one target: our last change, what came of it, and when another may be sent.
//!
//! Invariant: a change that certainly never left changes nothing of what is known.
//! Absent on purpose: what the registry shows (`reading`).

use std::time::Duration;

use super::complaint::Complaint;
use super::{SHOWN_AFTER, Seq};
use crate::reconcile::clock::Instant;
use crate::reconcile::limits::Backoff;
use crate::registration::observe::{Doing, Outcome};
use crate::registry::{CallError, ChangeError, Operation};
use crate::target::PodKey;

/// A register that a later read contradicts is sent again, but not sooner.
const REGISTER_AGAIN: Duration = Duration::from_secs(5);
/// A drain that a later read does not show is sent again, but not sooner.
const DRAIN_AGAIN: Duration = Duration::from_secs(15);
/// A target that is still listed after it was taken out: registries take their time.
const DEREGISTER_AGAIN: Duration = Duration::from_secs(60);

/// What is known of one target.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) pod: PodKey,
    pub(super) owner: Owner,
    pub(super) weight: u16,
    pub(super) observes: bool,
    pub(super) doing: Doing,
    pub(super) queued_at: Instant,
    pub(super) last: Option<(Operation, Outcome, Seq)>,
    /// Reads that began later count.
    pub(super) settled: Seq,
    pub(super) owned: bool,
    pub(super) fresh_claim: bool,
    /// We took it out of use, or may have, and nothing says that it is in use again.
    pub(super) drained: bool,
    pub(super) complaint: Option<Complaint>,
    backoff: Backoff,
    failed: Option<Operation>,
    again: Option<(Operation, Instant)>,
}

/// On whose behalf a target is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A pod's, by its plans.
    Pod,
    /// Nobody's: its pod is gone, and it is owed.
    Debt,
    /// Nobody's: its stamp says that it is ours.
    Orphan,
}

/// How the book of a target is opened.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The pod, by name.
    pub pod: &'a PodKey,
    /// On whose behalf it is kept.
    pub owner: Owner,
    /// Position in the order of requests and answers.
    pub seq: Seq,
    /// The claim only observes.
    pub observes: bool,
    /// The claim was written by this process, just now.
    pub fresh: bool,
    /// The pod's gate vouches for it.
    pub owned: bool,
}

impl Book {
    pub(super) fn new(entry: &Entry<'_>) -> Self {
        Self {
            pod: entry.pod.clone(),
            owner: entry.owner,
            weight: 0,
            observes: entry.observes,
            doing: Doing::Nothing,
            queued_at: Instant::default(),
            last: None,
            // What stood at an observed address before the claim may be somebody else's.
            settled: if entry.observes { entry.seq } else { Seq(0) },
            owned: entry.owned,
            fresh_claim: entry.fresh,
            drained: false,
            complaint: None,
            backoff: Backoff::default(),
            failed: None,
            again: None,
        }
    }

    /// Before this, `operation` is not sent.
    pub(super) fn not_before(&self, operation: Operation) -> Instant {
        let failed = if self.failed == Some(operation) { self.backoff.until() } else { Instant::default() };
        match self.again {
            Some((of, at)) if of == operation => failed.max(at),
            _ => failed,
        }
    }

    /// The change was done.
    pub(super) fn accepted(&mut self, operation: Operation, seq: Seq, now: Instant) {
        self.note(operation, Outcome::Accepted, seq);
        self.backoff.succeed();
        self.failed = None;
        self.complaint = None;
        let pause = match operation {
            Operation::Register => REGISTER_AGAIN,
            Operation::Drain => DRAIN_AGAIN,
            Operation::Deregister => DEREGISTER_AGAIN,
        };
        self.again = Some((operation, now.after(pause)));
    }

    /// The change was answered, and was not done, or not all of it.
    pub(super) fn refused(&mut self, operation: Operation, error: &ChangeError, seq: Seq, now: Instant, jitter: f64) {
        let outcome = match error {
            ChangeError::NotFound => Outcome::NotFound,
            ChangeError::Full(_) | ChangeError::Throttled(_) | ChangeError::Denied(_) | ChangeError::Refused(_) => Outcome::Refused,
            ChangeError::Unfinished(_) => Outcome::Unknown,
        };
        self.note(operation, outcome, seq);
        if self.failed != Some(operation) {
            self.backoff.succeed();
        }
        self.failed = Some(operation);
        self.backoff.fail(now, jitter);
        let acknowledges = outcome == Outcome::NotFound && operation != Operation::Register;
        if acknowledges {
            self.complaint = None;
        } else if self.backoff.failures() >= SHOWN_AFTER {
            Complaint::of_change(error, now).show_in(&mut self.complaint);
        }
    }

    /// The whole call failed; its service keeps the pace. `shown`: what people are to see of it.
    pub(super) fn call_failed(&mut self, operation: Operation, error: &CallError, seq: Seq, shown: Option<Complaint>) {
        match error {
            CallError::Unavailable(_) => {}
            CallError::Throttled(_) | CallError::Denied(_) => self.note(operation, Outcome::Refused, seq),
            CallError::ServiceMissing(_) => self.note(operation, Outcome::NotFound, seq),
            CallError::Timeout | CallError::Failed(_) => self.note(operation, Outcome::Unknown, seq),
        }
        if let Some(complaint) = shown {
            complaint.show_in(&mut self.complaint);
        }
    }

    /// Notes what came of a change that may have left.
    pub(super) fn note(&mut self, operation: Operation, outcome: Outcome, seq: Seq) {
        self.last = Some((operation, outcome, seq));
        self.settled = seq;
        self.again = None;
        match (operation, outcome) {
            (Operation::Register, Outcome::Accepted) => {
                self.owned = true;
                self.fresh_claim = false;
                self.drained = false;
            }
            (Operation::Register, Outcome::Unknown) => self.fresh_claim = false,
            (Operation::Deregister, Outcome::Accepted | Outcome::NotFound | Outcome::Unknown) | (Operation::Drain, Outcome::NotFound) => {
                self.owned = false;
            }
            _ => {}
        }
        self.drained |= operation != Operation::Register && outcome != Outcome::Refused;
    }

    /// Whether a change of ours keeps it out of use, as far as is known.
    pub(super) fn may_be_out(&self) -> bool {
        self.drained || matches!(self.doing, Doing::Sent(Operation::Drain | Operation::Deregister))
    }

    /// A read that counts shows it in use: what nobody knew the outcome of was not done. What was done may not show yet.
    pub(super) fn shown_in_use(&mut self) {
        let done = matches!(self.last, Some((Operation::Drain | Operation::Deregister, Outcome::Accepted, _)));
        self.drained &= done;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A drain that some of a registry may have must go on counting against the budget.
    #[rstest]
    #[case::unfinished(ChangeError::Unfinished(String::new()), Outcome::Unknown, true)]
    #[case::refused(ChangeError::Refused(String::new()), Outcome::Refused, false)]
    fn what_was_done_in_part_may_be_out_of_use(#[case] error: ChangeError, #[case] outcome: Outcome, #[case] out: bool) {
        let pod = PodKey::new("shop", "web-1");
        let entry = Entry { pod: &pod, owner: Owner::Pod, seq: Seq(1), observes: false, fresh: false, owned: true };
        let (mut book, now) = (Book::new(&entry), Instant::default());
        book.refused(Operation::Drain, &error, Seq(2), now, 0.0);
        assert_eq!((book.last, book.may_be_out()), (Some((Operation::Drain, outcome, Seq(2))), out));
        assert!(book.not_before(Operation::Drain) > now, "and is sent again, but not at once");
    }
}
