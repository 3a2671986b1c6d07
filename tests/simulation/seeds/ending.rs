//! What must be true once the faults of a drawn world have ended: nothing is held for ever, nothing is left behind.
//!
//! Invariant: judged from the world's truth; the product is not asked.
//! Absent on purpose: single moments on the way (`world::invariants`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use lockstep::config::Mode;
use lockstep::target::{ServiceId, TargetState};

use super::faults::Kind;
use super::generate::Tale;
use crate::scenario::grammar::Step;
use crate::world::World;
use crate::world::invariants::wants;
use crate::world::pods::{Pod, PodId};
use crate::world::record::means;

/// More writes of one pod in a minute than this are no longer bounded.
const WRITES_IN_A_MINUTE: usize = 60;

/// After this long what could be seen must have been acted on: a retry, a read, three slow messages for each pod of a small batch.
pub(crate) const PROMPT: Duration = Duration::from_secs(90);

/// Faults after which everything that matters is still seen at once.
const SEEN_AT_ONCE: [Kind; 9] = [
    Kind::ApiSlow,
    Kind::ApiFails,
    Kind::RegistryAnswers,
    Kind::RegistryHalf,
    Kind::RegistrySlow,
    Kind::RegistryFull,
    Kind::Node,
    Kind::Crash,
    Kind::EventsTwice,
];

/// Whether a world with these faults must be in order soon after they end.
pub(crate) fn is_prompt(kinds: &[Kind]) -> bool {
    kinds.iter().all(|kind| SEEN_AT_ONCE.contains(kind))
}

/// Judges a world soon after its faults have ended.
pub(crate) fn prompt(world: &mut World) {
    held(world, "late: held");
    serving(world, "late: serving");
}

/// Whether nothing is left to happen: everything that is judged at the end holds, and nothing is owed.
pub(crate) fn is_in_order(world: &mut World) -> bool {
    let known = world.failures.len();
    leader(world);
    held(world, "");
    serving(world, "");
    left_behind(world, &BTreeSet::new());
    moved_on(world);
    adopted(world);
    let in_order = world.failures.len() == known && world.debt_count() == 0;
    world.failures.truncate(known);
    in_order
}

/// Judges the end of a world.
pub(crate) fn judge(world: &mut World, tale: &Tale) {
    leader(world);
    held(world, "end: held");
    serving(world, "end: serving");
    let excused = excused(world, tale);
    left_behind(world, &excused);
    moved_on(world);
    adopted(world);
    writes(world);
}

/// Every pod that belongs to us is in our care.
fn adopted(world: &mut World) {
    let Some(configuration) = world.in_force().next() else { return };
    let ours = |pod: &&Pod| {
        let bound = world.is_opted_in(&pod.key.namespace) && pod.looks().bindings(configuration).next().is_some();
        bound && pod.is_live() && !pod.is_managed() && pod.released.is_none() && !pod.spec.completes && !pod.spec.mirror
    };
    let left_out: Vec<String> = world.objects().filter(ours).map(|pod| pod.handle.to_string()).collect();
    for handle in left_out {
        world.fail("end: adopted", "every bound pod of an opted-in namespace is managed", handle);
    }
}

fn leader(world: &mut World) {
    if world.process_of(&world.lease.holder).is_none() {
        let holder = world.lease.holder.clone();
        world.fail("end: leader", "a living replica leads", format!("the Lease names {holder:?}"));
    }
}

/// No pod is held for ever.
fn held(world: &mut World, rule: &str) {
    let stuck: Vec<String> = world
        .objects()
        .filter(|pod| pod.finalizer && pod.released.is_none())
        .filter(|pod| (pod.deletion.is_some() || pod.is_terminal()) && world.containers_gone(pod))
        .filter(|pod| !pod.claims.iter().any(|claim| claim.observed && world.stands(claim)))
        .map(|pod| format!("{} (claims {:?})", pod.handle, pod.claims.iter().map(ToString::to_string).collect::<Vec<_>>()))
        .collect();
    for pod in stuck {
        world.fail(rule, "no pod is held for ever once faults end", pod);
    }
}

