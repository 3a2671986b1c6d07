//! The steps of a scenario, done to the world.
//!
//! One function for each action, in the words of the format.
//!
//! Invariant: a step that cannot be done (a name that is taken, a configuration that does not parse) is a failure of the scenario.
//! Absent on purpose: what must be true afterwards (`judge`).

mod check;
mod registries;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use lockstep::config::Configuration;
use lockstep::names;
use lockstep::pod::{ContainerPort, Owner, Phase};
use lockstep::registry::{DrainKind, Operation};
use lockstep::target::PodKey;
use serde_json::{Value, json};

pub(crate) use check::{check, known};
use registries::{behaviour, change_registry, hold};
pub(crate) use registries::{named, state_of};

use super::grammar::{
    ApiStep, ConfigSpec, Create, Handles, Inject, NodeStep, OwnerKind, PhaseWord, RegistrySpec, ReplicaDoes, ReplicaStep, RestartPolicy,
    Scenario, Sent, Step, Taint, Update, WatchDoes, WatchStep,
};
use crate::world::pods::{Container, ContainerState, NewPod, Pod, PodId, Spec};
use crate::world::record::{WriteKind, means};
use crate::world::registry::{Behaviour, SimRegistryState};
use crate::world::{Agenda, ApiRule, Moment, Trap, Trigger, World, watch};

/// The namespace of pods that name none.
const NAMESPACE: &str = "shop";

/// What a scenario's registries do where its configuration leaves a choice to the driver.
pub(crate) struct Setting {
    drains: BTreeMap<String, DrainKind>,
}

impl Setting {
    /// The setting of one scenario.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let drains = |spec: &RegistrySpec| behaviour(Behaviour::default(), spec).drains;
        Self { drains: scenario.registries.iter().map(|(name, spec)| (name.clone(), drains(spec))).collect() }
    }

    /// The text of a configuration, and what the product's own parser makes of it.
    pub(crate) fn configuration(&self, spec: &ConfigSpec) -> Result<(String, Configuration), String> {
        let text = self.text(spec);
        let configuration = crate::product::parse_configuration(&text)?;
        Ok((text, configuration))
    }

    fn text(&self, spec: &ConfigSpec) -> String {
        let registries = spec.registries.clone().unwrap_or_else(|| vec![json!({"name": "sim", "http": {"url": "http://sim.invalid"}})]);
        let web = json!({
            "name": "web", "namespaces": ["shop"], "podSelector": {"matchLabels": {"app": "web"}},
            "registry": "sim", "service": "web", "port": 8080
        });
        let mut bindings = spec.bindings.clone().unwrap_or_else(|| vec![web]);
        for binding in bindings.iter_mut().filter_map(Value::as_object_mut) {
            binding.entry("drain").or_insert_with(|| json!({"fixed": "30s"}));
            let registry = binding.get("registry").and_then(Value::as_str).unwrap_or("");
            if self.drains.get(registry) == Some(&DrainKind::ByDeregistering) {
                binding.entry("onUnready").or_insert_with(|| json!("keep"));
            }
        }
        let whole = json!({
            "apiVersion": names::CONFIG_API_VERSION,
            "kind": names::CONFIG_KIND,
            "cluster": spec.cluster.as_deref().unwrap_or("sim"),
            "registration": spec.registration.clone().unwrap_or_else(|| json!({})),
            "registries": registries,
            "bindings": bindings,
        });
        serde_json::to_string_pretty(&whole).expect("a value is always text")
    }
}

/// The handles that a `create` makes, each with how far its address is counted up.
fn incarnations(create: &Create) -> Vec<(String, usize)> {
    match create.count {
        None => vec![(create.pod.clone(), 0)],
        Some(count) => (0..count).map(|index| (format!("{}-{index}", create.pod), index)).collect(),
    }
}

/// Makes the registries of a scenario.
pub(crate) fn set_up(world: &mut World, scenario: &Scenario) {
    let lags = scenario.registries.values().chain(scenario.steps.iter().filter_map(|step| step.registry.as_ref()));
    let keeps_history = lags.into_iter().any(|spec| spec.list_lag.is_some());
    for (name, spec) in &scenario.registries {
        let name: Arc<str> = Arc::from(name.as_str());
        let mut state = SimRegistryState::new(behaviour(Behaviour::default(), spec));
        state.keeps_history = keeps_history;
        world.registries.insert(name.clone(), state);
        for one in &spec.holds {
            hold(world, &name, one);
        }
    }
    world.opt(&Arc::from(NAMESPACE), true);
}

