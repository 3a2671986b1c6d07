//! The reconciler itself in front of real HAProxy processes: what it has to find, where no pod asks for it.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use lockstep::metrics::Metrics;
use lockstep::reconcile::clock::{Clock, Instant};
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::reconcile::{self, Options};
use lockstep::registry::driver::Opener;
use prometheus_client::metrics::family::Family;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::haproxy_process::{Haproxy, serves};
use crate::small_cluster::SmallCluster;

/// Longer than three audits and what comes of them.
const PATIENCE: Duration = Duration::from_secs(120);
const SLOTS: &str = "backend web\n balance roundrobin\n \
    server-template lockstep 1-4 lockstep.invalid:1 weight 100 check inter 200ms init-addr last,127.0.0.1 disabled\n";

/// A clock that runs so many times ahead of the machine's: a service is read once a minute, and no test shall wait for three of them. Calls
/// have less time too, and enough on a local socket.
#[derive(Clone)]
struct Hasty(TokioClock, u32);

impl Clock for Hasty {
    fn now(&self) -> Instant {
        Instant(self.0.now().0 * self.1)
    }

    fn wall(&self) -> jiff::Timestamp {
        self.0.wall()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send + 'static {
        self.0.sleep_until(Instant(at.0 / self.1))
    }

    fn jitter(&self) -> f64 {
        self.0.jitter()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }
}

/// A leader at work.
struct Leader {
    stop: oneshot::Sender<()>,
    reconciler: JoinHandle<()>,
}

impl Leader {
    fn begin(cluster: &SmallCluster, name: &str, haste: u32) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let opener = Opener::new("/nowhere".into(), Family::default());
        let clock = Hasty(TokioClock::start(), haste);
        let work = reconcile::run(cluster.clone(), opener, clock, Options::new(name), Arc::new(Metrics::new()), async {
            let _ = stopped.await;
        });
        Self { stop, reconciler: tokio::spawn(work) }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.reconciler.await.unwrap();
    }
}

/// A cluster whose pods listen on that port, each at an address of its own, in such servers of these processes.
fn cluster(processes: &[&Haproxy], servers: &str, port: u16) -> SmallCluster {
    let addresses: Vec<String> = processes.iter().map(|process| process.address()).collect();
    SmallCluster::new(&format!(
        "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: here,
          registries: [{{name: lan, haproxy: {{addresses: {addresses:?}}}}}],
          bindings: [{{name: web, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: lan, service: web,
                      port: {port}, servers: {servers}, drain: {{fixed: 1s}}}}]}}"
    ))
}

/// Endpoints on one port that is free on all of them.
fn endpoints<const N: usize>(subnet: u8) -> ([TcpListener; N], [SocketAddr; N]) {
    let at = |number: usize, port| TcpListener::bind((Ipv4Addr::new(127, 0, subnet, u8::try_from(number).unwrap() + 1), port));
    let first = at(0, 0).unwrap();
    let port = first.local_addr().unwrap().port();
    let mut all = vec![first];
    all.extend((1..N).map(|number| at(number, port).unwrap()));
    let addresses: Vec<SocketAddr> = all.iter().map(|one| one.local_addr().unwrap()).collect();
    (all.try_into().unwrap(), addresses.try_into().unwrap())
}

