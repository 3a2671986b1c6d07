//! The record: the annotation that says what was injected.
//!
//! It lets a second pass add nothing twice, and carries the findings to the leader, which makes Events of them.
//! Whoever can create a pod can write one, so it is believed only as far as the pod bears it out (`decide`).
//!
//! Invariant: the text of equal records is equal, byte for byte.
//! Absent on purpose: trust.

use serde::{Deserialize, Serialize};

/// The version of this little format.
const VERSION: u32 = 1;

/// What was injected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    version: u32,
    /// Names of the bindings that matched, in the order of the configuration.
    pub bindings: Vec<String>,
    /// The sleep that our containers carry; 0 where none does.
    pub sleep_seconds: i64,
    /// The grace period that the pod asked for.
    pub grace_before: i64,
    /// Codes, sorted, each once.
    pub findings: Vec<String>,
    /// Names of containers whose own hook happens to look like our sleep; a later pass must not take it for ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<String>,
    /// Names of bindings whose registry had not said how long it drains, so that the sleep rests on their `fallback`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    /// When the oldest answer of a registry came that the sleep rests on, as RFC 3339 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<String>,
}

impl Record {
    /// A record of this version.
    pub fn new(bindings: Vec<String>, sleep_seconds: i64, grace_before: i64, findings: Vec<String>, own: Vec<String>) -> Self {
        Self { version: VERSION, bindings, sleep_seconds, grace_before, findings, own, fallback: Vec::new(), answered_at: None }
    }

    /// The same, with the sleep resting on the `fallback` of these bindings and on answers of which the oldest came then.
    #[must_use]
    pub fn resting_on(self, fallback: Vec<String>, answered_at: Option<String>) -> Self {
        Self { fallback, answered_at, ..self }
    }

    /// Reads an annotation; `None` where it is no record of this version.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str::<Self>(text).ok().filter(|record| record.version == VERSION)
    }

    /// The text of the annotation.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always serialise")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_text_is_the_documented_one() {
        let record = Record::new(vec!["web".into()], 45, 30, vec!["OwnPreStopShort".into()], vec![]);
        let text = r#"{"version":1,"bindings":["web"],"sleepSeconds":45,"graceBefore":30,"findings":["OwnPreStopShort"]}"#;
        assert_eq!(record.text(), text);
        assert_eq!(Record::parse(text), Some(record));
    }

    #[test]
    fn what_seldom_holds_is_written_only_then() {
        let record =
            Record::new(vec!["web".into()], 45, 30, vec![], vec![]).resting_on(vec!["web".into()], Some("2026-11-30T04:00:00Z".into()));
        let text = r#"{"version":1,"bindings":["web"],"sleepSeconds":45,"graceBefore":30,"findings":[],"fallback":["web"],"answeredAt":"2026-11-30T04:00:00Z"}"#;
        assert_eq!(record.text(), text);
        assert_eq!(Record::parse(text), Some(record));
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case("[]")]
    #[case(r#"{"version":2,"bindings":[],"sleepSeconds":45,"graceBefore":30,"findings":[]}"#)]
    #[case(r#"{"version":1,"bindings":[],"sleepSeconds":45.0,"graceBefore":30,"findings":[]}"#)]
    #[case(r#"{"version":1,"bindings":[],"sleepSeconds":"45","graceBefore":30,"findings":[]}"#)]
    #[case(r#"{"version":1,"bindings":[],"sleepSeconds":45,"sleepSeconds":45,"graceBefore":30,"findings":[]}"#)]
    #[case(r#"{"version":1,"bindings":[],"sleepSeconds":45,"graceBefore":99999999999999999999,"findings":[]}"#)]
    #[case(r#"{"version":1,"bindings":[],"sleepSeconds":45,"graceBefore":30,"findings":[]} x"#)]
    fn no_records(#[case] text: &str) {
        assert_eq!(Record::parse(text), None);
    }
}
