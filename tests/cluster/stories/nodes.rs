//! Nodes that are drained, die, come back, or are taken away.
//!
//! Invariant: these stories have a node of their own each; the others never notice.
//! Absent on purpose: graceful shutdown of a node, which needs systemd (the simulation has it).

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{always, eventually};
use crate::stories::{
    SOON, await_active, await_clean, await_told, condition, delete_workload, described, fewest_active, holds, living, name, seen,
};
use crate::world::{self, World};

/// Node of the drain.
const EVACUATED: &str = "node2";
/// Node whose kubelet is killed.
const LOST: &str = "node3";
/// The controller-manager gives a silent node up after 16 s, and its collector of pods comes by within a minute.
const GIVEN_UP: Duration = Duration::from_secs(120);

pub(crate) fn drained(world: &World) {
    const PODS: usize = 3;
    let mut web = world::deployment("evacuated", 3);
    let spec = &mut web["spec"]["template"]["spec"];
    spec["tolerations"] = json!([{ "key": "spare", "operator": "Exists" }]);
    let on = |operator: &str, node: &str| json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": operator, "values": [node] }] });
    spec["affinity"]["nodeAffinity"] = json!({
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": on("In", EVACUATED) }],
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [on("NotIn", LOST)] },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web", "namespace": "evacuated" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    world.cluster.apply(&[web, budget]);
    let before = await_active(world, "evacuated", PODS);
    assert!(before.iter().all(|pod| node_of(pod) == EVACUATED), "they prefer that node");

    let fewest = fewest_active(world, "evacuated", || {
        let output = world.cluster.attempt("kubectl", &["drain", EVACUATED, "--ignore-daemonsets", "--timeout=120s"], "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(fewest >= PODS - 1, "only {fewest} endpoints were active at one moment");
    let after = await_active(world, "evacuated", PODS);
    assert!(after.iter().all(|pod| node_of(pod) != EVACUATED), "the node is empty");
    for pod in &before {
        await_told(world, "evacuated", name(pod), &["Draining", "Deregistered"]);
    }
    world.cluster.kubectl(&["uncordon", EVACUATED]);
    delete_workload(world, "evacuated", "deployment");
    await_clean(world, "evacuated");
}

pub(crate) fn dies(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("lost", 2), on_lost_node("first"), on_lost_node("second")]);
    await_active(world, "lost", 4);

    world.cluster.stop("kubelet3");
    eventually("both pods of the node are taken out of use", GIVEN_UP, || {
        let pods = living(world, "lost");
        let out = pods
            .iter()
            .filter(|pod| condition(pod, "lockstep.dev/registered").is_some_and(|gate| gate.reason.as_deref() == Some("NodeLost")));
        if out.count() == 2 && registry.uids("lost", "draining").len() == 2 {
            Ok(())
        } else {
            Err(pods.iter().map(seen).collect::<Vec<_>>().join("; "))
        }
    });
    described(world, "lost", "first", &["NodeLost"]);
    eventually("only the others are Ready", SOON, || {
        let pods = living(world, "lost");
        let right = pods.iter().all(|pod| holds(pod, "Ready") == (node_of(pod) != LOST));
        if right { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });

    world.cluster.start("kubelet3");
    await_active_after(world, "its kubelet is back");
    described(world, "lost", "first", &["NodeLost", "Registered"]);

    // It dies for good: one pod is forced out by a person, the other goes with the Node.
    world.cluster.stop("kubelet3");
    world.cluster.kubectl(&["delete", "pod", "--namespace", "lost", "first", "--force", "--grace-period=0", "--wait=false"]);
    eventually("the forced pod is gone, kubelet or not", SOON, || match world.cluster.pod("lost", "first") {
        None => Ok(()),
        Some(pod) => Err(seen(&pod)),
    });
    await_told(world, "lost", "first", &["Deregistered"]);
    world.cluster.kubectl(&["delete", "pod", "--namespace", "lost", "second", "--wait=false"]);
    always("a deleted pod of a dead node is held while it may run", Duration::from_secs(3), || {
        world.cluster.pod("lost", "second").map(drop).ok_or_else(|| "it is gone".into())
    });
    world.cluster.kubectl(&["delete", "node", LOST]);
    eventually("the other pod is gone with its Node", GIVEN_UP, || match world.cluster.pod("lost", "second") {
        None => Ok(()),
        Some(pod) => Err(seen(&pod)),
    });
    await_told(world, "lost", "second", &["Draining", "Deregistered"]);
    await_active(world, "lost", 2);

    world.cluster.start("kubelet3");
    eventually("the node comes back", SOON, || {
        let node = world.cluster.kubectl(&["get", "node", LOST, "--ignore-not-found", "-o", "name"]);
        if node.is_empty() { Err("it has no Node".into()) } else { Ok(()) }
    });
    delete_workload(world, "lost", "deployment");
    await_clean(world, "lost");
}

fn await_active_after(world: &World, what: &str) {
    eventually(what, GIVEN_UP, || {
        let pods = living(world, "lost");
        if pods.iter().all(|pod| holds(pod, "Ready")) { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    await_active(world, "lost", 4);
}

/// A pod that stays on the node whatever is said against it.
fn on_lost_node(name: &str) -> Value {
    let mut pod = world::pod("lost", name, json!({}));
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": LOST });
    pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
    pod
}

fn node_of(pod: &k8s_openapi::api::core::v1::Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}