/// Does one step; `Err` where it cannot be done.
pub(crate) fn apply(world: &mut World, setting: &Setting, step: &Step) -> Result<(), String> {
    if let Some(create) = &step.create {
        return make(world, create);
    }
    if let Some(update) = &step.update {
        each(world, &update.pod, |world, id| change(world, id, update));
    } else if let Some(delete) = &step.delete {
        each(world, &delete.pod, |world, id| world.delete(id, delete.grace.map(|grace| grace.0)));
    } else if let Some(last) = &step.final_delete {
        each(world, &last.pod, World::final_delete);
    } else if let Some(vanish) = &step.vanish {
        each(world, &vanish.pod, World::vanish);
    } else if let Some(node) = &step.node {
        change_node(world, node);
    } else if let Some(namespace) = &step.namespace {
        let opted_in = matches!(namespace.inject, Some(Inject::Enabled | Inject::Strict));
        world.opt(&Arc::from(namespace.name.as_str()), opted_in);
    } else if let Some(config) = &step.config {
        let (text, configuration) = setting.configuration(config).map_err(|error| format!("the configuration: {error}"))?;
        world.set_configuration(&text, Some(configuration));
    } else if let Some(text) = &step.config_text {
        if crate::product::parse_configuration(text).is_ok() {
            return Err("configText parses".to_owned());
        }
        world.record.fault("bad configuration");
        world.set_configuration(text, None);
    } else if let Some(registry) = &step.registry {
        change_registry(world, registry);
    } else if let Some(replica) = &step.replica {
        change_replica(world, replica);
    } else if let Some(cut) = &step.cut {
        let until = world.now + cut.lasts.0;
        world.cut(&Arc::from(cut.replica.as_str()), until);
    } else if let Some(watch) = &step.watch {
        change_watch(world, watch);
    } else if let Some(api) = &step.api {
        add_rule(world, api);
    } else if let Some(jump) = step.jump {
        world.record.fault("wall clock jumps");
        world.exec.jump(jump.0);
        let moment = world.moment();
        world.jumps.push(moment);
    }
    Ok(())
}

fn each(world: &mut World, pods: &Handles, act: impl Fn(&mut World, PodId)) {
    let meant = |pod: &Pod| pods.0.iter().any(|pattern| means(pattern, &pod.handle));
    let ids: Vec<PodId> = (0..world.pods.len()).filter(|id| world.pods[*id].gone.is_none() && meant(&world.pods[*id])).collect();
    for id in ids {
        act(world, id);
    }
}

fn make(world: &mut World, create: &Create) -> Result<(), String> {
    for (handle, index) in incarnations(create) {
        let name = create.name.clone().unwrap_or_else(|| handle.clone());
        let namespace = create.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let admitted = create.admitted.unwrap_or(true);
        let mut labels = create.labels.clone().unwrap_or_else(|| BTreeMap::from([("app".to_owned(), "web".to_owned())]));
        if create.managed.unwrap_or(admitted) {
            labels.insert(names::MANAGED_LABEL.to_owned(), names::MANAGED_VALUE.to_owned());
        }
        let key = PodKey::new(namespace, name.clone());
        let mut annotations = BTreeMap::new();
        if admitted {
            annotations.insert(names::RECORD_ANNOTATION.to_owned(), injected(world, create, &key, &labels));
        }
        let node = match &create.node {
            None => Some(Arc::from("node-a")),
            Some(node) => node.as_deref().map(Arc::from),
        };
        let new = NewPod {
            handle: Arc::from(handle.as_str()),
            key,
            spec: Spec {
                gated: create.gate.unwrap_or(admitted),
                foreign_gates: create.gates.clone(),
                controller: create.owned_by.map(|kind| owner(kind, &create.pod)),
                mirror: create.mirror.unwrap_or(false),
                completes: matches!(create.restart_policy, Some(RestartPolicy::OnFailure | RestartPolicy::Never)),
            },
            labels,
            annotations,
            finalizers: create.finalizers.clone(),
            finalizer: create.finalizer.unwrap_or(admitted),
            grace: create.grace.map_or(Duration::from_secs(30), |grace| grace.0),
            node,
            containers: containers(create),
        };
        let made = world.create(new, |pod, moment| begin(pod, moment, create, index));
        if !made {
            return Err(format!("the name {name} is still taken by a pod object"));
        }
    }
    Ok(())
}

