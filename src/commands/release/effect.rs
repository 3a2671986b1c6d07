//! What letting a pod go does to it, and what is lost by it.
//!
//! Invariant: pure; the sentence and the patch say the same.
//! Absent on purpose: which pods (`release`), registries: what is registered stays registered.

use std::fmt;

use crate::names;
use crate::pod::PodView;
use crate::reconcile::cluster::{ConditionPatch, Event, PodPatch, Presence, Subject};
use crate::registration::Reason;
use crate::registration::claim::Claim;
use crate::registration::observe;

/// What somebody must know who lets pods go.
pub(super) const LOSS: &str = "A pod that was let go is marked and never looked after again; its replacement is. What stays registered gets \
    traffic until somebody takes it out (docs/without-lockstep.md, section 5).";

/// What happens to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// Nothing of ours is on it.
    free: bool,
    /// Its gate opens, though it is closed now.
    opens: bool,
    /// It is being deleted and nothing of ours will hold it.
    goes: bool,
    /// What stays registered.
    left: Vec<Claim>,
}

impl Effect {
    /// What would happen to `pod`.
    pub(super) fn of(pod: &PodView) -> Self {
        let closed = pod.gated && !pod.is_open();
        Self { free: is_free(pod), opens: closed, goes: pod.deletion.is_some(), left: observe::claims_of(pod) }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.free {
            return f.write_str("nothing of Lockstep is on it");
        }
        f.write_str(match (self.goes, self.opens) {
            (true, _) => "its object goes, once nobody else holds it",
            (false, true) => "its gate opens although nothing was acknowledged",
            (false, false) => "Lockstep looks after it no more",
        })?;
        if self.left.is_empty() {
            return f.write_str("; nothing is registered of it");
        }
        let left: Vec<String> = self.left.iter().map(ToString::to_string).collect();
        write!(f, "; stays registered: {}", left.join(", "))
    }
}

/// The Event that tells of it.
pub(super) fn event(pod: &PodView) -> Event {
    Event {
        about: Subject::Pod { key: pod.key.clone(), uid: pod.uid.clone() },
        warning: Reason::Released.warns(),
        reason: Reason::Released.as_str(),
        action: "Release",
        note: format!("lockstep release let this pod go: {}.", Effect::of(pod)),
        discriminator: String::new(),
    }
}

/// Whether nothing of ours holds the pod: neither its start nor its end.
pub(super) fn is_free(pod: &PodView) -> bool {
    let gate_open = !pod.gated || pod.is_open();
    let ours = pod.finalizer || pod.gated || pod.labels.get(names::MANAGED_LABEL).is_some();
    !ours || (!pod.finalizer && gate_open && pod.released)
}

/// Finalizer off, gate open, and the mark that tells the reconciler to leave the pod alone.
pub(super) fn patch(pod: &PodView, now: jiff::Timestamp) -> PodPatch {
    let gate = ConditionPatch {
        type_: names::GATE,
        status: true,
        reason: Reason::Released.as_str(),
        message: "lockstep release let this pod go; its targets stay as they are".into(),
        transition: (!pod.is_open()).then_some(now),
    };
    PodPatch {
        uid: pod.uid.clone(),
        resource_version: None,
        conditions: if pod.gated { vec![gate] } else { Vec::new() },
        finalizer: Some(Presence::Absent),
        label: false,
        annotations: vec![(names::RELEASED_ANNOTATION, names::RELEASED_VALUE.to_owned())],
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::reconcile::kubernetes::decode;

    const RUNNING: &str = include_str!("../../reconcile/kubernetes/examples/pod-running.json");

    fn pod(change: impl FnOnce(&mut Value)) -> PodView {
        let mut value = serde_json::from_str(RUNNING).unwrap();
        change(&mut value);
        decode::pod(&value.to_string()).unwrap()
    }

    fn with_gate(pod: &mut Value, status: &str) {
        pod["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": names::GATE, "status": status, "reason": "R"}));
    }

    fn strip(pod: &mut Value) {
        pod["metadata"]["finalizers"] = Value::Null;
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["spec"]["readinessGates"] = Value::Null;
    }

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({"finalizers": [names::FINALIZER]}), false)]
    #[case(json!({"labels": {names::MANAGED_LABEL: "true"}}), false)]
    #[case(json!({"finalizers": ["example.org/other"], "labels": {"app": "web"}}), true)]
    fn what_is_held_by_us(#[case] metadata: Value, #[case] free: bool) {
        let stripped = pod(|pod| {
            strip(pod);
            pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        });
        assert_eq!(is_free(&stripped), free);
        assert!(!is_free(&pod(|_| {})), "gate, finalizer and label are on it");
    }

    #[test]
    fn a_pod_is_free_once_the_patch_is_in() {
        let held = pod(|_| {});
        let made = patch(&held, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(made.finalizer, Some(Presence::Absent));
        let freed = pod(|pod| {
            pod["metadata"]["finalizers"] = json!([]);
            pod["metadata"]["annotations"] = json!({ made.annotations[0].0: made.annotations[0].1 });
            with_gate(pod, if made.conditions[0].status { "True" } else { "False" });
        });
        assert!(is_free(&freed));
    }

    #[test]
    fn the_transition_moves_only_with_the_status() {
        let transition = |pod: &PodView| patch(pod, jiff::Timestamp::UNIX_EPOCH).conditions[0].transition;
        assert_eq!(transition(&pod(|pod| with_gate(pod, "True"))), None);
        assert!(transition(&pod(|pod| with_gate(pod, "False"))).is_some());
        assert!(transition(&pod(|_| {})).is_some());
    }

    #[test]
    fn a_pod_without_the_gate_gets_no_condition() {
        assert!(patch(&pod(strip), jiff::Timestamp::UNIX_EPOCH).conditions.is_empty());
    }

    #[rstest]
    #[case::held("False", None, "its gate opens although nothing was acknowledged; stays registered: lan/web 10.0.0.5:8080")]
    #[case::serving("True", None, "Lockstep looks after it no more; stays registered: lan/web 10.0.0.5:8080")]
    #[case::ending(
        "True",
        Some("2026-11-29T17:00:00Z"),
        "its object goes, once nobody else holds it; stays registered: lan/web 10.0.0.5:8080"
    )]
    fn what_is_lost_is_said(#[case] gate: &str, #[case] deleted: Option<&str>, #[case] said: &str) {
        let pod = pod(|pod| {
            with_gate(pod, gate);
            let claims = json!({"type": names::CLAIMS, "status": "True", "reason": "Claimed", "message": "lan/web 10.0.0.5:8080"});
            pod["status"]["conditions"].as_array_mut().unwrap().push(claims);
            pod["metadata"]["deletionTimestamp"] = json!(deleted);
        });
        assert_eq!(Effect::of(&pod).to_string(), said);
        assert!(event(&pod).note.contains(said));
    }

    #[test]
    fn a_free_pod_loses_nothing() {
        assert_eq!(Effect::of(&pod(strip)).to_string(), "nothing of Lockstep is on it");
    }
}
