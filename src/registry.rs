//! The trait of an external registry, and the words in which every driver answers.
//!
//! The reconciler is generic over it, so that the simulation runs the very code that production runs.
//! A driver holds only what is special about its registry: batching, retry, rate limit, breaker and drain budget live above it, once.
//!
//! Invariant: an error says for certain that nothing left ([`CallError::Unavailable`]) or leaves it open; nothing in between.
//! Absent on purpose: when to call (`reconcile`), what a state means for a pod (`registration`).

pub mod aws;
pub mod consul;
pub mod credentials;
pub mod delays;
pub mod driver;
pub mod endpoint;
pub mod haproxy;
pub mod http;
pub mod reach;
pub mod text;

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Family, Services};
use crate::target::{PodKey, PodUid, TargetState};

/// A call that got no answer is over after this long.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a call answers within [`CALL_TIMEOUT`].
pub async fn in_time<T>(call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or(Err(CallError::Timeout))
}

/// An external system that holds endpoints.
pub trait Registry: Send + Sync + 'static {
    /// Takes what bindings say of its services, from now on; a call that has begun ends with what it began with.
    fn bind(&self, _services: Services) {}

    /// Forgets what it believes because of what it was told and has seen: a term of leadership begins or is over, and between two of them
    /// others lead.
    fn forget(&self) {}

    /// What this registry can do, as long as its bindings say the same.
    fn capabilities(&self) -> Capabilities;

    /// The same for one service, where the services of this registry differ; those of the registry as a whole hold for every service.
    fn capabilities_of(&self, _service: &str) -> Capabilities {
        self.capabilities()
    }

    /// Every target of `service` with its state. With `wait`, a registry with [`Capabilities::blocking_read`] answers
    /// when something differs from that index or the time is over; without `wait`, at once.
    fn list(&self, service: &str, wait: Option<Wait>) -> impl Future<Output = Result<Listing, CallError>> + Send;

    /// Sends `changes` (at most [`Capabilities::batch`] of them) of one service as one request where the registry can;
    /// on `Ok`, one result for each change, in order.
    fn apply(&self, service: &str, changes: &[Change]) -> impl Future<Output = Result<Vec<Result<(), ChangeError>>, CallError>> + Send;

    /// How long the outside may still send traffic to a target after it was drained or deregistered,
    /// with the driver's floor applied; `None` where the registry does not say.
    fn drain_delay(&self, service: &str) -> impl Future<Output = Result<Option<Duration>, CallError>> + Send;

    /// The one family of addresses that `service` takes, where it takes one only and this is known by now.
    fn family(&self, _service: &str) -> Option<Family> {
        None
    }

    /// What its own check asks of the targets of `service`, where it has one, can say it, and was asked about the service by now.
    fn health_check(&self, _service: &str) -> Option<HealthCheck> {
        None
    }

    /// Why Lockstep may not put targets into `service`, where the registry says so of the whole service: another controller keeps it, say.
    fn refusal(&self, _service: &str) -> impl Future<Output = Result<Option<String>, CallError>> + Send {
        std::future::ready(Ok(None))
    }

    /// How many requests it may get; fixed for the life of the value.
    fn pace(&self) -> Pace {
        Pace::default()
    }
}

/// How many requests a registry may get, by what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Requests of every kind.
    pub calls: Rate,
    /// Those that carry changes; they count as calls too.
    pub changes: Rate,
}

/// Requests over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests a second in the long run.
    pub per_second: f64,
    /// Requests that may come at once after a rest.
    pub burst: f64,
}

impl Default for Rate {
    /// Far above what a rollout needs, far below what hurts a registry that has no quota of its own.
    fn default() -> Self {
        Self { per_second: 200.0, burst: 200.0 }
    }
}

/// What a registry can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How targets are drained.
    pub drain: DrainKind,
    /// What tells two targets of a service apart.
    pub keys: TargetKeys,
    /// Whether a listing shows the cluster and pod UID of each target.
    pub stamps: bool,
    /// Whether [`Registry::list`] can wait for a change.
    pub blocking_read: bool,
    /// The most changes that one request carries.
    pub batch: NonZeroUsize,
    /// When a target counts as gone once its containers are gone.
    pub gone_when: GoneWhen,
    /// Time between two reads of a service while something waits, where there is no blocking read.
    pub poll: Duration,
}

