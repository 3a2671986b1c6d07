//! What is remembered of servers on their way out: when the sessions that are left are cut.
//!
//! A session may go on for the drain delay after its server got the last new request. A pod that is deleted was drained so long before its
//! containers ended; a target that is taken out of a pod that lives on was not, and HAProxy keeps no time to tell by: what it shows counts
//! from the last time the server went up or down, which for one that was down is long before it was taken out.
//!
//! Invariant: no session is cut before the drain delay of its backend has passed since new ones stopped, nor before [`LEAST`] since its
//! server was taken out, as far as is known; where nothing is known, the time begins anew.
//! Absent on purpose: which servers are leaving (`server`), the command that cuts (`server`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Key;

/// Sessions of a server that is taken out have this long at least: its containers are gone by then, as a rule long before, and ends of
/// connections that were lost are found out.
const LEAST: Duration = Duration::from_secs(30);
/// What nobody asks for any more is forgotten so long after its time.
const LATELY: Duration = Duration::from_secs(180);

/// The memory of one registry.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    ends: Mutex<HashMap<(Arc<str>, Key), Instant>>,
}

impl Leaving {
    /// A server is taken out that has had no new sessions for `quiet`.
    pub(super) fn begin(&self, service: &Arc<str>, key: Key, drain: Duration, quiet: Duration) {
        let end = Instant::now() + LEAST.max(drain.saturating_sub(quiet));
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).entry((service.clone(), key)).or_insert(end);
    }

    /// Whether the time of a server that is leaving is over.
    pub(super) fn is_over(&self, service: &Arc<str>, key: Key, drain: Duration) -> bool {
        self.begin(service, key.clone(), drain, Duration::ZERO);
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(&(service.clone(), key)).is_some_and(|end| *end <= Instant::now())
    }

    /// Forgets everything.
    pub(super) fn forget(&self) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Forgets servers that are leaving no more: `leaving` says which are.
    pub(super) fn keep(&self, service: &Arc<str>, leaving: impl Fn(&Key) -> bool) {
        let now = Instant::now();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|(of, key), end| if of == service { leaving(key) } else { now.saturating_duration_since(*end) < LATELY });
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Seconds of the drain delay, for which the server was drained before, and after which its sessions are cut.
    #[rstest]
    #[case::short(10, 0, 30)]
    #[case::of_a_pod_that_lives_on(120, 0, 120)]
    #[case::drained_a_moment_before(120, 20, 100)]
    #[case::of_a_pod_that_has_ended(120, 135, 30)]
    #[tokio::test(start_paused = true)]
    async fn sessions_have_their_time(#[case] drain: u64, #[case] quiet: u64, #[case] expected: u64) {
        let (leaving, web, key) = (Leaving::default(), Arc::from("web"), key(1));
        let [drain, quiet, expected] = [drain, quiet, expected].map(Duration::from_secs);
        leaving.begin(&web, key.clone(), drain, quiet);
        tokio::time::advance(expected - Duration::from_secs(1)).await;
        leaving.begin(&web, key.clone(), drain, Duration::ZERO);
        assert!(!leaving.is_over(&web, key.clone(), drain));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(leaving.is_over(&web, key.clone(), drain));
        assert!(!leaving.is_over(&Arc::from("other"), key, drain), "each service has servers of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_nobody_knows_has_its_whole_time() {
        let (leaving, web, drain) = (Leaving::default(), Arc::from("web"), Duration::from_secs(120));
        assert!(!leaving.is_over(&web, key(1), drain));
        tokio::time::advance(drain).await;
        assert!(leaving.is_over(&web, key(1), drain));
        // It came into use again, and is taken out anew.
        leaving.keep(&web, |_| false);
        assert!(!leaving.is_over(&web, key(1), drain));
        tokio::time::advance(drain).await;
        leaving.forget();
        assert!(!leaving.is_over(&web, key(1), drain), "another leader may have done the same meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_left_is_forgotten() {
        let (leaving, web, other) = (Leaving::default(), Arc::from("web"), Arc::from("other"));
        for (service, number) in [(&web, 1), (&web, 2), (&other, 1)] {
            leaving.begin(service, key(number), Duration::ZERO, Duration::ZERO);
        }
        leaving.keep(&web, |one| *one == key(1));
        assert_eq!(leaving.ends.lock().unwrap().len(), 2);
        tokio::time::advance(LEAST + LATELY).await;
        leaving.keep(&web, |_| true);
        assert_eq!(leaving.ends.lock().unwrap().len(), 1, "nobody asks for the other service any more");
    }

    fn key(number: u8) -> Key {
        (Some(([10, 0, 0, number], 80).into()), String::new())
    }
}
