//! A pod and its Events as `status` reads them: the reconciler's own view, and the times that only people ask for.
//!
//! Invariant: reading is total: what is missing or odd in an object is as if it were absent.
//! Invariant: texts are clean: whoever may write a pod's status or annotations does not write on the terminal of whoever looks.
//! Absent on purpose: what any of it means (`outlook`, `timeline`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::admission::record::Record;
use crate::names;
use crate::pod::{Condition, PodView};
use crate::reconcile::cluster::ApiError;
use crate::reconcile::kubernetes::{api, decode};
use crate::registration::claim::Claim;
use crate::registration::observe;
use crate::text::one_line;

/// A pod as it is now.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Sight {
    /// What the reconciler sees of it.
    pub(in crate::commands) pod: PodView,
    /// Its claims.
    pub(in crate::commands) claims: Vec<Claim>,
    /// The sleep that admission gave its containers, and what it rests on.
    pub(in crate::commands) sleep: Option<Sleep>,
    /// `creationTimestamp`: admission had answered.
    pub(in crate::commands) created: Option<Timestamp>,
    /// When it got a node.
    pub(in crate::commands) scheduled: Option<Timestamp>,
    /// Since when it is Ready, where it is.
    pub(in crate::commands) ready: Option<Timestamp>,
    /// Why it has no node, in the scheduler's words.
    pub(in crate::commands) unscheduled: Option<String>,
    /// Containers that do not run, each with the kubelet's word for it.
    pub(in crate::commands) troubled: Vec<String>,
    /// Finalizers of others.
    pub(in crate::commands) other_finalizers: Vec<String>,
}

/// A sleep, as the record tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Sleep {
    /// How long it is.
    pub(in crate::commands) seconds: i64,
    /// When the oldest answer of a registry came that it rests on.
    pub(in crate::commands) answered: Option<Timestamp>,
    /// Bindings whose registry had not answered, so that it rests on their `fallback`.
    pub(in crate::commands) fallback: Vec<String>,
}

/// An Event, trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Told {
    /// UID of the Event itself.
    pub(in crate::commands) id: String,
    /// UID of what it is about.
    pub(in crate::commands) uid: String,
    /// Whether Lockstep said it.
    pub(in crate::commands) ours: bool,
    /// Whether it warns.
    pub(in crate::commands) warning: bool,
    /// Its reason.
    pub(in crate::commands) reason: String,
    /// Its sentence.
    pub(in crate::commands) note: String,
    /// When it was said first.
    pub(in crate::commands) first: Option<Timestamp>,
    /// When it was said last.
    pub(in crate::commands) last: Option<Timestamp>,
}

impl Sight {
    /// Reads a pod.
    pub(in crate::commands) fn read(json: &str) -> Result<Self, ApiError> {
        let pod = cleaned(decode::pod(json)?);
        let whole: Value = api::decode(json.as_bytes())?;
        let scheduled = condition(&whole, "PodScheduled");
        let finalizers = list(&whole, "/metadata/finalizers").filter_map(Value::as_str);
        Ok(Self {
            claims: observe::claims_of(&pod),
            sleep: sleep(&whole),
            created: time(whole.pointer("/metadata/creationTimestamp")),
            scheduled: scheduled.filter(|one| is_true(one)).and_then(|one| time(one.get("lastTransitionTime"))),
            ready: condition(&whole, "Ready").filter(|one| is_true(one)).and_then(|one| time(one.get("lastTransitionTime"))),
            unscheduled: scheduled.filter(|one| !is_true(one)).map(|one| text(one.get("message"))),
            troubled: list(&whole, "/status/initContainerStatuses")
                .chain(list(&whole, "/status/containerStatuses"))
                .filter_map(troubled)
                .collect(),
            other_finalizers: finalizers.filter(|name| *name != names::FINALIZER).map(|name| one_line(name).collect()).collect(),
            pod,
        })
    }
}

impl Told {
    /// Reads an Event.
    pub(in crate::commands) fn read(json: &str) -> Result<Self, ApiError> {
        let event: Value = api::decode(json.as_bytes())?;
        let made = time(event.pointer("/metadata/creationTimestamp"));
        let first = time(event.get("firstTimestamp")).or_else(|| time(event.get("eventTime"))).or(made);
        Ok(Self {
            id: text(event.pointer("/metadata/uid")),
            uid: text(event.pointer("/involvedObject/uid")),
            ours: [event.get("reportingComponent"), event.pointer("/source/component")].into_iter().any(|by| text(by) == names::COMPONENT),
            warning: text(event.get("type")) == "Warning",
            reason: text(event.get("reason")),
            note: text(event.get("message")),
            first,
            last: time(event.get("lastTimestamp")).or_else(|| time(event.pointer("/series/lastObservedTime"))).or(first),
        })
    }
}

