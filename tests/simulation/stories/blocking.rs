//! The product where registries can answer blocking reads, for which the format of scenarios has no word.
//!
//! A blocking read is under way most of the time, so whatever waits for calls to end must not wait for it.
//!
//! Invariant: played by the product itself, under every invariant of the scenarios.
//! Absent on purpose: how a driver asks for such a read (`registry`).

use crate::product;
use crate::scenario::grammar::Scenario;
use crate::scenario::line;
use crate::scenario::run::{Conditions, play};

/// Name, steps and expectations.
const STORIES: &[(&str, &str)] = &[
    (
        "a blocking read brings the acknowledgement when it is there",
        "registries: {sim: {activeAfter: 7s}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
expect:
  - {during: 11s..16s, pod: web, gate: \"False\"}
  - {by: 17100ms, since: 10s, pod: web, gate: \"True\"}
  - {during: 11s..16s, registry: sim, service: web, requests: {list: {atMost: 1}}}
",
    ),
    (
        "a leader that stops does not wait for a blocking read",
        "replicas: 2
registries: {sim: {activeAfter: never}}
steps:
  - {at: 10s, create: {pod: web, ip: 10.0.0.5, containersReady: true}}
  - {at: 30s, replica: {name: a, do: stop}}
expect:
  - {during: 12s..29s, leader: a, pod: web, gate: \"False\"}
  - {by: 32s, since: 30s, leader: b}
",
    ),
];

/// How many there are.
pub(super) fn count() -> usize {
    STORIES.len()
}

/// Runs all; what is wrong.
pub(super) fn run_all() -> Vec<String> {
    STORIES.iter().filter_map(|(name, text)| check(text).err().map(|problem| format!("story `{name}`: {problem}"))).collect()
}

fn check(text: &str) -> Result<(), String> {
    let text = format!("name: story\nwhy: A story of the simulation's own checks, played by the product.\ncovers: [ready]\n{text}");
    let scenario = Scenario::parse(&text)?;
    let conditions = Conditions { blocking: true, ..Conditions::default() };
    let ran = play(&scenario, &conditions, product::launch);
    let world = ran.shared.world();
    if world.failures.is_empty() { Ok(()) } else { Err(world.failures.iter().map(line).collect::<Vec<_>>().join("; ")) }
}
