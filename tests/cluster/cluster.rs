//! The running cluster as a test sees it: apply, look, wait, run.
//!
//! Writes go through kubectl, as an operator's do; reads go through a client, which can look ten times a second.
//!
//! Invariant: every wait has a deadline, and says what it waited for and what it saw last.
//! Absent on purpose: bare sleeps; anything of Lockstep (`world`).

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::ground::{self, Ground};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// A connection to the cluster.
pub(crate) struct Cluster {
    ground: Ground,
    /// Runs what is asynchronous.
    pub runtime: Runtime,
    /// A client of its administrator.
    pub client: Client,
    http: reqwest::Client,
}

impl Cluster {
    /// Connects as its administrator.
    pub(crate) fn connect(ground: Ground) -> Self {
        // Another test of this process may have done it; there is one provider in any case.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let runtime = Runtime::new().expect("threads can be started");
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(ground.state.join("admin.kubeconfig")).expect("`up` wrote it");
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("`up` wrote it well");
            Client::try_from(config).expect("its certificates are in place")
        });
        let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a plain client can be built");
        Self { ground, runtime, client, http }
    }

    /// A path in the cluster's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.ground.state.join(name)
    }

    /// Starts one of the cluster's programs; whoever calls waits for it.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Child {
        Command::new(self.ground.bin.join(program))
            .args(arguments)
            .env("KUBECONFIG", self.path("admin.kubeconfig"))
            .env("HOME", &self.ground.state)
            // Programs of the product call kubectl.
            .env("PATH", self.path_of_programs())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// Runs one of the cluster's programs with `input` on its standard input, whatever its exit code.
    pub(crate) fn attempt(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut child = self.spawn(program, arguments);
        child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
        child.wait_with_output().expect("it is our child")
    }

    /// Runs one of the cluster's programs and answers what it printed; it must go well.
    pub(crate) fn run(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let output = self.attempt(program, arguments, input);
        let (printed, complaint) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {printed}{complaint}");
        printed
    }

    /// Runs kubectl and answers what it printed; it must go well.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.run("kubectl", arguments, "")
    }

    /// Ends a program of the cluster itself, as a crash does.
    pub(crate) fn stop(&self, program: &str) {
        self.handle("stop", program);
    }

    /// Starts a program of the cluster again.
    pub(crate) fn start(&self, program: &str) {
        self.handle("start", program);
    }

    /// Runs a command as a person would type it, with kubectl on the path and Lockstep as its plugin, and answers what it printed; it must go well.
    pub(crate) fn shell(&self, command: &str, variables: &[(&str, &str)]) -> String {
        let path = self.path_of_programs();
        let set: String = variables.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
        self.run("/bin/sh", &["-euc", &format!("PATH='{}'\n{set}{command}", path.to_string_lossy())], "")
    }

    fn path_of_programs(&self) -> std::ffi::OsString {
        let path = [self.ground.bin.clone(), self.path("plugins"), "/usr/bin".into(), "/bin".into()];
        std::env::join_paths(path).expect("no path has a colon")
    }

    /// Applies objects as an operator would.
    pub(crate) fn apply(&self, objects: &[Value]) {
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.run("kubectl", &["apply", "--server-side", "-f", "-"], &list.to_string());
    }

    /// The pods of a namespace that a label selector selects, as they are now, by name.
    pub(crate) fn pods(&self, namespace: &str, selector: &str) -> Vec<Pod> {
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let mut pods = self.block_on(api.list(&ListParams::default().labels(selector))).expect("pods can be listed").items;
        pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        pods
    }

    /// The pod of that name as it is now.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.block_on(Api::<Pod>::namespaced(self.client.clone(), namespace).get_opt(name)).expect("pods can be read")
    }

    /// Addresses and ports that are ready behind a Service.
    pub(crate) fn ready_endpoints(&self, namespace: &str, service: &str) -> BTreeSet<SocketAddr> {
        let api = Api::<EndpointSlice>::namespaced(self.client.clone(), namespace);
        let mine = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        let slices = self.block_on(api.list(&mine)).expect("endpoints can be listed").items;
        let ready = |slice: EndpointSlice| {
            let port = slice.ports.into_iter().flatten().find_map(|port| u16::try_from(port.port?).ok());
            let endpoints = slice.endpoints.into_iter();
            let ready = endpoints.filter(|one| one.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true)));
            ready.flat_map(|one| one.addresses).filter_map(move |address| Some(SocketAddr::new(address.parse().ok()?, port?)))
        };
        slices.into_iter().flat_map(ready).collect()
    }

    /// What the API server would make of a new pod, or why it refuses it; nothing is stored.
    pub(crate) fn rehearse(&self, namespace: &str, pod: &Value) -> Result<Value, String> {
        let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"));
        let request = request.header(http::header::CONTENT_TYPE, "application/json").body(pod.to_string().into_bytes());
        self.block_on(self.client.request(request.expect("its parts are fixed"))).map_err(|error| error.to_string())
    }

    /// What Events of a namespace say of one object: reason and note.
    pub(crate) fn events(&self, namespace: &str, name: &str) -> Vec<(String, String)> {
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let mine = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = self.block_on(api.list(&mine)).expect("events can be listed").items;
        events.into_iter().map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    /// Sends one HTTP request and answers the status and the body; `None` where nobody answers.
    pub(crate) fn http(&self, method: reqwest::Method, url: &str, token: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let mut request = self.http.request(method, url).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.block_on(async {
            let answer = request.send().await.ok()?;
            let status = answer.status().as_u16();
            Some((status, answer.json().await.unwrap_or(Value::Null)))
        })
    }

    /// The lines of the API server's audit log that `user` caused.
    pub(crate) fn audit(&self, user: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path("log/audit.json")).expect("the API server writes it");
        let lines = log.lines().filter(|line| line.contains(user));
        lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|line| line["user"]["username"] == user).collect()
    }

    fn handle(&self, verb: &str, program: &str) {
        ground::run(ground::script("program"), &[self.ground.state.to_str().expect("mktemp prints text"), verb, program]);
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// Looks again and again until there is an answer; panics with what was seen last when the time is over.
pub(crate) fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + within;
    loop {
        match look() {
            Ok(answer) => return answer,
            Err(seen) if Instant::now() >= until => panic!("not within {within:?}: {what}; last seen: {seen}"),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Looks again and again for as long as `during`; panics at the first look that complains.
pub(crate) fn always(what: &str, during: Duration, mut look: impl FnMut() -> Result<(), String>) {
    let until = Instant::now() + during;
    while Instant::now() < until {
        if let Err(seen) = look() {
            panic!("did not hold: {what}; seen: {seen}");
        }
        std::thread::sleep(LOOK);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
