//! Another version, or another installation, while pods come and go.
//!
//! Invariant: whoever reconciles, each pod is registered once and let go once.
//! Absent on purpose: taking Lockstep out (`end`).

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::programs::printed;
use crate::stories::{
    SOON, await_active, await_clean, await_rolled, await_told, carries_finalizer, delete_workload, name, roll, seen, uid,
};
use crate::world::{self, NAMESPACE, World};

/// Namespace of the second installation.
const SECOND: &str = "lockstep-second";

pub(crate) fn upgraded_in_the_middle(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("upgraded", 4)]);
    let before = await_active(world, "upgraded", 4);
    registry.behave("upgraded", &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", "upgraded"]);
    eventually("a new pod is registered, and waits", SOON, || {
        let listed = registry.targets("upgraded");
        if listed.iter().any(|target| target.state == "initial") { Ok(()) } else { Err(format!("{listed:?}")) }
    });

    let mut values = world.values();
    values["podAnnotations"] = json!({ "example.org/generation": "2" });
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| world::helm(&world.cluster, &["upgrade"], &values));
        eventually("the replicas are being replaced", SOON, || {
            let pods = world.replicas();
            if pods.len() > 2 { Ok(()) } else { Err(format!("{} pods", pods.len())) }
        });
        registry.behave("upgraded", &json!({}));
        await_rolled(world, "upgraded", "deployment");
        let output = upgrade.join().expect("helm only runs");
        assert!(output.status.success(), "helm upgrade: {}", String::from_utf8_lossy(&output.stderr));
    });

    let after = await_active(world, "upgraded", 4);
    assert!(after.iter().all(|pod| before.iter().all(|old| uid(old) != uid(pod))), "the rollout went on to its end");
    for pod in &before {
        await_told(world, "upgraded", name(pod), &["Draining", "Deregistered"]);
    }
    delete_workload(world, "upgraded", "deployment");
    await_clean(world, "upgraded");
}

pub(crate) fn doubled(world: &World) {
    world.cluster.apply(&[world::deployment("doubled", 3)]);
    let before = await_active(world, "doubled", 3);
    world.cluster.apply(&[json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SECOND } })]);
    let refused = second(world, &["install"]);
    assert!(!refused.status.success(), "helm lets nobody install it twice");
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("lockstep") && complaint.contains("cannot be imported into the current release"), "{complaint}");

    // Somebody brings it in all the same, past helm, with rights of its own: two leaders, each with a Lease of its own.
    let installed = force(world);
    let deployment = format!("deployment/lockstep --namespace {SECOND} --timeout 90s");
    let arguments: Vec<&str> = ["rollout", "status"].into_iter().chain(deployment.split(' ')).collect();
    world.cluster.kubectl(&arguments);
    eventually("both installations have a leader", SOON, || {
        let holder = |namespace| {
            world.cluster.kubectl(&["get", "lease", "lockstep", "--namespace", namespace, "-o", "jsonpath={.spec.holderIdentity}"])
        };
        let holders = [holder(NAMESPACE), holder(SECOND)];
        if holders.iter().all(|holder| !holder.is_empty()) { Ok(()) } else { Err(format!("{holders:?}")) }
    });
    roll(world, "doubled", "deployment");
    let after = await_active(world, "doubled", 3);
    assert!(after.iter().all(|pod| before.iter().all(|old| uid(old) != uid(pod))), "every pod was replaced");
    world.cluster.kubectl(&["delete", "pod", "--namespace", "doubled", name(&after[0]), "--wait=false"]);
    await_active(world, "doubled", 3);
    delete_workload(world, "doubled", "deployment");
    await_clean(world, "doubled");

    let list = json!({ "apiVersion": "v1", "kind": "List", "items": installed });
    world.cluster.run("kubectl", &["delete", "--wait=false", "-f", "-"], &list.to_string());
    world.cluster.kubectl(&["delete", "namespace", SECOND, "--timeout", "60s"]);
}

/// With helm 3, as many still have it.
pub(crate) fn from_the_first_chart_by_helm_3(world: &World) {
    let helm3 = printed("tests/cluster/build", "helm3").join("helm3");
    from_the_first_chart(world, helm3.to_str().expect("paths are text"));
}

