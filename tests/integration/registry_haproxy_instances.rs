//! Several HAProxy processes of one registry: all must acknowledge, some are away, come back, are started anew or leave the name.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockstep::config::HaproxyBackend;
use lockstep::registry::haproxy::Haproxy as Driver;
use lockstep::registry::{CallError, ChangeError, Listing, Operation, Registry};
use lockstep::target::TargetState;
use prometheus_client::metrics::gauge::Gauge;
use rstest::rstest;
use tokio::time::Instant;

use crate::haproxy_process::{Haproxy, free_port, serves};
use crate::registry_haproxy::{
    DYNAMIC, PATIENCE, ROUND, SLOTS, TEMPLATE, answering, between, breaking_off, change, endpoint, open, state, tell, until,
};

/// The name that the hosts file of a test gives its processes.
const NAME: &str = "haproxy.test";
const FIVE_SLOTS: &str = "backend web\n balance roundrobin\n \
    server-template lockstep 1-5 lockstep.invalid:1 check inter 200ms init-addr last,127.0.0.1 disabled\n";
/// Where the test that runs another one tells it of that file.
const HOSTS: &str = "LOCKSTEP_TEST_HOSTS";

#[tokio::test]
async fn every_process_must_acknowledge() {
    let (first, mut second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let out = Gauge::default();
    let driver = open(vec![first.address(), second.address()], &[("web", DYNAMIC)], Duration::from_millis(500)).showing(out.clone());
    let ((_kept, stays), (_gone, goes)) = (endpoint(), endpoint());
    for address in [stays, goes] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
    }
    assert!(second.ask("show servers state web").contains(&format!(":{}", stays.port())), "both have it");

    second.stop();
    let waits = driver.apply("web", &[change(Operation::Register, stays)]).await.unwrap().remove(0);
    assert!(matches!(waits, Err(ChangeError::Refused(_))), "one cannot be reached: {waits:?}");
    // Counted out after its time, as long as the other acknowledges.
    until(&driver, stays, Some(TargetState::Active)).await;
    assert_eq!(out.get(), 1, "and shown");
    let (_late, comes) = endpoint();
    tell(&driver, Operation::Deregister, goes).await.unwrap();
    tell(&driver, Operation::Register, comes).await.unwrap();
    until(&driver, goes, None).await;
    until(&driver, comes, Some(TargetState::Active)).await;

    // It returns with what it had before, as from a state that is old, and is made like the other before it counts.
    second.resume();
    let old = format!("lockstep:here:shop:web-1:u{}:127.0.0.1:{}", goes.port(), goes.port());
    second.ask(&format!("add server web/{old} {goes} weight 100; set server web/{old} state ready"));
    let begun = Instant::now();
    loop {
        let listed = driver.list("web", None).await;
        let servers = second.ask("show servers state web");
        let has = |address: SocketAddr| servers.contains(&format!(":{}", address.port()));
        if listed.is_ok() && has(stays) && has(comes) && !has(goes) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the second has {servers}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until(&driver, comes, Some(TargetState::Active)).await;
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!((state(&listing, goes), out.get()), (None, 0));
}

/// A process that nobody reaches for a moment goes on sending requests, and so do the others: these are told at once of what must get none.
/// When it is back, it gives nobody back what they have let go.
#[rstest]
#[tokio::test]
async fn while_one_is_away_the_others_stop_the_traffic(
    #[values((ROUND, DYNAMIC), (FIVE_SLOTS, TEMPLATE))] (backend, config): (&str, HaproxyBackend),
    #[values(false, true)] silent: bool,
) {
    let leave = if silent { Haproxy::freeze } else { Haproxy::hide };
    let come_back = if silent { Haproxy::thaw } else { Haproxy::show };
    let (first, second) = (Haproxy::start(backend), Haproxy::start(backend));
    let driver = open(vec![first.address(), second.address()], &[("web", config)], Duration::from_secs(30));
    let [(_one, stays), (_two, drains), (_three, goes), (_four, comes)] = std::array::from_fn(|_| endpoint());
    for address in [stays, drains, goes] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
    }
    leave(&second);
    let changes = [change(Operation::Deregister, goes), change(Operation::Drain, drains), change(Operation::Register, comes)];
    for _ in 0..2 {
        let results = driver.apply("web", &changes).await.unwrap();
        let [Err(ChangeError::Unfinished(_)), Err(ChangeError::Unfinished(_)), Err(ChangeError::Refused(why))] = &results[..] else {
            panic!("{results:?}")
        };
        assert!(why.contains("every instance") && why.contains(&second.address()) && why.contains("30s"), "{why}");
        assert_eq!([stays, drains, goes, comes].map(|address| serves(&first, address)), [true, false, false, false]);
        let listed = driver.list("web", None).await;
        assert!(matches!(listed, Err(CallError::Failed(_))), "one of two says nothing of the other: {listed:?}");
    }
    come_back(&second);
    let listing = until_listed(&driver).await;
    for (address, wanted) in [(stays, TargetState::Active), (drains, TargetState::Draining), (goes, TargetState::Draining)] {
        assert_eq!(state(&listing, address), Some(wanted), "{address}");
    }
    assert_eq!([drains, goes].map(|address| serves(&first, address) || serves(&second, address)), [false, false]);
    for (one, result) in changes.iter().zip(driver.apply("web", &changes).await.unwrap()) {
        assert_eq!(result, Ok(()), "{one:?}");
    }
    until(&driver, goes, None).await;
    until(&driver, comes, Some(TargetState::Active)).await;
}

