//! The configuration: one ConfigMap key, `config.yaml`, as values that are valid by construction.
//!
//! Both lanes read the same snapshot of it; operators edit nothing else.
//!
//! Invariant: a [`Configuration`] that exists is valid; every error of a text is found in one pass, at its path, line and column.
//! Absent on purpose: credentials (files under one mounted directory, named here only), watching (`reconcile`, `server`).

mod advise;
mod bindings;
mod error;
mod fields;
mod off_limits;
mod overlap;
mod parse;
mod registries;
mod schema;
mod services;
mod text;

use std::sync::Arc;
use std::time::Duration;

pub use advise::{Advice, advise};
pub use error::{ConfigError, ConfigErrors};
pub use off_limits::off_limits;
pub use parse::parse;
pub use schema::schema;
pub use services::{HaproxyBackend, Services, TargetGroup};
pub use text::{duration, show_duration};

use crate::target::ServiceId;

/// A whole, valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Stamped on targets in shared registries.
    pub cluster: Arc<str>,
    /// What admission changes.
    pub injection: Injection,
    /// How long registration waits for what.
    pub registration: Registration,
    /// The external systems, in the order of the text.
    pub registries: Vec<RegistryConfig>,
    /// Which pods belong where, in the order of the text.
    pub bindings: Vec<Binding>,
}

/// Settings of admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Form of the injected sleep.
    pub pre_stop: PreStop,
    /// Added to the drain delay: the time until the registry has been told.
    pub margin: Duration,
    /// No sleep is longer.
    pub max_sleep: Duration,
    /// No grace period is raised above.
    pub max_grace: Duration,
    /// What happens to probes whose restarts would wait for the sleep.
    pub probe_grace: ProbeGrace,
    /// Namespaces that are never injected, besides the cluster's own and ours.
    pub excluded_namespaces: Vec<Arc<str>>,
}

/// Form of the injected sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreStop {
    /// Native where every server and node is 1.30 or newer, else the command.
    Auto,
    /// Always the command `sleep`.
    Exec,
    /// No sleep.
    None,
}

/// What happens to a probe without a grace period of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeGrace {
    /// It gets the grace period that the pod asked for.
    Bound,
    /// It is left, with a finding.
    Keep,
}

/// Settings of registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// From ContainersReady; then a Warning event, and `on_gate_timeout`.
    pub gate_timeout: Duration,
    /// What follows `gate_timeout`.
    pub on_gate_timeout: OnGateTimeout,
    /// From the end of the containers; then a Warning event, and `on_drain_timeout`.
    pub drain_timeout: Duration,
    /// What follows `drain_timeout`.
    pub on_drain_timeout: OnDrainTimeout,
    /// How long a forced deletion is held at most.
    pub force_timeout: Duration,
    /// After deletionTimestamp, containers that nobody reported gone count as gone after this long.
    pub unreachable_after: Duration,
    /// Percentage of a service's targets that must stay undrained.
    pub panic_threshold: u8,
}

/// What happens when the registry did not acknowledge a register in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnGateTimeout {
    /// Go on waiting.
    Hold,
    /// Open the gate, counted as an exception.
    Open,
}

/// What happens when the registry did not let go in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrainTimeout {
    /// Go on waiting.
    Hold,
    /// Release the pod into the debts, counted as an exception.
    Release,
}

/// One external system, and nothing of its bindings ([`Services`]): two that are equal are one and the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Name that bindings use.
    pub name: Arc<str>,
    /// Kind of the system and how to reach it.
    pub driver: DriverConfig,
}

/// How to reach a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverConfig {
    /// AWS ELBv2 target groups.
    Aws(AwsConfig),
    /// Consul's catalog.
    Consul(ConsulConfig),
    /// HAProxy's runtime API.
    Haproxy(HaproxyConfig),
    /// The open HTTP contract.
    Http(HttpConfig),
}

/// Kind of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// AWS ELBv2 target groups.
    Aws,
    /// Consul's catalog.
    Consul,
    /// HAProxy's runtime API.
    Haproxy,
    /// The open HTTP contract.
    Http,
}

/// Settings of an `aws` registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsConfig {
    /// Region of the target groups.
    pub region: String,
    /// Other endpoint of the API, for private links and tests.
    pub endpoint: Option<String>,
    /// Role to assume.
    pub assume_role: Option<String>,
}

