//! Judges the expectations of a scenario at the end of every instant.
//!
//! States are looked up in the world, counts in its record; what an item wanted and what was found go into the failure.
//!
//! Invariant: there is no tolerance; a subject that is not there fails, it does not pass.
//! Absent on purpose: what must hold in every world (`world::invariants`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep::registry::Operation;
use lockstep::target::{ServiceId, TargetState};

use super::grammar::{
    CallWord, Expectation, GateWord, ListedWord, Number, OneOrMore, RequestWord, Scenario, StateWord, TargetName, WriteWord, written,
};
use super::steps::{known, named, state_of};
use crate::exposition;
use crate::world::World;
use crate::world::invariants::claim;
use crate::world::pods::PodId;
use crate::world::record::{What, WriteKind, means, window};

/// Judges one scenario.
pub(crate) struct Judge<'a> {
    items: Vec<Item<'a>>,
}

struct Item<'a> {
    rule: String,
    expectation: &'a Expectation,
    when: When,
    /// How each subject stands so far.
    standing: BTreeMap<Subject, Standing>,
    seen: Option<u64>,
    over: bool,
}

#[derive(Clone, Copy)]
enum When {
    At(Duration),
    By(Duration),
    During(Duration, Duration),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Nobody,
    Pod(PodId),
    NotYet(String),
}

enum Standing {
    Held,
    Failed,
    Waiting,
}

/// What is asked of an item now.
#[derive(Clone, Copy)]
struct Ask {
    states: bool,
    counts: bool,
    from: Duration,
    to: Duration,
}

/// What was wanted, and what was found instead.
type Problem = (String, String);

/// What an expectation says that no type can hold.
pub(crate) fn check(one: &Expectation, handles: &[String]) -> Result<(), String> {
    let times = [one.at.is_some(), one.by.is_some(), one.during.is_some()];
    if times.into_iter().filter(|given| *given).count() != 1 {
        return Err("exactly one of at, by and during".to_owned());
    }
    if let Some(pods) = &one.pod {
        known(pods, handles)?;
    }
    let of_pods = [
        one.gate.is_some(),
        one.reason.is_some(),
        one.finalizer.is_some(),
        one.exists.is_some(),
        one.ready.is_some(),
        one.managed.is_some(),
        one.finalizers.is_some(),
        one.claims.is_some(),
        one.writes.is_some(),
    ];
    if one.pod.is_none() && of_pods.contains(&true) {
        return Err("this speaks of a pod and names none".to_owned());
    }
    let of_registries = [one.targets.is_some(), one.count.is_some(), one.requests.is_some(), one.apart.is_some(), one.service.is_some()];
    if one.registry.is_none() && of_registries.contains(&true) {
        return Err("this speaks of a registry and names none".to_owned());
    }
    let anything =
        [one.debts.is_some(), one.calls.is_some(), one.events.is_some(), one.metrics.is_some(), one.leader.is_some(), one.order.is_some()];
    if !of_pods.contains(&true) && !of_registries[..4].contains(&true) && !anything.contains(&true) {
        return Err("nothing is asserted".to_owned());
    }
    if one.nothing_else.is_some() && one.targets.is_none() {
        return Err("nothingElse needs targets".to_owned());
    }
    if one.apart.is_some() && one.during.is_none() {
        return Err("apart needs during".to_owned());
    }
    if one.since.is_some() && one.during.is_some() {
        return Err("since has no meaning beside during".to_owned());
    }
    let start = one.since.map_or(Duration::ZERO, |since| since.0);
    let (start, end) = one.during.map_or((start, one.by.or(one.at).map_or(start, |end| end.0)), |range| (range.0, range.1));
    if start > end {
        return Err("it ends before it begins".to_owned());
    }
    for target in
        one.targets.iter().flatten().filter_map(|(target, _)| if let TargetName::Handle(handle) = target { Some(handle) } else { None })
    {
        if !handles.contains(target) {
            return Err(format!("no pod {target}"));
        }
    }
    for line in one.claims.iter().flatten() {
        claim(line).ok_or_else(|| format!("`{line}` is no claim"))?;
    }
    for entry in one.order.iter().flatten() {
        let entry = Entry::parse(entry)?;
        if !handles.contains(&entry.handle) {
            return Err(format!("no pod {}", entry.handle));
        }
    }
    Ok(())
}

