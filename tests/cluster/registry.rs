//! The registries of the tests: the one that the chart runs as a pod, and one that a test may end and start again.
//!
//! Invariant: a registry that a test started ends with the test process.
//! Absent on purpose: the product's own client; what the registry says is read as plain JSON.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually};
use crate::world;

/// Where the control plane's namespace and every pod reach the registries that tests start.
pub(crate) const ADDRESS: &str = "10.77.0.1";

/// A registry of the http contract, as its operator sees it.
pub(crate) struct Registry<'c> {
    cluster: &'c Cluster,
    url: String,
    token: String,
}

/// One endpoint that a registry lists.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Target {
    /// Address and port.
    pub address: String,
    /// UID of the pod.
    pub uid: String,
    /// What the registry says of it.
    pub state: String,
}

impl<'c> Registry<'c> {
    /// The one that the chart runs.
    pub(crate) fn of_chart(cluster: &'c Cluster) -> Self {
        let pod = cluster.pod(world::NAMESPACE, "lockstep-registry-0").expect("the chart runs it");
        let address = pod.status.and_then(|status| status.pod_ip).expect("it runs");
        let template = "jsonpath={.data.token}";
        let token = cluster.kubectl(&["get", "secret", "--namespace", world::NAMESPACE, "lockstep-registry-token", "-o", template]);
        let token = String::from_utf8(STANDARD.decode(token).expect("Secrets are base64")).expect("the chart made it of letters");
        Self { cluster, url: format!("http://{address}:8080"), token }
    }

    /// What it lists of a service.
    pub(crate) fn targets(&self, service: &str) -> Vec<Target> {
        let (status, body) = self.ask(Method::GET, &format!("services/{service}/targets"), None).expect("the registry answers");
        assert!(status == 200 || status == 404, "{status} {body}");
        serde_json::from_value(body["targets"].clone()).unwrap_or_default()
    }

    /// UIDs of the targets of a service in that state.
    pub(crate) fn uids(&self, service: &str, state: &str) -> Vec<String> {
        self.targets(service).into_iter().filter(|target| target.state == state).map(|target| target.uid).collect()
    }

    /// Says how acknowledgements of a service go, as `{"hold": true}`; `{}` is the normal way.
    pub(crate) fn behave(&self, service: &str, behaviour: &Value) {
        let answer = self.ask(Method::PUT, &format!("services/{service}/behaviour"), Some(behaviour)).expect("the registry answers");
        assert_eq!(answer.0, 200, "{}", answer.1);
    }

    /// Puts a target in that no pod has, as one is left behind by an uninstall.
    pub(crate) fn plant(&self, service: &str, address: &str, uid: &str) {
        let target = json!({ "state": "active", "cluster": "test" });
        let answer = self.ask(Method::PUT, &format!("services/{service}/targets/{address}/{uid}"), Some(&target)).expect("it answers");
        assert!(answer.0 < 300, "{answer:?}");
    }

    /// Takes it out again, as its operator does; the audits may have been quicker.
    pub(crate) fn pluck(&self, service: &str, address: &str, uid: &str) {
        let answer = self.ask(Method::DELETE, &format!("services/{service}/targets/{address}/{uid}"), None).expect("it answers");
        assert!(answer.0 < 300 || answer.0 == 404, "{answer:?}");
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        self.cluster.http(method, &format!("{}/v1/{path}", self.url), &self.token, body)
    }
}

/// A registry beside the cluster, as one in somebody's own network; it can go down and come back with its store.
pub(crate) struct Beside {
    port: u16,
    process: Mutex<Option<Child>>,
}

impl Beside {
    /// Chooses its port; it does not run yet.
    pub(crate) fn new() -> Self {
        // Port 0 asks the kernel for a free one; nothing else starts servers in this network namespace.
        let free = TcpListener::bind((ADDRESS, 0)).and_then(|listener| listener.local_addr()).expect("the address is there");
        Self { port: free.port(), process: Mutex::new(None) }
    }

    /// Its entry in the configuration.
    pub(crate) fn entry(&self) -> Value {
        json!({ "name": "beside", "http": { "url": format!("http://{ADDRESS}:{}", self.port) } })
    }

    /// Starts it and waits until it answers.
    pub(crate) fn start(&self, cluster: &Cluster) {
        let process = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["registry", "--listen", &format!("{ADDRESS}:{}", self.port), "--store"])
            .arg(cluster.path("beside.redb"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program was built");
        *self.process.lock().expect("no test panics while it holds this") = Some(process);
        let url = format!("http://{ADDRESS}:{}/readyz", self.port);
        eventually("the registry beside the cluster answers", Duration::from_secs(10), || {
            cluster.http(Method::GET, &url, "", None).map(drop).ok_or_else(|| "no answer".into())
        });
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn stop(&self) {
        let process = self.process.lock().expect("no test panics while it holds this").take();
        let mut process = process.expect("it runs");
        process.kill().expect("it is our child");
        process.wait().expect("it is our child");
    }

    /// It as its operator sees it.
    pub(crate) fn view<'c>(&self, cluster: &'c Cluster) -> Registry<'c> {
        Registry { cluster, url: format!("http://{ADDRESS}:{}", self.port), token: String::new() }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self.process.lock().is_ok_and(|process| process.is_some()) {
            self.stop();
        }
    }
}
