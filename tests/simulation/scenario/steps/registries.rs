//! What a story says of registries, done to them.
//!
//! Invariant: what a spec leaves out stays as it is.
//! Absent on purpose: what registries do by themselves (`world::registry`).

use std::net::SocketAddr;
use std::sync::Arc;

use lockstep::registry::{DrainKind, GoneWhen, TargetKeys};
use lockstep::target::{PodUid, ServiceId, TargetState};

use crate::scenario::grammar::{ActiveAs, AnswersSpec, Drains, GoneWord, Keys, Loses, Preloaded, RegistrySpec, StateWord, TargetName};
use crate::world::World;
use crate::world::registry::{Answers, Behaviour, Held, SimRegistryState};

/// A behaviour with what a spec says changed.
pub(super) fn behaviour(mut behaviour: Behaviour, spec: &RegistrySpec) -> Behaviour {
    if let Some(drains) = spec.drains {
        behaviour.drains = match drains {
            Drains::Explicitly => DrainKind::Explicit,
            Drains::ByDeregistering => DrainKind::ByDeregistering,
        };
    }
    if let Some(keys) = spec.keys {
        behaviour.keys = match keys {
            Keys::Exact => TargetKeys::Exact,
            Keys::Uid => TargetKeys::Uid,
            Keys::Address => TargetKeys::Address,
        };
    }
    behaviour.marks = spec.marks.unwrap_or(behaviour.marks);
    if let Some(word) = spec.gone_when {
        behaviour.gone_when = Some(if word == GoneWord::Draining { GoneWhen::Draining } else { GoneWhen::Absent });
    }
    behaviour.active_after = spec.active_after.map_or(behaviour.active_after, |one| one.0);
    if let Some(word) = spec.active_as {
        behaviour.active_as = if word == ActiveAs::Active { TargetState::Active } else { TargetState::Unused };
    }
    behaviour.draining_after = spec.draining_after.map_or(behaviour.draining_after, |one| one.0);
    behaviour.gone_after = spec.gone_after.map_or(behaviour.gone_after, |one| one.0);
    match spec.answers {
        Some(AnswersSpec::All(answer)) => behaviour.answers = Answers::all(answer),
        Some(AnswersSpec::Each(each)) => {
            let ok = Answers::all(crate::world::registry::Answer::Ok);
            behaviour.answers = Answers {
                register: each.register.unwrap_or(ok.register),
                drain: each.drain.unwrap_or(ok.drain),
                deregister: each.deregister.unwrap_or(ok.deregister),
                list: each.list.unwrap_or(ok.list),
            };
        }
        None => {}
    }
    behaviour.capacity = spec.capacity.unwrap_or(behaviour.capacity);
    behaviour.batch = spec.batch.unwrap_or(behaviour.batch);
    behaviour.latency = spec.latency.map_or(behaviour.latency, |one| one.0);
    behaviour.list_lag = spec.list_lag.map_or(behaviour.list_lag, |one| one.0);
    behaviour.duplicates = spec.duplicates.map_or(behaviour.duplicates, |one| one.map(|one| one.0));
    behaviour
}

/// A step about a registry.
pub(super) fn change_registry(world: &mut World, spec: &RegistrySpec) {
    let name: Arc<str> = Arc::from(spec.name.as_deref().unwrap_or("sim"));
    let state = world.registries.entry(name.clone()).or_insert_with(|| SimRegistryState::new(Behaviour::default()));
    state.behaviour = behaviour(state.behaviour.clone(), spec);
    for one in &spec.adds {
        hold(world, &name, one);
    }
    let service = ServiceId::new(name, spec.service.as_deref().unwrap_or("web"));
    match &spec.loses {
        Some(Loses::All(_)) => {
            world.record.fault("registry lost its data");
            world.lose(&service, |_| true);
        }
        Some(Loses::These(targets)) => {
            world.record.fault("registry lost targets");
            for target in targets {
                let which = named(world, target);
                world.lose(&service, which);
            }
        }
        None => {}
    }
    for (target, word) in &spec.sets {
        let which = named(world, target);
        world.set_state(&service, state_of(*word), which);
    }
}

/// Whether a target is the one that a story names.
pub(crate) fn named(world: &World, target: &TargetName) -> impl Fn(&Held) -> bool + use<> {
    let (address, uid): (Option<SocketAddr>, Option<PodUid>) = match target {
        TargetName::Address(address) => (Some(*address), None),
        TargetName::Handle(handle) => (None, world.pod_of_handle(handle).map(|id| world.pods[id].uid.clone())),
    };
    move |held| address == Some(held.address) || (uid.is_some() && held.owner == uid)
}

/// The state that a word means.
pub(crate) fn state_of(word: StateWord) -> TargetState {
    match word {
        StateWord::Initial => TargetState::Initial,
        StateWord::Active => TargetState::Active,
        StateWord::Unhealthy => TargetState::Unhealthy,
        StateWord::Draining => TargetState::Draining,
        StateWord::Unused => TargetState::Unused,
    }
}

/// Puts a target there.
pub(super) fn hold(world: &mut World, registry: &Arc<str>, one: &Preloaded) {
    let owner = one.uid.as_deref().zip(one.cluster.as_deref()).map(|(uid, cluster)| (PodUid::new(uid), Arc::from(cluster)));
    let address = SocketAddr::new(one.address, one.port);
    world.hold(&ServiceId::new(registry.clone(), one.service.as_str()), address, owner, state_of(one.state));
}
