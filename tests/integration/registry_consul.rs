//! The consul driver on what is special about Consul: ACLs, agents, leaders, indexes, checks of others.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lockstep::config::ConsulConfig;
use lockstep::registry::consul::Consul as Driver;
use lockstep::registry::{CALL_TIMEOUT, CallError, Change, ChangeError, Listed, Listing, Operation, Registry, Wait};
use lockstep::target::{PodKey, PodUid, TargetState};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::authority::Authority;
use crate::consul_process::Consul;
use crate::registry_conformance_grounds::RULES;
use crate::stand_in::Fixed;

/// An agent reconciles of itself one to two minutes after it did last: `ae_interval` is a minute and as much again is drawn by lot.
const RECONCILES_WITHIN: Duration = Duration::from_secs(180);
/// Servers that arrive at the most, and the time between two; an agent waits about 3 s after an arrival before it reconciles.
const ARRIVALS: usize = 4;
const ARRIVAL: Duration = Duration::from_secs(10);

fn open(address: &str, token: Option<&str>, ca: Option<&str>, credentials: &Path) -> Driver {
    let config = ConsulConfig { address: address.to_owned(), token: token.map(str::to_owned), ca: ca.map(str::to_owned) };
    Driver::new(&config, &"mesh".into(), credentials).unwrap()
}

fn plain(address: SocketAddr) -> Driver {
    open(&format!("http://{address}"), None, None, Path::new("/nowhere"))
}

fn change(operation: Operation, uid: &str) -> Change {
    let (address, pod) = ("10.0.0.1:80".parse().unwrap(), PodKey::new("shop", "web-1"));
    Change { operation, address, uid: PodUid::new(uid), pod, cluster: "here".into(), weight: 100 }
}

async fn tell(driver: &Driver, operation: Operation, uid: &str) -> Result<(), ChangeError> {
    driver.apply("web", &[change(operation, uid)]).await.unwrap().remove(0)
}

fn of<'l>(listing: &'l Listing, uid: &str) -> Option<&'l Listed> {
    listing.targets.iter().find(|listed| listed.stamp.as_ref().is_some_and(|stamp| stamp.uid.as_str() == uid))
}

/// A Consul with ACLs and HTTPS, and a folder of credentials.
struct Guarded {
    process: Consul,
    folder: TempDir,
}

impl Guarded {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("consul");
        let certificate = folder.path().join("certificate");
        std::fs::write(&certificate, authority.certificate + &authority.key).unwrap();
        std::fs::write(folder.path().join("ca"), authority.ca).unwrap();
        std::fs::write(folder.path().join("wrong-ca"), Authority::new("another").ca).unwrap();
        Self { process: Consul::start_guarded(&certificate).await, folder }
    }

    /// A driver with a token of those rights.
    async fn driver(&self, rules: &str) -> Driver {
        let (secret, _) = self.process.token(rules).await;
        std::fs::write(self.folder.path().join("token"), secret).unwrap();
        open(&format!("http://{}", self.process.address()), Some("token"), None, self.folder.path())
    }
}

#[tokio::test]
async fn what_a_token_may_not_read_is_no_empty_listing() {
    let guarded = Guarded::start().await;
    let full = guarded.driver(RULES).await;
    assert_eq!(tell(&full, Operation::Register, "a").await, Ok(()));
    assert_eq!(full.list("web", None).await.unwrap().targets.len(), 1);

    for (rules, right) in [
        ("node_prefix \"\" { policy = \"read\" }", "service:write on web"),
        ("service \"web\" { policy = \"write\" }", "node:read on every node"),
    ] {
        let listed = guarded.driver(rules).await.list("web", None).await;
        assert!(matches!(&listed, Err(CallError::Denied(text)) if text.contains(right)), "{listed:?}");
    }
    let nameless = plain(guarded.process.address());
    let listed = nameless.list("web", None).await;
    assert!(matches!(&listed, Err(CallError::Denied(text)) if text.contains("name a token")), "{listed:?}");
    let applied = tell(&nameless, Operation::Register, "b").await;
    assert!(matches!(applied, Err(ChangeError::Denied(_))), "{applied:?}");
}

