//! The real registries that the conformance test stands on, and what each of them is told besides the driver.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep::config::{ConsulConfig, DriverConfig, HaproxyBackend, HaproxyConfig, HttpConfig, RegistryConfig, Servers, Services};
use lockstep::reconcile::Drivers;
use lockstep::registry::Registry;
use lockstep::registry::driver::{Driver, Opener};
use prometheus_client::metrics::family::Family;
use reqwest::{Client, Method};
use serde_json::json;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::consul_process::Consul;
use crate::elbv2::Simulator;
use crate::elbv2::model::Group;
use crate::haproxy_process::{Haproxy, free_port};
use crate::registry_aws_ground as aws;
use crate::registry_ground::Inside;
use crate::stand_in::Front;

/// A driver, and the way it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Aws,
    Consul,
    Http,
    HaproxyDynamic,
    HaproxyTemplate,
    HaproxyTwo,
    /// Two processes, of which one has more slots, and a server of somebody else.
    HaproxyUnlike,
}

/// A registry, empty, with one service.
pub(crate) struct Ground {
    kind: Kind,
    folder: TempDir,
    registry: RealRegistry,
    guarded: bool,
    /// Endpoints that were handed out; they listen, so that a registry that checks finds them well.
    endpoints: Mutex<Vec<std::net::TcpListener>>,
    beside: Option<SocketAddr>,
}

enum RealRegistry {
    Aws { simulator: Simulator, arn: String },
    Consul { process: Box<Consul>, accessor: String },
    Http(Inside),
    Haproxy { processes: Mutex<Vec<Haproxy>>, tls: SocketAddr },
}

/// What the page of the driver asks for.
pub(crate) const RULES: &str = r#"
    node "lockstep-here" { policy = "write" }
    node_prefix "" { policy = "read" }
    service "web" { policy = "write" }
"#;
/// Those of [`TEMPLATE`].
const SLOTS: usize = 4;
const TEMPLATE: &str = "backend web\n balance roundrobin\n \
    server-template lockstep 1-4 lockstep.invalid:1 check inter 200ms init-addr last,127.0.0.1 disabled\n";
const DYNAMIC: &str = "backend web\n balance roundrobin\n";

