//! The documentation on a real cluster: its commands as they stand, and the dashboard during a rollout.
//!
//! Invariant: what is run is the text of the page, so a command that is wrong there fails here.
//! Absent on purpose: commands that need no cluster (the integration tests), the page for the night without Lockstep (its own story).

use std::collections::BTreeMap;

use serde_json::json;

use crate::cluster::eventually;
use crate::documentation_pages::{self, ON_A_CLUSTER, REMOVING, runbooks};
use crate::exposed::{self, unanswered};
use crate::stories::{SOON, await_active, await_ready, await_rolled, carries_finalizer, condition, living, name, seen};
use crate::world::{self, World};

const NAMESPACE: &str = "documented";
const WATCHED: &str = "watched";
/// Metrics that a cluster shows only once something of theirs has happened.
const SILENT: [&str; 5] = [
    "lockstep_admission_refusals_total",
    "lockstep_drain_delay_seconds",
    "lockstep_findings_total",
    "lockstep_registry_down",
    "lockstep_registry_instances_out",
];

pub(crate) fn commands(world: &World) {
    // A namespace that nobody has opted in yet: the first page does that.
    world.cluster.apply(&[world::deployment(NAMESPACE, 2)]);
    await_ready(world, NAMESPACE, 2);
    let mut printed = String::new();
    for page in ON_A_CLUSTER.iter().map(|page| (*page).to_owned()).chain(runbooks()) {
        for command in documentation_pages::commands(&page) {
            let pod = living(world, NAMESPACE).last().map(|pod| name(pod).to_owned()).expect("two pods live");
            printed += &world.cluster.shell(&command, &[("NAMESPACE", NAMESPACE), ("POD", &pod)]);
        }
    }
    let pods = await_active(world, NAMESPACE, 2);
    assert!(pods.iter().all(|pod| condition(pod, "lockstep.dev/registered").is_some()), "the first page prepared them");
    let hash = printed.split("lockstep_config_info{hash=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a page shows it");
    assert!(printed.lines().any(|line| line == hash), "the page's own sum is the hash that replicas show: {hash}");

    let leave = documentation_pages::commands(REMOVING).remove(0);
    world.cluster.shell(&leave, &[("NAMESPACE", NAMESPACE)]);
    await_rolled(world, NAMESPACE, "deployment");
    eventually("no pod is left that was prepared", SOON, || {
        let pods = world.cluster.pods(NAMESPACE, "app=web");
        let prepared: Vec<String> = pods.iter().filter(|pod| carries_finalizer(pod)).map(seen).collect();
        if prepared.is_empty() { Ok(()) } else { Err(prepared.join("; ")) }
    });
}

pub(crate) fn dashboard(world: &World) {
    let registry = world.registry();
    world.cluster.apply(&[world::deployment(WATCHED, 2)]);
    await_ready(world, WATCHED, 2);
    let mut scrapes = Scrapes::default();
    scrapes.take(world);

    registry.behave(WATCHED, &json!({ "hold": true }));
    world.cluster.kubectl(&["rollout", "restart", "deployment/web", "--namespace", WATCHED]);
    scrapes.await_series(world, "lockstep_oldest_wait_timestamp_seconds{held_by=\"gate\"");
    registry.behave(WATCHED, &json!({}));
    await_rolled(world, WATCHED, "deployment");
    await_active(world, WATCHED, 2);
    scrapes.take(world);
    scrapes.take(world);

    let queries = exposed::dashboard();
    let (silent, shown): (Vec<String>, Vec<String>) = queries.into_iter().partition(|query| SILENT.iter().any(|name| query.contains(name)));
    assert!(shown.len() > silent.len(), "most of the dashboard is asked");
    unanswered(&scrapes.series(), scrapes.count, &shown).unwrap_or_else(|said| panic!("{said}"));
}

/// What all replicas showed, once and again.
#[derive(Default)]
struct Scrapes {
    count: usize,
    values: BTreeMap<String, Vec<(usize, String)>>,
}

impl Scrapes {
    fn take(&mut self, world: &World) {
        for pod in world.replicas().iter().map(name) {
            for (series, value) in exposed::series(&world.metrics(pod)) {
                self.values.entry(series.of_pod(pod)).or_default().push((self.count, value));
            }
        }
        self.count += 1;
    }

    /// Takes one as soon as a series begins so.
    fn await_series(&mut self, world: &World, beginning: &str) {
        eventually(&format!("a replica shows {beginning}"), SOON, || {
            let mut scrapes = Self::default();
            scrapes.take(world);
            let begins = scrapes.values.keys().any(|series| series.starts_with(beginning));
            if begins { Ok(()) } else { Err("none does".to_owned()) }
        });
        self.take(world);
    }

    /// The series, one value a minute.
    fn series(&self) -> Vec<(String, String)> {
        let text = |values: &Vec<(usize, String)>| {
            let at = |minute| values.iter().find(|(taken, _)| *taken == minute).map_or("_", |(_, value)| value);
            (0..self.count).map(at).collect::<Vec<_>>().join(" ")
        };
        self.values.iter().map(|(series, values)| (series.clone(), text(values))).collect()
    }
}
