//! Slots of a `server-template`: reloads and restarts, weights, strangers, and what stands in none of our backends.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lockstep::config::HaproxyBackend;
use lockstep::registry::{Capabilities, Change, ChangeError, Listing, Operation, Registry, TargetKeys};
use lockstep::target::{PodUid, TargetState};
use rstest::rstest;
use tokio::time::Instant;

use crate::haproxy_process::{Haproxy, serves};
use crate::registry_haproxy::{
    DYNAMIC, PATIENCE, ROUND, SLOTS, TEMPLATE, change, endpoint, of_cluster, one, open, state, tell, until, weights,
};

#[tokio::test]
async fn slots_survive_a_reload() {
    let process = Haproxy::start_mastered(SLOTS);
    let driver = one(&process, TEMPLATE);
    let ((_one, first), (_two, second), (_three, third)) = (endpoint(), endpoint(), endpoint());
    tell(&driver, Operation::Register, first).await.unwrap();
    until(&driver, first, Some(TargetState::Active)).await;
    tell(&driver, Operation::Drain, first).await.unwrap();
    tell(&driver, Operation::Register, second).await.unwrap();
    until(&driver, second, Some(TargetState::Active)).await;
    let full = tell(&driver, Operation::Register, third).await;
    assert!(matches!(full, Err(ChangeError::Full(_))), "{full:?}");
    process.reload();
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!((state(&listing, first), state(&listing, second)), (Some(TargetState::Draining), Some(TargetState::Active)));
    tell(&driver, Operation::Deregister, first).await.unwrap();
    until(&driver, first, None).await;
    tell(&driver, Operation::Register, third).await.unwrap();
    until(&driver, third, Some(TargetState::Active)).await;
}

/// From a line with an address all slots come back at that address, with the ports of their pods.
#[tokio::test]
async fn slots_without_a_host_name_lose_their_address() {
    let process = Haproxy::start_mastered("backend web\n balance roundrobin\n server-template lockstep 1-2 127.0.0.1:1 check disabled\n");
    let driver = one(&process, TEMPLATE);
    let (_listener, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    process.reload();
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(state(&listing, address), None, "if HAProxy keeps it, the page need not warn any more");
    assert_eq!(listing.targets[0].address, SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())));
}

/// A pod's address is another pod's before all processes have let it go: the slot has the check and the weight of the first.
#[rstest]
#[case::in_part(Duration::from_secs(30))]
#[case::in_one_that_is_back(Duration::from_millis(300))]
#[tokio::test]
async fn whoever_has_an_address_next_passes_its_own_check(#[case] instance_timeout: Duration) {
    let counts = instance_timeout > PATIENCE;
    let (first, second) = (Haproxy::start(SLOTS), Haproxy::start(SLOTS));
    let driver = open(vec![first.address(), second.address()], &[("web", TEMPLATE)], instance_timeout);
    let (_pod, address) = endpoint();
    let next = Change { uid: PodUid::new("next"), ..change(Operation::Register, address) };
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Drain, address).await.unwrap();
    second.hide();
    if counts {
        for operation in [Operation::Drain, Operation::Deregister] {
            let told = tell(&driver, operation, address).await;
            assert!(matches!(told, Err(ChangeError::Unfinished(_))), "{told:?}");
        }
        let waits = driver.apply("web", std::slice::from_ref(&next)).await.unwrap().remove(0);
        assert!(matches!(waits, Err(ChangeError::Refused(_))), "{waits:?}");
        assert!(!serves(&first, address));
        second.show();
        driver.apply("web", std::slice::from_ref(&next)).await.unwrap().remove(0).unwrap();
        assert!(!serves(&first, address) && !serves(&second, address));
    } else {
        let begun = Instant::now();
        while tell(&driver, Operation::Deregister, address).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "it still counts");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        until(&driver, address, None).await;
        driver.apply("web", std::slice::from_ref(&next)).await.unwrap().remove(0).unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
        second.show();
        while is_drained(&second, address) {
            let _ = driver.list("web", None).await;
            assert!(begun.elapsed() < PATIENCE, "it stays drained");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!serves(&second, address), "its check has not passed there");
    }
    until(&driver, address, Some(TargetState::Active)).await;
    assert!(serves(&first, address) && serves(&second, address));
}

fn is_drained(process: &Haproxy, address: SocketAddr) -> bool {
    let state = process.ask("show servers state web");
    state.lines().map(words).any(|fields| fields.get(1) == Some(&address.ip().to_string()) && fields[3] == "12")
}

/// Between two terms of one replica another one leads: what it gave back then may be in use again.
#[tokio::test]
async fn a_slot_that_another_leader_has_taken_since_is_left_alone() {
    let process = Haproxy::start(SLOTS);
    let (driver, other) = (one(&process, TEMPLATE), one(&process, TEMPLATE));
    let (_pod, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Deregister, address).await.unwrap();
    until(&driver, address, None).await;
    other.apply("web", &[Change { weight: 200, ..change(Operation::Register, address) }]).await.unwrap().remove(0).unwrap();
    until(&other, address, Some(TargetState::Active)).await;
    driver.forget();
    for _ in 0..3 {
        assert_eq!(state(&driver.list("web", None).await.unwrap(), address), Some(TargetState::Active));
    }
}

