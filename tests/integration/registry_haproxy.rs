//! The haproxy driver on what is special about HAProxy: checks, sessions, several processes, reloads, slots, refusals.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use lockstep::config::{HaproxyBackend, HaproxyConfig, Servers, Services};
use lockstep::registry::haproxy::Haproxy as Driver;
use lockstep::registry::{CallError, Change, ChangeError, Listing, Operation, Registry};
use lockstep::target::{PodKey, PodUid, TargetState};
use rstest::rstest;
use tokio::time::Instant;

use crate::haproxy_process::{Haproxy, free_port};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const DYNAMIC: HaproxyBackend = HaproxyBackend { servers: Servers::Dynamic, check: true, weight: None, drain: Duration::ZERO };
pub(crate) const TEMPLATE: HaproxyBackend = HaproxyBackend { servers: Servers::Template, check: true, weight: None, drain: Duration::ZERO };
pub(crate) const ROUND: &str = "backend web\n balance roundrobin\n";
pub(crate) const SLOTS: &str = "backend web\n balance roundrobin\n \
    server-template lockstep 1-2 lockstep.invalid:1 check inter 200ms init-addr last,127.0.0.1 disabled\n";

pub(crate) fn open(addresses: Vec<String>, backends: &[(&str, HaproxyBackend)], instance_timeout: Duration) -> Driver {
    let config = HaproxyConfig { addresses, instance_timeout, tls_ca: None };
    open_as("here", &config, backends)
}

fn open_as(cluster: &str, config: &HaproxyConfig, backends: &[(&str, HaproxyBackend)]) -> Driver {
    let backends = backends.iter().map(|(name, backend)| (Arc::from(*name), *backend)).collect();
    let driver = Driver::new(config, &"lan".into(), &cluster.into(), Path::new("/nowhere")).unwrap();
    driver.bind(Services { backends, ..Services::default() });
    driver
}

pub(crate) fn one(process: &Haproxy, backend: HaproxyBackend) -> Driver {
    of_cluster("here", process, backend)
}

pub(crate) fn of_cluster(cluster: &str, process: &Haproxy, backend: HaproxyBackend) -> Driver {
    let config = HaproxyConfig { addresses: vec![process.address()], instance_timeout: Duration::from_secs(30), tls_ca: None };
    open_as(cluster, &config, &[("web", backend)])
}

pub(crate) fn change(operation: Operation, address: SocketAddr) -> Change {
    let pod = PodKey::new("shop", "web-1");
    Change { operation, address, uid: PodUid::new(format!("u{}", address.port())), pod, cluster: "here".into(), weight: 100 }
}

pub(crate) async fn tell(driver: &Driver, operation: Operation, address: SocketAddr) -> Result<(), ChangeError> {
    driver.apply("web", &[change(operation, address)]).await.unwrap().remove(0)
}

pub(crate) fn state(listing: &Listing, address: SocketAddr) -> Option<TargetState> {
    listing.targets.iter().find(|listed| listed.address == address).map(|listed| listed.state)
}

