//! What every measurement finds: a control plane, the chart's objects, a registry, and replicas of the program as plain processes.
//!
//! Invariant: the program runs with the rights that the chart gives it, so the audit log knows its writes by their account.
//! Absent on purpose: containers around it; they would hide its memory.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::audit::Audit;
use crate::cluster::{Cluster, eventually};
use crate::kubelet::Kubelet;

/// Namespace of the pods.
pub(crate) const NAMESPACE: &str = "bench";
/// Services that the pods are spread over.
pub(crate) const SERVICES: usize = 10;
/// Nodes that the pods are spread over.
pub(crate) const NODES: usize = 50;
/// The account that Lockstep writes with.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:lockstep-system:lockstep";

/// Namespace of Lockstep.
const OWN: &str = "lockstep-system";
/// Nothing here takes longer on a machine that works.
const PATIENCE: Duration = Duration::from_secs(120);

/// A control plane with everything but Lockstep itself running.
pub(crate) struct Stage {
    /// The control plane.
    pub cluster: Cluster,
    /// Who writes in the place of kubelets.
    pub kubelet: Kubelet,
    /// Where the registry answers.
    pub registry: String,
    _registry: Process,
}

/// A program that ends with us.
struct Process(Child);

/// One replica of the program.
pub(crate) struct Replica {
    process: Process,
    identity: String,
}

impl Stage {
    /// Sets the stage.
    pub(crate) fn set(cluster: Cluster) -> Self {
        let port = free_port();
        let registry = format!("http://127.0.0.1:{port}");
        let spaces = [NAMESPACE, OWN].map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        cluster.apply(&spaces);
        let arguments = ["get", "serviceaccount", "default", "--namespace", NAMESPACE];
        eventually("pods can be created", PATIENCE, || success(&cluster.attempt("kubectl", &arguments, "")));
        // They would take the pods and nodes of the bench away, since no kubelet speaks for them.
        cluster.stop("kube-controller-manager");
        cluster.stop("kube-scheduler");
        cluster.apply(&nodes());
        install(&cluster, &registry);
        let store = cluster.path("bench.redb");
        let _registry = Process::start(
            Command::new(env!("CARGO_BIN_EXE_lockstep")).args(["registry", "--listen", &format!("127.0.0.1:{port}"), "--store"]).arg(store),
        );
        eventually("the registry answers", PATIENCE, || {
            cluster.http(reqwest::Method::GET, &format!("{registry}/readyz"), "", None).map(drop).ok_or_else(|| "no answer".into())
        });
        let kubelet = Kubelet::new(cluster.client.clone());
        Self { cluster, kubelet, registry, _registry }
    }

    /// Starts a replica.
    pub(crate) fn serve(&self, identity: &str) -> Replica {
        let listen = format!("127.0.0.1:{}", free_port());
        let probes = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(["serve", "--identity", identity, "--namespace", OWN, "--listen", &listen, "--probes-listen", &probes]);
        command.env("KUBECONFIG", self.cluster.path("lockstep.kubeconfig"));
        let replica = Replica { process: Process::start(&mut command), identity: identity.to_owned() };
        eventually("the replica is ready", PATIENCE, || {
            let answer = self.cluster.http(reqwest::Method::GET, &format!("http://{probes}/readyz"), "", None);
            if answer.as_ref().is_some_and(|(status, _)| *status == 200) { Ok(()) } else { Err(format!("{answer:?}")) }
        });
        replica
    }

    /// Starts a replica and waits until it leads.
    pub(crate) fn lead(&self, identity: &str) -> Replica {
        let replica = self.serve(identity);
        eventually("the replica leads", PATIENCE, || {
            let holder = self.cluster.kubectl(&["get", "lease", "lockstep", "--namespace", OWN, "-o", "jsonpath={.spec.holderIdentity}"]);
            if holder == replica.identity { Ok(()) } else { Err(holder) }
        });
        replica
    }

    /// The audit log from now on.
    pub(crate) fn audit(&self) -> Audit {
        Audit::from_now(self.cluster.path("log/audit.json"))
    }
}

impl Replica {
    /// The most memory that it ever had at once, in MiB.
    pub(crate) fn peak(&self) -> f64 {
        self.memory("VmHWM:")
    }

    /// Its memory now, in MiB.
    pub(crate) fn resident(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// Asks it to stop, as a kubelet does.
    pub(crate) fn terminate(&self) {
        let asked = Command::new("kill").args(["-TERM", &self.process.0.id().to_string()]).status();
        assert!(asked.is_ok_and(|status| status.success()), "it runs");
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(self) {
        drop(self.process);
    }

    fn memory(&self, line: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).expect("it runs");
        let value = status.lines().find_map(|one| one.strip_prefix(line)).expect("the kernel says it");
        let kib: f64 = value.trim().trim_end_matches(" kB").parse().expect("it is a number");
        kib / 1024.0
    }
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let child = command.env("LOCKSTEP_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(child.expect("the program was built"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn install(cluster: &Cluster, registry: &str) {
    let binding = |number: usize| {
        let name = format!("s{number}");
        json!({
            "name": name, "namespaces": [NAMESPACE], "podSelector": { "matchLabels": { "service": name } },
            "registry": "local", "service": name, "port": "http", "drain": { "fixed": "15s" },
        })
    };
    let values = json!({ "config": {
        "cluster": "bench",
        "registries": [{ "name": "local", "http": { "url": registry } }],
        "bindings": (0..SERVICES).map(binding).collect::<Vec<_>>(),
    } });
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lockstep");
    cluster.run("helm", &["install", "lockstep", chart, "--namespace", OWN, "--values", "-"], &values.to_string());
    let token = cluster.kubectl(&["create", "token", "lockstep", "--namespace", OWN, "--duration", "6h"]);
    let authority = cluster.path("ca.crt");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": { "server": "https://127.0.0.1:443", "certificate-authority": authority } }],
        "users": [{ "name": "lockstep", "user": { "token": token.trim() } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "lockstep" } }],
    });
    fs::write(cluster.path("lockstep.kubeconfig"), kubeconfig.to_string()).expect("the folder is ours");
}

fn nodes() -> Vec<Value> {
    let ready = json!([{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "" }]);
    let node = |number| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("node-{number}") },
            "status": { "conditions": ready, "nodeInfo": node_info() },
        })
    };
    (0..NODES).map(node).collect()
}

fn node_info() -> Value {
    let names = ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion"];
    let mut info: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!(""))).collect();
    info.extend(
        [("kubeletVersion", "v1.36.3"), ("operatingSystem", "linux"), ("architecture", "amd64")]
            .map(|(key, value)| (key.to_owned(), json!(value))),
    );
    Value::Object(info)
}

/// The kernel chooses one; nothing else starts servers in this network namespace.
fn free_port() -> u16 {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    free.expect("a port is free").port()
}

fn success(output: &std::process::Output) -> Result<(), String> {
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
