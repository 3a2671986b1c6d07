//! Metrics of pods: how many stand where, how long the handshakes take, and since when the longest wait goes on.
//!
//! Invariant: only the replica that reconciles shows pods; the others show none, so that sums are right.
//! Absent on purpose: one series a pod (conditions and Events tell of single pods).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::Catalog;
use super::reconcile::ReasonLabel;
use crate::pod::{Deletion, PodView};
use crate::registration::Reason;
use crate::registry::ChangeError;

/// Upper ends of the buckets: Kubernetes tells times in whole seconds, and an NLB takes minutes.
const SECONDS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0];

/// How many pods stand where, and how long they take.
#[derive(Debug)]
pub struct PodMetrics {
    states: Family<ReasonLabel, Gauge>,
    waits: Family<HolderLabel, Gauge>,
    acknowledgement: Histogram,
    registration: Histogram,
    drain: Histogram,
    deregistration: Histogram,
}

/// Drains that were sent together.
#[derive(Clone, Debug)]
pub struct Drains {
    /// When the end of the pod of each change was asked for, where the change drains it.
    asked: Vec<Option<jiff::Timestamp>>,
    duration: Histogram,
}

/// The handshakes that one write ends, each with the time since which it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// When the write was decided: what opens a gate was known by then.
    pub decided: jiff::Timestamp,
    /// Since when the pod waited at its gate, and why it opens.
    pub registration: Option<(jiff::Timestamp, Reason)>,
    /// When the pod's end was asked for, and why it is let go.
    pub deregistration: Option<(jiff::Timestamp, Reason)>,
}

/// What a pod waits at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// Its containers are ready, its gate is closed.
    Gate,
    /// Its containers are gone, its finalizer is still there.
    Finalizer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HolderLabel {
    held_by: &'static str,
}

impl PodMetrics {
    /// No pods, in the catalog.
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            states: catalog.add("lockstep_pods", "Managed pods, by their state", Family::default()),
            waits: catalog.add(
                "lockstep_oldest_wait_timestamp_seconds",
                "Since when the pod waits that has waited longest at its gate, or its finalizer, in seconds since 1970; missing where none does",
                Family::default(),
            ),
            acknowledgement: catalog.add(
                "lockstep_acknowledgement_duration_seconds",
                "From ContainersReady until every registry was seen to have acknowledged the pod",
                Histogram::new(SECONDS),
            ),
            registration: catalog.add(
                "lockstep_registration_duration_seconds",
                "From ContainersReady to the open gate, of pods that were acknowledged",
                Histogram::new(SECONDS),
            ),
            drain: catalog.add(
                "lockstep_drain_duration_seconds",
                "From the request to delete a pod until its registry took the drain: longer than injection.margin, and the sleep may be too short; pods whose deletion a new leader found are not counted",
                Histogram::new(SECONDS),
            ),
            deregistration: catalog.add(
                "lockstep_deregistration_duration_seconds",
                "From the request to delete a pod to its release; the sleep and the time to stop are part of it",
                Histogram::new(SECONDS),
            ),
        }
    }

    /// So many pods are in that state.
    pub fn stand(&self, reason: Reason, pods: usize) {
        let label = ReasonLabel { reason: reason.as_str() };
        self.states.get_or_create(&label).set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    /// The longest wait there began then; `None`: nobody waits.
    pub fn waits(&self, holder: Holder, since: Option<jiff::Timestamp>) {
        let label = HolderLabel { held_by: holder.as_str() };
        match since {
            Some(since) => {
                self.waits.get_or_create(&label).set(since.as_second());
            }
            None => {
                self.waits.remove(&label);
            }
        }
    }

    /// A write that ends these handshakes has been answered.
    pub fn written(&self, ends: Ends, at: jiff::Timestamp) {
        let acknowledged = ends.registration.filter(|(_, reason)| *reason == Reason::Registered);
        let timed = [
            (acknowledged, ends.decided, &self.acknowledgement),
            (acknowledged, at, &self.registration),
            (ends.deregistration, at, &self.deregistration),
        ];
        for (ended, at, duration) in timed {
            if let Some((since, _)) = ended {
                observe(duration, since, at);
            }
        }
    }

    /// Changes are sent; `asked` says of each, in their order, when the end of the pod was asked for that it is the first to drain.
    pub fn drains(&self, asked: impl Iterator<Item = Option<jiff::Timestamp>>) -> Drains {
        Drains { asked: asked.collect(), duration: self.drain.clone() }
    }

    /// This replica does not reconcile any more.
    pub fn forget(&self) {
        self.states.clear();
        self.waits.clear();
    }
}

impl Drains {
    /// The registry has answered each of the changes.
    pub fn answered(&self, answers: &[Result<(), ChangeError>], at: jiff::Timestamp) {
        for (asked, answer) in self.asked.iter().zip(answers) {
            if let (Some(asked), Ok(())) = (asked, answer) {
                observe(&self.duration, *asked, at);
            }
        }
    }
}

