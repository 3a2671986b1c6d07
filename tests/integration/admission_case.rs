//! A golden case of `tests/data`, read from its folder: what goes in, with which configuration, and where its answer lies.
//!
//! Invariant: a folder that is no readable case is a failure.
//! Absent on purpose: how a case is run and judged (`admission_cases` without a cluster, a story of the cluster tests with one).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep::yaml::{self, Limits, Node, print};
use serde::Deserialize;
use serde_json::{Value, json};

/// The folder of cases.
pub(crate) const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

/// `case.yaml`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    /// Why the case matters.
    pub(crate) why: String,
    /// What is done with the input.
    #[serde(default)]
    pub(crate) run: Run,
    /// What `inject` gets as `-o`.
    pub(crate) output: Option<String>,
    /// Whether `inject` reads it from a pipe.
    #[serde(default)]
    pub(crate) stdin: bool,
    /// Whether the input is the whole body already, and may be no review.
    #[serde(default)]
    pub(crate) raw: bool,
    /// Version of the API server and of every node.
    pub(crate) kubernetes_version: Option<String>,
    /// What the registry has answered, by binding.
    #[serde(default)]
    pub(crate) drain_delay: BTreeMap<String, String>,
    /// Makes the pod large before it is sent, so that no large files lie here.
    #[serde(default)]
    pub(crate) grow: Vec<Grow>,
}

/// What is done with the input.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Run {
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

/// Something large, and where in the pod it is put.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grow {
    at: String,
    bytes: Option<usize>,
    depth: Option<usize>,
}

/// A case and its folder.
pub(crate) struct Placed {
    pub(crate) folder: PathBuf,
    pub(crate) case: Case,
}

/// Every case, by name.
pub(crate) fn cases() -> Vec<Placed> {
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
    /// The folder's name.
    pub(crate) fn name(&self) -> String {
        self.folder.file_name().unwrap().to_string_lossy().into_owned()
    }

    /// The file with its configuration.
    pub(crate) fn config(&self) -> PathBuf {
        let own = self.folder.join("config.yaml");
        if own.exists() { own } else { Path::new(DATA).join("standard.yaml") }
    }

    /// The file that goes in.
    pub(crate) fn input_file(&self) -> PathBuf {
        let json = self.folder.join("input.json");
        if json.exists() { json } else { self.folder.join("input.yaml") }
    }

    /// What goes in.
    pub(crate) fn input(&self) -> Vec<u8> {
        std::fs::read(self.input_file()).unwrap()
    }

    /// The review: the input itself, or one around the pod that it is.
    pub(crate) fn body(&self) -> Result<Vec<u8>, String> {
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

    /// The file that holds its answer.
    pub(crate) fn golden(&self) -> PathBuf {
        self.folder.join(if self.case.run == Run::Review { "answer.yaml" } else { "answer.txt" })
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
