//! Whether the faults of a story end before it does.
//!
//! A shrink that drops the step that ends a fault makes another story fail, for another reason.
//!
//! Invariant: every fault that a step can begin is told here what ends it.
//! Absent on purpose: faults that end by themselves after a time that their own step says.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::scenario::grammar::{AnswersEach, AnswersSpec, NodeStep, RegistrySpec, ReplicaDoes, Scenario, Step, Taint};
use crate::world::registry::Answer;

/// What is wrong after a step, by the part of the world and the kind of its trouble.
type Open = BTreeSet<(String, &'static str)>;

/// Whether nothing that a step of the story broke stays broken.
pub(super) fn faults_end(scenario: &Scenario) -> bool {
    let mut open = Open::new();
    for step in &scenario.steps {
        take(&mut open, scenario, step);
    }
    open.is_empty()
}

fn take(open: &mut Open, scenario: &Scenario, step: &Step) {
    if let Some(spec) = &step.registry {
        registry(open, scenario, spec);
    }
    if let Some(step) = &step.node {
        node(open, step);
    }
    if let Some(step) = &step.namespace {
        note(open, &step.name, "opted out", Some(step.inject.is_none()));
    }
    if step.config_text.is_some() || step.config.is_some() {
        note(open, "", "bad configuration", Some(step.config_text.is_some()));
        let differs = step.config.as_ref().is_some_and(|config| *config != scenario.config);
        note(open, "", "another configuration", step.config.is_some().then_some(differs));
    }
    if let Some(step) = &step.replica {
        let stopped = match step.what {
            Some(ReplicaDoes::Stop) => Some(true),
            Some(ReplicaDoes::Start) => Some(false),
            Some(ReplicaDoes::Crash | ReplicaDoes::Pause) | None => None,
        };
        note(open, &step.name, "stopped", stopped);
    }
}

fn registry(open: &mut Open, scenario: &Scenario, spec: &RegistrySpec) {
    let name = spec.name.as_deref().unwrap_or_default();
    let usual = scenario.registries.get(name).and_then(|spec| spec.latency).unwrap_or_default().0;
    let each =
        |spec: &AnswersEach| [spec.register, spec.drain, spec.deregister, spec.list].into_iter().flatten().any(|one| one != Answer::Ok);
    let answers = spec.answers.as_ref().map(|answers| match answers {
        AnswersSpec::All(answer) => *answer != Answer::Ok,
        AnswersSpec::Each(spec) => each(spec),
    });
    note(open, name, "answers", answers);
    note(open, name, "capacity", spec.capacity.map(|capacity| capacity.is_some()));
    note(open, name, "duplicates", spec.duplicates.map(|after| after.is_some()));
    note(open, name, "latency", spec.latency.map(|latency| latency.0 > usual));
    note(open, name, "lag", spec.list_lag.map(|lag| lag.0 > Duration::ZERO));
}

fn node(open: &mut Open, step: &NodeStep) {
    note(open, &step.name, "gone", step.gone.or(step.ready.filter(|ready| *ready).map(|_| false)));
    note(open, &step.name, "not ready", step.ready.map(|ready| !ready));
    note(open, &step.name, "tainted", step.taint.map(|taint| taint != Taint::None));
}

/// `broken`: whether that is broken from now on; `None`: the step does not say.
fn note(open: &mut Open, part: &str, kind: &'static str, broken: Option<bool>) {
    match broken {
        Some(true) => drop(open.insert((part.to_owned(), kind))),
        Some(false) => drop(open.remove(&(part.to_owned(), kind))),
        None => {}
    }
}
