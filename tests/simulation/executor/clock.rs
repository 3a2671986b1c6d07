//! The clock of one simulated process, and the numbers that are drawn instead of chance.
//!
//! Invariant: the same seed gives the same numbers, on every machine.
//! Absent on purpose: when time moves on (`executor`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lockstep::reconcile::Clock;
use lockstep::reconcile::clock::Instant;

use super::{Exec, ProcessId, lock};
use crate::sabotage::Sabotage;

/// The clock of one process.
#[derive(Clone)]
pub(crate) struct SimClock {
    exec: Arc<Exec>,
    process: ProcessId,
    started: Duration,
    random: Arc<AtomicU64>,
    sabotage: Option<Sabotage>,
}

impl SimClock {
    /// The clock of a process that starts now; `seed` fixes its jitter.
    pub(crate) fn new(exec: Arc<Exec>, process: ProcessId, seed: u64) -> Self {
        let started = exec.now();
        Self { exec, process, started, random: Arc::new(AtomicU64::new(seed)), sabotage: None }
    }
}

impl SimClock {
    /// The same clock, with a deliberate fault.
    pub(crate) fn spoiled(self, sabotage: Option<Sabotage>) -> Self {
        Self { sabotage, ..self }
    }

    /// When this clock began to count.
    fn origin(&self) -> Duration {
        let slept =
            if self.sabotage == Some(Sabotage::SleepsThroughItsLease) { lock(&self.exec.pauses).get(&self.process).copied() } else { None };
        self.started + slept.unwrap_or_default()
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        self.exec.look();
        Instant(self.exec.now().saturating_sub(self.origin()))
    }

    fn wall(&self) -> jiff::Timestamp {
        self.exec.wall()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send + 'static {
        let at = self.origin().saturating_add(at.0);
        Sleep { exec: self.exec.clone(), at, slot: None }
    }

    fn jitter(&self) -> f64 {
        let state = self.random.load(Ordering::Relaxed);
        let mut random = Random(state);
        let drawn = random.unit();
        self.random.store(random.0, Ordering::Relaxed);
        drawn
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.exec.spawn(self.process, Box::pin(task));
    }
}

/// Waits for a moment of virtual time.
pub(crate) struct Sleep {
    exec: Arc<Exec>,
    at: Duration,
    slot: Option<(usize, u64)>,
}

impl Sleep {
    /// Until this moment of the world's time.
    pub(crate) fn until(exec: &Arc<Exec>, at: Duration) -> Self {
        Self { exec: exec.clone(), at, slot: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.exec.look();
        if self.exec.now() >= self.at {
            return Poll::Ready(());
        }
        let slot = self.exec.arm(self.at, context.waker(), self.slot);
        self.slot = Some(slot);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((slot, _)) = self.slot {
            self.exec.disarm(slot);
        }
    }
}

/// A small generator of numbers (splitmix64): the same seed, the same numbers, on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let drawn = (self.next() >> 11) as f64;
        drawn / (1_u64 << 53) as f64
    }

    /// A number in `0..bound`; 0 where `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True once in `one_in` times.
    pub(crate) fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}