/// Events by the UID of what they are about.
pub(in crate::commands) fn by_object<'t>(told: impl IntoIterator<Item = &'t Told>) -> BTreeMap<&'t str, Vec<&'t Told>> {
    let mut by_object: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
    for one in told {
        by_object.entry(&one.uid).or_default().push(one);
    }
    by_object
}

/// The pod, with every text clean that the API server takes as it comes.
fn cleaned(mut pod: PodView) -> PodView {
    let clean = |condition: Condition| Condition {
        reason: one_line(&condition.reason).collect(),
        message: one_line(&condition.message).collect(),
        ..condition
    };
    pod.gate = pod.gate.map(clean);
    for text in pod.record.bindings.iter_mut().chain(&mut pod.record.findings) {
        *text = one_line(text).collect::<String>().into();
    }
    if let Some(owner) = &mut pod.controller {
        (owner.kind, owner.name) = (one_line(&owner.kind).collect(), one_line(&owner.name).collect());
    }
    pod
}

fn sleep(pod: &Value) -> Option<Sleep> {
    let annotation = pod.pointer("/metadata/annotations").and_then(|annotations| annotations.get(names::RECORD_ANNOTATION));
    let record = Record::parse(annotation?.as_str()?).filter(|record| record.sleep_seconds > 0)?;
    Some(Sleep {
        seconds: record.sleep_seconds,
        answered: record.answered_at.and_then(|at| at.parse().ok()),
        fallback: record.fallback.iter().map(|binding| one_line(binding).collect()).collect(),
    })
}

fn condition<'v>(pod: &'v Value, kind: &str) -> Option<&'v Value> {
    list(pod, "/status/conditions").find(|one| one.get("type").and_then(Value::as_str) == Some(kind))
}

fn is_true(condition: &Value) -> bool {
    condition.get("status").and_then(Value::as_str) == Some("True")
}

/// A container that waits for anything but its turn.
fn troubled(status: &Value) -> Option<String> {
    let reason = text(Some(status.pointer("/state/waiting/reason")?));
    let quiet = matches!(&*reason, "" | "ContainerCreating" | "PodInitializing");
    (!quiet).then(|| format!("{} {reason}", text(status.get("name"))))
}

