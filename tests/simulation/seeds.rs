//! Seeded worlds: rollouts that nobody wrote down, with several faults each, under the same invariants as the scenarios.
//!
//! A seed gives a story in the grammar of scenarios and the disturbances around it; what fails is shrunk to a story a person can read.
//!
//! Invariant: a seed gives the same world on every machine, and its run is the same each time.
//! Absent on purpose: expectations of single moments; here only what must hold in every world is asserted.

pub(crate) mod cast;
pub(crate) mod ending;
pub(crate) mod faults;
pub(crate) mod generate;
pub(crate) mod report;
pub(crate) mod shrink;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::executor::lock;
use crate::product;
use crate::scenario::run::{Conditions, play};
use crate::scenario::{line, write};
use crate::world::record::Failure;
use generate::Tale;
use report::Report;

/// Seeds that every run plays: the same on every machine.
const FIXED: u64 = 1000;
/// Seeds that follow from the commit, so that each commit sees some that none saw before; few, since a change is not to be judged by the
/// luck of its hash where a new world shows what nobody knew.
const FROM_COMMIT: u64 = 20;
/// A run stops after this many failures, where nothing else is asked for.
const FAILURES: usize = 3;
/// Failing worlds that are shrunk; of more only the first line is told.
const SHRUNK: usize = 3;
/// Lines of one failing world.
const LINES: usize = 5;

/// What became of one seed.
pub(crate) struct Played {
    pub(crate) failures: Vec<Failure>,
    pub(crate) report: Report,
    /// Whether the story told something that no cluster does.
    pub(crate) impossible: bool,
}

/// Plays the usual seeds, or as many as were asked for; how many failed.
pub(crate) fn run(say: impl Fn(&str) + Sync, setting: impl Fn(&str) -> Option<String>) -> usize {
    if let Some(seed) = setting("LOCKSTEP_SEED").and_then(|seed| seed.parse().ok()) {
        return usize::from(replay(seed, setting("LOCKSTEP_TRACE").is_none(), &say));
    }
    let seeds: Vec<u64> = match setting("LOCKSTEP_SEEDS").and_then(|count| count.parse::<u64>().ok()) {
        Some(count) => {
            let from: u64 = setting("LOCKSTEP_SEEDS_FROM").and_then(|from| from.parse().ok()).unwrap_or(0);
            (from..from.saturating_add(count)).collect()
        }
        None => usual_seeds(),
    };
    let patience = setting("LOCKSTEP_FAILURES").and_then(|count| count.parse().ok()).unwrap_or(FAILURES);
    run_seeds(&seeds, patience, &say)
}

/// The fixed seeds, and those that follow from the commit.
fn usual_seeds() -> Vec<u64> {
    let commit = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output().map(|output| output.stdout).unwrap_or_default();
    let first = commit.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    (0..FIXED).chain((0..FROM_COMMIT).map(|index| first.wrapping_add(index))).collect()
}

/// Plays seeds on all cores, with progress; how many failed.
fn run_seeds(seeds: &[u64], patience: usize, say: &(impl Fn(&str) + Sync)) -> usize {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let whole = Mutex::new(Report::default());
    let failed = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    #[expect(clippy::disallowed_methods, reason = "progress is for people")]
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = usize::try_from(index).ok().and_then(|index| seeds.get(index)) else { return };
                    let played = play_seed(*seed, None);
                    let mut whole = lock(&whole);
                    whole.add(&played.report);
                    if whole.worlds.is_multiple_of(500) {
                        say(&format!(
                            "{} of {} worlds, {} lives, {:.0} s",
                            whole.worlds,
                            seeds.len(),
                            whole.lives,
                            begun.elapsed().as_secs_f64()
                        ));
                    }
                    drop(whole);
                    if !played.failures.is_empty() {
                        lock(&failed).push((*seed, played.failures));
                        stop.fetch_or(lock(&failed).len() >= patience, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut failed = std::mem::take(&mut *lock(&failed));
    failed.sort_by_key(|(seed, _)| *seed);
    for (seed, failures) in failed.iter().skip(SHRUNK) {
        say(&format!("seed {seed}: {}", failures.first().map(line).unwrap_or_default()));
    }
    for (seed, failures) in failed.iter().take(SHRUNK) {
        tell(*seed, failures, say);
    }
    let whole = lock(&whole);
    let seconds = begun.elapsed().as_secs_f64();
    for text in whole.lines() {
        say(&text);
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let pace = whole.lives as f64 / seconds.max(0.001);
    say(&format!("seeds: {} worlds, {} lives, {pace:.0} lives a second", whole.worlds, whole.lives));
    let mut gaps = 0;
    if whole.worlds >= FIXED && failed.is_empty() {
        for gap in whole.gaps() {
            say(&format!("seeds: never reached: {gap}"));
            gaps += 1;
        }
    }
    failed.len() + gaps
}

/// Plays one seed again and tells all of it; whether it failed. A replay that is traced is not shrunk: its trace would drown in others.
fn replay(seed: u64, shrinks: bool, say: &impl Fn(&str)) -> bool {
    let tale = generate::tale(seed);
    say(&write::write(&tale.scenario));
    let played = play_seed(seed, None);
    for text in played.report.lines() {
        say(&text);
    }
    if shrinks {
        tell(seed, &played.failures, say);
    } else {
        played.failures.iter().for_each(|failure| say(&format!("seed {seed}: {}", line(failure))));
    }
    say(&format!("seed {seed}: {}", if played.failures.is_empty() { "passed" } else { "failed" }));
    !played.failures.is_empty()
}

fn tell(seed: u64, failures: &[Failure], say: &impl Fn(&str)) {
    for failure in failures.iter().take(LINES) {
        say(&format!("seed {seed}: {}", line(failure)));
    }
    let Some(first) = failures.first() else { return };
    let tale = generate::tale(seed);
    let small = shrink::shrink(&tale, &first.rule);
    let failures = play_tale(&small, None).failures;
    say(&format!("seed {seed}, shrunk (replay the whole with LOCKSTEP_SEED={seed}):"));
    say(&write::write(&shrink::presentable(&small)));
    say(&format!("disturbances: {}", small.disturbances()));
    for failure in failures.iter().take(LINES) {
        say(&format!("seed {seed}, shrunk: {}", line(failure)));
    }
}

/// Plays one seed.
pub(crate) fn play_seed(seed: u64, sabotage: Option<crate::sabotage::Sabotage>) -> Played {
    play_tale(&generate::tale(seed), sabotage)
}

/// Plays one tale.
pub(crate) fn play_tale(tale: &Tale, sabotage: Option<crate::sabotage::Sabotage>) -> Played {
    let conditions = Conditions { sabotage, ..tale.conditions.clone() };
    let ran = play(&tale.scenario, &conditions, product::launch);
    let mut world = ran.shared.world();
    if !world.failures.iter().any(|failure| failure.rule == "run") {
        ending::judge(&mut world, tale);
    }
    let mut failures = std::mem::take(&mut world.failures);
    failures.sort_by_key(|failure| failure.at);
    let mut seen = BTreeSet::new();
    failures.retain(|failure| seen.insert((failure.rule.clone(), failure.wanted.clone())));
    Played { failures, report: Report::of(&world, &tale.kinds, ran.polls), impossible: world.impossible }
}
