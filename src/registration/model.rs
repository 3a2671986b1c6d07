//! For tests: a pod and a registry that do at once what a plan says.
//!
//! Invariant: nothing happens by itself; what a registry does later is an [`Event`].
//! Absent on purpose: faults (the simulation has them).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::claim;
use super::life::{Cause, Life, Stage};
use super::observe::{Doing, Facts, Memory, Observation, Outcome, Role, Seen, TargetView, Traits};
use super::plan::{Plan, Step, plan};
use super::reason::Reason;
use crate::config::{Ack, Mode, OnDrainTimeout, OnGateTimeout, OnUnbound, OnUnready, Registration};
use crate::pod::Condition;
use crate::registry::{DrainKind, GoneWhen, Operation, TargetKeys};
use crate::target::{ServiceId, TargetState};

/// The most rounds in which a pod must come to rest.
const ROUNDS: usize = 12;

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    ContainersReady,
    ContainersUnready,
    NodeLost,
    BindingGone,
    Deleted,
    ForcedDeletion,
    ContainersGone,
    Acknowledged,
    LetGo,
    GateTimeout,
    DrainTimeout,
    ForceTimeout,
}

/// One pod, one binding, one registry.
pub(super) struct Model {
    pub(super) pod: Observation,
    pub(super) held: BTreeMap<(ServiceId, SocketAddr), TargetState>,
    now: jiff::Timestamp,
    state: &'static str,
}

impl Event {
    pub(super) const ALL: [Self; 12] = [
        Self::ContainersReady,
        Self::ContainersUnready,
        Self::NodeLost,
        Self::BindingGone,
        Self::Deleted,
        Self::ForcedDeletion,
        Self::ContainersGone,
        Self::Acknowledged,
        Self::LetGo,
        Self::GateTimeout,
        Self::DrainTimeout,
        Self::ForceTimeout,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::ContainersReady => "containers ready",
            Self::ContainersUnready => "containers unready",
            Self::NodeLost => "node lost",
            Self::BindingGone => "binding gone",
            Self::Deleted => "deleted",
            Self::ForcedDeletion => "deleted by force",
            Self::ContainersGone => "containers gone",
            Self::Acknowledged => "acknowledged",
            Self::LetGo => "let go",
            Self::GateTimeout => "gate timeout",
            Self::DrainTimeout => "drain timeout",
            Self::ForceTimeout => "force timeout",
        }
    }
}

impl Model {
    /// A new pod that waits for its containers; both time-outs let go.
    pub(super) fn new() -> Self {
        let rules = Registration {
            on_gate_timeout: OnGateTimeout::Open,
            on_drain_timeout: OnDrainTimeout::Release,
            panic_threshold: 0,
            ..Registration::default()
        };
        let pod = Observation {
            released: false,
            gated: true,
            labelled: true,
            finalizer: true,
            gate: None,
            claims: None,
            life: Life { stage: Stage::Waiting, forced: false },
            bound: true,
            blocked: Vec::new(),
            targets: vec![target()],
            ready_since: None,
            deletion: None,
            grace_cut: None,
            memory: Memory::default(),
            debts_full: false,
            rules,
        };
        let mut model = Self { pod, held: BTreeMap::new(), now: jiff::Timestamp::UNIX_EPOCH, state: "" };
        model.rest();
        model
    }

    /// Any pod at any moment, with registries that hold what it last read.
    pub(super) fn at(pod: Observation, now: jiff::Timestamp) -> Self {
        let seen = |target: &TargetView| match target.facts.seen {
            Some(Seen::Listed { state, .. }) => Some(((target.service.clone(), target.address), state)),
            Some(Seen::Absent | Seen::Elsewhere(_)) | None => None,
        };
        let held = pod.targets.iter().filter_map(seen).collect();
        Self { pod, held, now, state: "" }
    }

