//! Two load balancers outside of the cluster: real HAProxy processes in the control plane's network, which reaches every pod.
//!
//! Invariant: each has every backend; which of them Lockstep knows is the configuration's affair.
//! Absent on purpose: settings that would hide a lost request (retries on other servers are off, as in HAProxy's defaults).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::haproxy_process::Haproxy;

/// Where the control plane's namespace and every pod reach them.
const ADDRESS: &str = "10.77.0.1";

/// A backend, the namespace of its pods, the registry that has it for Lockstep, and its servers.
pub(crate) struct Backend {
    pub name: &'static str,
    registry: Option<&'static str>,
    servers: &'static str,
}

impl Backend {
    /// Whether Lockstep has it.
    pub(crate) fn is_bound(&self) -> bool {
        self.registry.is_some()
    }

    /// Whether its servers are slots.
    pub(crate) fn has_slots(&self) -> bool {
        !self.servers.is_empty()
    }
}

/// Servers that come and go.
pub(crate) const DYNAMIC: Backend = Backend { name: "lossless", registry: Some("balancer"), servers: "" };
/// Slots, which survive a reload.
pub(crate) const SLOTS: Backend = Backend {
    name: "slotted",
    registry: Some("slots"),
    servers: "server-template lockstep 1-20 lockstep.invalid:1 check inter 500ms fastinter 250ms fall 3 rise 2 init-addr last,127.0.0.1 disabled",
};
/// Servers that come and go on both balancers alike.
pub(crate) const PAIR: Backend = Backend { name: "paired", registry: Some("pair"), servers: "" };
/// Servers that come and go without Lockstep.
pub(crate) const PLAIN: Backend = Backend { name: "plain", registry: None, servers: "" };
/// Slots without Lockstep.
pub(crate) const PLAIN_SLOTS: Backend = Backend {
    name: "plain-slots",
    registry: None,
    servers: "server-template at 1-20 plain.invalid:1 check inter 500ms fastinter 250ms fall 3 rise 2 init-addr last,127.0.0.1 disabled",
};

/// All of them.
pub(crate) const BACKENDS: [Backend; 5] = [DYNAMIC, SLOTS, PAIR, PLAIN, PLAIN_SLOTS];

/// Both balancers.
pub(crate) struct Outside {
    balancers: [Balancer; 2],
}

/// One balancer.
struct Balancer {
    process: Mutex<Haproxy>,
    runtime: SocketAddr,
    fronts: Vec<SocketAddr>,
}

impl Outside {
    /// Starts both.
    pub(crate) fn start() -> Self {
        Self { balancers: [Balancer::start(), Balancer::start()] }
    }

    /// Their entries in the configuration.
    pub(crate) fn registries(&self) -> Vec<Value> {
        let [one, other] = &self.balancers;
        let entry = |name: &str, of: &[&Balancer]| {
            let addresses: Vec<String> = of.iter().map(|balancer| balancer.runtime.to_string()).collect();
            json!({ "name": name, "haproxy": { "addresses": addresses } })
        };
        vec![entry("balancer", &[one]), entry("slots", &[one]), entry("pair", &[one, other])]
    }

    /// A binding for each backend that Lockstep has, all of the same name.
    pub(crate) fn bindings(&self) -> Vec<Value> {
        let binding = |backend: &Backend| {
            let servers = if backend.has_slots() { "template" } else { "dynamic" };
            Some(json!({
                "name": backend.name, "namespaces": [backend.name], "podSelector": { "matchLabels": { "app": "web" } },
                "registry": backend.registry?, "service": backend.name, "port": "http", "servers": servers, "drain": { "fixed": "1s" },
            }))
        };
        BACKENDS.iter().filter_map(binding).collect()
    }

    /// Where the first balancer takes requests for a backend.
    pub(crate) fn front(&self, backend: &Backend) -> SocketAddr {
        let place = BACKENDS.iter().position(|one| one.name == backend.name).expect("it is one of them");
        self.balancers[0].fronts[place]
    }

    /// What the first balancer answers to one command, also while it is being reloaded; `None` where nobody answers.
    pub(crate) fn ask_first(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.balancers[0].runtime).ok()?;
        writeln!(stream, "{command}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The first balancer, through which the load goes.
    pub(crate) fn first(&self) -> MutexGuard<'_, Haproxy> {
        self.balancers[0].process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The second one.
    pub(crate) fn second(&self) -> MutexGuard<'_, Haproxy> {
        self.balancers[1].process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Balancer {
    fn start() -> Self {
        let runtime = free();
        let fronts: Vec<SocketAddr> = BACKENDS.iter().map(|_| free()).collect();
        let mut sections = format!(
            "global\n stats socket {runtime} level admin\n hard-stop-after 10s\n\
             defaults\n mode http\n timeout connect 2s\n timeout client 60s\n timeout server 60s\n load-server-state-from-file global\n \
             option idle-close-on-response\n"
        );
        for (backend, front) in BACKENDS.iter().zip(&fronts) {
            let (name, servers) = (backend.name, backend.servers);
            sections +=
                &format!("frontend {name}-in\n bind {front}\n default_backend {name}\nbackend {name}\n balance roundrobin\n {servers}\n");
        }
        Self { process: Mutex::new(Haproxy::start_mastered(&sections)), runtime, fronts }
    }
}

/// A port that nobody has at this moment; nothing else chooses ports in this network namespace.
fn free() -> SocketAddr {
    TcpListener::bind((ADDRESS, 0)).and_then(|listener| listener.local_addr()).expect("the address is there")
}
