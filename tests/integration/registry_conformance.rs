//! What every driver does alike, against its real registry: the one test that a driver must pass.
//!
//! A check speaks only the words of the trait; what a registry needs to be there, and how something foreign is put into it, is its
//! [`Ground`]'s affair.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep::config::DriverConfig;
use lockstep::registry::driver::Driver;
use lockstep::registry::{CALL_TIMEOUT, CallError, Change, ChangeError, DrainKind, Listed, Listing, Operation, Registry, TargetKeys, Wait};
use lockstep::target::{PodKey, PodUid, TargetState};
use rstest::rstest;

use crate::registry_conformance_grounds::{Ground, Kind};
use crate::stand_in::Fixed;

const CLUSTER: &str = "here";
/// Longer than any registry of the tests takes for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver with the service that the check works on.
struct Subject {
    driver: Arc<Driver>,
    service: String,
    /// What stands there all the time and is nobody's of ours.
    beside: Option<SocketAddr>,
}

#[rstest]
#[tokio::test]
async fn a_target_is_registered_drained_and_deregistered(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let address = ground.address();
    subject.done(Operation::Register, address, "a").await;
    let listed = subject.until(address, "a", |listed| state(listed) == Some(TargetState::Active)).await.expect("it is active");
    if subject.driver.capabilities().stamps {
        let stamp = listed.stamp.expect("a target of ours is stamped");
        assert_eq!((&*stamp.cluster, stamp.uid.as_str()), (CLUSTER, "a"));
    }
    if subject.driver.capabilities().drain == DrainKind::Explicit {
        subject.done(Operation::Drain, address, "a").await;
        subject.until(address, "a", |listed| state(listed) == Some(TargetState::Draining)).await;
        subject.done(Operation::Register, address, "a").await;
        subject.until(address, "a", |listed| state(listed) == Some(TargetState::Active)).await;
        subject.done(Operation::Drain, address, "a").await;
    }
    subject.gone(address, "a").await;
}

#[rstest]
#[tokio::test]
async fn repeated_and_reordered_calls_do_no_harm(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let address = ground.address();
    for operation in [Operation::Drain, Operation::Deregister] {
        let early = subject.one(operation, address, "a").await;
        assert!(matches!(early, Ok(()) | Err(ChangeError::NotFound)), "{operation:?} of nothing: {early:?}");
    }
    assert_eq!(subject.listing().await.targets, [], "nothing came of it");
    subject.done(Operation::Register, address, "a").await;
    subject.done(Operation::Register, address, "a").await;
    subject.until(address, "a", |listed| state(listed) == Some(TargetState::Active)).await;
    assert_eq!(subject.listing().await.targets.len(), 1);
    subject.done(Operation::Register, address, "a").await;
    subject.until(address, "a", |listed| state(listed) == Some(TargetState::Active)).await;
    if subject.driver.capabilities().drain == DrainKind::Explicit {
        subject.done(Operation::Drain, address, "a").await;
        subject.done(Operation::Drain, address, "a").await;
        subject.until(address, "a", |listed| state(listed) == Some(TargetState::Draining)).await;
    }
    subject.gone(address, "a").await;
    subject.gone(address, "a").await;
    // A late repeat of what was before must be harmless too.
    let late = subject.one(Operation::Drain, address, "a").await;
    assert!(matches!(late, Ok(()) | Err(ChangeError::NotFound)), "{late:?}");
    assert_eq!(subject.listing().await.targets, []);
}

#[rstest]
#[tokio::test]
async fn foreign_targets_are_shown_and_left_alone(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let (foreign, ours) = (ground.address(), ground.address());
    ground.put_foreign(foreign).await;
    let before = subject.listing().await;
    let [shown] = &before.targets[..] else { panic!("the foreign target is listed: {before:?}") };
    assert_eq!(shown.address, foreign);
    assert!(shown.stamp.as_ref().is_none_or(|stamp| &*stamp.cluster != CLUSTER), "and is not ours: {shown:?}");
    subject.done(Operation::Register, ours, "a").await;
    subject.until(ours, "a", |listed| state(listed) == Some(TargetState::Active)).await;
    if subject.driver.capabilities().stamps {
        // Neither under a uid of ours nor under its own. What is not there has been deregistered, as some say.
        for uid in ["b", "other"] {
            let drained = subject.one(Operation::Drain, foreign, uid).await;
            assert!(drained.is_err(), "drain of a foreign target: {drained:?}");
            let deregistered = subject.one(Operation::Deregister, foreign, uid).await;
            assert!(deregistered.is_err() || subject.driver.capabilities().keys == TargetKeys::Exact, "{deregistered:?}");
            assert!(subject.listing().await.targets.contains(shown), "it is left alone");
        }
    }
    subject.gone(ours, "a").await;
    assert_eq!(subject.listing().await.targets, before.targets);
}

