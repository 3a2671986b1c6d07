//! From changes to the smallest RFC 6902 patch.
//!
//! A patch names only the places it changes, so that whatever else stands in the pod survives byte for byte.
//!
//! Invariant: each change is one operation, `add`, on a place of ours or on a place that is empty.
//! Invariant: no operation holds anything that stood in the pod.
//! Absent on purpose: which changes are needed (`decide`).

use std::io::Write;

use super::prestop::SleepForm;
use crate::names::{FINALIZER, GATE, MANAGED_LABEL, MANAGED_VALUE, RECORD_ANNOTATION};

/// One change of a pod; `fresh` says that the list or map is not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Metadata { record: String },
    Gate { fresh: bool },
    Finalizer { fresh: bool },
    Label { fresh: bool },
    Record { fresh: bool, text: String },
    Sleep { container: usize, place: Place, form: SleepForm, seconds: u64 },
    Grace { seconds: i64 },
    Probe { container: usize, probe: &'static str, seconds: i64 },
}

/// What is not there yet on the way to a hook's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Lifecycle,
    PreStop,
    Action,
}

/// Writes the patch; `at` is where the pod stands in the document, empty for a pod itself.
pub(super) fn write(changes: &[Change], at: &str, out: &mut Vec<u8>) {
    out.push(b'[');
    for (i, change) in changes.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        operation(change, at, out).expect("writing into a Vec cannot fail");
    }
    out.push(b']');
}

fn operation(change: &Change, at: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    write!(out, r#"{{"op":"add","path":"{at}"#)?;
    match change {
        Change::Metadata { record } => {
            write!(
                out,
                r#"/metadata","value":{{"finalizers":["{FINALIZER}"],"labels":{{"{MANAGED_LABEL}":"{MANAGED_VALUE}"}},"annotations":"#
            )?;
            annotations(record, out)?;
            out.push(b'}');
        }
        Change::Gate { fresh: true } => write!(out, r#"/spec/readinessGates","value":[{{"conditionType":"{GATE}"}}]"#)?,
        Change::Gate { fresh: false } => write!(out, r#"/spec/readinessGates/-","value":{{"conditionType":"{GATE}"}}"#)?,
        Change::Finalizer { fresh: true } => write!(out, r#"/metadata/finalizers","value":["{FINALIZER}"]"#)?,
        Change::Finalizer { fresh: false } => write!(out, r#"/metadata/finalizers/-","value":"{FINALIZER}""#)?,
        Change::Label { fresh: true } => write!(out, r#"/metadata/labels","value":{{"{MANAGED_LABEL}":"{MANAGED_VALUE}"}}"#)?,
        Change::Label { fresh: false } => {
            write!(out, "/metadata/labels/")?;
            pointer(MANAGED_LABEL, out)?;
            write!(out, r#"","value":"{MANAGED_VALUE}""#)?;
        }
        Change::Record { fresh: true, text } => {
            write!(out, r#"/metadata/annotations","value":"#)?;
            annotations(text, out)?;
        }
        Change::Record { fresh: false, text } => {
            write!(out, "/metadata/annotations/")?;
            pointer(RECORD_ANNOTATION, out)?;
            write!(out, r#"","value":"#)?;
            serde_json::to_writer(&mut *out, text)?;
        }
        Change::Sleep { container, place, form, seconds } => {
            let key = match form {
                SleepForm::Native => "sleep",
                SleepForm::Command => "exec",
            };
            write!(out, "/spec/containers/{container}/lifecycle")?;
            match place {
                Place::Lifecycle => write!(out, r#"","value":{{"preStop":{{"{key}":"#)?,
                Place::PreStop => write!(out, r#"/preStop","value":{{"{key}":"#)?,
                Place::Action => write!(out, r#"/preStop/{key}","value":"#)?,
            }
            match form {
                SleepForm::Native => write!(out, r#"{{"seconds":{seconds}}}"#)?,
                SleepForm::Command => write!(out, r#"{{"command":["sleep","{seconds}"]}}"#)?,
            }
            out.extend_from_slice(match place {
                Place::Lifecycle => b"}}",
                Place::PreStop => b"}",
                Place::Action => b"",
            });
        }
        Change::Grace { seconds } => write!(out, r#"/spec/terminationGracePeriodSeconds","value":{seconds}"#)?,
        Change::Probe { container, probe, seconds } => {
            write!(out, r#"/spec/containers/{container}/{probe}/terminationGracePeriodSeconds","value":{seconds}"#)?;
        }
    }
    out.push(b'}');
    Ok(())
}

fn annotations(record: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    write!(out, r#"{{"{RECORD_ANNOTATION}":"#)?;
    serde_json::to_writer(&mut *out, record)?;
    out.push(b'}');
    Ok(())
}

/// A key as a step of a JSON pointer.
fn pointer(key: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    for byte in key.bytes() {
        match byte {
            b'~' => out.extend_from_slice(b"~0"),
            b'/' => out.extend_from_slice(b"~1"),
            byte => out.push(byte),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Change::Gate { fresh: true }, r#"{"op":"add","path":"/spec/readinessGates","value":[{"conditionType":"lockstep.dev/registered"}]}"#)]
    #[case(Change::Gate { fresh: false }, r#"{"op":"add","path":"/spec/readinessGates/-","value":{"conditionType":"lockstep.dev/registered"}}"#)]
    #[case(Change::Finalizer { fresh: false }, r#"{"op":"add","path":"/metadata/finalizers/-","value":"lockstep.dev/deregistered"}"#)]
    #[case(Change::Label { fresh: false }, r#"{"op":"add","path":"/metadata/labels/lockstep.dev~1managed","value":"true"}"#)]
    #[case(Change::Record { fresh: true, text: "{\"a\"}".into() },
        r#"{"op":"add","path":"/metadata/annotations","value":{"lockstep.dev/injected":"{\"a\"}"}}"#)]
    #[case(Change::Sleep { container: 2, place: Place::Lifecycle, form: SleepForm::Native, seconds: 45 },
        r#"{"op":"add","path":"/spec/containers/2/lifecycle","value":{"preStop":{"sleep":{"seconds":45}}}}"#)]
    #[case(Change::Sleep { container: 0, place: Place::PreStop, form: SleepForm::Command, seconds: 45 },
        r#"{"op":"add","path":"/spec/containers/0/lifecycle/preStop","value":{"exec":{"command":["sleep","45"]}}}"#)]
    #[case(Change::Sleep { container: 0, place: Place::Action, form: SleepForm::Native, seconds: 45 },
        r#"{"op":"add","path":"/spec/containers/0/lifecycle/preStop/sleep","value":{"seconds":45}}"#)]
    #[case(Change::Probe { container: 1, probe: "startupProbe", seconds: 30 },
        r#"{"op":"add","path":"/spec/containers/1/startupProbe/terminationGracePeriodSeconds","value":30}"#)]
    fn operations(#[case] change: Change, #[case] wanted: &str) {
        let mut out = Vec::new();
        write(&[change], "", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), format!("[{wanted}]"));
    }

    #[test]
    fn metadata_that_is_not_there_is_written_whole() {
        let mut out = Vec::new();
        write(&[Change::Metadata { record: "{}".into() }, Change::Grace { seconds: 75 }], "/spec/template", &mut out);
        let patch: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(patch[0]["path"], "/spec/template/metadata");
        assert_eq!(patch[0]["value"]["labels"]["lockstep.dev/managed"], "true");
        assert_eq!(patch[0]["value"]["annotations"]["lockstep.dev/injected"], "{}");
        assert_eq!(patch[1], serde_json::json!({"op": "add", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 75}));
    }
}