/// A pod that was not ready for a moment is ready again before the other process is back: it is put back where that can be told.
#[rstest]
#[case::drained_while_one_is_away((ROUND, DYNAMIC), true)]
#[case::drained_before((ROUND, DYNAMIC), false)]
#[case::slot_drained_while_one_is_away((FIVE_SLOTS, TEMPLATE), true)]
#[tokio::test]
async fn what_serves_again_is_put_back_while_one_is_away(#[case] (backend, config): (&str, HaproxyBackend), #[case] away: bool) {
    let (first, second) = (Haproxy::start(backend), Haproxy::start(backend));
    let driver = open(vec![first.address(), second.address()], &[("web", config)], Duration::from_secs(30));
    let ((_pod, blips), unchecked) = (endpoint(), free_port());
    for (address, wanted) in [(blips, TargetState::Active), (unchecked, TargetState::Unhealthy)] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(wanted)).await;
    }
    let both = |operation| [change(operation, blips), change(operation, unchecked)];
    if away {
        second.hide();
    }
    driver.apply("web", &both(Operation::Drain)).await.unwrap();
    assert!(!serves(&first, blips));
    if !away {
        second.hide();
    }
    let results = driver.apply("web", &both(Operation::Register)).await.unwrap();
    assert!(matches!(&results[..], [Err(ChangeError::Unfinished(_)), Err(ChangeError::Unfinished(_))]), "{results:?}");
    assert_eq!([blips, unchecked].map(|address| serves(&first, address)), [true, false], "never before its check has passed");
    let again = tell(&driver, Operation::Register, blips).await;
    assert!(matches!(again, Err(ChangeError::Refused(_))), "there is nothing left to do: {again:?}");
    second.show();
    until_listed(&driver).await;
    assert!(serves(&first, blips) && serves(&second, blips), "the one that was away follows the other");
    tell(&driver, Operation::Register, blips).await.unwrap();
    until(&driver, blips, Some(TargetState::Active)).await;
    assert!([&first, &second].into_iter().all(|process| serves(process, blips) && !serves(process, unchecked)));
}