impl Ends {
    /// What a write to `pod` will end, with the reasons for which it opens the gate and lets the pod go, where it does. It is asked for
    /// before the write goes out: a watch may show its result before its answer is there.
    pub fn of(pod: &PodView, opened: Option<Reason>, released: Option<Reason>, decided: jiff::Timestamp) -> Self {
        let deleted = pod.deletion.filter(|_| pod.finalizer).and_then(Deletion::requested);
        Self { decided, registration: waits_at_gate(pod).zip(opened), deregistration: deleted.zip(released) }
    }
}

impl Holder {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Gate, Self::Finalizer];

    fn as_str(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Finalizer => "finalizer",
        }
    }
}

/// Since when the pod's gate alone keeps it from being Ready; `None` where it does not.
pub fn waits_at_gate(pod: &PodView) -> Option<jiff::Timestamp> {
    let ready = pod.containers_ready.as_ref().filter(|ready| ready.status && pod.gated && pod.deletion.is_none())?;
    match &pod.gate {
        Some(gate) if gate.status => None,
        Some(gate) => ready.since.max(gate.since),
        None => ready.since,
    }
}

/// Clocks of several machines are behind these times, so one may end before it began.
fn observe(duration: &Histogram, since: jiff::Timestamp, at: jiff::Timestamp) {
    duration.observe(at.duration_since(since).as_secs_f64().max(0.0));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::metrics::Metrics;
    use crate::pod::Condition;
    use crate::reconcile::kubernetes::decode;

    fn example_pod() -> PodView {
        decode::pod(include_str!("../reconcile/kubernetes/examples/pod-running.json")).unwrap()
    }

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    fn condition(status: bool, reason: &str, since: i64) -> Option<Condition> {
        Some(Condition { status, reason: reason.into(), message: String::new(), since: Some(at(since)) })
    }

    #[rstest]
    #[case(true, condition(false, "Registering", 90), Some(100))]
    #[case(true, condition(false, "Registering", 110), Some(110))]
    #[case(true, None, Some(100))]
    #[case(true, condition(true, "Registered", 110), None)]
    #[case(false, condition(false, "WaitingForContainers", 90), None)]
    fn a_wait_at_the_gate_begins_when_nothing_else_is_missing(
        #[case] ready: bool,
        #[case] gate: Option<Condition>,
        #[case] since: Option<i64>,
    ) {
        let pod = PodView { containers_ready: condition(ready, "", 100), gate, gated: true, deletion: None, ..example_pod() };
        assert_eq!(waits_at_gate(&pod), since.map(at));
    }

    #[test]
    fn handshakes_are_timed_once_each() {
        let metrics = Metrics::new();
        let waiting = PodView { containers_ready: condition(true, "", 100), gate: None, gated: true, deletion: None, ..example_pod() };
        let open = PodView { gate: condition(true, "Registered", 107), ..waiting.clone() };
        metrics.pods.written(Ends::of(&waiting, Some(Reason::Registered), None, at(106)), at(107));
        metrics.pods.written(Ends::of(&open, Some(Reason::Registered), None, at(200)), at(200));
        let deletion = Some(Deletion { at: at(330), grace_seconds: 30 });
        let ending = PodView { deletion, finalizer: true, ..open };
        metrics.pods.written(Ends::of(&ending, None, Some(Reason::Deregistered), at(340)), at(340));
        metrics.pods.written(Ends::of(&ending, None, None, at(350)), at(350));
        let text = metrics.encode();
        for (of, seconds) in [("acknowledgement", "6.0"), ("registration", "7.0")] {
            for line in [format!("sum {seconds}"), "count 1".to_owned()] {
                assert!(text.contains(&format!("lockstep_{of}_duration_seconds_{line}\n")), "{text}");
            }
        }
        assert!(text.contains("lockstep_deregistration_duration_seconds_sum 40.0\n"), "{text}");
    }

    #[test]
    fn a_drain_is_timed_once_it_was_taken() {
        let metrics = Metrics::new();
        let drains = metrics.pods.drains([Some(at(100)), None, Some(at(100))].into_iter());
        drains.answered(&[Ok(()), Ok(()), Err(ChangeError::NotFound)], at(103));
        let text = metrics.encode();
        assert!(text.contains("lockstep_drain_duration_seconds_sum 3.0\n"), "{text}");
        assert!(text.contains("lockstep_drain_duration_seconds_count 1\n"), "{text}");
    }

    #[test]
    fn a_replica_that_does_not_reconcile_shows_no_pods() {
        let metrics = Metrics::new();
        metrics.pods.stand(Reason::Registering, 3);
        metrics.pods.waits(Holder::Gate, Some(at(100)));
        assert!(metrics.encode().contains("lockstep_oldest_wait_timestamp_seconds{held_by=\"gate\"} 100\n"));
        metrics.pods.waits(Holder::Gate, None);
        assert!(!metrics.encode().contains("held_by="));
        metrics.pods.forget();
        assert!(!metrics.encode().contains("lockstep_pods{"));
    }
}
