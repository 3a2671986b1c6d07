//! The pods of a drawn world: slots of deployments, each with one life after the other.
//!
//! A life begins, flaps, moves, loses its binding or its node, and ends in one of the ways in which pods end.
//!
//! Invariant: an address is given to a new pod only once the old one's sandbox is gone; by then our finalizer may still hold the object.
//! Absent on purpose: what goes wrong around the pods (`faults`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::generate::{Author, Bound};
use crate::scenario::grammar::{
    ContainerSpec, Create, Delete, Handles, NodeStep, OnPods, OwnerKind, PhaseWord, Preloaded, RegistrySpec, Span, StateWord, TargetName,
    Update,
};
use crate::world::pods::ContainerState;

const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// One pod from its making to its end, in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) handle: String,
    pub(crate) app: &'static str,
    pub(crate) node: &'static str,
    begins: u64,
    addressed: u64,
    ready: Option<u64>,
    /// When its sandbox is gone.
    pub(crate) over: Option<u64>,
    pub(crate) ip: Ipv4Addr,
    /// The name that all pods of the slot have, one after the other.
    name: Option<String>,
}

/// How a pod ends.
#[derive(Clone, Copy)]
enum End {
    Graceful,
    Short,
    Forced,
    Evicted,
    Finished,
    Vanished,
}

/// Tells the lives of all pods.
pub(crate) fn tell(author: &mut Author) {
    let mut apps: Vec<&'static str> = author.bindings.iter().map(|binding| binding.app).collect();
    apps.push("other");
    apps.dedup();
    apps.sort_unstable();
    apps.dedup();
    for app in apps {
        let slots = if app == "other" { author.random.below(2) } else { 1 + author.random.below(6) };
        for slot in 0..slots {
            one_slot(author, app, slot);
        }
    }
    give_addresses(author);
    let lives = author.lives.clone();
    for life in &lives {
        make(author, life);
        events(author, life);
        end(author, life);
    }
    let observed: Vec<Bound> = author.bindings.iter().filter(|binding| binding.observed).cloned().collect();
    for binding in observed {
        other_controller(author, &binding, &lives);
    }
}

fn one_slot(author: &mut Author, app: &'static str, slot: u64) {
    let mut at = author.random.below(8000);
    let name = author.random.chance(4).then(|| format!("{app}-{slot}"));
    for number in 0.. {
        let addressed = at + author.random.below(1500);
        let ready = (!author.random.chance(12)).then(|| addressed + author.random.below(5000));
        let lives = 5000 + author.random.below(60_000);
        let stays = author.random.chance(4) || at + lives + 12_000 > author.busy;
        let over = (!stays).then(|| at + lives + author.random.below(8000));
        let node = author.pick(&NODES);
        let handle = format!("{app}-{slot}-{number}");
        author.lives.push(Life { handle, app, node, begins: at, addressed, ready, over, ip: Ipv4Addr::UNSPECIFIED, name: name.clone() });
        let Some(over) = over else { return };
        // A rolling update makes the next one before the old one ends; a StatefulSet after.
        at = if name.is_none() && author.random.chance(2) {
            over.saturating_sub(author.random.below(9000)).max(at + 1000)
        } else {
            over + author.random.below(3000)
        };
    }
}

/// Gives each life an address, that of one that is over where there is one.
fn give_addresses(author: &mut Author) {
    let mut order: Vec<usize> = (0..author.lives.len()).collect();
    order.sort_by_key(|index| author.lives[*index].addressed);
    let mut free: Vec<(u64, Ipv4Addr)> = Vec::new();
    let mut next = Ipv4Addr::new(10, 0, 0, 10);
    for index in order {
        let at = author.lives[index].addressed;
        // The other controller of an observed service is told by address alone: there no address comes twice.
        let app = author.lives[index].app;
        let observed = author.bindings.iter().any(|binding| binding.observed && binding.app == app);
        let reusable = free.iter().position(|(from, _)| *from < at).filter(|_| !observed && !author.random.chance(3));
        let ip = match reusable {
            Some(position) => free.remove(position).1,
            None => {
                next = Ipv4Addr::from_bits(next.to_bits() + 1);
                next
            }
        };
        author.lives[index].ip = ip;
        if let Some(over) = author.lives[index].over.filter(|_| !observed) {
            free.push((over, ip));
        }
    }
}