/// Settings of a `consul` registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsulConfig {
    /// URL of the HTTP API.
    pub address: String,
    /// Name of the credential file with the ACL token.
    pub token: Option<String>,
    /// Name of the credential file with the CA.
    pub ca: Option<String>,
}

/// Settings of a `haproxy` registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaproxyConfig {
    /// Runtime API of each instance: `host:port` or `unix:/path`.
    pub addresses: Vec<String>,
    /// An instance that cannot be reached for this long is counted out.
    pub instance_timeout: Duration,
    /// Name of the credential file with the CA, where the API speaks TLS.
    pub tls_ca: Option<String>,
}

/// Settings of an `http` registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Base URL of the contract.
    pub url: String,
    /// Name of the credential file with the bearer token.
    pub token: Option<String>,
    /// Name of the credential file with the CA.
    pub ca: Option<String>,
}

/// These pods belong in that service of that registry, on this port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the binding, unique.
    pub name: Arc<str>,
    /// Where its pods live.
    pub namespaces: Namespaces,
    /// Which pods of those namespaces.
    pub selector: Selector,
    /// Where their targets belong.
    pub service: ServiceId,
    /// Port of the targets.
    pub port: Port,
    /// Whether Lockstep owns the targets.
    pub mode: Mode,
    /// What counts as an acknowledgement.
    pub ack: Ack,
    /// What happens to the target of a pod that is not ready, with the driver's default filled in.
    pub on_unready: OnUnready,
    /// What happens to the target of a pod that the binding no longer selects.
    pub on_unbound: OnUnbound,
    /// Where the drain delay comes from.
    pub drain: Drain,
    /// Which of the pod's addresses.
    pub family: Family,
    /// Share of the traffic (haproxy); 100 is the normal share.
    pub weight: u16,
    /// How servers come to be (haproxy).
    pub servers: Servers,
    /// Whether the backend checks its servers (haproxy).
    pub check: bool,
    /// Whether every target of the service is ours (aws).
    pub exclusive: bool,
    /// States, with reason codes, that count as active too (aws), as `state/ReasonCode`.
    pub accept_states: Vec<String>,
    /// Stricter or looser than the driver's default (aws).
    pub gone_when: Option<crate::registry::GoneWhen>,
}

/// Namespaces of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All that are opted in.
    All,
    /// These.
    Named(Vec<Arc<str>>),
}

/// A label selector with the meaning that Kubernetes gives it; empty selects every pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// All must hold.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a [`Selector`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: Arc<str>,
    /// What must hold of its value.
    pub operator: LabelOperator,
}

/// Condition on the value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelOperator {
    /// The key is there with one of these values.
    In(Vec<Arc<str>>),
    /// The key is absent, or its value is none of these.
    NotIn(Vec<Arc<str>>),
    /// The key is there.
    Exists,
    /// The key is absent.
    DoesNotExist,
}

/// Port of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// The number itself.
    Number(u16),
    /// The container port of that name.
    Name(Arc<str>),
}

/// Whether Lockstep owns the targets of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Lockstep registers and deregisters.
    Own,
    /// Another controller does; Lockstep waits on the state.
    Observe,
}

/// What counts as an acknowledgement of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The registry reported the target active, in a read begun after our change was answered.
    Acknowledged,
    /// The registry took the change.
    Accepted,
}

/// What happens to the target of a pod that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnready {
    /// It is drained, within the budget.
    Drain,
    /// It stays; the registry's own check takes it out of use.
    Keep,
    /// It is deregistered, within the budget.
    Deregister,
}

/// What happens to the target of a pod that no binding selects any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnbound {
    /// It stays.
    Keep,
    /// It is deregistered, within the budget.
    Deregister,
}

/// Where the drain delay of a binding comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The registry says; until it has, and once its answer is stale, `fallback` counts.
    FromRegistry {
        /// Delay without an answer.
        fallback: Duration,
    },
    /// The configuration says.
    Fixed(Duration),
    /// An outsider only polls: interval × threshold + timeout.
    HealthCheck {
        /// Time between two polls.
        interval: Duration,
        /// Failed polls until it stops sending.
        unhealthy_threshold: u32,
        /// Time until a poll has failed.
        timeout: Duration,
    },
}

