//! Pace towards what answers badly: back-off with a cap, a breaker and a rate for each registry.
//!
//! A rollout waits for every one of these, so none grows beyond seconds; and one registry's trouble is kept to itself.
//!
//! Invariant: nothing is ever put off for longer than [`RETRY_CAP`], and a breaker lets one call through each time that has passed.
//! Absent on purpose: what is retried (`service`, `execute`).

use std::time::Duration;

use super::clock::Instant;
use crate::registry::{Pace, Rate};

/// First pause after a failure.
pub const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest pause while a pod may wait: a rollout must not stall long after a registry has recovered.
pub const RETRY_CAP: Duration = Duration::from_secs(15);
/// Longer than [`RETRY_CAP`] already.
const DOUBLINGS: u32 = 8;
/// So many calls in a row that reached nobody open the breaker.
pub const BREAKER_AFTER: u32 = 5;

/// Pause that grows with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
    until: Instant,
}

/// Lets a registry that cannot be reached rest, but for one call now and then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    backoff: Backoff,
    probing: bool,
}

/// Keeps the requests to one registry within its pace.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    calls: Bucket,
    changes: Bucket,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks.
    Read,
    /// Changes.
    Change,
}

/// A budget of requests that fills with time.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    filled: Instant,
}

impl Backoff {
    /// Notes a failure; `jitter` in `0.0..1.0` spreads what failed together.
    pub fn fail(&mut self, now: Instant, jitter: f64) {
        self.failures = self.failures.saturating_add(1);
        self.until = now.after(pause(self.failures, jitter));
    }

    /// Notes a success.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Notes a success that may have been luck: after the next failure the pause is about as long as it was after the last.
    pub fn ease(&mut self) {
        self.failures = self.failures.min(DOUBLINGS).saturating_sub(1);
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Before this nothing is tried again.
    pub fn until(&self) -> Instant {
        self.until
    }
}

impl Breaker {
    /// When the next call may be made; `None`: not before the one that is on its way was answered.
    pub fn free_at(&self) -> Option<Instant> {
        match (self.is_open(), self.probing) {
            (false, _) => Some(Instant::default()),
            (true, false) => Some(self.backoff.until()),
            (true, true) => None,
        }
    }

    /// Whether it keeps calls back.
    pub fn is_open(&self) -> bool {
        self.backoff.failures() >= BREAKER_AFTER
    }

    /// A call is made.
    pub fn call(&mut self) {
        self.probing = self.is_open();
    }

    /// A call was not made after all.
    pub fn withdraw(&mut self) {
        self.probing = false;
    }

    /// A call reached nobody.
    pub fn fail(&mut self, now: Instant, jitter: f64) {
        self.probing = false;
        self.backoff.fail(now, jitter);
    }

    /// A call was answered; `true` where that closes the breaker.
    pub fn succeed(&mut self) -> bool {
        let was_open = self.is_open();
        self.probing = false;
        self.backoff.succeed();
        was_open
    }
}

impl Limiter {
    /// One that has not been used yet.
    pub fn new(pace: Pace) -> Self {
        Self { calls: Bucket::new(pace.calls), changes: Bucket::new(pace.changes) }
    }

    /// When such a request may be made.
    pub fn free_at(&mut self, request: Request, now: Instant) -> Instant {
        let calls = self.calls.free_at(0.0, now);
        match request {
            Request::Read => calls,
            Request::Change => calls.max(self.changes.free_at(0.0, now)),
        }
    }

    /// Such a request is made.
    pub fn take(&mut self, request: Request, now: Instant) {
        self.calls.take(now);
        if request == Request::Change {
            self.changes.take(now);
        }
    }
}

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate) -> Self {
        Self { rate, tokens: rate.burst, filled: Instant::default() }
    }

    /// When there is a request in it beside `kept` others.
    pub fn free_at(&mut self, kept: f64, now: Instant) -> Instant {
        self.fill(now);
        let lacking = 1.0 + kept - self.tokens;
        if lacking <= 0.0 { now } else { now.after(Duration::from_secs_f64(lacking / self.rate.per_second)) }
    }

    /// A request is made.
    pub fn take(&mut self, now: Instant) {
        self.fill(now);
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate.per_second).min(self.rate.burst);
        self.filled = now;
    }
}

fn pause(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS);
    let full = RETRY_FIRST.saturating_mul(1 << doublings).min(RETRY_CAP);
    full.mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    #[rstest]
    #[case(1, 0.0, 1000)]
    #[case(1, 1.0, 800)]
    #[case(3, 0.0, 4000)]
    #[case(5, 0.0, 15_000)]
    #[case(4_000_000_000, 0.0, 15_000)]
    #[case(9, 1.0, 12_000)]
    fn pauses_grow_to_the_cap(#[case] failures: u32, #[case] jitter: f64, #[case] millis: u64) {
        assert_eq!(pause(failures, jitter), Duration::from_millis(millis));
    }

    #[test]
    fn a_success_that_may_be_luck_takes_one_failure_back() {
        let mut backoff = Backoff::default();
        backoff.ease();
        assert_eq!((backoff.failures(), backoff.until()), (0, at(0)));
        (0..100).for_each(|_| backoff.fail(at(100), 0.0));
        backoff.ease();
        backoff.fail(at(200), 0.0);
        assert_eq!(backoff.until(), at(215));
        (0..DOUBLINGS).for_each(|_| backoff.ease());
        backoff.fail(at(300), 0.0);
        assert_eq!(backoff.until(), at(301));
    }

    #[test]
    fn a_breaker_opens_probes_and_closes() {
        let mut breaker = Breaker::default();
        for _ in 0..BREAKER_AFTER {
            assert_eq!(breaker.free_at(), Some(Instant::default()));
            breaker.call();
            breaker.fail(at(10), 0.0);
        }
        assert!(breaker.is_open());
        assert_eq!(breaker.free_at(), Some(at(25)));
        breaker.call();
        assert_eq!(breaker.free_at(), None, "one call at a time");
        breaker.fail(at(30), 0.0);
        assert_eq!(breaker.free_at(), Some(at(45)));
        breaker.call();
        breaker.withdraw();
        assert_eq!(breaker.free_at(), Some(at(45)), "the call was not made");
        breaker.call();
        assert!(breaker.succeed());
        assert_eq!(breaker.free_at(), Some(Instant::default()));
    }

    #[test]
    fn a_bucket_runs_dry_and_fills() {
        let mut limiter = Limiter::new(Pace::default());
        for _ in 0..200 {
            assert_eq!(limiter.free_at(Request::Change, at(1)), at(1));
            limiter.take(Request::Change, at(1));
        }
        assert!(limiter.free_at(Request::Change, at(1)) > at(1));
        assert_eq!(limiter.free_at(Request::Change, at(2)), at(2));
    }

    #[test]
    fn changes_have_a_pace_of_their_own_and_count_as_calls() {
        let rate = |per_second, burst| Rate { per_second, burst };
        let mut limiter = Limiter::new(Pace { calls: rate(1.0, 3.0), changes: rate(0.5, 1.0) });
        limiter.take(Request::Change, at(10));
        assert_eq!(limiter.free_at(Request::Change, at(10)), at(12));
        for _ in 0..2 {
            assert_eq!(limiter.free_at(Request::Read, at(10)), at(10));
            limiter.take(Request::Read, at(10));
        }
        assert_eq!(limiter.free_at(Request::Read, at(10)), at(11));
        assert_eq!(limiter.free_at(Request::Read, at(1000)), at(1000));
    }
}
