//! Events: what was done and what a person should look at, for `kubectl describe`.
//!
//! Invariant: at most [`IN_FLIGHT`] are being written; what cannot be written is dropped, since nothing may wait for it.
//! Invariant: while pods are being written at most [`BESIDE_WRITES`] are: a gate is waited for, an Event is not.
//! Absent on purpose: which things are told (`registration`, `debts`, `leading`).

use std::collections::{BTreeSet, VecDeque};

use super::Drivers;
use super::actor::Actor;
use super::clock::Clock;
use super::cluster::{Cluster, Event, Subject};
use super::input::Input;
use crate::admission::Finding;
use crate::pod::PodView;
use crate::registration::Reason;
use crate::registration::plan::Notice;
use crate::target::PodUid;
use crate::text::one_line;

/// Events that are written at a time.
const IN_FLIGHT: usize = 16;
/// The same while pods are written: an API server that is busy with a storm should open gates first.
const BESIDE_WRITES: usize = 2;
/// Events that may wait: four for each pod of a large storm.
const WAITING: usize = 4096;
/// The longest note that the API takes.
const NOTE_BYTES: usize = 1000;

/// The most findings that one leader tells: more owners than that are not read by anybody.
const FINDINGS: usize = 10_000;

/// Events that are to be written.
#[derive(Debug, Default)]
pub(super) struct Teller {
    waiting: VecDeque<Event>,
    writing: usize,
    /// UIDs of owners, with the findings that were told of them.
    found: BTreeSet<(String, Finding)>,
}

impl Teller {
    /// Puts an Event in the queue.
    pub(super) fn tell(&mut self, about: Subject, reason: Reason, note: String, discriminator: String) {
        if self.waiting.len() >= WAITING {
            // News are worth more than what nobody has read yet.
            self.waiting.pop_front();
        }
        let event =
            Event { about, warning: reason.warns(), reason: reason.as_str(), action: action(reason), note: bounded(note), discriminator };
        self.waiting.push_back(event);
    }

    /// Puts an Event about a finding in the queue, once for each owner and code.
    fn tell_finding(&mut self, pod: &PodView, finding: Finding) {
        let (owner, about) = owner(pod);
        if self.waiting.len() >= WAITING || self.found.len() >= FINDINGS || !self.found.insert((owner, finding)) {
            return;
        }
        let note = format!("{}; {}", finding.meaning(), finding.remedy());
        let event =
            Event { about, warning: true, reason: finding.as_str(), action: "Inject", note: bounded(note), discriminator: String::new() };
        self.waiting.push_back(event);
    }
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// Puts an Event about a pod in the queue.
    pub(super) fn notice(&mut self, uid: &PodUid, notice: Notice) {
        let Some(entry) = self.pods.get(uid) else { return };
        let about = Subject::Pod { key: entry.view.key.clone(), uid: uid.clone() };
        if let Some(term) = &mut self.term {
            term.events.tell(about, notice.reason, notice.note, String::new());
        }
    }

    /// Tells what admission found on a pod, to whoever looks at its owner.
    pub(super) fn tell_findings(&mut self, uid: &PodUid) {
        let (Some(entry), Some(term)) = (self.pods.get(uid), &mut self.term) else { return };
        for finding in entry.view.record.findings.iter().filter_map(|code| Finding::of_code(code)) {
            term.events.tell_finding(&entry.view, finding);
        }
    }

    /// Writes what waits, as far as it may.
    pub(super) fn tell_events(&mut self) {
        while let Some(event) = self.next_event() {
            let (cluster, clock, tenure) = (self.cluster.clone(), self.clock.clone(), self.tenure.clone());
            self.post(async move {
                if tenure.holds(clock.now())
                    && let Err(error) = super::calls::api_limited(&clock, cluster.event(&event)).await
                {
                    tracing::debug!(reason = event.reason, error = %error, "an event cannot be written");
                }
                Input::Told
            });
        }
    }

    /// An Event was written, or could not be.
    pub(super) fn told(&mut self) {
        if let Some(term) = &mut self.term {
            term.events.writing = term.events.writing.saturating_sub(1);
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        let term = self.term.as_mut()?;
        let events = &mut term.events;
        if events.writing >= if term.writes > 0 { BESIDE_WRITES } else { IN_FLIGHT } {
            return None;
        }
        let event = events.waiting.pop_front()?;
        events.writing += 1;
        Some(event)
    }
}

/// Who is told of a pod's findings: its controller, or the pod where it has none.
fn owner(pod: &PodView) -> (String, Subject) {
    match &pod.controller {
        Some(owner) => {
            let about = Subject::Owner {
                namespace: pod.key.namespace.clone(),
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            };
            (owner.uid.clone(), about)
        }
        None => (pod.uid.as_str().to_owned(), Subject::Pod { key: pod.key.clone(), uid: pod.uid.clone() }),
    }
}

/// What the program did or wants, as an Event's action.
fn action(reason: Reason) -> &'static str {
    match reason {
        Reason::Registering | Reason::Registered | Reason::GateTimeout => "Register",
        Reason::Draining | Reason::NotServing | Reason::NodeLost | Reason::GraceOverridden => "Drain",
        Reason::Deregistering | Reason::Deregistered | Reason::DrainTimeout | Reason::ForceTimeout | Reason::DebtDropped => "Deregister",
        Reason::Adopted => "Adopt",
        _ => "Reconcile",
    }
}

/// Clean and short enough for an Event.
fn bounded(note: String) -> String {
    let mut note: String = one_line(&note).collect();
    if note.len() > NOTE_BYTES {
        let end = (0..=NOTE_BYTES - 3).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
        note.truncate(end);
        note.push_str("...");
    }
    note
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::reconcile::kubernetes::decode;

    const RUNNING: &str = include_str!("kubernetes/examples/pod-running.json");

    fn pod(uid: &str, controller: Option<&str>) -> PodView {
        let mut pod: Value = serde_json::from_str(RUNNING).unwrap();
        pod["metadata"]["uid"] = json!(uid);
        let owner = |uid| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true}]);
        pod["metadata"]["ownerReferences"] = controller.map_or(Value::Null, owner);
        decode::pod(&pod.to_string()).unwrap()
    }

    #[test]
    fn a_finding_is_told_once_for_each_owner_and_code() {
        let mut teller = Teller::default();
        for (uid, controller) in [("a", Some("set")), ("b", Some("set")), ("c", None), ("d", Some("other"))] {
            teller.tell_finding(&pod(uid, controller), Finding::NoReadinessProbe);
        }
        teller.tell_finding(&pod("a", Some("set")), Finding::GraceZero);
        let told: Vec<_> = teller.waiting.iter().map(|event| (event.reason, matches!(event.about, Subject::Owner { .. }))).collect();
        assert_eq!(told, [("NoReadinessProbe", true), ("NoReadinessProbe", false), ("NoReadinessProbe", true), ("GraceZero", true)]);
        assert!(teller.waiting.iter().all(|event| event.warning && event.note.contains("; ")), "each says what to do");
    }
}
