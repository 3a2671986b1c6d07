//! The stages of one pod's life with their times, from admission to release.
//!
//! Most are kept by somebody anyway: in the object, its conditions, its containers' states. Events fill what is left, for as long as the
//! cluster keeps them (an hour by default); so nothing is written for the timeline alone.
//!
//! Invariant: pure; a time that nobody keeps is left out, never guessed.
//! Absent on purpose: what comes next (`outlook`).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::sight::{Sight, Told};
use crate::registration::Reason;
use crate::registration::life;

/// A stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum Stage {
    /// The API server took it, and admission had answered.
    Admitted,
    /// It got a node.
    Scheduled,
    /// All its containers were ready.
    ContainersReady,
    /// Its targets were claimed, and the registry told.
    Registered,
    /// The registry acknowledged, and the gate opened.
    Acknowledged,
    /// Kubernetes called it Ready.
    Ready,
    /// Somebody asked for its end.
    Deleted,
    /// Its targets got no new traffic any more.
    Drained,
    /// Its last container ended.
    ContainersGone,
    /// The registry let its targets go.
    Deregistered,
    /// `lockstep release`, or a timeout, let it go without the registry.
    Released,
}

/// A stage that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Which.
    pub(super) stage: Stage,
    /// When.
    pub(super) at: Timestamp,
    /// Who keeps the time.
    pub(super) source: &'static str,
}

impl Stage {
    /// The words for people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Scheduled => "scheduled",
            Self::ContainersReady => "containers ready",
            Self::Registered => "registered",
            Self::Acknowledged => "acknowledged",
            Self::Ready => "ready",
            Self::Deleted => "deleted",
            Self::Drained => "drained",
            Self::ContainersGone => "containers gone",
            Self::Deregistered => "deregistered",
            Self::Released => "released",
        }
    }
}

/// The stages that a pod has reached, in the order of their times; without a pod, what its Events still tell.
pub(super) fn timeline(sight: Option<&Sight>, told: &[&Told]) -> Vec<Reached> {
    let mut reached: Vec<Reached> = sight.map(from_object).unwrap_or_default();
    for (stage, reasons) in FROM_EVENTS {
        let known = reached.iter().any(|known| known.stage == *stage);
        let said = told.iter().filter(|one| one.ours == (*stage != Stage::Scheduled));
        let said = said.filter(|one| reasons.iter().any(|reason| one.reason == *reason));
        // A state that was entered again is told again: what counts is the last time at the start of a life, the first at its end.
        let at = if *stage < Stage::Deleted { said.filter_map(|one| one.last).max() } else { said.filter_map(|one| one.first).min() };
        if let Some(at) = at.filter(|_| !known) {
            reached.push(Reached { stage: *stage, at, source: "Event" });
        }
    }
    // The API keeps whole seconds: of stages in one second the order of a life counts.
    reached.sort_by_key(|one| (one.at.as_second(), one.stage));
    reached
}

/// What Events tell: the stage, and the reasons that tell of it.
const FROM_EVENTS: &[(Stage, &[&str])] = &[
    (Stage::Scheduled, &["Scheduled"]),
    (Stage::Registered, &[Reason::Registering.as_str()]),
    (Stage::Acknowledged, &[Reason::Registered.as_str()]),
    (Stage::Drained, &[Reason::Draining.as_str()]),
    (Stage::Deregistered, &[Reason::Deregistered.as_str()]),
    (Stage::Released, &[Reason::Released.as_str(), Reason::ForceTimeout.as_str()]),
];