/// With helm 4, which applies by the server and so must agree with whatever else owns a field.
pub(crate) fn from_the_first_chart_by_helm_4(world: &World) {
    from_the_first_chart(world, "helm");
}

fn from_the_first_chart(world: &World, program: &str) {
    let first = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/first-chart.tgz");
    let helm = |arguments: &[&str], values: &str| {
        world.cluster.run(program, &[arguments, &["--namespace", NAMESPACE, "--timeout", "2m", "--wait"]].concat(), values);
    };
    // Where this story is told by itself, Lockstep is still there.
    helm(&["uninstall", "lockstep", "--ignore-not-found"], "");
    // It knew neither an environment of the operator's nor traces.
    let mut values = world.values();
    values.as_object_mut().expect("values are a map").retain(|key, _| key != "env" && key != "traces");
    helm(&["install", "lockstep", first, "--values", "-"], &values.to_string());
    world.cluster.apply(&[world::deployment("first", 2)]);
    let before = await_active(world, "first", 2);

    helm(&["upgrade", "lockstep", world::CHART, "--reset-then-reuse-values"], "");
    assert!(await_active(world, "first", 2).iter().zip(&before).all(|(now, then)| uid(now) == uid(then)), "an upgrade ends no pod");
    roll_prepared(world, "first");

    helm(&["rollback", "lockstep", "1"], "");
    roll_prepared(world, "first");

    helm(&["upgrade", "lockstep", world::CHART, "--values", "-"], &world.values().to_string());
    delete_workload(world, "first", "deployment");
    await_clean(world, "first");
    helm(&["uninstall", "lockstep"], "");
    let names = world.cluster.kubectl(&["get", "mutatingwebhookconfigurations,clusterroles", "-o", "name"]);
    assert!(!names.contains("lockstep"), "left behind: {names}");
}

/// Replaces every pod: the old ones go, the new ones were prepared and are registered.
fn roll_prepared(world: &World, namespace: &str) {
    roll(world, namespace, "deployment");
    for pod in await_active(world, namespace, 2) {
        let gated = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
        assert!(gated && carries_finalizer(&pod), "it was not prepared: {}", seen(&pod));
    }
}

fn second(world: &World, verb: &[&str]) -> std::process::Output {
    let rest = ["lockstep-second", world::CHART, "--namespace", SECOND, "--values", "-"];
    world.cluster.attempt("helm", &[verb, &rest].concat(), &second_values(world).to_string())
}

/// The values of the first, with the first one's registry as one from outside.
fn second_values(world: &World) -> Value {
    let mut values = world.values();
    values["registry"] = json!({ "enabled": false });
    values["credentials"] = json!(["lockstep-registry-token"]);
    let local = json!({ "name": "local", "http": { "url": format!("http://lockstep-registry.{NAMESPACE}.svc:8080"), "token": "token" } });
    values["config"]["registries"].as_array_mut().expect("it is one").push(local);
    values
}

/// Applies what the chart renders, what stands once in a cluster left out; answers what was applied.
fn force(world: &World) -> Vec<Value> {
    let rendered = second(world, &["template", "--no-hooks"]);
    let rendered = String::from_utf8(rendered.stdout).expect("helm prints text");
    let listed = world.cluster.run("kubectl", &["create", "--dry-run=client", "-o", "json", "-f", "-"], &rendered);
    let objects = serde_json::Deserializer::from_str(&listed).into_iter::<Value>().map(|object| object.expect("kubectl prints JSON"));
    let objects = objects.flat_map(|object| match object["kind"].as_str() {
        Some("List") => object["items"].as_array().cloned().unwrap_or_default(),
        _ => vec![object],
    });
    let mut objects: Vec<Value> = objects.filter(|object| object["metadata"]["namespace"] == SECOND).collect();
    let token =
        world.cluster.kubectl(&["get", "secret", "lockstep-registry-token", "--namespace", NAMESPACE, "-o", "jsonpath={.data.token}"]);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "lockstep-registry-token", "namespace": SECOND },
        "data": { "token": token },
    }));
    objects.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": SECOND },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lockstep" },
        "subjects": [{ "kind": "ServiceAccount", "name": "lockstep", "namespace": SECOND }],
    }));
    world.cluster.apply(&objects);
    objects
}
