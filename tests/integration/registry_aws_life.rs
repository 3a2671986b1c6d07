//! A pod's whole life with target groups: the reconciler itself, the aws driver and the simulator.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep::config::{DriverConfig, RegistryConfig};
use lockstep::metrics::Metrics;
use lockstep::reconcile::tokio_clock::TokioClock;
use lockstep::reconcile::{self, Drivers, OpenError, Options};
use lockstep::registry::aws::Aws;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::elbv2::query::Query;
use crate::registry_aws_ground::driver;
use crate::small_cluster::SmallCluster;

/// Opens aws registries with a key that the simulator takes.
struct Accounts;

impl Drivers for Accounts {
    type Registry = Aws;

    fn open(&self, config: &RegistryConfig, _: &Arc<str>) -> Result<Arc<Aws>, OpenError> {
        let DriverConfig::Aws(config) = &config.driver else { panic!("{config:?}") };
        Ok(Arc::new(driver(config)))
    }
}

/// The reconciler at work.
struct Life {
    simulator: Simulator,
    arn: String,
    cluster: SmallCluster,
    stop: oneshot::Sender<()>,
    reconciler: JoinHandle<()>,
}

impl Life {
    async fn begin(group: Group, more: &str) -> Self {
        let simulator = Simulator::start().await;
        let arn = simulator.model().add("web", group);
        // An ALB's first steps take forty seconds: the second read of one who waits is past them.
        simulator.model().tick = Duration::from_secs(45);
        let text = format!(
            "{{apiVersion: lockstep.dev/v1alpha1, kind: Configuration, cluster: here,
              registries: [{{name: edge, aws: {{region: eu-west-1, endpoint: '{}'}}}}],
              bindings: [{{name: web, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: edge, service: '{arn}', port: http{more}}}]}}",
            simulator.url
        );
        let cluster = SmallCluster::new(&text);
        let (stop, stopped) = oneshot::channel::<()>();
        let work = reconcile::run(cluster.clone(), Accounts, TokioClock::start(), Options::new("one"), Arc::new(Metrics::new()), async {
            let _ = stopped.await;
        });
        Self { simulator, arn, cluster, stop, reconciler: tokio::spawn(work) }
    }

    /// The state of the one target, whatever reads show.
    fn state(&self) -> Option<&'static str> {
        self.simulator.model().truth(&self.arn).first().map(|shown| shown.state)
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.reconciler.await.unwrap();
    }
}

#[tokio::test]
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

#[tokio::test]
async fn where_absence_counts_a_pod_waits_for_the_end_of_the_delay() {
    let life = Life::begin(Group { delay: 60, ..Group::default() }, ", goneWhen: absent").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    assert_eq!(life.state(), None);
    life.end().await;
}

#[tokio::test]
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

#[tokio::test]
async fn a_full_group_says_so_on_the_pod_and_takes_it_once_there_is_room() {
    let life = Life::begin(Group { room: 0, ..Group::default() }, "").await;
    life.cluster.run("web-1", &["10.0.0.1"]);
    let told = |cluster: &SmallCluster| {
        cluster.find("web-1").and_then(|pod| pod.gate).is_some_and(|gate| gate.message.contains("no more targets: TooManyTargets: "))
    };
    life.cluster.until("the pod says why it waits", told).await;
    life.simulator.model().groups.get_mut(&life.arn).unwrap().room = 1;
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.end().await;
}

#[tokio::test]
async fn a_pod_with_two_addresses_has_the_one_of_the_groups_family() {
    let life = Life::begin(Group { family: "ipv6", ..Group::default() }, "").await;
    life.cluster.run("web-1", &["10.0.0.1", "fd00::1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    let claims = life.cluster.find("web-1").unwrap().claims.unwrap().message;
    assert!(claims.ends_with("[fd00::1]:8080"), "{claims}");
    life.end().await;
}

#[tokio::test]
async fn beside_another_controller_gate_and_finalizer_wait_for_what_it_does() {
    let tags = [("elbv2.k8s.aws/cluster".to_owned(), "prod".to_owned())].into();
    let life = Life::begin(Group { tags, ..Group::default() }, ", mode: observe").await;
    let address = "10.0.0.1:8080".parse().unwrap();
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the claim is written", |cluster| cluster.find("web-1").is_some_and(|pod| pod.claims.is_some())).await;
    assert!(!life.cluster.is_open("web-1"));
    life.simulator.model().put(&life.arn, address);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.simulator.model().drop_out(&life.arn, address);
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    assert_eq!(life.state(), Some("draining"));
    let changes = |action: &str| matches!(action, "RegisterTargets" | "DeregisterTargets" | "DescribeTags");
    assert!(life.simulator.model().calls.iter().all(|call| !changes(call.action())));
    life.end().await;
}

#[tokio::test]
async fn targets_of_others_in_a_shared_group_stay_as_they_are() {
    let life = Life::begin(Group { delay: 3600, ..Group::default() }, ", onUnready: deregister").await;
    let [serving, draining]: [SocketAddr; 2] = ["10.0.0.8:8080", "10.0.0.9:8080"].map(|address| address.parse().unwrap());
    life.simulator.model().put(&life.arn, serving);
    life.simulator.model().put(&life.arn, draining);
    life.simulator.pass(Duration::from_secs(60));
    life.simulator.model().drop_out(&life.arn, draining);
    life.cluster.run("web-1", &["10.0.0.1"]);
    life.cluster.until("the gate opens", |cluster| cluster.is_open("web-1")).await;
    life.cluster.delete("web-1");
    life.cluster.stop("web-1");
    life.cluster.until("the pod goes", |cluster| cluster.find("web-1").is_none()).await;
    let truth = life.simulator.model().truth(&life.arn);
    let states: Vec<_> = truth.iter().map(|shown| (shown.address.to_string(), shown.state)).collect();
    let wanted = [("10.0.0.1:8080", "draining"), ("10.0.0.8:8080", "healthy"), ("10.0.0.9:8080", "draining")];
    assert_eq!(states, wanted.map(|(address, state)| (address.to_owned(), state)));
    let named: BTreeSet<_> = life.simulator.model().calls.iter().flat_map(Query::targets).map(|(address, _)| address).collect();
    assert_eq!(named, BTreeSet::from(["10.0.0.1".to_owned()]), "no request names a target that is not ours");
    life.end().await;
}
