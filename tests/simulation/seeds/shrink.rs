//! Makes a failing world smaller, as long as the same rule still fails.
//!
//! Invariant: what comes out fails like what went in, and its faults end like those that went in: else anything would be held for ever.
//! Absent on purpose: the smallest world there is; a story that a person can read is enough.

mod endings;

use std::collections::BTreeSet;

use super::generate::Tale;
use super::play_tale;
use crate::scenario::grammar::{Handles, RegistrySpec, Step};
use crate::world::record::means;

/// Plays that a shrink may cost.
const PLAYS: usize = 600;
/// And the time.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// The smaller world.
pub(crate) fn shrink(tale: &Tale, rule: &str) -> Tale {
    let mut small = tale.clone();
    let mut plays = 0;
    #[expect(clippy::disallowed_methods, reason = "patience is for people")]
    let begun = std::time::Instant::now();
    let mut fails = |candidate: &Tale| {
        plays += 1;
        if plays > PLAYS || begun.elapsed() > PATIENCE || !endings::faults_end(&candidate.scenario) {
            return false;
        }
        let played = play_tale(candidate, None);
        !played.impossible && played.failures.iter().any(|failure| failure.rule == rule)
    };
    for _ in 0..3 {
        let before = small.scenario.steps.len();
        conditions(&mut small, &mut fails);
        without_pods(&mut small, &mut fails);
        steps(&mut small, &mut fails);
        if small.scenario.steps.len() == before {
            break;
        }
    }
    small
}

fn attempt(small: &mut Tale, fails: &mut impl FnMut(&Tale) -> bool, change: impl FnOnce(&mut Tale)) -> bool {
    let mut candidate = small.clone();
    change(&mut candidate);
    let keeps = fails(&candidate);
    if keeps {
        *small = candidate;
    }
    keeps
}

/// Disturbances, replicas and odd registries go first.
fn conditions(small: &mut Tale, fails: &mut impl FnMut(&Tale) -> bool) {
    attempt(small, fails, |tale| tale.conditions.noise = None);
    if small.conditions.noise.is_some() {
        for knob in 0..5 {
            attempt(small, fails, |tale| {
                if let Some(noise) = &mut tale.conditions.noise {
                    *[&mut noise.latency, &mut noise.failures, &mut noise.repeats, &mut noise.late, &mut noise.slow][knob] = 0;
                }
            });
        }
    }
    attempt(small, fails, |tale| tale.conditions.forgetful = false);
    attempt(small, fails, |tale| tale.conditions.blocking = false);
    for replicas in 1..small.scenario.replicas {
        if attempt(small, fails, |tale| tale.scenario.replicas = replicas) {
            break;
        }
    }
    let names: Vec<String> = small.scenario.registries.keys().cloned().collect();
    for name in names {
        let spec = small.scenario.registries[&name].clone();
        let simpler = [
            RegistrySpec::default(),
            RegistrySpec { drains: spec.drains, keys: spec.keys, marks: spec.marks, ..RegistrySpec::default() },
            RegistrySpec { latency: None, batch: None, ..spec.clone() },
        ];
        for spec in simpler {
            let name = name.clone();
            if attempt(small, fails, |tale| drop(tale.scenario.registries.insert(name, spec))) {
                break;
            }
        }
    }
}

/// Whole pods.
fn without_pods(small: &mut Tale, fails: &mut impl FnMut(&Tale) -> bool) {
    let handles: BTreeSet<String> =
        small.scenario.steps.iter().filter_map(|step| step.create.as_ref().map(|one| one.pod.clone())).collect();
    let mut handles: Vec<String> = handles.into_iter().collect();
    let mut size = handles.len().div_ceil(2);
    while size > 0 && !handles.is_empty() {
        let mut index = 0;
        while index < handles.len() {
            let end = (index + size).min(handles.len());
            let away: BTreeSet<String> = handles[index..end].iter().cloned().collect();
            if attempt(small, fails, |tale| tale.scenario.steps.retain(|step| !speaks_only_of(step, &away))) {
                handles.drain(index..end);
            } else {
                index = end;
            }
        }
        size /= 2;
    }
}

fn speaks_only_of(step: &Step, handles: &BTreeSet<String>) -> bool {
    let all = |pods: &Handles| pods.0.iter().all(|pod| handles.contains(pod));
    step.create.as_ref().is_some_and(|one| handles.contains(&one.pod))
        || step.update.as_ref().is_some_and(|one| all(&one.pod))
        || step.delete.as_ref().is_some_and(|one| all(&one.pod))
        || step.final_delete.as_ref().is_some_and(|one| all(&one.pod))
        || step.vanish.as_ref().is_some_and(|one| all(&one.pod))
}

/// Single steps, in ever smaller runs.
fn steps(small: &mut Tale, fails: &mut impl FnMut(&Tale) -> bool) {
    let mut size = small.scenario.steps.len().div_ceil(4);
    while size > 0 {
        let mut index = 0;
        while index < small.scenario.steps.len() {
            let end = (index + size).min(small.scenario.steps.len());
            if !attempt(small, fails, |tale| drop(tale.scenario.steps.drain(index..end))) {
                index = end;
            }
        }
        size /= 2;
    }
}

/// The story as a file that parses: without steps about pods that are no longer made.
pub(crate) fn presentable(tale: &Tale) -> crate::scenario::grammar::Scenario {
    let mut scenario = tale.scenario.clone();
    let mut made: Vec<String> = Vec::new();
    scenario.steps.retain(|step| {
        if let Some(create) = &step.create {
            made.push(create.pod.clone());
        }
        let pods = [
            step.update.as_ref().map(|one| &one.pod),
            step.delete.as_ref().map(|one| &one.pod),
            step.final_delete.as_ref().map(|one| &one.pod),
            step.vanish.as_ref().map(|one| &one.pod),
        ];
        pods.into_iter().flatten().all(|pods| pods.0.iter().all(|pattern| made.iter().any(|handle| means(pattern, handle))))
    });
    scenario
}
