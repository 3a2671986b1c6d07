//! Checks of the machinery: executor, watches, registries and the file format.
//!
//! Each is a function that says what is wrong, or nothing.
//!
//! Invariant: no check looks at the product.
//! Absent on purpose: judges (`stories`, `expectations`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use lockstep::reconcile::clock::Instant;
use lockstep::reconcile::cluster::{ApiError, Page, PodEvent};
use lockstep::reconcile::{Clock, Cluster};

use crate::executor::{Exec, Executor, SimClock, lock};
use crate::product::Instance;
use crate::scenario::grammar::Scenario;
use crate::scenario::{run, write};

type Check = (&'static str, fn() -> Result<(), String>);

const CHECKS: &[Check] = &[
    ("sleepers wake in order of time", sleepers),
    ("a paused process waits and then goes on", pause),
    ("a killed process does nothing more", kill),
    ("a watch delivers, loses, delays and expires", watches),
    ("a list comes in pages of one moment", pages),
    ("what is written parses to the same", round_trip),
    ("odd files do not parse", odd_files),
];

/// How many there are.
pub(super) fn count() -> usize {
    CHECKS.len()
}

/// Runs all; what is wrong.
pub(super) fn run_all() -> Vec<String> {
    CHECKS.iter().filter_map(|(name, check)| check().err().map(|problem| format!("check `{name}`: {problem}"))).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("wanted {wanted:?}, found {found:?}")) }
}

type Notes = Arc<Mutex<Vec<(u64, u64)>>>;

fn walk(executor: &mut Executor, to: u64, at: impl Fn(&mut Executor, u64)) {
    for second in 0..=to {
        executor.advance(Duration::from_secs(second));
        at(executor, second);
        let _ = executor.run();
    }
}

fn sleeper(exec: &Arc<Exec>, process: usize, notes: &Notes, seconds: &'static [u64]) {
    let clock = SimClock::new(exec.clone(), process, 1);
    let notes = notes.clone();
    let task = {
        let clock = clock.clone();
        async move {
            for second in seconds {
                clock.sleep_until(Instant(Duration::from_secs(*second))).await;
                lock(&notes).push((clock.now().0.as_secs(), *second));
            }
        }
    };
    clock.spawn(task);
}

fn sleepers() -> Result<(), String> {
    let (exec, notes) = (Exec::new(), Notes::default());
    let mut executor = Executor::new(exec.clone());
    sleeper(&exec, 0, &notes, &[3, 5]);
    sleeper(&exec, 1, &notes, &[2, 5]);
    walk(&mut executor, 9, |_, _| {});
    same(&*lock(&notes), &vec![(2, 2), (3, 3), (5, 5), (5, 5)])
}

fn pause() -> Result<(), String> {
    let (exec, notes) = (Exec::new(), Notes::default());
    let mut executor = Executor::new(exec.clone());
    sleeper(&exec, 0, &notes, &[2, 4, 8]);
    walk(&mut executor, 9, |executor, second| {
        if second == 1 || second == 6 {
            executor.pause(0, second == 1);
        }
    });
    same(&*lock(&notes), &vec![(6, 2), (6, 4), (8, 8)])
}

fn kill() -> Result<(), String> {
    let (exec, notes) = (Exec::new(), Notes::default());
    let mut executor = Executor::new(exec.clone());
    sleeper(&exec, 0, &notes, &[2, 4]);
    sleeper(&exec, 1, &notes, &[4]);
    walk(&mut executor, 9, |executor, second| {
        if second == 3 {
            executor.kill(0);
        }
    });
    same(&*lock(&notes), &vec![(2, 2), (4, 4)])
}

/// Plays a story with a process that only looks.
fn look(steps: &str, play: impl Fn(Instance) -> crate::executor::BoxFuture) -> Result<(), String> {
    let text = format!(
        "name: look\nwhy: A story of the simulation's own checks.\ncovers: [watch]\nsteps:\n{steps}expect:\n  - {{at: 90s, debts: 0}}\n"
    );
    let scenario = Scenario::parse(&text)?;
    let failures = run::run(&scenario, play);
    same(&failures, &Vec::new())
}

