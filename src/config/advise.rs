//! What is legal in a configuration but unwise.
//!
//! `check` prints it; it never keeps a configuration from being used.
//!
//! Invariant: the defaults and the example of the documentation get no advice.
//! Absent on purpose: errors (`parse`).

use std::time::Duration;

use super::{
    Ack, AwsConfig, Binding, Configuration, Drain, Driver, DriverConfig, Mode, Namespaces, OnUnready, RegistryConfig, show_duration, text,
};
use crate::names::OWN_NAMESPACE;

/// How long a Lease lasts: a new leader may take this long to begin.
const LEASE: Duration = Duration::from_secs(12);
/// cluster-autoscaler and most node upgrades wait no longer for a pod to end.
const NODE_PATIENCE: Duration = Duration::from_secs(600);
/// A Deployment reports a rollout as failed after this long (its default).
const PROGRESS_DEADLINE: Duration = Duration::from_secs(600);
/// Namespaces that are never injected, whatever a binding says.
const NEVER: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Advice {
    /// The place, as in `bindings[0].drain`.
    pub path: String,
    /// What is unwise.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// Everything that is legal but unwise.
pub fn advise(configuration: &Configuration) -> Vec<Advice> {
    let mut advice = Vec::new();
    injection(configuration, &mut advice);
    registration(configuration, &mut advice);
    quotas(configuration, &mut advice);
    for (i, binding) in configuration.bindings.iter().enumerate() {
        let path = format!("bindings[{i}]");
        selection(configuration, binding, &path, &mut advice);
        delays(configuration, binding, &path, &mut advice);
        policies(configuration, binding, &path, &mut advice);
        let shadow = configuration.bindings[..i].iter().find(|earlier| earlier.can_share_a_target(binding));
        if let Some(earlier) = shadow {
            let reason = format!("can select a pod for the same target as binding {}; the target is registered once", earlier.name);
            say(&mut advice, path.clone(), reason, "make the selectors exclude each other, or write one binding");
        }
        one_keeper(configuration, i, &path, &mut advice);
    }
    advice
}

/// Two registries that keep one service do not know of each other's changes.
fn one_keeper(configuration: &Configuration, i: usize, path: &str, advice: &mut Vec<Advice>) {
    let config = |binding: &Binding| configuration.registry(&binding.service.registry);
    let binding = &configuration.bindings[i];
    let other = configuration.bindings[..i]
        .iter()
        .find(|earlier| config(binding).zip(config(earlier)).is_some_and(|(mine, its)| binding.fills_the_service_of(earlier, mine, its)));
    if let Some(other) = other {
        let registry = &other.service.registry;
        let reason =
            format!("is in the very service of binding {}, by way of registry {registry}; neither counts the other's targets", other.name);
        say(advice, path, reason, "one registry for both, or another service");
    }
}

fn injection(configuration: &Configuration, advice: &mut Vec<Advice>) {
    let injection = &configuration.injection;
    if injection.margin < LEASE {
        let reason = format!("{} is less than the {} that a change of leader may take", show(injection.margin), show(LEASE));
        say(advice, "injection.margin", reason, "15s, unless pods may be cut off when the leader changes");
    }
    if injection.max_grace > NODE_PATIENCE {
        let reason = format!("{} is above the {} that cluster-autoscaler waits", show(injection.max_grace), show(NODE_PATIENCE));
        say(advice, "injection.maxGrace", reason, "570s, or raise --max-graceful-termination-sec too");
    }
    if injection.max_sleep > injection.max_grace {
        let reason = format!("{} is never reached: maxGrace is {}", show(injection.max_sleep), show(injection.max_grace));
        say(advice, "injection.maxSleep", reason, "a value below maxGrace");
    }
    if injection.max_sleep < Duration::from_secs(1) {
        say(advice, "injection.maxSleep", "leaves no sleep at all", "say so with preStop: none");
    }
}

fn registration(configuration: &Configuration, advice: &mut Vec<Advice>) {
    let registration = &configuration.registration;
    if registration.gate_timeout >= PROGRESS_DEADLINE {
        let reason = format!("{} is not before the 10 min after which a Deployment reports failure", show(registration.gate_timeout));
        say(advice, "registration.gateTimeout", reason, "8m, or a longer progressDeadlineSeconds on the Deployments");
    }
    if registration.panic_threshold == 0 {
        let reason = "0% lets a probe that fails everywhere empty a load balancer down to its last target";
        say(advice, "registration.panicThreshold", reason, "50%");
    }
}

/// Each registry keeps to a pace that fits into the quota of an account, and knows nothing of another's.
fn quotas(configuration: &Configuration, advice: &mut Vec<Advice>) {
    for (i, registry) in configuration.registries.iter().enumerate() {
        let DriverConfig::Aws(aws) = &registry.driver else { continue };
        let others = configuration.registries[..i].iter().filter_map(|earlier| match &earlier.driver {
            DriverConfig::Aws(other) if other.region == aws.region => {
                Some((earlier, same_account(configuration, (registry, aws), (earlier, other))?))
            }
            _ => None,
        });
        // One of which it is sure says more than one of which it is not.
        if let Some((earlier, sure)) = others.max_by_key(|(_, sure)| *sure) {
            let (asks, exceed) = if sure { ("asks", "exceed") } else { ("may ask", "would exceed") };
            let reason =
                format!("{asks} the same account and region as registry {}; together they {exceed} its quota of calls", earlier.name);
            say(advice, format!("registries[{i}].aws"), reason, "one registry for all these bindings");
        }
    }
}

/// Whether two registries work in one account, `Some(false)`: perhaps.
fn same_account(configuration: &Configuration, one: (&RegistryConfig, &AwsConfig), other: (&RegistryConfig, &AwsConfig)) -> Option<bool> {
    match (account(configuration, one), account(configuration, other)) {
        (Some(one), Some(other)) => (one == other).then_some(true),
        // Both have the role of the process.
        _ if one.1.assume_role == other.1.assume_role => Some(true),
        _ => Some(false),
    }
}

/// The account of a registry, as its role or its target groups tell.
fn account<'c>(configuration: &'c Configuration, (registry, aws): (&'c RegistryConfig, &'c AwsConfig)) -> Option<&'c str> {
    let bound = || configuration.bindings.iter().find(|binding| binding.service.registry == registry.name);
    let of_group = || Some(text::target_group(&bound()?.service.service).ok()?.1);
    aws.assume_role.as_deref().and_then(text::role_account).or_else(of_group)
}

