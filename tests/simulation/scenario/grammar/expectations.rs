//! The part of the grammar that speaks of what must be true.
//!
//! Invariant: a field that is absent asserts nothing.
//! Absent on purpose: what the words mean (`judge`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Handles, Number, OneOrMore, Range, Span, StateWord, TargetName};

/// One thing that must be true.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Expectation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) during: Option<Range>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Handles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) registry: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<OneOrMore<GateWord>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<OneOrMore<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizer: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exists: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) managed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claims: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debts: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) targets: Option<BTreeMap<TargetName, OneOrMore<ListedWord>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nothing_else: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<BTreeMap<StateWord, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<BTreeMap<CallWord, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<BTreeMap<RequestWord, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) apart: Option<Apart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writes: Option<BTreeMap<WriteWord, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) events: Option<BTreeMap<String, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics: Option<BTreeMap<String, Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum GateWord {
    True,
    False,
    Unknown,
    #[serde(rename = "absent")]
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ListedWord {
    Absent,
    Initial,
    Active,
    Unhealthy,
    Draining,
    Unused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CallWord {
    Register,
    Drain,
    Deregister,
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RequestWord {
    Apply,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum WriteWord {
    Status,
    Finalizer,
    Adopt,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Apart {
    pub(crate) at_most: Span,
}
