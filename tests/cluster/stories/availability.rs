//! Replicas of Lockstep that come and go in good order, while pods are created without a pause.
//!
//! Invariant: every one of those pods is prepared, and no request of the API server to the webhook fails.
//! Absent on purpose: replicas that die without a word (`loss`).

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use lockstep::names::GATE;
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::{SOON, beside, evict, name, uid};
use crate::world::{self, NAMESPACE, World};

/// Namespace in which pods are created; strict, so that the API server says what went wrong.
pub(crate) const CREATED: &str = "created";
/// Secret with the CA of the certificate that the API server shows to webhooks.
const CALLERS: &str = "lockstep-callers";

pub(crate) fn replaced_while_pods_are_created(world: &World) {
    let plain = world.values();
    let mut guarded = world.values();
    guarded["certificates"] = json!({ "clientCA": { "secret": CALLERS, "names": ["kube-apiserver"] } });
    let ca = fs::read(world.cluster.path("callers-ca.crt")).expect("the API server's folder has it");
    world.cluster.apply(&[json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": CALLERS, "namespace": NAMESPACE }, "data": { "ca.crt": STANDARD.encode(ca) },
    })]);

    assert!(shakes_hands(world), "anybody may ask by default");
    while_pods_are_created(world, || upgrade(world, &guarded));
    assert!(!shakes_hands(world), "only an API server may ask now");
    while_pods_are_created(world, || evict_each(world));
    while_pods_are_created(world, || upgrade(world, &plain));
    assert!(shakes_hands(world), "anybody may ask again");
    world.cluster.kubectl(&["delete", "secret", "--namespace", NAMESPACE, CALLERS]);
}

/// A rolling update of Lockstep.
pub(crate) fn upgrade(world: &World, values: &Value) {
    let before = world.replicas();
    world.upgrade(values);
    await_others(world, &before);
}

/// What a drain of its nodes does to Lockstep: one replica after the other is evicted, as its disruption budget allows.
fn evict_each(world: &World) {
    let before = world.replicas();
    for replica in &before {
        eventually("the disruption budget lets the replica go", SOON, || evict(world, NAMESPACE, name(replica)));
    }
    await_others(world, &before);
}

fn await_others(world: &World, before: &[Pod]) {
    eventually("only other replicas are left, and all are ready", SOON, || {
        let now = world.replicas();
        let ready = world.cluster.ready_endpoints(NAMESPACE, "lockstep").len();
        let old = now.iter().filter(|pod| before.iter().any(|old| uid(old) == uid(pod))).count();
        if old == 0 && now.len() == before.len() && ready == before.len() {
            return Ok(());
        }
        Err(format!("{old} of {} are old, {ready} are ready", now.len()))
    });
}

/// Creates one pod after the other, as rehearsals that are not stored, while something happens.
pub(crate) fn while_pods_are_created(world: &World, happens: impl FnOnce()) {
    let pod = world::pod(CREATED, "one", json!({}));
    let create = |over: &AtomicBool| {
        let mut created = 0;
        while !over.load(Ordering::Relaxed) {
            created += 1;
            let stored = world.cluster.rehearse(CREATED, &pod).map_err(|error| format!("pod {created}: {error}"))?;
            let gates = stored["spec"]["readinessGates"].as_array().map_or(&[][..], Vec::as_slice);
            if !gates.iter().any(|gate| gate["conditionType"] == GATE) {
                return Err(format!("pod {created} was not prepared: {stored}"));
            }
        }
        Ok(created)
    };
    let created: u32 = beside(create, happens).unwrap_or_else(|error| panic!("{error}"));
    assert!(created > 20, "only {created} pods were created: that proves nothing");
}

/// Whether a client without a certificate gets through the TLS handshake of a replica.
fn shakes_hands(world: &World) -> bool {
    let address = world.cluster.ready_endpoints(NAMESPACE, "lockstep").into_iter().next().expect("a replica is ready").to_string();
    // In TLS 1.2 the client hears at once whether its certificate was missed.
    world.cluster.attempt("/usr/bin/openssl", &["s_client", "-tls1_2", "-connect", &address], "").status.success()
}