impl<'a> Judge<'a> {
    /// The judge of a scenario, before it begins.
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        let items = scenario.expect.iter().enumerate().filter_map(|(index, expectation)| {
            let when = match (expectation.at, expectation.by, expectation.during) {
                (Some(at), _, _) => When::At(at.0),
                (_, Some(by), _) => When::By(by.0),
                (_, _, Some(range)) => When::During(range.0, range.1),
                _ => return None,
            };
            let rule = format!("expect[{index}]");
            Some(Item { rule, expectation, when, standing: BTreeMap::new(), seen: None, over: false })
        });
        Self { items: items.collect() }
    }

    /// Judges what is due at the end of this instant.
    pub(crate) fn instant(&mut self, world: &mut World) {
        for item in self.items.iter_mut().filter(|item| !item.over) {
            item.instant(world);
        }
    }
}

impl Item<'_> {
    fn instant(&mut self, world: &mut World) {
        let now = world.now;
        let since = self.expectation.since.map_or(Duration::ZERO, |since| since.0);
        let (from, last) = match self.when {
            When::At(at) => (at, at),
            When::By(by) => (since, by),
            When::During(from, to) => (from, to),
        };
        if now < from {
            return;
        }
        if now > last {
            self.over = true;
            return;
        }
        let is_last = now == last;
        let is_during = matches!(self.when, When::During(..));
        let ask = Ask { states: true, counts: !is_during || is_last, from: if is_during { from } else { since }, to: now };
        if !is_last && self.expectation.metrics.is_none() && self.seen == Some(world.revision) {
            return;
        }
        for subject in self.subjects(world) {
            match self.standing.get(&subject) {
                Some(Standing::Failed) => continue,
                Some(Standing::Held) if !is_during => continue,
                _ => {}
            }
            let problem = self.problem(world, &subject, ask);
            self.stand(world, subject, problem, is_last);
        }
        self.seen = Some(world.revision);
        if is_last && self.standing.is_empty() {
            world.fail(&self.rule, "a pod that is meant", "none was made so far");
        }
    }

    fn stand(&mut self, world: &mut World, subject: Subject, problem: Option<Problem>, is_last: bool) {
        let standing = match (self.when, problem) {
            (_, None) => Standing::Held,
            (When::By(_), Some(_)) if !is_last => Standing::Waiting,
            (_, Some((wanted, found))) => {
                let name = match &subject {
                    Subject::Nobody => String::new(),
                    Subject::Pod(id) => format!(" {}", world.pods[*id].handle),
                    Subject::NotYet(handle) => format!(" {handle}"),
                };
                let time = match self.when {
                    When::At(at) => format!("at {}", written(at)),
                    When::By(by) => format!("by {}", written(by)),
                    When::During(from, to) => format!("during {}..{}", written(from), written(to)),
                };
                world.fail(&format!("{}{name}", self.rule), format!("{wanted} {time}"), found);
                Standing::Failed
            }
        };
        self.standing.insert(subject, standing);
    }

    fn subjects(&self, world: &World) -> Vec<Subject> {
        let Some(pods) = &self.expectation.pod else { return vec![Subject::Nobody] };
        let mut subjects = Vec::new();
        for pattern in &pods.0 {
            if pattern.ends_with('*') {
                let all = world.pods.iter().enumerate().filter(|(_, pod)| means(pattern, &pod.handle));
                subjects.extend(all.map(|(id, _)| Subject::Pod(id)));
            } else {
                subjects.push(world.pod_of_handle(pattern).map_or_else(|| Subject::NotYet(pattern.clone()), Subject::Pod));
            }
        }
        subjects
    }

    /// The first thing of the item that does not hold.
    fn problem(&self, world: &mut World, subject: &Subject, ask: Ask) -> Option<Problem> {
        let one = self.expectation;
        let pod = if let Subject::Pod(id) = subject { Some(*id) } else { None };
        let states =
            ask.states.then(|| pod_state(one, world, subject).or_else(|| registry_state(one, world)).or_else(|| other_state(one, world)));
        states.flatten().or_else(|| if ask.counts { counts(one, world, pod, one.pod.is_some(), ask) } else { None })
    }
}

