//! What the webhook changes on a pod, seen through a real API server over real TLS.
//!
//! Invariant: every change that admission makes is looked at on the stored object.
//! Absent on purpose: the many shapes of pods (the golden cases).

use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::stories::SOON;
use crate::world::{self, GRACE, SLEEP, World};

pub(crate) fn a_pod_is_prepared(world: &World) {
    let cluster = &world.cluster;
    cluster.apply(&[world::pod("prepared", "plain", json!({}))]);
    let pod = stored(world, "prepared", "plain");

    assert_eq!(pod["spec"]["readinessGates"], json!([{ "conditionType": "lockstep.dev/registered" }]));
    assert_eq!(pod["metadata"]["finalizers"], json!(["lockstep.dev/deregistered"]));
    assert_eq!(own_labels(&pod), json!({ "app": "web", "lockstep.dev/managed": "true" }));
    let record = pod["metadata"]["annotations"]["lockstep.dev/injected"].as_str().expect("the record is text");
    let record: Value = serde_json::from_str(record).expect("the record is JSON");
    assert_eq!(record["version"], 1);
    assert_eq!(record["bindings"], json!(["prepared"]));
    assert_eq!(record["sleepSeconds"], SLEEP);
    assert_eq!(record["graceBefore"], GRACE);
    assert_eq!(pod["spec"]["containers"][0]["lifecycle"], json!({ "preStop": { "sleep": { "seconds": SLEEP } } }));
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], GRACE + SLEEP);

    cluster.kubectl(&["delete", "pod", "--namespace", "prepared", "plain", "--wait=false"]);
    eventually("the pod is gone", SOON, || match cluster.pod("prepared", "plain") {
        None => Ok(()),
        Some(pod) => Err(crate::stories::seen(&pod)),
    });
}

pub(crate) fn no_label_no_change(world: &World) {
    let opted_out = json!({ "lockstep.dev/inject": "disabled" });
    let pods = [(world::UNLABELLED, "plain", json!({})), ("prepared", "opted-out", opted_out)];
    for (namespace, name, labels) in pods {
        let manifest = world::pod(namespace, name, labels);
        world.cluster.apply(std::slice::from_ref(&manifest));
        let pod = stored(world, namespace, name);

        assert_eq!(pod["spec"]["readinessGates"], Value::Null);
        assert_eq!(pod["metadata"]["finalizers"], Value::Null);
        assert_eq!(pod["metadata"]["annotations"], Value::Null);
        assert_eq!(own_labels(&pod), manifest["metadata"]["labels"]);
        assert_eq!(pod["spec"]["containers"][0]["lifecycle"], Value::Null);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], GRACE);
        world.cluster.kubectl(&["delete", "pod", "--namespace", namespace, name, "--wait=false"]);
    }
}

/// Its labels without those that the API server copies from the node.
fn own_labels(pod: &Value) -> Value {
    let mut labels = pod["metadata"]["labels"].clone();
    labels.as_object_mut().expect("it has labels").retain(|key, _| !key.starts_with("topology.kubernetes.io/"));
    labels
}

fn stored(world: &World, namespace: &str, name: &str) -> Value {
    let json = world.cluster.kubectl(&["get", "pod", "--namespace", namespace, name, "-o", "json"]);
    serde_json::from_str(&json).expect("kubectl prints JSON")
}
