//! What goes wrong in a drawn world: two to five kinds of fault, each once or a few times.
//!
//! Invariant: every fault has an end, and all ends lie before the world falls quiet.
//! Absent on purpose: the lives of pods (`cast`).

use std::time::Duration;

use serde_json::{Value, json};

use super::cast;
use super::generate::Author;
use crate::executor::Random;
use crate::scenario::grammar::{
    AllWord, AnswersEach, AnswersSpec, ApiStep, Cut, Delete, Handles, Inject, Loses, NamespaceStep, RegistrySpec, ReplicaDoes, ReplicaStep,
    Sent, Shift, Span, StateWord, Taint, TargetName, WatchDoes, WatchStep,
};
use crate::world::Noise;
use crate::world::registry::Answer;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ApiSlow,
    ApiFails,
    ApiRule,
    EventsLate,
    EventsTwice,
    EventsLost,
    WatchDelayed,
    WatchSilent,
    WatchExpires,
    Forgetful,
    CutOff,
    RegistryAnswers,
    RegistryHalf,
    RegistrySlow,
    RegistryLags,
    RegistryRepeats,
    RegistryLoses,
    RegistryUnhealthy,
    RegistryFull,
    ServiceMissing,
    Crash,
    Trap,
    Pause,
    Stop,
    Jump,
    Node,
    Namespace,
    BadConfiguration,
    Configuration,
}

/// All of them.
pub(crate) const KINDS: [Kind; 29] = [
    Kind::ApiSlow,
    Kind::ApiFails,
    Kind::ApiRule,
    Kind::EventsLate,
    Kind::EventsTwice,
    Kind::EventsLost,
    Kind::WatchDelayed,
    Kind::WatchSilent,
    Kind::WatchExpires,
    Kind::Forgetful,
    Kind::CutOff,
    Kind::RegistryAnswers,
    Kind::RegistryHalf,
    Kind::RegistrySlow,
    Kind::RegistryLags,
    Kind::RegistryRepeats,
    Kind::RegistryLoses,
    Kind::RegistryUnhealthy,
    Kind::RegistryFull,
    Kind::ServiceMissing,
    Kind::Crash,
    Kind::Trap,
    Kind::Pause,
    Kind::Stop,
    Kind::Jump,
    Kind::Node,
    Kind::Namespace,
    Kind::BadConfiguration,
    Kind::Configuration,
];

/// Draws the faults of a world and tells them.
pub(crate) fn tell(author: &mut Author) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let wanted = 2 + author.random.below(4);
    while (kinds.len() as u64) < wanted {
        let kind = author.pick(&KINDS);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.sort_unstable();
    let seed = author.random.next();
    let mut noise =
        Noise { random: Random(seed), latency: 0, steady: false, failures: 0, repeats: 0, late: 0, slow: 0, until: Duration::ZERO };
    for kind in &kinds {
        match kind {
            Kind::ApiSlow => noise.latency = author.pick(&[20, 200, 1500]),
            Kind::ApiFails => noise.failures = author.pick(&[4, 10, 30]),
            Kind::EventsLate => noise.late = author.pick(&[100, 1000, 5000]),
            Kind::EventsTwice => noise.repeats = author.pick(&[2, 5]),
            Kind::RegistrySlow => noise.slow = author.pick(&[300, 2000, 8000]),
            Kind::Forgetful => author.conditions.forgetful = true,
            _ => {
                for _ in 0..=author.random.below(3) {
                    one(author, *kind);
                }
            }
        }
    }
    if noise.latency + noise.failures + noise.late + noise.repeats + noise.slow > 0 {
        author.conditions.noise = Some(noise);
    }
    kinds
}

/// A stretch of time before the world falls quiet, in milliseconds.
fn stretch(author: &mut Author, longest: u64) -> (u64, u64) {
    let from = author.sometime();
    let lasts = 100 + author.random.below(longest);
    (from, (from + lasts).min(author.busy))
}

fn span(from: u64, to: u64) -> Span {
    Span(Duration::from_millis(to - from))
}

