//! From review bytes to answer bytes, without any I/O.
//!
//! The budget: an 8 KiB pod within 25 µs on one core, and linear in the body up to 1 MiB.
//!
//! Invariant: every measured review is injected; a bench of a refusal would be fast and worth nothing.
//! Absent on purpose: TLS and HTTP (measured against a bare server elsewhere).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lockstep::admission::{Delays, Reason, SleepForm, Snapshot, answer};
use lockstep::config;
use serde_json::{Value, json};

/// Bodies that are measured.
const SIZES: [usize; 4] = [8 << 10, 64 << 10, 256 << 10, 1 << 20];

fn snapshot() -> Snapshot {
    let text = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: bench\n\
        registries: [{name: lan, haproxy: {addresses: [\"127.0.0.1:9999\"]}}]\n\
        bindings: [{name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: 80, drain: {fixed: 30s}}]\n";
    let configuration = config::parse(text).expect("it is valid");
    let delays = Delays::resolve(&configuration, |_| None);
    Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from("lockstep-system"), delays, sleep: SleepForm::Native }
}

/// A container as controllers write it: probes, resources, mounts and a page of environment.
fn container(index: usize) -> Value {
    let environment: Vec<Value> =
        (0..20).map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("postgres://db-{i}.shop.svc:5432/rows")})).collect();
    json!({
        "name": format!("c{index}"), "image": "registry.example.io/shop/web:1.2.3", "imagePullPolicy": "IfNotPresent", "env": environment,
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}, "periodSeconds": 10},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    })
}

/// A review of at least that many bytes, made of more and more containers.
fn review(bytes: usize) -> Vec<u8> {
    let of = |containers: Vec<Value>| {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {}}});
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": "web-6f5d8c7b9-", "labels": {"app": "web", "pod-template-hash": "6f5d8c7b9"},
                "annotations": {"checksum/config": "0123456789abcdef"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6f5d8c7b9", "uid": "u", "controller": true}],
                "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}]},
            "spec": {"containers": containers, "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "serviceAccountName": "default", "securityContext": {}, "schedulerName": "default-scheduler",
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
            "status": {},
        });
        let pods = json!({"group": "", "version": "v1", "resource": "pods"});
        let request = json!({"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": pods, "requestResource": pods, "namespace": "shop", "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:authenticated"]},
            "object": object, "oldObject": null, "dryRun": false, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}});
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).to_string().into_bytes()
    };
    let one = container(0).to_string().len();
    (1..).map(|count| of((0..count).map(container).collect())).find(|body| body.len() + one > bytes).expect("it grows")
}

/// A review with one value that is that large.
fn blob(bytes: usize) -> Vec<u8> {
    let mut review: Value = serde_json::from_slice(&review(4 << 10)).expect("it is JSON");
    review["request"]["object"]["spec"]["containers"][0]["env"][0]["value"] = json!("x".repeat(bytes));
    review.to_string().into_bytes()
}

fn measure(criterion: &mut Criterion) {
    let snapshot = snapshot();
    for (name, make) in [("containers", review as fn(usize) -> Vec<u8>), ("blob", blob)] {
        let mut group = criterion.benchmark_group(format!("admission/{name}"));
        group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
        for size in SIZES {
            let body = make(size);
            assert_eq!(answer(&body, &snapshot).map(|answered| answered.reason), Ok(Reason::Injected));
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::from_parameter(body.len()), &body, |bencher, body| {
                bencher.iter(|| answer(black_box(body), &snapshot));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, measure);
criterion_main!(benches);
