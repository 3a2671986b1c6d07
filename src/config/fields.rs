//! Reading a tree field by field, so that every error of a text is found in one pass.
//!
//! A serde type stops at the first error and knows the known keys of one place at most; here each place is asked for its keys,
//! what was never asked for is unknown, and a value that is wrong is replaced by nothing and reported.
//!
//! Invariant: a reader that returns `None` has reported why, except where the field is simply absent.
//! Absent on purpose: the meaning of any key (`parse`, `registries`, `bindings`).

use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::{ConfigError, ConfigErrors, nearest, quoted};
use super::text::{self, show_duration};
use crate::yaml::{Node, Position, Value};

/// A value and its place.
#[derive(Clone)]
pub(super) struct Field<'n> {
    pub(super) node: &'n Node,
    pub(super) path: String,
}

/// The keys of one mapping, each handed out once it is asked for.
pub(super) struct Fields<'n> {
    entries: Vec<(&'n str, Position, &'n Node)>,
    asked: Vec<&'static str>,
    pub(super) path: String,
    pub(super) at: Position,
    unreadable: bool,
}

impl<'n> Fields<'n> {
    /// The keys of `field`; none where it is no mapping.
    pub(super) fn of(field: &Field<'n>, errors: &mut ConfigErrors) -> Self {
        let mut fields = Self { entries: Vec::new(), asked: Vec::new(), path: field.path.clone(), at: field.node.at, unreadable: false };
        match &field.node.value {
            Value::Map(entries) => {
                for entry in entries {
                    if fields.entries.iter().any(|(key, ..)| *key == entry.key) {
                        errors.push(entry.at, fields.place(&entry.key), "stands twice", "remove one of them");
                    } else {
                        fields.entries.push((&entry.key, entry.at, &entry.value));
                    }
                }
            }
            _ => {
                fields.unreadable = true;
                field.fail(errors, format!("is {}", kind(&field.node.value)), "write a mapping (key: value)");
            }
        }
        fields
    }

    /// The field of that key; `None` where it is absent or null.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<Field<'n>> {
        self.asked.push(key);
        let (_, _, node) = self.entries.iter().find(|(one, ..)| *one == key)?;
        (node.value != Value::Null).then(|| Field { node, path: self.place(key) })
    }

    /// The field of that key, which must be there.
    pub(super) fn required(&mut self, key: &'static str, remedy: &str, errors: &mut ConfigErrors) -> Option<Field<'n>> {
        let field = self.optional(key);
        if field.is_none() && !self.unreadable {
            let at = self.entries.iter().find(|(one, ..)| *one == key).map_or(self.at, |(_, at, _)| *at);
            errors.push(at, self.place(key), "is missing", remedy);
        }
        field
    }

    /// Whether the key stands there with a value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(one, _, node)| *one == key && node.value != Value::Null)
    }

    /// Reports every key that nobody asked for.
    pub(super) fn finish(self, errors: &mut ConfigErrors) {
        for (key, at, _) in &self.entries {
            if !self.asked.contains(key) {
                errors.add(ConfigError {
                    path: self.place(key),
                    line: at.line,
                    column: at.column,
                    reason: "is no known key".to_owned(),
                    remedy: format!("known here: {}", self.asked.join(", ")),
                    nearest: nearest(key, self.asked.iter().copied()).map(str::to_owned),
                });
            }
        }
    }

    /// The path of a key, which may be anything that somebody wrote.
    fn place(&self, key: &str) -> String {
        let key = bounded(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }
}

impl<'n> Field<'n> {
    /// Reports that this field is wrong.
    pub(super) fn fail(&self, errors: &mut ConfigErrors, reason: impl Into<String>, remedy: impl Into<String>) {
        errors.push(self.node.at, self.path.clone(), reason, remedy);
    }

