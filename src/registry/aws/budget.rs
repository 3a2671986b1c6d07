//! Calls that the limits above the driver do not know of, because they see one where the driver may need several.
//!
//! Invariant: no call is granted that the rate does not allow.
//! Absent on purpose: what the calls are for and how many are kept for whom (`batch`, `groups`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{self, Instant};

use crate::reconcile::clock;
use crate::reconcile::limits::Bucket;
use crate::registry::Rate;

/// A budget of calls that fills with time.
#[derive(Debug)]
pub(super) struct Budget {
    start: Instant,
    bucket: Mutex<Bucket>,
}

impl Budget {
    /// A full one.
    pub(super) fn new(rate: Rate) -> Self {
        Self { start: Instant::now(), bucket: Mutex::new(Bucket::new(rate)) }
    }

    /// Takes a call, where there is one.
    pub(super) fn take(&self) -> bool {
        self.try_take(0.0).is_ok()
    }

    /// Waits until there is a call beside `kept` others, and takes it; whether that was within `patience`.
    pub(super) async fn turn(&self, kept: f64, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while let Err(wait) = self.try_take(kept) {
            if Instant::now() + wait > end {
                return false;
            }
            time::sleep(wait).await;
        }
        true
    }

    /// Takes a call, or says how long until there can be one.
    fn try_take(&self, kept: f64) -> Result<(), Duration> {
        let now = clock::Instant(self.start.elapsed());
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket.free_at(kept, now).since(now) {
            Duration::ZERO => {
                bucket.take(now);
                Ok(())
            }
            wait => Err(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_runs_dry_and_fills() {
        let budget = Budget::new(Rate { per_second: 1.0, burst: 10.0 });
        assert!((0..10).all(|_| budget.take()));
        assert!(!budget.take());
        time::advance(2 * SECOND).await;
        assert!(budget.take() && budget.take() && !budget.take());
        time::advance(1000 * SECOND).await;
        assert!((0..10).all(|_| budget.take()) && !budget.take());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_but_not_for_long_and_leaves_what_is_kept() {
        let budget = Budget::new(Rate { per_second: 1.0, burst: 3.0 });
        assert!(budget.turn(2.0, SECOND).await);
        assert!(!budget.turn(2.0, SECOND / 2).await, "two are kept");
        assert!(budget.take() && budget.take() && !budget.take());
        let before = Instant::now();
        assert!(budget.turn(0.0, 2 * SECOND).await);
        assert!((SECOND / 2..2 * SECOND).contains(&before.elapsed()));
        assert!(!budget.turn(2.0, 2 * SECOND).await);
    }
}
