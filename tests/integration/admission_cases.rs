//! The golden cases of `tests/data`: what goes in, and what must come out, to the letter.
//!
//! Each case is also an example for operators. `tests/data/README.md` says how a changed output is looked at and accepted.
//!
//! Invariant: a folder that is no readable case is a failure, and so is an empty collection.
//! Absent on purpose: rules that hold of every answer (`admission_checks`, which every review goes through as well).

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

use lockstep::admission::{Delays, Snapshot, answer, prestop};
use lockstep::config;
use lockstep::names::OWN_NAMESPACE;
use lockstep::yaml::{self, Limits, Node, json, print};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admission_checks::check;

/// The folder of cases.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
/// Set, it makes every answer the golden one.
const ACCEPT: &str = "LOCKSTEP_ACCEPT";

/// `case.yaml`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    /// Why the case matters.
    why: String,
    /// What is done with the input.
    #[serde(default)]
    run: Run,
    /// What `inject` gets as `-o`.
    output: Option<String>,
    /// Whether `inject` reads it from a pipe.
    #[serde(default)]
    stdin: bool,
    /// Whether the input is the whole body already, and may be no review.
    #[serde(default)]
    raw: bool,
    kubernetes_version: Option<String>,
    #[serde(default)]
    drain_delay: BTreeMap<String, String>,
    /// Makes the pod large before it is sent, so that no large files lie here.
    #[serde(default)]
    grow: Vec<Grow>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum Run {
    /// A review is answered.
    #[default]
    Review,
    /// `inject` prints it.
    Print,
    /// `inject --patch`.
    Patch,
    /// `inject --explain`.
    Explain,
    /// `inject` refuses it.
    Refused,
    /// `check` refuses the configuration.
    Config,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grow {
    at: String,
    bytes: Option<usize>,
    depth: Option<usize>,
}

/// A case and its folder.
struct Placed {
    folder: PathBuf,
    case: Case,
}

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

fn cases() -> Vec<Placed> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(DATA).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
        .into_iter()
        .map(|folder| {
            let text = std::fs::read_to_string(folder.join("case.yaml")).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let case = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            Placed { folder, case }
        })
        .collect()
}

impl Placed {
    fn name(&self) -> String {
        self.folder.file_name().unwrap().to_string_lossy().into_owned()
    }

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

    fn config(&self) -> PathBuf {
        let own = self.folder.join("config.yaml");
        if own.exists() { own } else { Path::new(DATA).join("standard.yaml") }
    }

    fn input_file(&self) -> PathBuf {
        let json = self.folder.join("input.json");
        if json.exists() { json } else { self.folder.join("input.yaml") }
    }

    fn input(&self) -> Vec<u8> {
        std::fs::read(self.input_file()).unwrap()
    }

    /// The review: the input itself, or one around the pod that it is.
    fn body(&self) -> Result<Vec<u8>, String> {
        let input = self.input();
        let is_yaml = self.input_file().extension().is_some_and(|extension| extension == "yaml");
        if self.case.raw || !is_yaml {
            return Ok(input);
        }
        let limits = Limits { bytes: 1 << 20, nodes: 100_000 };
        let documents = yaml::documents(std::str::from_utf8(&input).unwrap(), limits).map_err(|error| error.to_string())?;
        let mut body = wrap(&documents[0], &self.name());
        for grow in &self.case.grow {
            body = grow.apply(body);
        }
        Ok(body.into_bytes())
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
        let golden = self.folder.join(if self.case.run == Run::Review { "answer.yaml" } else { "answer.txt" });
        if std::env::var_os(ACCEPT).is_some() {
            std::fs::write(golden, answer).unwrap();
            return Ok(());
        }
        let wanted = std::fs::read_to_string(&golden).map_err(|error| format!("{}: {error}", golden.display()))?;
        if wanted == answer { Ok(()) } else { Err(format!("--- {}\n{wanted}--- now\n{answer}", golden.display())) }
    }
}

impl Grow {
    fn apply(&self, body: String) -> String {
        let mut review: Value = serde_json::from_str(&body).unwrap();
        let (parent, key) = self.at.rsplit_once('/').unwrap();
        let parent = review.pointer_mut(&format!("/request/object{parent}")).unwrap();
        const HOLE: &str = "@hole@";
        parent[key] = json!(HOLE);
        let value = match (self.bytes, self.depth) {
            (Some(bytes), _) => format!("\"{}\"", "x".repeat(bytes)),
            (None, depth) => "[".repeat(depth.unwrap()) + &"]".repeat(depth.unwrap()),
        };
        review.to_string().replace(&format!("\"{HOLE}\""), &value)
    }
}

fn wrap(pod: &Node, name: &str) -> String {
    let namespace = pod.entry("metadata").and_then(|metadata| metadata.text("namespace")).unwrap_or("default");
    let head = json!({
        "uid": format!("case-{name}"),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": "someone"},
        "oldObject": null,
        "dryRun": false,
    });
    let head = head.to_string();
    let head = head.strip_suffix('}').unwrap();
    format!("{{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\",\"request\":{head},\"object\":{}}}}}", print::json(pod))
}
