//! A pod's whole life with target groups: the reconciler itself, the aws driver and the simulator.
//!
//! Time is virtual, the simulator's passes with it, and none passes while a call is under way.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockstep::config::{AwsConfig, DriverConfig, Family, RegistryConfig, Services};
use lockstep::metrics::Metrics;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::reconcile::{self, Drivers, OpenError, Options};
use lockstep::registry::aws::Aws;
use lockstep::registry::{CallError, Capabilities, Change, ChangeError, Listing, Pace, Registry, Wait};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::elbv2::Simulator;
use crate::elbv2::model::{Group, Model};
use crate::elbv2::query::Query;
use crate::registry_aws_ground::driver;
use crate::small_cluster::SmallCluster;

/// Steps in which time passes.
const TICK: Duration = Duration::from_millis(100);
/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(900);
/// Looks at a call that is under way, in so many rounds of everybody, until it counts as one that waits for time to pass.
const LOOKS: usize = 100_000;

/// Opens aws registries, and counts their calls.
struct Accounts {
    open: fn(&AwsConfig) -> Aws,
    under_way: Arc<AtomicUsize>,
}

/// A driver whose calls are counted while they are under way.
struct Counted {
    driver: Aws,
    under_way: Arc<AtomicUsize>,
}

/// Says that a call is over, answered or given up.
struct Ended<'a>(&'a AtomicUsize);

/// The reconciler at work.
pub(crate) struct Life {
    pub(crate) simulator: Simulator,
    arns: Vec<String>,
    pub(crate) cluster: SmallCluster,
    pub(crate) metrics: Arc<Metrics>,
    stop: oneshot::Sender<()>,
    reconciler: JoinHandle<()>,
}

impl Drivers for Accounts {
    type Registry = Counted;

    fn open(&self, config: &RegistryConfig, _: &Arc<str>) -> Result<Arc<Counted>, OpenError> {
        let DriverConfig::Aws(config) = &config.driver else { panic!("{config:?}") };
        Ok(Arc::new(Counted { driver: (self.open)(config), under_way: self.under_way.clone() }))
    }
}

impl Counted {
    async fn count<T>(&self, call: impl Future<Output = T>) -> T {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _ended = Ended(&self.under_way);
        call.await
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Registry for Counted {
    fn bind(&self, services: Services) {
        self.driver.bind(services);
    }

    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn list(&self, service: &str, wait: Option<Wait>) -> Result<Listing, CallError> {
        self.count(self.driver.list(service, wait)).await
    }

    async fn apply(&self, service: &str, changes: &[Change]) -> Result<Vec<Result<(), ChangeError>>, CallError> {
        self.count(self.driver.apply(service, changes)).await
    }

    async fn drain_delay(&self, service: &str) -> Result<Option<Duration>, CallError> {
        self.count(self.driver.drain_delay(service)).await
    }

    fn family(&self, service: &str) -> Option<Family> {
        self.driver.family(service)
    }

    fn pace(&self) -> Pace {
        self.driver.pace()
    }
}

impl Life {
    /// With one group, of which the binding says more.
    async fn begin(group: Group, more: &str) -> Self {
        Self::with(vec![(group, more)], driver).await
    }

    /// With several groups, each with a binding of its own for the same pods, and drivers that are opened so.
    pub(crate) async fn with(groups: Vec<(Group, &str)>, open: fn(&AwsConfig) -> Aws) -> Self {
        let simulator = Simulator::start().await;
        let (mut arns, mut bindings) = (Vec::new(), String::new());
        for (n, (group, more)) in groups.into_iter().enumerate() {
            let arn = simulator.model().add(&format!("web-{n}"), group);
            bindings += &format!(
                "{{name: web-{n}, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: edge, service: '{arn}', port: http{more}}},"
            );
            arns.push(arn);
        }
        let text = format!(
            "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: here, bindings: [{bindings}],
              registries: [{{name: edge, aws: {{region: eu-west-1, endpoint: '{}'}}}}]}}",
            simulator.url
        );
        let (cluster, metrics) = (SmallCluster::new(&text), Arc::new(Metrics::new()));
        let (stop, stopped) = oneshot::channel::<()>();
        let accounts = Accounts { open, under_way: Arc::default() };
        tokio::spawn(pass(simulator.model_handle(), accounts.under_way.clone()));
        let work = reconcile::run(cluster.clone(), accounts, TokioClock::start(), Options::new("one"), metrics.clone(), async {
            let _ = stopped.await;
        });
        Self { simulator, arns, cluster, metrics, stop, reconciler: tokio::spawn(work) }
    }

