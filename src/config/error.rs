//! What is wrong with a configuration, and where.
//!
//! The same values are lines of `check`, the answer to `kubectl apply`, an Event and a log field, so each is one clean, bounded line.
//!
//! Invariant: no error holds control characters or more of the text than [`QUOTED`] characters.
//! Absent on purpose: advice about what is legal but unwise (`advise`).

use std::fmt;

use crate::yaml::Position;

/// The most errors that are kept: a person fixes the first ones and looks again.
const KEPT: usize = 200;
/// The most characters of the operator's own text in a message.
const QUOTED: usize = 80;

/// Every error of a text, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[serde(transparent)]
pub struct ConfigErrors {
    /// The errors; never empty in a value that `parse` returned.
    pub errors: Vec<ConfigError>,
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize)]
pub struct ConfigError {
    /// The place, as in `bindings[0].drain.fixed`; empty where the text as a whole is meant.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub remedy: String,
    /// The known key or value that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

impl ConfigErrors {
    pub(super) fn push(&mut self, at: Position, path: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) {
        self.add(ConfigError {
            path: path.into(),
            line: at.line,
            column: at.column,
            reason: reason.into(),
            remedy: remedy.into(),
            nearest: None,
        });
    }

    pub(super) fn add(&mut self, error: ConfigError) {
        if self.errors.len() < KEPT {
            self.errors.push(error);
        }
    }

    pub(super) fn sorted(mut self) -> Self {
        self.errors.sort_by_key(|error| (error.line, error.column));
        self
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; ", self.reason)?;
        if let Some(nearest) = &self.nearest {
            write!(f, "did you mean {nearest}? ")?;
        }
        f.write_str(&self.remedy)
    }
}

/// Text of the operator, safe to stand in a line.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED).is_some() {
        shown.push('…');
    }
    format!("\"{shown}\"")
}

/// The word of `known` that `word` was probably meant to be.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |text: &str| text.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect::<String>();
    let wanted: String = plain(word).chars().take(QUOTED).collect();
    let farthest = (wanted.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|one| (strsim::osa_distance(&wanted, &plain(one)), one))
        .filter(|(distance, one)| *distance <= farthest && *distance < one.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("podSelektor", Some("podSelector"))]
    #[case("pod_selector", Some("podSelector"))]
    #[case("Drain", Some("drain"))]
    #[case("darin", Some("drain"))]
    #[case("port", None)]
    #[case("", None)]
    fn nearest_of(#[case] word: &str, #[case] wanted: Option<&str>) {
        assert_eq!(nearest(word, ["podSelector", "drain", "weight"]), wanted);
    }

    #[test]
    fn quoted_text_is_one_bounded_line() {
        assert_eq!(quoted("a\nb\u{7}"), "\"a\\nb\\u{7}\"");
        assert!(quoted(&"x".repeat(1000)).len() < 100);
    }
}
