//! YAML as Kubernetes means it: a text becomes a tree whose every node knows its line and column.
//!
//! The configuration needs positions for its errors, `inject` needs numbers as they were written; a serde type gives neither.
//!
//! Invariant: no text makes the reader panic, recurse without bound or grow beyond its [`Limits`].
//! Invariant: a number keeps the characters it was written with.
//! Absent on purpose: comments and styles (they are gone afterwards), custom tags, what any key means.

pub mod json;
pub mod print;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{Event, Marker, Options, Parser, ScalarStyle, ScanError, Tag};

/// How large a text may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes of text.
    pub bytes: usize,
    /// The most nodes, with every alias counted as what it stands for: a short text of aliases can stand for billions.
    pub nodes: usize,
}

/// The deepest nesting: below the parser's own limit, above anything that Kubernetes objects have.
pub const DEPTH: usize = 200;

/// A place in a text; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// A value and where it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its first character.
    pub at: Position,
}

/// A value of YAML's core schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Null, or nothing at all.
    Null,
    /// True or false.
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    /// Text.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the text; a key may stand twice.
    Map(Vec<Entry>),
}

/// One key of a mapping with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub at: Position,
    /// The value.
    pub value: Node,
}

/// Why a text is no YAML that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {reason}", at.line, at.column)]
pub struct Malformed {
    /// Where.
    pub at: Position,
    /// What is wrong.
    pub reason: String,
}

/// Every document of a text; a document of nothing is left out.
pub fn documents(text: &str, limits: Limits) -> Result<Vec<Node>, Malformed> {
    if text.len() > limits.bytes {
        return Err(Malformed::new(Position::START, format!("longer than {} bytes", limits.bytes)));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut builder = Builder::new(limits.nodes);
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event?;
        builder.take(event, Position::from(&span.start))?;
    }
    Ok(builder.documents)
}