fn begin(pod: &mut Pod, moment: Moment, create: &Create, index: usize) {
    let ips = create.ips.clone().or_else(|| create.ip.flatten().map(|ip| vec![ip]));
    pod.ips = ips.unwrap_or_default().into_iter().map(|ip| counted_up(ip, index)).collect();
    pod.foreign.extend(create.conditions.iter().map(|(type_, word)| (type_.clone(), format!("{word:?}"))));
    if let Some(ready) = create.containers_ready {
        pod.set_containers_ready(ready);
    }
    if let Some(word) = create.phase {
        pod.set_phase(phase(word));
    }
    if create.released == Some(true) {
        pod.release(moment);
    }
}

fn injected(world: &World, create: &Create, key: &PodKey, labels: &BTreeMap<String, String>) -> String {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let newest = world.in_force().next();
    let bindings: Vec<String> =
        newest.map_or_else(Vec::new, |one| one.bindings_of(&key.namespace, label).map(|binding| binding.name.to_string()).collect());
    let mut record = json!({"version": 1, "bindings": bindings, "findings": []});
    if let (Some(sleep), Some(record)) = (create.sleep, record.as_object_mut()) {
        let grace = create.grace.map_or(30, |grace| grace.0.as_secs());
        record.insert("sleepSeconds".to_owned(), json!(sleep.0.as_secs()));
        record.insert("graceBefore".to_owned(), json!(grace.saturating_sub(sleep.0.as_secs())));
    }
    record.to_string()
}

fn owner(kind: OwnerKind, name: &str) -> Owner {
    let api_version = if kind == OwnerKind::Job { "batch/v1" } else { "apps/v1" };
    Owner { api_version: api_version.to_owned(), kind: format!("{kind:?}"), name: name.to_owned(), uid: format!("owner-{name}") }
}

fn containers(create: &Create) -> Vec<Container> {
    let port = |name: &str, number| ContainerPort { name: Some(Arc::from(name)), number };
    let web = Container {
        name: "web".to_owned(),
        init: false,
        restartable: false,
        ports: vec![port("http", 8080)],
        state: ContainerState::Waiting,
        ready: false,
    };
    let mut all = vec![web];
    for (name, spec) in &create.containers {
        let known = all.iter().position(|one| one.name == *name);
        let index = known.unwrap_or_else(|| {
            all.push(Container { name: name.clone(), ports: Vec::new(), ..all[0].clone() });
            all.len() - 1
        });
        let container = &mut all[index];
        container.init = spec.init.unwrap_or(container.init);
        container.restartable = spec.restartable.unwrap_or(container.restartable);
        container.state = spec.state.unwrap_or(container.state);
        if let Some(ports) = &spec.ports {
            container.ports = ports.iter().map(|(name, number)| port(name, *number)).collect();
        }
    }
    all
}

fn counted_up(ip: IpAddr, by: usize) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits().wrapping_add(u32::try_from(by).unwrap_or(0)))),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits().wrapping_add(by as u128))),
    }
}

fn change(world: &mut World, id: PodId, update: &Update) {
    if let Some(node) = &update.node {
        world.mention_node(&Arc::from(node.as_str()));
    }
    world.change(id, |pod, moment| {
        if let Some(node) = &update.node {
            pod.node = Some(Arc::from(node.as_str()));
        }
        if let Some(ips) = update.ips.clone().or_else(|| update.ip.map(|ip| ip.into_iter().collect())) {
            pod.ips = ips;
        }
        for (key, value) in &update.labels {
            match value {
                Some(value) => pod.labels.insert(key.clone(), value.clone()),
                None => pod.labels.remove(key),
            };
        }
        pod.foreign.extend(update.conditions.iter().map(|(type_, word)| (type_.clone(), format!("{word:?}"))));
        if let Some(finalizers) = &update.finalizers {
            pod.foreign_finalizers.clone_from(finalizers);
        }
        if let Some(finalizer) = update.finalizer {
            pod.finalizer = finalizer;
        }
        for (name, state) in &update.containers {
            pod.set_container(name, *state);
        }
        if let Some(ready) = update.containers_ready {
            pod.set_containers_ready(ready);
        }
        if let Some(word) = update.phase {
            pod.set_phase(phase(word));
        }
        if update.released == Some(true) {
            pod.release(moment);
        }
    });
}