/// Which of a pod's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The primary address; on aws the target group's family.
    Auto,
    /// The IPv4 address.
    Ipv4,
    /// The IPv6 address.
    Ipv6,
}

/// How servers come to be in HAProxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// `add server` and `del server`.
    Dynamic,
    /// Slots of a `server-template`.
    Template,
}

impl Driver {
    /// Every driver, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Aws, Self::Consul, Self::Haproxy, Self::Http];

    /// Its key in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Consul => "consul",
            Self::Haproxy => "haproxy",
            Self::Http => "http",
        }
    }
}

impl DriverConfig {
    /// The kind of the registry.
    pub fn driver(&self) -> Driver {
        match self {
            Self::Aws(_) => Driver::Aws,
            Self::Consul(_) => Driver::Consul,
            Self::Haproxy(_) => Driver::Haproxy,
            Self::Http(_) => Driver::Http,
        }
    }
}

impl HaproxyConfig {
    /// Default of [`HaproxyConfig::instance_timeout`].
    pub const INSTANCE_TIMEOUT: Duration = Duration::from_secs(30);
}

impl Drain {
    /// Default of the fallback on aws: what ELB itself takes where nobody set anything.
    pub const AWS_FALLBACK: Duration = Duration::from_secs(300);

    /// Whether the registry is asked for it.
    pub fn is_asked(&self) -> bool {
        matches!(self, Self::FromRegistry { .. })
    }

    /// The delay, where `answered` is what the registry says at present.
    pub fn delay(&self, answered: Option<Duration>) -> Duration {
        match *self {
            Self::FromRegistry { fallback } => answered.unwrap_or(fallback),
            Self::Fixed(delay) => delay,
            Self::HealthCheck { interval, unhealthy_threshold, timeout } => {
                interval.saturating_mul(unhealthy_threshold).saturating_add(timeout)
            }
        }
    }
}

impl Configuration {
    /// The registry of that name.
    pub fn registry(&self, name: &str) -> Option<&RegistryConfig> {
        self.registries.iter().find(|registry| &*registry.name == name)
    }

    /// The bindings that select a pod of `namespace` with these labels, in the order of the text.
    pub fn bindings_of<'a, 'l, L>(&'a self, namespace: &'a str, label: L) -> impl Iterator<Item = &'a Binding>
    where
        L: Fn(&str) -> Option<&'l str> + 'a,
    {
        self.bindings.iter().filter(move |binding| binding.selects(namespace, &label))
    }
}

impl Binding {
    /// Default of [`Binding::weight`].
    pub const WEIGHT: u16 = 100;

    /// Whether it selects a pod of `namespace` with the labels that `label` looks up.
    pub fn selects<'l>(&self, namespace: &str, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.namespaces.holds(namespace) && self.selector.matches(label)
    }
}

impl Namespaces {
    /// Whether `namespace` is one of them.
    pub fn holds(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| &**name == namespace),
        }
    }
}

impl Selector {
    /// Whether labels, looked up by key, satisfy every requirement.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = label(&requirement.key);
            match &requirement.operator {
                LabelOperator::In(values) => value.is_some_and(|value| values.iter().any(|one| &**one == value)),
                LabelOperator::NotIn(values) => !value.is_some_and(|value| values.iter().any(|one| &**one == value)),
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        })
    }
}

impl Default for Injection {
    fn default() -> Self {
        Self {
            pre_stop: PreStop::Auto,
            margin: Duration::from_secs(15),
            max_sleep: Duration::from_secs(360),
            max_grace: Duration::from_secs(570),
            probe_grace: ProbeGrace::Bound,
            excluded_namespaces: Vec::new(),
        }
    }
}

impl Default for Registration {
    fn default() -> Self {
        Self {
            gate_timeout: Duration::from_secs(8 * 60),
            on_gate_timeout: OnGateTimeout::Hold,
            drain_timeout: Duration::from_secs(10 * 60),
            on_drain_timeout: OnDrainTimeout::Hold,
            force_timeout: Duration::from_secs(30),
            unreachable_after: Duration::from_secs(60),
            panic_threshold: 50,
        }
    }
}