fn differs<T: PartialEq + std::fmt::Debug>(what: &str, wanted: Option<&T>, found: &T) -> Option<Problem> {
    wanted.filter(|wanted| *wanted != found).map(|wanted| (format!("{what} {wanted:?}"), format!("{found:?}")))
}

fn pod_state(one: &Expectation, world: &World, subject: &Subject) -> Option<Problem> {
    let asks_object = one.gate.is_some() || one.reason.is_some() || one.ready.is_some() || one.managed.is_some();
    let asks_object = asks_object || one.finalizers.is_some() || one.claims.is_some();
    let id = match subject {
        Subject::Nobody => return None,
        Subject::NotYet(handle) => {
            let asks = asks_object || one.finalizer.is_some() || one.exists.is_some();
            return asks.then(|| (format!("a pod {handle}"), "not made yet".to_owned()));
        }
        Subject::Pod(id) => *id,
    };
    let pod = &world.pods[id];
    let exists = pod.gone.is_none();
    if let Some(problem) =
        differs("exists", one.exists.as_ref(), &exists).or_else(|| differs("finalizer", one.finalizer.as_ref(), &(pod.finalizer && exists)))
    {
        return Some(problem);
    }
    if asks_object && !exists {
        return Some(("a pod object".to_owned(), "it was reaped".to_owned()));
    }
    let gate = pod.gate.as_ref();
    let status = gate.map_or(GateWord::Absent, |gate| if gate.status { GateWord::True } else { GateWord::False });
    if let Some(words) = one.gate.as_ref().filter(|words| !words.all().contains(&status)) {
        return Some((format!("gate {}", any_of(words)), format!("{status:?} ({})", gate.map_or("", |gate| gate.reason.as_str()))));
    }
    let reason = gate.map_or("", |gate| gate.reason.as_str());
    if let Some(words) = one.reason.as_ref().filter(|words| !words.all().iter().any(|word| word == reason)) {
        return Some((format!("reason {}", any_of(words)), format!("{reason:?}")));
    }
    differs("ready", one.ready.as_ref(), &pod.is_ready())
        .or_else(|| differs("managed", one.managed.as_ref(), &pod.is_managed()))
        .or_else(|| differs("finalizers", one.finalizers.as_ref(), &pod.foreign_finalizers))
        .or_else(|| {
            let mut wanted: Vec<_> = one.claims.as_ref()?.iter().filter_map(|line| claim(line)).collect();
            let mut found = pod.claims.clone();
            wanted.sort();
            found.sort();
            let lines = |claims: &[crate::world::invariants::Claim]| claims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            (wanted != found).then(|| (format!("claims [{}]", lines(&wanted)), format!("[{}]", lines(&found))))
        })
}

fn any_of<T: std::fmt::Debug>(words: &OneOrMore<T>) -> String {
    words.all().iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
}

