//! Leadership: which replica reconciles, by a Lease.
//!
//! Two replicas that both wrote would undo each other's work. A candidate counts from what it saw itself, never from another's clock;
//! a leader stops well before anybody may take its place.
//!
//! Invariant: [`Tenure::holds`] is false from [`RENEW_DEADLINE`] after the start of the last renewal that was answered; a call that
//! began before ends within the rest of the lease.
//! Absent on purpose: what a leader does (`reconcile`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{mpsc, watch};

use crate::reconcile::clock::{Clock, Instant};
use crate::reconcile::cluster::{ApiError, Cluster, LeaseRecord};

/// How long the Lease lasts after a renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(12);
/// A leader that has not renewed for this long stops; every call it began ends within the 5 s that are left.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(7);
/// Time between two attempts, and between two looks of a candidate.
pub const RETRY: Duration = Duration::from_secs(1);
/// Time between two renewals that go well.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// A request for the Lease that takes longer is given up.
const REQUEST_LIMIT: Duration = Duration::from_secs(3);

/// What happened to leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This replica leads from now on.
    Gained,
    /// It does not any more.
    Lost,
}

/// How long this replica may go on sending, shared with everything that sends.
#[derive(Clone, Debug, Default)]
pub struct Tenure(Arc<AtomicU64>);

impl Tenure {
    /// Whether something may be sent now.
    pub fn holds(&self, now: Instant) -> bool {
        nanos(now) < self.0.load(Ordering::SeqCst)
    }

    fn extend(&self, until: Instant) {
        self.0.store(nanos(until), Ordering::SeqCst);
    }

    fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Seeks the Lease, keeps it, and gives it back once `stop` says so; tells of every change.
pub async fn pursue<C: Cluster, K: Clock>(
    cluster: C,
    clock: K,
    identity: String,
    tenure: Tenure,
    told: mpsc::Sender<Leadership>,
    mut stop: watch::Receiver<bool>,
) {
    let mut seat = Seat { cluster, clock, identity, tenure, told, held: LeaseRecord::default() };
    loop {
        if !unless(&mut stop, seat.seek()).await.unwrap_or(false) {
            return;
        }
        if !seat.tell(Leadership::Gained).await {
            return;
        }
        if unless(&mut stop, seat.keep()).await.is_none() {
            seat.give_back().await;
            return;
        }
        seat.tenure.end();
        if !seat.tell(Leadership::Lost).await {
            return;
        }
    }
}

struct Seat<C, K> {
    cluster: C,
    clock: K,
    identity: String,
    tenure: Tenure,
    told: mpsc::Sender<Leadership>,
    /// The record as it was written last.
    held: LeaseRecord,
}

impl<C: Cluster, K: Clock> Seat<C, K> {
    /// Returns once this replica has the Lease; `false` where nobody listens any more.
    async fn seek(&mut self) -> bool {
        let mut seen: Option<(LeaseRecord, Instant)> = None;
        loop {
            if self.told.is_closed() {
                return false;
            }
            if let Ok(record) = self.limited(self.cluster.read_lease()).await {
                let now = self.clock.now();
                let since = match &seen {
                    Some((known, since)) if *known == record => *since,
                    _ => now,
                };
                seen = Some((record.clone(), since));
                let lasts = Duration::from_secs(record.duration_seconds.into()).max(LEASE_DURATION);
                let free = record.holder.is_empty() || now >= since.after(lasts);
                if free && self.take(record).await {
                    return true;
                }
            }
            self.pause(RETRY).await;
        }
    }

    async fn take(&mut self, record: LeaseRecord) -> bool {
        let began = self.clock.now();
        let wall = self.clock.wall();
        let mine = LeaseRecord {
            resource_version: record.resource_version,
            holder: self.identity.clone(),
            duration_seconds: u32::try_from(LEASE_DURATION.as_secs()).unwrap_or(u32::MAX),
            acquired: Some(wall),
            renewed: Some(wall),
            transitions: record.transitions.saturating_add(1),
        };
        match self.limited(self.cluster.write_lease(&mine)).await {
            Ok(written) => {
                self.held = written;
                self.tenure.extend(began.after(RENEW_DEADLINE));
                true
            }
            Err(_) => false,
        }
    }

    /// Renews until that fails for too long or somebody else holds the Lease.
    async fn keep(&mut self) {
        let mut deadline = self.clock.now().after(RENEW_DEADLINE);
        let mut pause = RENEW_EVERY;
        loop {
            self.pause(pause).await;
            let began = self.clock.now();
            if began >= deadline {
                return;
            }
            let wanted = LeaseRecord { renewed: Some(self.clock.wall()), ..self.held.clone() };
            match self.limited(self.cluster.write_lease(&wanted)).await {
                Ok(written) => {
                    self.held = written;
                    deadline = began.after(RENEW_DEADLINE);
                    self.tenure.extend(deadline);
                    pause = RENEW_EVERY;
                }
                Err(error) => {
                    if error.code() == Some(409) && !self.still_mine().await {
                        return;
                    }
                    pause = RETRY;
                }
            }
        }
    }

    /// After a conflict: whether the Lease still names this replica; a write whose answer was lost moves its version too.
    async fn still_mine(&mut self) -> bool {
        match self.limited(self.cluster.read_lease()).await {
            Ok(record) if record.holder == self.identity && record.acquired == self.held.acquired => {
                self.held = record;
                true
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }

    /// Names nobody, so that another replica need not wait for the Lease to run out.
    async fn give_back(&mut self) {
        self.tenure.end();
        let empty = LeaseRecord { holder: String::new(), renewed: Some(self.clock.wall()), ..self.held.clone() };
        if self.limited(self.cluster.write_lease(&empty)).await.is_err() && self.still_mine().await {
            let empty = LeaseRecord { holder: String::new(), renewed: Some(self.clock.wall()), ..self.held.clone() };
            // Whoever cannot be told finds out when the Lease runs out.
            let _ = self.limited(self.cluster.write_lease(&empty)).await;
        }
    }

    async fn tell(&self, leadership: Leadership) -> bool {
        self.told.send(leadership).await.is_ok()
    }

    async fn limited<T>(&self, request: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let deadline = self.clock.now().after(REQUEST_LIMIT);
        match select(std::pin::pin!(request), std::pin::pin!(self.clock.sleep_until(deadline))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(ApiError::Unreachable("no answer in time".to_owned())),
        }
    }

    async fn pause(&self, pause: Duration) {
        self.clock.sleep_until(self.clock.now().after(pause)).await;
    }
}

/// What `work` brings; `None` where `stop` says so first.
async fn unless<T>(stop: &mut watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    let stopped = async {
        // A sender that is gone stops nobody: the process is ending anyway.
        if stop.wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    match select(std::pin::pin!(work), std::pin::pin!(stopped)).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX)
}
