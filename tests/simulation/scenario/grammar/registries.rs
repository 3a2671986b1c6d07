//! The part of the grammar that speaks of registries: how they behave, and what a step does to them.
//!
//! Invariant: a field that is absent says nothing; defaults are the world's.
//! Absent on purpose: what the words mean (`steps`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::given;
use super::values::{Span, SpanOrNever};
use crate::world::registry::Answer;

/// How a registry behaves, or what a step changes of it and does at once; absent fields stay.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct RegistrySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drains: Option<Drains>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<Keys>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) marks: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_when: Option<GoneWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) active_after: Option<SpanOrNever>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) active_as: Option<ActiveAs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) draining_after: Option<SpanOrNever>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_after: Option<SpanOrNever>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answers: Option<AnswersSpec>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) capacity: Option<Option<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) list_lag: Option<Span>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) duplicates: Option<Option<Span>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) holds: Vec<Preloaded>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) adds: Vec<Preloaded>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loses: Option<Loses>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) sets: BTreeMap<TargetName, StateWord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Drains {
    Explicitly,
    ByDeregistering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Keys {
    Exact,
    Uid,
    Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum GoneWord {
    Draining,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ActiveAs {
    Active,
    Unused,
}

/// One word for all operations, or a word for some.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum AnswersSpec {
    All(Answer),
    Each(AnswersEach),
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct AnswersEach {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) register: Option<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) drain: Option<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deregister: Option<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list: Option<Answer>,
}

/// A target that is there unasked.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Preloaded {
    pub(crate) address: IpAddr,
    #[serde(default = "http_port")]
    pub(crate) port: u16,
    #[serde(default = "web")]
    pub(crate) service: String,
    #[serde(default)]
    pub(crate) state: StateWord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StateWord {
    Initial,
    #[default]
    Active,
    Unhealthy,
    Draining,
    Unused,
}

/// Everything, or these targets.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Loses {
    All(AllWord),
    These(Vec<TargetName>),
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AllWord {
    All,
}

/// `ADDRESS:PORT`, or the handle of the pod that owns the targets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetName {
    Address(SocketAddr),
    Handle(String),
}

fn http_port() -> u16 {
    8080
}

fn web() -> String {
    "web".to_owned()
}
