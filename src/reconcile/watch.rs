//! How pods, nodes, namespaces and the configuration come in.
//!
//! A watch can end, expire, go silent or lose an event; each of that is got over by itself, the last by a list now and then.
//!
//! Invariant: whatever a watch loses is repaired within [`RELIST`]; a watch that says nothing for [`IDLE`] is opened anew.
//! Absent on purpose: which version of a pod is newer (`pods`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use tokio::sync::{mpsc, watch};

use super::clock::Clock;
use super::cluster::{ApiError, Cluster, Page, PodEvent};
use super::input::Input;
use super::limits::Backoff;
use super::pods::version_is_older;

/// Pods a page: a list of ten thousand must not stand in memory at once.
const PAGE: u32 = 100;
/// All pods are listed again this often, give or take: what a watch lost is repaired within it.
pub const RELIST: Duration = Duration::from_secs(270);
/// Part of [`RELIST`] by which it is spread.
const RELIST_SPREAD: f64 = 0.1;
/// API servers send a bookmark about every minute; a watch that missed two is dead.
pub const IDLE: Duration = Duration::from_secs(150);
/// A watch that ended is opened again after so long: whatever ended it may still be going on.
const REOPEN: Duration = Duration::from_millis(500);
/// Status code of a version that the API server does not know any more.
const GONE: u16 = 410;

/// Tells of pods until nobody listens.
pub async fn pods<C: Cluster, K: Clock>(cluster: C, clock: K, told: mpsc::Sender<Input>) {
    let mut backoff = Backoff::default();
    let mut known: Option<String> = None;
    loop {
        let version = match known.take() {
            Some(version) => version,
            None => match list(&cluster, &told, 0).await {
                Some(Ok(version)) => version,
                Some(Err(_)) if told.is_closed() => return,
                Some(Err(error)) => {
                    tracing::warn!(error = %error, "pods cannot be listed");
                    wait(&clock, &mut backoff).await;
                    continue;
                }
                None => return,
            },
        };
        match follow(&cluster, &clock, &told, version, &mut backoff).await {
            Some(_) if told.is_closed() => return,
            Some(next) => known = next,
            None => return,
        }
    }
}

/// Lists pods again now and then and whenever that is wished, beside the watch.
pub async fn relist<C: Cluster, K: Clock>(cluster: C, clock: K, told: mpsc::Sender<Input>, mut wishes: watch::Receiver<u64>) {
    let mut backoff = Backoff::default();
    let mut repeat = false;
    loop {
        if repeat {
            wait(&clock, &mut backoff).await;
        } else {
            let spread = 1.0 + RELIST_SPREAD * (2.0 * clock.jitter() - 1.0);
            let due = clock.now().after(RELIST.mul_f64(spread));
            let sleep = std::pin::pin!(clock.sleep_until(due));
            let changed = std::pin::pin!(wishes.changed());
            let wished = select(sleep, changed);
            if let Either::Right(_) = select(wished, std::pin::pin!(told.closed())).await {
                return;
            }
        }
        let wish = *wishes.borrow_and_update();
        match list(&cluster, &told, wish).await {
            Some(Ok(_)) => {
                backoff.succeed();
                repeat = false;
            }
            Some(Err(_)) if told.is_closed() => return,
            Some(Err(_)) => repeat = true,
            None => return,
        }
    }
}

/// Tells of what a reflection says until nobody listens.
pub async fn reflect<T, S>(mut changes: S, told: mpsc::Sender<Input>, input: fn(T) -> Input)
where
    S: futures_util::Stream<Item = T> + Unpin,
{
    loop {
        let next = match select(std::pin::pin!(changes.next()), std::pin::pin!(told.closed())).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => return,
        };
        let Some(change) = next else { return };
        if told.send(input(change)).await.is_err() {
            return;
        }
    }
}

/// Lists all pods; the version of the list, or `None` where nobody listens.
async fn list<C: Cluster>(cluster: &C, told: &mpsc::Sender<Input>, wish: u64) -> Option<Result<String, ApiError>> {
    let mut page = Page { limit: PAGE, token: None };
    let mut uids = BTreeSet::new();
    loop {
        let answer = match cluster.list_pods(page.clone()).await {
            Ok(answer) => answer,
            Err(error) => return Some(Err(error)),
        };
        uids.extend(answer.pods.iter().map(|pod| pod.uid.clone()));
        told.send(Input::Page(answer.pods)).await.ok()?;
        match answer.next {
            Some(token) => page.token = Some(token),
            None => {
                let version = answer.resource_version;
                told.send(Input::ListEnd { version: version.clone(), uids, wish }).await.ok()?;
                return Some(Ok(version));
            }
        }
    }
}

/// Watches from `version` on. `Some(Some(version))`: watch on from there; `Some(None)`: list first; `None`: nobody listens.
async fn follow<C: Cluster, K: Clock>(
    cluster: &C,
    clock: &K,
    told: &mpsc::Sender<Input>,
    mut version: String,
    backoff: &mut Backoff,
) -> Option<Option<String>> {
    let mut watch = match cluster.watch_pods(&version).await {
        Ok(watch) => watch,
        Err(error) => {
            wait(clock, backoff).await;
            return Some((error.code() != Some(GONE)).then_some(version));
        }
    };
    loop {
        let idle = clock.now().after(IDLE);
        let sleep = std::pin::pin!(clock.sleep_until(idle));
        let closed = std::pin::pin!(told.closed());
        let next = match select(watch.next(), select(sleep, closed)).await {
            Either::Left((next, _)) => next,
            Either::Right((Either::Left(_), _)) => {
                tracing::info!("the watch of pods has gone silent and is opened anew");
                return Some(Some(version));
            }
            Either::Right((Either::Right(_), _)) => return None,
        };
        match next {
            Some(Ok(event)) => {
                backoff.succeed();
                advance(&mut version, &event);
                told.send(Input::Pod(event)).await.ok()?;
            }
            Some(Err(error)) => {
                wait(clock, backoff).await;
                return Some((error.code() != Some(GONE)).then_some(version));
            }
            None => {
                clock.sleep_until(clock.now().after(REOPEN)).await;
                return Some(Some(version));
            }
        }
    }
}

fn advance(version: &mut String, event: &PodEvent) {
    let newer = match event {
        PodEvent::Applied(pod) | PodEvent::Deleted(pod) => &pod.resource_version,
        PodEvent::Bookmark(bookmark) => bookmark,
    };
    if !version_is_older(newer, version) {
        version.clone_from(newer);
    }
}

async fn wait<K: Clock>(clock: &K, backoff: &mut Backoff) {
    backoff.fail(clock.now(), clock.jitter());
    clock.sleep_until(backoff.until()).await;
}
