//! Calls that a batch may need beyond its first, which the limits above the driver do not know of.
//!
//! Invariant: with the driver's pace they stay within what AWS allows for changes: 4 calls a second, 20 at once.
//! Absent on purpose: waiting; a batch that may not go on says so, and its rest goes with the next.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Calls a second in the long run.
const PER_SECOND: f64 = 1.0;
/// Calls at once: enough to find one bad target among two hundred in two batches.
const BURST: f64 = 10.0;

/// A budget that fills with time.
#[derive(Debug)]
pub(super) struct Spare(Mutex<(f64, Instant)>);

impl Spare {
    /// A full one.
    pub(super) fn new() -> Self {
        Self(Mutex::new((BURST, Instant::now())))
    }

    /// Takes one call, where there is one.
    pub(super) fn take(&self) -> bool {
        let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = *budget;
        let now = Instant::now();
        let left = (left + (now - at).as_secs_f64() * PER_SECOND).min(BURST);
        let granted = left >= 1.0;
        *budget = (if granted { left - 1.0 } else { left }, now);
        granted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_runs_dry_and_fills() {
        let spare = Spare::new();
        assert!((0..10).all(|_| spare.take()));
        assert!(!spare.take());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(spare.take() && spare.take() && !spare.take());
        tokio::time::advance(Duration::from_secs(1000)).await;
        assert!((0..10).all(|_| spare.take()) && !spare.take());
    }
}
