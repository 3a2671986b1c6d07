//! The page for the night without Lockstep: its commands, as they stand there, against pods that are held.
//!
//! Invariant: what is run is the text of the page, so a command that is wrong there fails here.
//! Absent on purpose: section 5, which speaks of registries; that marked targets go by themselves takes three audits (the simulation).

use std::time::Duration;

use serde_json::json;

use crate::cluster::eventually;
use crate::documentation_pages::commands;
use crate::stories::{SOON, await_none, carries_finalizer, exit_code, holds, living, name, seen};
use crate::world::{self, World};

const NAMESPACE: &str = "broken";
const PAGE: &str = "docs/without-lockstep.md";

pub(crate) fn without_lockstep(world: &World) {
    let commands = commands(PAGE);
    let [create, list, targets, open, let_go, let_all_go] = &commands[..] else { panic!("the page has six commands: {commands:#?}") };
    let pods = held(world);
    let [gated, deleted, more] = &pods[..] else { panic!("three pods: {pods:?}") };

    run(world, create, "");
    let listed = run(world, list, "");
    assert!(pods.iter().all(|pod| listed.contains(pod.as_str())), "{listed}");
    assert_eq!(run(world, targets, gated).lines().count(), 1, "one target is registered");

    run(world, open, gated);
    eventually("the pod whose gate was opened is Ready", SOON, || match world.cluster.pod(NAMESPACE, gated) {
        Some(pod) if holds(&pod, "Ready") => Ok(()),
        pod => Err(pod.as_ref().map(seen).unwrap_or_default()),
    });

    world.cluster.kubectl(&["delete", "deployment", "--namespace", NAMESPACE, "web"]);
    for name in &pods {
        eventually("its containers are gone, and it is held", SOON, || match world.cluster.pod(NAMESPACE, name) {
            Some(pod) if exit_code(&pod).is_some() && carries_finalizer(&pod) => Ok(()),
            pod => Err(pod.as_ref().map_or("gone".into(), seen)),
        });
    }
    run(world, let_go, deleted);
    eventually("the pod that was let go is gone, the others are not", SOON, || match world.cluster.pods(NAMESPACE, "app=web").len() {
        2 => Ok(()),
        count => Err(format!("{count} pods")),
    });
    assert!(world.cluster.pod(NAMESPACE, more).is_some());
    run(world, let_all_go, "");
    await_none(world, NAMESPACE);
    back(world);
}

/// Three pods whose gates are closed, and no Lockstep.
fn held(world: &World) -> Vec<String> {
    let registry = world.registry();
    registry.behave(NAMESPACE, &json!({ "hold": true }));
    world.cluster.apply(&[world::deployment(NAMESPACE, 3)]);
    let pods = eventually("three pods are registered and wait", SOON, || {
        let pods = living(world, NAMESPACE);
        let wait = pods.iter().all(|pod| holds(pod, "ContainersReady") && !holds(pod, "Ready"));
        let listed = registry.targets(NAMESPACE).len();
        if pods.len() == 3 && listed == 3 && wait { Ok(pods) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    scale(world, "0");
    eventually("Lockstep is gone", Duration::from_secs(60), || {
        let pods = world.replicas();
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
    pods.iter().map(|pod| name(pod).to_owned()).collect()
}

/// Lockstep comes back.
fn back(world: &World) {
    world.upgrade(&world.values());
    scale(world, "2");
    world.cluster.kubectl(&["rollout", "status", "deployment/lockstep", "--namespace", world::NAMESPACE, "--timeout", "90s"]);
    world.registry().behave(NAMESPACE, &json!({}));
}

fn scale(world: &World, replicas: &str) {
    world.cluster.kubectl(&["scale", "deployment/lockstep", "--namespace", world::NAMESPACE, "--replicas", replicas]);
}

fn run(world: &World, command: &str, pod: &str) -> String {
    world.cluster.shell(command, &[("NAMESPACE", NAMESPACE), ("POD", pod)])
}
