//! What the compiler and clippy cannot hold: headers, purity, names that stand alike everywhere, what lies where.
//!
//! Each test names every offender at once, with its file and line.
//!
//! Invariant: a rule of the house that a machine can check is checked here, not in a review.
//! Absent on purpose: formatting and lints (`make lint`), metric names (held against their page elsewhere).

use std::fs;
use std::path::{Path, PathBuf};

use lockstep::names;

/// Longer files hold more than one idea.
const LINES: usize = 700;

/// Files of the pure parts: a file, or all below a folder.
const PURE: [&str; 21] = [
    "src/admission.rs",
    "src/admission/",
    "src/registration.rs",
    "src/registration/",
    "src/target.rs",
    "src/text.rs",
    "src/config.rs",
    "src/config/",
    "src/commands/doctor/backing.rs",
    "src/commands/doctor/checks.rs",
    "src/commands/doctor/install.rs",
    "src/commands/doctor/pods.rs",
    "src/commands/doctor/registries.rs",
    "src/commands/doctor/trial.rs",
    "src/commands/doctor/workloads.rs",
    "src/commands/release/effect.rs",
    "src/commands/status/outlook.rs",
    "src/commands/status/report.rs",
    "src/commands/status/text.rs",
    "src/commands/status/timeline.rs",
    "src/commands/workload.rs",
];

/// What the pure parts do without.
const IMPURE: [&str; 12] = [
    "async ",
    ".await",
    "tokio",
    "kube::",
    "reqwest",
    "hyper",
    "tracing",
    "Instant",
    "SystemTime",
    "Timestamp::now",
    "std::env",
    "std::fs",
];

/// What may lie at the top, beside dot-files.
const TOP: [&str; 12] =
    ["Cargo.lock", "Cargo.toml", "Dockerfile", "LICENSE", "Makefile", "README.md", "certs", "charts", "docs", "src", "target", "tests"];

/// A name of ours and the files that must spell it.
const SPELLED: [(&str, &[&str]); 9] = [
    (
        names::INJECT_LABEL,
        &["charts/lockstep/templates/mutatingwebhookconfiguration.yaml", "charts/lockstep/templates/NOTES.txt", "README.md"],
    ),
    (names::INJECT_ENABLED, &["charts/lockstep/templates/mutatingwebhookconfiguration.yaml", "README.md"]),
    (names::INJECT_STRICT, &["charts/lockstep/templates/mutatingwebhookconfiguration.yaml", "README.md"]),
    (names::INJECT_DISABLED, &["charts/lockstep/templates/mutatingwebhookconfiguration.yaml", "README.md"]),
    (names::CONFIG_API_VERSION, &["charts/lockstep/templates/configmap.yaml"]),
    (names::CONFIG_KEY, &["charts/lockstep/templates/configmap.yaml"]),
    (names::OWN_NAMESPACE, &["README.md"]),
    (names::DEBTS_CONFIG_MAP, &["charts/lockstep/templates/configmap-state.yaml", "charts/lockstep/templates/role.yaml"]),
    (names::LAST_GOOD_CONFIG_MAP, &["charts/lockstep/templates/configmap-state.yaml", "charts/lockstep/templates/role.yaml"]),
];

/// Every name with our domain.
const OURS: [&str; 8] = [
    names::INJECT_LABEL,
    names::MANAGED_LABEL,
    names::RECORD_ANNOTATION,
    names::RELEASED_ANNOTATION,
    names::GATE,
    names::FINALIZER,
    names::CLAIMS,
    names::CONFIG_API_VERSION,
];

/// Words that lead out of the project.
const OUTSIDE: [&str; 9] =
    ["../shared", "shared/cases", "/work/", "/tmp/wt", "docker.io", "ghcr.io", "quay.io", "gcr.io", "registry.k8s.io"];