#[rstest]
#[tokio::test]
async fn a_newcomer_on_a_reused_address_is_not_removed(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let address = ground.address();
    subject.done(Operation::Register, address, "old").await;
    subject.until(address, "old", |listed| state(listed) == Some(TargetState::Active)).await;
    subject.done(Operation::Register, address, "new").await;
    subject.until(address, "new", |listed| state(listed) == Some(TargetState::Active)).await;
    if subject.driver.capabilities().keys == TargetKeys::Exact {
        subject.gone(address, "old").await;
    }
    let newcomer = subject.until(address, "new", |listed| state(listed) == Some(TargetState::Active)).await;
    assert!(newcomer.is_some());
    subject.gone(address, "new").await;
}

#[rstest]
#[tokio::test]
async fn each_change_of_a_batch_has_its_own_result(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let (one, other, nobody) = (ground.address(), ground.address(), ground.address());
    let operations = [(Operation::Register, one, "a"), (Operation::Drain, nobody, "x"), (Operation::Register, other, "b")];
    let batch: Vec<_> = operations.into_iter().map(|(operation, address, uid)| change(operation, address, uid)).collect();
    let batch = &batch[..batch.len().min(subject.driver.capabilities().batch.get())];
    let results = subject.driver.apply(&subject.service, batch).await.unwrap();
    assert_eq!(results.len(), batch.len());
    for (result, change) in results.iter().zip(batch) {
        let good = if change.address == nobody { matches!(result, Err(ChangeError::NotFound) | Ok(())) } else { result.is_ok() };
        assert!(good, "{change:?}: {result:?}");
        if change.operation == Operation::Register {
            subject.until(change.address, change.uid.as_str(), |listed| state(listed) == Some(TargetState::Active)).await;
        }
    }
    assert_eq!(subject.driver.apply(&subject.service, &[]).await, Ok(Vec::new()), "nothing to do is done");
}

#[rstest]
#[tokio::test]
async fn a_blocking_read_is_answered_by_a_change(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    if !subject.driver.capabilities().blocking_read {
        return;
    }
    let address = ground.address();
    let index = subject.listing().await.index.expect("a blocking read goes on from an index");
    let (driver, service) = (subject.driver.clone(), subject.service.clone());
    let wait = Wait { index, at_most: Duration::from_secs(60) };
    let waiting = tokio::spawn(async move { driver.list(&service, Some(wait)).await });
    subject.done(Operation::Register, address, "a").await;
    let listing = tokio::time::timeout(PATIENCE, waiting).await.expect("long before the wait is over").unwrap().unwrap();
    assert_ne!(listing.index, Some(index));
    let index = subject.until_listing(|listing| !listing.targets.is_empty()).await.index.unwrap();
    let short = Wait { index, at_most: Duration::from_millis(20) };
    let unchanged = tokio::time::timeout(PATIENCE, subject.driver.list(&subject.service, Some(short))).await.unwrap().unwrap();
    assert_eq!(unchanged.targets.len(), 1, "the time was over");
}

#[rstest]
#[tokio::test]
async fn a_silent_endpoint_is_a_timeout(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let subject = Subject::with(&ground, &ground.config_at(&listener.local_addr().unwrap().to_string()));
    let change = [change(Operation::Register, ground.address(), "a")];
    let calls = async { tokio::join!(subject.driver.list(&subject.service, None), subject.driver.apply(&subject.service, &change)) };
    let patience = CALL_TIMEOUT + Duration::from_secs(4);
    let (listed, applied) = tokio::time::timeout(patience, calls).await.expect("a call has an end");
    assert_eq!(listed, Err(CallError::Timeout));
    // A driver that asks before it changes anything knows that nothing was changed.
    assert!(matches!(applied, Err(CallError::Timeout | CallError::Unavailable(_))), "{applied:?}");
}