    /// Text of 1 to `longest` characters without control characters.
    pub(super) fn text(&self, longest: usize, errors: &mut ConfigErrors) -> Option<&'n str> {
        match &self.node.value {
            Value::Text(text) if text.is_empty() => self.refuse(errors, "is empty", "write a value, or leave the key out"),
            Value::Text(text) if text.chars().count() > longest => {
                self.refuse(errors, format!("is longer than {longest} characters"), "write a shorter one")
            }
            Value::Text(text) if text.chars().any(char::is_control) => {
                self.refuse(errors, "holds a line break or another control character", "write it on one line")
            }
            Value::Text(text) => Some(text),
            Value::Number(text) => self.refuse(errors, format!("is the number {text}"), format!("write \"{text}\" in quotes")),
            Value::Bool(value) => self.refuse(errors, format!("is {value}, no text"), format!("write \"{value}\" in quotes")),
            other => self.refuse(errors, format!("is {}", kind(other)), "write text"),
        }
    }

    /// Text that `rule` accepts; a refusal says why.
    pub(super) fn checked(
        &self,
        longest: usize,
        rule: impl FnOnce(&str) -> Result<(), text::Broken>,
        errors: &mut ConfigErrors,
    ) -> Option<&'n str> {
        self.withheld(longest, |text| rule(text).map_err(|(reason, remedy)| (format!("{} {reason}", quoted(text)), remedy)), errors)
    }

    /// The same for text that may hold a secret by mistake: a refusal does not repeat it.
    pub(super) fn withheld(
        &self,
        longest: usize,
        rule: impl FnOnce(&str) -> Result<(), text::Broken>,
        errors: &mut ConfigErrors,
    ) -> Option<&'n str> {
        let text = self.text(longest, errors)?;
        match rule(text) {
            Ok(()) => Some(text),
            Err((reason, remedy)) => self.refuse(errors, reason, remedy),
        }
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)], errors: &mut ConfigErrors) -> Option<T> {
        let list = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let text = match &self.node.value {
            Value::Text(text) => text.as_str(),
            Value::Number(text) => text.as_str(),
            Value::Bool(value) => {
                return self.refuse(errors, format!("is {value}"), format!("one of {}", list()));
            }
            other => return self.refuse(errors, format!("is {}", kind(other)), format!("one of {}", list())),
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        errors.add(ConfigError {
            path: self.path.clone(),
            line: self.node.at.line,
            column: self.node.at.column,
            reason: format!("is {}", quoted(text)),
            remedy: format!("one of {}", list()),
            nearest: nearest(text, words.iter().map(|(word, _)| *word)).map(str::to_owned),
        });
        None
    }

    /// A duration within `bounds`.
    pub(super) fn duration(&self, bounds: RangeInclusive<Duration>, errors: &mut ConfigErrors) -> Option<Duration> {
        let written = match &self.node.value {
            Value::Text(text) | Value::Number(text) => text,
            other => return self.refuse(errors, format!("is {}", kind(other)), "write a duration, as in 30s, 1m30s or 500ms"),
        };
        match text::duration(written) {
            Err(reason) => self.refuse(errors, format!("is {}: {reason}", quoted(written)), "write a duration, as in 30s, 1m30s or 500ms"),
            Ok(duration) if bounds.contains(&duration) => Some(duration),
            Ok(_) => self.refuse(
                errors,
                format!("is {}", quoted(written)),
                format!("from {} to {}", show_duration(*bounds.start()), show_duration(*bounds.end())),
            ),
        }
    }

    /// A whole number within `bounds`.
    pub(super) fn whole(&self, bounds: RangeInclusive<u32>, errors: &mut ConfigErrors) -> Option<u32> {
        let remedy = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        match &self.node.value {
            Value::Number(text) => match text.parse() {
                Ok(number) if bounds.contains(&number) => Some(number),
                _ => self.refuse(errors, format!("is {}", bounded(text)), remedy),
            },
            other => self.refuse(errors, format!("is {}", kind(other)), remedy),
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, errors: &mut ConfigErrors) -> Option<bool> {
        match &self.node.value {
            Value::Bool(value) => Some(*value),
            Value::Text(text) => self.refuse(errors, format!("is {}", quoted(text)), "write true or false"),
            other => self.refuse(errors, format!("is {}", kind(other)), "write true or false"),
        }
    }

    /// The items of a sequence of at most `most`.
    pub(super) fn list(&self, most: usize, errors: &mut ConfigErrors) -> Vec<Field<'n>> {
        match &self.node.value {
            Value::List(items) if items.len() <= most => {
                items.iter().enumerate().map(|(i, node)| Field { node, path: format!("{}[{i}]", self.path) }).collect()
            }
            Value::List(items) => {
                self.fail(errors, format!("has {} items", items.len()), format!("at most {most}"));
                Vec::new()
            }
            other => {
                self.fail(errors, format!("is {}", kind(other)), "write a list, as in [one, two]");
                Vec::new()
            }
        }
    }

    fn refuse<T>(&self, errors: &mut ConfigErrors, reason: impl Into<String>, remedy: impl Into<String>) -> Option<T> {
        self.fail(errors, reason, remedy);
        None
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) => format!("the number {}", bounded(text)),
        Value::Text(text) => format!("the text {}", quoted(text)),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

fn bounded(text: &str) -> String {
    let shown = quoted(text);
    shown[1..shown.len() - 1].to_owned()
}