#[tokio::test]
async fn a_change_without_the_right_says_which_is_missing() {
    let guarded = Guarded::start().await;
    let no_node = guarded.driver("node_prefix \"\" { policy = \"read\" }\nservice \"web\" { policy = \"write\" }").await;
    let applied = tell(&no_node, Operation::Register, "a").await;
    assert!(matches!(&applied, Err(ChangeError::Denied(text)) if text.contains("'node:write' on \"lockstep-here\"")), "{applied:?}");
    let no_service = guarded.driver("node_prefix \"\" { policy = \"write\" }\nservice \"web\" { policy = \"read\" }").await;
    for operation in [Operation::Register, Operation::Deregister] {
        let applied = tell(&no_service, operation, "a").await;
        assert!(matches!(&applied, Err(ChangeError::Denied(text)) if text.contains("'service:write' on \"web\"")), "{applied:?}");
    }
}

#[tokio::test]
async fn https_with_a_private_authority() {
    let guarded = Guarded::start().await;
    let (secret, _) = guarded.process.token(RULES).await;
    std::fs::write(guarded.folder.path().join("token"), secret).unwrap();
    let at = |ca| open(&guarded.process.url_with_tls(), Some("token"), Some(ca), guarded.folder.path());
    assert_eq!(tell(&at("ca"), Operation::Register, "a").await, Ok(()));
    let refused = at("wrong-ca").apply("web", &[change(Operation::Drain, "a")]).await;
    assert!(matches!(&refused, Err(CallError::Unavailable(text)) if text.contains("invalid peer certificate")), "{refused:?}");
}

#[tokio::test]
async fn all_of_a_batch_is_done_but_what_cannot_be() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    assert_eq!(tell(&driver, Operation::Register, "old").await, Ok(()));
    let batch = [
        change(Operation::Deregister, "old"),
        change(Operation::Drain, "nobody"),
        change(Operation::Drain, "nobody-either"),
        change(Operation::Register, "a"),
        // Consul takes no such address.
        Change { address: "0.0.0.0:80".parse().unwrap(), ..change(Operation::Register, "b") },
    ];
    let results = driver.apply("web", &batch).await.unwrap();
    assert_eq!(results[..4], [Ok(()), Err(ChangeError::NotFound), Err(ChangeError::NotFound), Ok(())]);
    assert_eq!(results[4], Err(ChangeError::Refused("Invalid service address".to_owned())));
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!((listing.targets.len(), of(&listing, "a").is_some()), (1, true), "{listing:?}");
}

/// The largest batch fits into a transaction, also of versions that take 64 operations.
#[tokio::test]
async fn a_full_batch_is_one_transaction() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    let count = driver.capabilities().batch.get();
    let of_all = |operation| (0..count).map(|place| change(operation, &format!("u{place}"))).collect::<Vec<_>>();
    assert!(driver.apply("web", &of_all(Operation::Register)).await.unwrap().iter().all(Result::is_ok));
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(listing.targets.len(), count);
    let (_, all) = process.ask(Method::GET, "health/service/web", None).await;
    let indexes: std::collections::BTreeSet<u64> =
        all.as_array().unwrap().iter().map(|one| one["Service"]["CreateIndex"].as_u64().unwrap()).collect();
    assert_eq!(indexes.len(), 1, "all were written at once");
    assert!(2 * count < 64, "with the one for the node");
    assert!(driver.apply("web", &of_all(Operation::Deregister)).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(driver.list("web", None).await.unwrap().targets, []);
    let (_, nodes) = process.ask(Method::GET, "catalog/node/lockstep-here", None).await;
    assert_eq!(nodes["Node"]["Node"], "lockstep-here", "the node stays when its last service goes");
}