/// Reads until the target is as wanted.
pub(crate) async fn until(driver: &Driver, address: SocketAddr, wanted: Option<TargetState>) {
    let begun = Instant::now();
    loop {
        let listed = driver.list("web", None).await;
        if listed.as_ref().is_ok_and(|listing| state(listing, address) == wanted) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{address} never became {wanted:?}: {listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Each has an address of its own, as pods have.
pub(crate) fn endpoint() -> (TcpListener, SocketAddr) {
    static NUMBER: AtomicU8 = AtomicU8::new(2);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst).max(2);
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 3, number), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[rstest]
#[case::dynamic(ROUND, DYNAMIC)]
#[case::template(SLOTS, TEMPLATE)]
#[tokio::test]
async fn a_server_is_in_no_use_before_its_check_has_passed(#[case] backend: &str, #[case] config: HaproxyBackend) {
    let process = Haproxy::start(backend);
    let driver = one(&process, config);
    let address = free_port();
    tell(&driver, Operation::Register, address).await.unwrap();
    let first = driver.list("web", None).await.unwrap();
    assert_ne!(state(&first, address), Some(TargetState::Active));
    until(&driver, address, Some(TargetState::Unhealthy)).await;
    assert!(weights(&process).iter().all(|weight| *weight == 0 || config == TEMPLATE && *weight == 1), "{:?}", weights(&process));
    let _listener = TcpListener::bind(address).unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
}

/// Weights of all servers, as HAProxy says.
pub(crate) fn weights(process: &Haproxy) -> Vec<u32> {
    let state = process.ask("show servers state web");
    let rows = state.lines().skip(2).filter(|line| !line.is_empty());
    rows.map(|row| row.split(' ').nth(7).unwrap().parse().unwrap()).collect()
}

/// A server that answers slowly: one request is under way while the target is drained and deregistered.
#[rstest]
#[case::dynamic(ROUND, DYNAMIC)]
#[case::template(SLOTS, TEMPLATE)]
#[tokio::test]
async fn a_running_request_ends_before_its_server_goes(#[case] backend: &str, #[case] config: HaproxyBackend) {
    let front = free_port();
    let process = Haproxy::start(&format!("frontend f\n bind {front}\n default_backend web\n{backend}"));
    let driver = one(&process, config);
    let (listener, address) = endpoint();
    let (arrived, has_arrived) = std::sync::mpsc::channel();
    let (go, going) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            // A check connects and says nothing.
            if stream.read(&mut request).is_ok_and(|count| count > 0) {
                arrived.send(()).unwrap();
                going.recv().unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").unwrap();
            }
        }
    });
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    let asking = ask(front);
    has_arrived.recv_timeout(PATIENCE).unwrap();
    tell(&driver, Operation::Drain, address).await.unwrap();
    until(&driver, address, Some(TargetState::Draining)).await;
    tell(&driver, Operation::Deregister, address).await.unwrap();
    for _ in 0..3 {
        let listing = driver.list("web", None).await.unwrap();
        assert_eq!(state(&listing, address), Some(TargetState::Draining), "it has a session still");
    }
    go.send(()).unwrap();
    let answer = asking.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
    until(&driver, address, None).await;
}

/// Sends a request beside the test; joining gives the answer.
fn ask(front: SocketAddr) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(front).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}

/// A request that is never answered holds its server for half a minute after the containers are gone, and no longer; where the pod lives on,
/// for the drain delay.
#[rstest]
#[case::dynamic(ROUND, DYNAMIC, 30)]
#[case::template(SLOTS, TEMPLATE, 30)]
#[case::of_a_pod_that_lives_on(ROUND, HaproxyBackend { drain: Duration::from_secs(40), ..DYNAMIC }, 40)]
#[tokio::test]
async fn a_session_that_does_not_end_is_cut(#[case] backend: &str, #[case] config: HaproxyBackend, #[case] seconds: u64) {
    let deadline = Duration::from_secs(seconds);
    let front = free_port();
    let process = Haproxy::start(&format!("frontend f\n bind {front}\n default_backend web\n{backend}"));
    let driver = one(&process, config);
    let (listener, address) = endpoint();
    let (arrived, has_arrived) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A check connects and says nothing.
            if stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                held.push(stream);
                arrived.send(()).unwrap();
            }
        }
    });
    tell(&driver, Operation::Register, address).await.unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    let asking = ask(front);
    has_arrived.recv_timeout(PATIENCE).unwrap();
    tell(&driver, Operation::Deregister, address).await.unwrap();
    let begun = Instant::now();
    while state(&driver.list("web", None).await.unwrap(), address).is_some() {
        assert!(begun.elapsed() < deadline + PATIENCE, "it is never let go");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(begun.elapsed() > deadline - Duration::from_secs(2), "it was cut after {:?}", begun.elapsed());
    let answer = asking.join().unwrap();
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A leader that ends while it puts a target in leaves no pod waiting for ever.
#[rstest]
#[case::after_the_first_step("add server")]
#[case::after_the_second("weight 0%")]
#[case::after_the_third("enable health")]
#[tokio::test]
async fn what_was_broken_off_is_put_in_by_the_next_leader(#[case] step: &'static str) {
    let process = Haproxy::start(ROUND);
    let (_listener, address) = endpoint();
    let former = open(vec![breaking_off(&process, step).to_string()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let broken = former.apply("web", &[change(Operation::Register, address)]).await;
    assert!(matches!(broken, Err(CallError::Failed(_))), "{broken:?}");
    let driver = one(&process, DYNAMIC);
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!((state(&listing, address), listing.unfinished), (Some(TargetState::Draining), true), "nobody need wait for an operator");
    tell(&driver, Operation::Register, address).await.unwrap();
    assert_ne!(state(&driver.list("web", None).await.unwrap(), address), Some(TargetState::Draining));
    until(&driver, address, Some(TargetState::Active)).await;
}

/// An address behind which `process` answers. The first session in which it is asked for that ends before the answer comes.
pub(crate) fn breaking_off(process: &Haproxy, asked: &'static str) -> SocketAddr {
    let mut broken = false;
    between(process, move |line, answer| {
        let breaks = !broken && line.contains(asked);
        broken |= breaks;
        (!breaks).then(|| answer.to_owned())
    })
}

/// An address behind which `process` answers, one session after the other: a line and its answer, which is passed on as `told` says. A session
/// of which it says nothing ends.
pub(crate) fn between(process: &Haproxy, mut told: impl FnMut(&str, &str) -> Option<String> + Send + 'static) -> SocketAddr {
    let (listener, address) = endpoint();
    let socket = process.address().trim_start_matches("unix:").to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, Ok(mut server)) = (client.unwrap(), UnixStream::connect(&socket)) else { continue };
            let (mut line, mut part) = ([0; 4096], [0; 65536]);
            while let Ok(count @ 1..) = client.read(&mut line) {
                server.write_all(&line[..count]).unwrap();
                let line = String::from_utf8_lossy(&line[..count]);
                let mut answer = String::new();
                // Each command of the line has an answer, and those may come one by one.
                while answer.matches("\n> ").count() < line.split(';').count() {
                    let count = server.read(&mut part).unwrap();
                    assert!(count > 0, "it ends in the middle of {answer}");
                    answer.push_str(str::from_utf8(&part[..count]).unwrap());
                }
                if told(&line, &answer).is_none_or(|answer| client.write_all(answer.as_bytes()).is_err()) {
                    break;
                }
            }
        }
    });
    address
}

