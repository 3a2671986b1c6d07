//! What the reconciler wants → JSON for the API server.
//!
//! Invariant: a patch names only what is ours: our conditions, our finalizer, our label, our annotations, and the UID it is meant for.
//! Absent on purpose: requests (`api`).

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::names;
use crate::reconcile::cluster::{ConditionPatch, Event, LeaseRecord, PodPatch, Presence, Subject};

/// Kubernetes takes names of up to this many characters.
const NAME_CHARS: usize = 253;
/// The API server refuses a longer note.
const NOTE_CHARS: usize = 1024;

/// Where an Event goes and who sends it.
pub(crate) struct Sender<'a> {
    /// Our own namespace.
    pub(crate) namespace: &'a str,
    /// Name of this replica.
    pub(crate) identity: &'a str,
    /// Name of the ConfigMap with the configuration.
    pub(crate) config_map: &'a str,
}

/// The strategic-merge patch of `pods/status`.
pub(crate) fn pod_patch(patch: &PodPatch) -> Value {
    let mut metadata = Map::new();
    metadata.insert("uid".into(), patch.uid.as_str().into());
    if let Some(version) = &patch.resource_version {
        metadata.insert("resourceVersion".into(), json!(version));
    }
    match patch.finalizer {
        Some(Presence::Present) => metadata.insert("finalizers".into(), json!([names::FINALIZER])),
        Some(Presence::Absent) => metadata.insert("$deleteFromPrimitiveList/finalizers".into(), json!([names::FINALIZER])),
        None => None,
    };
    if patch.label {
        metadata.insert("labels".into(), json!({ names::MANAGED_LABEL: names::MANAGED_VALUE }));
    }
    if !patch.annotations.is_empty() {
        let annotations: Map<String, Value> =
            patch.annotations.iter().map(|(key, value)| ((*key).to_owned(), value.as_str().into())).collect();
        metadata.insert("annotations".into(), annotations.into());
    }
    let mut whole = Map::new();
    whole.insert("metadata".into(), metadata.into());
    if !patch.conditions.is_empty() {
        let conditions: Vec<Value> = patch.conditions.iter().map(condition).collect();
        whole.insert("status".into(), json!({ "conditions": conditions }));
    }
    whole.into()
}

/// Namespace, name and body of a new Event.
pub(crate) fn event(event: &Event, sender: &Sender<'_>, now: Timestamp) -> (String, String, Value) {
    let about = about(&event.about, sender);
    let namespace = about["namespace"].as_str().unwrap_or_default().to_owned();
    let name = event_name(event, about["name"].as_str().unwrap_or_default(), about["uid"].as_str().unwrap_or_default());
    let body = json!({
        "metadata": { "name": name, "namespace": namespace },
        "involvedObject": about,
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "action": event.action,
        "message": note(event),
        "count": 1,
        "firstTimestamp": seconds(now),
        "lastTimestamp": seconds(now),
        "source": { "component": names::COMPONENT },
        "reportingComponent": names::COMPONENT,
        "reportingInstance": sender.identity,
    });
    (namespace, name, body)
}

/// The merge patch of an Event that happened again; without `count` it only brings the note and the time up to date.
pub(crate) fn event_again(event: &Event, count: Option<i64>, now: Timestamp) -> Value {
    match count {
        None => json!({ "message": note(event), "lastTimestamp": seconds(now) }),
        Some(count) => json!({ "count": count }),
    }
}

/// The merge patch that writes the Lease.
pub(crate) fn lease(lease: &LeaseRecord) -> Value {
    let duration = (lease.duration_seconds > 0).then_some(lease.duration_seconds);
    json!({
        "metadata": { "resourceVersion": lease.resource_version },
        "spec": {
            "holderIdentity": Some(&lease.holder).filter(|holder| !holder.is_empty()),
            "leaseDurationSeconds": duration,
            "acquireTime": lease.acquired.map(micros),
            "renewTime": lease.renewed.map(micros),
            "leaseTransitions": lease.transitions,
        },
    })
}

/// The merge patch that writes the one value of a ConfigMap.
pub(crate) fn store(resource_version: &str, key: &str, text: &str) -> Value {
    json!({ "metadata": { "resourceVersion": resource_version }, "data": { key: text } })
}