/// What is given back after the state file was written is in use again after the reload; nobody claims it, so the driver must know.
#[tokio::test]
async fn a_slot_that_a_reload_brings_back_is_given_back_again() {
    let process = Haproxy::start_mastered(SLOTS);
    let driver = one(&process, TEMPLATE);
    let ((_one, stays), (_two, goes)) = (endpoint(), endpoint());
    for address in [stays, goes] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
    }
    process.save_state();
    tell(&driver, Operation::Deregister, goes).await.unwrap();
    until(&driver, goes, None).await;
    process.replace();
    assert!(process.ask("show servers state web").contains(&goes.ip().to_string()), "the state file brings it back");
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!((state(&listing, stays), state(&listing, goes)), (Some(TargetState::Active), None));
    // And the slot can be had again, by the same address too.
    tell(&driver, Operation::Register, goes).await.unwrap();
    until(&driver, goes, Some(TargetState::Active)).await;
    process.reload();
    until(&driver, goes, Some(TargetState::Active)).await;
}

/// Each target of the others gets a slot of its own, all with one read.
#[tokio::test]
async fn a_process_that_has_lost_its_slots_has_them_all_again() {
    let backend = SLOTS.replace("1-2", "1-4");
    let (first, mut second) = (Haproxy::start(&backend), Haproxy::start(&backend));
    let driver = open(vec![first.address(), second.address()], &[("web", TEMPLATE)], Duration::from_secs(30));
    let ends: Vec<_> = (0..4).map(|_| endpoint()).collect();
    for (_, address) in &ends {
        tell(&driver, Operation::Register, *address).await.unwrap();
        until(&driver, *address, Some(TargetState::Active)).await;
    }
    second.stop();
    second.resume();
    driver.list("web", None).await.unwrap();
    let servers = second.ask("show servers state web");
    let lacking: Vec<_> = ends.iter().filter(|(_, address)| !servers.contains(&format!(" {} ", address.ip()))).collect();
    assert!(lacking.is_empty(), "{lacking:?} of {servers}");
    for (_, address) in &ends {
        until(&driver, *address, Some(TargetState::Active)).await;
    }
}

/// Where a slot has the weight of 1 that HAProxy gives it, a light share of it is none; the pod must get traffic all the same.
#[rstest]
#[case::of_a_line_without_weight(SLOTS.to_owned(), 1)]
#[case::of_a_line_with_one(SLOTS.replace(" check ", " weight 100 check "), 20)]
#[tokio::test]
async fn a_light_slot_has_its_share_and_keeps_it(#[case] backend: String, #[case] expected: u32) {
    let process = Haproxy::start(&backend);
    let driver = one(&process, TEMPLATE);
    let (_listener, address) = endpoint();
    driver.apply("web", &[Change { weight: 20, ..change(Operation::Register, address) }]).await.unwrap().remove(0).unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    assert_eq!(weights(&process)[0], expected);
    // A hand has changed it; so may have a copy of it that was made where nobody knew its share.
    process.ask("set server web/lockstep1 weight 77");
    driver.list("web", None).await.unwrap();
    assert_eq!(weights(&process)[0], expected);
    // A new leader has nothing but the configuration.
    process.ask("set server web/lockstep1 weight 77");
    one(&process, HaproxyBackend { weight: Some(20), ..TEMPLATE }).list("web", None).await.unwrap();
    assert_eq!(weights(&process)[0], expected);
}