fn phase(word: PhaseWord) -> Phase {
    match word {
        PhaseWord::Pending => Phase::Pending,
        PhaseWord::Running => Phase::Running,
        PhaseWord::Succeeded => Phase::Succeeded,
        PhaseWord::Failed => Phase::Failed,
    }
}

fn change_node(world: &mut World, step: &NodeStep) {
    let name: Arc<str> = Arc::from(step.name.as_str());
    world.record.fault("node changes");
    if step.gone == Some(true) {
        world.remove_node(&name);
        return;
    }
    world.put_node(&name, |node| {
        if let Some(ready) = step.ready {
            node.ready = ready;
        }
        match step.taint {
            Some(Taint::Unreachable) => node.unreachable = true,
            Some(Taint::OutOfService) => node.out_of_service = true,
            Some(Taint::None) => {
                node.unreachable = false;
                node.out_of_service = false;
            }
            None => {}
        }
    });
}

fn change_replica(world: &mut World, step: &ReplicaStep) {
    let trap = |before: bool, on: Sent| Trap {
        replica: step.name.clone(),
        before,
        on: trigger(on),
        pods: step.pod.as_ref().map(|pods| pods.0.clone()),
        starts_after: step.starts_after.map(|span| span.0),
    };
    if let Some(on) = step.before {
        world.traps.push(trap(true, on));
    }
    if let Some(on) = step.after {
        world.traps.push(trap(false, on));
    }
    let Some(what) = step.what else { return };
    let name: Arc<str> = Arc::from(world.replica_named(&step.name));
    let process = world.process_of(&name);
    let now = world.now;
    match (what, process) {
        (ReplicaDoes::Start, _) => world.later(now, Agenda::Start(name)),
        (ReplicaDoes::Crash, Some(process)) => {
            world.record.fault("replica crashes");
            world.end(process);
            if let Some(after) = step.starts_after {
                world.later(now + after.0, Agenda::Start(name));
            }
        }
        (ReplicaDoes::Stop, Some(process)) => {
            world.record.fault("replica stops");
            world.stop(process);
        }
        (ReplicaDoes::Pause, Some(process)) => {
            world.record.fault("replica pauses");
            world.pauses.push(process);
            world.later(now + step.lasts.map_or(Duration::ZERO, |span| span.0), Agenda::Resume(process));
        }
        (_, None) => {}
    }
}

fn trigger(sent: Sent) -> Trigger {
    match sent {
        Sent::Register => Trigger::Change(Operation::Register),
        Sent::Drain => Trigger::Change(Operation::Drain),
        Sent::Deregister => Trigger::Change(Operation::Deregister),
        Sent::Status => Trigger::Write(WriteKind::Status),
        Sent::Finalizer => Trigger::Write(WriteKind::Finalizer),
        Sent::Adopt => Trigger::Write(WriteKind::Adopt),
    }
}

fn change_watch(world: &mut World, step: &WatchStep) {
    let until = world.now + step.lasts.map_or(Duration::ZERO, |span| span.0);
    match step.what {
        WatchDoes::Drop => world.drops.push(watch::Drop { pattern: step.pod.clone().unwrap_or_default(), until }),
        WatchDoes::Delay => world.delays.push(watch::Delay { by: step.by.map_or(Duration::ZERO, |span| span.0), until }),
        WatchDoes::Silence => world.silence_watches(),
        WatchDoes::Expire => world.expire_watches(),
    }
}

fn add_rule(world: &mut World, step: &ApiStep) {
    let kind = match trigger(step.to) {
        Trigger::Write(kind) => kind,
        Trigger::Change(_) => return,
    };
    let until = step.lasts.map(|span| world.now + span.0);
    let pods = step.pod.as_ref().map(|pods| pods.0.clone());
    world.api_rules.push(ApiRule { kind, code: step.answer, pods, times: step.times, until, applied: step.applied });
}
