//! Traces of a pod, as whoever runs a collector of OpenTelemetry finds them.
//!
//! Invariant: what a story looks for is found by the pod's UID alone, as the page promises.
//! Absent on purpose: spans one by one, and a collector that is away (the integration tests).

use std::collections::BTreeMap;

use crate::cluster::eventually;
use crate::collector::{Span, hex, texts};
use crate::stories::{SOON, await_active, await_clean, delete_workload, name, uid};
use crate::world::{self, NAMESPACE, World};

const TRACED: &str = "traced";

pub(crate) fn of_a_pod(world: &World) {
    world.cluster.apply(&[world::deployment(TRACED, 1)]);
    let pods = await_active(world, TRACED, 1);
    let pod = &pods[0];
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).expect("a Ready pod has an address");
    let target = format!("{address}:8080");

    let way_in = await_trace(world, pod, "registration");
    assert_eq!(hex(&way_in[0].trace_id), uid(pod).replace('-', ""), "who has the pod has its trace");
    changed(&way_in, "register", &target);
    assert!(named(&way_in, "Registering").is_some(), "the states that it was in are told: {way_in:?}");

    delete_workload(world, TRACED, "deployment");
    await_clean(world, TRACED);
    let way_out = await_trace(world, pod, "deregistration");
    assert_ne!(way_out[0].trace_id, way_in[0].trace_id, "days may lie between them");
    changed(&way_out, "deregister", &target);

    let tellers = world.collector.resources();
    let replicas: Vec<String> = world.replicas().iter().map(|replica| name(replica).to_owned()).collect();
    let known =
        |teller: &BTreeMap<String, String>| replicas.contains(&teller["service.instance.id"]) && teller["service.name"] == "lockstep";
    assert!(tellers.iter().any(known), "a replica of namespace {NAMESPACE} signs: {tellers:?}, not one of {replicas:?}");
}

/// Waits until a whole handshake of the pod was told, and answers its trace: the root first.
fn await_trace(world: &World, pod: &k8s_openapi::api::core::v1::Pod, root: &str) -> Vec<Span> {
    eventually(&format!("the collector has the {root} of {}", name(pod)), SOON, || {
        let told = world.collector.told();
        let of_pod: Vec<&Span> = told.iter().filter(|span| texts(&span.attributes)["k8s.pod.uid"] == uid(pod)).collect();
        let Some(whole) = of_pod.iter().find(|span| span.name == root && span.parent_span_id.is_empty()) else {
            return Err(format!("{:?}", of_pod.iter().map(|span| &span.name).collect::<Vec<_>>()));
        };
        let below = of_pod.iter().filter(|span| span.trace_id == whole.trace_id && span.parent_span_id == whole.span_id);
        Ok([*whole].into_iter().chain(below.copied()).cloned().collect())
    })
}

fn named<'t>(trace: &'t [Span], name: &str) -> Option<&'t Span> {
    trace.iter().find(|span| span.name == name)
}

/// Asserts that the registry's answer to that change of the target is told.
fn changed(trace: &[Span], operation: &str, target: &str) {
    let span = named(trace, operation).unwrap_or_else(|| panic!("no {operation} in {trace:?}"));
    let told = texts(&span.attributes);
    let expected =
        [("lockstep.registry", "local"), ("lockstep.service", TRACED), ("lockstep.target", target), ("k8s.namespace.name", TRACED)];
    for (key, value) in expected {
        assert_eq!(told[key], value, "{span:?}");
    }
    assert!(
        span.start_time_unix_nano >= trace[0].start_time_unix_nano && span.end_time_unix_nano <= trace[0].end_time_unix_nano,
        "{trace:?}"
    );
}
