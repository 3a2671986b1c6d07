//! What controllers and kubelets write about pods, written by the bench.
//!
//! Invariant: a pod looks as admission and a kubelet leave it, managed fields and all.
//! Absent on purpose: containers.

use std::net::Ipv4Addr;

use futures_util::stream::{self, StreamExt};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, NODES, SERVICES};

/// Requests of ours that are on their way at a time.
const AT_ONCE: usize = 64;
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// One pod of the bench.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Its name.
    pub name: String,
    /// Tells it from all others; its address follows from it.
    pub number: usize,
}

/// Pods that are numbered from `first`.
pub(crate) fn pods(prefix: &str, first: usize, count: usize) -> Vec<Pod> {
    (first..first + count).map(|number| Pod { name: format!("{prefix}-{number}"), number }).collect()
}

impl Pod {
    /// Its service in the registry.
    pub(crate) fn service(&self) -> String {
        format!("s{}", self.number % SERVICES)
    }

    /// Its address and port.
    pub(crate) fn target(&self) -> String {
        format!("{}:8080", self.address())
    }

    fn address(&self) -> Ipv4Addr {
        let base = u32::from(Ipv4Addr::new(10, 100, 0, 0));
        Ipv4Addr::from(base + u32::try_from(self.number).expect("pods are few"))
    }