fn some_pods(author: &mut Author) -> Option<Handles> {
    if author.random.chance(2) || author.lives.is_empty() {
        return None;
    }
    let index = author.random.below(author.lives.len() as u64);
    Some(Handles(vec![author.lives[usize::try_from(index).unwrap_or(0)].handle.clone()]))
}

fn some_replica(author: &mut Author) -> String {
    let count = author.replicas as u64;
    let index = author.random.below(count + 2);
    ["a", "b", "c"]
        .get(usize::try_from(index).unwrap_or(9))
        .filter(|_| index < count)
        .map_or_else(|| "leader".to_owned(), |name| (*name).to_owned())
}

fn some_registry(author: &mut Author) -> (RegistrySpec, String) {
    let binding = {
        let bindings = author.bindings.clone();
        author.pick(&bindings)
    };
    let spec = RegistrySpec { name: Some(binding.registry), service: Some(binding.service.clone()), ..RegistrySpec::default() };
    (spec, binding.service)
}

fn registry(author: &mut Author, at: u64, spec: RegistrySpec) {
    author.step(at, |step| step.registry = Some(spec));
}

fn one(author: &mut Author, kind: Kind) {
    match kind {
        Kind::ApiRule => api_rule(author),
        Kind::EventsLost | Kind::WatchDelayed | Kind::WatchSilent | Kind::WatchExpires => watch(author, kind),
        Kind::CutOff => {
            let (from, to) = stretch(author, 40_000);
            let replica = ["a", "b", "c"][usize::try_from(author.random.below(author.replicas as u64)).unwrap_or(0)].to_owned();
            author.step(from, |step| step.cut = Some(Cut { replica, lasts: span(from, to) }));
        }
        Kind::RegistryAnswers
        | Kind::RegistryHalf
        | Kind::RegistrySlow
        | Kind::RegistryLags
        | Kind::RegistryRepeats
        | Kind::RegistryFull => {
            knobs(author, kind);
        }
        Kind::RegistryLoses | Kind::RegistryUnhealthy | Kind::ServiceMissing => losses(author, kind),
        Kind::Crash | Kind::Trap | Kind::Pause | Kind::Stop => replica(author, kind),
        Kind::Jump => {
            let at = author.sometime();
            let jump = author.pick(&[-3_600_000, -30_000, -1000, 1000, 20_000, 90_000, 3_600_000]);
            author.step(at, |step| step.jump = Some(Shift(jump)));
        }
        Kind::Node => node(author),
        Kind::Namespace => {
            let (from, to) = stretch(author, 60_000);
            let inject = |inject| NamespaceStep { name: "shop".to_owned(), inject };
            author.step(from, |step| step.namespace = Some(inject(None)));
            author.step(to, |step| step.namespace = Some(inject(Some(Inject::Strict))));
        }
        Kind::BadConfiguration => {
            let (from, to) = stretch(author, 60_000);
            author.step(from, |step| step.config_text = Some("bindings: [{name: web, namespaces: shop".to_owned()));
            let config = author.config.clone();
            author.step(to, |step| step.config = Some(config));
        }
        Kind::Configuration => configuration(author),
        Kind::ApiSlow | Kind::ApiFails | Kind::EventsLate | Kind::EventsTwice | Kind::Forgetful => {}
    }
}

fn api_rule(author: &mut Author) {
    let (from, to) = stretch(author, 40_000);
    let forever = author.random.chance(2);
    let rule = ApiStep {
        to: author.pick(&[Sent::Status, Sent::Status, Sent::Finalizer, Sent::Adopt]),
        answer: author.pick(&[403, 404, 409, 422, 429, 500]),
        pod: some_pods(author),
        times: forever.then(|| 1 + author.random.below(4)),
        lasts: Some(if forever { span(from, author.busy) } else { span(from, to) }),
        applied: author.random.chance(3),
    };
    author.step(from, |step| step.api = Some(rule));
}

