//! Targets: one endpoint of one pod in one service of one registry.
//!
//! Both lanes and every driver speak of targets, so the words stand here and illegal values do not construct.
//!
//! Invariant: a target's identity is address, port **and** pod UID; an address alone is free again while the old object still exists.
//! Absent on purpose: what should happen to a target (`registration`), how it is told (`registry`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// UID of a pod: one incarnation, never used again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(Arc<str>);

/// Namespace and name of a pod; another pod may have them later.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub name: Arc<str>,
}

/// A service of a registry: one set of endpoints in the registry's own name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId {
    /// Name of the registry in the configuration.
    pub registry: Arc<str>,
    /// The registry's name for the service.
    pub service: Arc<str>,
}

/// One endpoint of one pod in one service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Where it is registered.
    pub service: ServiceId,
    /// Address and port that receive the traffic.
    pub address: SocketAddr,
    /// The pod behind it.
    pub uid: PodUid,
}

/// State of a target as the registry reports it; a target that is not listed has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetState {
    /// Known, not in use yet.
    Initial,
    /// Receives new traffic.
    Active,
    /// The registry's own check fails; no new traffic.
    Unhealthy,
    /// No new traffic by request; old connections may still run.
    Draining,
    /// Listed, but no traffic can reach it (a group without a listener, a zone that is off).
    Unused,
}

impl PodUid {
    /// Takes the UID as the API server gave it.
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        Self(uid.into())
    }

    /// The UID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PodKey {
    /// Key of the pod `name` in `namespace`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl ServiceId {
    /// The service `service` of `registry`.
    pub fn new(registry: impl Into<Arc<str>>, service: impl Into<Arc<str>>) -> Self {
        Self { registry: registry.into(), service: service.into() }
    }
}

impl TargetState {
    /// The word for people, metrics and the `http` contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Active => "active",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Unused => "unused",
        }
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.service)
    }
}
