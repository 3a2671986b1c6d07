//! Plans of single moments, and what holds of every plan.
//!
//! Invariant: every plan is total, the same for the same observation, and comes to rest.
//! Absent on purpose: stories over time (the simulation).

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::config::{Ack, OnDrainTimeout, OnGateTimeout, OnUnbound, OnUnready, Registration};
use crate::pod::Condition;
use crate::registration::life::{Cause, Life};
use crate::registration::model::{Event, Model};
use crate::registration::observe::{Blocked, Facts, GraceCut, Heir, Memory, Outcome, Role, Seen, Traits, Trouble};
use crate::registry::{DrainKind, GoneWhen, TargetKeys};
use crate::target::TargetState;

/// The steps of the next plan of a model, a line each.
fn steps(model: &Model) -> String {
    let plan = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH);
    let mut lines = vec![plan.reason.as_str().to_owned()];
    for step in plan.steps {
        lines.push(match step {
            Step::Patch(patch) => {
                let gate =
                    patch.gate.map_or_else(|| "-".to_owned(), |gate| format!("{} {}: {}", gate.status, gate.reason.as_str(), gate.message));
                let claims = patch.claims.map_or_else(|| "-".to_owned(), |claims| format!("{} [{}]", claims.status, claims.message));
                format!("patch gate {gate} claims {claims} adopt {} release {}", patch.adopt, patch.release)
            }
            Step::Record(claims) => format!("record {}", claims.len()),
            Step::Change { service, address, operation } => format!("{} {service} {address}", operation.as_str()),
            Step::Withdraw { service, address } => format!("withdraw {service} {address}"),
            Step::Ask { service, address } => format!("ask {service} {address}"),
            Step::Read { service, urgency } => format!("read {service} {urgency:?}"),
            Step::Tell(notice) => format!("tell {}", notice.reason.as_str()),
        });
    }
    lines.join("\n")
}

fn after(events: &[Event]) -> Model {
    let mut model = Model::new();
    events.iter().for_each(|event| model.happen(*event));
    model
}

#[test]
fn the_claim_is_written_before_the_register() {
    let mut model = Model::new();
    model.pod.life.stage = Stage::Serving;
    insta::assert_snapshot!(steps(&model), @"
    Registering
    patch gate false Registering: Waiting for sim/web 10.0.0.5:8080. claims true [sim/web 10.0.0.5:8080] adopt false release false
    ");
}

/// The kind of trouble first, then the registry's own words, as one sentence.
#[rstest]
#[case::with_words(Some("no route to host."), "the registry cannot be reached: no route to host")]
#[case::without(None, "the registry cannot be reached")]
fn a_pod_shows_what_keeps_failing(#[case] words: Option<&str>, #[case] shown: &str) {
    let mut model = after(&[Event::ContainersReady]);
    model.pod.targets[0].facts.trouble = Some(Trouble::Unreachable);
    model.pod.targets[0].words = words.map(Into::into);
    let steps = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH).steps;
    let told = steps.iter().find_map(|step| match step {
        Step::Tell(notice) => Some(notice.note.as_str()),
        _ => None,
    });
    assert_eq!(told, Some(&*format!("sim/web: {shown}.")));
    let gate = steps.iter().find_map(|step| match step {
        Step::Patch(patch) => patch.gate.as_ref(),
        _ => None,
    });
    assert_eq!(gate.map(|gate| gate.message.as_str()), Some(&*format!("Waiting for sim/web 10.0.0.5:8080 ({shown}).")));
}

#[test]
fn a_registry_without_a_driver_holds_the_pod_and_is_sent_nothing() {
    let mut model = Model::new();
    model.pod.life.stage = Stage::Serving;
    model.pod.targets[0].facts.traits = None;
    let plan = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(plan.reason, Reason::RegistryUnusable);
    assert!(!plan.steps.iter().any(|step| matches!(step, Step::Change { .. })), "{:?}", plan.steps);
    let gate = plan.steps.iter().find_map(|step| if let Step::Patch(patch) = step { patch.gate.as_ref() } else { None });
    assert_eq!(gate.map(|gate| (gate.status, gate.reason)), Some((false, Reason::RegistryUnusable)));
}

