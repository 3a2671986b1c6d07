//! The words of the open http contract, as JSON carries them.
//!
//! The driver and `lockstep registry` read and write the same types, so that they cannot drift apart; `docs/registry-http.openapi.yaml`
//! says the same for everybody else.
//!
//! Invariant: a target is named by its address, its port and the UID of its pod, in every request; an address alone names nothing.
//! Absent on purpose: paths and status codes of the server (`commands::registry`), what a caller makes of them ([`super`]).

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use serde::{Deserialize, Serialize};

use crate::target::TargetState;

/// The most changes that one request may carry.
pub const BATCH: usize = 100;

/// Share of the traffic of a target that names none.
pub const NORMAL_WEIGHT: u16 = 100;

/// Every target of a service at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetList {
    /// The service.
    pub service: String,
    /// Where the next blocking read goes on.
    pub index: u64,
    /// The targets.
    pub targets: Vec<ListedTarget>,
}

/// One target with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTarget {
    /// Address and port.
    pub address: SocketAddr,
    /// UID of the pod, or whatever else tells two owners of one address apart.
    pub uid: String,
    /// State of the target.
    #[serde(with = "state_word")]
    pub state: TargetState,
    /// Cluster that registered it; without one it is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The pod behind it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Share of the traffic; 100 is the normal one.
    #[serde(default = "normal_weight")]
    pub weight: u16,
}

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Body of a PUT of one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// What the target shall be.
    pub state: Wanted,
    /// Cluster that registered it; without one it is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The pod behind it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Share of the traffic; 100 is the normal one.
    #[serde(default = "normal_weight")]
    pub weight: u16,
}

/// What a target can be asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// It receives new traffic.
    Active,
    /// No new traffic; old connections may go on.
    Draining,
}

/// Body of a request with many changes of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeList {
    /// The changes, done in order.
    pub changes: Vec<ChangeSpec>,
}

/// One change of one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSpec {
    /// What to do.
    pub operation: OperationWord,
    /// Address and port of the target.
    pub address: SocketAddr,
    /// UID of its pod.
    pub uid: String,
    /// Cluster that registered it; without one it is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The pod behind it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Share of the traffic; 100 is the normal one.
    #[serde(default = "normal_weight")]
    pub weight: u16,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationWord {
    /// Put the target in.
    Register,
    /// Stop new traffic to it, leave it in.
    Drain,
    /// Take it out.
    Deregister,
}

/// Answer to a [`ChangeList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeResults {
    /// Index of the service after the changes.
    pub index: u64,
    /// One result for each change, in order.
    pub results: Vec<ChangeResult>,
}

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeResult {
    /// The status that the same change would have been answered with alone.
    pub status: u16,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

/// Answer to one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Index of the service after the change.
    pub index: u64,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its name.
    pub service: String,
    /// Index of its last change.
    pub index: u64,
    /// How many targets it has.
    pub targets: usize,
    /// How long traffic may still come after a drain, where somebody has said so.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_duration")]
    pub drain_delay: Option<Duration>,
}

/// Every service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceList {
    /// The services, by name.
    pub services: Vec<Service>,
}

/// Body of a PUT of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceSpec {
    /// How long traffic may still come after a drain.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_duration")]
    pub drain_delay: Option<Duration>,
}

/// How the server acknowledges: at once, late, not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Behaviour {
    /// A registered target is listed as `initial` for this long.
    #[serde(with = "duration")]
    pub register_delay: Duration,
    /// A drained target keeps its state for this long.
    #[serde(with = "duration")]
    pub drain_delay: Duration,
    /// A deregistered target is listed as `draining` for this long.
    #[serde(with = "duration")]
    pub deregister_delay: Duration,
    /// Nothing that waits is acknowledged until this is false again.
    pub hold: bool,
    /// Every change is refused in this way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuse: Option<Refuse>,
}

/// A way to refuse changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refuse {
    /// As one who may not: 403.
    Denied,
    /// As one who asks too often: 429.
    Throttled,
    /// As a server that cannot now: 503.
    Unavailable,
}

/// Why a request, or one of its changes, was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A word for programs.
    pub reason: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
    /// What they can do.
    #[serde(default)]
    pub remedy: Cow<'static, str>,
}

/// The reason with which a service that takes no more targets refuses one.
pub const SERVICE_FULL: &str = "ServiceFull";

/// Reads a duration as the contract writes it: `30s`, `1m30s`, `500ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let unsound = || format!("{text:?} is not a duration such as 30s, 1m30s or 500ms");
    let signed: jiff::SignedDuration = text.parse().map_err(|_| unsound())?;
    Duration::try_from(signed).map_err(|_| unsound())
}

/// Writes a duration as the contract reads it.
pub fn print_duration(duration: Duration) -> String {
    let signed = jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX);
    SpanPrinter::new().spacing(Spacing::None).duration_to_string(&signed)
}

fn normal_weight() -> u16 {
    NORMAL_WEIGHT
}

mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::print_duration(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        super::parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

mod optional_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::duration::serialize(duration, out),
            None => out.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<std::borrow::Cow<str>>::deserialize(from)?;
        text.map(|text| super::parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

mod state_word {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::target::TargetState;

    const STATES: [TargetState; 5] =
        [TargetState::Initial, TargetState::Active, TargetState::Unhealthy, TargetState::Draining, TargetState::Unused];

    pub(super) fn serialize<S: Serializer>(state: &TargetState, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(state.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TargetState, D::Error> {
        let word = std::borrow::Cow::<str>::deserialize(from)?;
        let known = STATES.into_iter().find(|state| state.as_str() == word);
        known.ok_or_else(|| serde::de::Error::custom(format!("{word:?} is no state of a target")))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("30s", 30_000, "30s")]
    #[case("1m30s", 90_000, "1m30s")]
    #[case("500ms", 500, "500ms")]
    #[case("0s", 0, "0s")]
    #[case("5m", 300_000, "5m")]
    fn durations_travel(#[case] text: &str, #[case] millis: u64, #[case] printed: &str) {
        let duration = parse_duration(text).unwrap();
        assert_eq!(duration, Duration::from_millis(millis));
        assert_eq!(print_duration(duration), printed);
        assert_eq!(parse_duration(printed).unwrap(), duration, "what is printed can be read");
    }

    #[rstest]
    #[case("")]
    #[case("30")]
    #[case("-3s")]
    #[case("soon")]
    fn what_is_no_duration_is_refused(#[case] text: &str) {
        assert!(parse_duration(text).unwrap_err().contains("is not a duration"));
    }

    #[test]
    fn a_listed_target_is_flat_json() {
        let text = r#"{"address":"10.1.2.3:8080","uid":"u1","state":"draining","cluster":"c","weight":5}"#;
        let target: ListedTarget = serde_json::from_str(text).unwrap();
        assert_eq!(target.state, TargetState::Draining);
        assert_eq!(target.weight, 5);
        assert_eq!(serde_json::to_string(&target).unwrap(), text);
    }
}
