//! The simulation: the product's reconciler on virtual time, in a world that goes wrong in every way it can.
//!
//! `scenarios [FILE...]` runs short stories, `seeds` random worlds, `stories` the simulation's own checks; without a word all of these run; `sabotage` shows that deliberate faults are found.
//!
//! Invariant: a run is the same each time; a failing seed replays exactly.
//! Absent on purpose: real clocks, sockets and threads in a world.

mod debts;
mod executor;
mod exposition;
mod product;
mod sabotage;
mod scenario;
mod seeds;
mod stories;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    quiet_panics();
    if setting("LOCKSTEP_TRACE").is_some() {
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::stderr).without_time().with_ansi(false).init();
    }
    let words = words();
    let wants = |word: &str| words.is_empty() || words.iter().any(|one| one == word);
    let mut failed = 0;
    if wants("stories") {
        let wrong = stories::run_all(say);
        say(&format!("stories: {} passed, {wrong} failed", stories::count() - wrong));
        failed += wrong;
    }
    if wants("scenarios") {
        failed += scenarios(&words);
    }
    if wants("seeds") {
        failed += seeds::run(say, setting);
    }
    if words.iter().any(|word| word == "sabotage") {
        failed += sabotage::run(&say, setting("LOCKSTEP_SABOTAGE").as_deref());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the command line asks for; options of the standard test runner mean nothing here.
fn words() -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "the simulation is a program of its own")]
    let arguments = std::env::args();
    arguments.skip(1).filter(|word| !word.starts_with('-')).collect()
}

/// A setting from the environment.
fn setting(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the simulation is a program of its own")]
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Runs the scenarios; how many failed.
fn scenarios(words: &[String]) -> usize {
    let files: Vec<&String> = words.iter().filter(|word| word.ends_with(".yaml")).collect();
    let outcomes = if files.is_empty() {
        let folder = setting("LOCKSTEP_SCENARIOS").map_or_else(|| PathBuf::from(scenario::FOLDER), PathBuf::from);
        scenario::run_folder(&folder)
    } else {
        files.iter().map(|file| scenario::run_file(Path::new(file))).collect()
    };
    let failed = outcomes.iter().filter(|outcome| !outcome.problems.is_empty()).count();
    for outcome in &outcomes {
        for problem in &outcome.problems {
            say(&format!("{}: {problem}", outcome.file));
        }
    }
    say(&format!("{} passed, {failed} failed", outcomes.len() - failed));
    failed
}

#[expect(clippy::print_stdout, reason = "this is what the simulation reports")]
fn say(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "a defect of the simulation itself")]
fn complain(line: &str) {
    eprintln!("{line}");
}

/// Panics of the code under test become failures of its world, with their place, and are not printed.
fn quiet_panics() {
    std::panic::set_hook(Box::new(executor::note_panic));
}