/// Endpoints come and go behind a steady load of fresh connections, in the order in which pods do; no request may fail.
#[rstest]
#[case::dynamic(ROUND, DYNAMIC, false)]
#[case::template(SLOTS, TEMPLATE, false)]
#[case::template_reloaded_in_its_middle(SLOTS, TEMPLATE, true)]
#[tokio::test]
async fn a_roll_under_load_loses_no_request(#[case] backend: &str, #[case] config: HaproxyBackend, #[case] reloaded: bool) {
    let front = free_port();
    let process = Haproxy::start_mastered(&format!("frontend f\n bind {front}\n default_backend web\n{backend}"));
    let driver = one(&process, config);
    let mut old = Answering::start();
    tell(&driver, Operation::Register, old.address).await.unwrap();
    until(&driver, old.address, Some(TargetState::Active)).await;
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn({
                let over = over.clone();
                move || ask_until(front, &over)
            })
        })
        .collect();
    for _ in 0..4 {
        let new = Answering::start();
        tell(&driver, Operation::Register, new.address).await.unwrap();
        until(&driver, new.address, Some(TargetState::Active)).await;
        old.visited().await;
        new.visited().await;
        if reloaded {
            process.reload();
        }
        tell(&driver, Operation::Drain, old.address).await.unwrap();
        until(&driver, old.address, Some(TargetState::Draining)).await;
        if reloaded {
            process.reload();
        }
        tell(&driver, Operation::Deregister, old.address).await.unwrap();
        until(&driver, old.address, None).await;
        drop(std::mem::replace(&mut old, new));
    }
    over.store(true, Ordering::SeqCst);
    let (good, bad): (usize, Vec<String>) =
        load.into_iter().map(|asking| asking.join().unwrap()).fold((0, Vec::new()), |sum, one| (sum.0 + one.0, [sum.1, one.1].concat()));
    assert!(good > 100, "{good} requests are no load");
    assert_eq!(bad, Vec::<String>::new(), "of {good} requests");
}

/// Asks on fresh connections; how many answers were good, and the others.
fn ask_until(front: SocketAddr, over: &AtomicBool) -> (usize, Vec<String>) {
    let (mut good, mut bad) = (0, Vec::new());
    while !over.load(Ordering::SeqCst) {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(front)?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        match asked() {
            Ok(answer) if answer.starts_with("HTTP/1.1 200") => good += 1,
            other => bad.push(format!("{other:?}")),
        }
    }
    (good, bad)
}