fn selection(configuration: &Configuration, binding: &Binding, path: &str, advice: &mut Vec<Advice>) {
    if !binding.selector.is_satisfiable() {
        let reason = "contradicts itself: no pod can satisfy all of it";
        say(advice, format!("{path}.podSelector"), reason, "remove one of the requirements on the same label");
    }
    let Namespaces::Named(names) = &binding.namespaces else { return };
    for (i, name) in names.iter().enumerate() {
        let never = NEVER.contains(&&**name) || &**name == OWN_NAMESPACE;
        if never || configuration.injection.excluded_namespaces.contains(name) {
            let reason = format!("pods of {name} are never injected");
            say(advice, format!("{path}.namespaces[{i}]"), reason, "leave it out");
        }
    }
}

fn delays(configuration: &Configuration, binding: &Binding, path: &str, advice: &mut Vec<Advice>) {
    let injection = &configuration.injection;
    let delay = binding.drain.delay(None);
    let sum = delay.saturating_add(injection.margin);
    if sum > injection.max_sleep && injection.max_sleep >= Duration::from_secs(1) {
        let sums =
            format!("{} and the margin of {} are above maxSleep ({})", show(delay), show(injection.margin), show(injection.max_sleep));
        say(advice, format!("{path}.drain"), sums, "a higher maxSleep, or a shorter drain delay in the registry");
    }
    if matches!(binding.drain, Drain::HealthCheck { .. }) {
        let reason = "helps only if what is polled fails once the pod terminates; a poll of the pod itself passes during the sleep";
        say(advice, format!("{path}.drain.healthCheck"), reason, "see HealthCheckPollsPod on the page of findings (docs/findings.md)");
    }
}

fn policies(configuration: &Configuration, binding: &Binding, path: &str, advice: &mut Vec<Advice>) {
    let driver = configuration.registry(&binding.service.registry).map(|registry| registry.driver.driver());
    if binding.ack == Ack::Accepted && binding.mode == Mode::Own && (driver != Some(Driver::Haproxy) || binding.check) {
        let reason = "opens the gate before the registry has said that traffic can reach the pod";
        say(advice, format!("{path}.ack"), reason, "acknowledged");
    }
    if binding.on_unready == OnUnready::Deregister {
        let reason = "a probe that fails for a moment takes the target out and puts it through registration again";
        say(advice, format!("{path}.onUnready"), reason, if driver == Some(Driver::Aws) { "keep" } else { "drain" });
    }
}

fn say(advice: &mut Vec<Advice>, path: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) {
    advice.push(Advice { path: path.into(), reason: reason.into(), remedy: remedy.into() });
}

fn show(duration: Duration) -> String {
    show_duration(duration)
}
