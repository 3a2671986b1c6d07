//! Namespaces that opt in with running pods, opt out again, or are deleted as a whole.
//!
//! Invariant: a pod that was taken into care stays in care, whatever becomes of the label.
//! Absent on purpose: namespaces that never opt in (`admission`).

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::{
    SOON, await_active, await_clean, await_ready, await_told, carries_finalizer, condition, delete_workload, described, exit_code, living,
    name, seen, uid,
};
use crate::world::{self, World};

pub(crate) fn opted_in_and_out(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("joining", 2)]);
    let before = await_ready(world, "joining", 2);
    assert!(before.iter().all(|pod| !carries_finalizer(pod)), "nobody asked for it yet");
    assert_eq!(registry.targets("joining"), []);

    world.cluster.kubectl(&["label", "namespace", "joining", "lockstep.dev/inject=enabled"]);
    await_active(world, "joining", 2);
    for pod in &before {
        await_told(world, "joining", name(pod), &["Adopted"]);
        described(world, "joining", name(pod), &["Adopted", "lockstep.dev/managed=true"]);
    }
    let adopted = living(world, "joining");
    assert!(adopted.iter().all(carries_finalizer), "they are in care from now on");
    assert!(adopted.iter().all(|pod| pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.is_none())), "a gate is immutable");

    world.cluster.kubectl(&["label", "namespace", "joining", "lockstep.dev/inject-"]);
    world.cluster.kubectl(&["scale", "deployment/web", "--namespace", "joining", "--replicas", "3"]);
    let pods = await_ready(world, "joining", 3);
    let (managed, free): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| carries_finalizer(pod));
    assert_eq!((managed.len(), free.len()), (2, 1), "opting out drops nobody and takes in nobody");

    delete_workload(world, "joining", "deployment");
    await_clean(world, "joining");
    for pod in managed {
        await_told(world, "joining", name(pod), &["Draining", "Deregistered"]);
    }
    assert!(world.cluster.events("joining", name(free[0])).iter().all(|(reason, _)| reason != "Deregistered"), "{}", seen(free[0]));
}

pub(crate) fn deleted(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("doomed", 2)]);
    let uids: Vec<String> = await_ready(world, "doomed", 2).iter().map(|pod| uid(pod).to_owned()).collect();
    registry.behave("doomed", &json!({ "hold": true }));

    world.cluster.kubectl(&["delete", "namespace", "doomed", "--wait=false"]);
    // A namespace that is being deleted takes no Events; the pods say it themselves.
    let held = eventually("the pods have ended and are held", SOON, || {
        let pods = world.cluster.pods("doomed", "app=web");
        assert_eq!(pods.len(), 2, "no object goes before the registry let go");
        if pods.iter().all(|pod| exit_code(pod).is_some()) { Ok(pods) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    for pod in held {
        let claims = condition(&pod, "lockstep.dev/targets").and_then(|claims| claims.message.as_deref()).unwrap_or_default();
        assert!(claims.starts_with("local/doomed "), "it says what the registry still has: {}", seen(&pod));
        assert!(uids.contains(&uid(&pod).to_owned()) && carries_finalizer(&pod), "{}", seen(&pod));
    }

    registry.behave("doomed", &json!({}));
    eventually("the namespace is gone", SOON, || {
        let left = world.cluster.kubectl(&["get", "namespace", "doomed", "--ignore-not-found", "-o", "json"]);
        match serde_json::from_str::<Value>(&left) {
            Ok(left) => Err(left["status"].to_string()),
            Err(_) => Ok(()),
        }
    });
    await_clean(world, "doomed");
}