fn registry_state(one: &Expectation, world: &mut World) -> Option<Problem> {
    let registry = one.registry.as_deref()?;
    let service = ServiceId::new(registry, one.service.as_deref().unwrap_or("web"));
    let held: Vec<_> = world.service(&service).1.targets.values().cloned().collect();
    let mut named_ones = vec![false; held.len()];
    for (target, words) in one.targets.iter().flatten() {
        let which = named(world, target);
        let found: Vec<TargetState> = held.iter().filter(|held| which(held)).map(|held| held.state).collect();
        for (index, _) in held.iter().enumerate().filter(|(_, held)| which(held)) {
            named_ones[index] = true;
        }
        let fits = |state: &TargetState| words.all().iter().any(|word| listed(*word) == Some(*state));
        let holds = if found.is_empty() { words.all().contains(&ListedWord::Absent) } else { found.iter().all(fits) };
        if !holds {
            let found = if found.is_empty() { "absent".to_owned() } else { format!("{found:?}") };
            return Some((format!("{target} of {service} {}", any_of(words)), found));
        }
    }
    if one.nothing_else == Some(true)
        && let Some((_, other)) = named_ones.iter().zip(&held).find(|(named, _)| !**named)
    {
        return Some((format!("nothing else in {service}"), format!("{} {}", other.address, other.state.as_str())));
    }
    for (word, number) in one.count.iter().flatten() {
        let ours = |held: &&crate::world::registry::Held| held.owner.as_ref().is_some_and(|uid| world.pod_of_uid(uid).is_some());
        let found = held.iter().filter(ours).filter(|held| held.state == state_of(*word)).count();
        if let Some(problem) = not_so(&format!("targets {word:?} in {service}"), *number, found) {
            return Some(problem);
        }
    }
    None
}

fn listed(word: ListedWord) -> Option<TargetState> {
    let word = match word {
        ListedWord::Absent => return None,
        ListedWord::Initial => StateWord::Initial,
        ListedWord::Active => StateWord::Active,
        ListedWord::Unhealthy => StateWord::Unhealthy,
        ListedWord::Draining => StateWord::Draining,
        ListedWord::Unused => StateWord::Unused,
    };
    Some(state_of(word))
}

#[expect(clippy::cast_precision_loss, reason = "counts of a story are small")]
fn not_so(what: &str, wanted: Number, found: usize) -> Option<Problem> {
    (!wanted.holds(found as f64)).then(|| (format!("{what}: {wanted}"), found.to_string()))
}

fn other_state(one: &Expectation, world: &World) -> Option<Problem> {
    if let Some(problem) = one.debts.and_then(|debts| not_so("debts", debts, world.debt_count())) {
        return Some(problem);
    }
    if let Some(leader) = one.leader.as_ref().filter(|leader| **leader != world.lease.holder) {
        return Some((format!("leader {leader}"), format!("the Lease names {:?}", world.lease.holder)));
    }
    for (name, number) in one.metrics.iter().flatten() {
        let found = metric(world, name);
        if found.is_none_or(|found| !number.holds(found)) {
            let found = found.map_or_else(|| "no leader to ask".to_owned(), |found| found.to_string());
            return Some((format!("metric {name}: {number}"), found));
        }
    }
    None
}

fn metric(world: &World, wanted: &str) -> Option<f64> {
    let (name, label) = match wanted.strip_suffix('}').and_then(|rest| rest.split_once('{')) {
        Some((name, label)) => (name, label.split_once('=')),
        None => (wanted, None),
    };
    if name.ends_with("_total") || world.processes.iter().any(|process| exposition::is_counter(&process.metrics.encode(), name)) {
        return Some(world.counter(name, label));
    }
    let leader = world.process_of(&world.lease.holder)?;
    Some(exposition::value(&world.processes[leader].metrics.encode(), name, label))
}