#[rstest]
#[tokio::test]
async fn a_refused_connection_certainly_left_nothing(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let subject = Subject::with(&ground, &ground.config_at(&free.to_string()));
    let change = [change(Operation::Drain, ground.address(), "a")];
    let (listed, applied) = (subject.driver.list(&subject.service, None).await, subject.driver.apply(&subject.service, &change).await);
    assert!(matches!(listed, Err(CallError::Unavailable(_))), "{listed:?}");
    assert!(matches!(applied, Err(CallError::Unavailable(_))), "{applied:?}");
}

#[rstest]
#[tokio::test]
async fn a_credential_that_changed_on_disk_counts(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start_guarded(kind).await;
    let subject = Subject::of(&ground);
    subject.listing().await;
    ground.change_credential_there().await;
    let denied = subject.driver.list(&subject.service, None).await;
    assert!(matches!(denied, Err(CallError::Denied(_) | CallError::Unavailable(_))), "the old one is refused: {denied:?}");
    ground.change_credential_here();
    subject.listing().await;
    ground.remove_credential_here();
    let missing = subject.driver.list(&subject.service, None).await;
    assert!(matches!(missing, Err(CallError::Unavailable(_))), "nothing is sent without it: {missing:?}");
}

/// Each call is cut off at another moment, as by a leader that dies, and then made again.
#[rstest]
#[tokio::test]
async fn an_interrupted_call_is_made_good_by_the_next(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    for micros in [0, 300, 1000, 3000] {
        // One of its own each time: what was cut off may still be done, but never to the next.
        let address = ground.address();
        for operation in [Operation::Register, Operation::Deregister] {
            let batch = [change(operation, address, "a")];
            let cut = Duration::from_micros(micros);
            let _ = tokio::time::timeout(cut, subject.driver.apply(&subject.service, &batch)).await;
            match operation {
                Operation::Register => {
                    subject.until_done(operation, address, "a").await;
                    subject.until(address, "a", |listed| state(listed) == Some(TargetState::Active)).await;
                    assert_eq!(subject.listing().await.targets.len(), 1);
                }
                Operation::Drain | Operation::Deregister => subject.gone(address, "a").await,
            }
        }
    }
}

#[rstest]
#[tokio::test]
async fn more_than_fits_into_one_request_is_listed_whole(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start(kind).await;
    let subject = Subject::of(&ground);
    let batch = subject.driver.capabilities().batch.get();
    let addresses: Vec<_> = (0..ground.room().min(batch + 5)).map(|_| ground.address()).collect();
    let changes: Vec<_> = addresses.iter().map(|address| change(Operation::Register, *address, "a")).collect();
    for some in changes.chunks(batch) {
        let results = subject.driver.apply(&subject.service, some).await.unwrap();
        assert!(results.len() == some.len() && results.iter().all(Result::is_ok), "{results:?}");
    }
    let listing = subject.until_listing(|listing| listing.targets.len() == addresses.len()).await;
    let listed: BTreeSet<_> = listing.targets.iter().map(|target| target.address).collect();
    assert_eq!(listed, addresses.into_iter().collect());
}

#[rstest]
#[tokio::test]
async fn a_certificate_of_a_stranger_is_refused_before_anything_is_sent(
    #[values(Kind::Aws, Kind::Consul, Kind::Http, Kind::HaproxyDynamic, Kind::HaproxyTemplate, Kind::HaproxyTwo, Kind::HaproxyUnlike)] kind: Kind,
) {
    let ground = Ground::start_guarded(kind).await;
    let subject = Subject::with(&ground, &ground.config_of_a_stranger().await);
    let change = [change(Operation::Register, ground.address(), "a")];
    let (listed, applied) = (subject.driver.list(&subject.service, None).await, subject.driver.apply(&subject.service, &change).await);
    assert!(matches!(&listed, Err(CallError::Unavailable(text)) if text.contains("certificate")), "{listed:?}");
    assert!(matches!(applied, Err(CallError::Unavailable(_))), "{applied:?}");
}

/// HAProxy has no word for it.
#[rstest]
#[tokio::test]
async fn who_asks_to_slow_down_is_heard(#[values(Kind::Aws, Kind::Consul, Kind::Http)] kind: Kind) {
    let ground = Ground::start(kind).await;
    let slow = Fixed::with_status(429, "Retry-After: 1\r\n", "slow down");
    let subject = Subject::with(&ground, &ground.config_at(&slow.address.to_string()));
    let change = [change(Operation::Register, ground.address(), "a")];
    let (listed, applied) = (subject.driver.list(&subject.service, None).await, subject.driver.apply(&subject.service, &change).await);
    assert!(matches!(listed, Err(CallError::Throttled(_))), "{listed:?}");
    assert!(matches!(applied, Err(CallError::Throttled(_))), "{applied:?}");
}