#[test]
fn every_file_says_what_it_is_what_holds_and_what_is_absent() {
    let mut complaints = Vec::new();
    // The architecture page lays out the same things at greater length.
    for file in files(&["src"], "rs").into_iter().filter(|file| file != Path::new("src/lib.rs")) {
        let text = read(&file);
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let all = header.join("\n");
        for (holds, lack) in [
            (header.first().is_some_and(|first| first.len() > "//! ".len()), "a first sentence"),
            (all.contains("Invariant: "), "an `Invariant:` line"),
            (all.contains("Absent on purpose: "), "an `Absent on purpose:` line"),
        ] {
            if !holds {
                complaints.push(format!("{}: lacks {lack}", file.display()));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn the_pure_parts_are_pure() {
    let mut complaints = Vec::new();
    for file in files(&["src"], "rs") {
        if !PURE.iter().any(|pure| if pure.ends_with('/') { file.starts_with(pure) } else { file == Path::new(pure) }) {
            continue;
        }
        complain_of(&file, &code(product(&read(&file))), &IMPURE, &mut complaints);
    }
    assert_none(&complaints);
}

#[test]
fn names_on_the_wire_stand_alike_in_code_chart_and_readme() {
    let mut complaints = Vec::new();
    for (name, places) in SPELLED {
        for place in places {
            if !read(Path::new(place)).contains(name) {
                complaints.push(format!("{place}: lacks `{name}`"));
            }
        }
    }
    let mut texts = files(&["charts", "docs", "certs"], "");
    texts.extend(["README.md", "src/config/schema.rs"].map(PathBuf::from));
    for file in texts {
        for (number, line) in read(&file).lines().enumerate() {
            for (at, _) in line.match_indices("lockstep.dev/") {
                let word: String = line[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || "./-".contains(*c)).collect();
                if !OURS.contains(&word.trim_end_matches('.')) {
                    complaints.push(format!("{}:{}: `{word}` is no name of ours", file.display(), number + 1));
                }
            }
        }
    }
    for file in files(&["src"], "rs").into_iter().filter(|file| file != Path::new("src/names.rs")) {
        // An attribute cannot name a constant.
        let constants = |line: &str| if line.trim_start().starts_with("#[") { String::new() } else { line.to_owned() };
        let text: Vec<String> = product(&read(&file)).lines().map(constants).collect();
        complain_of(&file, &code(&text.join("\n")), &["\"lockstep.dev/"], &mut complaints);
    }
    assert_none(&complaints);
}

#[test]
fn only_what_belongs_there_lies_at_the_top() {
    let entries = fs::read_dir(root()).expect("the root can be listed");
    let names = entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("names are text"));
    let complaints: Vec<String> = names.filter(|name| !name.starts_with('.') && !TOP.contains(&name.as_str())).collect();
    assert_none(&complaints);
}

#[test]
fn files_hold_one_idea_and_have_honest_names() {
    let mut complaints = Vec::new();
    for file in files(&["src", "tests"], "rs") {
        let text = read(&file);
        if text.lines().count() > LINES {
            complaints.push(format!("{}: {} lines", file.display(), text.lines().count()));
        }
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if ["mod", "util", "utils", "common", "helper", "helpers", "manager"].contains(&stem) {
            complaints.push(format!("{}: says nothing by its name", file.display()));
        }
        if !is_this(&file) {
            // `get_mut` is the language's own word.
            let text = code(&text).replace("fn get_mut", "fn ");
            complain_of(&file, &text, &["macro_rules!", "static mut", "fn get_"], &mut complaints);
        }
    }
    assert_none(&complaints);
}

#[test]
fn nothing_points_out_of_the_project() {
    let mut complaints = Vec::new();
    let mut texts = files(&["src", "tests", "charts", "docs", "certs", ".ci"], "");
    texts.extend(["Cargo.toml", "Dockerfile", "Makefile", "README.md"].map(PathBuf::from));
    for file in texts.into_iter().filter(|file| !is_this(file) && !file.starts_with("tests/cluster/modules")) {
        complain_of(&file, &read(&file), &OUTSIDE, &mut complaints);
    }
    assert_none(&complaints);
}

fn complain_of(file: &Path, text: &str, words: &[&str], complaints: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for word in words.iter().filter(|word| line.contains(**word)) {
            complaints.push(format!("{}:{}: `{}`", file.display(), number + 1, word.trim()));
        }
    }
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// A text up to its tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

/// A text with its comments blanked, line for line.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Every text file below these folders whose name ends so; folders that are not there yet hold none.
fn files(folders: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(root().join(&folder)) else { continue };
        for entry in entries {
            let entry = entry.expect("a folder of ours can be listed");
            let path = folder.join(entry.file_name());
            if entry.file_type().expect("it can be read").is_dir() {
                folders.push(path);
            } else if extension.is_empty() || path.extension().is_some_and(|one| one == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(file: &Path) -> String {
    let bytes = fs::read(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_this(file: &Path) -> bool {
    file == Path::new("tests/integration/tidy.rs")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
