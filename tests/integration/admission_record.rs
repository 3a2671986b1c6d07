//! What the record on a pod says of the answers that its sleep rests on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lockstep::admission::offline::{Template, template};
use lockstep::admission::record::Record;
use lockstep::admission::{Delays, SleepForm, Snapshot};
use lockstep::config;
use lockstep::names::{OWN_NAMESPACE, RECORD_ANNOTATION};
use rstest::rstest;
use serde_json::{Value, json};

/// Two bindings whose registry says how long it drains, and one that says so itself.
fn snapshot(answers: &BTreeMap<&str, (u64, &str)>) -> Snapshot {
    let binding = |name: &str, drain: &str| {
        format!(
            "- {{name: {name}, namespaces: [shop], podSelector: {{matchLabels: {{app: web}}}}, registry: first, service: {name}, port: 80, drain: {drain}}}\n"
        )
    };
    let text = [
        "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n",
        "registries: [{name: first, http: {url: 'http://first.example'}}]\nbindings:\n",
        &binding("a", "{from: registry, fallback: 60s}"),
        &binding("b", "{from: registry, fallback: 60s}"),
        &binding("c", "{fixed: 5s}"),
    ];
    let configuration = config::parse(&text.concat()).unwrap();
    let delays = Delays::resolve(&configuration, |binding| Some(Duration::from_secs(answers.get(&*binding.name)?.0)))
        .told_at(&configuration, |binding| Some(answers.get(&*binding.name)?.1.parse::<Timestamp>().unwrap()));
    Snapshot { configuration: Arc::new(configuration), own_namespace: OWN_NAMESPACE.into(), delays, sleep: SleepForm::Native }
}

fn admit(pod: &Value, answers: &BTreeMap<&str, (u64, &str)>) -> Value {
    let about = Template { namespace: "shop", at: "", job: false };
    let explained = template(pod.to_string().as_bytes(), about, &snapshot(answers)).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&explained.patch).unwrap();
    let mut after = pod.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    after
}

fn record(pod: &Value) -> Record {
    Record::parse(pod["metadata"]["annotations"][RECORD_ANNOTATION].as_str().unwrap()).unwrap()
}

fn pod() -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}})
}

#[rstest]
#[case::oldest(&[("a", (30, "2026-11-30T04:00:00.9Z")), ("b", (40, "2026-11-30T03:57:00Z"))], Some("2026-11-30T03:57:00Z"), &[])]
#[case::without_fractions(&[("a", (30, "2026-11-30T04:00:00.9Z"))], Some("2026-11-30T04:00:00Z"), &["b"])]
#[case::none(&[], None, &["a", "b"])]
fn a_pod_says_when_its_registries_answered(
    #[case] answers: &[(&str, (u64, &str))],
    #[case] answered: Option<&str>,
    #[case] fallback: &[&str],
) {
    let record = record(&admit(&pod(), &answers.iter().copied().collect()));
    assert_eq!((record.answered_at.as_deref(), record.fallback), (answered, fallback.iter().map(ToString::to_string).collect()));
}

#[test]
fn a_second_pass_keeps_the_time_as_long_as_the_sleep_is_the_same() {
    let both = |delay, at| BTreeMap::from([("a", (delay, at)), ("b", (delay, at))]);
    let first = admit(&pod(), &both(30, "2026-11-30T04:00:00Z"));
    assert_eq!(admit(&first, &both(30, "2026-11-30T04:05:00Z")), first, "nothing has changed for the pod");
    let longer = record(&admit(&first, &both(90, "2026-11-30T04:05:00Z")));
    assert_eq!(longer.answered_at.as_deref(), Some("2026-11-30T04:05:00Z"));
}

#[test]
fn a_pod_that_is_given_no_sleep_rests_on_no_answer() {
    let mut own = pod();
    own["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["/bin/drain"]}}});
    let record = record(&admit(&own, &BTreeMap::from([("a", (30, "2026-11-30T04:00:00Z"))])));
    assert_eq!((record.sleep_seconds, record.answered_at, record.fallback), (0, None, Vec::new()));
}