    /// As admission leaves it.
    fn prepared(&self) -> Value {
        let record = json!({ "version": 1, "bindings": [self.service()], "sleepSeconds": 30, "graceBefore": 30, "findings": [] });
        let mut pod = self.plain();
        pod["metadata"]["labels"][lockstep::names::MANAGED_LABEL] = lockstep::names::MANAGED_VALUE.into();
        pod["metadata"]["annotations"] = json!({ lockstep::names::RECORD_ANNOTATION: record.to_string() });
        pod["metadata"]["finalizers"] = json!([lockstep::names::FINALIZER]);
        pod["spec"]["readinessGates"] = json!([{ "conditionType": lockstep::names::GATE }]);
        pod["spec"]["terminationGracePeriodSeconds"] = 60.into();
        pod["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 30 } } });
        pod
    }

    /// As its author wrote it: a page of environment, probes, resources.
    fn plain(&self) -> Value {
        let environment: Vec<Value> =
            (0..20).map(|i| json!({ "name": format!("SETTING_{i}"), "value": format!("postgres://db-{i}.shop.svc:5432/rows") })).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": self.name, "namespace": NAMESPACE, "labels": { "app": "web", "service": self.service() } },
            "spec": {
                "nodeName": format!("node-{}", self.number % NODES),
                "containers": [{
                    "name": "web", "image": "registry.example.org/shop/web:1.2.3", "env": environment,
                    "ports": [{ "name": "http", "containerPort": 8080 }],
                    "readinessProbe": { "httpGet": { "path": "/", "port": "http" } },
                    "livenessProbe": { "httpGet": { "path": "/", "port": "http" } },
                    "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                }],
            },
        })
    }

    /// Its status while it runs; `registered`: as it stands once the handshake is over.
    fn running(&self, registered: bool) -> Value {
        let now = jiff::Timestamp::now().to_string();
        let condition = |kind: &str, status: bool, reason: &str, message: &str| {
            let status = if status { "True" } else { "False" };
            json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now })
        };
        let mut conditions = vec![
            condition("PodScheduled", true, "", ""),
            condition("Initialized", true, "", ""),
            condition("ContainersReady", true, "", ""),
            condition("Ready", registered, "", ""),
        ];
        if registered {
            let claim = format!("local/{} {}", self.service(), self.target());
            conditions.push(condition(lockstep::names::CLAIMS, true, "Claimed", &claim));
            conditions.push(condition(lockstep::names::GATE, true, "Registered", "Every registry has acknowledged the pod."));
        }
        self.status("Running", conditions, json!({ "running": { "startedAt": now } }))
    }

    fn ended(&self) -> Value {
        let now = jiff::Timestamp::now().to_string();
        let unready = json!({ "type": "ContainersReady", "status": "False", "reason": "PodFailed", "lastTransitionTime": now });
        let ended = json!({ "terminated": { "exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now } });
        self.status("Failed", vec![unready], ended)
    }

    fn status(&self, phase: &str, conditions: Vec<Value>, state: Value) -> Value {
        let running = phase == "Running";
        let container = json!({
            "name": "web", "image": "registry.example.org/shop/web:1.2.3", "restartCount": 0, "ready": running, "started": running,
            "imageID": "registry.example.org/shop/web@sha256:6f0a1c8b5d", "containerID": "containerd://2c26b46b68ff", "state": state,
        });
        let address = self.address().to_string();
        json!({ "status": {
            "phase": phase, "podIP": address, "podIPs": [{ "ip": address }], "hostIP": "10.0.0.1",
            "conditions": conditions, "containerStatuses": [container],
        } })
    }
}

/// A request that somebody made once.
pub(crate) struct Recorded {
    /// Whether it creates an object; else it changes one.
    pub created: bool,
    /// Path and query.
    pub uri: String,
    /// What is sent.
    pub body: Value,
}

/// Writes to the API server as its administrator.
#[derive(Clone)]
pub(crate) struct Kubelet {
    client: Client,
}

impl Kubelet {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates pods as admission leaves them; answers their UIDs in that order.
    pub(crate) async fn create(&self, pods: &[Pod]) -> Vec<String> {
        self.each(pods, async |pod| self.post(&pod.prepared()).await).await
    }

    /// Creates pods that Lockstep has nothing to do with.
    pub(crate) async fn create_foreign(&self, pods: &[Pod]) {
        self.each(pods, async |pod| self.post(&pod.plain()).await).await;
    }

    /// Says of one pod that its containers are ready.
    pub(crate) async fn ready(&self, pod: &Pod) {
        self.patch_status(pod, &pod.running(false)).await;
    }

    /// Says so of all, as fast as can be.
    pub(crate) async fn ready_all(&self, pods: &[Pod]) {
        self.each(pods, async |pod| self.ready(pod).await).await;
    }

    /// Puts pods where the handshake leaves them.
    pub(crate) async fn registered_all(&self, pods: &[Pod]) {
        self.each(pods, async |pod| self.patch_status(pod, &pod.running(true)).await).await;
    }

    /// Says of pods that their containers have ended.
    pub(crate) async fn ended_all(&self, pods: &[Pod]) {
        self.each(pods, async |pod| self.patch_status(pod, &pod.ended()).await).await;
    }

    /// Deletes pods, with their grace or at once.
    pub(crate) async fn delete_all(&self, pods: &[Pod], at_once: bool) {
        let options = if at_once { json!({ "gracePeriodSeconds": 0 }) } else { json!({}) };
        // It may be gone already: the finalizer was the last thing that held it.
        self.each(pods, async |pod| self.attempt(Method::DELETE, &path(&pod.name), JSON, &options).await.map(drop)).await;
    }

    /// Sends one request as it was recorded: a new Event, or a patch of a pod's status.
    pub(crate) async fn repeat(&self, request: &Recorded) {
        let (method, content) = if request.created { (Method::POST, JSON) } else { (Method::PATCH, STRATEGIC) };
        self.attempt(method, &request.uri, content, &request.body).await.expect("what went well once goes well again");
    }

    async fn each<T>(&self, pods: &[Pod], what: impl AsyncFn(&Pod) -> T) -> Vec<T> {
        stream::iter(pods).map(|pod| what(pod)).buffered(AT_ONCE).collect().await
    }

    async fn post(&self, pod: &Value) -> String {
        let made =
            self.attempt(Method::POST, &format!("/api/v1/namespaces/{NAMESPACE}/pods"), JSON, pod).await.expect("a pod can be created");
        made["metadata"]["uid"].as_str().expect("every pod has a UID").to_owned()
    }

    async fn patch_status(&self, pod: &Pod, status: &Value) {
        let path = format!("{}/status", path(&pod.name));
        self.attempt(Method::PATCH, &path, STRATEGIC, status).await.expect("a status can be written");
    }

    async fn attempt(&self, method: Method, uri: &str, content: &str, body: &Value) -> Result<Value, kube::Error> {
        let request = Request::builder().method(method).uri(uri).header("content-type", content).body(body.to_string().into_bytes());
        self.client.request(request.expect("it is well formed")).await
    }
}

fn path(pod: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}")
}
