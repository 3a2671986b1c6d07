//! The JSON Schema of the configuration, held against the parser: the same keys, words, defaults and required keys.
//!
//! Invariant: the checked-in schema is the one that the types give.
//! Absent on purpose: rules across several keys, which only the parser knows.

use std::collections::BTreeSet;

use lockstep::config::{parse, schema};
use rstest::rstest;
use serde_json::Value;

const HEAD: &str = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n";

fn definition(name: &str) -> Value {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    if name.is_empty() { schema } else { schema["$defs"][name].clone() }
}

/// What the parser lists behind these words of its one error about `zz`.
fn listed(text: &str, before: &str) -> BTreeSet<String> {
    let errors = parse(text).unwrap_err().errors;
    let error = errors.iter().find(|error| error.path.ends_with("zz") || error.reason.contains("zz"));
    let remedy = &error.unwrap_or_else(|| panic!("{errors:?}")).remedy;
    remedy.split_once(before).unwrap_or_else(|| panic!("{remedy}")).1.split(", ").map(str::to_owned).collect()
}

#[rstest]
#[case("", "zz: 1\n")]
#[case("Injection", "injection: {zz: 1}\n")]
#[case("Registration", "registration: {zz: 1}\n")]
#[case("Registry", "registries: [{zz: 1}]\n")]
#[case("Aws", "registries: [{name: a, aws: {zz: 1}}]\n")]
#[case("Consul", "registries: [{name: a, consul: {zz: 1}}]\n")]
#[case("Haproxy", "registries: [{name: a, haproxy: {zz: 1}}]\n")]
#[case("Tls", "registries: [{name: a, haproxy: {tls: {zz: 1}}}]\n")]
#[case("Http", "registries: [{name: a, http: {zz: 1}}]\n")]
#[case("Binding", "bindings: [{zz: 1}]\n")]
#[case("Selector", "bindings: [{podSelector: {zz: 1}}]\n")]
#[case("Expression", "bindings: [{podSelector: {matchExpressions: [{zz: 1}]}}]\n")]
#[case("Drain", "bindings: [{drain: {zz: 1}}]\n")]
#[case("HealthCheck", "bindings: [{drain: {healthCheck: {zz: 1}}}]\n")]
fn the_keys_are_the_parsers(#[case] name: &str, #[case] text: &str) {
    let properties: BTreeSet<String> = definition(name)["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(properties, listed(&format!("{HEAD}{text}"), "known here: "));
}

#[rstest]
#[case("ApiVersion", "apiVersion: zz\n")]
#[case("Kind", "kind: zz\n")]
#[case("ProbeGrace", "injection: {probeGrace: zz}\n")]
#[case("OnGateTimeout", "registration: {onGateTimeout: zz}\n")]
#[case("OnDrainTimeout", "registration: {onDrainTimeout: zz}\n")]
#[case("Mode", "bindings: [{mode: zz}]\n")]
#[case("Ack", "bindings: [{ack: zz}]\n")]
#[case("OnUnready", "bindings: [{onUnready: zz}]\n")]
#[case("OnUnbound", "bindings: [{onUnbound: zz}]\n")]
#[case("Family", "bindings: [{family: zz}]\n")]
#[case("Servers", "bindings: [{servers: zz}]\n")]
#[case("GoneWhen", "bindings: [{goneWhen: zz}]\n")]
#[case("From", "bindings: [{drain: {from: zz}}]\n")]
#[case("Operator", "bindings: [{podSelector: {matchExpressions: [{key: a, operator: zz}]}}]\n")]
fn the_words_are_the_parsers(#[case] name: &str, #[case] text: &str) {
    let words = definition(name)["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    assert_eq!(listed(text, "one of "), words);
}

#[rstest]
#[case("Injection", "injection")]
#[case("Registration", "registration")]
fn the_defaults_are_the_parsers(#[case] name: &str, #[case] key: &str) {
    let definition = definition(name);
    let defaults = definition["properties"].as_object().unwrap().iter();
    let defaults: serde_json::Map<String, Value> = defaults.map(|(key, one)| (key.clone(), one["default"].clone())).collect();
    assert!(defaults.values().all(|value| !value.is_null()));
    let spelled_out = format!("{HEAD}{key}: {}\n", Value::Object(defaults));
    assert_eq!(parse(&spelled_out), parse(HEAD));
}

#[test]
fn what_is_required_is_the_parsers() {
    let required =
        |name: &str| definition(name)["required"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect();
    let missing = |text: &str| -> BTreeSet<String> {
        let errors = parse(text).unwrap_err().errors;
        errors.iter().filter(|error| error.reason == "is missing").map(|error| error.path.rsplit('.').next().unwrap().to_owned()).collect()
    };
    let root: BTreeSet<String> = required("");
    assert_eq!(missing("injection: {}\n"), root);
    let binding: BTreeSet<String> = required("Binding");
    assert_eq!(missing(&format!("{HEAD}bindings: [{{}}]\n")), binding);
}

#[test]
fn the_checked_in_schema_is_this_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.schema.json");
    let checked_in = std::fs::read_to_string(path).unwrap();
    assert_eq!(checked_in, schema(), "write it anew: lockstep check --schema > docs/configuration.schema.json");
}
