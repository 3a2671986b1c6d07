//! A pod as far as bindings ask: as it truly is, and as a process was last shown it.
//!
//! Invariant: says the same of the same labels, addresses and ports, whoever asks.
//! Absent on purpose: the product's own answer to the same question.

use std::net::{IpAddr, SocketAddr};

use lockstep::config::{Binding, Configuration, Family, Port};
use lockstep::pod::{ContainerPort, Labels, Phase};
use lockstep::target::ServiceId;

use super::{Shown, claims_of};
use crate::world::pods::Pod;

/// A pod, as far as bindings ask.
pub(crate) struct Looks<'a> {
    namespace: &'a str,
    labels: &'a Labels,
    ips: &'a [IpAddr],
    ports: Vec<&'a ContainerPort>,
}

impl Shown {
    /// As the process was last shown it.
    pub(crate) fn looks(&self) -> Looks<'_> {
        let view = &self.view;
        Looks { namespace: &view.key.namespace, labels: &view.labels, ips: &view.addresses, ports: view.ports.iter().collect() }
    }

    /// Whether it was live when the process was last shown it.
    pub(crate) fn is_live(&self) -> bool {
        self.view.deletion.is_none() && !matches!(self.view.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it had the address when the process was last shown it.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.view.addresses.contains(&ip)
    }

    /// Its claims of a service when the process was last shown it.
    pub(crate) fn claims_in(&self, service: &ServiceId) -> bool {
        claims_of(self.view.claims.as_ref()).iter().any(|claim| claim.service == *service && !claim.observed)
    }
}

impl Pod {
    /// As it truly is.
    pub(crate) fn looks(&self) -> Looks<'_> {
        let ports = self.containers.iter().filter(|one| one.counts()).flat_map(|one| &one.ports).collect();
        Looks { namespace: &self.key.namespace, labels: &self.view.labels, ips: &self.ips, ports }
    }
}

impl<'a> Looks<'a> {
    /// The bindings of a configuration that select it.
    pub(crate) fn bindings<'c>(&self, configuration: &'c Configuration) -> impl Iterator<Item = &'c Binding> + use<'a, 'c> {
        let (namespace, labels) = (self.namespace, self.labels);
        configuration.bindings.iter().filter(move |binding| binding.selects(namespace, |key| labels.get(key)))
    }

    /// Where the target of a binding is on it.
    pub(crate) fn target(&self, binding: &Binding) -> Option<SocketAddr> {
        let ip = match binding.family {
            Family::Auto => self.ips.first(),
            Family::Ipv4 => self.ips.iter().find(|ip| ip.is_ipv4()),
            Family::Ipv6 => self.ips.iter().find(|ip| ip.is_ipv6()),
        };
        Some(SocketAddr::new(*ip?, self.port(binding)?))
    }

    pub(super) fn wants(&self, configuration: &Configuration, service: &ServiceId, address: SocketAddr) -> bool {
        let here = |binding: &Binding| binding.service == *service && self.port(binding) == Some(address.port());
        self.ips.contains(&address.ip()) && self.bindings(configuration).any(here)
    }

    fn port(&self, binding: &Binding) -> Option<u16> {
        match &binding.port {
            Port::Number(number) => Some(*number),
            Port::Name(name) => self.ports.iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number),
        }
    }
}

/// Whether a configuration wants that target of a pod in that service.
pub(crate) fn wants(configuration: &Configuration, pod: &Pod, service: &ServiceId, address: SocketAddr) -> bool {
    pod.looks().wants(configuration, service, address)
}
