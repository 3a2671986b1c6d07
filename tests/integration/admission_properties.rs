//! Properties of admission that hold for every pod, and for every string of bytes.
//!
//! The short, bounded sibling of the fuzz targets: the same entry points, a fixed number of runs, no tool but cargo.
//!
//! Invariant: a failing input is printed whole and shrunk, so that it can become a golden case.
//! Absent on purpose: certain answers (`admission_cases`), hours of running (`tests/fuzz`).

use std::path::Path;
use std::sync::Arc;

use lockstep::admission::record::Record;
use lockstep::admission::{Delays, Reason, SleepForm, Snapshot, answer};
use lockstep::config;
use lockstep::names::{MANAGED_LABEL, OWN_NAMESPACE, RECORD_ANNOTATION};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::admission_cases::reviews;
use crate::admission_checks::{check, check_answer};

/// Runs of one property: seconds, not minutes.
const RUNS: u32 = 2_000;

/// What differs between clusters.
const INJECTIONS: [&str; 6] = [
    "{}",
    "{probeGrace: keep, maxSleep: 40s}",
    "{preStop: none}",
    "{maxGrace: 100s}",
    "{margin: 0s, probeGrace: keep}",
    "{margin: 1500ms, maxSleep: 0s}",
];
const DRAINS: [&str; 4] =
    ["{fixed: 30s}", "{fixed: 0s}", "{fixed: 1h}", "{healthCheck: {interval: 5s, unhealthyThreshold: 3, timeout: 1s}}"];

/// `injection`, the first binding's `drain`, and the form of the sleep.
type Setting = (&'static str, &'static str, SleepForm);

fn snapshot((injection, drain, form): Setting) -> Snapshot {
    let text = format!(
        "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\ninjection: {injection}\n\
         registries: [{{name: lan, haproxy: {{addresses: [\"127.0.0.1:9999\"]}}}}]\n\
         bindings:\n- {{name: all, namespaces: [shop], registry: lan, service: all, port: 80, drain: {drain}}}\n\
         - {{name: web, namespaces: [\"*\"], podSelector: {{matchLabels: {{app: web}}}}, registry: lan, service: web, port: 80, drain: {{fixed: 45s}}}}\n"
    );
    let configuration = config::parse(&text).unwrap();
    let delays = Delays::resolve(&configuration, |_| None);
    Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from(OWN_NAMESPACE), delays, sleep: form }
}

