//! Any text as the record annotation of a pod that carries a sleep: a second pass changes nothing, whatever it said.
#![no_main]

#[path = "../integration/admission_checks.rs"]
#[allow(dead_code, reason = "the golden cases use the rest")]
mod admission_checks;
mod setting;

use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|record: &str| {
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let sleeping = |name: &str, seconds: u32| json!({"name": name, "lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}});
    let containers = json!([sleeping("web", 45), sleeping("helper", 20), {"name": "late", "livenessProbe": {"periodSeconds": 5}}]);
    let pod = json!({
        "metadata": {"annotations": {"lockstep.dev/injected": record}},
        "spec": {"terminationGracePeriodSeconds": 75, "containers": containers},
    });
    let request = json!({"uid": "u", "operation": "CREATE", "namespace": "shop", "resource": resource, "object": pod});
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string();
    admission_checks::check(body.as_bytes(), setting::snapshot()).expect("an answer keeps the rules");
});