impl Position {
    /// The first character of a text.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl Node {
    /// The value of a key, where this is a mapping; of a key that stands twice the last one, as JSON readers do.
    pub fn entry(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().rev().find(|entry| entry.key == key).map(|entry| &entry.value),
            _ => None,
        }
    }

    /// The value at a JSON pointer, to be changed; of a key that stands twice the last one.
    pub fn pointed_mut(&mut self, pointer: &str) -> Option<&mut Node> {
        let steps = pointer.strip_prefix('/').map(|steps| steps.split('/')).into_iter().flatten();
        steps.map(|step| step.replace("~1", "/").replace("~0", "~")).try_fold(self, |node, step| match &mut node.value {
            Value::Map(entries) => entries.iter_mut().rev().find(|entry| entry.key == step).map(|entry| &mut entry.value),
            Value::List(items) => items.get_mut(step.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Where a path such as `bindings[0].drain` stands, or the innermost part of it that is there.
    pub fn nearest_to(&self, path: &str) -> Position {
        let mut node = self;
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.value {
                Value::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
                _ => node.entry(step),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node.at
    }

    /// Where a key stands for the second time in its mapping, and the key.
    pub fn repeated_key(&self) -> Option<(Position, &str)> {
        match &self.value {
            Value::Map(entries) => {
                let mut known = HashSet::new();
                let repeated = entries.iter().find(|entry| !known.insert(&entry.key)).map(|entry| (entry.at, &*entry.key));
                repeated.or_else(|| entries.iter().find_map(|entry| entry.value.repeated_key()))
            }
            Value::List(items) => items.iter().find_map(Self::repeated_key),
            _ => None,
        }
    }

    /// The text of a key, where this is a mapping and the key holds text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.entry(key)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Value {
    /// What a plain word means.
    fn of_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "true" | "True" | "TRUE" => Self::Bool(true),
            "false" | "False" | "FALSE" => Self::Bool(false),
            _ if is_number(text) => Self::Number(text.to_owned()),
            _ => Self::Text(text.to_owned()),
        }
    }
}

impl Malformed {
    fn new(at: Position, reason: impl Into<String>) -> Self {
        Self { at, reason: reason.into() }
    }
}

impl From<ScanError> for Malformed {
    fn from(error: ScanError) -> Self {
        Self::new(Position::from(error.marker()), error.kind().to_string())
    }
}

impl From<&Marker> for Position {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

/// Puts events together, without recursion.
struct Builder {
    documents: Vec<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    left: usize,
}

/// A collection whose end has not come yet.
struct Open {
    anchor: usize,
    at: Position,
    nodes_left_before: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(String, Position)> },
}

impl Builder {
    fn new(nodes: usize) -> Self {
        Self { documents: Vec::new(), open: Vec::new(), anchors: HashMap::new(), left: nodes }
    }

    fn take(&mut self, event: Event<'_>, at: Position) -> Result<(), Malformed> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(1, at)?;
                let node = Node { value: scalar(text, style, tag.as_deref(), at)?, at };
                self.keep(anchor, &node, 1)?;
                self.put(node)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(anchor, at, Content::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => self.begin(anchor, at, Content::Map { entries: Vec::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some((node, weight)) = self.anchors.get(&anchor) else {
                    return Err(Malformed::new(at, "an alias inside of what it stands for"));
                };
                let (node, weight) = (Node { value: node.value.clone(), at }, *weight);
                self.spend(weight, at)?;
                self.put(node)
            }
            Event::DocumentEnd => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, anchor: usize, at: Position, content: Content) -> Result<(), Malformed> {
        if self.open.len() >= DEPTH {
            return Err(Malformed::new(at, format!("nested deeper than {DEPTH}")));
        }
        let nodes_left_before = self.left;
        self.spend(1, at)?;
        self.open.push(Open { anchor, at, nodes_left_before, content });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Malformed> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = match open.content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(merge(entries)?),
        };
        let node = Node { value, at: open.at };
        self.keep(open.anchor, &node, open.nodes_left_before - self.left)?;
        self.put(node)
    }

    fn put(&mut self, node: Node) -> Result<(), Malformed> {
        match self.open.last_mut().map(|open| &mut open.content) {
            None if matches!(node.value, Value::Null) => {}
            None => self.documents.push(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key }) => match key.take() {
                Some((key, at)) => entries.push(Entry { key, at, value: node }),
                None => *key = Some((key_text(node.value, node.at)?, node.at)),
            },
        }
        Ok(())
    }

    /// Remembers an anchored node; the copy is paid for like an alias, since anchors nest.
    fn keep(&mut self, anchor: usize, node: &Node, weight: usize) -> Result<(), Malformed> {
        if anchor != 0 {
            self.spend(weight, node.at)?;
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        Ok(())
    }

    fn spend(&mut self, nodes: usize, at: Position) -> Result<(), Malformed> {
        self.left = self.left.checked_sub(nodes).ok_or_else(|| Malformed::new(at, "too many values, aliases counted in full"))?;
        Ok(())
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Result<Value, Malformed> {
    match tag.and_then(Tag::core_suffix) {
        Some("str") => Ok(Value::Text(text.into_owned())),
        Some("null" | "bool" | "int" | "float") => Ok(Value::of_plain(&text)),
        None if tag.is_none() && style == ScalarStyle::Plain => Ok(Value::of_plain(&text)),
        None if tag.is_none() => Ok(Value::Text(text.into_owned())),
        _ => Err(Malformed::new(at, "a tag that Kubernetes does not know")),
    }
}

fn key_text(value: Value, at: Position) -> Result<String, Malformed> {
    match value {
        Value::Text(text) | Value::Number(text) => Ok(text),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Null => Ok("null".to_owned()),
        Value::List(_) | Value::Map(_) => Err(Malformed::new(at, "a key that is a collection")),
    }
}

/// Puts the entries of `<<` behind the mapping's own, which win.
fn merge(entries: Vec<Entry>) -> Result<Vec<Entry>, Malformed> {
    if !entries.iter().any(|entry| entry.key == "<<") {
        return Ok(entries);
    }
    let (merged, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.key == "<<");
    let mut known: HashSet<String> = own.iter().map(|entry| entry.key.clone()).collect();
    for Entry { at, value, .. } in merged {
        let maps = match value.value {
            Value::List(items) => items,
            _ => vec![value],
        };
        for map in maps {
            let Value::Map(entries) = map.value else { return Err(Malformed::new(at, "<< of something that is no mapping")) };
            for entry in entries {
                if known.insert(entry.key.clone()) {
                    own.push(entry);
                }
            }
        }
    }
    Ok(own)
}

/// Whole and decimal numbers of YAML's core schema, and the older octal form that file modes are written in.
fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if let Some(digits) = unsigned.strip_prefix("0x") {
        return !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    }
    if let Some(digits) = unsigned.strip_prefix("0o") {
        return !digits.is_empty() && digits.bytes().all(|b| matches!(b, b'0'..=b'7'));
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 1 << 20, nodes: 1000 };

    fn one(text: &str) -> Node {
        documents(text, LIMITS).unwrap().remove(0)
    }

    #[rstest]
    #[case("null", Value::Null)]
    #[case("true", Value::Bool(true))]
    #[case("yes", Value::Text("yes".into()))]
    #[case("off", Value::Text("off".into()))]
    #[case("9007199254740993", Value::Number("9007199254740993".into()))]
    #[case("1.10", Value::Number("1.10".into()))]
    #[case("-1e3", Value::Number("-1e3".into()))]
    #[case("0644", Value::Number("0644".into()))]
    #[case("0x1F", Value::Number("0x1F".into()))]
    #[case("1:30", Value::Text("1:30".into()))]
    #[case("2001-01-01", Value::Text("2001-01-01".into()))]
    #[case(".", Value::Text(".".into()))]
    #[case("1.2.3", Value::Text("1.2.3".into()))]
    #[case("'12'", Value::Text("12".into()))]
    #[case("!!str 12", Value::Text("12".into()))]
    fn words(#[case] text: &str, #[case] value: Value) {
        assert_eq!(one(&format!("a: {text}")).entry("a").unwrap().value, value);
    }

    #[test]
    fn positions_count_from_one() {
        let node = one("# first\na:\n  - b: x\n    ä: y\n");
        let Value::Map(entries) = &node.value else { panic!("{node:?}") };
        assert_eq!(entries[0].at, Position { line: 2, column: 1 });
        let Value::List(items) = &entries[0].value.value else { panic!("{node:?}") };
        let Value::Map(inner) = &items[0].value else { panic!("{node:?}") };
        assert_eq!(inner[1].at, Position { line: 4, column: 5 });
        assert_eq!(inner[1].value.at, Position { line: 4, column: 8 });
    }

    #[test]
    fn documents_of_nothing_are_left_out() {
        assert_eq!(documents("---\n---\na: 1\n--- # nothing\n", LIMITS).unwrap().len(), 1);
        assert_eq!(documents("", LIMITS).unwrap().len(), 0);
    }

    #[test]
    fn aliases_and_merges_are_what_they_stand_for() {
        let node = one("base: &b {x: 1, y: 2}\nmine: {<<: *b, y: 3}\n");
        let mine = node.entry("mine").unwrap();
        assert_eq!(mine.entry("x").unwrap().value, Value::Number("1".into()));
        assert_eq!(mine.entry("y").unwrap().value, Value::Number("3".into()));
    }

    #[rstest]
    #[case::bomb(&(0..9).fold("a0: &a0 [1,2,3,4,5,6,7,8,9]\n".to_owned(), |text, i| {
        format!("{text}a{}: &a{} [*a{i},*a{i},*a{i},*a{i},*a{i},*a{i},*a{i},*a{i}]\n", i + 1, i + 1)
    }), "too many values")]
    #[case::itself("a: &a [*a]\n", "alias")]
    #[case::deep(&"[".repeat(100_000), "recursion")]
    #[case::unclosed("a: [1, 2\n", "")]
    #[case::tag("a: !custom 1\n", "tag")]
    #[case::collection_key("? [1]\n: 2\n", "key")]
    fn malformed(#[case] text: &str, #[case] word: &str) {
        let error = documents(text, LIMITS).unwrap_err();
        assert!(error.reason.contains(word), "{error}");
    }

    #[test]
    fn a_text_over_the_limit_is_not_looked_at() {
        assert!(documents("a: 1", Limits { bytes: 3, nodes: 10 }).is_err());
    }
}