/// A slot has what `default-server` says, a dynamic server nothing of it: weight, limit of connections, checks until it is down.
#[rstest]
#[case::dynamic(ROUND, "", DYNAMIC, ["100", "", "3"])]
#[case::template(ROUND, " server-template lockstep 1-2 lockstep.invalid:1 init-addr last,127.0.0.1 disabled\n", TEMPLATE, ["30", "7", "5"])]
#[tokio::test]
async fn what_default_server_says_holds_for_slots_alone(
    #[case] backend: &str,
    #[case] slots: &str,
    #[case] config: HaproxyBackend,
    #[case] expected: [&str; 3],
) {
    let process = Haproxy::start(&format!("{backend} default-server check inter 200ms fall 5 weight 30 maxconn 7\n{slots}"));
    let driver = one(&process, config);
    let (_listener, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    let stat = process.ask("show stat web 4 -1");
    let rows: Vec<Vec<&str>> = stat.lines().map(|line| line.trim_start_matches("# ").split(',').collect()).collect();
    let place = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    assert_eq!(["weight", "slim", "check_fall"].map(|name| rows[1][place(name)]), expected, "{stat}");
}

/// Two clusters fill slots of one backend, each those that have its name.
#[tokio::test]
async fn slots_that_have_another_clusters_name_are_left_alone() {
    let line = |cluster: &str| {
        format!(" server-template lockstep.{cluster}. 1-2 lockstep.invalid:1 check inter 200ms init-addr last,127.0.0.1 disabled\n")
    };
    let process = Haproxy::start(&format!("{ROUND}{}{}", line("here"), line("there.too")));
    let here = one(&process, TEMPLATE);
    let there = of_cluster("there.too", &process, TEMPLATE);
    let ends: [_; 4] = std::array::from_fn(|_| endpoint());
    let [ours, theirs, next, late] = ends.each_ref().map(|(_, address)| *address);
    for (driver, address) in [(&here, ours), (&there, theirs), (&here, next)] {
        tell(driver, Operation::Register, address).await.unwrap();
        until(driver, address, Some(TargetState::Active)).await;
    }
    let full = tell(&here, Operation::Register, late).await;
    let remedy = "all 2 slots of backend web are in use; raise the number in its line `server-template lockstep.here. 1-N`";
    assert_eq!(full, Err(ChangeError::Full(remedy.to_owned())));
    for operation in [Operation::Drain, Operation::Deregister] {
        assert_eq!(tell(&here, operation, theirs).await, Err(ChangeError::NotFound));
    }
    let listing = here.list("web", None).await.unwrap();
    let whose = |address| listing.targets.iter().find(|listed| listed.address == address).and_then(|listed| listed.stamp.as_ref());
    assert_eq!([ours, theirs].map(|address| whose(address).map(|stamp| &*stamp.cluster)), [Some("here"), Some("there.too")]);
    assert_eq!(state(&there.list("web", None).await.unwrap(), theirs), Some(TargetState::Active));
}

#[tokio::test]
async fn a_balance_algorithm_without_weights_says_so() {
    let process = Haproxy::start(&SLOTS.replace("roundrobin", "static-rr").replace(" check ", " weight 100 check "));
    let driver = one(&process, TEMPLATE);
    let (_listener, address) = endpoint();
    let light = driver.apply("web", &[Change { weight: 20, ..change(Operation::Register, address) }]).await.unwrap().remove(0);
    assert!(matches!(&light, Err(ChangeError::Refused(text)) if text.contains("takes no weights")), "{light:?}");
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
}

/// A server that is no slot, in a backend of slots, at the very address of a change.
#[tokio::test]
async fn strangers_among_the_slots_are_left_alone() {
    let (_listener, address) = endpoint();
    let process = Haproxy::start(&format!("{SLOTS} server hand {address} check inter 200ms weight 7\n"));
    let driver = one(&process, TEMPLATE);
    let hand = || process.ask("show servers state web").lines().find(|line| line.contains(" hand ")).map(words).unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    let before = hand();
    for operation in [Operation::Drain, Operation::Deregister] {
        assert_eq!(tell(&driver, operation, address).await, Err(ChangeError::NotFound));
    }
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    for operation in [Operation::Drain, Operation::Deregister] {
        tell(&driver, operation, address).await.unwrap();
        assert_eq!(hand(), before);
    }
    let slots = |listing: &Listing| listing.targets.iter().filter(|listed| listed.stamp.is_some()).count();
    assert_eq!(slots(&driver.list("web", None).await.unwrap()), 0, "what is left is nobody's of ours");
}

/// Name, address, state and weight in a line of `show servers state`; what follows are times.
fn words(line: &str) -> Vec<String> {
    line.split(' ').skip(3).take(6).map(str::to_owned).collect()
}

/// A slot says nothing of its pod, but that it is ours: whoever sweeps what nobody claims must know.
#[tokio::test]
async fn a_slot_in_use_is_ours_and_nobody_s() {
    let process = Haproxy::start(SLOTS);
    let (_listener, address) = endpoint();
    tell(&one(&process, TEMPLATE), Operation::Register, address).await.unwrap();
    let stamp = one(&process, TEMPLATE).list("web", None).await.unwrap().targets[0].stamp.clone().unwrap();
    assert_eq!((&*stamp.cluster, &stamp.uid), ("here", &PodUid::new("")));
    // Without a binding that owns the slots of the backend they may be another cluster's: listed, and not looked after.
    let stranger = one(&process, DYNAMIC);
    for _ in 0..2 {
        let listing = stranger.list("web", None).await.unwrap();
        assert_eq!((listing.targets.len(), &listing.targets[0].stamp, listing.unfinished), (1, &None, false));
    }
    assert_eq!(weights(&process)[0], 0, "only its own cluster takes it into use");
    until(&one(&process, TEMPLATE), address, Some(TargetState::Active)).await;
}

#[tokio::test]
async fn each_backend_has_the_keys_of_its_servers() {
    let process = Haproxy::start(SLOTS);
    let backends = [("web", TEMPLATE), ("api", DYNAMIC)];
    let driver = open(vec![process.address()], &backends, Duration::from_secs(30));
    let of = |service| {
        let Capabilities { keys, stamps, .. } = driver.capabilities_of(service);
        (keys, stamps)
    };
    assert_eq!(of("api"), (TargetKeys::Exact, true));
    assert_eq!(of("web"), (TargetKeys::Address, false));
    assert_eq!(of("former"), (TargetKeys::Address, false), "the slots of a binding that is no more are in use still");
    assert_eq!(driver.capabilities().keys, TargetKeys::Address, "a batch holds one change of an address");
}