/// One after the other was away and missed something: nobody knows better, so the careful word holds.
#[tokio::test]
async fn what_the_last_one_to_leave_has_drained_stays_drained() {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let driver = open(vec![first.address(), second.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let (_pod, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Drain, address).await.unwrap();
    second.hide();
    for (operation, back) in [(Operation::Register, true), (Operation::Drain, false)] {
        let told = tell(&driver, operation, address).await;
        assert!(matches!(told, Err(ChangeError::Unfinished(_))), "{operation:?}: {told:?}");
        if back {
            first.hide();
            second.show();
        }
    }
    first.show();
    until(&driver, address, Some(TargetState::Draining)).await;
    assert!(!serves(&first, address) && !serves(&second, address));
}

/// One that was counted out is made like the others, which serve what was drained when it left; they do not follow it.
#[rstest]
#[case::drained(Operation::Drain)]
#[case::on_its_way_out(Operation::Deregister)]
#[tokio::test]
async fn one_that_is_back_puts_in_what_the_others_serve(#[case] out: Operation) {
    let front = free_port();
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(&format!("frontend f\n bind {front}\n default_backend web\n{ROUND}")));
    let driver = open(vec![first.address(), second.address()], &[("web", DYNAMIC)], Duration::from_millis(500));
    let (_pod, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    // A request that is never answered: the server cannot be removed.
    let mut session = TcpStream::connect(front).unwrap();
    session.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let begun = Instant::now();
    while !second.ask("show sess").contains("be=web") {
        assert!(begun.elapsed() < PATIENCE, "no session");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tell(&driver, out, address).await.unwrap();
    until(&driver, address, Some(TargetState::Draining)).await;
    second.hide();
    let begun = Instant::now();
    while tell(&driver, Operation::Register, address).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "it still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&driver, address, Some(TargetState::Active)).await;
    second.show();
    until_both_serve(&driver, [&first, &second], address).await;
    assert!(serves(&first, address));
}

/// Reads until the second process serves the target as the first one does all the time.
async fn until_both_serve(driver: &Driver, [first, second]: [&Haproxy; 2], address: SocketAddr) {
    let begun = Instant::now();
    while !serves(second, address) {
        let listed = driver.list("web", None).await;
        assert!(serves(first, address), "the one that was there all the time follows the other: {listed:?}");
        assert!(begun.elapsed() < PATIENCE, "{listed:?} of {}", second.ask("show servers state web"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(driver, address, Some(TargetState::Active)).await;
}

/// A new leader knows no process; one that is away in its term missed something, so it is made like the others, which serve.
#[tokio::test]
async fn one_that_was_away_as_the_leader_changed_knows_no_better() {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let addresses = vec![long_run(&first).to_string(), long_run(&second).to_string()];
    let driver = open(addresses, &[("web", DYNAMIC)], Duration::from_secs(30));
    let (_pod, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Drain, address).await.unwrap();
    second.hide();
    let told = tell(&driver, Operation::Register, address).await;
    assert!(matches!(told, Err(ChangeError::Unfinished(_))) && serves(&first, address), "{told:?}");
    driver.forget();
    let told = tell(&driver, Operation::Register, address).await;
    assert!(matches!(told, Err(ChangeError::Refused(_))), "{told:?}");
    second.show();
    until_listed(&driver).await;
    assert!(serves(&first, address) && serves(&second, address));
    until(&driver, address, Some(TargetState::Active)).await;
}

/// But one that was started just now, and so lost everything, does not know better than one that is away.
#[tokio::test]
async fn one_that_was_just_started_knows_no_better_than_one_that_is_away() {
    let (mut first, second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let driver = open(vec![first.address(), long_run(&second).to_string()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let ((_pod, address), (_other, comes)) = (endpoint(), endpoint());
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    second.hide();
    first.stop();
    first.resume();
    driver.forget();
    let told = tell(&driver, Operation::Register, comes).await;
    assert!(matches!(told, Err(ChangeError::Refused(_))), "{told:?}");
    second.show();
    until_listed(&driver).await;
    assert!(serves(&second, address));
    until(&driver, address, Some(TargetState::Active)).await;
    assert!(serves(&first, address));
}

/// An address behind which `process` answers as if it had run for hours.
fn long_run(process: &Haproxy) -> SocketAddr {
    between(process, |_, answer| {
        let lines = answer.split_inclusive('\n').map(|line| if line.starts_with("Uptime_sec: ") { "Uptime_sec: 9000\n" } else { line });
        Some(lines.collect())
    })
}

/// A front takes connections for a process that is dead, and closes them: that is not to be reached, and holds nothing up for ever.
#[tokio::test]
async fn one_behind_a_front_that_closes_is_counted_out() {
    let process = Haproxy::start(ROUND);
    let front = answering(b"").to_string();
    let alone = open(vec![front.clone()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let listed = alone.list("web", None).await;
    assert!(matches!(listed, Err(CallError::Unavailable(_))), "{listed:?}");
    let driver = open(vec![process.address(), front], &[("web", DYNAMIC)], Duration::from_secs(1));
    assert!(driver.list("web", None).await.is_err(), "it counts for a while");
    assert_eq!(until_listed(&driver).await, Listing::default());
    let (_pod, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
}

/// One that takes longer than one that is away is waited for comes back all the same, counted out or not.
#[rstest]
#[case::counts(Duration::from_secs(3600))]
#[case::counted_out(Duration::from_millis(500))]
#[tokio::test]
async fn a_slow_one_comes_back(#[case] instance_timeout: Duration) {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    // To greet and to read takes it twice as long at least.
    let (slow, out) = (slowly(&second, Duration::from_millis(700)), Gauge::default());
    let driver = open(vec![first.address(), slow.to_string()], &[("web", DYNAMIC)], instance_timeout).showing(out.clone());
    assert_eq!(until_listed(&driver).await, Listing::default());
    second.hide();
    let begun = Instant::now();
    while driver.list("web", None).await.is_err() == (instance_timeout < PATIENCE) {
        assert!(begun.elapsed() < PATIENCE, "it is not away");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    second.show();
    let begun = Instant::now();
    while driver.list("web", None).await.is_err() || out.get() > 0 {
        assert!(begun.elapsed() < 3 * PATIENCE, "it never comes back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// An address behind which `process` answers, each time after a pause.
fn slowly(process: &Haproxy, pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let socket = process.address().trim_start_matches("unix:").to_owned();
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let (mut from, Ok(mut to)) = (from.unwrap(), UnixStream::connect(&socket)) else { continue };
            let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut answer = [0; 65536];
                while let Ok(count @ 1..) = answers.read(&mut answer) {
                    std::thread::sleep(pause);
                    if back.write_all(&answer[..count]).is_err() {
                        return;
                    }
                }
                let _ = back.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// The first answer to a read of all.
async fn until_listed(driver: &Driver) -> Listing {
    let begun = Instant::now();
    loop {
        match driver.list("web", None).await {
            Ok(listing) => return listing,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Behind an address that is balanced each session may meet another process, so nothing there is an acknowledgement.
#[tokio::test]
async fn processes_that_answer_by_turns_at_one_address_are_no_instance() {
    let both = [Haproxy::start(ROUND), Haproxy::start(ROUND)];
    let balanced = balance(&both);
    let (_listener, address) = endpoint();
    for process in &both {
        let alone = open(vec![process.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
        tell(&alone, Operation::Register, address).await.unwrap();
        until(&alone, address, Some(TargetState::Active)).await;
    }
    let driver = open(vec![balanced.to_string()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let begun = Instant::now();
    let why = loop {
        match driver.list("web", None).await {
            Err(CallError::Failed(why)) => break why,
            other => assert!(begun.elapsed() < PATIENCE, "nobody notices: {other:?}"),
        }
    };
    assert!(why.contains(&balanced.to_string()) && why.contains("by turns") && why.contains("headless"), "{why}");
    let (_late, comes) = endpoint();
    for _ in 0..2 {
        let results = driver.apply("web", &[change(Operation::Drain, address), change(Operation::Register, comes)]).await.unwrap();
        assert!(matches!(&results[..], [Err(ChangeError::Unfinished(_)), Err(ChangeError::Refused(_))]), "{results:?}");
    }
    for process in &both {
        assert!(!serves(process, address) && !process.ask("show servers state web").contains(&comes.ip().to_string()));
    }
}

/// An address at which sessions go to one process after the other.
fn balance(processes: &[Haproxy; 2]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sockets = processes.each_ref().map(|process| process.address().trim_start_matches("unix:").to_owned());
    std::thread::spawn(move || {
        for (session, socket) in listener.incoming().zip(sockets.iter().cycle()) {
            let (from, Ok(to)) = (session.unwrap(), UnixStream::connect(socket)) else { return };
            let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            std::thread::spawn(move || {
                let (mut from, mut to) = (from, to);
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// As IPv4 and IPv6 of one name may be.
#[rstest]
#[case::dynamic(ROUND, DYNAMIC)]
#[case::template(FIVE_SLOTS, TEMPLATE)]
#[tokio::test]
async fn a_process_that_has_two_addresses_is_told_twice_and_does_it_once(#[case] backend: &str, #[case] config: HaproxyBackend) {
    let second = free_port();
    let process = Haproxy::start(&format!("global\n stats socket {second} level admin\ndefaults\n mode http\n{backend}"));
    let driver = open(vec![process.address(), second.to_string()], &[("web", config)], Duration::from_secs(30));
    for _ in 0..5 {
        let ends: [_; 3] = std::array::from_fn(|_| endpoint());
        let all = |operation| ends.each_ref().map(|(_, address)| change(operation, *address));
        for operation in [Operation::Register, Operation::Drain, Operation::Register, Operation::Deregister] {
            let results = driver.apply("web", &all(operation)).await.unwrap();
            assert!(results.iter().all(Result::is_ok), "{operation:?}: {results:?}");
        }
        for (_, address) in ends {
            until(&driver, address, None).await;
        }
    }
}

/// A process without the backend, as while a new configuration is rolled out, says nothing of what the others send to.
#[tokio::test]
async fn a_backend_that_one_process_lacks_is_not_missing() {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(&ROUND.replace("backend web", "backend other")));
    let (_listener, address) = endpoint();
    let alone = open(vec![first.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    tell(&alone, Operation::Register, address).await.unwrap();
    for addresses in [[first.address(), second.address()], [second.address(), first.address()]] {
        let both = open(addresses.into(), &[("web", DYNAMIC)], Duration::from_secs(30));
        let listed = both.list("web", None).await;
        assert!(matches!(&listed, Err(CallError::Failed(text)) if text.contains("no backend web")), "{listed:?}");
        let (_late, comes) = endpoint();
        let applied = both.apply("web", &[change(Operation::Deregister, address), change(Operation::Register, comes)]).await.unwrap();
        assert!(matches!(&applied[..], [Err(ChangeError::Unfinished(_)), Err(ChangeError::Refused(_))]), "{applied:?}");
        assert!(!first.ask("show servers state web").contains(&comes.ip().to_string()), "it waits");
    }
    assert!(first.ask("show servers state web").contains(&format!(":{}", address.port())), "it is drained, and there still");
}

/// A name that means two addresses: one process answers at first, the other is started later and has what the first has.
#[tokio::test]
async fn a_process_that_comes_behind_a_name_is_made_like_the_others() {
    let Some(port) = port_of_both_families() else {
        eprintln!("left out: localhost does not mean 127.0.0.1 and ::1 here");
        return;
    };
    let at = |address: &str| Haproxy::start(&format!("global\n stats socket {address}:{port} level admin\ndefaults\n mode http\n{ROUND}"));
    let first = at("127.0.0.1");
    let driver = open(vec![format!("localhost:{port}")], &[("web", DYNAMIC)], Duration::from_millis(100));
    let (_listener, address) = endpoint();
    // The other address is counted out soon, since nobody is there.
    let begun = Instant::now();
    while tell(&driver, Operation::Register, address).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "the address without a process still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&driver, address, Some(TargetState::Active)).await;
    let mut second = at("[::1]");
    let begun = Instant::now();
    while !second.ask("show servers state web").contains("lockstep:") {
        let _ = driver.list("web", None).await;
        assert!(begun.elapsed() < PATIENCE, "it is left without the server");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until(&driver, address, Some(TargetState::Active)).await;
    // And it may go again.
    second.stop();
    until(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Deregister, address).await.unwrap();
    until(&driver, address, None).await;
    drop(first);
}

/// A pod of a StatefulSet that is down has no name, and a name may come to mean what is off limits: the others go on without it.
#[rstest]
// No resolver is asked for a label of more than 63 letters.
#[case::unknown("x".repeat(64) + ".invalid:9999", "cannot be looked up")]
// 169.254.169.254, as the address of a cloud's metadata is seldom written.
#[case::forbidden("169.254.43518:9999".to_owned(), "link-local")]
#[tokio::test]
async fn a_name_that_leads_nowhere_is_counted_out(#[case] nowhere: String, #[case] why: &str) {
    let process = Haproxy::start(&format!("defaults\n mode http\n{ROUND}"));
    let driver = open(vec![nowhere.clone(), process.address()], &[("web", DYNAMIC)], Duration::from_millis(100));
    let (_listener, address) = endpoint();
    let first = tell(&driver, Operation::Register, address).await;
    let told = format!("{:?}", first.expect_err("it counts until its time is over"));
    assert!(told.contains(&nowhere[..nowhere.len().min(60)]) && told.contains(why), "{told}");
    let begun = Instant::now();
    while tell(&driver, Operation::Register, address).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "a name without an address still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&driver, address, Some(TargetState::Active)).await;
}

/// A port that is free on both, where `localhost` means both.
fn port_of_both_families() -> Option<u16> {
    use std::net::ToSocketAddrs;
    let both = ("localhost", 0).to_socket_addrs().ok()?.collect::<Vec<_>>();
    if !both.iter().any(SocketAddr::is_ipv4) || !both.iter().any(SocketAddr::is_ipv6) {
        return None;
    }
    let port = free_port().port();
    TcpListener::bind(("::1", port)).ok().map(|_| port)
}

#[tokio::test]
async fn a_reload_of_one_of_two_is_made_good() {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start_mastered(ROUND));
    let driver = open(vec![first.address(), second.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let (_listener, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    second.reload();
    assert!(!second.ask("show servers state web").contains("lockstep:"), "a reload loses dynamic servers");
    until(&driver, address, Some(TargetState::Active)).await;
    assert!(second.ask("show servers state web").contains("lockstep:"), "and they are put back");
}

/// In a container each new HAProxy has the id of the last one, so it takes more to know that it has forgotten something.
#[tokio::test]
async fn a_restart_that_keeps_the_process_id_is_a_restart() {
    let Some(mut second) = Haproxy::start_contained(SLOTS) else {
        eprintln!("left out: a process namespace may not be made here");
        return;
    };
    let first = Haproxy::start(SLOTS);
    let driver = open(vec![first.address(), second.address()], &[("web", TEMPLATE)], Duration::from_secs(30));
    let ((_one, stays), (_two, goes)) = (endpoint(), endpoint());
    for address in [stays, goes] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
    }
    second.save_state();
    tell(&driver, Operation::Deregister, goes).await.unwrap();
    until(&driver, goes, None).await;
    // Its start is known by the second.
    let begun = Instant::now();
    while second.ask("show info").contains("Uptime_sec: 0") {
        assert!(begun.elapsed() < PATIENCE, "it does not grow older");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    second.stop();
    second.resume();
    assert!(second.ask("show info").contains("\nPid: 1\n"));
    let has = |process: &Haproxy, address: SocketAddr| process.ask("show servers state web").contains(&address.ip().to_string());
    assert!(has(&second, goes), "the state file brings it back");
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(state(&listing, goes), None);
    assert_eq!(state(&driver.list("web", None).await.unwrap(), goes), None, "nor did another process get it");
    until(&driver, stays, Some(TargetState::Active)).await;
}

/// One that lacks a server is given it, and that is broken off: it is finished, and the others serve meanwhile.
#[rstest]
#[case::after_the_first_step("add server")]
#[case::after_the_second("weight 0%")]
#[tokio::test]
async fn a_copy_that_was_broken_off_is_finished(#[case] step: &'static str) {
    let (first, second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let (_listener, address) = endpoint();
    let alone = open(vec![first.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    tell(&alone, Operation::Register, address).await.unwrap();
    until(&alone, address, Some(TargetState::Active)).await;
    let addresses = vec![first.address(), breaking_off(&second, step).to_string()];
    let driver = open(addresses, &[("web", DYNAMIC)], Duration::from_secs(30));
    let broken = driver.list("web", None).await;
    assert!(matches!(broken, Err(CallError::Failed(_))), "{broken:?}");
    until_both_serve(&driver, [&first, &second], address).await;
}

#[tokio::test]
async fn what_an_operator_has_parked_is_not_put_into_use_elsewhere() {
    let (first, mut second) = (Haproxy::start(ROUND), Haproxy::start(ROUND));
    let driver = open(vec![first.address(), second.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let (_listener, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    let name = server_of(&first);
    first.ask(&format!("set server web/{name} state maint"));
    second.stop();
    second.resume();
    until(&driver, address, Some(TargetState::Unused)).await;
    let parked = format!(" {name} {} 0 1 100 ", address.ip());
    assert!(second.ask("show servers state web").contains(&parked), "it is put back there, in maintenance");
    // As it was before: once it is let go on in both, it is in use.
    for process in [&first, &second] {
        assert_eq!(process.ask(&format!("set server web/{name} state ready")).trim(), "");
    }
    until(&driver, address, Some(TargetState::Active)).await;
}

/// The name of the dynamic server.
fn server_of(process: &Haproxy) -> String {
    let state = process.ask("show servers state web");
    state.split(' ').find(|word| word.starts_with("lockstep:")).expect("there is one").to_owned()
}

/// HAProxy loses it at a reload; when it is put back, nobody waits for it, and it must not wait for somebody.
#[tokio::test]
async fn what_is_on_its_way_in_or_out_is_said_to_be_unfinished() {
    let process = Haproxy::start_mastered(ROUND);
    let driver = open(vec![process.address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let (_listener, address) = endpoint();
    tell(&driver, Operation::Register, address).await.unwrap();
    assert!(driver.list("web", None).await.unwrap().unfinished);
    until_finished(&driver, address, Some(TargetState::Active)).await;
    process.reload();
    assert!(!driver.list("web", None).await.unwrap().unfinished, "it is lost");
    tell(&driver, Operation::Register, address).await.unwrap();
    until_finished(&driver, address, Some(TargetState::Active)).await;
    tell(&driver, Operation::Deregister, address).await.unwrap();
    until_finished(&driver, address, None).await;
}

/// Reads as long as there is something unfinished, and no longer.
async fn until_finished(driver: &Driver, address: SocketAddr, wanted: Option<TargetState>) {
    let begun = Instant::now();
    loop {
        let listing = driver.list("web", None).await.unwrap();
        if !listing.unfinished {
            assert_eq!(state(&listing, address), wanted);
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never finished: {listing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Scaling in: nobody waits for an instance that the name does not mean any more, and scaling out again finds it.
#[tokio::test]
async fn an_instance_that_leaves_the_name_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(&hosts);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "registry_haproxy_instances::with_a_hosts_file_of_its_own", "--ignored", "--nocapture"]).env(HOSTS, &hosts);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("running 1 test") {
        eprintln!("left out: a mount namespace may not be made here: {output:?}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
#[ignore = "the other runs it, with a hosts file of its own"]
#[expect(clippy::disallowed_methods, reason = "the other tells of the file so")]
async fn with_a_hosts_file_of_its_own() {
    let hosts = std::env::var(HOSTS).unwrap();
    let means = |addresses: &[Ipv4Addr]| {
        std::fs::write(Path::new(&hosts), addresses.iter().map(|address| format!("{address} {NAME}\n")).collect::<String>()).unwrap();
    };
    let [one, other] = [Ipv4Addr::new(127, 0, 6, 1), Ipv4Addr::new(127, 0, 6, 2)];
    means(&[one, other]);
    assert_eq!((NAME, 0).to_socket_addrs().unwrap().count(), 2, "one name may have several lines");
    let port = free_port().port();
    let at = |address| Haproxy::start(&format!("global\n stats socket {address}:{port} level admin\ndefaults\n mode http\n{ROUND}"));
    let (first, mut second) = (at(one), at(other));
    let driver = open(vec![format!("{NAME}:{port}")], &[("web", DYNAMIC)], Duration::from_secs(3600));
    let ((_one, stays), (_two, goes), (_three, comes)) = (endpoint(), endpoint(), endpoint());
    for address in [stays, goes] {
        tell(&driver, Operation::Register, address).await.unwrap();
        until(&driver, address, Some(TargetState::Active)).await;
    }
    let has = |process: &Haproxy, address: SocketAddr| process.ask("show servers state web").contains(&address.ip().to_string());
    assert!(has(&first, goes) && has(&second, goes));

    means(&[one]);
    second.stop();
    tell(&driver, Operation::Deregister, goes).await.unwrap();
    tell(&driver, Operation::Register, comes).await.unwrap();
    until(&driver, comes, Some(TargetState::Active)).await;
    until(&driver, goes, None).await;

    second.resume();
    means(&[one, other]);
    until(&driver, comes, Some(TargetState::Active)).await;
    assert!(has(&second, stays) && has(&second, comes) && !has(&second, goes), "it is made like the other");
}