fn condition(condition: &ConditionPatch) -> Value {
    let mut value = json!({
        "type": condition.type_,
        "status": if condition.status { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
    });
    if let Some(at) = condition.transition {
        value["lastTransitionTime"] = seconds(at).into();
    }
    value
}

fn about(subject: &Subject, sender: &Sender<'_>) -> Value {
    let config_map = |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": sender.namespace, "name": name });
    match subject {
        Subject::Pod { key, uid } => {
            json!({ "apiVersion": "v1", "kind": "Pod", "namespace": &*key.namespace, "name": &*key.name, "uid": uid.as_str() })
        }
        Subject::Owner { namespace, api_version, kind, name, uid } => {
            json!({ "apiVersion": api_version, "kind": kind, "namespace": &**namespace, "name": name, "uid": uid })
        }
        Subject::Configuration => config_map(sender.config_map),
        Subject::Debts => config_map(names::DEBTS_CONFIG_MAP),
    }
}

/// The same for the same object, type, reason and discriminator, so that a second one finds the first.
fn event_name(event: &Event, object: &str, uid: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (uid, event.warning, event.reason, &event.discriminator).hash(&mut hasher);
    let tail = format!(".{:016x}", hasher.finish());
    let head = object.get(..NAME_CHARS - tail.len()).unwrap_or(object).trim_end_matches(['.', '-']);
    format!("{head}{tail}")
}

fn note(event: &Event) -> String {
    event.note.chars().take(NOTE_CHARS).collect()
}

/// metav1.Time: whole seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// metav1.MicroTime.
fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{PodKey, PodUid};

    const SENDER: Sender<'_> = Sender { namespace: "lockstep-system", identity: "lockstep-0", config_map: "lockstep-config" };

    fn at() -> Timestamp {
        "2026-11-29T16:53:41.123456789Z".parse().unwrap()
    }

    fn empty(uid: &str) -> PodPatch {
        PodPatch { uid: PodUid::new(uid), resource_version: None, conditions: vec![], finalizer: None, label: false, annotations: vec![] }
    }

    fn an_event(name: &str, reason: &'static str) -> Event {
        Event {
            about: Subject::Pod { key: PodKey::new("shop", name), uid: PodUid::new("u-1") },
            warning: false,
            reason,
            action: "Register",
            note: "n".repeat(2000),
            discriminator: String::new(),
        }
    }

    #[test]
    fn a_patch_names_the_uid_and_only_what_it_changes() {
        assert_eq!(pod_patch(&empty("u-1")), json!({"metadata": {"uid": "u-1"}}));
    }

    #[test]
    fn one_patch_carries_conditions_and_the_end_of_the_finalizer() {
        let gate = ConditionPatch { type_: names::GATE, status: true, reason: "Released", message: "m".into(), transition: Some(at()) };
        let claims = ConditionPatch { type_: names::CLAIMS, status: false, reason: "NoClaims", message: String::new(), transition: None };
        let annotations = vec![(names::RELEASED_ANNOTATION, "true".to_owned())];
        let patch = PodPatch { conditions: vec![gate, claims], finalizer: Some(Presence::Absent), annotations, ..empty("u-1") };
        assert_eq!(
            pod_patch(&patch),
            json!({
                "metadata": {
                    "uid": "u-1",
                    "$deleteFromPrimitiveList/finalizers": ["lockstep.dev/deregistered"],
                    "annotations": {"lockstep.dev/released": "true"},
                },
                "status": {"conditions": [
                    {"type": "lockstep.dev/registered", "status": "True", "reason": "Released", "message": "m", "lastTransitionTime": "2026-11-29T16:53:41Z"},
                    {"type": "lockstep.dev/targets", "status": "False", "reason": "NoClaims", "message": ""},
                ]},
            })
        );
    }

    #[test]
    fn adoption_adds_label_and_finalizer() {
        let patch = PodPatch { finalizer: Some(Presence::Present), label: true, ..empty("u-1") };
        let expected =
            json!({"metadata": {"uid": "u-1", "finalizers": ["lockstep.dev/deregistered"], "labels": {"lockstep.dev/managed": "true"}}});
        assert_eq!(pod_patch(&patch), expected);
    }

    #[test]
    fn an_event_is_bounded_and_its_name_tells_reasons_apart() {
        let long = "a".repeat(253);
        let (namespace, name, body) = event(&an_event(&long, "Registered"), &SENDER, at());
        assert_eq!(namespace, "shop");
        assert!(name.len() <= NAME_CHARS, "{name}");
        assert_eq!(body["message"].as_str().map(str::len), Some(NOTE_CHARS));
        assert_eq!(name, event(&an_event(&long, "Registered"), &SENDER, at()).1);
        assert_ne!(name, event(&an_event(&long, "Draining"), &SENDER, at()).1);
    }

    #[test]
    fn events_of_ours_go_to_our_namespace() {
        let ours = Event { about: Subject::Configuration, ..an_event("x", "ConfigurationInvalid") };
        let (namespace, _, body) = event(&ours, &SENDER, at());
        assert_eq!((&*namespace, &body["involvedObject"]["name"]), ("lockstep-system", &json!("lockstep-config")));
    }

    #[test]
    fn a_lease_that_nobody_holds_has_no_holder() {
        let record = LeaseRecord { resource_version: "7".into(), renewed: Some(at()), transitions: 3, ..LeaseRecord::default() };
        let body = lease(&record);
        assert_eq!(body["metadata"]["resourceVersion"], "7");
        assert_eq!(body["spec"]["holderIdentity"], Value::Null);
        assert_eq!(body["spec"]["leaseDurationSeconds"], Value::Null);
        assert_eq!(body["spec"]["renewTime"], "2026-11-29T16:53:41.123456Z");
    }
}
