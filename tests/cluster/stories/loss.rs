//! Lockstep on two nodes, one of which is drained, dies, or is cut off, while pods are created without a pause.
//!
//! Invariant: a pod that was not prepared, or was refused, is counted: nothing hides behind a failure policy.
//! Absent on purpose: pods that Lockstep serves on a node that dies (`nodes`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep::names::GATE;
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::{beside, name, trouble};
use crate::world::{self, NAMESPACE, World};

/// The node that stays.
const STAYING: &str = "node1";
/// The node that goes, and its kubelet.
const GOING: (&str, &str) = ("node2", "kubelet2");
/// Namespaces in which pods are created: let through, and refused, where nobody answers for them.
const CREATED: [&str; 2] = ["open", "created"];
/// The controller-manager gives a silent node up after 16 s.
const GIVEN_UP: Duration = Duration::from_secs(60);
/// Until a node is given up, its replica is still behind the Service, and an API server chooses by chance; each wrong choice costs it the 5 s of
/// the webhook's patience, and there is room for four of those in the 16 s.
const BAD_LUCK: usize = 5;
/// Fewer pods than that prove nothing.
const ENOUGH: usize = 20;
/// From here on an API server chooses anew for every request (`WebhookRoundTripLoadBalancing`), and not for every connection: a replica whose
/// address refuses at once is asked for about every second pod.
const CHOOSES_ANEW: u32 = 37;
/// Whether the two nodes are Ready.
const READY: &str = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;

/// What became of pods that were created.
#[derive(Debug, Default)]
struct Tally {
    created: usize,
    not_prepared: usize,
    refused: Vec<String>,
    longest: Duration,
}

pub(crate) fn one_of_two_nodes_goes(world: &World) {
    let (node, kubelet) = GOING;
    let plain = world.values();
    spread(world);

    let drained = while_pods_are_created(world, || {
        world.cluster.kubectl(&["drain", node, "--ignore-daemonsets", "--timeout=120s"]);
    });
    assert_prepared("the node is drained", &drained, ENOUGH, 0);
    world.cluster.kubectl(&["uncordon", node]);
    await_replicas(world, 2);

    turn_to(world);
    let died = while_pods_are_created(world, || {
        let replica = replica_on(world, node);
        world.cluster.stop(kubelet);
        trouble::kill(world, &replica);
        await_replicas(world, 1);
    });
    let anew = minor(world) >= CHOOSES_ANEW;
    let lost = if anew { died.iter().map(|tally| tally.created * 3 / 4).max().unwrap_or_default() } else { BAD_LUCK };
    assert_prepared("all that runs on the node dies", &died, ENOUGH, lost);
    world.cluster.start(kubelet);
    await_replicas(world, 2);

    turn_to(world);
    let cut_off = while_pods_are_created(world, || {
        // Whatever is sent there is lost, as when a machine loses its power.
        link(world, "down");
        await_replicas(world, 1);
    });
    // Where every second request waits, few pods are created at all.
    assert_prepared("the node is cut off", &cut_off, if anew { 1 } else { ENOUGH }, BAD_LUCK);
    link(world, "up");
    await_replicas(world, 2);

    world.upgrade(&plain);
    world.cluster.kubectl(&["taint", "node", node, "spare=true:NoSchedule"]);
}

/// The minor version of the API server.
fn minor(world: &World) -> u32 {
    let version = world.cluster.kubectl(&["version", "-o", "json"]);
    let version: Value = serde_json::from_str(&version).expect("kubectl prints JSON");
    let minor = version["serverVersion"]["minor"].as_str().and_then(|minor| minor.parse().ok());
    minor.expect("an API server tells its version")
}

/// Brings one replica to each of two nodes.
fn spread(world: &World) {
    let [image, socket] = ["images/lockstep.tar", "node2/containerd.sock"].map(|name| world.cluster.path(name));
    let [image, socket] = [&image, &socket].map(|path| path.to_str().expect("mktemp prints text"));
    world.cluster.run("ctr", &["--address", socket, "--namespace", "k8s.io", "images", "import", image], "");
    world.cluster.kubectl(&["taint", "node", GOING.0, "spare-"]);
    let apart = json!({ "example.org/apart": "true" });
    let mut values = world.values();
    values["podLabels"] = apart.clone();
    let rule = json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": apart } });
    values["affinity"] = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [rule] } });
    world.upgrade(&values);
    await_replicas(world, 2);
}

/// Has every connection of the API server lead to the node that will go: the other replica is replaced, and who comes new is not asked
/// before an old connection ends. Nothing may be lost by that either.
fn turn_to(world: &World) {
    let turned = while_pods_are_created(world, || {
        world.cluster.kubectl(&["delete", "pod", "--namespace", NAMESPACE, &replica_on(world, STAYING)]);
        await_replicas(world, 2);
    });
    assert_prepared("a replica is replaced", &turned, ENOUGH, 0);
}

fn replica_on(world: &World, node: &str) -> String {
    let replicas = world.replicas();
    let there = replicas.iter().find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node)));
    name(there.unwrap_or_else(|| panic!("no replica is on {node}"))).to_owned()
}

/// Waits until so many nodes are Ready, and so many replicas can be called.
fn await_replicas(world: &World, count: usize) {
    eventually(&format!("{count} replicas can be called, on {count} nodes"), GIVEN_UP, || {
        let ready = world.cluster.ready_endpoints(NAMESPACE, "lockstep");
        let nodes = world.cluster.kubectl(&["get", "nodes", STAYING, GOING.0, "-o", READY]).matches("True").count();
        if (ready.len(), nodes) == (count, count) { Ok(()) } else { Err(format!("{ready:?}, {nodes} nodes are Ready")) }
    });
}

/// The cable of the node.
fn link(world: &World, state: &str) {
    world.cluster.run("/usr/sbin/ip", &["link", "set", GOING.0, state], "");
}

/// Creates pods in each of the namespaces, one after the other, as rehearsals that are not stored, while something happens.
fn while_pods_are_created(world: &World, happens: impl FnOnce()) -> [Tally; 2] {
    let create = |over: &AtomicBool| {
        std::thread::scope(|scope| {
            let creating = CREATED.map(|namespace| scope.spawn(move || create_in(world, namespace, over)));
            creating.map(|tally| tally.join().expect("creating pods does not panic"))
        })
    };
    beside(create, happens)
}

fn create_in(world: &World, namespace: &str, over: &AtomicBool) -> Tally {
    let pod = world::pod(namespace, "one", json!({}));
    let is_prepared = |pod: &Value| {
        let gates = pod["spec"]["readinessGates"].as_array();
        gates.is_some_and(|gates| gates.iter().any(|gate| gate["conditionType"] == GATE))
    };
    let mut tally = Tally::default();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        tally.created += 1;
        match world.cluster.rehearse(namespace, &pod) {
            Ok(stored) if is_prepared(&stored) => {}
            Ok(_) => tally.not_prepared += 1,
            Err(error) => tally.refused.push(error),
        }
        tally.longest = tally.longest.max(begun.elapsed());
    }
    tally
}

/// Asserts that at least so many were created in each of the namespaces, and at most so many not prepared, or refused.
fn assert_prepared(what: &str, tallies: &[Tally; 2], least: usize, most: usize) {
    for (tally, namespace) in tallies.iter().zip(CREATED) {
        eprintln!("{what}: {namespace}: {tally:?}");
        assert!(tally.created >= least, "{what}: only {} pods were created: that proves nothing", tally.created);
        assert!(tally.not_prepared + tally.refused.len() <= most, "{what}: {namespace}: {tally:?}");
    }
}
