//! The simulation's own checks: small stories that must fail, each for its one reason, and their honest counterparts that must not.
//!
//! A judge that cannot fail proves nothing. Each story is played by a hand that does exactly what it is told, not by the product.
//!
//! Invariant: every invariant of the format is broken by at least one story here, and every assertion of the grammar fails in at least one.
//! Absent on purpose: the product, but where a story is beyond the format of scenarios (`beyond`).

mod beyond;
mod expectations;
mod hand;
mod machine;

use std::future::Future;
use std::pin::Pin;

use lockstep::registry::Operation::{Deregister, Drain, Register};

use crate::product::Instance;
use crate::scenario::grammar::Scenario;
use crate::scenario::{line, run};
use hand::Hand;

/// What a hand does.
pub(crate) type Play = fn(Hand) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A story: its name, its steps, what the hand does, and the one rule that must break.
struct Story {
    name: &'static str,
    text: &'static str,
    play: Play,
    breaks: Option<&'static str>,
}

/// Runs all of them; how many did not do as they must.
pub(crate) fn run_all(say: impl Fn(&str)) -> usize {
    let mut wrong: Vec<String> = STORIES.iter().filter_map(check).collect();
    wrong.extend(expectations::run_all());
    wrong.extend(machine::run_all());
    wrong.extend(beyond::run_all());
    for problem in &wrong {
        say(problem);
    }
    wrong.len()
}

/// How many there are.
pub(crate) fn count() -> usize {
    STORIES.len() + expectations::count() + machine::count() + beyond::count()
}

fn check(story: &Story) -> Option<String> {
    let text = format!("name: story\nwhy: A story of the simulation's own checks, played by a hand.\ncovers: [ready]\n{}", story.text);
    let scenario = match Scenario::parse(&text) {
        Ok(scenario) => scenario,
        Err(error) => return Some(format!("story `{}` does not parse: {error}", story.name)),
    };
    let play = story.play;
    let failures = run::run(&scenario, |instance: Instance| Hand::lend(instance, play));
    let found: Vec<String> = failures.iter().map(line).collect();
    let right = match story.breaks {
        None => failures.is_empty(),
        Some(rule) => !failures.is_empty() && failures.iter().all(|failure| failure.rule == rule),
    };
    (!right).then(|| format!("story `{}`: wanted {:?} to break; found {found:?}", story.name, story.breaks))
}

const POD: &str = "steps:\n  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}\nexpect:\n  - {at: 60s, debts: 0}\n";

const TWO_REPLICAS: &str =
    "replicas: 2\nsteps:\n  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}\nexpect:\n  - {at: 60s, debts: 0}\n";

const UNREADY: &str = "steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, update: {pod: web-1, containersReady: false}}
expect:
  - {at: 60s, debts: 0}
";

const DELETED: &str = "steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, delete: {pod: web-1}}
  - {at: 25s, finalDelete: {pod: web-1}}
expect:
  - {at: 60s, debts: 0}
";

const SLOW: &str = "registries: {sim: {activeAfter: 5s, goneAfter: 5s, latency: 2s}}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, delete: {pod: web-1}}
  - {at: 25s, finalDelete: {pod: web-1}}
expect:
  - {at: 60s, debts: 0}
";

const FOREIGN: &str = "registries: {sim: {keys: address, holds: [{address: 10.0.0.5}]}}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
expect:
  - {at: 60s, debts: 0}
";

const OBSERVED: &str = "config:
  bindings:
    - {name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: sim, service: web, port: 8080, mode: observe}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
expect:
  - {at: 60s, debts: 0}
";

const BY_DEREGISTERING: &str = "registries: {sim: {drains: byDeregistering}}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, delete: {pod: web-1}}
expect:
  - {at: 60s, debts: 0}
";

const RELEASED: &str = "steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
  - {at: 20s, update: {pod: web-1, released: true}}
expect:
  - {at: 60s, debts: 0}
";

const REUSED: &str = "registries: {sim: {keys: address, marks: false}}
steps:
  - {at: 0s, create: {pod: old, ip: 10.0.0.5, containersReady: true}}
  - {at: 10s, delete: {pod: old, grace: 5s}}
  - {at: 20s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
expect:
  - {at: 60s, debts: 0}
";

const OPEN: &str = "config:
  registration: {gateTimeout: 10s, onGateTimeout: open}
registries: {sim: {answers: unavailable}}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true}}
expect:
  - {at: 60s, debts: 0}
";

