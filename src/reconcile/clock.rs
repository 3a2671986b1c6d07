//! Time, jitter and spawning, as the reconciler sees them.
//!
//! Production runs on tokio, the simulation on virtual time with an executor of its own.
//!
//! Invariant: nothing in `reconcile`, `registration` or `lease` reads a clock, draws a number or spawns except through here.
//! Absent on purpose: timers that name what they wait for; callers keep their own deadlines.

use std::future::Future;
use std::time::Duration;

/// Time since the start of the process; never goes back, does not follow the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub Duration);

/// Time, jitter and spawning.
pub trait Clock: Clone + Send + Sync + 'static {
    /// Time since the start of this process.
    fn now(&self) -> Instant;

    /// The wall clock, which may jump.
    fn wall(&self) -> jiff::Timestamp;

    /// Returns once `now` has reached `at`.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send + 'static;

    /// A number in `0.0..1.0` for spreading what would else happen at once.
    fn jitter(&self) -> f64;

    /// Runs `task` beside the caller until it ends or the process does.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

impl Instant {
    /// This long after; the far future where that is out of range.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }

    /// Time from `earlier` to here, zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
