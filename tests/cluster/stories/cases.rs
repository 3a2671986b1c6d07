//! The golden cases of admission, asked of the running program over TLS.
//!
//! The program is a process of its own, with a ConfigMap that is rewritten for each configuration of the cases and is read again while
//! it runs. There is no Lease in its namespace, so it never leads, and leaves the pods of the cluster to the program of the chart.
//!
//! Invariant: a case is asked only once its own configuration is in force, which a mark in that configuration shows.
//! Absent on purpose: the rules that hold of every answer (held where the same answers are made without a cluster).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockstep::names::OWN_NAMESPACE;
use serde_json::{Value, json};

use crate::admission_case::{DATA, Placed, Run, cases};
use crate::cluster::eventually;
use crate::stories::SOON;
use crate::world::World;

/// Its own namespace, and the name of all that it has in it; in the cases it stands for the default one.
const OWN: &str = "cases";

pub(crate) fn every_case_over_tls(world: &World) {
    let program = Program::start(world);
    let mut by_configuration: BTreeMap<PathBuf, Vec<Placed>> = BTreeMap::new();
    let mut broken = Vec::new();
    let (mut asked, mut left_out) = (0, 0);
    for placed in cases() {
        match placed.case.run {
            Run::Config => broken.push(placed),
            Run::Review if placed.case.kubernetes_version.is_none() && placed.case.drain_delay.is_empty() => {
                by_configuration.entry(placed.config()).or_default().push(placed);
            }
            Run::Review => {
                eprintln!("left out: {} needs a cluster of another version, or a registry that has answered", placed.name());
                left_out += 1;
            }
            Run::Print | Run::Patch | Run::Explain | Run::Refused => {}
        }
    }
    let mut complaints = Vec::new();
    for (number, (configuration, cases)) in by_configuration.into_iter().enumerate() {
        program.configure(world, &fs::read_to_string(&configuration).expect("a case has one"), number);
        asked += cases.len();
        complaints.extend(cases.iter().filter_map(|placed| program.complaint(placed)));
    }
    asked += broken.len();
    complaints.extend(broken.iter().filter_map(|placed| program.complaint_of_configuration(placed)));
    assert!(complaints.is_empty(), "{} of {asked} cases failed\n\n{}", complaints.len(), complaints.join("\n\n"));
    assert!(asked > 130 && left_out <= 12, "{asked} cases were asked, {left_out} were not");
}

/// The running program.
struct Program {
    process: Child,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    url: String,
}

