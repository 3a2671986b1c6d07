//! The grammar of a scenario file.
//!
//! Types say what a schema says, `check` what it cannot; anything unknown is an error.
//!
//! Invariant: a [`Scenario`] that exists names only pods, replicas and registries that it has.
//! Absent on purpose: what the words mean (`steps`, `judge`).

mod expectations;
mod registries;
mod values;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use expectations::{CallWord, Expectation, GateWord, ListedWord, RequestWord, WriteWord};
pub(crate) use registries::{
    ActiveAs, AllWord, AnswersEach, AnswersSpec, Drains, GoneWord, Keys, Loses, Preloaded, RegistrySpec, StateWord, TargetName,
};
pub(crate) use values::{Bounds, Handles, Number, OneOrMore, Range, Shift, Span, SpanOrNever, written};

use crate::world::pods::ContainerState;

/// One file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) covers: Vec<String>,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) replicas: usize,
    #[serde(default, skip_serializing_if = "ConfigSpec::is_default")]
    pub(crate) config: ConfigSpec,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) registries: BTreeMap<String, RegistrySpec>,
    pub(crate) steps: Vec<Step>,
    pub(crate) expect: Vec<Expectation>,
}

/// Top-level keys of the configuration; absent ones come from the default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ConfigSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) registration: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) registries: Option<Vec<Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bindings: Option<Vec<Value>>,
}

/// One step: a time and one action.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) at: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) create: Option<Create>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) update: Option<Update>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delete: Option<Delete>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) final_delete: Option<OnPods>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vanish: Option<OnPods>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<NodeStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<NamespaceStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ConfigSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) registry: Option<RegistrySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replica: Option<ReplicaStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cut: Option<Cut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watch: Option<WatchStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api: Option<ApiStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jump: Option<Shift>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Create {
    pub(crate) pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admitted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizer: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) managed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gates: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) finalizers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grace: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sleep: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restart_policy: Option<RestartPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owned_by: Option<OwnerKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirror: Option<bool>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) containers: BTreeMap<String, ContainerSpec>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) ip: Option<Option<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ips: Option<Vec<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) containers_ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<PhaseWord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) conditions: BTreeMap<String, ConditionWord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum OwnerKind {
    Job,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum PhaseWord {
    Pending,
    Running,
    Succeeded,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum ConditionWord {
    True,
    False,
    Unknown,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct ContainerSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restartable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<ContainerState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ports: Option<BTreeMap<String, u16>>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Update {
    pub(crate) pod: Handles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizer: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) containers: BTreeMap<String, ContainerState>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) ip: Option<Option<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ips: Option<Vec<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) containers_ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<PhaseWord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) conditions: BTreeMap<String, ConditionWord>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    pub(crate) pod: Handles,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grace: Option<Span>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnPods {
    pub(crate) pod: Handles,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeStep {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gone: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) taint: Option<Taint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Taint {
    Unreachable,
    OutOfService,
    None,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamespaceStep {
    pub(crate) name: String,
    pub(crate) inject: Option<Inject>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Inject {
    Enabled,
    Strict,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ReplicaStep {
    pub(crate) name: String,
    #[serde(default, rename = "do", skip_serializing_if = "Option::is_none")]
    pub(crate) what: Option<ReplicaDoes>,
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) lasts: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) starts_after: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Sent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Sent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Handles>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ReplicaDoes {
    Crash,
    Stop,
    Start,
    Pause,
}

/// What a trap waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Sent {
    Register,
    Drain,
    Deregister,
    Status,
    Finalizer,
    Adopt,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cut {
    pub(crate) replica: String,
    #[serde(rename = "for")]
    pub(crate) lasts: Span,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchStep {
    #[serde(rename = "do")]
    pub(crate) what: WatchDoes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<Span>,
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) lasts: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum WatchDoes {
    Drop,
    Delay,
    Silence,
    Expire,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApiStep {
    pub(crate) to: Sent,
    pub(crate) answer: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Handles>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<u64>,
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) lasts: Option<Span>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) applied: bool,
}

impl Scenario {
    /// Reads a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let scenario: Self = serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
        super::steps::check(&scenario)?;
        Ok(scenario)
    }

    /// Every time that stands in the file.
    pub(crate) fn times(&self) -> Vec<Duration> {
        let mut times: Vec<Duration> = self.steps.iter().map(|step| step.at.0).collect();
        for one in &self.expect {
            times.extend([one.at, one.by, one.since].into_iter().flatten().map(|time| time.0));
            times.extend(one.during.into_iter().flat_map(|range| [range.0, range.1]));
        }
        times.sort_unstable();
        times.dedup();
        times
    }
}

impl ConfigSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A field that is there, `null` included.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