#[test]
fn the_gate_is_false_before_the_drain() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    model.pod.life.stage = Stage::NotServing(Cause::Unready);
    insta::assert_snapshot!(steps(&model), @"
    Registered
    ask sim/web 10.0.0.5:8080
    ");
    model.pod.targets[0].facts.granted = true;
    insta::assert_snapshot!(steps(&model), @"
    NotServing
    patch gate false NotServing: The containers are not ready; the target is taken out of use. claims - adopt false release false
    ");
    model.pod.gate.as_mut().unwrap().status = false;
    model.pod.gate.as_mut().unwrap().reason = "NotServing".to_owned();
    model.pod.gate.as_mut().unwrap().message = "The containers are not ready; the target is taken out of use.".to_owned();
    insta::assert_snapshot!(steps(&model), @"
    NotServing
    drain sim/web 10.0.0.5:8080
    ");
}

#[test]
fn a_gate_that_the_time_out_opened_stays_open_where_a_new_address_cannot_be_claimed() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged, Event::GateTimeout]);
    let mut moved = model.pod.targets[0].clone();
    moved.address = "10.0.0.9:8080".parse().unwrap();
    moved.claim = None;
    moved.facts.traits = None;
    model.pod.targets[0].role = Role::Stale;
    model.pod.targets.push(moved);
    model.rest();
    let gate = model.pod.gate.as_ref().unwrap();
    assert_eq!((gate.status, gate.reason.as_str()), (true, "GateTimeout"));
}

#[test]
fn what_a_pod_lacks_is_said_at_its_gate_and_once_its_time_is_over() {
    let mut model = after(&[Event::ContainersReady]);
    model.pod.blocked =
        vec![Blocked { binding: "web".into(), reason: Reason::PortNotFound, lacks: "container port named http".to_owned() }];
    model.pod.targets.clear();
    model.pod.ready_since = Some(jiff::Timestamp::UNIX_EPOCH);
    model.pod.rules.gate_timeout = std::time::Duration::ZERO;
    let plan = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH);
    let notes: Vec<&str> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Patch(patch) => patch.gate.as_ref().map(|gate| &*gate.message),
            Step::Tell(notice) if notice.reason == Reason::GateTimeout => Some(&*notice.note),
            _ => None,
        })
        .collect();
    let lacks = "The pod has no container port named http, which binding web wants.";
    assert_eq!(notes, [lacks, &format!("The pod has not become Ready in time. {lacks}")]);
}