#[tokio::test]
async fn the_checks_of_others_count() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    tell(&driver, Operation::Register, "a").await.unwrap();
    let check = |id: &str, service: &str, status: &str| {
        let check = json!({"Node": "lockstep-here", "CheckID": id, "Name": "other", "Status": status, "ServiceID": service});
        json!({"Node": "lockstep-here", "Address": "127.0.0.1", "SkipNodeUpdate": true, "Check": check})
    };
    let instance = "lockstep:web:a:10.0.0.1:80";
    for (id, service) in [("monitor", instance), ("node-wide", "")] {
        for (status, state) in [
            ("critical", TargetState::Unhealthy),
            ("warning", TargetState::Active),
            ("critical", TargetState::Unhealthy),
            ("passing", TargetState::Active),
        ] {
            process.put("catalog/register", &check(id, service, status)).await;
            assert_eq!(of(&driver.list("web", None).await.unwrap(), "a").unwrap().state, state, "{id} {status}");
        }
    }
    // Without our check Consul would go on using it, whatever we drain.
    process.put("catalog/deregister", &json!({"Node": "lockstep-here", "CheckID": instance})).await;
    assert_eq!(of(&driver.list("web", None).await.unwrap(), "a").unwrap().state, TargetState::Unhealthy);
    tell(&driver, Operation::Drain, "a").await.unwrap();
    assert_eq!(of(&driver.list("web", None).await.unwrap(), "a").unwrap().state, TargetState::Draining);
}

#[tokio::test]
async fn what_only_looks_like_ours_is_not() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    let meta = json!({"lockstep-cluster": "here", "lockstep-uid": "a"});
    for (node, id) in [("machine", "lockstep:web:a:10.0.0.1:80"), ("lockstep-here", "by-hand")] {
        let service = json!({"ID": id, "Service": "web", "Address": "10.0.0.1", "Port": 80, "Meta": meta});
        process.put("catalog/register", &json!({"Node": node, "Address": "127.0.0.1", "Service": service})).await;
    }
    // An instance without an address is where its node is; one with a name has none that we could show.
    process
        .put("catalog/register", &json!({"Node": "machine", "Address": "10.0.0.9", "Service": {"ID": "x", "Service": "web", "Port": 90}}))
        .await;
    let named = json!({"ID": "y", "Service": "web", "Address": "web.example", "Port": 90});
    process.put("catalog/register", &json!({"Node": "machine", "Address": "10.0.0.9", "Service": named})).await;
    let listing = driver.list("web", None).await.unwrap();
    let mut addresses: Vec<String> = listing.targets.iter().map(|listed| listed.address.to_string()).collect();
    addresses.sort();
    assert_eq!(addresses, ["10.0.0.1:80", "10.0.0.1:80", "10.0.0.9:90"]);
    assert!(listing.targets.iter().all(|listed| listed.stamp.is_none()), "{listing:?}");
    tell(&driver, Operation::Deregister, "a").await.unwrap();
    assert_eq!(driver.list("web", None).await.unwrap().targets.len(), 3, "and it is left alone");
}