    /// Where the pod has come to rest.
    pub(super) fn state(&self) -> &'static str {
        self.state
    }

    /// Whether the event makes sense now: an end is an end, and a registry acknowledges only what it was told.
    pub(super) fn can_happen(&self, event: Event) -> bool {
        let stage = self.pod.life.stage;
        match event {
            Event::ContainersReady | Event::ContainersUnready | Event::NodeLost | Event::BindingGone => stage.live(),
            Event::Deleted => stage.live(),
            Event::ForcedDeletion => stage.live() || (stage == Stage::Terminating && !self.pod.life.forced),
            Event::ContainersGone => stage != Stage::Gone,
            Event::Acknowledged => self.held.values().any(|state| *state == TargetState::Initial),
            Event::LetGo => stage == Stage::Gone || self.pod.life.forced,
            Event::GateTimeout => stage == Stage::Serving,
            Event::DrainTimeout => stage == Stage::Gone,
            Event::ForceTimeout => self.pod.life.forced,
        }
    }

    /// Lets `event` happen, and the pod come to rest.
    pub(super) fn happen(&mut self, event: Event) {
        self.now = self.now.checked_add(jiff::SignedDuration::from_secs(1)).unwrap();
        let pod = &mut self.pod;
        let served = pod.claims.as_ref().is_some_and(|claims| claims.status);
        match event {
            Event::ContainersReady => {
                pod.life.stage = Stage::Serving;
                pod.ready_since = Some(self.now);
                pod.targets.iter_mut().for_each(|target| target.facts.granted = false);
            }
            Event::ContainersUnready => {
                pod.life.stage = if served { Stage::NotServing(Cause::Unready) } else { Stage::Waiting };
                pod.ready_since = None;
            }
            Event::NodeLost => pod.life.stage = if served { Stage::NotServing(Cause::NodeLost) } else { Stage::Waiting },
            Event::BindingGone => {
                pod.bound = false;
                pod.targets.retain(|target| target.claim.is_some());
                pod.targets.iter_mut().for_each(|target| target.role = Role::Unbound(OnUnbound::Keep));
            }
            Event::Deleted | Event::ForcedDeletion => {
                pod.life = Life { stage: Stage::Terminating, forced: event == Event::ForcedDeletion };
                pod.deletion = Some(self.now);
                pod.memory.forced_since = pod.life.forced.then_some(self.now);
            }
            Event::ContainersGone => {
                pod.life = Life { stage: Stage::Gone, forced: false };
                pod.memory.gone_since = Some(self.now);
            }
            Event::Acknowledged => self.held.values_mut().for_each(|state| *state = TargetState::Active),
            Event::LetGo => self.held.clear(),
            Event::GateTimeout => self.pass(self.pod.rules.gate_timeout),
            Event::DrainTimeout => self.pass(self.pod.rules.drain_timeout),
            Event::ForceTimeout => self.pass(self.pod.rules.force_timeout),
        }
        // Whatever was read before may be old.
        self.pod.targets.iter_mut().for_each(|target| {
            target.facts.seen = None;
            target.facts.seen_fresh = false;
            target.facts.last_fresh = false;
        });
        self.rest();
    }

    fn pass(&mut self, time: std::time::Duration) {
        self.now = super::life::later(self.now, time);
    }

    /// Executes plans until one only waits.
    pub(super) fn rest(&mut self) {
        self.state = "";
        for _ in 0..ROUNDS {
            let plan = plan(&self.pod, self.now);
            self.state = plan.reason.as_str();
            if !self.execute(plan) {
                return;
            }
        }
        panic!("no rest: {:#?}", plan(&self.pod, self.now));
    }

    /// Executes a plan; whether it changed anything.
    fn execute(&mut self, plan: Plan) -> bool {
        let before = self.pod.clone();
        for step in plan.steps {
            match step {
                Step::Patch(patch) => {
                    if let Some(change) = patch.gate {
                        self.pod.gate =
                            Some(condition(change.status, change.reason, change.message, change.transition, self.pod.gate.as_ref()));
                    }
                    if let Some(change) = patch.claims {
                        self.claim(change.status.then_some(&change.message));
                        self.pod.claims =
                            Some(condition(change.status, change.reason, change.message, change.transition, self.pod.claims.as_ref()));
                    }
                    self.pod.finalizer = (self.pod.finalizer || patch.adopt) && !patch.release;
                    self.pod.labelled |= patch.adopt;
                }
                Step::Record(claims) => {
                    for target in &mut self.pod.targets {
                        target.facts.owed |= claims.iter().any(|claim| claim.service == target.service && claim.address == target.address);
                    }
                }
                Step::Change { service, address, operation } => self.change(&service, address, operation),
                Step::Withdraw { service, address } => {
                    if let Some(facts) = self.of(&service, address) {
                        facts.doing = Doing::Nothing;
                    }
                }
                Step::Ask { service, address } => {
                    if let Some(facts) = self.of(&service, address) {
                        facts.granted = true;
                    }
                }
                Step::Read { service, .. } => self.read(&service),
                Step::Tell(notice) => self.pod.memory.told = self.pod.memory.told.with(notice.reason),
            }
        }
        self.pod != before
    }

    /// The claims' condition says this from now on.
    fn claim(&mut self, message: Option<&String>) {
        let claims = message.map(|message| claim::parse(message)).unwrap_or_default();
        for target in &mut self.pod.targets {
            let claim = claims.iter().find(|claim| claim.service == target.service && claim.address == target.address);
            target.facts.fresh_claim |= target.claim.is_none() && claim.is_some();
            target.claim = claim.map(|claim| claim.mode);
        }
        self.pod.targets.retain(|target| target.claim.is_some() || target.role == Role::Wanted);
    }

    fn change(&mut self, service: &ServiceId, address: SocketAddr, operation: Operation) {
        let key = (service.clone(), address);
        let known = self.held.contains_key(&key);
        let Some(facts) = self.of(service, address) else { return };
        if facts.last == Some((operation, Outcome::Accepted)) {
            // The queue gives a registry time before it repeats itself.
            facts.doing = Doing::Queued(operation);
            return;
        }
        let by_deregistering = facts.traits.is_some_and(|traits| traits.drain == DrainKind::ByDeregistering);
        let outcome = if known || operation == Operation::Register { Outcome::Accepted } else { Outcome::NotFound };
        let owned = facts.owned || operation == Operation::Register;
        let last = Some((operation, outcome));
        *facts =
            Facts { last, last_fresh: true, doing: Doing::Nothing, seen: None, seen_fresh: false, owned, fresh_claim: false, ..*facts };
        match operation {
            Operation::Register => {
                self.held.insert(key, TargetState::Initial);
            }
            Operation::Drain | Operation::Deregister if !known => {}
            Operation::Drain => {
                self.held.insert(key, TargetState::Draining);
            }
            // What drains by deregistering, and what takes its time, is still there until it is let go.
            Operation::Deregister if by_deregistering => {
                self.held.insert(key, TargetState::Draining);
            }
            Operation::Deregister => {}
        }
    }

    fn read(&mut self, service: &ServiceId) {
        for target in self.pod.targets.iter_mut().filter(|target| target.service == *service) {
            let state = self.held.get(&(service.clone(), target.address));
            target.facts.seen = Some(state.map_or(Seen::Absent, |state| Seen::Listed { state: *state, ours: true }));
            target.facts.seen_fresh = true;
            target.facts.service_read = true;
        }
    }

    /// The facts of a target; `None` where a step of the same plan dropped its claim.
    fn of(&mut self, service: &ServiceId, address: SocketAddr) -> Option<&mut Facts> {
        let found = self.pod.targets.iter_mut().find(|target| target.service == *service && target.address == address);
        found.map(|target| &mut target.facts)
    }
}

/// A target that a binding wants.
pub(super) fn target() -> TargetView {
    TargetView {
        service: ServiceId::new("sim", "web"),
        address: ([10, 0, 0, 5], 8080).into(),
        claim: None,
        role: Role::Wanted,
        mode: Mode::Own,
        ack: Ack::Acknowledged,
        on_unready: OnUnready::Drain,
        facts: Facts {
            traits: Some(Traits { drain: DrainKind::Explicit, keys: TargetKeys::Uid, stamps: true, gone_when: GoneWhen::Absent }),
            ..Facts::default()
        },
        words: None,
    }
}

fn condition(status: bool, reason: Reason, message: String, transition: Option<jiff::Timestamp>, before: Option<&Condition>) -> Condition {
    let moved = before.is_none_or(|before| before.status != status);
    assert_eq!(transition.is_some(), moved, "lastTransitionTime moves exactly with the status");
    Condition { status, reason: reason.as_str().to_owned(), message, since: transition.or_else(|| before.and_then(|before| before.since)) }
}
