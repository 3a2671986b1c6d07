//! What bindings say of the services of one registry, put together for its driver.
//!
//! It stands apart from how the registry is reached: an edit of a binding must not make a new connection, which would know nothing of the old.
//!
//! Invariant: bindings of one service that would contradict each other are no valid configuration (`overlap`), so their order decides nothing.
//! Absent on purpose: what concerns pods and not the service (`registration`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Binding, Configuration, Driver, Mode, Servers};

/// What bindings say of the services of one registry, as far as its driver needs to know; empty for drivers that need nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// Of each target group (aws), by its ARN.
    pub groups: BTreeMap<Arc<str>, TargetGroup>,
    /// Of each backend that bindings own targets in (haproxy), by its name.
    pub backends: BTreeMap<Arc<str>, HaproxyBackend>,
}

/// What bindings say of a target group; all of one group say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    /// Whether targets are ours to change; observed only if every binding says so.
    pub mode: Mode,
    /// States, with reason codes, that count as active too, as `state/ReasonCode`.
    pub accept_states: Vec<String>,
}

/// What the bindings that own targets in a backend of HAProxy say of it; all of one backend say the same, but for weight and drain delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaproxyBackend {
    /// How servers come to be.
    pub servers: Servers,
    /// Whether they are checked.
    pub check: bool,
    /// Share of the traffic, where all of them name the same.
    pub weight: Option<u16>,
    /// The longest of their drain delays.
    pub drain: Duration,
}

impl Configuration {
    /// What the bindings say of the services of the registry of that name.
    pub fn services(&self, registry: &str) -> Services {
        let mut services = Services::default();
        for binding in self.bindings.iter().filter(|binding| &*binding.service.registry == registry) {
            match self.registry(registry).map(|registry| registry.driver.driver()) {
                Some(Driver::Aws) => services.add_group(binding),
                Some(Driver::Haproxy) => services.add_backend(binding),
                Some(Driver::Consul | Driver::Http) | None => {}
            }
        }
        services
    }
}

impl Services {
    fn add_group(&mut self, binding: &Binding) {
        let group = TargetGroup { mode: binding.mode, accept_states: binding.accept_states.clone() };
        let known = self.groups.entry(binding.service.service.clone()).or_insert(group);
        if binding.mode == Mode::Own {
            known.mode = Mode::Own;
        }
    }

    fn add_backend(&mut self, binding: &Binding) {
        if binding.mode == Mode::Observe {
            return;
        }
        let drain = binding.drain.delay(None);
        let backend = HaproxyBackend { servers: binding.servers, check: binding.check, weight: Some(binding.weight), drain };
        let known = self.backends.entry(binding.service.service.clone()).or_insert(backend);
        known.drain = known.drain.max(drain);
        known.weight = known.weight.filter(|weight| *weight == binding.weight);
    }
}