fn list<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn time(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

/// A text on one line; empty where there is none.
fn text(value: Option<&Value>) -> String {
    one_line(value.and_then(Value::as_str).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Sight, Told};

    const RUNNING: &str = include_str!("../../reconcile/kubernetes/examples/pod-running.json");

    #[test]
    fn a_pod_is_read_with_its_times() {
        let sight = Sight::read(RUNNING).unwrap();
        assert_eq!(sight.created, Some("2026-11-29T16:53:41Z".parse().unwrap()));
        assert!(sight.scheduled.is_some() && sight.unscheduled.is_none());
        assert_eq!(sight.pod.record.bindings, ["web".into()]);
        assert!(sight.other_finalizers.is_empty() && sight.troubled.is_empty());
    }

    #[test]
    fn what_keeps_a_pod_from_running_is_read() {
        let pod = r#"{"metadata":{"name":"a","finalizers":["lockstep.dev/deregistered","example.org/other"]},"status":{
            "conditions":[{"type":"PodScheduled","status":"False","message":"0/3 nodes\nare available"}],
            "containerStatuses":[{"name":"web","state":{"waiting":{"reason":"CrashLoopBackOff"}}},
                {"name":"side","state":{"waiting":{"reason":"ContainerCreating"}}}]}}"#;
        let sight = Sight::read(pod).unwrap();
        assert_eq!(sight.unscheduled.as_deref(), Some("0/3 nodes are available"));
        assert_eq!(sight.troubled, ["web CrashLoopBackOff"]);
        assert_eq!(sight.other_finalizers, ["example.org/other"]);
    }

    #[test]
    fn a_sleep_is_read_with_what_it_rests_on() {
        let sleep = |record: &str| {
            let pod = serde_json::json!({"metadata": {"annotations": {"lockstep.dev/injected": record}}});
            Sight::read(&pod.to_string()).unwrap().sleep
        };
        let record = |rest: &str| format!(r#"{{"version":1,"bindings":["web"],"sleepSeconds":45,"graceBefore":30,"findings":[]{rest}}}"#);
        let read = sleep(&record(r#","fallback":["a\nb"],"answeredAt":"2026-11-30T04:00:00Z""#)).unwrap();
        assert_eq!((read.seconds, read.answered, &*read.fallback[0]), (45, Some("2026-11-30T04:00:00Z".parse().unwrap()), "a b"));
        let plain = sleep(&record("")).unwrap();
        assert_eq!((plain.answered, plain.fallback), (None, Vec::<String>::new()));
        assert_eq!(sleep(&record(r#","answeredAt":"yesterday""#)).unwrap().answered, None);
        assert_eq!(sleep("{}"), None);
    }

    #[test]
    fn nothing_that_a_pod_says_reaches_the_terminal_as_it_is() {
        const ESCAPE: &str = "\\u001b[2J";
        let pod = format!(
            r#"{{"metadata":{{"name":"a","finalizers":["{ESCAPE}"],"annotations":{{
                "lockstep.dev/injected":"{{\"version\":1,\"bindings\":[\"\{ESCAPE}\"],\"findings\":[\"\{ESCAPE}\"]}}"}},
                "ownerReferences":[{{"controller":true,"kind":"{ESCAPE}","name":"{ESCAPE}","uid":"o"}}]}},"status":{{"conditions":[
                {{"type":"PodScheduled","status":"False","message":"{ESCAPE}"}},
                {{"type":"lockstep.dev/registered","status":"False","reason":"{ESCAPE}","message":"{ESCAPE}"}},
                {{"type":"lockstep.dev/targets","status":"True","message":"lan/{ESCAPE} 10.0.0.1:80"}}],
                "containerStatuses":[{{"name":"{ESCAPE}","state":{{"waiting":{{"reason":"{ESCAPE}"}}}}}}]}}}}"#
        );
        let sight = Sight::read(&pod).unwrap();
        assert!(!sight.pod.record.bindings.is_empty() && sight.pod.gate.is_some() && !sight.troubled.is_empty(), "{sight:?}");
        let mut seen = vec![format!("{:?}", sight.claims)];
        let gate = sight.pod.gate.unwrap();
        let owner = sight.pod.controller.unwrap();
        seen.extend([gate.reason, gate.message, owner.kind, owner.name, sight.unscheduled.unwrap()]);
        seen.extend(sight.pod.record.bindings.iter().chain(&sight.pod.record.findings).map(ToString::to_string));
        seen.extend(sight.troubled.into_iter().chain(sight.other_finalizers));
        assert!(seen.iter().all(|text| !text.contains(char::is_control) && !text.contains("\\u{1b}")), "{seen:?}");
        let told = Told::read(&format!(r#"{{"reason":"{ESCAPE}","message":"{ESCAPE}","involvedObject":{{"uid":"{ESCAPE}"}}}}"#)).unwrap();
        assert!(!format!("{}{}{}", told.uid, told.reason, told.note).contains(char::is_control), "{told:?}");
    }

    #[test]
    fn odd_objects_are_read_as_empty_ones() {
        for odd in ["{}", r#"{"metadata":7,"status":[]}"#, r#"{"status":{"conditions":[7,{"type":"Ready"}],"containerStatuses":{}}}"#] {
            let sight = Sight::read(odd).unwrap();
            assert!(sight.created.is_none() && sight.ready.is_none() && sight.troubled.is_empty(), "{odd}");
            assert!(Told::read(odd).unwrap().first.is_none(), "{odd}");
        }
        assert!(Sight::read("[").is_err() && Told::read("[").is_err());
    }

    #[test]
    fn an_event_of_either_form_is_read() {
        let old = r#"{"involvedObject":{"uid":"u"},"type":"Warning","reason":"RegistryFailing","message":"lan/web: down","source":{"component":"lockstep"},
            "firstTimestamp":"2026-11-29T10:00:00Z","lastTimestamp":"2026-11-29T10:05:00Z"}"#;
        let told = Told::read(old).unwrap();
        assert!(told.ours && told.warning);
        assert_ne!(told.first, told.last);
        let new = r#"{"eventTime":"2026-11-29T10:00:00.123456Z","reportingComponent":"kubelet","reason":"Scheduled"}"#;
        let told = Told::read(new).unwrap();
        assert!(!told.ours && told.first.is_some() && told.first == told.last);
    }
}
