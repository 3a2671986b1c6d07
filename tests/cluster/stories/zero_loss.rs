//! Requests from outside while pods come and go behind a real HAProxy: how many are lost, with Lockstep and without.
//!
//! Invariant: with Lockstep none is; without it some are in each row, or its load proves nothing.
//! Absent on purpose: a verdict about speed; the slowest answer stands in the table for whoever asks.

mod follow;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use self::follow::Follower;
use crate::cluster::eventually;
use crate::load::{Load, Tally};
use crate::outside::{Backend, DYNAMIC, PAIR, PLAIN, PLAIN_SLOTS, SLOTS};
use crate::stories::trouble::{kill, leader};
use crate::stories::{holds, living, name, seen};
use crate::web;
use crate::world::{self, NAMESPACE, World};

/// Pods of the workload.
const PODS: usize = 4;
/// A rollout that waits for a new leader takes longest.
const SLOWLY: Duration = Duration::from_secs(180);
/// Rollouts of each kind in the long test; in fewer a row may lose nothing without Lockstep by luck.
const ROLLOUTS: usize = 10;
/// A reload loses dynamic servers, which the operators' page warns of.
const DYNAMIC_RELOADED: &str = "HAProxy reloaded in each rollout, `servers: dynamic`";

/// Something that is done to a workload.
type Phase = fn(&Steady<'_>);

/// One row of the table.
struct Row {
    what: &'static str,
    with: Tally,
    without: Tally,
}

/// The short round: one rollout, pods deleted, up and down.
pub(crate) fn nothing_is_lost(world: &World) {
    let steady = Steady::start(world, &DYNAMIC, 3, None);
    let tally = steady.under_load(|steady| {
        steady.roll();
        steady.delete_pods(1);
        steady.scale(4);
        steady.scale(2);
    });
    assert!(tally.requests > 500, "{tally:?} is no load");
    assert_eq!(tally.failures, 0, "{tally:?}");
    steady.end();
}

/// All of it, with the table of `docs/zero-loss.md`.
pub(crate) fn everything(world: &World) {
    // Time for another leader to take over before a pod stops, as an install has it by default.
    let mut values = world.values();
    values["config"]["injection"]["margin"] = "15s".into();
    world.upgrade(&values);

    let rows: Vec<Row> = [
        rows(world, (&DYNAMIC, &PLAIN), &[("rollouts", rollouts), ("pods deleted", deletions), ("scaled up and down", scaling)]),
        rows(world, (&DYNAMIC, &PLAIN), &[("the leader killed in each rollout", leaders_killed)]),
        rows(world, (&SLOTS, &PLAIN_SLOTS), &[("HAProxy reloaded in each rollout, `servers: template`", reloads)]),
        rows(world, (&DYNAMIC, &PLAIN), &[(DYNAMIC_RELOADED, reloads)]),
        rows(world, (&PAIR, &PLAIN), &[("one of two HAProxy stopped in each rollout", one_of_two_stopped)]),
    ]
    .into_iter()
    .flatten()
    .collect();
    let table = print(&rows);
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("zero-loss.md"), &table).expect("the folder is ours");
    eprintln!("\n{table}");
    let those = |which: fn(&Row) -> bool| rows.iter().filter(|row| which(row)).map(|row| row.what).collect::<Vec<_>>();
    let lost = those(|row| row.with.failures > 0 && row.what != DYNAMIC_RELOADED);
    assert_eq!(lost, [] as [&str; 0], "requests were lost with Lockstep");
    let harmless = those(|row| row.without.failures == 0);
    let proves_something = if count() < ROLLOUTS { harmless.len() < rows.len() } else { harmless.is_empty() };
    assert!(proves_something, "nothing was lost without Lockstep in {harmless:?}, so the load proves nothing there");
}

/// What is done under load, with Lockstep and with a loop that follows the cluster.
fn rows(world: &World, (with, without): (&'static Backend, &'static Backend), phases: &[(&'static str, Phase)]) -> Vec<Row> {
    let all = |steady: Steady<'_>| {
        let tallies: Vec<Tally> = phases.iter().map(|(_, phase)| steady.under_load(phase)).collect();
        steady.end();
        tallies
    };
    let with = all(Steady::start(world, with, PODS, None));
    let without = follow::beside(world, without, |follower| all(Steady::start(world, without, PODS, Some(follower))));
    let rows = phases.iter().zip(with.into_iter().zip(without));
    rows.map(|((what, _), (with, without))| Row { what, with, without }).collect()
}

fn rollouts(steady: &Steady<'_>) {
    (0..count()).for_each(|_| steady.roll());
}

fn deletions(steady: &Steady<'_>) {
    steady.delete_pods(count());
}

fn scaling(steady: &Steady<'_>) {
    for _ in 0..count().div_ceil(3) {
        steady.scale(PODS + 3);
        steady.scale(2);
        steady.scale(PODS);
    }
}

fn leaders_killed(steady: &Steady<'_>) {
    let world = steady.world;
    for _ in 0..count() {
        let Some(follower) = steady.follower else {
            steady.roll_while(|| {
                let leader = leader(world);
                kill(world, &leader);
                // A container that was killed often is started later and later; another pod is started at once.
                world.cluster.kubectl(&["delete", "pod", "--namespace", NAMESPACE, &leader, "--force", "--grace-period=0"]);
            });
            world.cluster.kubectl(&["rollout", "status", "deployment/lockstep", "--namespace", NAMESPACE, "--timeout", "120s"]);
            continue;
        };
        steady.roll_while(|| follower.lose_leader());
    }
}

fn reloads(steady: &Steady<'_>) {
    for _ in 0..count() {
        steady.roll_while(|| steady.world.outside.first().reload());
    }
}

/// A pod is deleted while the other is away and counts still.
fn one_of_two_stopped(steady: &Steady<'_>) {
    for _ in 0..count() {
        steady.roll_while(|| {
            steady.world.outside.second().stop();
            steady.delete_pod();
        });
        steady.world.outside.second().resume();
    }
}

/// A workload behind a balancer.
struct Steady<'w> {
    world: &'w World,
    backend: &'static Backend,
    /// The loop, where Lockstep has nothing to do with it.
    follower: Option<&'w Follower>,
}