#[test]
fn a_drain_that_may_have_been_done_is_undone_before_the_gate_returns() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    model.pod.gate.as_mut().unwrap().status = false;
    model.pod.targets[0].facts.doing = Doing::Queued(Operation::Drain);
    insta::assert_snapshot!(steps(&model), @"
    Registered
    patch gate true Registered: Every registry has acknowledged the pod. claims - adopt false release false
    withdraw sim/web 10.0.0.5:8080
    ");
    model.pod.targets[0].facts =
        Facts { doing: Doing::Nothing, last: Some((Operation::Drain, Outcome::Unknown)), seen: None, ..model.pod.targets[0].facts };
    insta::assert_snapshot!(steps(&model), @"
    Registering
    patch gate false Registering: Waiting for sim/web 10.0.0.5:8080. claims - adopt false release false
    register sim/web 10.0.0.5:8080
    ");
    model.pod.targets[0].facts.seen = Some(Seen::Listed { state: TargetState::Active, ours: true });
    insta::assert_snapshot!(steps(&model), @"
    Registered
    patch gate true Registered: Every registry has acknowledged the pod. claims - adopt false release false
    ");
}

#[test]
fn the_finalizer_goes_with_the_last_claim() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged, Event::ContainersGone]);
    insta::assert_snapshot!(steps(&model), @"
    Deregistering
    read sim/web Soon
    ");
    model.pod.targets[0].facts.seen = Some(Seen::Absent);
    insta::assert_snapshot!(steps(&model), @"
    Deregistered
    patch gate - claims false [] adopt false release true
    withdraw sim/web 10.0.0.5:8080
    ");
    model.pod.targets[0].facts.seen_fresh = false;
    insta::assert_snapshot!(steps(&model), @"
    Deregistering
    read sim/web Soon
    withdraw sim/web 10.0.0.5:8080
    ");
}

#[test]
fn a_finalizer_that_was_taken_off_is_put_back_unless_the_pod_ends() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    model.pod.finalizer = false;
    insta::assert_snapshot!(steps(&model), @"
    Registered
    patch gate - claims - adopt true release false
    ");
    model.pod.life.stage = Stage::Terminating;
    model.pod.deletion = Some(jiff::Timestamp::UNIX_EPOCH);
    insta::assert_snapshot!(steps(&model), @"
    Draining
    tell Draining
    drain sim/web 10.0.0.5:8080
    ");
}

#[rstest]
#[case::unused(TargetState::Unused, false)]
#[case::initial(TargetState::Initial, false)]
#[case::unhealthy(TargetState::Unhealthy, false)]
#[case::draining(TargetState::Draining, false)]
#[case::active(TargetState::Active, true)]
fn only_active_acknowledges(#[case] state: TargetState, #[case] open: bool) {
    let mut model = after(&[Event::ContainersReady]);
    model.pod.targets[0].facts.seen = Some(Seen::Listed { state, ours: true });
    let plan = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH);
    let opens = plan.steps.iter().any(|step| matches!(step, Step::Patch(patch) if patch.gate.as_ref().is_some_and(|gate| gate.status)));
    assert_eq!(opens, open);
}

/// A register whose answer was lost may have been done by half: there, and in no use.
#[rstest]
#[case::that_was_broken_off(Some(Outcome::Unknown), TargetState::Unused, true, true)]
#[case::of_another_leader(None, TargetState::Unused, true, true)]
#[case::of_another_leader_which_opened_the_gate(None, TargetState::Unused, false, false)]
#[case::of_another_leader_that_shows(None, TargetState::Initial, true, false)]
#[case::that_shows(Some(Outcome::Unknown), TargetState::Initial, true, false)]
#[case::of_a_target_that_an_operator_took_out_of_use(Some(Outcome::Accepted), TargetState::Unused, true, false)]
#[case::which_opened_the_gate_though_its_answer_was_lost(Some(Outcome::Unknown), TargetState::Unused, false, false)]
fn a_register_is_finished(#[case] outcome: Option<Outcome>, #[case] state: TargetState, #[case] closed: bool, #[case] expected: bool) {
    let mut model = after(&[Event::ContainersReady]);
    let facts = &mut model.pod.targets[0].facts;
    (facts.last, facts.seen) = (outcome.map(|outcome| (Operation::Register, outcome)), Some(Seen::Listed { state, ours: true }));
    assert_eq!(model.pod.targets[0].wants_register(closed), expected);
}

#[test]
fn an_active_target_of_an_earlier_pod_is_no_acknowledgement() {
    let mut model = after(&[Event::ContainersReady]);
    let facts = &mut model.pod.targets[0].facts;
    facts.traits.as_mut().unwrap().stamps = false;
    facts.traits.as_mut().unwrap().keys = TargetKeys::Address;
    facts.owned = false;
    facts.last = None;
    facts.seen = Some(Seen::Listed { state: TargetState::Active, ours: false });
    assert!(!model.pod.targets[0].acknowledged());
    assert!(model.pod.targets[0].wants_register(true));
}

#[test]
fn the_heir_of_an_address_is_left_alone() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    let target = &mut model.pod.targets[0];
    target.facts.traits.as_mut().unwrap().keys = TargetKeys::Address;
    for heir in [Heir::Doubtful, Heir::Claims] {
        target.facts.heir = Some(heir);
        assert_eq!(target.wants_deregister(true), None);
        assert_eq!(target.wants_drain(), None);
        assert_eq!(target.gone(true), heir == Heir::Claims, "of one in doubt the end may have been missed");
    }
}

#[test]
fn a_register_that_a_read_does_not_show_yet_is_taken_back() {
    let mut model = after(&[Event::ContainersReady]);
    let target = &mut model.pod.targets[0];
    assert_eq!(target.facts.last, Some((Operation::Register, Outcome::Accepted)));
    target.facts = Facts { seen: Some(Seen::Absent), seen_fresh: true, last_fresh: true, ..target.facts };
    assert!(!target.gone(true));
    assert_eq!(target.wants_deregister(true), Some(Operation::Deregister));
    target.facts.last = Some((Operation::Deregister, Outcome::Accepted));
    assert!(target.gone(true));
    target.facts = Facts { last: Some((Operation::Register, Outcome::Accepted)), taken: true, ..target.facts };
    assert!(target.gone(true), "what must not be sent is not waited for");
}

#[test]
fn a_place_that_is_held_at_another_address_is_neither_acknowledged_nor_gone() {
    let mut model = after(&[Event::ContainersReady]);
    let target = &mut model.pod.targets[0];
    target.facts = Facts { seen: Some(Seen::Elsewhere(TargetState::Active)), seen_fresh: true, last_fresh: true, ..target.facts };
    assert!(!target.acknowledged() && target.wants_register(false));
    assert!(!target.gone(true));
    assert_eq!(target.wants_deregister(true), Some(Operation::Deregister));
    target.facts.last = Some((Operation::Deregister, Outcome::Accepted));
    assert!(!target.gone(true), "nor where the deregister was done: a repeated register of old may have come after it");
}

/// The budget of a new leader knows only what a read and the gate say.
#[rstest]
#[case::in_use(Some(TargetState::Active), true, Reason::Registered, false)]
#[case::on_its_way_out(Some(TargetState::Active), false, Reason::NotServing, true)]
#[case::of_a_lost_node(Some(TargetState::Active), false, Reason::NodeLost, true)]
#[case::never_registered(Some(TargetState::Active), false, Reason::Registering, false)]
#[case::out(Some(TargetState::Draining), true, Reason::Registered, true)]
#[case::not_read(None, true, Reason::Registered, false)]
#[case::not_read_and_out_maybe(None, false, Reason::NotServing, true)]
#[case::not_read_and_unbound_before(None, true, Reason::NoBinding, true)]
fn a_target_may_be_out(#[case] listed: Option<TargetState>, #[case] open: bool, #[case] reason: Reason, #[case] out: bool) {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    let target = &mut model.pod.targets[0];
    target.facts.seen = listed.map(|state| Seen::Listed { state, ours: true });
    let gate = Condition { status: open, reason: reason.as_str().to_owned(), message: String::new(), since: None };
    assert_eq!(target.may_be_out(Some(&gate)), out);
}

#[test]
fn a_drain_of_ours_does_not_pass_for_a_deregister_that_was_refused() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged, Event::Deleted]);
    let target = &mut model.pod.targets[0];
    target.facts.traits.as_mut().unwrap().gone_when = GoneWhen::Draining;
    target.facts = Facts { seen: Some(Seen::Listed { state: TargetState::Draining, ours: true }), seen_fresh: true, ..target.facts };
    for (outcome, gone) in [(Outcome::Refused, false), (Outcome::Unknown, false), (Outcome::Accepted, true)] {
        target.facts.last = Some((Operation::Deregister, outcome));
        assert_eq!(target.gone(true), gone, "{outcome:?}");
    }
}

