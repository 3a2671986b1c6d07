//! The simulated registries: what they hold, what they answer, and the product's driver for them.
//!
//! One model covers all kinds: the table of the scenario format says how each behaves.
//!
//! Invariant: a request takes effect when it is sent; its answer comes later and describes that moment.
//! Invariant: a clock belongs to one life of one target; whatever starts the target anew stops it.
//! Absent on purpose: whether a change was right (`invariants`).

mod behaviour;
mod driver;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use lockstep::registry::{Change, ChangeError, DrainKind, Operation};
use lockstep::target::{PodUid, ServiceId, TargetState};

pub(crate) use behaviour::{Answer, Answers, Behaviour};
pub(crate) use driver::{SimDrivers, SimRegistry};

use super::record::What;
use super::{Agenda, World};
use crate::executor::ProcessId;

/// How many received listings a service remembers for the judges.
const LISTINGS: usize = 64;

/// A registry of the world.
pub(crate) struct SimRegistryState {
    pub(crate) behaviour: Behaviour,
    pub(crate) services: BTreeMap<Arc<str>, Service>,
    /// Whether listings may ever be asked of the past.
    pub(crate) keeps_history: bool,
}

/// What a registry holds for one service, and what was said about it.
#[derive(Default)]
pub(crate) struct Service {
    pub(crate) targets: BTreeMap<TargetKey, Held>,
    snapshot: Option<Arc<Snapshot>>,
    history: Vec<(Duration, Arc<Snapshot>)>,
    index: u64,
    wakers: Vec<Waker>,
    pub(crate) tracks: HashMap<(PodUid, TargetKey), Track>,
    pub(crate) received: VecDeque<Received>,
}

/// What tells two targets apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TargetKey {
    Exact(PodUid, SocketAddr),
    Uid(PodUid, u16),
    Address(SocketAddr),
}

/// A target that is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) address: SocketAddr,
    pub(crate) owner: Option<PodUid>,
    pub(crate) cluster: Option<Arc<str>>,
    pub(crate) state: TargetState,
    pub(crate) drain_begun: bool,
    pub(crate) deregistering: bool,
    /// Put there by a registry that did a register twice.
    pub(crate) repeated: bool,
    clocks: [Option<u64>; 3],
}

/// Every target of a service at one moment, in order of address.
pub(crate) type Snapshot = Vec<Seen>;

/// One target of a [`Snapshot`], with its true owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) address: SocketAddr,
    pub(crate) owner: Option<PodUid>,
    pub(crate) cluster: Option<Arc<str>>,
    pub(crate) state: TargetState,
}

/// A listing that a replica received.
pub(crate) struct Received {
    pub(crate) sent: u64,
    pub(crate) sent_at: Duration,
    pub(crate) snapshot: Arc<Snapshot>,
}

/// The last change of one target.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) answered_at: Duration,
    pub(crate) in_flight: Option<(ProcessId, Duration)>,
    /// A register was answered ok, and nothing but registers came since.
    pub(crate) accepted: bool,
    /// Its answer says that the target is not there.
    pub(crate) absent: bool,
    /// It was a deregister, and answered ok.
    pub(crate) deregistered: bool,
    /// It, or one before it, may have taken the target out of use, and no register was sent since.
    pub(crate) out: bool,
    /// The same, without it.
    pub(crate) out_before: bool,
}

/// A clock of a target.
#[derive(Debug)]
pub(crate) struct TargetClock {
    at: ServiceId,
    key: TargetKey,
    epoch: u64,
    which: usize,
}

/// A change that a registry does once more.
#[derive(Debug)]
pub(crate) struct Repeat {
    at: ServiceId,
    change: Change,
}

const ACTIVATE: usize = 0;
const DRAIN: usize = 1;
const GO: usize = 2;

impl Service {
    /// What is held now.
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        let targets = &self.targets;
        self.snapshot.get_or_insert_with(|| Arc::new(picture(targets))).clone()
    }

    fn touched(&mut self, now: Duration, keeps_history: bool) {
        self.snapshot = None;
        self.index += 1;
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        if keeps_history {
            let snapshot = self.snapshot();
            self.history.push((now, snapshot));
        }
    }

    fn past(&mut self, at: Option<Duration>) -> Arc<Snapshot> {
        let end = at.map_or(0, |at| self.history.partition_point(|(then, _)| *then <= at));
        match (end, self.history.first()) {
            (0, None) => self.snapshot(),
            (0, Some(_)) => Arc::default(),
            (end, _) => self.history[end - 1].1.clone(),
        }
    }

    /// What a target of that pod at that address is held as.
    pub(crate) fn held_by<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a Held> {
        self.targets.values().filter(move |held| held.owner.as_ref() == Some(uid))
    }
}