impl<'w> Steady<'w> {
    fn start(world: &'w World, backend: &'static Backend, pods: usize, follower: Option<&'w Follower>) -> Self {
        world.cluster.apply(&[deployment(backend.name, pods), service(backend.name)]);
        let steady = Self { world, backend, follower };
        steady.await_pods(pods);
        steady
    }

    /// What came of the requests while something was done.
    fn under_load(&self, deed: impl FnOnce(&Self)) -> Tally {
        let load = Load::start(self.world.outside.front(self.backend));
        deed(self);
        load.stop()
    }

    fn roll(&self) {
        self.roll_while(|| {});
    }

    /// A rollout, in whose middle something happens.
    fn roll_while(&self, deed: impl FnOnce()) {
        let old: Vec<String> = living(self.world, self.backend.name).iter().map(|pod| name(pod).to_owned()).collect();
        self.kubectl(&["rollout", "restart", "deployment/web"]);
        eventually("a new pod comes", SLOWLY, || {
            let pods = living(self.world, self.backend.name);
            let new = pods.iter().any(|pod| !old.iter().any(|old| old == name(pod)));
            if new { Ok(()) } else { Err(format!("{} old ones", pods.len())) }
        });
        deed();
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout", "180s"]);
    }

    fn delete_pods(&self, count: usize) {
        for _ in 0..count {
            let pods = living(self.world, self.backend.name).len();
            self.delete_pod();
            self.await_pods(pods);
        }
    }

    fn delete_pod(&self) {
        let pods = living(self.world, self.backend.name);
        self.kubectl(&["delete", "pod", name(&pods[0]), "--wait=false"]);
    }

    fn scale(&self, pods: usize) {
        self.kubectl(&["scale", "deployment/web", "--replicas", &pods.to_string()]);
        self.await_pods(pods);
    }

    /// Takes the workload away and waits until its last pod is gone.
    fn end(self) {
        self.kubectl(&["delete", "deployment/web", "service/web"]);
        eventually("the pods are gone", SLOWLY, || {
            let pods = self.world.cluster.pods(self.backend.name, "app=web");
            if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
        });
    }

    fn await_pods(&self, count: usize) {
        eventually(&format!("{count} pods of {} are Ready", self.backend.name), SLOWLY, || {
            let pods = living(self.world, self.backend.name);
            let ready = pods.len() == count && pods.iter().all(|pod| holds(pod, "Ready"));
            if ready { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
        });
    }

    fn kubectl(&self, arguments: &[&str]) {
        self.world.cluster.kubectl(&[arguments, &["--namespace", self.backend.name]].concat());
    }
}

/// Rollouts of each kind: `ROLLOUTS` in the environment, for a quick look.
fn count() -> usize {
    std::env::var("ROLLOUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROLLOUTS)
}

fn print(rows: &[Row]) -> String {
    let cells = |tally: &Tally| format!("{} | {} | {} ms", tally.requests, tally.failures, tally.slowest.as_millis());
    let mut table = "| | requests | failed | slowest | without: requests | failed | slowest |\n".to_owned();
    table += "| --- | --- | --- | --- | --- | --- | --- |\n";
    for row in rows {
        let _ = writeln!(table, "| {} | {} | {} |", row.what, cells(&row.with), cells(&row.without));
    }
    for tally in rows.iter().map(|row| &row.with).filter(|tally| tally.failures > 0) {
        let _ = writeln!(table, "\nlost with Lockstep: {:?}", tally.words);
    }
    table
}

fn deployment(namespace: &str, replicas: usize) -> Value {
    let mut deployment = world::deployment(namespace, u32::try_from(replicas).expect("a few"));
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["image"] = "web:test".into();
    container["env"] = json!([{ "name": web::ROLE, "value": "yes" }]);
    deployment
}

fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": namespace },
        "spec": { "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] },
    })
}