/// How a registry drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainKind {
    /// A drain leaves the target listed as draining until it is deregistered.
    Explicit,
    /// There is no drain; deregistering drains first.
    ByDeregistering,
}

/// What tells two targets of one service apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKeys {
    /// Address, port and pod UID: a change names one incarnation, two pods may have one address, and one pod two addresses.
    Exact,
    /// Port and pod UID: registering the same pod at another address replaces the address.
    Uid,
    /// Address and port: whoever registers last owns it.
    Address,
}

/// When a target counts as gone, once the containers of its pod are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneWhen {
    /// Not listed any more.
    Absent,
    /// Not listed any more, or listed as draining.
    Draining,
}

/// Condition of a blocking read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Index of the listing that is known already.
    pub index: u64,
    /// Answer at the latest after this long, changed or not.
    pub at_most: Duration,
}

/// Every target of a service at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The targets, in no order.
    pub targets: Vec<Listed>,
    /// Where the next blocking read goes on; `None` without blocking reads.
    pub index: Option<u64>,
    /// Something that was begun goes on only as the service is read, so it is read again soon, whether or not a pod waits for it.
    pub unfinished: bool,
}

/// One target in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Address and port.
    pub address: SocketAddr,
    /// What the registry says of it.
    pub state: TargetState,
    /// Whose it is, where the registry can say.
    pub stamp: Option<Stamp>,
}

/// Mark of a target in a registry that can keep one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `cluster` of the configuration that registered it.
    pub cluster: Arc<str>,
    /// The pod; empty where the registry keeps no more than that the target is ours.
    pub uid: PodUid,
}

/// What a registry's own health check asks of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `http`, `https`, `tcp` or whatever the registry calls it, in small letters.
    pub protocol: String,
    /// The port that it asks; `None`: that of the target.
    pub port: Option<u16>,
    /// The path that it asks, where there is one.
    pub path: Option<String>,
    /// Between two checks.
    pub interval: Duration,
    /// So many that pass in a row make a target healthy.
    pub passes: u32,
}

/// One operation on one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What to do.
    pub operation: Operation,
    /// Address and port of the target.
    pub address: SocketAddr,
    /// UID of its pod.
    pub uid: PodUid,
    /// Name of its pod, for stamps that people read.
    pub pod: PodKey,
    /// `cluster` of the configuration, for stamps.
    pub cluster: Arc<str>,
    /// Share of the traffic, where the registry has weights; 100 is the normal share.
    pub weight: u16,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Put the target in.
    Register,
    /// Stop new traffic to it, leave it in.
    Drain,
    /// Take it out.
    Deregister,
}

/// Why a whole call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not connected: certainly nothing left.
    #[error("the registry cannot be reached: {0}")]
    Unavailable(String),
    /// Refused for now; try again later.
    #[error("the registry asks to slow down: {0}")]
    Throttled(String),
    /// Not allowed.
    #[error("the registry denies access: {0}")]
    Denied(String),
    /// No such service.
    #[error("the registry knows no such service: {0}")]
    ServiceMissing(String),
    /// No answer within [`CALL_TIMEOUT`]: it may have been done.
    #[error("the registry did not answer in time")]
    Timeout,
    /// Any other failure: it may have been done.
    #[error("the registry failed: {0}")]
    Failed(String),
}

/// Why one change of an answered call was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The target is not there; for a drain or a deregister that is an acknowledgement.
    #[error("no such target")]
    NotFound,
    /// The service takes no more targets.
    #[error("the service is full: {0}")]
    Full(String),
    /// Refused for now; try again later.
    #[error("the registry asks to slow down: {0}")]
    Throttled(String),
    /// Not allowed.
    #[error("the registry denies the change: {0}")]
    Denied(String),
    /// Any other refusal.
    #[error("the registry refuses the change: {0}")]
    Refused(String),
    /// Done in a part of the registry at most: it is to be sent again until all of it has it.
    #[error("not all of the registry was reached: {0}")]
    Unfinished(String),
}

impl DrainKind {
    /// What is sent to drain a target.
    pub fn operation(self) -> Operation {
        match self {
            Self::Explicit => Operation::Drain,
            Self::ByDeregistering => Operation::Deregister,
        }
    }
}

impl Operation {
    /// The word for logs, metrics and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Drain => "drain",
            Self::Deregister => "deregister",
        }
    }
}