    /// Waits until it is as wanted; what was as it should be until then is looked at all the time.
    async fn until(&self, what: &str, always: impl Fn(&Self), wanted: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !wanted(self) {
            always(self);
            assert!(begun.elapsed() < PATIENCE, "it never came to this: {what}; {:?}", self.states(0));
            tokio::time::sleep(TICK).await;
        }
    }

    /// What a group holds, whatever reads show.
    fn states(&self, group: usize) -> Vec<(String, &'static str)> {
        let truth = self.simulator.model().truth(&self.arns[group]);
        truth.iter().map(|shown| (shown.address.to_string(), shown.state)).collect()
    }

    /// The state of the one target of the one group.
    fn state(&self) -> Option<&'static str> {
        self.states(0).first().map(|(_, state)| *state)
    }

    /// The addresses that changes of a group have named so far.
    fn named(&self, group: usize) -> BTreeSet<String> {
        let model = self.simulator.model();
        let changes = model.calls.iter().filter(|call| call.group() == self.arns[group]);
        changes.flat_map(Query::targets).map(|(address, _)| address).collect()
    }

    pub(crate) async fn end(self) {
        self.stop.send(()).unwrap();
        self.reconciler.await.unwrap();
    }
}

/// Lets time pass while nothing is under way: whoever is ready to run keeps the virtual clock from going on by itself.
async fn pass(model: Arc<std::sync::Mutex<Model>>, under_way: Arc<AtomicUsize>) {
    loop {
        let mut looks = 0;
        while under_way.load(Ordering::SeqCst) > 0 && looks < LOOKS {
            looks += 1;
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(TICK).await;
        model.lock().unwrap().pass(TICK);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_ready_once_its_target_is_healthy_and_goes_once_it_drains() {
    let life = Life::begin(Group { delay: 3600, ..Group::default() }, "").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster
        .until("the gate waits", |cluster| cluster.find("web-1").is_some_and(|pod| pod.gate.is_some_and(|gate| !gate.status)))
        .await;
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    assert_eq!(life.state(), Some("healthy"));
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    assert_eq!(life.state(), Some("draining"));
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn where_absence_counts_a_pod_waits_for_the_end_of_the_delay() {
    let life = Life::begin(Group { delay: 30, ..Group::default() }, ", goneWhen: absent").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    assert_eq!(life.state(), None);
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_on_a_reused_address_is_neither_let_through_nor_taken_out() {
    let life = Life::begin(Group { delay: 3600, ..Group::default() }, ", goneWhen: absent").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    // Its end and the newcomer are seen together; for the registry there is only one target.
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.run("web-2", &["10.0.0.1"]);
    life.cluster.until("the old one goes", |cluster| cluster.find("web-1").is_none()).await;
    life.cluster.until("the gate of the new one opens", |cluster| cluster.is_open("web-2")).await;
    assert_eq!(life.state(), Some("healthy"));
    let registers = |life: &Life| life.simulator.model().calls.iter().filter(|call| call.action() == "RegisterTargets").count();
    assert!(registers(&life) >= 2, "each of them was registered");
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_group_says_so_on_the_pod_and_takes_it_once_there_is_room() {
    let life = Life::begin(Group { room: 0, ..Group::default() }, "").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    let told = |cluster: &SmallCluster| {
        cluster.find("web-1").and_then(|pod| pod.gate).is_some_and(|gate| gate.message.contains("no more targets: TooManyTargets: "))
    };
    life.cluster.until("the pod says why it waits", told).await;
    life.simulator.model().groups.get_mut(&life.arns[0]).unwrap().room = 1;
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_addresses_has_the_one_of_the_groups_family() {
    let life = Life::begin(Group { family: "ipv6", ..Group::default() }, "").await;
    life.cluster.run("web-1", &["10.0.0.1", "fd00::1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    let claims = life.cluster.find("web-1").unwrap().claims.unwrap().message;
    assert!(claims.ends_with("[fd00::1]:8080"), "{claims}");
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn beside_another_controller_gate_and_finalizer_wait_for_what_it_does() {
    let tags = [("elbv2.k8s.aws/cluster".to_owned(), "prod".to_owned())].into();
    let life = Life::begin(Group { tags, ..Group::default() }, ", mode: observe").await;
    let address = "10.0.0.1:8080".parse().unwrap();
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the claim is written", |cluster| cluster.find("web-1").is_some_and(|pod| pod.claims.is_some())).await;
    assert!(!life.cluster.is_open("web-1"));
    life.simulator.model().put(&life.arns[0], address);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.simulator.model().drop_out(&life.arns[0], address);
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    assert_eq!(life.state(), Some("draining"));
    let changes = |action: &str| matches!(action, "RegisterTargets" | "DeregisterTargets" | "DescribeTags");
    assert!(life.simulator.model().calls.iter().all(|call| !changes(call.action())));
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn targets_of_others_in_a_shared_group_stay_as_they_are() {
    let life = Life::begin(Group { delay: 3600, ..Group::default() }, ", onUnready: deregister").await;
    let [serving, draining]: [SocketAddr; 2] = ["10.0.0.8:8080", "10.0.0.9:8080"].map(|address| address.parse().unwrap());
    life.simulator.model().put(&life.arns[0], serving);
    life.simulator.model().put(&life.arns[0], draining);
    life.simulator.pass(Duration::from_secs(60));
    life.simulator.model().drop_out(&life.arns[0], draining);
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    let wanted = [("10.0.0.1:8080", "draining"), ("10.0.0.8:8080", "healthy"), ("10.0.0.9:8080", "draining")];
    assert_eq!(life.states(0), wanted.map(|(address, state)| (address.to_owned(), state)));
    assert_eq!(life.named(0), BTreeSet::from(["10.0.0.1".to_owned()]), "no request names a target that is not ours");
    life.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_ours_alone_is_swept_within_the_budget_and_another_is_not() {
    let begun = Instant::now();
    let own = || Group { delay: 30, ..Group::default() };
    let life = Life::with(vec![(own(), ", exclusive: true"), (own(), "")], driver).await;
    let pods = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
    let left_behind = ["10.0.0.7", "10.0.0.8", "10.0.0.9"];
    let unbound = life.simulator.model().add("of-others", own());
    for address in left_behind.map(|ip| format!("{ip}:8080").parse().unwrap()) {
        life.arns.iter().chain([&unbound]).for_each(|arn| life.simulator.model().put(arn, address));
    }
    pods.iter().enumerate().for_each(|(n, ip)| life.cluster.run(&format!("web-{n}"), &[ip]));
    life.until("the gates open", |_| {}, |life| (0..pods.len()).all(|n| life.cluster.is_open(&format!("web-{n}")))).await;

    let among = |life: &Life, ips: &[&str], state: &str| {
        life.states(0).iter().filter(|(address, is)| *is == state && ips.iter().any(|ip| address.starts_with(ip))).count()
    };
    let in_use = |life: &Life| {
        assert_eq!(among(life, &pods, "healthy"), pods.len());
        assert!(among(life, &left_behind, "draining") <= pods.len() / 2, "more than half of what the pods are: {:?}", life.states(0));
    };
    life.until("one is taken out", in_use, |life| among(life, &left_behind, "healthy") < left_behind.len()).await;
    let passed = begun.elapsed();
    assert!(passed > 2 * Duration::from_secs(48), "not before it was seen in three audits: {passed:?}");
    life.until("all are gone", in_use, |life| life.states(0).len() == pods.len()).await;

    life.cluster.delete("web-0");
    life.cluster.stop("web-0");
    life.until("the pod goes", |_| {}, |life| life.cluster.find("web-0").is_none()).await;
    let all: BTreeSet<String> = pods.iter().chain(&left_behind).map(|ip| (*ip).to_owned()).collect();
    assert_eq!(life.named(0), all);
    assert_eq!(life.named(1), pods.map(str::to_owned).into(), "what others put into a shared group stays");
    let of_others = life.simulator.model().truth(&unbound);
    assert!(of_others.len() == left_behind.len() && of_others.iter().all(|shown| shown.state == "healthy"), "{of_others:?}");
    assert!(life.simulator.model().calls.iter().all(|call| call.group() != unbound), "nobody looks at a group that no binding names");
    life.end().await;
}