fn picture(targets: &BTreeMap<TargetKey, Held>) -> Snapshot {
    let seen = |held: &Held| Seen { address: held.address, owner: held.owner.clone(), cluster: held.cluster.clone(), state: held.state };
    let mut all: Snapshot = targets.values().map(seen).collect();
    all.sort_by_key(|one| one.address);
    all
}

/// The part of a snapshot that stands at an address.
pub(crate) fn at_address(snapshot: &Snapshot, address: SocketAddr) -> &[Seen] {
    let from = snapshot.partition_point(|one| one.address < address);
    let to = snapshot.partition_point(|one| one.address <= address);
    &snapshot[from..to]
}

impl World {
    /// The service of a registry, with the registry's behaviour; both exist from their first mention.
    pub(crate) fn service(&mut self, id: &ServiceId) -> (&Behaviour, &mut Service) {
        let state = self.registries.entry(id.registry.clone()).or_insert_with(|| SimRegistryState::new(Behaviour::default()));
        (&state.behaviour, state.services.entry(id.service.clone()).or_default())
    }

    /// Puts a target there unasked.
    pub(crate) fn hold(&mut self, id: &ServiceId, address: SocketAddr, owner: Option<(PodUid, Arc<str>)>, state: TargetState) {
        self.tick();
        let (behaviour, service) = self.service(id);
        let (owner, cluster) = owner.unzip();
        let key = behaviour.key(address, owner.as_ref());
        service.targets.insert(
            key,
            Held { address, owner, cluster, state, drain_begun: false, deregistering: false, repeated: false, clocks: [None; 3] },
        );
        self.touched(id);
    }

    /// Takes targets away unasked.
    pub(crate) fn lose(&mut self, id: &ServiceId, which: impl Fn(&Held) -> bool) {
        self.tick();
        let (_, service) = self.service(id);
        let keys: Vec<TargetKey> = service.targets.iter().filter(|(_, held)| which(held)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(id, &key);
        }
    }

    /// Changes states unasked.
    pub(crate) fn set_state(&mut self, id: &ServiceId, state: TargetState, which: impl Fn(&Held) -> bool) {
        self.tick();
        let seeded = self.seeded;
        let (_, service) = self.service(id);
        let mut owners = Vec::new();
        // What is on its way out stays on its way out, whatever its health; only a story may say otherwise.
        for held in service.targets.values_mut().filter(|held| which(held) && !(seeded && (held.drain_begun || held.deregistering))) {
            held.clocks = [None; 3];
            held.drain_begun = false;
            held.deregistering = false;
            if held.state != state {
                owners.extend(held.owner.clone());
            }
            held.state = state;
        }
        for owner in owners {
            self.reached(id, Some(&owner), state);
        }
        self.touched(id);
    }

    fn touched(&mut self, id: &ServiceId) {
        let now = self.now;
        let keeps = self.registries.get(&id.registry).is_some_and(|state| state.keeps_history);
        self.service(id).1.touched(now, keeps);
    }

    fn reached(&mut self, id: &ServiceId, owner: Option<&PodUid>, state: TargetState) {
        let what = match state {
            TargetState::Active => What::Active,
            TargetState::Draining => What::Draining,
            TargetState::Initial | TargetState::Unhealthy | TargetState::Unused => return,
        };
        if let Some(pod) = owner.and_then(|uid| self.pod_of_uid(uid)) {
            self.milestone(pod, what, Some(id.registry.clone()));
        }
    }

    fn remove(&mut self, id: &ServiceId, key: &TargetKey) {
        let Some(held) = self.service(id).1.targets.remove(key) else { return };
        self.let_go(id, &held);
        self.touched(id);
    }

    fn let_go(&mut self, id: &ServiceId, held: &Held) {
        if let Some(pod) = held.owner.as_ref().and_then(|uid| self.pod_of_uid(uid)) {
            self.milestone(pod, What::Gone, Some(id.registry.clone()));
        }
    }

    /// A clock of a target runs out, if it still runs.
    pub(super) fn run_out(&mut self, clock: &TargetClock) {
        let (_, service) = self.service(&clock.at);
        let Some(held) = service.targets.get_mut(&clock.key).filter(|held| held.clocks[clock.which] == Some(clock.epoch)) else { return };
        held.clocks[clock.which] = None;
        self.tick();
        self.strike(&clock.at, &clock.key, clock.which);
    }

    fn strike(&mut self, id: &ServiceId, key: &TargetKey, which: usize) {
        if which == GO {
            self.remove(id, key);
            return;
        }
        let (behaviour, service) = self.service(id);
        let state = if which == ACTIVATE { behaviour.active_as } else { TargetState::Draining };
        let Some(held) = service.targets.get_mut(key) else { return };
        held.state = state;
        let owner = held.owner.clone();
        self.reached(id, owner.as_ref(), state);
        self.touched(id);
    }

