//! The long-lived tasks of the process, by name.
//!
//! Invariant: a task of these that ends before it was told to is noticed, and ends the process; half a program must not look alive.
//! Absent on purpose: restarts; the kubelet does that better.

use tokio::task::JoinSet;

/// Long-lived tasks.
#[derive(Default)]
pub(super) struct Tasks {
    running: JoinSet<&'static str>,
}

impl Tasks {
    /// Starts one.
    pub(super) fn start(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(async move {
            task.await;
            name
        });
    }

    /// Returns once one of them has ended, with its name where it did not panic.
    pub(super) async fn ended(&mut self) -> &'static str {
        match self.running.join_next().await {
            Some(Ok(name)) => name,
            Some(Err(_)) => "a task that panicked",
            None => std::future::pending().await,
        }
    }

    /// Ends them all, wherever they stand.
    pub(super) async fn end(mut self) {
        self.running.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_one_that_ends_is_named() {
        let mut tasks = Tasks::default();
        tasks.start("lives", std::future::pending());
        tasks.start("ends", async {});
        assert_eq!(tasks.ended().await, "ends");
        tasks.start("panics", async { panic!("on purpose") });
        assert_eq!(tasks.ended().await, "a task that panicked");
        tasks.end().await;
    }
}
