//! What keeps failing, with the registry's own words, as it is shown on pods.
//!
//! A kind of trouble says what to look at; often only the registry's own words say what to do.
//!
//! Invariant: words of one kind of trouble take the place of others at most once in [`WORDS_REST`]: a text that differs with each answer
//! (a time, the number of a request) must not write to every pod with each answer.
//! Absent on purpose: when a failure is shown (`service`), the sentence that it becomes (`registration`).

use std::sync::Arc;
use std::time::Duration;

use crate::reconcile::clock::Instant;
use crate::registration::observe::Trouble;
use crate::registry::text::bounded;
use crate::registry::{CallError, ChangeError};

/// Longer than a person needs to see what their mend has changed would be too long; shorter costs writes.
const WORDS_REST: Duration = Duration::from_secs(60);

/// What keeps failing.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    pub(super) trouble: Trouble,
    /// One bounded line.
    pub(super) words: Option<Arc<str>>,
    since: Instant,
}

impl Complaint {
    /// What a failed call is called towards people.
    pub(super) fn of_call(error: &CallError, now: Instant) -> Self {
        match error {
            CallError::Unavailable(words) => Self::new(Trouble::Unreachable, words, now),
            CallError::Throttled(words) => Self::new(Trouble::Throttled, words, now),
            CallError::Denied(words) => Self::new(Trouble::Denied, words, now),
            CallError::ServiceMissing(words) => Self::new(Trouble::ServiceMissing, words, now),
            CallError::Timeout => Self::new(Trouble::NoAnswer, "", now),
            CallError::Failed(words) => Self::new(Trouble::Failed, words, now),
        }
    }

    /// What a change that was not done is called towards people.
    pub(super) fn of_change(error: &ChangeError, now: Instant) -> Self {
        match error {
            ChangeError::NotFound => Self::new(Trouble::Refused, "no such target", now),
            ChangeError::Full(words) => Self::new(Trouble::Full, words, now),
            ChangeError::Throttled(words) => Self::new(Trouble::Throttled, words, now),
            ChangeError::Denied(words) => Self::new(Trouble::Denied, words, now),
            ChangeError::Refused(words) => Self::new(Trouble::Refused, words, now),
            ChangeError::Unfinished(words) => Self::new(Trouble::Failed, words, now),
        }
    }

    /// Takes the place of what was shown before, where it says something else and that was shown long enough; whether it did.
    pub(super) fn show_in(self, shown: &mut Option<Self>) -> bool {
        let stays =
            |before: &Self| before.trouble == self.trouble && (before.words == self.words || self.since < before.since.after(WORDS_REST));
        if shown.as_ref().is_some_and(stays) {
            return false;
        }
        *shown = Some(self);
        true
    }

    fn new(trouble: Trouble, words: &str, since: Instant) -> Self {
        let words = bounded(words);
        Self { trouble, words: (!words.is_empty()).then(|| words.into()), since }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn refused(words: &str, second: u64) -> Complaint {
        Complaint::of_change(&ChangeError::Refused(words.to_owned()), Instant(Duration::from_secs(second)))
    }

    #[rstest]
    #[case::nothing_new("one", 100, false)]
    #[case::other_words_too_soon("two", 59, false)]
    #[case::other_words("two", 60, true)]
    fn words_change_now_and_then(#[case] words: &str, #[case] second: u64, #[case] shown: bool) {
        let mut complaint = None;
        assert!(refused("one", 0).show_in(&mut complaint));
        assert_eq!(refused(words, second).show_in(&mut complaint), shown);
        let expected = if shown { words } else { "one" };
        assert_eq!(complaint.unwrap().words.as_deref(), Some(expected));
    }

    #[test]
    fn another_kind_of_trouble_is_shown_at_once() {
        let mut complaint = None;
        assert!(refused("one", 0).show_in(&mut complaint));
        assert!(Complaint::of_call(&CallError::Timeout, Instant(Duration::from_secs(1))).show_in(&mut complaint));
        let complaint = complaint.unwrap();
        assert_eq!((complaint.trouble, complaint.words), (Trouble::NoAnswer, None));
    }

    #[test]
    fn words_are_one_bounded_line() {
        let complaint = refused(&format!("a\r\n\u{1b}[31mb {}", "x".repeat(1000)), 0);
        let words = complaint.words.unwrap();
        assert!(words.starts_with("a [31mb xxx") && words.chars().count() <= 201, "{words}");
    }
}
