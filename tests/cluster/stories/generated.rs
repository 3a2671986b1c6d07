//! Pods made up at random, shown to a real API server with Lockstep and without.
//!
//! Invariant: nothing is created: each is a dry run, which goes through admission and validation and ends there.
//! Absent on purpose: pods of other settings, and reviews that no API server sends (the properties, without a cluster).

use lockstep::admission::Finding;
use lockstep::admission::record::Record;
use lockstep::names::RECORD_ANNOTATION;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};

use crate::admission_checks::check_pod;
use crate::admission_pods::pod;
use crate::cluster::eventually;
use crate::stories::SOON;
use crate::world::{self, World};

/// Pods that are made up.
const PODS: usize = 600;
/// So many of them at least must be taken without Lockstep, or nothing would be shown.
const TAKEN: usize = 200;
/// Any; the same pods are made up each time.
const SEED: [u8; 32] = [7; 32];

pub(crate) fn what_is_taken_without_is_taken_with(world: &World) {
    for namespace in [world::UNLABELLED, "generated"] {
        let plain = world::pod(namespace, "plain", json!({}));
        eventually("the namespace takes pods", SOON, || world.cluster.rehearse(namespace, &plain).map(drop));
    }
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &SEED));
    let (mut taken, mut complaints) = (0, Vec::new());
    for number in 0..PODS {
        let made = pod().new_tree(&mut runner).expect("nothing is filtered").current();
        let pod = plausible(made, &format!("made-{number}"));
        let Ok(before) = world.cluster.rehearse(world::UNLABELLED, &pod) else { continue };
        taken += 1;
        if let Err(complaint) = injected(world, &pod, before) {
            complaints.push(format!("{complaint}: {pod}"));
        }
    }
    assert!(complaints.is_empty(), "{} of {taken} pods\n\n{}", complaints.len(), complaints.join("\n\n"));
    assert!(taken >= TAKEN, "only {taken} of {PODS} pods were taken without Lockstep");
}

/// Shows the pod with Lockstep, then what came out of that; `before` is what came out without.
fn injected(world: &World, pod: &Value, before: Value) -> Result<(), String> {
    let after = stripped(world.cluster.rehearse("generated", pod).map_err(|error| format!("refused with our patch: {error}"))?);
    let record = after["metadata"]["annotations"][RECORD_ANNOTATION].as_str().and_then(Record::parse).ok_or("not injected")?;
    let findings: Vec<Finding> = record.findings.iter().filter_map(|code| Finding::of_code(code)).collect();
    check_pod(&stripped(before), &after, &findings)?;
    let again = stripped(world.cluster.rehearse("generated", &after).map_err(|error| format!("refused the second time: {error}"))?);
    if again == after { Ok(()) } else { Err(format!("a second pass made {again} of {after}")) }
}

/// A pod without what the server writes anew each time.
fn stripped(mut pod: Value) -> Value {
    let metadata = pod["metadata"].as_object_mut().expect("a server's pods have it");
    for key in ["namespace", "uid", "creationTimestamp", "managedFields", "resourceVersion"] {
        metadata.remove(key);
    }
    pod
}

/// The same pod with what an API server asks for besides, so that it takes most of them: names, images, actions of probes.
fn plausible(mut pod: Value, name: &str) -> Value {
    let metadata = filled(&mut pod["metadata"]);
    metadata.insert("name".to_owned(), json!(name));
    filled(metadata.entry("labels").or_insert(Value::Null)).insert("app".to_owned(), json!("web"));
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| key == RECORD_ANNOTATION);
    }
    let spec = filled(&mut pod["spec"]);
    // Otherwise each pod gets a volume with a name made up by the server.
    spec.insert("automountServiceAccountToken".to_owned(), json!(false));
    for (list, letter) in [("containers", 'c'), ("initContainers", 'i')] {
        let containers = spec.entry(list).or_insert(Value::Null).as_array_mut().expect("every pod here has both lists");
        if letter == 'c' && containers.is_empty() {
            containers.push(json!({}));
        }
        for (i, container) in containers.iter_mut().enumerate() {
            *container = plausible_container(container.take(), format!("{letter}{i}"), letter == 'i');
        }
    }
    pod
}

fn plausible_container(mut container: Value, name: String, init: bool) -> Value {
    container["name"] = json!(name);
    container["image"] = json!("app");
    if let Some(lifecycle) = container["lifecycle"].as_object_mut() {
        lifecycle.remove("postStart");
    }
    for probe in ["livenessProbe", "startupProbe", "readinessProbe"] {
        if let Some(probe) = container[probe].as_object_mut() {
            probe.insert("tcpSocket".to_owned(), json!({"port": 80}));
        }
    }
    if let Some(readiness) = container["readinessProbe"].as_object_mut() {
        readiness.remove("terminationGracePeriodSeconds");
    }
    if init {
        // Only one that runs beside the others may have hooks and probes.
        container["restartPolicy"] = json!("Always");
    }
    container
}

/// The map there, made where there is none.
fn filled(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was made one")
}
