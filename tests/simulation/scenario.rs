//! Scenarios: short stories about pods, registries and the clock, and what must be true afterwards.
//!
//! `scenarios/README.md` is the meaning of the format; this module reads, runs and judges it.
//!
//! Invariant: a file that does not parse, and a folder without files, are failures.
//! Absent on purpose: tolerance; the files carry the slack.

pub(crate) mod grammar;
pub(crate) mod judge;
pub(crate) mod run;
pub(crate) mod steps;
pub(crate) mod write;

use std::path::{Path, PathBuf};

use crate::sabotage::Sabotage;
use crate::world::record::Failure;
use grammar::Scenario;

/// The folder of this project's scenarios.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation/scenarios");

/// What became of one file.
pub(crate) struct Outcome {
    pub(crate) file: String,
    pub(crate) problems: Vec<String>,
}

/// Runs every `*.yaml` of a folder, in the order of names.
pub(crate) fn run_folder(folder: &Path) -> Vec<Outcome> {
    let mut files: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) => return vec![Outcome { file: folder.display().to_string(), problems: vec![format!("cannot be read: {error}")] }],
    };
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    if files.is_empty() {
        return vec![Outcome { file: folder.display().to_string(), problems: vec!["no scenarios in this folder".to_owned()] }];
    }
    files.iter().map(|path| run_file(path)).collect()
}

/// How many of this project's scenarios fail with a deliberate fault.
pub(crate) fn failing_with(sabotage: Sabotage) -> usize {
    let conditions = run::Conditions { sabotage: Some(sabotage), ..run::Conditions::default() };
    let files = std::fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path());
    let scenarios = files.filter_map(|path| Scenario::parse(&std::fs::read_to_string(path).ok()?).ok());
    scenarios.filter(|scenario| !run::play(scenario, &conditions, crate::product::launch).shared.world().failures.is_empty()).count()
}

/// Runs one file.
pub(crate) fn run_file(path: &Path) -> Outcome {
    let file = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let problems = match std::fs::read_to_string(path) {
        Err(error) => vec![format!("cannot be read: {error}")],
        Ok(text) => match Scenario::parse(&text) {
            Err(error) => vec![format!("does not parse: {}", error.replace('\n', " "))],
            Ok(scenario) => run::run(&scenario, crate::product::launch).iter().map(line).collect(),
        },
    };
    Outcome { file, problems }
}

/// A failure as one line: virtual time, which rule, what was wanted, what was found.
pub(crate) fn line(failure: &Failure) -> String {
    let one_line = |text: &str| text.replace('\n', " ");
    format!(
        "at {}: {}: wanted {}; found {}",
        grammar::written(failure.at),
        failure.rule,
        one_line(&failure.wanted),
        one_line(&failure.found)
    )
}