fn counts(one: &Expectation, world: &World, pod: Option<PodId>, of_pod: bool, ask: Ask) -> Option<Problem> {
    let record = &world.record;
    let (from, to) = (ask.from, ask.to);
    let here = |registry: &Arc<str>, service: &Arc<str>| {
        one.registry.as_deref().is_none_or(|wanted| **registry == *wanted)
            && one.service.as_deref().is_none_or(|wanted| **service == *wanted)
    };
    for (word, number) in one.calls.iter().flatten() {
        let fits = |operation: Operation| match word {
            CallWord::Register => operation == Operation::Register,
            CallWord::Drain => operation == Operation::Drain,
            CallWord::Deregister => operation == Operation::Deregister,
            CallWord::Any => true,
        };
        let calls = window(&record.calls, from, to, |call| call.at).iter();
        let mine = calls.filter(|call| (!of_pod || (pod.is_some() && call.pod == pod)) && here(&call.registry, &call.service));
        if let Some(problem) = not_so(&format!("calls {word:?}"), *number, mine.filter(|call| fits(call.operation)).count()) {
            return Some(problem);
        }
    }
    let requests =
        || window(&record.requests, from, to, |request| request.at).iter().filter(|request| here(&request.registry, &request.service));
    for (word, number) in one.requests.iter().flatten() {
        let found = requests().filter(|request| request.apply == (*word == RequestWord::Apply)).count();
        if let Some(problem) = not_so(&format!("requests {word:?}"), *number, found) {
            return Some(problem);
        }
    }
    if let Some(apart) = one.apart {
        let times: Vec<Duration> = std::iter::once(from).chain(requests().map(|request| request.at)).chain([to]).collect();
        if let Some(gap) = times.windows(2).find(|pair| pair[1] - pair[0] > apart.at_most.0) {
            let wanted = format!("requests at most {} apart", written(apart.at_most.0));
            return Some((wanted, format!("none between {} and {}", written(gap[0]), written(gap[1]))));
        }
    }
    for (word, number) in one.writes.iter().flatten() {
        let kind = match word {
            WriteWord::Status => WriteKind::Status,
            WriteWord::Finalizer => WriteKind::Finalizer,
            WriteWord::Adopt => WriteKind::Adopt,
        };
        let writes = window(&record.writes, from, to, |write| write.at).iter();
        let found = writes.filter(|write| Some(write.pod) == pod && write.kind == kind).count();
        if let Some(problem) = not_so(&format!("writes {word:?}"), *number, found) {
            return Some(problem);
        }
    }
    for (reason, number) in one.events.iter().flatten() {
        let fits = |event: &crate::world::record::EventObject| match reason.as_str() {
            "Warning" => event.warning,
            "Normal" => !event.warning,
            reason => event.reason == reason,
        };
        let events = window(&record.events, from, to, |event| event.at).iter();
        let found = events.filter(|event| (!of_pod || (pod.is_some() && event.pod == pod)) && fits(event)).count();
        if let Some(problem) = not_so(&format!("events {reason}"), *number, found) {
            return Some(problem);
        }
    }
    one.order.as_ref().and_then(|order| disorder(order, world, from, to))
}

/// One entry of `order`.
struct Entry {
    handle: String,
    what: What,
    registry: Option<String>,
}

impl Entry {
    fn parse(text: &str) -> Result<Self, String> {
        let (handle, rest) = text.split_once(' ').ok_or_else(|| format!("`{text}` is no entry of order"))?;
        let (what, registry) = rest.split_once(" at ").map_or((rest, None), |(what, registry)| (what, Some(registry.to_owned())));
        let what = match what {
            "register" => What::Sent(Operation::Register),
            "drain" => What::Sent(Operation::Drain),
            "deregister" => What::Sent(Operation::Deregister),
            "active" => What::Active,
            "draining" => What::Draining,
            "gone" => What::Gone,
            "gate True" => What::GateTrue,
            "gate False" => What::GateFalse,
            "finalizer removed" => What::FinalizerRemoved,
            "finalizer added" => What::FinalizerAdded,
            "reaped" => What::Reaped,
            _ => return Err(format!("`{text}` is no entry of order")),
        };
        Ok(Self { handle: handle.to_owned(), what, registry })
    }
}

fn disorder(order: &[String], world: &World, from: Duration, to: Duration) -> Option<Problem> {
    let milestones = window(&world.record.milestones, from, to, |one| one.at);
    let mut last: Option<usize> = None;
    for text in order {
        let entry = Entry::parse(text).ok()?;
        let pod = world.pod_of_handle(&entry.handle);
        let found = milestones.iter().position(|one| {
            Some(one.pod) == pod
                && one.what == entry.what
                && entry.registry.as_deref().is_none_or(|wanted| one.registry.as_deref() == Some(wanted))
        });
        let wanted = format!("order {}", order.join(", "));
        match found {
            None => return Some((wanted, format!("`{text}` did not happen"))),
            Some(index) if last.is_some_and(|last| last >= index) => {
                return Some((wanted, format!("`{text}` at {} was too early", written(milestones[index].at))));
            }
            found => last = found,
        }
    }
    None
}