impl Ground {
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::make(kind, false).await
    }

    /// One that asks for a credential, or shows one.
    pub(crate) async fn start_guarded(kind: Kind) -> Self {
        Self::make(kind, true).await
    }

    async fn make(kind: Kind, guarded: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("credentials")).unwrap();
        let endpoint = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let beside = (kind == Kind::HaproxyUnlike && !guarded).then(|| endpoint.local_addr().unwrap());
        let registry = match kind {
            Kind::Aws => elbv2(folder.path()).await,
            Kind::Consul => consul(folder.path(), guarded).await,
            Kind::Http => http(folder.path(), guarded).await,
            Kind::HaproxyDynamic => haproxy(folder.path(), guarded, &[DYNAMIC]),
            Kind::HaproxyTemplate => haproxy(folder.path(), guarded, &[TEMPLATE]),
            Kind::HaproxyTwo => haproxy(folder.path(), guarded, &[DYNAMIC, DYNAMIC]),
            Kind::HaproxyUnlike => {
                let hand = beside.map(|address| format!(" server hand {address} check inter 200ms weight 7\n")).unwrap_or_default();
                haproxy(folder.path(), guarded, &[TEMPLATE, &(TEMPLATE.replace("1-4", "1-6") + &hand)])
            }
        };
        Self { kind, folder, registry, guarded, endpoints: Mutex::new(vec![endpoint]), beside }
    }

    /// The driver of those settings; the credentials of an AWS account stand in the credential file here.
    pub(crate) fn open(&self, driver: &DriverConfig, cluster: &str) -> Arc<Driver> {
        if let DriverConfig::Aws(config) = driver {
            let credentials = aws::in_file(&self.credentials().join("credential"));
            return Arc::new(Driver::Aws(Box::new(aws::with_credentials(config, credentials))));
        }
        let config = RegistryConfig { name: "subject".into(), driver: driver.clone() };
        let opened = Opener::new(self.credentials(), Family::default()).open(&config, &cluster.into()).unwrap();
        opened.bind(self.services());
        opened
    }

    pub(crate) fn config(&self) -> DriverConfig {
        match &self.registry {
            RealRegistry::Aws { simulator, .. } => self.config_at(simulator.url.trim_start_matches("http://")),
            RealRegistry::Consul { process, .. } => self.config_at(&process.address().to_string()),
            RealRegistry::Http(server) => self.config_at(server.url.trim_start_matches("http://")),
            RealRegistry::Haproxy { tls, .. } if self.guarded => self.haproxy_config(vec![format!("localhost:{}", tls.port())]),
            RealRegistry::Haproxy { processes, .. } => {
                self.haproxy_config(processes.lock().unwrap().iter().map(Haproxy::address).collect())
            }
        }
    }

    /// The same, at another address.
    pub(crate) fn config_at(&self, address: &str) -> DriverConfig {
        let token = self.guarded.then(|| "credential".to_owned());
        match self.registry {
            RealRegistry::Aws { .. } => DriverConfig::Aws(aws::config(&format!("http://{address}"))),
            RealRegistry::Consul { .. } => DriverConfig::Consul(ConsulConfig { address: format!("http://{address}"), token, ca: None }),
            RealRegistry::Http(_) => DriverConfig::Http(HttpConfig { url: format!("http://{address}"), token, ca: None }),
            RealRegistry::Haproxy { .. } => self.haproxy_config(vec![address.to_owned()]),
        }
    }

    pub(crate) fn credentials(&self) -> PathBuf {
        self.folder.path().join("credentials")
    }

    pub(crate) fn service(&self) -> &str {
        match &self.registry {
            RealRegistry::Aws { arn, .. } => arn,
            RealRegistry::Http(_) => "shop/web",
            RealRegistry::Consul { .. } | RealRegistry::Haproxy { .. } => "web",
        }
    }

    /// The same behind TLS, with a certificate that the driver is given no reason to trust.
    pub(crate) async fn config_of_a_stranger(&self) -> DriverConfig {
        std::fs::write(self.folder.path().join("credentials/stranger"), Authority::new("stranger").ca).unwrap();
        let ca = Some("stranger".to_owned());
        match &self.registry {
            RealRegistry::Aws { simulator, .. } => DriverConfig::Aws(aws::config(&Front::start(&simulator.url).await.url)),
            RealRegistry::Consul { process, .. } => {
                let address = Front::start(&process.address().to_string()).await.url;
                DriverConfig::Consul(ConsulConfig { address, token: Some("credential".to_owned()), ca })
            }
            RealRegistry::Http(server) => {
                DriverConfig::Http(HttpConfig { url: Front::start(&server.url).await.url, token: Some("credential".to_owned()), ca })
            }
            RealRegistry::Haproxy { .. } => match self.config() {
                DriverConfig::Haproxy(config) => DriverConfig::Haproxy(HaproxyConfig { tls_ca: ca, ..config }),
                other => other,
            },
        }
    }

    /// The most targets that the service takes here.
    pub(crate) fn room(&self) -> usize {
        if matches!(self.kind, Kind::HaproxyTemplate | Kind::HaproxyUnlike) { SLOTS } else { usize::MAX }
    }

    /// A target of somebody else that stands there from the beginning.
    pub(crate) fn beside(&self) -> Option<SocketAddr> {
        self.beside
    }

    /// An endpoint that nobody else has.
    pub(crate) fn address(&self) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.endpoints.lock().unwrap().push(listener);
        address
    }

    /// Puts a target in that is not ours.
    pub(crate) async fn put_foreign(&self, address: SocketAddr) {
        match &self.registry {
            RealRegistry::Aws { simulator, arn } => {
                simulator.model().put(arn, address);
                simulator.pass(Duration::from_secs(60));
            }
            RealRegistry::Consul { process, .. } => {
                let service = json!({"Service": "web", "ID": "other", "Address": address.ip(), "Port": address.port()});
                process.put("catalog/register", &json!({"Node": "machine", "Address": "127.0.0.1", "Service": service})).await;
            }
            RealRegistry::Http(server) => {
                let url = format!("{}/v1/services/shop%2Fweb/targets/{address}/other", server.url);
                let client = Client::builder().no_proxy().build().unwrap();
                let answer = client.put(url).json(&json!({"state": "active", "cluster": "elsewhere"})).send().await.unwrap();
                assert_eq!(answer.status(), 201);
            }
            RealRegistry::Haproxy { processes, .. } => {
                for process in &*processes.lock().unwrap() {
                    let answer = process.ask(&format!("add server web/other {address}; set server web/other state ready"));
                    assert!(answer.starts_with("New server registered."), "{answer}");
                }
            }
        }
    }

    /// Changes the credential on the registry's side.
    pub(crate) async fn change_credential_there(&self) {
        match &self.registry {
            RealRegistry::Aws { simulator, .. } => _ = simulator.model().refused_keys.insert("AKIDFIRST".into(), "InvalidClientTokenId"),
            RealRegistry::Consul { process, accessor } => {
                let (secret, _) = process.token(RULES).await;
                std::fs::write(self.folder.path().join("next"), secret).unwrap();
                let (status, answer) = process.ask(Method::DELETE, &format!("acl/token/{accessor}"), None).await;
                assert_eq!(status, 200, "{answer}");
            }
            RealRegistry::Http(_) => std::fs::write(self.folder.path().join("there"), "second\n").unwrap(),
            RealRegistry::Haproxy { processes, .. } => {
                let authority = Authority::new("second");
                std::fs::write(self.folder.path().join("there"), authority.certificate + &authority.key).unwrap();
                std::fs::write(self.folder.path().join("next"), authority.ca).unwrap();
                let mut processes = processes.lock().unwrap();
                processes[0].stop();
                processes[0].resume();
            }
        }
    }

    /// Changes it on ours.
    pub(crate) fn change_credential_here(&self) {
        std::fs::copy(self.folder.path().join("next"), self.folder.path().join("credentials/credential")).unwrap();
    }

    pub(crate) fn remove_credential_here(&self) {
        std::fs::remove_file(self.folder.path().join("credentials/credential")).unwrap();
    }

    /// What a binding says of the service; where it is an aws registry, nothing special.
    fn services(&self) -> Services {
        let template = matches!(self.kind, Kind::HaproxyTemplate | Kind::HaproxyUnlike);
        let servers = if template { Servers::Template } else { Servers::Dynamic };
        let backends = BTreeMap::from([("web".into(), HaproxyBackend { servers, check: true, weight: None, drain: Duration::ZERO })]);
        Services { backends, ..Services::default() }
    }

    fn haproxy_config(&self, addresses: Vec<String>) -> DriverConfig {
        let tls_ca = self.guarded.then(|| "credential".to_owned());
        DriverConfig::Haproxy(HaproxyConfig { addresses, instance_timeout: Duration::from_secs(30), tls_ca })
    }
}