/// An endpoint that answers every request; once dropped it refuses connections.
struct Answering {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Answering {
    fn start() -> Self {
        let (listener, address) = endpoint();
        let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ends, counts) = (over.clone(), asked.clone());
        let thread = std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                // A check connects and says nothing.
                if stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                    counts.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                }
            }
        });
        Self { address, over, asked, thread: Some(thread) }
    }

    /// Waits until the load has come by; on a busy machine that takes its time.
    async fn visited(&self) {
        let begun = Instant::now();
        while self.asked.load(Ordering::SeqCst) == 0 {
            assert!(begun.elapsed() < PATIENCE, "no load comes by");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[tokio::test]
async fn weights_are_kept_to() {
    let process = Haproxy::start(&format!("{ROUND}backend other\n balance roundrobin\n"));
    let driver = one(&process, DYNAMIC);
    let (_listener, address) = endpoint();
    let light = |weight| [Change { weight, ..change(Operation::Register, address) }];
    driver.apply("web", &light(20)).await.unwrap().remove(0).unwrap();
    until(&driver, address, Some(TargetState::Active)).await;
    assert_eq!(weights(&process), [20]);
    driver.apply("web", &light(30)).await.unwrap().remove(0).unwrap();
    assert_eq!(weights(&process), [30]);
}

#[tokio::test]
async fn without_a_check_a_server_is_in_use_at_once() {
    let process = Haproxy::start(ROUND);
    let driver = one(&process, HaproxyBackend { servers: Servers::Dynamic, check: false, weight: None, drain: Duration::ZERO });
    let address = free_port();
    tell(&driver, Operation::Register, address).await.unwrap();
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(state(&listing, address), Some(TargetState::Active));
    tell(&driver, Operation::Drain, address).await.unwrap();
    tell(&driver, Operation::Register, address).await.unwrap();
    let listing = driver.list("web", None).await.unwrap();
    assert_eq!(state(&listing, address), Some(TargetState::Active));
    tell(&driver, Operation::Deregister, address).await.unwrap();
    until(&driver, address, None).await;
}

#[rstest]
#[case::static_algorithm("backend web\n balance static-rr\n", DYNAMIC, "balance algorithm takes no dynamic servers")]
#[case::slot_without_check(
    "backend web\n balance roundrobin\n server-template lockstep 1-2 127.0.0.1:1 disabled\n",
    TEMPLATE,
    "the slot has no check"
)]
#[tokio::test]
async fn what_cannot_be_says_why(#[case] backend: &str, #[case] config: HaproxyBackend, #[case] why: &str) {
    let process = Haproxy::start(backend);
    let refused = tell(&one(&process, config), Operation::Register, free_port()).await;
    assert!(matches!(&refused, Err(ChangeError::Refused(text)) if text.contains(why)), "{refused:?}");
}

#[tokio::test]
async fn a_template_without_slots_is_full() {
    let process = Haproxy::start(ROUND);
    let refused = tell(&one(&process, TEMPLATE), Operation::Register, free_port()).await;
    assert!(matches!(&refused, Err(ChangeError::Full(text)) if text.contains("all 0 slots")), "{refused:?}");
}

#[rstest]
#[case("nobody")]
#[case("web; shutdown sessions server web/other")]
#[case("web\nshow info")]
#[case("")]
#[tokio::test]
async fn a_backend_that_cannot_be_is_missing(#[case] service: &str) {
    let process = Haproxy::start(ROUND);
    let driver = one(&process, DYNAMIC);
    assert!(matches!(driver.list(service, None).await, Err(CallError::ServiceMissing(_))));
    let applied = driver.apply(service, &[change(Operation::Register, free_port())]).await;
    assert!(matches!(applied, Err(CallError::ServiceMissing(_))));
}

#[tokio::test]
async fn a_socket_without_rights_denies() {
    let process = Haproxy::start(ROUND);
    let driver = open(vec![process.weak_address()], &[("web", DYNAMIC)], Duration::from_secs(30));
    assert_eq!(driver.list("web", None).await, Ok(Listing::default()), "reading is allowed");
    let applied = driver.apply("web", &[change(Operation::Register, free_port())]).await;
    assert!(matches!(applied, Err(CallError::Denied(_))), "{applied:?}");
}

#[rstest]
#[case::other_protocol(b"SSH-2.0-OpenSSH\r\n> \n> ")]
#[tokio::test]
async fn what_is_not_haproxy_is_a_failure(#[case] answer: &'static [u8]) {
    let address = answering(answer);
    let driver = open(vec![address.to_string()], &[("web", DYNAMIC)], Duration::from_secs(30));
    let listed = driver.list("web", None).await;
    assert!(matches!(listed, Err(CallError::Failed(_))), "{listed:?}");
}

/// An address that takes connections, answers each with the same, and closes it.
pub(crate) fn answering(answer: &'static [u8]) -> SocketAddr {
    let (listener, address) = endpoint();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(answer);
        }
    });
    address
}
