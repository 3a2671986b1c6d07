//! Every assertion of the grammar once as it holds, and once as it does not.
//!
//! The story is one honest registration and drain, played by a hand; what follows is judged against it.
//!
//! Invariant: each row says which it is; a row that does the other is a defect of the judge.
//! Absent on purpose: invariants (`stories`).

use lockstep::registry::Operation::{Deregister, Drain};

use super::hand::Hand;
use crate::scenario::grammar::Scenario;
use crate::scenario::{line, run};

/// One pod serves from 0s, is drained at 30s and gone at 40s.
const STORY: &str = "name: story
why: A story of the simulation's own checks, played by a hand.
covers: [ready]
registries: {sim: {holds: [{address: 10.9.9.9, port: 80}]}}
steps:
  - {at: 0s, create: {pod: web-1, ip: 10.0.0.5, containersReady: true, finalizers: [other.example/held]}}
  - {at: 0s, create: {pod: web-2}}
  - {at: 30s, delete: {pod: web-1}}
  - {at: 40s, finalDelete: {pod: web-1}}
  - {at: 45s, update: {pod: web-1, finalizers: []}}
expect:
";

/// Whether it holds, and the item.
const ROWS: &[(bool, &str)] = &[
    (true, "{by: 1s, pod: web-1, gate: \"True\", reason: Registered}"),
    (false, "{by: 1s, pod: web-1, gate: \"False\"}"),
    (false, "{by: 1s, pod: web-1, reason: Registering, gate: \"True\"}"),
    (false, "{at: 1s, pod: web-2, gate: \"True\"}"),
    (true, "{at: 1s, pod: web-2, gate: absent}"),
    (true, "{during: 1s..29s, pod: web-1, gate: [\"True\", absent]}"),
    (false, "{during: 0s..60s, pod: web-1, gate: \"True\"}"),
    (true, "{at: 10s, pod: web-1, finalizer: true, exists: true, managed: true, ready: true}"),
    (false, "{at: 10s, pod: web-1, finalizer: false}"),
    (false, "{at: 10s, pod: web-1, managed: false}"),
    (false, "{at: 10s, pod: web-2, ready: true}"),
    (true, "{at: 60s, pod: web-1, exists: false, finalizer: false}"),
    (false, "{at: 60s, pod: web-1, exists: true}"),
    (false, "{at: 60s, pod: web-1, managed: true}"),
    (true, "{at: 10s, pod: web-1, finalizers: [other.example/held]}"),
    (false, "{at: 10s, pod: web-1, finalizers: []}"),
    (true, "{at: 10s, pod: web-1, claims: [\"sim/web 10.0.0.5:8080\"]}"),
    (false, "{at: 10s, pod: web-1, claims: []}"),
    (false, "{at: 10s, pod: web-1, claims: [\"sim/web 10.0.0.5:8080 observed\"]}"),
    (true, "{at: 10s, registry: sim, targets: {web-1: active, \"10.9.9.9:80\": active, \"10.0.0.9:80\": absent}, nothingElse: true}"),
    (false, "{at: 10s, registry: sim, targets: {web-1: active}, nothingElse: true}"),
    (false, "{at: 10s, registry: sim, targets: {web-1: [draining, absent]}}"),
    (false, "{at: 10s, registry: sim, targets: {web-2: active}}"),
    (true, "{at: 60s, registry: sim, targets: {web-1: absent}}"),
    (true, "{at: 35s, registry: sim, count: {draining: 1, active: 0}}"),
    (false, "{at: 35s, registry: sim, count: {active: 1}}"),
    (true, "{at: 60s, pod: web-1, calls: {register: 1, drain: 1, deregister: 1, any: 3}}"),
    (false, "{at: 60s, pod: web-1, calls: {any: 2}}"),
    (false, "{at: 60s, pod: web-1, calls: {register: {atLeast: 2}}}"),
    (false, "{at: 60s, pod: web-1, calls: {register: {atMost: 0}}}"),
    (true, "{at: 60s, since: 31s, registry: sim, calls: {register: 0, drain: 0, deregister: 1}}"),
    (true, "{during: 30s..40s, registry: sim, calls: {any: 2}}"),
    (false, "{during: 31s..39s, registry: sim, calls: {any: 1}}"),
    (true, "{at: 60s, pod: web-2, calls: {any: 0}}"),
    (true, "{at: 60s, registry: sim, requests: {apply: 3, list: 2}}"),
    (false, "{at: 60s, registry: sim, requests: {list: 1}}"),
    (false, "{at: 60s, registry: sim, service: other, requests: {list: 1}}"),
    (true, "{during: 0s..40s, registry: sim, apart: {atMost: 30s}}"),
    (false, "{during: 0s..40s, registry: sim, apart: {atMost: 29s}}"),
    (false, "{during: 0s..90s, registry: sim, apart: {atMost: 30s}}"),
    (true, "{at: 60s, pod: web-1, writes: {status: 2, finalizer: 1, adopt: 0}}"),
    (false, "{at: 60s, pod: web-1, writes: {status: 3}}"),
    (false, "{at: 60s, pod: web-1, writes: {finalizer: 0}}"),
    (true, "{at: 60s, events: {Warning: 0, Adopted: 0}}"),
    (false, "{at: 60s, pod: web-1, events: {Normal: 1}}"),
    (true, "{at: 60s, debts: 0, leader: a}"),
    (false, "{at: 60s, debts: 1}"),
    (false, "{at: 60s, leader: b}"),
    (false, "{by: 60s, metrics: {lockstep_no_such_metric: 1}}"),
    (
        true,
        "{at: 60s, order: [web-1 register, web-1 active, web-1 gate True, web-1 drain, web-1 draining, web-1 deregister, web-1 gone, web-1 finalizer removed, web-1 reaped]}",
    ),
    (false, "{at: 60s, order: [web-1 active, web-1 register]}"),
    (false, "{at: 60s, order: [web-1 register, web-1 active at other]}"),
    (false, "{at: 60s, order: [web-1 register, web-1 gate False, web-1 register]}"),
    (false, "{at: 60s, since: 1s, order: [web-1 register, web-1 gone]}"),
    (false, "{by: 29s, pod: [web-1, web-2], gate: \"True\"}"),
    (false, "{by: 29s, pod: \"web-*\", gate: \"True\"}"),
];

/// How many there are.
pub(super) fn count() -> usize {
    ROWS.len()
}

/// Judges every row; what is wrong.
pub(super) fn run_all() -> Vec<String> {
    ROWS.iter().filter_map(|(holds, row)| check(*holds, row)).collect()
}

fn check(holds: bool, row: &str) -> Option<String> {
    let scenario = match Scenario::parse(&format!("{STORY}  - {row}\n")) {
        Ok(scenario) => scenario,
        Err(error) => return Some(format!("expectation {row} does not parse: {error}")),
    };
    let failures = run::run(&scenario, |instance| {
        Hand::lend(instance, |mut hand| {
            Box::pin(async move {
                hand.serve("web-1").await;
                hand.until(30).await;
                hand.change(Drain, "web-1").await;
                hand.until(40).await;
                hand.change(Deregister, "web-1").await;
                hand.list().await;
                hand.finish("web-1").await;
            })
        })
    });
    let found: Vec<String> = failures.iter().map(line).collect();
    (failures.is_empty() != holds)
        .then(|| format!("expectation {row}: wanted it to {}; found {found:?}", if holds { "hold" } else { "fail" }))
}
