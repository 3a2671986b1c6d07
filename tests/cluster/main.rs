//! Tests on a real Kubernetes with a real node, each told as a story.
//!
//! What a mock believes of the API server and the kubelet is worth little here; so the chart is installed by a real helm, the program
//! runs as a pod, and real containers are stopped by a real kubelet. All stories share one cluster and one install, each in a namespace
//! and a service of its own; those that take Lockstep down come afterwards, one after the other.
//!
//! Invariant: nothing that was started outlives this process, however it ends.
//! Absent on purpose: timed budgets (the bench measures), faults that a real cluster shows too seldom (the simulation).
#![expect(clippy::disallowed_methods, reason = "tests look at the clock, at their arguments and at the environment")]
#![expect(clippy::print_stderr, reason = "outside of a test there is nobody else to tell")]

mod account;
#[path = "../integration/admission_case.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "those without a cluster ask for more; a test may panic")]
mod admission_case;
#[path = "../integration/admission_checks.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "those without a cluster ask for more; a test may panic")]
mod admission_checks;
#[path = "../integration/admission_pods.rs"]
mod admission_pods;
mod cluster;
#[path = "../integration/collector.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "those without a cluster ask for more; a test may panic")]
mod collector;
#[path = "../integration/documentation_pages.rs"]
#[expect(dead_code, reason = "those without a cluster ask for more")]
mod documentation_pages;
#[path = "../integration/exposed.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "those without a cluster ask for more; a test may panic")]
mod exposed;
mod ground;
#[path = "../integration/haproxy_process.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "it is of other tests, which use the rest of it")]
mod haproxy_process;
mod load;
mod outside;
#[path = "../integration"]
#[allow(dead_code, clippy::unwrap_used, reason = "it is of other tests, which use the rest of it")]
mod peers {
    pub(crate) mod elbv2;
}
#[path = "../integration/programs.rs"]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod programs;
mod registry;
mod stories;
mod web;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use cluster::Cluster;
use ground::Entered;
use libtest_mimic::{Arguments, Trial};
use world::World;

/// Stories told at once; they wait far more than they compute.
const AT_ONCE: usize = 12;
/// One for Lockstep and most stories, one that is drained, one that dies.
const NODES: usize = 3;

/// A test: it panics where the story does not go as it should.
type Story = (&'static str, fn(&World));

fn main() -> ExitCode {
    if std::env::var_os(web::ROLE).is_some() {
        return web::serve();
    }
    let mut arguments = Arguments::from_args();
    let named = |(name, _): &Story| Trial::test(*name, || Ok(()));
    let long = stories::LONG.iter().map(|story| named(story).with_ignored_flag(true));
    let all: Vec<Trial> = stories::TOGETHER.iter().chain(stories::ALONE).map(named).chain(long).collect();
    if arguments.list || all.iter().all(|story| arguments.is_filtered_out(story)) {
        return libtest_mimic::run(&arguments, all).exit_code();
    }
    match ground::enter(NODES) {
        Entered::Impossible(why) => {
            eprintln!("cluster tests are left out: {why}");
            ExitCode::SUCCESS
        }
        Entered::Over(code) => code,
        Entered::Inside(ground) => {
            let world = Arc::new(World::install(Cluster::connect(ground)));
            arguments.test_threads.get_or_insert(AT_ONCE);
            let together = tell(&world, &arguments, stories::TOGETHER, false);
            arguments.test_threads = Some(1);
            let alone = tell(&world, &arguments, stories::ALONE, false);
            let long = tell(&world, &arguments, stories::LONG, true);
            if together && alone && long { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// Whether all of them went well. `ignored`: they are told only where that is asked for.
fn tell(world: &Arc<World>, arguments: &Arguments, stories: &[Story], ignored: bool) -> bool {
    let trial = |&(name, story): &Story| {
        let world = Arc::clone(world);
        Trial::test(name, move || {
            story(&world);
            Ok(())
        })
        .with_ignored_flag(ignored)
    };
    let passed = !libtest_mimic::run(arguments, stories.iter().map(trial).collect()).has_failed();
    if !passed {
        world.record();
    }
    passed
}