/// What drains still counts as gone only once the containers are, and those of a pod that was just deleted may have come up again.
#[rstest]
#[case::draining(Seen::Listed { state: TargetState::Draining, ours: true }, true)]
#[case::absent(Seen::Absent, false)]
fn a_release_that_rests_on_the_containers_is_for_the_pod_as_it_was_seen(#[case] seen: Seen, #[case] as_seen: bool) {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged, Event::ContainersGone]);
    let target = &mut model.pod.targets[0];
    target.facts.traits.as_mut().unwrap().gone_when = GoneWhen::Draining;
    let last = Some((Operation::Deregister, Outcome::Accepted));
    target.facts = Facts { seen: Some(seen), seen_fresh: true, last, last_fresh: true, doing: Doing::Nothing, ..target.facts };
    let plan = plan(&model.pod, jiff::Timestamp::UNIX_EPOCH);
    let patch = plan.steps.iter().find_map(|step| if let Step::Patch(patch) = step { Some(patch) } else { None }).unwrap();
    assert_eq!((patch.release, patch.as_seen), (true, as_seen));
}

#[test]
fn an_accepted_deregister_keeps_its_claim_where_the_rest_is_given_up() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged, Event::ForcedDeletion]);
    let mut accepted = model.pod.targets[0].clone();
    accepted.address.set_port(9090);
    accepted.ack = Ack::Accepted;
    accepted.facts = Facts { last: Some((Operation::Deregister, Outcome::Accepted)), last_fresh: true, ..accepted.facts };
    model.pod.targets[0].facts = Facts { seen: None, owed: true, last: None, ..accepted.facts };
    model.pod.targets.push(accepted);
    let plan = plan(&model.pod, jiff::Timestamp::MAX);
    let patch = plan.steps.iter().find_map(|step| if let Step::Patch(patch) = step { Some(patch) } else { None }).unwrap();
    assert!(patch.release);
    assert_eq!(patch.claims.as_ref().unwrap().message, "sim/web 10.0.0.5:9090");
}