impl Program {
    /// Starts it and waits until it has a certificate.
    fn start(world: &World) -> Self {
        let empty = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": OWN, "namespace": OWN } });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OWN } });
        let standard = fs::read_to_string(Path::new(DATA).join("standard.yaml")).expect("it is part of the cases");
        world.cluster.apply(&[namespace, empty, config_map(&standard)]);
        let (listen, probes) = (free_address(), free_address());
        let log = File::create(world.cluster.path("log/cases.txt")).expect("the folder is ours");
        let process = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["serve", "--listen", &listen, "--probes-listen", &probes, "--namespace", OWN, "--identity", OWN, "--config-map", OWN])
            .args(["--certificate-secret", OWN, "--certificate-names", "localhost", "--webhook-configuration", OWN])
            .env("KUBECONFIG", world.cluster.path("admin.kubeconfig"))
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program was built");
        let ca = eventually("the program has made its certificate", SOON, || {
            let secret = world.cluster.kubectl(&["get", "secret", OWN, "--namespace", OWN, "-o", "json"]);
            let secret: Value = serde_json::from_str(&secret).expect("kubectl prints JSON");
            secret["data"]["ca.crt"].as_str().filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(|| "no ca.crt".into())
        });
        let ca = reqwest::Certificate::from_pem(&STANDARD.decode(ca).expect("Secrets are base64")).expect("it is a certificate");
        let client = reqwest::Client::builder().tls_certs_only([ca]).timeout(SOON).build().expect("the certificate is fine");
        let url = format!("https://{}", listen.replace("127.0.0.1", "localhost"));
        Self { process, client, runtime: tokio::runtime::Runtime::new().expect("threads can be started"), url }
    }

    /// Puts a configuration in force, with a mark of its own.
    fn configure(&self, world: &World, text: &str, number: usize) {
        let mark = format!("mark-{number}");
        let mut configuration: Value = serde_saphyr::from_str(&renamed(text)).expect("a case's configuration is YAML");
        append(&mut configuration, "registries", json!({ "name": mark, "http": { "url": "http://registry.example" } }));
        append(
            &mut configuration,
            "bindings",
            json!({ "name": mark, "namespaces": [mark], "registry": mark, "service": "mark", "port": 80, "drain": { "fixed": "1s" } }),
        );
        world.cluster.apply(&[config_map(&configuration.to_string())]);
        eventually(&format!("this configuration is in force: {text}"), SOON, || match self.mutate(review_of_mark(&mark)) {
            Some((200, answer)) if !patch(&answer["response"]).is_null() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// What is wrong with the answer to a case.
    fn complaint(&self, placed: &Placed) -> Option<String> {
        let body = renamed_bytes(placed.body().expect("a case's input can be read"));
        let golden = fs::read_to_string(placed.golden()).expect("a case has an answer");
        let golden: Value = serde_saphyr::from_str(&golden).expect("answers are YAML");
        let (wanted, found) = match (golden["refused"].as_u64(), self.mutate(body)) {
            // Whoever is told that a body is too large while it is still being sent may not hear it.
            (Some(413), None) => return None,
            (Some(status), Some((found, _))) => (json!(status), json!(found)),
            (None, Some((200, answer))) => {
                let response = &answer["response"];
                let warnings = response.get("warnings").cloned().unwrap_or_else(|| json!([]));
                let found = json!({ "allowed": response["allowed"], "patch": patch(response), "warnings": warnings });
                let wanted = golden["patch"].as_array().filter(|patch| !patch.is_empty()).map_or(Value::Null, |patch| json!(patch));
                (json!({ "allowed": true, "patch": wanted, "warnings": golden["warnings"] }), found)
            }
            (_, other) => (golden.clone(), json!(format!("{other:?}"))),
        };
        (wanted != found).then(|| format!("{} ({}):\n{wanted}\nbelongs where is\n{found}", placed.name(), placed.case.why))
    }

    /// What is wrong with the answer to the ConfigMap of a case whose configuration is not valid.
    fn complaint_of_configuration(&self, placed: &Placed) -> Option<String> {
        let text = fs::read_to_string(placed.config()).expect("a case has one");
        let resource = json!({ "group": "", "version": "v1", "resource": "configmaps" });
        let request = json!({ "uid": "u", "operation": "UPDATE", "namespace": OWN, "name": OWN, "resource": resource,
            "object": config_map(&text) });
        let wanted = fs::read_to_string(placed.golden()).expect("a case has an answer");
        let (_, answer) = self.post("/validate", review(request)).expect("the program answers");
        let response = &answer["response"];
        let told = response["status"]["message"].as_str().unwrap_or_default();
        let same = told.trim_start_matches("config.yaml:").trim() == wanted.trim();
        (response["allowed"] != json!(false) || !same).then(|| format!("{}:\n{wanted}\nbelongs where is\n{told}", placed.name()))
    }

    fn mutate(&self, body: Vec<u8>) -> Option<(u16, Value)> {
        self.post("/mutate", body)
    }

    /// Posts a body and answers status and answer; `None` where the connection was closed.
    fn post(&self, path: &str, body: Vec<u8>) -> Option<(u16, Value)> {
        let request = self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json").body(body);
        self.runtime.block_on(async {
            let answer = request.send().await.ok()?;
            let status = answer.status().as_u16();
            Some((status, answer.json().await.unwrap_or(Value::Null)))
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The operations of an answer; null without a patch.
fn patch(response: &Value) -> Value {
    let Some(text) = response["patch"].as_str() else { return Value::Null };
    let bytes = STANDARD.decode(text).expect("a patch is base64");
    serde_json::from_slice(&bytes).expect("a patch is JSON")
}

fn config_map(text: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": OWN, "namespace": OWN }, "data": { "config.yaml": text } })
}

fn append(configuration: &mut Value, list: &str, entry: Value) {
    match &mut configuration[list] {
        Value::Array(entries) => entries.push(entry),
        nothing => *nothing = json!([entry]),
    }
}

fn review_of_mark(mark: &str) -> Vec<u8> {
    let resource = json!({ "group": "", "version": "v1", "resource": "pods" });
    let pod = json!({ "metadata": { "name": mark }, "spec": { "containers": [{ "name": "mark" }] } });
    review(json!({ "uid": "u", "operation": "CREATE", "namespace": mark, "resource": resource, "object": pod }))
}

fn review(request: Value) -> Vec<u8> {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request }).to_string().into_bytes()
}

/// The cases speak of the default namespace of the program.
fn renamed(text: &str) -> String {
    text.replace(OWN_NAMESPACE, OWN)
}

fn renamed_bytes(body: Vec<u8>) -> Vec<u8> {
    match String::from_utf8(body) {
        Ok(text) => renamed(&text).into_bytes(),
        Err(error) => error.into_bytes(),
    }
}

/// An address on loopback that nobody listens on; nothing else starts servers in this network namespace.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is up");
    listener.local_addr().expect("it listens").to_string()
}