async fn until(what: &str, wanted: impl Fn() -> bool) {
    let begun = tokio::time::Instant::now();
    while !wanted() {
        assert!(begun.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// HAProxy is started anew with a state file in which a pod is that has gone meanwhile, and nobody remembers it: its address may be a
/// stranger's by now. Another process would get it too.
#[tokio::test]
async fn a_slot_that_nobody_claims_is_found_and_emptied() {
    let ([_web, _old, _hand], [web, old, hand]) = endpoints::<3>(4);
    let by_hand = format!("{SLOTS} server hand {hand} check inter 200ms\n");
    let (mut first, second) = (Haproxy::start(&by_hand), Haproxy::start(&by_hand));
    let cluster = cluster(&[&first, &second], "template", web.port());
    cluster.run("web-1", &[&web.ip().to_string()]);
    cluster.run("web-2", &[&old.ip().to_string()]);
    let leader = Leader::begin(&cluster, "one", 10);
    cluster.until("the gates open", |cluster| cluster.is_open("web-1") && cluster.is_open("web-2")).await;
    first.save_state();
    cluster.delete("web-2");
    cluster.stop("web-2");
    cluster.until("the pod goes", |cluster| cluster.find("web-2").is_none()).await;
    assert!([&first, &second].iter().all(|process| !serves(process, old) && serves(process, web)));
    leader.end().await;

    first.stop();
    first.resume();
    assert!(serves(&first, old), "the state file brings it back");
    let leader = Leader::begin(&cluster, "two", 10);
    until("the slot is emptied, and no other process has it", || !serves(&first, old) && !serves(&second, old)).await;
    for process in [&first, &second] {
        assert!(serves(process, web) && serves(process, hand), "what is claimed stays, and what is not ours");
    }
    assert!(cluster.is_open("web-1"));
    leader.end().await;
}

/// A reload loses a dynamic server, and the next audit puts it back. Its pod is Ready all the time and waits for nothing, so only the server
/// itself can ask to be looked after until it is used.
#[tokio::test]
async fn a_server_that_a_reload_has_lost_does_not_wait_for_a_second_audit() {
    /// An audit comes no sooner after the one before.
    const AUDIT: Duration = Duration::from_secs(48);
    const HASTE: u32 = 4;
    let ([_web], [web]) = endpoints::<1>(5);
    let process = Haproxy::start_mastered("backend web\n balance roundrobin\n");
    let cluster = cluster(&[&process], "dynamic", web.port());
    cluster.run("web-1", &[&web.ip().to_string()]);
    let leader = Leader::begin(&cluster, "one", HASTE);
    cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    process.reload();
    until("an audit puts it back", || process.ask("show servers state web").contains("lockstep:")).await;
    let back = tokio::time::Instant::now();
    until("it is used", || serves(&process, web)).await;
    assert!(back.elapsed() < AUDIT / HASTE, "it was used after {:?}", back.elapsed());
    assert!(cluster.is_open("web-1"));
    leader.end().await;
}

/// Nobody reaches one of two, which goes on sending requests. What is deleted gets none from the other at once, also after others were told
/// in vain; what comes waits, and says why.
#[tokio::test]
async fn while_one_of_two_is_away_pods_are_drained_in_the_other_and_none_is_put_in() {
    let ([_one, _two, _three], [one, two, three]) = endpoints::<3>(6);
    let backend = "backend web\n balance roundrobin\n";
    let (near, far) = (Haproxy::start(backend), Haproxy::start(backend));
    let cluster = cluster(&[&near, &far], "dynamic", one.port());
    cluster.run("web-1", &[&one.ip().to_string()]);
    cluster.run("web-2", &[&two.ip().to_string()]);
    let leader = Leader::begin(&cluster, "one", 4);
    cluster.until("the gates open", |cluster| cluster.is_open("web-1") && cluster.is_open("web-2")).await;
    far.hide();
    cluster.delete("web-1");
    until("it is drained", || !serves(&near, one)).await;
    cluster.run("web-3", &[&three.ip().to_string()]);
    let says = |cluster: &SmallCluster, text: &str| {
        cluster.find("web-3").and_then(|pod| pod.gate).is_some_and(|gate| !gate.status && gate.message.contains(text))
    };
    cluster.until("it says why it waits", |cluster| says(cluster, "every instance")).await;
    cluster.delete("web-2");
    until("it is drained, though others wait", || !serves(&near, two)).await;
    cluster.stop("web-1");
    far.show();
    cluster.until("what has ended goes", |cluster| cluster.find("web-1").is_none()).await;
    cluster.until("what has come is put in", |cluster| cluster.is_open("web-3")).await;
    for process in [&near, &far] {
        assert_eq!([one, two, three].map(|address| serves(process, address)), [false, false, true]);
    }
    leader.end().await;
}
