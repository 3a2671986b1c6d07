//! The clock of production: tokio's timers, the machine's wall clock, its randomness.
//!
//! The one place where time enters the reconciler from outside.
//!
//! Invariant: a spawned task that panics is not lost in silence: [`TokioClock::task_died`] tells of it, and the process ends.
//! Absent on purpose: ends of tasks; a task that returns has done its work.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Semaphore;

use super::clock::{Clock, Instant};

/// Time, jitter and spawning on tokio.
#[derive(Clone, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
    died: Arc<Semaphore>,
}

impl TokioClock {
    /// A clock that starts at zero now; must be made inside of a tokio runtime.
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now(), died: Arc::new(Semaphore::new(0)) }
    }

    /// Returns once a task spawned through this clock, or a clone of it, has panicked.
    pub async fn task_died(&self) {
        // The permit is forgotten so that one waiter ends the process; nobody closes the semaphore.
        if let Ok(permit) = self.died.acquire().await {
            permit.forget();
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant(self.start.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "the wall clock enters here")]
    fn wall(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send + 'static {
        let at = self.start.checked_add(at.0);
        async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }

    fn jitter(&self) -> f64 {
        // Each RandomState has keys of its own, drawn from the system once a thread: good enough to spread timers.
        let drawn = RandomState::new().hash_one(Duration::ZERO) >> 11;
        drawn as f64 / (1_u64 << 53) as f64
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let died = self.died.clone();
        tokio::spawn(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                died.add_permits(1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sleeps_until_the_instant_and_never_before() {
        let clock = TokioClock::start();
        let at = clock.now().after(Duration::from_secs(5));
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
        assert!(clock.now().since(at) < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn tells_of_a_task_that_panicked_and_not_of_one_that_ended() {
        let clock = TokioClock::start();
        let (ended, end) = tokio::sync::oneshot::channel();
        clock.spawn(async move {
            let _ = ended.send(());
        });
        end.await.unwrap();
        assert!(clock.task_died().now_or_never().is_none());
        clock.spawn(async { panic!("on purpose") });
        clock.task_died().await;
    }

    #[tokio::test]
    async fn jitter_is_spread_over_zero_to_one() {
        let clock = TokioClock::start();
        let drawn: Vec<f64> = (0..1000).map(|_| clock.jitter()).collect();
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
        assert!(drawn.iter().any(|x| *x < 0.1) && drawn.iter().any(|x| *x > 0.9));
    }
}
