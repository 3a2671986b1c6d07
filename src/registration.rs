//! What should happen to a pod's targets, gate and finalizer; the state diagram of one pod.
//!
//! Registration is the handshake with registries at both ends of a pod's life. This lane decides it and does nothing:
//! `observe` gathers what is known into one value, `plan` says what to start next, `reconcile` starts it.
//!
//! A pod in the eyes of its registries, with one binding; the words are those of conditions, Events, metrics and logs.
//! Where a line stands for a state and an event, the pod comes to rest in the state behind the arrow; where none stands, it stays.
//!
//! ```text
//! WaitingForContainers  + containers ready    -> Registering            claim written, then registered
//! WaitingForContainers  + containers gone     -> Deregistered           nothing to hand back
//! WaitingForContainers  + deleted             -> Draining
//! WaitingForContainers  + deleted by force    -> Deregistered           nothing to hand back
//! Registering           + acknowledged        -> Registered             gate True
//! Registering           + binding gone        -> NoBinding              gate True: nobody would ever satisfy it
//! Registering           + gate timeout        -> GateTimeout            only with onGateTimeout: open
//! Registering           + containers unready  -> NotServing             gate False already, drained
//! Registering           + node lost           -> NodeLost
//! Registering           + deleted             -> Draining
//! Registering           + deleted by force    -> Deregistering
//! Registering           + containers gone     -> Deregistering
//! GateTimeout           + acknowledged        -> Registered
//! GateTimeout           + binding gone        -> NoBinding
//! GateTimeout           + containers unready  -> NotServing
//! GateTimeout           + node lost           -> NodeLost
//! GateTimeout           + deleted             -> Draining
//! GateTimeout           + deleted by force    -> Deregistering
//! GateTimeout           + containers gone     -> Deregistering
//! Registered            + containers unready  -> NotServing             gate False, then drained, within the budget
//! Registered            + node lost           -> NodeLost               the same
//! Registered            + binding gone        -> NoBinding              gate and target stay
//! Registered            + deleted             -> Draining               gate stays
//! Registered            + deleted by force    -> Deregistering
//! Registered            + containers gone     -> Deregistering
//! NotServing            + containers ready    -> Registering
//! NotServing            + deleted             -> Draining
//! NotServing            + deleted by force    -> Deregistering
//! NotServing            + containers gone     -> Deregistering
//! NodeLost              + containers ready    -> Registering
//! NodeLost              + deleted             -> Draining
//! NodeLost              + deleted by force    -> Deregistering
//! NodeLost              + containers gone     -> Deregistering
//! NoBinding             + deleted             -> Draining               from the claims, as ever
//! NoBinding             + deleted by force    -> Deregistering
//! NoBinding             + containers gone     -> Deregistering
//! Draining              + deleted by force    -> Deregistering
//! Draining              + containers gone     -> Deregistering
//! Deregistering         + let go              -> Deregistered           finalizer removed
//! Deregistering         + drain timeout       -> Deregistered           only with onDrainTimeout: release; into the debts
//! Deregistering         + force timeout       -> Deregistered           only a forced deletion; into the debts
//! ```
//!
//! Invariant: pure: no async, no client, no clock, no randomness, no logging; time is an argument, and so is every grant of the budget.
//! Invariant: the diagram is what the code does; a test plays every state against every event.
//! Absent on purpose: pace, retry and batching (`reconcile`), what a registry's own state means to it (`registry`).

pub mod claim;
pub mod desire;
pub mod life;
pub mod observe;
pub mod plan;
pub mod reason;
pub mod record;

#[cfg(test)]
mod model;

pub use reason::Reason;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::model::{Event, Model};

    /// The lines of the diagram above.
    fn diagram() -> BTreeMap<(String, String), String> {
        let mut lines = BTreeMap::new();
        for line in include_str!("registration.rs").lines().filter_map(|line| line.strip_prefix("//! ")) {
            let Some((state, rest)) = line.split_once(" + ") else { continue };
            let Some((event, rest)) = rest.split_once("->") else { continue };
            let next = rest.split_whitespace().next().unwrap_or_default();
            let known = lines.insert((state.trim().to_owned(), event.trim().to_owned()), next.to_owned());
            assert_eq!(known, None, "{line} stands twice");
        }
        lines
    }

    /// The ways by which each state is reached from a new pod.
    fn ways(state: &str) -> Vec<Vec<Event>> {
        use Event::{Acknowledged, BindingGone, ContainersGone, ContainersReady, ContainersUnready, Deleted, ForcedDeletion, LetGo};
        let registered = |then: &[Event]| [&[ContainersReady, Acknowledged], then].concat();
        match state {
            "WaitingForContainers" => vec![vec![]],
            "Registering" => vec![vec![ContainersReady], registered(&[ContainersUnready, ContainersReady])],
            "GateTimeout" => vec![vec![ContainersReady, Event::GateTimeout]],
            "Registered" => vec![registered(&[])],
            "NotServing" => vec![registered(&[ContainersUnready]), vec![ContainersReady, ContainersUnready]],
            "NodeLost" => vec![registered(&[Event::NodeLost])],
            "NoBinding" => vec![registered(&[BindingGone]), vec![ContainersReady, BindingGone]],
            "Draining" => vec![registered(&[Deleted]), registered(&[BindingGone, Deleted])],
            "Deregistering" => vec![registered(&[ForcedDeletion]), registered(&[Deleted, ContainersGone])],
            "Deregistered" => vec![registered(&[ContainersGone, LetGo])],
            other => panic!("no way to {other}"),
        }
    }

    fn reach(state: &str, path: &[Event]) -> Model {
        let mut model = Model::new();
        for event in path {
            model.happen(*event);
        }
        assert_eq!(model.state(), state);
        model
    }

    #[test]
    fn the_diagram_is_what_the_code_does() {
        let diagram = diagram();
        assert!(diagram.len() > 40, "the diagram was found");
        let mut states: BTreeSet<String> = diagram.keys().map(|(state, _)| state.clone()).collect();
        states.extend(diagram.values().cloned());
        let mut used = BTreeSet::new();
        for state in &states {
            for (path, event) in ways(state).iter().flat_map(|path| Event::ALL.map(|event| (path, event))) {
                let mut model = reach(state, path);
                if !model.can_happen(event) {
                    continue;
                }
                model.happen(event);
                let line = (state.clone(), event.as_str().to_owned());
                let expected = diagram.get(&line).unwrap_or(state);
                assert_eq!(model.state(), expected, "{path:?}: {state} + {}", event.as_str());
                used.insert(line);
            }
        }
        for line in diagram.keys() {
            assert!(used.contains(line), "{line:?} cannot happen");
        }
    }
}