fn make(author: &mut Author, life: &Life) {
    let mut create = Create { pod: life.handle.clone(), node: Some(Some(life.node.to_owned())), ..Create::default() };
    create.name.clone_from(&life.name);
    create.labels = Some(BTreeMap::from([("app".to_owned(), life.app.to_owned())]));
    let ports = BTreeMap::from([("http".to_owned(), 8080), ("admin".to_owned(), 9090)]);
    let ports = if author.random.chance(15) { BTreeMap::from([("other".to_owned(), 7070)]) } else { ports };
    create.containers.insert("web".to_owned(), ContainerSpec { ports: Some(ports), ..ContainerSpec::default() });
    if author.random.chance(6) {
        create
            .containers
            .insert("proxy".to_owned(), ContainerSpec { init: Some(true), restartable: Some(true), ..ContainerSpec::default() });
    }
    if author.random.chance(8) {
        create.sleep = Some(Span(Duration::from_secs(20)));
        create.grace = Some(Span(Duration::from_secs(50)));
    }
    if author.random.chance(10) {
        create.admitted = Some(false);
    } else if author.random.chance(12) {
        create.finalizer = Some(false);
    }
    if author.random.chance(4) {
        create.owned_by = Some(OwnerKind::ReplicaSet);
    }
    if author.random.chance(10) {
        create.finalizers = vec!["example.com/held".to_owned()];
    }
    if life.addressed == life.begins {
        create.ips = Some(addresses(life));
    }
    author.step(life.begins, |step| step.create = Some(create));
    if life.addressed > life.begins {
        let ips = Some(addresses(life));
        update(author, life, life.addressed, |one| one.ips = ips);
    }
    if let Some(ready) = life.ready {
        update(author, life, ready, |one| one.containers_ready = Some(true));
    }
}

/// A pod's addresses: every third one is dual-stack.
fn addresses(life: &Life) -> Vec<IpAddr> {
    let bits = life.ip.to_bits();
    let mut ips = vec![IpAddr::V4(life.ip)];
    if bits.is_multiple_of(3) {
        ips.push(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::try_from(bits & 0xffff).unwrap_or(1))));
    }
    ips
}

fn update(author: &mut Author, life: &Life, at: u64, fill: impl FnOnce(&mut Update)) {
    let mut one = Update { pod: Handles(vec![life.handle.clone()]), ..Update::default() };
    fill(&mut one);
    author.step(at, |step| step.update = Some(one));
}

/// What happens to a pod while it lives.
fn events(author: &mut Author, life: &Life) {
    let from = life.ready.unwrap_or(life.addressed) + 100;
    let to = life.over.map_or(author.busy, |over| over.saturating_sub(9000));
    if to <= from || life.ready.is_none() {
        return;
    }
    let mut at = from + author.random.below(to - from);
    for _ in 0..author.random.below(4) {
        if at >= to {
            return;
        }
        at = event(author, life, at) + author.random.below(15_000);
    }
}

/// One thing that happens to a pod; when it is over.
fn event(author: &mut Author, life: &Life, at: u64) -> u64 {
    let lasts = 200 + author.random.below(12_000);
    let until = (at + lasts).min(life.over.map_or(author.busy, |over| over.saturating_sub(9000))).max(at);
    match author.random.below(14) {
        0..=5 => {
            update(author, life, at, |one| one.containers_ready = Some(false));
            update(author, life, until, |one| one.containers_ready = Some(true));
        }
        6 => {
            // A container that restarts is gone for a moment.
            update(author, life, at, |one| {
                one.containers.insert("web".to_owned(), ContainerState::Terminated);
            });
            update(author, life, until, |one| one.containers_ready = Some(true));
        }
        7 if !author.bindings.iter().any(|binding| binding.observed && binding.app == life.app) => {
            let moved = Ipv4Addr::from_bits(life.ip.to_bits() + 0x0001_0000);
            update(author, life, at, |one| {
                one.ip = Some(None);
                one.containers_ready = Some(false);
            });
            update(author, life, until, |one| {
                one.ip = Some(Some(IpAddr::V4(moved)));
                one.containers_ready = Some(true);
            });
        }
        8 => {
            update(author, life, at, |one| drop(one.labels.insert("app".to_owned(), Some("nobody".to_owned()))));
            update(author, life, until, |one| drop(one.labels.insert("app".to_owned(), Some(life.app.to_owned()))));
        }
        9 => update(author, life, at, |one| one.finalizer = Some(false)),
        10 => update(author, life, at, |one| drop(one.labels.insert("lockstep.dev/managed".to_owned(), None))),
        11 if author.random.chance(4) => update(author, life, at, |one| one.released = Some(true)),
        _ => {
            update(author, life, at, |one| drop(one.labels.insert("example.com/colour".to_owned(), Some("blue".to_owned()))));
        }
    }
    until
}