fn watches() -> Result<(), String> {
    let seen: Arc<Mutex<Vec<(u64, String)>>> = Arc::default();
    let notes = seen.clone();
    let steps = "  - {at: 0s, create: {pod: web, count: 2}}
  - {at: 2s, update: {pod: web-0, ip: 10.0.0.5}}
  - {at: 3s, watch: {do: drop, pod: web-0, for: 2s}}
  - {at: 4s, update: {pod: \"web-*\", ip: 10.0.0.6}}
  - {at: 5s, watch: {do: delay, by: 5s, for: 2s}}
  - {at: 6s, update: {pod: web-0, ip: 10.0.0.7}}
  - {at: 8s, vanish: {pod: web-1}}
  - {at: 80s, watch: {do: expire}}
";
    look(steps, move |instance| {
        let notes = notes.clone();
        Box::pin(async move {
            let page = instance.api.list_pods(Page::default()).await.expect("the server answers");
            let mut watch = instance.api.watch_pods(&page.resource_version).await.expect("the server answers");
            while let Some(event) = watch.next().await {
                let text = match event {
                    Ok(PodEvent::Applied(view)) => format!("{} {:?}", view.key.name, view.addresses),
                    Ok(PodEvent::Deleted(view)) => format!("{} gone", view.key.name),
                    Ok(PodEvent::Bookmark(_)) => "bookmark".to_owned(),
                    Err(error) => format!("{:?}", error.code()),
                };
                lock(&notes).push((instance.clock.now().0.as_secs(), text));
            }
            std::future::pending::<()>().await;
        })
    })?;
    let wanted = [
        (2, "web-0 [10.0.0.5]"),
        (4, "web-1 [10.0.0.6]"),
        (11, "web-0 [10.0.0.7]"),
        (11, "web-1 gone"),
        (60, "bookmark"),
        (80, "Some(410)"),
    ];
    same(&*lock(&seen), &wanted.map(|(at, text)| (at, text.to_owned())).to_vec())
}

fn pages() -> Result<(), String> {
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let notes = seen.clone();
    let steps = "  - {at: 0s, create: {pod: web, count: 5}}\n  - {at: 1s, vanish: {pod: web-4}}\n";
    look(steps, move |instance| {
        let notes = notes.clone();
        Box::pin(async move {
            let mut page = Page { limit: 2, token: None };
            loop {
                let part = instance.api.list_pods(page.clone()).await.expect("the server answers");
                lock(&notes).push(part.pods.len());
                instance.clock.sleep_until(Instant(Duration::from_secs(2))).await;
                page.token = part.next;
                if page.token.is_none() {
                    break;
                }
            }
            let again = instance.api.list_pods(Page { limit: 2, token: Some("7/2".to_owned()) }).await;
            assert!(matches!(again, Err(ApiError::Status { code: 410, .. })), "a token works once");
            std::future::pending::<()>().await;
        })
    })?;
    same(&*lock(&seen), &vec![2, 2, 1])
}

fn round_trip() -> Result<(), String> {
    for path in std::fs::read_dir(crate::scenario::FOLDER).map_err(|error| error.to_string())? {
        let path = path.map_err(|error| error.to_string())?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let scenario = Scenario::parse(&text)?;
        let written = write::write(&scenario);
        let again = Scenario::parse(&written).map_err(|error| format!("{}: {error}\n{written}", path.display()))?;
        same(&format!("{again:?}"), &format!("{scenario:?}"))?;
    }
    Ok(())
}

fn odd_files() -> Result<(), String> {
    let good = "name: x\nwhy: A story of the simulation's own checks.\ncovers: [ready]\nsteps: [{at: 0s, create: {pod: web-1}}]\nexpect: [{at: 1s, pod: web-1, exists: true}]\n";
    Scenario::parse(good)?;
    let odd = [
        ("nmae", good.replace("name:", "nmae:")),
        ("two actions", good.replace("create: {pod: web-1}", "create: {pod: web-1}, jump: 1h")),
        ("unknown pod", good.replace("pod: web-1, exists", "pod: web-2, exists")),
        ("unknown field", good.replace("pod: web-1}", "pod: web-1, colour: red}")),
        ("no unit", good.replace("at: 1s", "at: 1")),
        ("no time", good.replace("at: 1s, ", "")),
        ("no step time", good.replace("{at: 0s, create", "{create")),
        ("yes is no boolean", good.replace("exists: true", "exists: yes")),
        ("twice the same key", good.replace("exists: true", "exists: true, exists: false")),
        ("nothing asserted", good.replace(", exists: true", "")),
        (
            "no such replica",
            good.replace("create: {pod: web-1}", "replica: {name: b, do: crash}").replace("pod: web-1, exists: true", "debts: 0"),
        ),
        ("order of time", good.replace("steps: [", "steps: [{at: 5s, jump: 1h}, ")),
        ("twice the same handle", good.replace("steps: [", "steps: [{at: 0s, create: {pod: web-1}}, ")),
        ("fixed field in a step", good.replace("steps: [", "steps: [{at: 0s, registry: {name: sim, drains: explicitly}}, ")),
        ("not yaml", "steps: [".to_owned()),
    ];
    for (name, text) in odd {
        if Scenario::parse(&text).is_ok() {
            return Err(format!("`{name}` parses"));
        }
    }
    Ok(())
}
