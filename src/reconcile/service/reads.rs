//! Reads of one service: when the next is due, how it begins, what its answer changes.
//!
//! Plain reads and one that waits for a change are under way side by side, so answers may come in another order than they were asked for.
//!
//! Invariant: what is known is never replaced by what is older.
//! Absent on purpose: what an answer says of one target (`reading`), I/O (`calls`).

use std::collections::BTreeSet;
use std::time::Duration;

use super::complaint::Complaint;
use super::reading::Reading;
use super::{SHOWN_AFTER, Seq, Service};
use crate::reconcile::clock::Instant;
use crate::registration::observe::{Doing, Seen};
use crate::registry::{CallError, Capabilities, Listing};
use crate::target::{PodUid, TargetState};

/// Two reads that are needed at once are this far apart at least.
const READ_SPACING: Duration = Duration::from_millis(10);
/// What a listed target adds to that: reading ten thousand targets costs the registry more than reading ten.
const READ_SPACING_A_TARGET: Duration = Duration::from_micros(10);

impl Service {
    /// A read begins; the index to wait from, where it may wait for a change. `next_audit`: when the next audit is due, if this is one.
    pub fn begin_read(&mut self, began: Seq, now: Instant, next_audit: Instant, capabilities: &Capabilities) -> Option<u64> {
        let audit = now >= self.audit_due;
        let waits = !self.read_needed && !audit && !self.waiting.is_empty() && self.can_block(capabilities) && self.blocking.is_none();
        self.last_read = Some(now);
        if waits {
            self.blocking = Some(began);
            return self.reading.as_ref().and_then(|reading| reading.index);
        }
        if audit {
            self.audit_due = next_audit;
            self.audit_open = true;
        }
        self.listing = Some(began);
        self.overtaken = false;
        self.read_needed = false;
        None
    }

    /// Whether an audit was answered since this was asked last.
    pub fn audited(&mut self) -> bool {
        std::mem::take(&mut self.audit_open)
    }

    /// Takes the answer to a read, `None` where it was not sent after all; the pods for which it says something new.
    pub fn listed(&mut self, began: Seq, answer: Option<Result<Listing, CallError>>, now: Instant, jitter: f64) -> Vec<PodUid> {
        let stamps = self.stamps();
        let blocking = self.blocking.take_if(|seq| *seq == began).is_some();
        let plain = self.listing.take_if(|seq| *seq == began).is_some();
        let listing = match answer {
            Some(Ok(listing)) => listing,
            // A service that does not exist holds nothing.
            Some(Err(CallError::ServiceMissing(_))) => Listing::default(),
            Some(Err(error)) => {
                self.read_needed |= plain;
                return self.list_failed(&error, now, jitter);
            }
            None => {
                self.read_needed |= plain;
                return Vec::new();
            }
        };
        self.list_backoff.succeed();
        self.complaint = None;
        let Some(began) = self.place_of(began, listing.index.filter(|_| blocking)).filter(|_| blocking || plain) else { return Vec::new() };
        let known = self.reading.as_ref().and_then(|reading| reading.index);
        if plain && self.overtaken && listing.index < known {
            self.read_needed = true;
            return Vec::new();
        }
        self.overtaken |= blocking && self.listing.is_some();
        let mut reading = Reading::new(began, listing);
        if self.one_place_a_pod() {
            reading.note_strays(|key| self.books.contains_key(key));
        }
        let mut concerned: BTreeSet<PodUid> = self.waiting.clone();
        for (key, book) in &mut self.books {
            reading.share(key);
            let look = |reading: &Reading| (reading.began > book.settled).then(|| reading.look(key, stamps, book.observes));
            let (before, after) = (self.reading.as_ref().and_then(look), look(&reading));
            if before != after {
                concerned.insert(key.uid.clone());
            }
            if after == Some(Seen::Absent) && !matches!(book.doing, Doing::Sent(_)) {
                book.owned = false;
            }
            if matches!(after, Some(Seen::Listed { state, .. }) if state != TargetState::Draining) {
                book.shown_in_use();
            }
        }
        self.reading = Some(reading);
        concerned.into_iter().collect()
    }

    pub(super) fn read_due(&self, capabilities: &Capabilities) -> Option<Instant> {
        if self.listing.is_some() {
            return None;
        }
        let spacing = READ_SPACING + READ_SPACING_A_TARGET * u32::try_from(self.books.len()).unwrap_or(u32::MAX);
        let apart = |pause: Duration| self.last_read.map_or(Instant::default(), |last| last.after(pause));
        let due = match (self.read_needed, self.waiting.is_empty(), self.can_block(capabilities)) {
            (true, _, _) => apart(spacing),
            (false, false, true) if self.blocking.is_none() => apart(spacing),
            (false, false, false) => apart(capabilities.poll),
            (false, true, false) if self.reading.as_ref().is_some_and(|reading| reading.unfinished) => apart(capabilities.poll),
            (false, _, _) => self.audit_due,
        };
        Some(due.min(self.audit_due).max(self.list_backoff.until()))
    }

    fn can_block(&self, capabilities: &Capabilities) -> bool {
        capabilities.blocking_read && self.reading.as_ref().is_some_and(|reading| reading.index.is_some())
    }

    fn list_failed(&mut self, error: &CallError, now: Instant, jitter: f64) -> Vec<PodUid> {
        self.list_backoff.fail(now, jitter);
        if self.list_backoff.failures() < SHOWN_AFTER || !Complaint::of_call(error, now).show_in(&mut self.complaint) {
            return Vec::new();
        }
        self.waiting.iter().cloned().collect()
    }

    /// Where in the order an answer to a read counts; `None`: what is known is newer. A read that waited, whose index is `waited`, may say
    /// what is newer though it was asked for before: then it counts like the one it adds to.
    fn place_of(&self, began: Seq, waited: Option<u64>) -> Option<Seq> {
        let Some(known) = self.reading.as_ref().filter(|known| known.began > began) else { return Some(began) };
        let newer = known.index.zip(waited).is_some_and(|(known, index)| index > known);
        newer.then_some(known.began)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use rstest::rstest;

    use super::super::Due;
    use super::*;
    use crate::registry::{DrainKind, GoneWhen, TargetKeys};
    use crate::target::ServiceId;

    /// What goes on only as it is looked at must not wait for an audit, though no pod waits for it.
    #[rstest]
    #[case::unfinished(true, 1)]
    #[case::at_rest(false, 60)]
    fn what_is_unfinished_is_read_again_soon(#[case] unfinished: bool, #[case] seconds: u64) {
        let capabilities = Capabilities {
            drain: DrainKind::Explicit,
            keys: TargetKeys::Exact,
            stamps: true,
            blocking_read: false,
            batch: NonZeroUsize::MIN,
            gone_when: GoneWhen::Absent,
            poll: Duration::from_secs(1),
        };
        let start = Instant::default();
        let mut service = Service::new(ServiceId::new("lan", "web"));
        service.begin_read(Seq(1), start, start.after(Duration::from_secs(60)), &capabilities);
        service.listed(Seq(1), Some(Ok(Listing { unfinished, ..Listing::default() })), start, 0.5);
        let [_, due] = service.due(&capabilities);
        assert_eq!(due, Some(Due::Read(start.after(Duration::from_secs(seconds)))));
    }
}