#[test]
fn a_claim_that_only_observes_is_no_leave_to_send() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    let target = &mut model.pod.targets[0];
    target.claim = Some(Mode::Observe);
    assert!(!target.wants_register(true));
    assert_eq!(target.wants_drain(), None);
    assert_eq!(target.wants_deregister(true), None);
}

#[test]
fn a_released_pod_is_left_alone() {
    let mut model = after(&[Event::ContainersReady, Event::Acknowledged]);
    model.pod.released = true;
    model.pod.finalizer = false;
    model.pod.targets[0].facts.doing = Doing::Queued(Operation::Register);
    insta::assert_snapshot!(steps(&model), @"
    Released
    withdraw sim/web 10.0.0.5:8080
    ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_observation_has_a_plan(bytes in prop::collection::vec(any::<u8>(), 160), seconds in 0_i64..2_000_000) {
        let observation = observation(&bytes);
        let now = jiff::Timestamp::from_second(seconds).unwrap();
        let first = plan(&observation, now);
        prop_assert_eq!(&plan(&observation, now), &first, "the same observation gives the same plan");
        prop_assert!(first.wake.is_none_or(|wake| wake > now), "a plan does not wake for what has passed");
        for step in &first.steps {
            check_step(&observation, step);
        }
    }

    #[test]
    fn an_executed_plan_comes_to_rest(bytes in prop::collection::vec(any::<u8>(), 160), seconds in 0_i64..2_000_000) {
        let mut model = Model::at(observation(&bytes), jiff::Timestamp::from_second(seconds).unwrap());
        model.rest();
    }
}

/// What no step may ever do.
fn check_step(o: &Observation, step: &Step) {
    match step {
        Step::Patch(patch) => {
            assert!(!o.released);
            let opens = patch.gate.as_ref().is_some_and(|gate| gate.status) && !o.gate.as_ref().is_some_and(|gate| gate.status);
            assert!(!opens || o.life.stage == Stage::Serving || !o.bound, "a gate opens only while the pod serves");
            assert!(patch.gate.is_none() || o.gated);
            assert!(patch.gate.is_none() || o.life.stage.live(), "the gate of a pod that ends is left");
            assert!(!patch.release || !o.life.stage.live());
            assert!(!patch.adopt || o.life.stage.live());
            assert!(!opens || patch.as_seen, "a gate opens only for the containers as they were seen");
            assert!(patch.exception != Some(Reason::DrainTimeout) || patch.as_seen, "its time counts from the end of the containers");
        }
        Step::Change { service, address, operation } => {
            let target = o.targets.iter().find(|target| target.service == *service && target.address == *address).unwrap();
            assert!(target.ours_to_change(), "what is only observed is not changed");
            assert!(!matches!(target.facts.doing, Doing::Sent(_)), "one change at a time");
            let explicit = target.facts.traits.unwrap().drain == DrainKind::Explicit;
            assert!(*operation != Operation::Drain || explicit, "no drain where deregistering drains");
            assert!(!target.facts.taken, "foreign targets are not named");
            let open = o.gated && o.gate.as_ref().is_some_and(|gate| gate.status);
            let takes_out =
                *operation != Operation::Register && matches!(o.life.stage, Stage::NotServing(_)) && target.role == Role::Wanted;
            assert!(!takes_out || (!open && target.facts.granted), "gate and budget come first");
        }
        Step::Record(_) => assert!(!o.debts_full),
        Step::Withdraw { .. } | Step::Ask { .. } | Step::Read { .. } | Step::Tell(_) => {}
    }
}

/// Draws from bytes, and from zeros once they are used up.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let byte = self.0.next().copied().unwrap_or(0);
        choices[usize::from(byte) % choices.len()].clone()
    }

    fn flip(&mut self) -> bool {
        self.of(&[false, true])
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flip() { Some(make(self)) } else { None }
    }

    fn time(&mut self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.of(&[0, 10, 100, 1_000, 100_000, 1_000_000])).unwrap()
    }
}

