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
use lockstep::names::{OWN_NAMESPACE, RECORD_ANNOTATION};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::admission_cases::reviews;
use crate::admission_checks::{check, check_answer};
use crate::admission_pods::{container, pod};

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
    fn a_broken_record_is_believed_as_far_as_the_pod_bears_it_out(mutations in mutations(), sleep in 40..50_i64, setting in settings()) {
        let honest = Record::new(vec!["all".into()], sleep, 30, vec![], vec![]).text();
        let record = String::from_utf8_lossy(&mutate(honest.as_bytes(), &mutations)).into_owned();
        let hook = json!({"preStop": {"sleep": {"seconds": 45}}});
        let pod = json!({
            "metadata": {"annotations": {RECORD_ANNOTATION: record}},
            "spec": {"terminationGracePeriodSeconds": 75, "containers": [{"name": "web", "lifecycle": hook}, {"name": "late"}]},
        });
        check(&review(&pod), &snapshot(setting)).map_err(TestCaseError::fail)?;
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
