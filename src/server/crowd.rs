//! Who is connected: at most so many, and whoever says nothing goes before whoever is being served.
//!
//! Anybody who can reach the port can open connections. If all places could be taken by silence, an API server's next one would wait, and
//! pods with it.
//!
//! Invariant: a place that is needed is taken from the oldest connection that has asked nothing yet; else from the oldest one that idles;
//! never from one whose request is being worked on.
//! Absent on purpose: how long each may be silent (`patience`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::patience::Phase;

/// The connections of one server; clones share them.
#[derive(Clone)]
pub(super) struct Crowd {
    limit: usize,
    open: Gauge,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    members: Mutex<Members>,
    /// Somebody has left, or idles.
    changed: Notify,
}

#[derive(Default)]
struct Members {
    next: u64,
    /// In the order in which they came.
    present: BTreeMap<u64, Member>,
}

struct Member {
    phase: Arc<Phase>,
    task: AbortHandle,
}

/// A place in the crowd, given back when it is dropped.
pub(super) struct Place {
    number: u64,
    crowd: Crowd,
}

impl Crowd {
    /// Nobody; `open` shows how many there are.
    pub(super) fn new(limit: usize, open: Gauge) -> Self {
        Self { limit, open, shared: Arc::default() }
    }

    /// Returns once somebody can be let in; closes a connection for that where it must.
    pub(super) async fn room(&self) {
        while !self.make_room() {
            self.shared.changed.notified().await;
        }
    }

    /// Lets a connection in: `start` is given its place and answers the task that serves it.
    pub(super) fn enter(&self, phase: Arc<Phase>, start: impl FnOnce(Place) -> AbortHandle) {
        // While this is locked the task cannot leave, however soon it ends.
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        self.open.inc();
        let task = start(Place { number, crowd: self.clone() });
        members.present.insert(number, Member { phase, task });
    }

    /// One of them has its answer, and may go now if it must.
    pub(super) fn idles(&self) {
        self.shared.changed.notify_one();
    }

    fn make_room(&self) -> bool {
        let mut members = self.members();
        if members.present.len() < self.limit {
            return true;
        }
        let silent = members.present.iter().filter(|(_, member)| !member.phase.is_busy());
        let Some(number) = silent.min_by_key(|(number, member)| (member.phase.has_asked(), **number)).map(|(number, _)| *number) else {
            return false;
        };
        let member = members.present.remove(&number);
        drop(members);
        if let Some(member) = member {
            member.task.abort();
            tracing::debug!("a connection was closed to make room for another");
        }
        true
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // Nothing that is done under the lock can leave it half done.
        self.shared.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.members().present.remove(&self.number);
        self.crowd.open.dec();
        self.crowd.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Lets in somebody who never leaves by themselves.
    fn enter(crowd: &Crowd) -> Arc<Phase> {
        let phase = Arc::new(Phase::default());
        crowd.enter(phase.clone(), |place| {
            let task = tokio::spawn(async move {
                let _place = place;
                pending::<()>().await;
            });
            task.abort_handle()
        });
        phase
    }

    fn present(crowd: &Crowd) -> Vec<u64> {
        crowd.members().present.keys().copied().collect()
    }

    #[tokio::test]
    async fn silence_goes_first_then_idleness_and_work_never() {
        let crowd = Crowd::new(3, Gauge::default());
        let (idle, busy, _silent) = (enter(&crowd), enter(&crowd), enter(&crowd));
        idle.begin();
        idle.end();
        busy.begin();
        assert!(crowd.make_room());
        assert_eq!(present(&crowd), [0, 1], "the silent one went");
        let next = enter(&crowd);
        next.begin();
        assert!(crowd.make_room());
        assert_eq!(present(&crowd), [1, 3], "the idle one went");
        enter(&crowd).begin();
        assert!(!crowd.make_room(), "all of them work");
    }

    #[tokio::test]
    async fn whoever_waits_for_room_hears_of_it() {
        let open = Gauge::default();
        let crowd = Crowd::new(1, open.clone());
        let phase = enter(&crowd);
        phase.begin();
        let waiting = tokio::spawn({
            let crowd = crowd.clone();
            async move { crowd.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        crowd.members().present[&0].task.abort();
        waiting.await.unwrap();
        assert_eq!((present(&crowd).len(), open.get()), (0, 0));
    }
}