/// Any observation, impossible ones included.
fn observation(bytes: &[u8]) -> Observation {
    let mut dice = Dice(bytes.iter());
    let stages = [
        Stage::Waiting,
        Stage::Serving,
        Stage::NotServing(Cause::Unready),
        Stage::NotServing(Cause::NodeLost),
        Stage::Terminating,
        Stage::Gone,
    ];
    let mut told = crate::registration::observe::Told::default();
    for reason in Reason::ALL {
        told = if dice.flip() { told.with(reason) } else { told };
    }
    let count = dice.of(&[0_u8, 1, 1, 2, 3]);
    let targets: Vec<TargetView> = (0..count).map(|number| any_target(&mut dice, number)).collect();
    let claims: Vec<Claim> = targets
        .iter()
        .filter_map(|target| Some(Claim { service: target.service.clone(), address: target.address, mode: target.claim? }))
        .collect();
    let listed = !claims.is_empty();
    let claims = (listed || dice.flip()).then(|| Condition {
        status: listed,
        reason: if listed { "Claimed" } else { "NoClaims" }.to_owned(),
        message: crate::registration::claim::print(&claims),
        since: None,
    });
    Observation {
        released: dice.of(&[false, false, false, true]),
        gated: dice.flip(),
        labelled: dice.flip(),
        finalizer: dice.flip(),
        gate: dice.maybe(|dice| Condition {
            status: dice.flip(),
            reason: dice.of(&["Registered", "Registering", "NoBinding", "NotServing", "GateTimeout", "Strange"]).to_owned(),
            message: dice.of(&["", "Every registry has acknowledged the pod.", "(?)"]).to_owned(),
            since: dice.maybe(Dice::time),
        }),
        claims,
        life: Life { stage: dice.of(&stages), forced: dice.flip() },
        bound: dice.flip(),
        blocked: dice
            .maybe(|dice| Blocked {
                binding: "web".into(),
                reason: dice.of(&[Reason::PortNotFound, Reason::NoMatchingAddress]),
                lacks: "port".to_owned(),
            })
            .into_iter()
            .collect(),
        targets,
        ready_since: dice.maybe(Dice::time),
        deletion: dice.maybe(Dice::time),
        grace_cut: dice.maybe(|_| GraceCut { given: 5, needed: 45 }),
        memory: Memory { gone_since: dice.maybe(Dice::time), forced_since: dice.maybe(Dice::time), told },
        debts_full: dice.of(&[false, false, true]),
        rules: Registration {
            on_gate_timeout: dice.of(&[OnGateTimeout::Hold, OnGateTimeout::Open]),
            on_drain_timeout: dice.of(&[OnDrainTimeout::Hold, OnDrainTimeout::Release]),
            ..Registration::default()
        },
    }
}

