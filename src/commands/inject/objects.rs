//! What is in a file: a review, or objects with pods and pod templates in them.
//!
//! Invariant: an object is changed only by the patch that admission made for it.
//! Absent on purpose: the decision (`admission`), files and flags (`inject`).

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::explain::Subject;
use crate::admission::Snapshot;
use crate::admission::offline::{self, Explained, Template};
use crate::admission::review::{calls_itself_a_review, is_review};
use crate::yaml::{self, Entry, Limits, Node, Position, Value, json, print};

/// The most values in one input: what the bytes of an input can hold without aliases.
const INPUT_NODES: usize = 16_000_000;

/// What an input holds.
pub(super) enum Input {
    /// A review, as its bytes.
    Review(Vec<u8>),
    /// Objects.
    Documents(Documents),
}

/// Objects, in the order of the input.
pub(super) struct Documents {
    pub(super) nodes: Vec<Node>,
    /// Whether they came as JSON.
    pub(super) json: bool,
}

/// Reads an input.
pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Input> {
    let text = std::str::from_utf8(bytes).map_err(|_| anyhow!("not UTF-8"))?;
    // A review in JSON goes to admission as it is, so that it is refused for whatever the server would refuse.
    if is_review(text) {
        return Ok(Input::Review(bytes.to_vec()));
    }
    let documents = documents(text)?;
    if documents.nodes.is_empty() {
        bail!("holds no object");
    }
    if let Some(review) = documents.nodes.iter().find(|node| is_review_node(node)) {
        return match documents.nodes.len() {
            1 => Ok(Input::Review(print::json(review).into_bytes())),
            _ => bail!("a review beside other documents"),
        };
    }
    if let Some(node) = documents.nodes.iter().find(|node| node.text("kind").is_none_or(str::is_empty)) {
        bail!("line {}: holds no object: it has no kind", node.at.line);
    }
    if !documents.json
        && let Some((at, key)) = documents.nodes.iter().find_map(Node::repeated_key)
    {
        bail!("line {}, column {}: the key {key:?} stands twice", at.line, at.column);
    }
    Ok(Input::Documents(documents))
}

/// Injects every pod and template, in place; one answer for each.
pub(super) fn inject(nodes: &mut [Node], snapshot: &Snapshot) -> anyhow::Result<Vec<(Subject, Explained)>> {
    let mut explained = Vec::new();
    for node in nodes {
        inject_object(node, snapshot, &mut explained)?;
    }
    Ok(explained)
}

fn documents(text: &str) -> anyhow::Result<Documents> {
    if text.trim_start().starts_with('{') {
        match json::values(text) {
            Ok(nodes) => return Ok(Documents { nodes, json: true }),
            // It may still be YAML in flow style; a review never is.
            Err(error) => match yaml::documents(text, limits()) {
                Ok(nodes) if !nodes.iter().any(is_review_node) => return Ok(Documents { nodes, json: false }),
                _ => return Err(error).context("not JSON"),
            },
        }
    }
    let nodes = yaml::documents(text, limits()).context("not YAML")?;
    Ok(Documents { nodes, json: false })
}

fn limits() -> Limits {
    Limits { bytes: usize::MAX, nodes: INPUT_NODES }
}

fn is_review_node(node: &Node) -> bool {
    calls_itself_a_review(node.text("apiVersion").unwrap_or_default(), node.text("kind").unwrap_or_default())
}

fn inject_object(node: &mut Node, snapshot: &Snapshot, explained: &mut Vec<(Subject, Explained)>) -> anyhow::Result<()> {
    let kind = node.text("kind").unwrap_or_default().to_owned();
    let version = node.text("apiVersion").unwrap_or_default();
    let (at, job) = match (version.split_once('/').map_or("", |(group, _)| group), &*kind) {
        ("", "List") => {
            if let Some(Node { value: Value::List(items), .. }) = node.pointed_mut("/items") {
                for item in items {
                    inject_object(item, snapshot, explained)?;
                }
            }
            return Ok(());
        }
        ("", "Pod") => ("", false),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => ("/spec/template", false),
        ("batch", "Job") => ("/spec/template", true),
        ("batch", "CronJob") => ("/spec/jobTemplate/spec/template", true),
        _ => return Ok(()),
    };
    let namespace = node.entry("metadata").and_then(|metadata| metadata.text("namespace")).unwrap_or("default").to_owned();
    let name = node.entry("metadata").and_then(|metadata| metadata.text("name").or(metadata.text("generateName")));
    let subject = Subject { kind, name: name.unwrap_or_default().to_owned(), namespace: namespace.clone() };
    let Some(pod) = node.pointed_mut(at) else { return Ok(()) };
    let answer = offline::template(print::json(pod).as_bytes(), Template { namespace: &namespace, job, at }, snapshot)
        .with_context(|| subject.to_string())?;
    apply(node, &answer.patch)?;
    explained.push((subject, answer));
    Ok(())
}

/// An operation of a patch of ours: always `add`.
#[derive(Deserialize)]
struct Operation<'a> {
    path: String,
    #[serde(borrow)]
    value: &'a RawValue,
}

/// Applies a patch that admission made.
fn apply(node: &mut Node, patch: &[u8]) -> anyhow::Result<()> {
    let operations: Vec<Operation<'_>> = serde_json::from_slice(patch).context("a patch of our own")?;
    for Operation { path, value } in operations {
        let value = json::values(value.get()).context("a patch of our own")?.remove(0);
        let (parent, step) = path.rsplit_once('/').unwrap_or_default();
        let key = step.replace("~1", "/").replace("~0", "~");
        match node.pointed_mut(parent).map(|node| &mut node.value) {
            Some(Value::List(items)) => items.push(value),
            Some(Value::Map(entries)) => match entries.iter_mut().rev().find(|entry| entry.key == key) {
                Some(entry) => entry.value = value,
                None => entries.push(Entry { key, at: Position::START, value }),
            },
            _ => bail!("a patch of our own names {path}, which is not there"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"{"kind":"AdmissionReview"}"#, true)]
    #[case("kind: AdmissionReview\n", true)]
    #[case(r#"{"apiVersion":"admission.k8s.io/v1","request":{}}"#, true)]
    #[case("kind: Pod\n", false)]
    #[case("{kind: Pod}", false)]
    fn reviews(#[case] text: &str, #[case] review: bool) {
        assert_eq!(matches!(read(text.as_bytes()).unwrap(), Input::Review(_)), review);
    }

    #[rstest]
    #[case("", "no object")]
    #[case("[]", "no kind")]
    #[case("a: 1\n", "no kind")]
    #[case("kind: Pod\nkind: Pod\n", "twice")]
    #[case("kind: [\n", "not YAML")]
    #[case("{\"kind\":\"AdmissionReview\",}", "not JSON")]
    #[case("kind: AdmissionReview\n---\nkind: Pod\n", "beside")]
    fn refused(#[case] text: &str, #[case] words: &str) {
        let error = match read(text.as_bytes()) {
            Err(error) => format!("{error:#}"),
            Ok(_) => panic!("{text:?} was read"),
        };
        assert!(error.contains(words), "{error}");
    }
}