impl Subject {
    fn of(ground: &Ground) -> Self {
        Self::with(ground, &ground.config())
    }

    fn with(ground: &Ground, driver: &DriverConfig) -> Self {
        Self { driver: ground.open(driver, CLUSTER), service: ground.service().to_owned(), beside: ground.beside() }
    }

    async fn listing(&self) -> Listing {
        self.list(None).await
    }

    async fn list(&self, wait: Option<Wait>) -> Listing {
        let mut listing = self.driver.list(&self.service, wait).await.unwrap();
        let count = listing.targets.len();
        listing.targets.retain(|listed| Some(listed.address) != self.beside);
        assert_eq!(count - listing.targets.len(), usize::from(self.beside.is_some()), "it is there all the time");
        listing
    }

    async fn one(&self, operation: Operation, address: SocketAddr, uid: &str) -> Result<(), ChangeError> {
        let results = self.driver.apply(&self.service, &[change(operation, address, uid)]).await.unwrap();
        <[_; 1]>::try_from(results).expect("one change has one result").into_iter().next().unwrap()
    }

    async fn done(&self, operation: Operation, address: SocketAddr, uid: &str) {
        assert_eq!(self.one(operation, address, uid).await, Ok(()), "{operation:?} {address} {uid}");
    }

    /// Asks until it is answered; an earlier call may be under way still.
    async fn until_done(&self, operation: Operation, address: SocketAddr, uid: &str) {
        let asking = async { while self.one(operation, address, uid).await != Ok(()) {} };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{operation:?} {address} {uid} is not done"));
    }

    /// Asks until the target is not listed any more, as the reconciler does.
    async fn gone(&self, address: SocketAddr, uid: &str) {
        let asking = async {
            loop {
                let answer = self.one(Operation::Deregister, address, uid).await;
                assert!(matches!(answer, Ok(()) | Err(ChangeError::NotFound | ChangeError::Refused(_))), "{answer:?}");
                if self.find(&self.listing().await, address, uid).is_none() {
                    return;
                }
                tokio::time::sleep(self.driver.capabilities().poll.min(Duration::from_millis(50))).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{address} {uid} is still listed"));
    }

    /// Reads until the target is as wanted.
    async fn until(&self, address: SocketAddr, uid: &str, wanted: impl Fn(Option<&Listed>) -> bool) -> Option<Listed> {
        let listing = self.until_listing(|listing| wanted(self.find(listing, address, uid))).await;
        self.find(&listing, address, uid).cloned()
    }

    async fn until_listing(&self, wanted: impl Fn(&Listing) -> bool) -> Listing {
        let reading = async {
            let mut listing = self.listing().await;
            while !wanted(&listing) {
                let wait = listing.index.map(|index| Wait { index, at_most: Duration::from_secs(1) });
                if wait.is_none() {
                    tokio::time::sleep(self.driver.capabilities().poll.min(Duration::from_millis(50))).await;
                }
                listing = self.list(wait).await;
            }
            listing
        };
        match tokio::time::timeout(PATIENCE, reading).await {
            Ok(listing) => listing,
            Err(_) => panic!("it never came to be: {:?}", self.listing().await),
        }
    }

    fn find<'l>(&self, listing: &'l Listing, address: SocketAddr, uid: &str) -> Option<&'l Listed> {
        let ours = |listed: &&Listed| match &listed.stamp {
            Some(stamp) if !stamp.uid.as_str().is_empty() => stamp.uid.as_str() == uid,
            Some(_) | None => !self.driver.capabilities().stamps,
        };
        listing.targets.iter().filter(|listed| listed.address == address).find(ours)
    }
}

fn state(listed: Option<&Listed>) -> Option<TargetState> {
    listed.map(|listed| listed.state)
}

fn change(operation: Operation, address: SocketAddr, uid: &str) -> Change {
    let pod = PodKey::new("shop", format!("web-{uid}"));
    Change { operation, address, uid: PodUid::new(uid), pod, cluster: CLUSTER.into(), weight: 100 }
}