/// How a pod ends.
fn end(author: &mut Author, life: &Life) {
    let Some(over) = life.over else { return };
    let pod = Handles(vec![life.handle.clone()]);
    let way = author.pick(&[
        End::Graceful,
        End::Graceful,
        End::Graceful,
        End::Graceful,
        End::Short,
        End::Forced,
        End::Evicted,
        End::Finished,
        End::Vanished,
    ]);
    let delete = |author: &mut Author, at: u64, grace: Option<u64>| {
        let grace = grace.map(|grace| Span(Duration::from_secs(grace)));
        let delete = Delete { pod: pod.clone(), grace };
        author.step(at, |step| step.delete = Some(delete));
    };
    let last = |author: &mut Author, at: u64| {
        let pod = pod.clone();
        author.step(at, |step| step.final_delete = Some(OnPods { pod }));
    };
    let begin = over.saturating_sub(500 + author.random.below(8000)).max(life.begins + 1);
    match way {
        End::Graceful => {
            delete(author, begin, None);
            if author.random.chance(2) {
                update(author, life, over - 200, |one| one.containers_ready = Some(false));
            }
            last(author, over);
        }
        End::Short => {
            delete(author, begin, Some(1));
            last(author, over.min(begin + 1000));
        }
        End::Forced => {
            delete(author, begin, Some(0));
            if author.random.chance(2) {
                last(author, over);
            }
        }
        End::Evicted | End::Finished => {
            let phase = if matches!(way, End::Evicted) { PhaseWord::Failed } else { PhaseWord::Succeeded };
            update(author, life, over, |one| one.phase = Some(phase));
            let at = over + author.random.below(30_000);
            delete(author, at, None);
        }
        End::Vanished => {
            let pod = pod.clone();
            author.step(over, |step| step.vanish = Some(OnPods { pod }));
        }
    }
    // Whatever else holds it lets go in the end.
    let at = over + 1000 + author.random.below(5000);
    update(author, life, at, |one| one.finalizers = Some(Vec::new()));
}

/// The controller that owns an observed service.
fn other_controller(author: &mut Author, binding: &Bound, lives: &[Life]) {
    for life in lives.iter().filter(|life| life.app == binding.app && life.ready.is_some()) {
        let address = IpAddr::V4(life.ip);
        let target = TargetName::Address((address, binding.port).into());
        let begin =
            || RegistrySpec { name: Some(binding.registry.clone()), service: Some(binding.service.clone()), ..RegistrySpec::default() };
        let added = life.addressed + author.random.below(4000);
        let over = life.over.unwrap_or(u64::MAX);
        if added >= over {
            continue;
        }
        let mut spec = begin();
        spec.adds.push(Preloaded {
            address,
            port: binding.port,
            service: binding.service.clone(),
            state: StateWord::Initial,
            uid: None,
            cluster: None,
        });
        author.step(added, |step| step.registry = Some(spec));
        let active = added + author.random.below(4000);
        if active < over {
            let mut spec = begin();
            spec.sets.insert(target.clone(), StateWord::Active);
            author.step(active, |step| step.registry = Some(spec));
        }
        if life.over.is_some() {
            let mut spec = begin();
            spec.sets.insert(target.clone(), StateWord::Draining);
            author.step(over, |step| step.registry = Some(spec));
            let mut spec = begin();
            spec.loses = Some(crate::scenario::grammar::Loses::These(vec![target]));
            let at = over + author.random.below(10_000);
            author.step(at, |step| step.registry = Some(spec));
        }
    }
}

/// A node step.
pub(crate) fn node(name: &str) -> NodeStep {
    NodeStep { name: name.to_owned(), ready: None, gone: None, taint: None }
}

/// A node of the world.
pub(crate) fn some_node(author: &mut Author) -> &'static str {
    author.pick(&NODES)
}
