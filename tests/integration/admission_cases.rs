//! The golden cases of `tests/data`: what goes in, and what must come out, to the letter.
//!
//! Each case is also an example for operators. `tests/data/README.md` says how a changed output is looked at and accepted.
//!
//! Invariant: a folder that is no readable case is a failure, and so is an empty collection.
//! Absent on purpose: rules that hold of every answer (`admission_checks`, which every review goes through as well).

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

use lockstep::admission::{Delays, Snapshot, answer, prestop};
use lockstep::config;
use lockstep::names::OWN_NAMESPACE;
use lockstep::yaml::{json, print};
use serde_json::{Value, json};

use crate::admission_case::{DATA, Placed, Run, cases};
use crate::admission_checks::check;

/// Set, it makes every answer the golden one.
const ACCEPT: &str = "LOCKSTEP_ACCEPT";

#[test]
fn every_case_gives_its_golden_answer() {
    let cases = cases();
    assert!(cases.len() > 100, "{} cases", cases.len());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|placed| {
            let failure = placed.run().and_then(|answer| placed.compare(&answer)).err()?;
            Some(format!("{} ({}):\n{failure}", placed.name(), placed.case.why))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} cases failed\n\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

#[test]
fn the_program_answers_a_review_as_the_library_does() {
    for placed in cases().iter().filter(|placed| placed.case.run == Run::Review && placed.case.grow.is_empty()) {
        let (body, snapshot) = (placed.body().unwrap(), placed.snapshot().unwrap());
        let done = placed.inject(&body, &[], true);
        match answer(&body, &snapshot) {
            Ok(answered) => {
                assert_eq!(String::from_utf8(done.stdout).unwrap(), String::from_utf8(answered.body).unwrap() + "\n", "{}", placed.name())
            }
            // The program takes a bare pod, too.
            Err(_) if placed.case.raw => {}
            Err(_) => assert_eq!((done.status.code(), done.stdout.len()), (Some(2), 0), "{}", placed.name()),
        }
    }
}

/// Every review of the cases that is not made large, by its name.
pub(crate) fn reviews() -> &'static [(String, Vec<u8>)] {
    static REVIEWS: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    REVIEWS.get_or_init(|| {
        let small = cases().into_iter().filter(|placed| placed.case.run == Run::Review && placed.case.grow.is_empty());
        small.map(|placed| (placed.name(), placed.body().unwrap())).collect()
    })
}

impl Placed {
    /// The answer, as the golden file shows it.
    fn run(&self) -> Result<String, String> {
        let text = |value: Value| print::yaml(&json::values(&value.to_string()).unwrap()[0]);
        match self.case.run {
            Run::Review => self.review().map(text),
            Run::Config => {
                let text = std::fs::read_to_string(self.config()).unwrap();
                config::parse(&text).err().map(|errors| format!("{errors}\n")).ok_or_else(|| "the configuration was taken".to_owned())
            }
            Run::Print => self.command(&[]),
            Run::Patch => self.command(&["--patch"]),
            Run::Explain => self.command(&["--explain"]),
            Run::Refused => {
                let done = self.inject(&self.input(), &[], self.case.stdin);
                let said = String::from_utf8(done.stderr).unwrap();
                if done.status.code() == Some(2) && done.stdout.is_empty() && said.lines().count() == 1 {
                    Ok(said.replace(DATA, "tests/data"))
                } else {
                    Err(format!("{}, {said}", done.status))
                }
            }
        }
    }

    fn review(&self) -> Result<Value, String> {
        let (body, snapshot) = (self.body()?, self.snapshot()?);
        if let Err(refusal) = answer(&body, &snapshot) {
            return Ok(json!({"refused": refusal.status, "message": refusal.message}));
        }
        let checked = check(&body, &snapshot)?;
        let findings: Vec<&str> = checked.findings.iter().map(|finding| finding.as_str()).collect();
        Ok(json!({"reason": checked.reason.as_str(), "findings": findings, "warnings": checked.warnings, "patch": checked.patch}))
    }

    fn command(&self, flags: &[&str]) -> Result<String, String> {
        let done = self.inject(&self.input(), flags, self.case.stdin);
        let (out, said) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
        match done.status.code() {
            Some(0) if said.is_empty() => Ok(out),
            Some(0) => Ok(format!("{out}{said}")),
            _ => Err(format!("{}, {said}", done.status)),
        }
    }

    fn inject(&self, input: &[u8], flags: &[&str], piped: bool) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.arg("inject").arg("--config").arg(self.config()).args(flags);
        command.args(self.case.kubernetes_version.iter().flat_map(|version| ["--kubernetes-version", version]));
        command.args(self.case.output.iter().flat_map(|output| ["-o", output]));
        for (binding, delay) in &self.case.drain_delay {
            command.arg("--drain-delay").arg(format!("{binding}={delay}"));
        }
        let file = if piped { PathBuf::from("-") } else { self.input_file() };
        let mut child = command.arg("-f").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that refuses may hang up before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn snapshot(&self) -> Result<Snapshot, String> {
        let configuration = config::parse(&std::fs::read_to_string(self.config()).unwrap()).map_err(|errors| errors.to_string())?;
        let delays = Delays::resolve(&configuration, |binding| {
            self.case.drain_delay.get(&*binding.name).map(|delay| config::duration(delay).expect("a case's own delay"))
        });
        let version = self.case.kubernetes_version.as_deref().unwrap_or("1.34");
        let sleep = prestop::sleep_form(configuration.injection.pre_stop, version, [version]);
        Ok(Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from(OWN_NAMESPACE), delays, sleep })
    }

    #[expect(clippy::disallowed_methods, reason = "whoever accepts a changed output says so in the environment")]
    fn compare(&self, answer: &str) -> Result<(), String> {
        let golden = self.golden();
        if std::env::var_os(ACCEPT).is_some() {
            std::fs::write(golden, answer).unwrap();
            return Ok(());
        }
        let wanted = std::fs::read_to_string(&golden).map_err(|error| format!("{}: {error}", golden.display()))?;
        if wanted == answer { Ok(()) } else { Err(format!("--- {}\n{wanted}--- now\n{answer}", golden.display())) }
    }
}
