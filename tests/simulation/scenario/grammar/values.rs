//! Small values of a scenario file: times, numbers, handles, and how they are written.
//!
//! Invariant: what is read is written back the same, so that a shrunk world can be printed as a scenario.
//! Absent on purpose: where they may stand (`grammar`).

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use super::TargetName;

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Number {
    Exactly(u64),
    Between(Bounds),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Bounds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_least: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_most: Option<u64>,
}

/// A value, or any of several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

/// Handles of pods; `*` at the end stands for every pod whose handle begins so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handles(pub(crate) Vec<String>);

/// A length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

/// A length of time, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanOrNever(pub(crate) Option<Duration>);

/// A move of the wall clock, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift(pub(crate) i64);

/// From one time to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range(pub(crate) Duration, pub(crate) Duration);

impl<T> OneOrMore<T> {
    /// All of them.
    pub(crate) fn all(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
    }
}

impl Number {
    /// Whether that many is right.
    #[expect(clippy::cast_precision_loss, reason = "counts of a story are small")]
    pub(crate) fn holds(self, found: f64) -> bool {
        match self {
            Self::Exactly(number) => (found - number as f64).abs() < f64::EPSILON,
            Self::Between(bounds) => {
                bounds.at_least.is_none_or(|least| found >= least as f64) && bounds.at_most.is_none_or(|most| found <= most as f64)
            }
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(number) => write!(f, "{number}"),
            Self::Between(Bounds { at_least: Some(least), at_most: Some(most) }) => write!(f, "{least} to {most}"),
            Self::Between(Bounds { at_least: Some(least), at_most: None }) => write!(f, "at least {least}"),
            Self::Between(Bounds { at_least: None, at_most }) => write!(f, "at most {}", at_most.unwrap_or(u64::MAX)),
        }
    }
}

/// A length of time as the format writes it.
pub(crate) fn written(time: Duration) -> String {
    let milliseconds = time.as_millis();
    if milliseconds.is_multiple_of(1000) { format!("{}s", milliseconds / 1000) } else { format!("{milliseconds}ms") }
}

fn span(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[end..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("`{text}` is no time: a whole number with ms, s, m or h")),
    };
    let number: u64 = text[..end].parse().map_err(|_| format!("`{text}` is no time: a whole number with ms, s, m or h"))?;
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(|| format!("`{text}` is too long"))
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer)
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        span(&text(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&written(self.0))
    }
}

impl<'de> Deserialize<'de> for SpanOrNever {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match text(deserializer)?.as_str() {
            "never" => Ok(Self(None)),
            other => span(other).map(|span| Self(Some(span))).map_err(D::Error::custom),
        }
    }
}

impl Serialize for SpanOrNever {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.map_or_else(|| "never".to_owned(), written))
    }
}

impl<'de> Deserialize<'de> for Shift {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        let (sign, rest) = text.strip_prefix('-').map_or((1, text.as_str()), |rest| (-1, rest));
        let span = span(rest).map_err(D::Error::custom)?;
        Ok(Self(sign * i64::try_from(span.as_millis()).map_err(D::Error::custom)?))
    }
}

impl Serialize for Shift {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sign = if self.0 < 0 { "-" } else { "" };
        serializer.serialize_str(&format!("{sign}{}", written(Duration::from_millis(self.0.unsigned_abs()))))
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        let (from, to) = text.split_once("..").ok_or_else(|| D::Error::custom(format!("`{text}` is no range A..B")))?;
        Ok(Self(span(from).map_err(D::Error::custom)?, span(to).map_err(D::Error::custom)?))
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}..{}", written(self.0), written(self.1)))
    }
}

impl<'de> Deserialize<'de> for Handles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(OneOrMore::<String>::deserialize(deserializer)?.all().to_vec()))
    }
}

impl Serialize for Handles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [one] = self.0.as_slice() { serializer.serialize_str(one) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for TargetName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer)?;
        Ok(text.parse().map_or_else(|_| Self::Handle(text.clone()), Self::Address))
    }
}

impl Serialize for TargetName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Handle(handle) => f.write_str(handle),
        }
    }
}