    fn wind(&mut self, id: &ServiceId, key: &TargetKey, which: usize, after: Option<Duration>) {
        match after {
            None => {}
            Some(Duration::ZERO) => self.strike(id, key, which),
            Some(after) => {
                let epoch = self.tick();
                if let Some(held) = self.service(id).1.targets.get_mut(key) {
                    held.clocks[which] = Some(epoch);
                    let at = self.now + after;
                    self.later(at, Agenda::Target(TargetClock { at: id.clone(), key: key.clone(), epoch, which }));
                }
            }
        }
    }

    /// A registry does a change once more, unasked.
    pub(super) fn repeat(&mut self, repeat: &Repeat) {
        self.record.fault("change done twice");
        let before = self.meant_target(&repeat.at, &repeat.change);
        let _ = self.effect(&repeat.at, &repeat.change);
        let (behaviour, service) = self.service(&repeat.at);
        let key = behaviour.key(repeat.change.address, Some(&repeat.change.uid));
        if let Some(held) = service.targets.get_mut(&key)
            && repeat.change.operation == Operation::Register
            && before.is_none_or(|before| {
                before.owner != held.owner || before.address != held.address || before.state != held.state || before.deregistering
            })
        {
            held.repeated = true;
        }
    }

    /// The target that a change means, if it is held.
    pub(crate) fn meant_target(&mut self, id: &ServiceId, change: &Change) -> Option<Held> {
        let (behaviour, service) = self.service(id);
        service.targets.get(&behaviour.key(change.address, Some(&change.uid))).cloned()
    }

    fn effect(&mut self, id: &ServiceId, change: &Change) -> Result<(), ChangeError> {
        match change.operation {
            Operation::Register => self.do_register(id, change),
            Operation::Drain => self.do_drain(id, change),
            Operation::Deregister => self.do_deregister(id, change),
        }
    }

    fn do_register(&mut self, id: &ServiceId, change: &Change) -> Result<(), ChangeError> {
        let (behaviour, service) = self.service(id);
        let key = behaviour.key(change.address, Some(&change.uid));
        let after = behaviour.active_after;
        match service.targets.get(&key) {
            Some(held)
                if held.owner.as_ref() == Some(&change.uid)
                    && held.address == change.address
                    && held.state != TargetState::Draining
                    && !held.deregistering =>
            {
                return Ok(());
            }
            None if behaviour.capacity.is_some_and(|capacity| service.targets.len() >= capacity) => {
                return Err(ChangeError::Full("no more places".to_owned()));
            }
            _ => {}
        }
        let held = Held {
            address: change.address,
            owner: Some(change.uid.clone()),
            cluster: Some(change.cluster.clone()),
            state: TargetState::Initial,
            drain_begun: false,
            deregistering: false,
            repeated: false,
            clocks: [None; 3],
        };
        let before = service.targets.insert(key.clone(), held);
        if let Some(before) = before.filter(|before| before.owner.as_ref() != Some(&change.uid) || before.address != change.address) {
            self.let_go(id, &before);
        }
        self.touched(id);
        self.wind(id, &key, ACTIVATE, after);
        Ok(())
    }

    fn do_drain(&mut self, id: &ServiceId, change: &Change) -> Result<(), ChangeError> {
        let (behaviour, service) = self.service(id);
        let key = behaviour.key(change.address, Some(&change.uid));
        let (kind, after) = (behaviour.drains, behaviour.draining_after);
        let Some(held) = service.targets.get_mut(&key) else { return Err(ChangeError::NotFound) };
        if kind == DrainKind::ByDeregistering {
            return Err(ChangeError::Refused("there is no drain here".to_owned()));
        }
        if held.state == TargetState::Draining || held.drain_begun || held.deregistering {
            return Ok(());
        }
        held.drain_begun = true;
        held.clocks[ACTIVATE] = None;
        self.wind(id, &key, DRAIN, after);
        Ok(())
    }

    fn do_deregister(&mut self, id: &ServiceId, change: &Change) -> Result<(), ChangeError> {
        let (behaviour, service) = self.service(id);
        let key = behaviour.key(change.address, Some(&change.uid));
        let (kind, after) = (behaviour.drains, behaviour.gone_after);
        let Some(held) = service.targets.get_mut(&key) else { return Err(ChangeError::NotFound) };
        if held.deregistering {
            return Ok(());
        }
        held.deregistering = true;
        held.clocks[ACTIVATE] = None;
        if kind == DrainKind::ByDeregistering && held.state != TargetState::Draining {
            self.strike(id, &key, DRAIN);
        }
        self.wind(id, &key, GO, after);
        Ok(())
    }
}

impl SimRegistryState {
    /// The last change of a pod's target in a service.
    pub(crate) fn track(&self, service: &str, uid: &PodUid, address: SocketAddr) -> Option<&Track> {
        self.services.get(service)?.tracks.get(&(uid.clone(), self.behaviour.key(address, Some(uid))))
    }

    /// An empty registry.
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Self { behaviour, services: BTreeMap::new(), keeps_history: false }
    }
}
