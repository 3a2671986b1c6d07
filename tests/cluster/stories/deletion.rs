//! The ways in which a pod is ended: by a deletion that is short, forced or resisted, by an eviction.
//!
//! Invariant: each ends with no pod, no target, and Events that say what was done.
//! Absent on purpose: the ordinary deletion (`registration`), whole namespaces (`namespaces`), nodes (`nodes`).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::eventually;
use crate::stories::{
    SOON, await_active, await_clean, await_none, await_ready, await_told, draining, evict, exit_code, living, name, seen,
};
use crate::world::{self, GRACE, SLEEP, World};

/// Exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

pub(crate) fn sigterm_is_ignored(world: &World) {
    let registry = world.registry();
    let mut pod = world::pod("stubborn", "one", json!({}));
    pod["spec"]["containers"][0]["command"] = world::shell("trap '' TERM; exec /bin/httpd -f -p 8080 -h /www");
    world.cluster.apply(&[pod]);
    await_ready(world, "stubborn", 1);

    let begun = Instant::now();
    world.cluster.kubectl(&["delete", "pod", "--namespace", "stubborn", "one", "--wait=false"]);
    eventually("the target drains while the container serves", SOON, || draining(&registry, "stubborn"));
    assert_eq!(world.cluster.pod("stubborn", "one").as_ref().and_then(exit_code), None, "it was told to drain before it was stopped");
    // Held, so that the ended pod is still there to be looked at.
    registry.behave("stubborn", &json!({ "hold": true }));
    let code = eventually("the kubelet ends the container", SOON, || {
        let pod = world.cluster.pod("stubborn", "one").ok_or("the object went before the registry let go")?;
        exit_code(&pod).ok_or_else(|| seen(&pod))
    });
    assert_eq!(code, KILLED, "it did not end on its own");
    let whole = Duration::from_secs((SLEEP + GRACE - 1).unsigned_abs());
    assert!(begun.elapsed() >= whole, "it had its sleep and its whole grace, not {:?}", begun.elapsed());

    registry.behave("stubborn", &json!({}));
    await_clean(world, "stubborn");
    await_told(world, "stubborn", "one", &["Registering", "Registered", "Draining", "Deregistered"]);
}

pub(crate) fn forced(world: &World) {
    world.cluster.apply(&[world::pod("forced", "one", json!({}))]);
    await_ready(world, "forced", 1);
    world.cluster.kubectl(&["delete", "pod", "--namespace", "forced", "one", "--force", "--grace-period=0", "--wait=false"]);
    await_clean(world, "forced");
    await_told(world, "forced", "one", &["Registered", "Deregistered"]);
}

pub(crate) fn short_of_time(world: &World) {
    world.cluster.apply(&[world::pod("hurried", "one", json!({}))]);
    await_ready(world, "hurried", 1);
    world.cluster.kubectl(&["delete", "pod", "--namespace", "hurried", "one", "--grace-period=1", "--wait=false"]);
    await_clean(world, "hurried");
    await_told(world, "hurried", "one", &["Draining", "GraceOverridden", "Deregistered"]);
    let notes = world.cluster.events("hurried", "one");
    let (_, note) = notes.iter().find(|(reason, _)| reason == "GraceOverridden").expect("it was told");
    assert!(note.contains("gives 1 s") && note.contains(&format!("needs {SLEEP} s")), "{note}");
}

pub(crate) fn evicted(world: &World) {
    let registry = world.registry();
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web", "namespace": "evicted" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    world.cluster.apply(&[world::deployment("evicted", 2), budget]);
    let pods = await_ready(world, "evicted", 2);

    registry.behave("evicted", &json!({ "hold": true }));
    eventually("the budget lets the first pod be evicted", SOON, || evict(world, "evicted", name(&pods[0])));
    eventually("the pod in its place is registered, and waits", SOON, || {
        let targets = registry.targets("evicted");
        if targets.iter().any(|target| target.state == "initial") { Ok(()) } else { Err(format!("{targets:?}")) }
    });
    let refused = evict(world, "evicted", name(&pods[1])).expect_err("nothing else is Ready yet");
    assert!(refused.contains("disruption budget"), "{refused}");

    registry.behave("evicted", &json!({}));
    await_active(world, "evicted", 2);
    eventually("the budget lets the second pod be evicted once another is Ready", SOON, || evict(world, "evicted", name(&pods[1])));
    await_active(world, "evicted", 2);
    for pod in &pods {
        await_told(world, "evicted", name(pod), &["Draining", "Deregistered"]);
    }
    assert!(living(world, "evicted").iter().all(|pod| pods.iter().all(|old| name(old) != name(pod))), "both were replaced");
    world.cluster.kubectl(&["delete", "deployment", "--namespace", "evicted", "web", "--wait=false"]);
    await_none(world, "evicted");
    await_clean(world, "evicted");
}
