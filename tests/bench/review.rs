//! Reviews of pods as controllers write them, in any size, and the snapshot that they are answered from.
//!
//! Invariant: a review that is asked to be 8 KiB long is about that long: no container more fits in.
//! Absent on purpose: what is measured with them.

use std::sync::Arc;

use lockstep::admission::{Delays, SleepForm, Snapshot};
use lockstep::config;
use serde_json::{Value, json};

/// A configuration with one binding, which selects the pods here.
pub(crate) fn snapshot() -> Snapshot {
    let text = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: bench\n\
        registries: [{name: lan, haproxy: {addresses: [\"127.0.0.1:9999\"]}}]\n\
        bindings: [{name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: 80, drain: {fixed: 30s}}]\n";
    let configuration = config::parse(text).expect("it is valid");
    let delays = Delays::resolve(&configuration, |_| None);
    Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from("lockstep-system"), delays, sleep: SleepForm::Native }
}

/// A review of at least that many bytes, made of more and more containers.
pub(crate) fn review(bytes: usize) -> Vec<u8> {
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