fn watch(author: &mut Author, kind: Kind) {
    let (from, to) = stretch(author, 30_000);
    let lasts = Some(span(from, to));
    let plain = |what| WatchStep { what, pod: None, by: None, lasts: None };
    let step = match kind {
        Kind::EventsLost => {
            let pod = some_pods(author).map_or_else(|| "web-*".to_owned(), |pods| pods.0[0].clone());
            WatchStep { pod: Some(pod), lasts, ..plain(WatchDoes::Drop) }
        }
        Kind::WatchDelayed => {
            WatchStep { by: Some(Span(Duration::from_millis(author.random.below(20_000)))), lasts, ..plain(WatchDoes::Delay) }
        }
        Kind::WatchSilent => plain(WatchDoes::Silence),
        _ => plain(WatchDoes::Expire),
    };
    author.step(from, |one| one.watch = Some(step));
}

fn knobs(author: &mut Author, kind: Kind) {
    let (from, to) = stretch(author, 60_000);
    let (mut begin, _) = some_registry(author);
    let usual = author.registries.get(begin.name.as_deref().unwrap_or("sim")).cloned().unwrap_or_default();
    let mut end = begin.clone();
    let words = [Answer::Throttled, Answer::Unavailable, Answer::Unavailable, Answer::Denied, Answer::Timeout, Answer::Lost];
    match kind {
        Kind::RegistryAnswers => {
            begin.answers = Some(AnswersSpec::All(author.pick(&words)));
            end.answers = Some(AnswersSpec::All(Answer::Ok));
        }
        Kind::RegistryHalf => {
            let word = |author: &mut Author| {
                let word = author.pick(&words);
                author.random.chance(2).then_some(word)
            };
            let each = AnswersEach { register: word(author), drain: word(author), deregister: word(author), list: word(author) };
            begin.answers = Some(AnswersSpec::Each(each));
            end.answers = Some(AnswersSpec::All(Answer::Ok));
        }
        // Without marks a listing of the past cannot be told from one of now.
        Kind::RegistryLags if usual.marks != Some(false) => {
            begin.list_lag = Some(Span(Duration::from_millis(author.random.below(4000))));
            end.list_lag = Some(Span(Duration::ZERO));
        }
        Kind::RegistryRepeats => {
            begin.duplicates = Some(Some(Span(Duration::from_millis(author.random.below(10_000)))));
            end.duplicates = Some(None);
        }
        Kind::RegistryFull => {
            begin.capacity = Some(usize::try_from(author.random.below(4)).ok());
            end.capacity = Some(None);
        }
        _ => {
            begin.latency = Some(Span(Duration::from_millis(author.random.below(7000))));
            end.latency = Some(usual.latency.unwrap_or_default());
        }
    }
    registry(author, from, begin);
    registry(author, to, end);
}

fn losses(author: &mut Author, kind: Kind) {
    let at = author.sometime();
    let (mut spec, _) = some_registry(author);
    let observed = author.bindings.iter().any(|one| one.observed && Some(&one.registry) == spec.name.as_ref());
    if observed {
        return;
    }
    let target = some_pods(author).map(|pods| TargetName::Handle(pods.0[0].clone()));
    let mut end = None;
    match (kind, target) {
        (Kind::ServiceMissing, _) => {
            let to = (at + author.random.below(30_000)).min(author.busy);
            let back = RegistrySpec { answers: Some(AnswersSpec::All(Answer::Ok)), ..spec.clone() };
            spec.answers = Some(AnswersSpec::All(Answer::Missing));
            spec.loses = Some(Loses::All(AllWord::All));
            // The word is for the whole registry: its other services are gone as well.
            for service in ["web", "api", "admin"].into_iter().filter(|service| spec.service.as_deref() != Some(service)) {
                let other = RegistrySpec { answers: None, service: Some(service.to_owned()), ..spec.clone() };
                registry(author, at, other);
            }
            end = Some((to, back));
        }
        (Kind::RegistryUnhealthy, Some(target)) => {
            spec.sets.insert(target.clone(), StateWord::Unhealthy);
            let back = RegistrySpec { sets: [(target, StateWord::Active)].into(), ..spec.clone() };
            let to = (at + author.random.below(30_000)).min(author.busy);
            end = Some((to, back));
        }
        (_, Some(target)) => spec.loses = Some(Loses::These(vec![target])),
        (_, None) => spec.loses = Some(Loses::All(AllWord::All)),
    }
    registry(author, at, spec);
    // What ends it stands behind what begins it, also where it lasts no time at all.
    if let Some((to, back)) = end {
        registry(author, to, back);
    }
}