async fn elbv2(folder: &Path) -> RealRegistry {
    let simulator = Simulator::start().await;
    let arn = simulator.model().add("web", Group { delay: 30, ..Group::default() });
    // Somebody who waits sees time pass.
    simulator.model().tick = Duration::from_secs(10);
    std::fs::write(folder.join("credentials/credential"), "AKIDFIRST\n").unwrap();
    std::fs::write(folder.join("next"), "AKIDSECOND\n").unwrap();
    RealRegistry::Aws { simulator, arn }
}

async fn consul(folder: &Path, guarded: bool) -> RealRegistry {
    if !guarded {
        return RealRegistry::Consul { process: Box::new(Consul::start().await), accessor: String::new() };
    }
    let authority = Authority::new("consul");
    let certificate = folder.join("certificate");
    std::fs::write(&certificate, authority.certificate + &authority.key).unwrap();
    let process = Consul::start_guarded(&certificate).await;
    let (secret, accessor) = process.token(RULES).await;
    std::fs::write(folder.join("credentials/credential"), secret).unwrap();
    RealRegistry::Consul { process: Box::new(process), accessor }
}

async fn http(folder: &Path, guarded: bool) -> RealRegistry {
    let there = folder.join("there");
    std::fs::write(&there, "first\n").unwrap();
    std::fs::write(folder.join("credentials/credential"), "first\n").unwrap();
    std::fs::write(folder.join("next"), "second\n").unwrap();
    let more = ["--token-file", there.to_str().unwrap()];
    RealRegistry::Http(Inside::start(&folder.join("store"), if guarded { &more } else { &[] }).await)
}

fn haproxy(folder: &Path, guarded: bool, backends: &[&str]) -> RealRegistry {
    let tls = free_port();
    let authority = Authority::new("first");
    let file = folder.join("there");
    std::fs::write(&file, authority.certificate + &authority.key).unwrap();
    std::fs::write(folder.join("credentials/credential"), authority.ca).unwrap();
    // A socket of HAProxy's own speaks no TLS, whatever its line says; a listener in front of it does.
    let front = format!("listen runtime\n mode tcp\n bind {tls} ssl crt {}\n server runtime unix@FOLDER/admin\n", file.display());
    let start = |backend: &&str| Haproxy::start(&if guarded { format!("{front}{backend}") } else { (*backend).to_owned() });
    let count = if guarded { 1 } else { backends.len() };
    RealRegistry::Haproxy { processes: Mutex::new(backends[..count].iter().map(start).collect()), tls }
}
