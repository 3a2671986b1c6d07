//! The handshake: pods wait for the registry at their start and at their end.
//!
//! Invariant: what a story asserts of the order is seen on both sides, in the API and in the registry.
//! Absent on purpose: losses and duplicates of messages (the simulation).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::{always, eventually};
use crate::stories::{SOON, await_none, await_ready, condition, fewest_active, holds, living, name, roll, seen, uid};
use crate::world::{self, SLEEP, World};

pub(crate) fn ready_once_acknowledged(world: &World) {
    let registry = world.registry();
    registry.behave("handshake", &json!({ "hold": true }));
    world.cluster.apply(&[world::deployment("handshake", 2)]);
    eventually("both pods are registered, and wait", SOON, || {
        let pods = living(world, "handshake");
        let waiting = pods.len() == 2 && pods.iter().all(|pod| holds(pod, "ContainersReady"));
        let listed = registry.targets("handshake");
        if waiting && listed.len() == 2 { Ok(()) } else { Err(format!("{listed:?}")) }
    });
    always("no pod is Ready while the registry holds its acknowledgement back", Duration::from_secs(3), || {
        match living(world, "handshake").iter().find(|pod| holds(pod, "Ready")) {
            None => Ok(()),
            Some(pod) => Err(seen(pod)),
        }
    });
    let gate = living(world, "handshake").iter().map(|pod| condition(pod, "lockstep.dev/registered").cloned()).next().flatten();
    assert_eq!(gate.and_then(|gate| gate.reason).as_deref(), Some("Registering"));

    registry.behave("handshake", &json!({}));
    let released = Instant::now();
    await_ready(world, "handshake", 2);
    assert!(released.elapsed() < Duration::from_secs(1), "Ready {:?} after the acknowledgement", released.elapsed());
    assert_eq!(registry.uids("handshake", "active").len(), 2);
}

pub(crate) fn a_rolling_update(world: &World) {
    const PODS: usize = 5;
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("rollout", 5)]);
    let before: BTreeSet<String> = await_ready(world, "rollout", PODS).iter().map(|pod| uid(pod).to_owned()).collect();

    let fewest = fewest_active(world, "rollout", || roll(world, "rollout", "deployment"));
    assert!(fewest >= PODS, "only {fewest} endpoints were active at one moment");
    let after: BTreeSet<String> = await_ready(world, "rollout", PODS).iter().map(|pod| uid(pod).to_owned()).collect();
    assert!(before.is_disjoint(&after), "every pod was replaced");
    eventually("the registry lists the new pods and nothing else", SOON, || {
        let listed: BTreeSet<String> = registry.targets("rollout").into_iter().map(|target| target.uid).collect();
        if listed == after { Ok(()) } else { Err(format!("{listed:?}")) }
    });
}

pub(crate) fn a_deleted_pod(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::pod("drained", "one", json!({}))]);
    let pod = await_ready(world, "drained", 1).remove(0);

    world.cluster.kubectl(&["delete", "pod", "--namespace", "drained", name(&pod), "--wait=false"]);
    let deleted = Instant::now();
    eventually("the target drains", SOON, || {
        let targets = registry.targets("drained");
        if targets.iter().all(|target| target.state == "draining") { Ok(()) } else { Err(format!("{targets:?}")) }
    });
    assert!(deleted.elapsed() < Duration::from_secs(1), "drained only after {:?}", deleted.elapsed());
    registry.behave("drained", &json!({ "hold": true }));

    eventually("the container is stopped", SOON, || match world.cluster.pod("drained", "one") {
        Some(pod) if stopped(&pod) => Ok(()),
        Some(pod) => Err(seen(&pod)),
        None => panic!("the object went before the registry let go"),
    });
    let slept = deleted.elapsed();
    assert!(slept >= Duration::from_secs(SLEEP.unsigned_abs()), "the container was stopped after {slept:?}, in its sleep");

    always("the object stays while the registry does not let go", Duration::from_secs(3), || {
        world.cluster.pod("drained", "one").map(drop).ok_or_else(|| "it is gone".into())
    });
    registry.behave("drained", &json!({}));
    await_none(world, "drained");
    assert_eq!(registry.targets("drained"), []);
}

pub(crate) fn scaled_to_zero(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment("scaled", 3)]);
    await_ready(world, "scaled", 3);

    // Held back, so that it is the middle of a rollout for certain: old pods serve, a new one waits.
    registry.behave("scaled", &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", "scaled"]);
    eventually("a new pod waits beside the old ones", SOON, || {
        let pods = living(world, "scaled");
        if pods.len() > 3 { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    world.cluster.kubectl(&["scale", "deployment/web", "--namespace", "scaled", "--replicas", "0"]);
    registry.behave("scaled", &json!({}));

    await_none(world, "scaled");
    assert_eq!(registry.targets("scaled"), []);
}

fn stopped(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    statuses.into_iter().all(|status| status.state.as_ref().is_some_and(|state| state.terminated.is_some()))
}