/// Every pod that serves is Ready, and its targets are in use.
fn serving(world: &mut World, rule: &str) {
    let mut problems = Vec::new();
    let ids: Vec<PodId> = world.objects().filter_map(|pod| world.pod_of_uid(&pod.uid)).collect();
    for id in ids {
        let pod = &world.pods[id];
        if !pod.is_live() || !pod.containers_ready.status || pod.released.is_some() || !pod.is_managed() || world.is_node_lost(pod) {
            continue;
        }
        let Some(configuration) = world.in_force().next() else { return };
        let mut complete = true;
        for binding in pod.looks().bindings(configuration) {
            let Some(address) = pod.looks().target(binding) else {
                complete = false;
                continue;
            };
            let registry = world.registries.get(&binding.service.registry);
            // Without marks an address is its present pod's, whoever registered it.
            let marks = registry.is_none_or(|registry| registry.behaviour.marks);
            let service = registry.and_then(|one| one.services.get(&binding.service.service));
            let active = service.is_some_and(|service| {
                service.targets.values().any(|held| {
                    held.address == address
                        && held.state == TargetState::Active
                        && (binding.mode == Mode::Observe || !marks || held.owner.as_ref() == Some(&pod.uid))
                })
            });
            complete &= active || binding.mode != Mode::Observe;
            if !active && binding.mode == Mode::Own {
                problems.push((format!("the target {address} of {} is active in {}", pod.handle, binding.service), "it is not".to_owned()));
            }
        }
        if complete && pod.spec.gated && !pod.gate.as_ref().is_some_and(|gate| gate.status) {
            let found = pod.gate.as_ref().map_or_else(|| "no gate".to_owned(), |gate| format!("{} ({})", gate.reason, gate.message));
            problems.push((format!("{} serves and its gate is True", pod.handle), found));
        }
        if !pod.finalizer {
            problems.push((format!("{} carries our finalizer", pod.handle), "it does not".to_owned()));
        }
    }
    for (wanted, found) in problems {
        world.fail(rule, wanted, found);
    }
}

/// No target is left of a pod that is gone, where the registry or the product can know that it is ours.
fn left_behind(world: &mut World, excused: &BTreeSet<PodId>) {
    let mut problems = Vec::new();
    let observed: BTreeSet<ServiceId> = world
        .in_force()
        .flat_map(|one| one.bindings.iter().filter(|binding| binding.mode == Mode::Observe).map(|binding| binding.service.clone()))
        .collect();
    for (name, registry) in &world.registries {
        for (service, state) in &registry.services {
            let service_id = ServiceId::new(name.clone(), service.clone());
            for held in state.targets.values().filter(|_| !observed.contains(&service_id)) {
                let Some(owner) = held.owner.as_ref().and_then(|uid| world.pod_of_uid(uid)) else {
                    let ours = held.cluster.as_ref().is_some_and(|cluster| world.in_force().any(|one| one.cluster == *cluster));
                    if ours
                        && registry.behaviour.marks
                        && world.in_force().any(|one| one.bindings.iter().any(|binding| binding.service == service_id))
                    {
                        problems.push(format!("{} of nobody in {service_id}, {}", held.address, held.state.as_str()));
                    }
                    continue;
                };
                let pod = &world.pods[owner];
                let ended = pod.gone.is_some() || (pod.is_terminal() && pod.released.is_none());
                let unknown = |id: &PodId| *id == owner || claims(&world.pods[*id], &service_id, held.address);
                let knowable = registry.behaviour.marks || !excused.iter().any(unknown);
                let shadowed = is_taken(world, owner, &service_id, held.address);
                if ended && knowable && !shadowed {
                    problems.push(format!("{} of {} in {service_id}, {}", held.address, pod.handle, held.state.as_str()));
                }
            }
        }
    }
    for problem in problems {
        world.fail("end: left behind", "no target of a pod that is gone", problem);
    }
}

