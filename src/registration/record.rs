//! The record annotation, as far as registration uses it.
//!
//! Admission writes it and trusts it only under conditions; here it only informs: who was bound, how long the sleep is, what was found.
//!
//! Invariant: reading is total; a record that cannot be read is an empty one.
//! Absent on purpose: writing it (`admission`).

use std::sync::Arc;

use serde::Deserialize;

/// What the reconciler reads of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Names of the bindings that selected the pod at its creation.
    pub bindings: Vec<Arc<str>>,
    /// The injected sleep.
    pub sleep_seconds: Option<i64>,
    /// Codes of what a person should fix.
    pub findings: Vec<Arc<str>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    bindings: Vec<String>,
    sleep_seconds: Option<i64>,
    findings: Vec<String>,
}

impl Record {
    /// Reads the annotation.
    pub fn read(annotation: Option<&str>) -> Self {
        let raw: Raw = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let shared = |texts: Vec<String>| texts.into_iter().map(Arc::from).collect();
        Self { bindings: shared(raw.bindings), sleep_seconds: raw.sleep_seconds, findings: shared(raw.findings) }
    }
}

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn reads_what_is_there() {
        let record = Record::read(Some(r#"{"version":1,"bindings":["web"],"sleepSeconds":45,"graceBefore":30,"findings":["GraceZero"]}"#));
        assert_eq!(record.bindings, ["web".into()]);
        assert_eq!(record.sleep_seconds, Some(45));
        assert_eq!(record.findings, ["GraceZero".into()]);
    }

    #[test]
    fn nonsense_is_an_empty_record() {
        for text in [None, Some(""), Some("{"), Some("[]"), Some(r#"{"bindings":7}"#)] {
            assert_eq!(Record::read(text), Record::default());
        }
    }
}