fn replica(author: &mut Author, kind: Kind) {
    let (from, to) = stretch(author, 30_000);
    let plain =
        ReplicaStep { name: some_replica(author), what: None, lasts: None, starts_after: None, before: None, after: None, pod: None };
    let after = Some(span(from, to));
    let step = match kind {
        Kind::Crash => ReplicaStep { what: Some(ReplicaDoes::Crash), starts_after: after, ..plain },
        Kind::Pause => ReplicaStep { what: Some(ReplicaDoes::Pause), lasts: after, ..plain },
        Kind::Stop => {
            let name = ["a", "b", "c"][usize::try_from(author.random.below(author.replicas as u64)).unwrap_or(0)].to_owned();
            let start = ReplicaStep { name: name.clone(), what: Some(ReplicaDoes::Start), ..plain.clone() };
            author.step(to + 1000, |step| step.replica = Some(start));
            ReplicaStep { name, what: Some(ReplicaDoes::Stop), ..plain }
        }
        _ => {
            let on = author.pick(&[Sent::Register, Sent::Drain, Sent::Deregister, Sent::Status, Sent::Finalizer, Sent::Adopt]);
            let before = author.random.chance(2);
            let starts_after = Some(Span(Duration::from_millis(author.random.below(20_000))));
            let pod = some_pods(author);
            ReplicaStep { before: before.then_some(on), after: (!before).then_some(on), starts_after, pod, ..plain }
        }
    };
    author.step(from, |one| one.replica = Some(step));
}

fn node(author: &mut Author) {
    let (from, to) = stretch(author, 60_000);
    let name = cast::some_node(author);
    let mut begin = cast::node(name);
    let mut end = cast::node(name);
    match author.random.below(4) {
        0 | 1 => {
            begin.ready = Some(false);
            end.ready = Some(true);
        }
        2 => {
            begin.taint = Some(author.pick(&[Taint::Unreachable, Taint::OutOfService]));
            end.taint = Some(Taint::None);
        }
        _ => {
            begin.gone = Some(true);
            end.ready = Some(true);
            let lost: Vec<String> = author.lives.iter().filter(|life| life.node == name).map(|life| life.handle.clone()).collect();
            for handle in lost {
                let at = from + 1 + author.random.below((to - from).max(1));
                // The garbage collector of pods deletes what stood on the node.
                author.step(at, |step| step.delete = Some(Delete { pod: Handles(vec![handle]), grace: Some(Span(Duration::ZERO)) }));
            }
        }
    }
    author.step(from, |step| step.node = Some(begin));
    author.step(to, |step| step.node = Some(end));
}

/// A binding goes, or its port changes, or its selector; and comes back.
fn configuration(author: &mut Author) {
    let (from, to) = stretch(author, 60_000);
    let mut changed = author.config.clone();
    let draw = author.random.below(4);
    if let Some(bindings) = &mut changed.bindings {
        let index = usize::try_from(author.random.below(bindings.len() as u64)).unwrap_or(0);
        match draw {
            0 if bindings.len() > 1 => drop(bindings.remove(index)),
            1 => {
                if let Some(binding) = bindings[index].as_object_mut().filter(|binding| !binding.contains_key("mode")) {
                    binding.insert("port".to_owned(), json!("other"));
                }
            }
            2 => {
                if let Some(selector) = bindings[index].pointer_mut("/podSelector/matchLabels").and_then(Value::as_object_mut) {
                    selector.insert("example.com/colour".to_owned(), json!("blue"));
                }
            }
            _ => {
                if let Some(registration) = changed.registration.as_mut().and_then(Value::as_object_mut) {
                    registration.insert("gateTimeout".to_owned(), json!("30s"));
                }
            }
        }
    }
    author.step(from, |step| step.config = Some(changed));
    let config = author.config.clone();
    author.step(to, |step| step.config = Some(config));
}
