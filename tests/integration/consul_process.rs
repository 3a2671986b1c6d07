//! A real Consul for tests: built from its Go module, in a folder of its own, ended by process id.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// Longer than it takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Somebody else may take a port between the choice and the start.
const ATTEMPTS: usize = 5;
/// What may do everything, where there are ACLs.
pub(crate) const ROOT: &str = "11111111-1111-1111-1111-111111111111";

/// One running agent, a server.
pub(crate) struct Consul {
    folder: TempDir,
    child: Child,
    ports: Ports,
    policies: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Ports {
    http: u16,
    https: u16,
    server: u16,
    serf: u16,
}

impl Consul {
    /// One alone, that keeps nothing on disk.
    pub(crate) async fn start() -> Self {
        let one = Self::launch(&json!({}), &["-dev"], false);
        one.await_leader().await;
        one
    }

    /// One alone, with ACLs that deny, and HTTPS with that certificate.
    pub(crate) async fn start_guarded(certificate: &Path) -> Self {
        let acl = json!({"enabled": true, "default_policy": "deny", "tokens": {"initial_management": ROOT, "agent": ROOT}});
        let https = json!({"cert_file": certificate, "key_file": certificate});
        let one = Self::launch(&json!({"acl": acl, "tls": {"https": https}}), &["-dev"], true);
        one.await_leader().await;
        one
    }

    /// The first of two that need each other; it waits for the other.
    pub(crate) fn start_of_two() -> Self {
        Self::server("first", &json!([]))
    }

    /// Another server beside it; names are unique among servers, or Consul takes one of them for an impostor.
    pub(crate) fn join(&self, name: &str) -> Self {
        Self::server(name, &json!([format!("127.0.0.1:{}", self.ports.serf)]))
    }

    fn server(name: &str, join: &Value) -> Self {
        Self::launch(&json!({"bootstrap_expect": 2, "retry_join": join, "retry_interval": "200ms", "node_name": name}), &["-server"], false)
    }

    /// Where its HTTP API is.
    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.ports.http).into()
    }

    /// Where its peers reach it.
    pub(crate) fn rpc(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.ports.server).into()
    }

    /// Its HTTP API with TLS; the certificate says `localhost`.
    pub(crate) fn url_with_tls(&self) -> String {
        format!("https://localhost:{}", self.ports.https)
    }

    /// What it answers.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let client = Client::builder().no_proxy().build().unwrap();
        let mut request = client.request(method, format!("http://{}/v1/{path}", self.address())).header("X-Consul-Token", ROOT);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Puts something in; it must go well.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(Method::PUT, path, Some(body)).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// A new token with those rules, and its accessor.
    pub(crate) async fn token(&self, rules: &str) -> (String, String) {
        let name = format!("p{}", self.policies.fetch_add(1, Ordering::SeqCst));
        self.put("acl/policy", &json!({"Name": name, "Rules": rules})).await;
        let token = self.put("acl/token", &json!({"Policies": [{"Name": name}]})).await;
        let text = |key: &str| token[key].as_str().unwrap().to_owned();
        (text("SecretID"), text("AccessorID"))
    }

    /// Waits until it has a leader and takes writes.
    pub(crate) async fn await_leader(&self) {
        let client = Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}/v1/catalog/register", self.address());
        let probe = json!({"Node": "probe", "Address": "127.0.0.1"});
        let begun = Instant::now();
        loop {
            let answer = client.put(&url).header("X-Consul-Token", ROOT).json(&probe).send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "Consul does not start:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops its process for a while, as a machine that hangs.
    pub(crate) fn hang(&self) {
        self.signal("STOP");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("/bin/sh").args(["-c", "kill -$1 $0", &id, signal]).status().unwrap().success());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn launch(settings: &Value, arguments: &[&str], guarded: bool) -> Self {
        for attempt in 1.. {
            let (folder, ports) = (tempfile::tempdir().unwrap(), Ports::free());
            let mut config = json!({
                "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_host_node_id": true, "disable_update_check": true,
                "ports": {
                    "http": ports.http, "https": if guarded { i32::from(ports.https) } else { -1 }, "server": ports.server,
                    "serf_lan": ports.serf, "serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1,
                },
                // Peers notice at once that a leader is gone.
                "performance": {"raft_multiplier": 1},
            });
            for (key, value) in settings.as_object().unwrap() {
                config[key] = value.clone();
            }
            let file = folder.path().join("config.json");
            std::fs::write(&file, config.to_string()).unwrap();
            let log = std::fs::File::create(folder.path().join("log")).unwrap();
            let mut command = Command::new(program());
            command.args(["agent", "-config-file"]).arg(&file).args(arguments);
            if !arguments.contains(&"-dev") {
                command.arg("-data-dir").arg(folder.path());
            }
            let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
            let mut one = Self { folder, child, ports, policies: AtomicUsize::new(0) };
            if one.listens() {
                return one;
            }
            assert!(attempt < ATTEMPTS, "Consul does not start:\n{}", one.log());
        }
        unreachable!("the last attempt returns or panics")
    }

    /// Whether it came up; `false` where it ended, as it does when a port is taken.
    fn listens(&mut self) -> bool {
        let begun = Instant::now();
        while std::net::TcpStream::connect(self.address()).is_err() {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(begun.elapsed() < PATIENCE, "Consul does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ports {
    fn free() -> Self {
        // All are held until the last is found, so that they differ.
        let held: Vec<(TcpListener, UdpSocket)> = std::iter::repeat_with(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let gossip = UdpSocket::bind(listener.local_addr().unwrap());
            gossip.map(|gossip| (listener, gossip))
        })
        .filter_map(Result::ok)
        .take(4)
        .collect();
        let port = |place: usize| held[place].0.local_addr().unwrap().port();
        Self { http: port(0), https: port(1), server: port(2), serf: port(3) }
    }
}

/// The program, built if need be.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/build");
        let output = Command::new(script).arg("consul").stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "Consul cannot be built");
        Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("consul")
    })
}
