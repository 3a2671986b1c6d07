//! What admission finds on a workload, as people come to see it: a warning at once, an Event where they look later.
//!
//! Invariant: whatever the number of pods, one owner has one Event for each code.
//! Absent on purpose: when a finding holds (the golden cases).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::cluster::{always, eventually};
use crate::stories::{SOON, await_ready};
use crate::world::{self, World};

/// What is wrong with the workload: its hook is shorter than the sleep, nothing else sleeps, and nothing says when it serves.
const FOUND: [&str; 3] = ["FinalizerWithoutSleep", "NoReadinessProbe", "OwnPreStopShort"];

pub(crate) fn findings_are_told(world: &World) {
    let mut workload = world::deployment("found", 3);
    let spec = &mut workload["spec"]["template"]["spec"]["containers"][0];
    spec["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 1 } } });
    spec["readinessProbe"].take();
    world.cluster.apply(&[workload.clone()]);
    let pods = await_ready(world, "found", 3);
    let owner = owner(&pods[0]);
    let told = |count: usize| {
        let mut reasons: Vec<String> = world.cluster.events("found", &owner).into_iter().map(|(reason, _)| reason).collect();
        reasons.retain(|reason| FOUND.contains(&&**reason));
        reasons.sort();
        if reasons == FOUND { Ok(()) } else { Err(format!("{count} pods, Events: {reasons:?}")) }
    };
    eventually("each finding is told once, of the owner of the pods", SOON, || told(3));
    world.cluster.kubectl(&["scale", "deployment/web", "--namespace", "found", "--replicas", "5"]);
    await_ready(world, "found", 5);
    always("more pods of the same owner say nothing more", Duration::from_secs(3), || told(5));
    let notes = world.cluster.events("found", &owner);
    let short = notes.iter().find(|(reason, _)| reason == "OwnPreStopShort").expect("it was told");
    assert!(short.1.contains("preStop") && short.1.contains("; "), "an Event says what to do: {}", short.1);

    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "alone", "namespace": "found", "labels": { "app": "web" } },
        "spec": workload["spec"]["template"]["spec"] });
    let applied = world.cluster.attempt("kubectl", &["apply", "--dry-run=server", "-f", "-"], &pod.to_string());
    let said = String::from_utf8_lossy(&applied.stderr);
    for code in FOUND {
        assert!(said.contains(&format!("Warning: lockstep: {code}: ")), "kubectl says {said}");
    }
}

/// Name of the ReplicaSet that a pod belongs to.
fn owner(pod: &Pod) -> String {
    let owners = pod.metadata.owner_references.as_ref().expect("a Deployment's pods have an owner");
    owners[0].name.clone()
}