fn from_object(sight: &Sight) -> Vec<Reached> {
    let pod = &sight.pod;
    let ready = |condition: &Option<crate::pod::Condition>| condition.as_ref().filter(|one| one.status).and_then(|one| one.since);
    let ended = life::ended(pod) || (!pod.containers.is_empty() && pod.containers.iter().all(|container| container.terminated));
    let opened = pod.gate.as_ref().is_some_and(|gate| gate.reason == Reason::Registered.as_str());
    let at = [
        (Stage::Admitted, sight.created, "creationTimestamp"),
        (Stage::Scheduled, sight.scheduled, "PodScheduled"),
        (Stage::ContainersReady, ready(&pod.containers_ready), "ContainersReady"),
        (Stage::Registered, ready(&pod.claims), crate::names::CLAIMS),
        (Stage::Acknowledged, ready(&pod.gate).filter(|_| opened), crate::names::GATE),
        (Stage::Ready, sight.ready, "Ready"),
        (Stage::Deleted, pod.deletion.and_then(|deletion| deletion.requested()), "deletionTimestamp"),
        (Stage::ContainersGone, pod.finished.filter(|_| ended), "containerStatuses"),
    ];
    at.into_iter().filter_map(|(stage, at, source)| Some(Reached { stage, at: at?, source })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = include_str!("../../reconcile/kubernetes/examples/pod-running.json");

    fn told(reason: &str, first: &str, last: &str) -> Told {
        let at = |second: &str| Some(format!("2026-11-29T17:{second}Z").parse().unwrap());
        Told {
            id: String::new(),
            uid: String::new(),
            ours: reason != "Scheduled",
            warning: false,
            reason: reason.to_owned(),
            note: String::new(),
            first: at(first),
            last: at(last),
        }
    }

    fn stages(reached: &[Reached]) -> Vec<Stage> {
        reached.iter().map(|one| one.stage).collect()
    }

    #[test]
    fn a_running_pod_tells_from_its_conditions() {
        let sight = Sight::read(RUNNING).unwrap();
        let reached = timeline(Some(&sight), &[]);
        assert_eq!(stages(&reached)[..2], [Stage::Admitted, Stage::Scheduled]);
        assert!(reached.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[test]
    fn a_whole_life_is_told_in_order() {
        use Stage::*;
        let pod = r#"{"metadata":{"name":"a","creationTimestamp":"2026-11-29T17:00:00Z","deletionTimestamp":"2026-11-29T17:10:45Z",
            "deletionGracePeriodSeconds":45},"spec":{"containers":[{"name":"web"}]},"status":{"phase":"Running","conditions":[
            {"type":"PodScheduled","status":"True","lastTransitionTime":"2026-11-29T17:00:00Z"},
            {"type":"ContainersReady","status":"False","lastTransitionTime":"2026-11-29T17:10:30Z"},
            {"type":"Ready","status":"False","lastTransitionTime":"2026-11-29T17:10:30Z"},
            {"type":"lockstep.dev/targets","status":"True","reason":"Claimed","message":"lan/web 10.0.0.1:80","lastTransitionTime":"2026-11-29T17:00:05Z"},
            {"type":"lockstep.dev/registered","status":"True","reason":"Registered","lastTransitionTime":"2026-11-29T17:00:06Z"}],
            "containerStatuses":[{"name":"web","state":{"terminated":{"finishedAt":"2026-11-29T17:10:30Z"}}}]}}"#;
        let sight = Sight::read(pod).unwrap();
        let events = [
            told("Draining", "10:00", "10:00"),
            told("Deregistered", "10:31", "10:31"),
            // Before a readiness probe failed and came back, it had been registered already.
            told("Registering", "00:01", "00:05"),
        ];
        let reached = timeline(Some(&sight), &events.each_ref());
        assert_eq!(stages(&reached), [Admitted, Scheduled, Registered, Acknowledged, Deleted, Drained, ContainersGone, Deregistered]);
        assert_eq!(reached[2].source, crate::names::CLAIMS, "the object is believed before an Event");
    }

    #[test]
    fn a_pod_that_is_gone_is_told_from_its_events() {
        let events = [
            told("Deregistered", "09:00", "09:00"),
            told("Scheduled", "00:00", "00:00"),
            told("Registering", "00:05", "00:05"),
            told("Registered", "00:06", "04:00"),
            told("Draining", "08:00", "08:00"),
            told("Unrelated", "08:30", "08:30"),
        ];
        let reached = timeline(None, &events.each_ref());
        let whole = [Stage::Scheduled, Stage::Registered, Stage::Acknowledged, Stage::Drained, Stage::Deregistered];
        assert_eq!(stages(&reached), whole);
        assert_eq!(reached[2].at, "2026-11-29T17:04:00Z".parse().unwrap(), "it was acknowledged again");
        assert_eq!(timeline(None, &[]), []);
    }

    #[test]
    fn a_gate_that_opened_without_an_acknowledgement_tells_of_none() {
        for reason in ["Released", "GateTimeout", "NoBinding"] {
            let pod = format!(
                r#"{{"status":{{"conditions":[{{"type":"lockstep.dev/registered","status":"True","reason":"{reason}",
                "lastTransitionTime":"2026-11-29T17:00:06Z"}}]}}}}"#
            );
            assert_eq!(timeline(Some(&Sight::read(&pod).unwrap()), &[]), [], "{reason}");
        }
    }
}