#[rustfmt::skip]
const STORIES: &[Story] = &[
    Story { name: "honest", text: POD, breaks: None, play: |mut hand| Box::pin(async move { hand.serve("web-1").await; }) },
    Story { name: "honest end", text: DELETED, breaks: None, play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(20).await;
        hand.change(Drain, "web-1").await;
        hand.until(25).await;
        hand.change(Deregister, "web-1").await;
        hand.list().await;
        hand.finish("web-1").await;
    }) },
    Story { name: "the gate opens at once", text: POD, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.open("web-1").await;
    }) },
    Story { name: "the gate opens on a successful send", text: SLOW, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
        hand.open("web-1").await;
    }) },
    Story { name: "the gate opens on a read before the send", text: POD, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
        hand.list().await;
        hand.change(Register, "web-1").await;
        hand.open("web-1").await;
    }) },
    Story { name: "the gate opens on a stranger's target", text: REUSED, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.serve("old").await;
        hand.until(20).await;
        hand.list().await;
        hand.open("web-1").await;
    }) },
    Story { name: "the gate opens while the containers are not ready", text: UNREADY, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
        hand.list().await;
        hand.until(21).await;
        hand.open("web-1").await;
    }) },
    Story { name: "an exception that nobody counts", text: OPEN, breaks: Some("I2"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.until(11).await;
        hand.open("web-1").await;
    }) },
    Story { name: "an exception too early", text: OPEN, breaks: Some("I1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.until(9).await;
        hand.open("web-1").await;
    }) },
    Story { name: "the finalizer goes from a living pod", text: POD, breaks: Some("I2"), play: |mut hand| Box::pin(async move {
        hand.finish("web-1").await;
    }) },
    Story { name: "the finalizer goes while the target is there", text: DELETED, breaks: Some("I2"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(25).await;
        hand.finish("web-1").await;
    }) },
    Story { name: "the finalizer goes without a read", text: DELETED, breaks: Some("I2"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(25).await;
        hand.change(Deregister, "web-1").await;
        hand.finish("web-1").await;
    }) },
    Story { name: "the finalizer goes before the target does", text: SLOW, breaks: Some("I2"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
        hand.until(25).await;
        hand.change(Deregister, "web-1").await;
        hand.list().await;
        hand.finish("web-1").await;
    }) },
    Story { name: "not found is an answer", text: DELETED, breaks: None, play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(25).await;
        hand.change(Deregister, "web-1").await;
        hand.change(Deregister, "web-1").await;
        hand.finish("web-1").await;
    }) },
    Story { name: "a foreign target is taken over", text: FOREIGN, breaks: Some("A1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
    }) },
    Story { name: "a foreign target is taken out", text: FOREIGN, breaks: Some("A1"), play: |mut hand| Box::pin(async move {
        hand.change(Deregister, "web-1").await;
    }) },
    Story { name: "an observed service is written to", text: OBSERVED, breaks: Some("A1"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.change(Register, "web-1").await;
    }) },
    Story { name: "a drain where there is none", text: BY_DEREGISTERING, breaks: Some("A1"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(21).await;
        hand.change(Drain, "web-1").await;
    }) },
    Story { name: "a serving target is drained", text: POD, breaks: Some("A2"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(10).await;
        hand.change(Drain, "web-1").await;
    }) },
    Story { name: "the newcomer is taken out", text: REUSED, breaks: Some("A2"), play: |mut hand| Box::pin(async move {
        hand.serve("old").await;
        hand.until(21).await;
        hand.serve("web-1").await;
        hand.until(30).await;
        hand.change(Deregister, "old").await;
    }) },
    Story { name: "drained before the gate is False", text: UNREADY, breaks: Some("A3"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(21).await;
        hand.change(Drain, "web-1").await;
    }) },
    Story { name: "gate False, then drained", text: UNREADY, breaks: None, play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(21).await;
        hand.shut("web-1").await;
        hand.change(Drain, "web-1").await;
    }) },
    Story { name: "a write without the Lease", text: TWO_REPLICAS, breaks: Some("A4"), play: |mut hand| Box::pin(async move {
        if hand.name() == "b" {
            hand.until(5).await;
            hand.claim_as_other("web-1").await;
        } else {
            hand.take_lease().await;
        }
    }) },
    Story { name: "the same again", text: POD, breaks: Some("A5"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.claim("web-1").await;
    }) },
    Story { name: "a transition that was none", text: POD, breaks: Some("A5"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.until(5).await;
        hand.say("web-1", "Waiting", true).await;
    }) },
    Story { name: "a transition without its time", text: POD, breaks: Some("A5"), play: |mut hand| Box::pin(async move {
        hand.say("web-1", "Waiting", false).await;
    }) },
    Story { name: "a foreign condition", text: POD, breaks: Some("A5"), play: |mut hand| Box::pin(async move {
        hand.foreign("web-1").await;
    }) },
    Story { name: "registered before it was claimed", text: POD, breaks: Some("A6"), play: |mut hand| Box::pin(async move {
        hand.take_lease().await;
        hand.change(Register, "web-1").await;
    }) },
    Story { name: "a claim dropped too early", text: DELETED, breaks: Some("A6"), play: |mut hand| Box::pin(async move {
        hand.serve("web-1").await;
        hand.until(25).await;
        hand.unclaim("web-1").await;
    }) },
    Story { name: "two changes of a target at once", text: SLOW, breaks: Some("A7"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.both("web-1").await;
    }) },
    Story { name: "a released pod is written", text: RELEASED, breaks: Some("A8"), play: |mut hand| Box::pin(async move {
        hand.until(22).await;
        hand.claim("web-1").await;
    }) },
    Story { name: "a released pod's target is changed", text: RELEASED, breaks: Some("A8"), play: |mut hand| Box::pin(async move {
        hand.claim("web-1").await;
        hand.until(22).await;
        hand.change(Register, "web-1").await;
    }) },
    Story { name: "a product that panics", text: POD, breaks: Some("run"), play: |_| Box::pin(async move { panic!("on purpose") }) },
    Story { name: "a product that never rests", text: POD, breaks: Some("run"), play: |hand| Box::pin(async move {
        loop { hand.list().await; }
    }) },
];