/// A full reconciliation of an agent's own node, as the arrival of another server starts it, leaves our node alone.
#[tokio::test]
async fn an_agent_does_not_erase_what_is_ours() {
    let first = Consul::start_of_two();
    let second = first.join("second");
    first.await_leader().await;
    let driver = plain(first.address());
    tell(&driver, Operation::Register, "a").await.unwrap();
    let erased = json!({"ID": "alien", "Service": "web", "Address": "10.0.0.7", "Port": 80});
    first.put("catalog/register", &json!({"Node": "first", "Address": "127.0.0.1", "Service": erased})).await;
    // The agent finds out about a service that it does not have once it reconciles. One that is busy with that when a server arrives
    // takes no notice of it, so there are more arrivals; they make it quick, its own round makes it sure.
    let begun = Instant::now();
    let mut arrivals = Vec::new();
    loop {
        let listing = driver.list("web", None).await.unwrap();
        assert!(of(&listing, "a").is_some(), "{listing:?}");
        if listing.targets.len() == 1 {
            break;
        }
        if arrivals.len() < ARRIVALS && begun.elapsed() >= ARRIVAL * u32::try_from(arrivals.len()).unwrap() {
            arrivals.push(first.join(&format!("arrival-{}", arrivals.len())));
        }
        assert!(begun.elapsed() < RECONCILES_WITHIN, "the agent does not reconcile");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(second);
}

/// A leader that has lost its peers does not know whether it leads; what it remembers is no acknowledgement.
#[tokio::test]
async fn a_stale_leader_acknowledges_nothing() {
    let first = Consul::start_of_two();
    let second = first.join("second");
    first.await_leader().await;
    let (_, leader) = first.ask(Method::GET, "status/leader", None).await;
    let leads = leader.as_str().unwrap() == first.rpc().to_string();
    let (leader, follower) = if leads { (&first, &second) } else { (&second, &first) };
    let driver = plain(leader.address());
    tell(&driver, Operation::Register, "a").await.unwrap();
    follower.hang();
    let out = [change(Operation::Deregister, "a")];
    let (listed, applied) = tokio::join!(driver.list("web", None), driver.apply("web", &out));
    assert!(matches!(listed, Err(CallError::Timeout | CallError::Failed(_))), "{listed:?}");
    assert!(matches!(applied, Err(CallError::Timeout | CallError::Failed(_))), "{applied:?}");
    let (status, stale) = leader.ask(Method::GET, "health/service/web?stale", None).await;
    assert_eq!((status, stale.as_array().map(Vec::len)), (200, Some(1)), "while it would tell anybody else: {stale}");
}

#[tokio::test]
async fn a_wait_ends_in_its_time_and_sees_what_comes() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    let index = driver.list("web", None).await.unwrap().index.expect("there is an index for a service that is not there yet");
    let begun = Instant::now();
    let wait = Wait { index, at_most: Duration::from_millis(500) };
    let listing = driver.list("web", Some(wait)).await.unwrap();
    assert!(begun.elapsed() < wait.at_most + CALL_TIMEOUT);
    // Of a service that is not there, Consul answers a little more often: whenever any other changes.
    assert_eq!(listing.targets, []);
    // What stands already wakes nobody.
    tell(&driver, Operation::Register, "a").await.unwrap();
    let index = driver.list("web", None).await.unwrap().index.unwrap();
    tell(&driver, Operation::Register, "a").await.unwrap();
    assert_eq!(driver.list("web", None).await.unwrap().index, Some(index));
}

/// Namespaces are Consul Enterprise's: an agent without them refuses a request that names one, so no request of ours does.
#[tokio::test]
async fn a_namespace_is_never_named() {
    let process = Consul::start().await;
    let (status, refusal) = process.ask(Method::GET, "health/service/web?ns=default", None).await;
    assert!(status == 400 && refusal.as_str().unwrap().contains("Enterprise"), "{refusal}");
    let driver = plain(process.address());
    for operation in [Operation::Register, Operation::Drain, Operation::Deregister] {
        assert_eq!(tell(&driver, operation, "a").await, Ok(()));
    }
    assert_eq!(driver.list("web", None).await.unwrap().targets, []);
}

/// As Consul Enterprise writes it, from its API reference; ours is known by the same marks as everywhere.
#[tokio::test]
async fn an_answer_with_namespaces_is_read_as_one_without() {
    let place = json!({"Namespace": "team", "Partition": "default", "PeerName": ""});
    let with = |mut value: serde_json::Value| {
        value.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        value
    };
    let node =
        |name: &str| json!({"ID": "", "Node": name, "Address": "127.0.0.1", "Datacenter": "dc1", "Partition": "default", "Meta": {}});
    let id = "lockstep:web:a:10.0.0.1:80";
    let stamp = json!({"lockstep-cluster": "here", "lockstep-pod": "shop/web-1", "lockstep-uid": "a"});
    let own = with(json!({"ID": id, "Service": "web", "Address": "10.0.0.1", "Port": 80, "Meta": stamp}));
    let check = with(json!({"Node": "lockstep-here", "CheckID": id, "Status": "passing", "ServiceID": id, "ServiceName": "web"}));
    let foreign = with(json!({"ID": "x", "Service": "web", "Address": "10.0.0.2", "Port": 80, "Meta": null}));
    let body = json!([
        {"Node": node("lockstep-here"), "Service": own, "Checks": [check]},
        {"Node": node("other"), "Service": foreign, "Checks": []},
    ]);
    let driver = plain(Fixed::with_status(200, EMPTY, &body.to_string()).address);
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(of(&listing, "a").map(|listed| listed.state), Some(TargetState::Active), "{listing:?}");
    assert_eq!(listing.targets.iter().filter(|listed| listed.stamp.is_none()).count(), 1);
}

