//! Pods made up at random: what decides about a pod in every shape, and anything in the places that nobody knows.
//!
//! Invariant: what is made up is legible: the right types where they decide, save in fields of the future.
//! Absent on purpose: what must hold of them (`admission_properties` without a cluster, a story of the cluster tests with one).

use lockstep::admission::record::Record;
use lockstep::names::{MANAGED_LABEL, RECORD_ANNOTATION};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Any pod.
pub(crate) fn pod() -> impl Strategy<Value = Value> {
    let gates = vec(select(vec!["example.com/ready", "lockstep.dev/registered"]), 0..3)
        .prop_map(|types| types.into_iter().map(|one| json!({"conditionType": one})).collect::<Value>());
    let grace = prop_oneof![4 => -3..200_i64, 1 => any::<i64>()].prop_map(Value::from);
    let windows = Just(json!({"name": "windows"}));
    let spec = (vec(container(), 0..4), vec(container(), 0..2), maybe(gates), maybe(grace), maybe(windows), anything()).prop_map(
        |(mut containers, inits, gates, grace, os, foreign)| {
            for (i, container) in containers.iter_mut().enumerate() {
                container["name"] = json!(format!("c{i}"));
            }
            let fields = vec![
                ("containers", Some(Value::from(containers))),
                ("initContainers", Some(Value::from(inits))),
                ("readinessGates", gates),
                ("terminationGracePeriodSeconds", grace),
                ("os", os),
            ];
            object(fields, foreign)
        },
    );
    (maybe(metadata()), spec, anything())
        .prop_map(|(metadata, spec, foreign)| object(vec![("metadata", metadata), ("spec", Some(spec))], foreign))
}

/// Anything that some field of the future may hold.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[ -~äß\u{2028}\\n\"]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![vec(inner.clone(), 0..4).prop_map(Value::from), btree_map("[a-z~/]{1,6}", inner, 0..4).prop_map(|map| json!(map))]
    })
}

/// A value, null, or nothing: `None` leaves the key out.
fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![2 => value.prop_map(Some), 1 => Just(Some(Value::Null)), 2 => Just(None)]
}

fn object(fields: Vec<(&'static str, Option<Value>)>, foreign: Value) -> Value {
    let mut map: Map<String, Value> = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    map.insert("foreign".to_owned(), foreign);
    Value::Object(map)
}

fn hook() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"exec": null})),
        (0..80_i64).prop_map(|seconds| json!({"sleep": {"seconds": seconds}})),
        (0..80_u32).prop_map(|seconds| json!({"exec": {"command": ["sleep", seconds.to_string()]}})),
        (0..80_u32).prop_map(|seconds| json!({"exec": {"command": ["/bin/sh", "-c", format!("sleep {seconds}")]}})),
        Just(json!({"httpGet": {"path": "/drain", "port": 80}})),
        anything().prop_map(|value| json!({"ofTheFuture": value})),
    ]
}

fn probe() -> impl Strategy<Value = Value> {
    (maybe((1..100_i64).prop_map(Value::from)), anything())
        .prop_map(|(grace, foreign)| object(vec![("terminationGracePeriodSeconds", grace)], foreign))
}

/// Any container, in the places that decide.
pub(crate) fn container() -> impl Strategy<Value = Value> {
    let lifecycle = (maybe(hook()), maybe(anything())).prop_map(|(pre_stop, post_start)| {
        let fields = [("preStop", pre_stop), ("postStart", post_start)].into_iter();
        Value::Object(fields.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
    });
    (maybe(lifecycle), maybe(probe()), maybe(probe()), maybe(probe()), anything()).prop_map(
        |(lifecycle, liveness, startup, readiness, foreign)| {
            object(
                vec![("lifecycle", lifecycle), ("livenessProbe", liveness), ("startupProbe", startup), ("readinessProbe", readiness)],
                foreign,
            )
        },
    )
}

fn record() -> impl Strategy<Value = Value> {
    let honest = (0..80_i64, -1..100_i64).prop_map(|(sleep, grace)| Record::new(vec!["all".into()], sleep, grace, vec![], vec![]).text());
    prop_oneof![honest.prop_map(Value::from), "[ -~]{0,20}".prop_map(Value::from), Just(json!("{}"))]
}

fn metadata() -> impl Strategy<Value = Value> {
    let labels = (maybe(select(vec!["true", "false", ""]).prop_map(Value::from)), maybe(Just(json!("web")))).prop_map(|(managed, app)| {
        let fields = [(MANAGED_LABEL, managed), ("app", app)].into_iter();
        Value::Object(fields.filter_map(|(key, value)| Some((key.to_owned(), value.filter(|value| !value.is_null())?))).collect())
    });
    let annotations = maybe(record()).prop_map(|record| {
        let record = record.filter(|record| !record.is_null());
        let notes = ("notes/a~b".to_owned(), json!("x"));
        Value::Object(record.map(|record| (RECORD_ANNOTATION.to_owned(), record)).into_iter().chain([notes]).collect())
    });
    let finalizers = vec(select(vec!["example.com/audit", "lockstep.dev/deregistered"]), 0..3).prop_map(Value::from);
    (maybe(labels), maybe(annotations), maybe(finalizers), anything()).prop_map(|(labels, annotations, finalizers, foreign)| {
        object(vec![("labels", labels), ("annotations", annotations), ("finalizers", finalizers)], foreign)
    })
}