fn settings() -> impl Strategy<Value = Setting> {
    (select(&INJECTIONS[..]), select(&DRAINS[..]), select(&[SleepForm::Native, SleepForm::Command][..]))
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

fn container() -> impl Strategy<Value = Value> {
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

fn pod() -> impl Strategy<Value = Value> {
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

fn review(pod: &Value) -> Vec<u8> {
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let request = json!({"uid": "u", "operation": "CREATE", "namespace": "shop", "resource": resource, "object": pod});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string().into_bytes()
}

/// Cuts, repeats or overwrites a piece of some bytes.
fn mutate(bytes: &[u8], mutations: &[(u8, usize, usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (kind, at, length, byte) in mutations {
        if bytes.is_empty() {
            break;
        }
        let at = at % bytes.len();
        let end = (at + length % 40 + 1).min(bytes.len());
        match kind % 5 {
            0 => bytes[at] = *byte,
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            3 => bytes.insert(at, *byte),
            _ => bytes[at] = b"{}[]\",:0-9ntf\\ "[usize::from(*byte) % 15],
        }
    }
    bytes
}

fn mutations() -> impl Strategy<Value = Vec<(u8, usize, usize, u8)>> {
    vec((any::<u8>(), any::<usize>(), any::<usize>(), any::<u8>()), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: RUNS, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_keeps_the_rules(pod in pod(), setting in settings()) {
        let checked = check(&review(&pod), &snapshot(setting)).map_err(TestCaseError::fail)?;
        prop_assert!(matches!(checked.reason, Reason::Injected | Reason::AlreadyInjected), "{:?}", checked.reason);
    }

    #[test]
    fn a_late_container_gets_its_sleep_and_the_grace_period_is_raised_once(pod in pod(), late in container(), front: bool, setting in settings()) {
        let checked = check(&review(&pod), &snapshot(setting)).map_err(TestCaseError::fail)?;
        let mut after = pod.clone();
        json_patch::patch(&mut after, &json_patch::Patch(checked.patch)).unwrap();
        let grace = after["spec"]["terminationGracePeriodSeconds"].clone();
        let slept = Record::parse(after["metadata"]["annotations"][RECORD_ANNOTATION].as_str().unwrap()).unwrap().sleep_seconds > 0;
        let containers = after["spec"]["containers"].as_array_mut().unwrap();
        let mut late = late;
        late["name"] = json!("late");
        containers.insert(if front { 0 } else { containers.len() }, late);
        let checked = check(&review(&after), &snapshot(setting)).map_err(TestCaseError::fail)?;
        json_patch::patch(&mut after, &json_patch::Patch(checked.patch)).unwrap();
        if slept {
            prop_assert_eq!(&after["spec"]["terminationGracePeriodSeconds"], &grace);
        }
    }

    #[test]
    fn a_broken_review_is_refused_or_answered_well(index: usize, mutations in mutations(), setting in settings()) {
        let corpus = reviews();
        let (_, body) = &corpus[index % corpus.len()];
        let body = mutate(body, &mutations);
        // What this test cannot read itself it cannot check, but it must not harm the program.
        match serde_json::from_slice::<Value>(&body) {
            Ok(_) if answer(&body, &snapshot(setting)).is_ok() => check_answer(&body, &snapshot(setting)).map_err(TestCaseError::fail)?,
            _ => { let _ = answer(&body, &snapshot(setting)); }
        }
    }

    #[test]
    fn bytes_are_no_harm(bytes in vec(any::<u8>(), 0..300), setting in settings()) {
        prop_assert!(answer(&bytes, &snapshot(setting)).is_err());
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = config::parse(text);
        }
    }

    #[test]
    fn a_broken_configuration_is_an_error_or_valid(index: usize, mutations in mutations()) {
        let corpus = configurations();
        let text = String::from_utf8_lossy(&mutate(corpus[index % corpus.len()].as_bytes(), &mutations)).into_owned();
        match config::parse(&text) {
            Ok(configuration) => { let _ = config::advise(&configuration); }
            Err(errors) => {
                prop_assert!(!errors.errors.is_empty());
                for error in errors.errors {
                    prop_assert!(error.line >= 1 && error.column >= 1);
                    prop_assert!(!error.to_string().chars().any(char::is_control), "{error}");
                }
            }
        }
    }
}

/// Every configuration of the golden cases.
fn configurations() -> Vec<String> {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"));
    let own = std::fs::read_dir(data).unwrap().filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("config.yaml")).ok());
    own.chain([std::fs::read_to_string(data.join("standard.yaml")).unwrap()]).collect()
}

/// Writes the corpus of the fuzz targets where it is asked for.
#[test]
#[expect(clippy::disallowed_methods, reason = "tests/fuzz/run says in the environment where the corpus belongs")]
fn admission_corpus() {
    let Some(folder) = std::env::var_os("LOCKSTEP_CORPUS").map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) else { return };
    let write = |target: &str, name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(folder.join(target)).unwrap();
        std::fs::write(folder.join(target).join(name), bytes).unwrap();
    };
    for (name, body) in reviews() {
        write("review", name, body);
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(record) = review["request"]["object"]["metadata"]["annotations"][RECORD_ANNOTATION].as_str() {
            write("record", name, record.as_bytes());
        }
    }
    for (i, text) in configurations().iter().enumerate() {
        write("configuration", &i.to_string(), text.as_bytes());
    }
}