fn any_target(dice: &mut Dice<'_>, number: u8) -> TargetView {
    let operations = [Operation::Register, Operation::Drain, Operation::Deregister];
    let outcomes = [Outcome::Accepted, Outcome::NotFound, Outcome::Refused, Outcome::Unknown];
    let states = [TargetState::Initial, TargetState::Active, TargetState::Unhealthy, TargetState::Draining, TargetState::Unused];
    let roles =
        [Role::Wanted, Role::Kept, Role::Superseded, Role::Stale, Role::Unbound(OnUnbound::Keep), Role::Unbound(OnUnbound::Deregister)];
    let claim = dice.maybe(|dice| dice.of(&[Mode::Own, Mode::Observe]));
    let stamps = dice.flip();
    TargetView {
        service: ServiceId::new("sim", dice.of(&["web", "api"])),
        address: ([10, 0, 0, number], 8080).into(),
        // A target that is not claimed is there because it is wanted.
        role: if claim.is_some() { dice.of(&roles) } else { Role::Wanted },
        claim,
        mode: dice.of(&[Mode::Own, Mode::Observe]),
        ack: dice.of(&[Ack::Acknowledged, Ack::Accepted]),
        on_unready: dice.of(&[OnUnready::Drain, OnUnready::Keep, OnUnready::Deregister]),
        facts: Facts {
            traits: dice.of(&[true, true, false]).then(|| Traits {
                drain: dice.of(&[DrainKind::Explicit, DrainKind::ByDeregistering]),
                keys: if stamps { dice.of(&[TargetKeys::Exact, TargetKeys::Uid, TargetKeys::Address]) } else { TargetKeys::Address },
                stamps,
                gone_when: dice.of(&[GoneWhen::Absent, GoneWhen::Draining]),
            }),
            doing: dice.of(&[Doing::Nothing, Doing::Nothing, Doing::Queued(operations[0]), Doing::Sent(operations[1])]),
            last: dice.maybe(|dice| (dice.of(&operations), dice.of(&outcomes))),
            last_fresh: dice.flip(),
            seen: dice.maybe(|dice| match dice.of(&[0, 1, 2]) {
                0 => Seen::Absent,
                1 => Seen::Elsewhere(dice.of(&states)),
                _ => Seen::Listed { state: dice.of(&states), ours: stamps && dice.flip() },
            }),
            seen_fresh: dice.flip(),
            service_read: dice.flip(),
            taken: dice.of(&[false, false, true]),
            owned: dice.flip(),
            fresh_claim: dice.flip(),
            dropping: dice.flip(),
            heir: dice.maybe(|dice| dice.of(&[Heir::Doubtful, Heir::Has, Heir::Claims])),
            granted: dice.flip(),
            owed: dice.flip(),
            trouble: dice.maybe(|dice| dice.of(&[Trouble::Unreachable, Trouble::Throttled])),
        },
        words: dice.maybe(|dice| dice.of(&["no route to host", "as its owner wishes."]).into()),
    }
}
