//! What a state of target health, with its reason code, means for a target.
//!
//! Source: the API reference of `TargetHealth` (version 2015-12-01).
//!
//! Invariant: a state that is not known counts as one in which the target gets no traffic.
//! Absent on purpose: what follows for a pod (`registration`).

use crate::target::TargetState;

/// The state of a target, or `None` where it is not registered. `accepted` are those that the binding counts as active.
pub(super) fn state(state: &str, reason: &str, accepted: &[String]) -> Option<TargetState> {
    if (state, reason) == ("unused", "Target.NotRegistered") {
        return None;
    }
    let accepts = |one: &String| one.split_once('/') == Some((state, reason));
    Some(match state {
        "healthy" => TargetState::Active,
        "draining" => TargetState::Draining,
        _ if accepted.iter().any(accepts) => TargetState::Active,
        "unhealthy" | "unhealthy.draining" => TargetState::Unhealthy,
        // The group has no listener, the zone is off, or the address cannot be used.
        "unused" => TargetState::Unused,
        // `initial` and `unavailable`: nothing is known of its health yet.
        _ => TargetState::Initial,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("initial", "Elb.RegistrationInProgress", Some(TargetState::Initial))]
    #[case("initial", "Elb.InitialHealthChecking", Some(TargetState::Initial))]
    #[case("healthy", "", Some(TargetState::Active))]
    #[case("unhealthy", "Target.Timeout", Some(TargetState::Unhealthy))]
    #[case("unhealthy.draining", "Target.FailedHealthChecks", Some(TargetState::Unhealthy))]
    #[case("draining", "Target.DeregistrationInProgress", Some(TargetState::Draining))]
    #[case("unused", "Target.NotRegistered", None)]
    #[case("unused", "Target.NotInUse", Some(TargetState::Unused))]
    #[case("unused", "Target.IpUnusable", Some(TargetState::Unused))]
    #[case("unavailable", "Elb.InternalError", Some(TargetState::Initial))]
    #[case("a-new-one", "", Some(TargetState::Initial))]
    fn states(#[case] word: &str, #[case] reason: &str, #[case] meaning: Option<TargetState>) {
        assert_eq!(state(word, reason, &[]), meaning);
    }

    #[rstest]
    #[case("unused", "Target.NotInUse", Some(TargetState::Active))]
    #[case("unused", "Target.IpUnusable", Some(TargetState::Unused))]
    #[case("initial", "Target.NotInUse", Some(TargetState::Initial))]
    #[case("unused", "Target.NotRegistered", None)]
    #[case("draining", "Target.DeregistrationInProgress", Some(TargetState::Draining))]
    fn an_accepted_state_counts_as_active(#[case] word: &str, #[case] reason: &str, #[case] meaning: Option<TargetState>) {
        let accepted = ["unused/Target.NotInUse", "unused/Target.NotRegistered", "draining/Target.DeregistrationInProgress"];
        assert_eq!(state(word, reason, &accepted.map(str::to_owned)), meaning);
    }
}