/// No target of a live pod is left at an address that the pod has lost, where the registry says whose it is.
fn moved_on(world: &mut World) {
    let mut problems = Vec::new();
    for (name, registry) in world.registries.iter().filter(|(_, registry)| registry.behaviour.marks) {
        for (service, state) in &registry.services {
            let id = ServiceId::new(name.clone(), service.clone());
            for held in state.targets.values() {
                let owner = held.owner.as_ref().and_then(|uid| world.pod_of_uid(uid)).map(|owner| &world.pods[owner]);
                let lost = |pod: &&Pod| pod.is_live() && pod.released.is_none() && !pod.ips.contains(&held.address.ip());
                if let Some(pod) = owner.filter(lost) {
                    problems.push(format!("{} of {} in {id}, {}", held.address, pod.handle, held.state.as_str()));
                }
            }
        }
    }
    for problem in problems {
        world.fail("end: moved", "no target of a pod at an address that it has lost", problem);
    }
}

/// Whether a live pod claims that target or should have it, so that the debt waits.
fn is_taken(world: &World, of: PodId, service: &ServiceId, address: SocketAddr) -> bool {
    world
        .pods
        .iter()
        .enumerate()
        .filter(|(id, pod)| *id != of && pod.is_live())
        .any(|(_, pod)| claims(pod, service, address) || world.in_force().any(|one| wants(one, pod, service, address)))
}

fn claims(pod: &Pod, service: &ServiceId, address: SocketAddr) -> bool {
    pod.claims.iter().any(|claim| claim.service == *service && claim.address == address)
}

/// Pods of which nobody could know that something is left: what held them was taken off by hand, or a registry did a change twice.
/// Where a registry has no marks that holds for what they claim, too: they may have inherited it from a pod that was let go for that.
fn excused(world: &World, tale: &Tale) -> BTreeSet<PodId> {
    let by_hand = |step: &Step| -> Vec<String> {
        let mut handles = Vec::new();
        handles.extend(step.vanish.iter().flat_map(|one| one.pod.0.clone()));
        handles.extend(
            step.update.iter().filter(|one| one.finalizer == Some(false) || one.released == Some(true)).flat_map(|one| one.pod.0.clone()),
        );
        handles.extend(
            step.update.iter().filter(|one| one.labels.contains_key(lockstep::names::MANAGED_LABEL)).flat_map(|one| one.pod.0.clone()),
        );
        handles
    };
    let patterns: Vec<String> = tale.scenario.steps.iter().flat_map(by_hand).collect();
    let repeats = tale.kinds.contains(&Kind::RegistryRepeats);
    let meant = |pod: &Pod| repeats || patterns.iter().any(|pattern| means(pattern, &pod.handle));
    world.pods.iter().enumerate().filter(|(_, pod)| meant(pod)).map(|(id, _)| id).collect()
}

/// Writes are bounded.
fn writes(world: &mut World) {
    let mut times: std::collections::BTreeMap<PodId, Vec<Duration>> = std::collections::BTreeMap::new();
    for write in &world.record.writes {
        times.entry(write.pod).or_default().push(write.at);
    }
    let minute = Duration::from_secs(60);
    let busy = |times: &[Duration]| times.windows(WRITES_IN_A_MINUTE + 1).any(|span| span[WRITES_IN_A_MINUTE] - span[0] < minute);
    let found: Vec<PodId> = times.iter().filter(|(_, times)| busy(times)).map(|(pod, _)| *pod).collect();
    for pod in found {
        let handle = world.pods[pod].handle.clone();
        world.fail("end: writes", format!("at most {WRITES_IN_A_MINUTE} writes of a pod in a minute"), handle.to_string());
    }
}