const EMPTY: &str = "X-Consul-Index: 5\r\n";

#[rstest]
#[case::forbidden(403, "ACL not found", CallError::Denied("403: ACL not found".into()))]
#[case::elsewhere(404, "nothing here", CallError::Failed("404: nothing here; is the address that of Consul's HTTP API?".into()))]
#[case::throttled(429, "Your IP is issuing too many concurrent connections", CallError::Throttled("429: Your IP is issuing too many concurrent connections".into()))]
#[case::leaderless(500, "No cluster leader", CallError::Failed("500: No cluster leader".into()))]
#[case::moved(301, "", CallError::Failed("301:; redirects are not followed".into()))]
#[tokio::test]
async fn a_status_is_an_error_of_its_kind(#[case] status: u16, #[case] body: &str, #[case] error: CallError) {
    let server = Fixed::with_status(status, "", body);
    let driver = plain(server.address);
    assert_eq!(driver.list("web", None).await, Err(error.clone()));
    assert_eq!(driver.apply("web", &[change(Operation::Register, "a")]).await, Err(error));
}

#[rstest]
#[case::not_json(200, "<html>")]
#[case::another_shape(200, r#"{"Errors": 1}"#)]
#[case::nobody_to_blame(409, r#"{"Errors": [{"OpIndex": 9, "What": "no"}]}"#)]
#[case::a_conflict_without_words(409, "no")]
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_failure(#[case] status: u16, #[case] body: &str) {
    let driver = plain(Fixed::with_status(status, EMPTY, body).address);
    assert!(matches!(driver.list("web", None).await, Err(CallError::Failed(_))));
    if status == 409 {
        let applied = driver.apply("web", &[change(Operation::Register, "a")]).await;
        assert!(matches!(applied, Err(CallError::Failed(_))), "{applied:?}");
    }
}

/// After a restored snapshot Consul would keep a wait for the old index for its whole time.
#[tokio::test]
async fn an_index_that_went_backwards_is_waited_from_no_more() {
    let driver = plain(Fixed::with_status(200, EMPTY, "[]").address);
    assert_eq!(driver.list("web", None).await.unwrap().index, Some(5));
    let wait = |index| Some(Wait { index, at_most: Duration::from_secs(1) });
    assert_eq!(driver.list("web", wait(5)).await.unwrap().index, Some(5));
    assert_eq!(driver.list("web", wait(6)).await.unwrap().index, None);
}

#[rstest]
#[case("")]
#[case(".")]
#[case("..")]
#[tokio::test]
async fn a_service_that_cannot_be_is_missing(#[case] service: &str) {
    let driver = plain("127.0.0.1:1".parse().unwrap());
    assert!(matches!(driver.list(service, None).await, Err(CallError::ServiceMissing(_))));
    let applied = driver.apply(service, &[change(Operation::Register, "a")]).await;
    assert!(matches!(applied, Err(CallError::ServiceMissing(_))));
}

#[tokio::test]
async fn names_with_a_slash_are_services_too() {
    let process = Consul::start().await;
    let driver = plain(process.address());
    for service in ["shop/web", "shop web", "shop%2Fweb"] {
        driver.apply(service, &[change(Operation::Register, "a")]).await.unwrap().remove(0).unwrap();
        let listing = driver.list(service, None).await.unwrap();
        assert_eq!(of(&listing, "a").map(|listed| listed.state), Some(TargetState::Active), "{service}: {listing:?}");
    }
}
