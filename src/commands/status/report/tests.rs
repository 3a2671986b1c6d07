//! Which pods are shown, and in which order.
//!
//! Invariant: the checked-in schema is the one that the types give.
//! Absent on purpose: what is said of one pod (`outlook`).

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::commands::output::schema;
use crate::names;

const NOW: &str = "2026-11-29T17:30:00Z";

/// A pod whose gate says that, in a workload.
fn sight(name: &str, owner: Option<(&str, &str)>, status: &str, reason: &str, since: &str) -> Sight {
    let hash = name.rsplit('-').nth(1).unwrap_or_default();
    let owner = owner.map(|(kind, name)| json!([{"kind": kind, "name": name, "uid": "o", "controller": true}]));
    let time = format!("2026-11-29T{since}Z");
    let pod = json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "ownerReferences": owner, "finalizers": [names::FINALIZER],
            "labels": {"app": "web", "pod-template-hash": hash, names::MANAGED_LABEL: "true"},
        },
        "spec": {"nodeName": "n", "readinessGates": [{"conditionType": names::GATE}]},
        "status": {"phase": "Running", "podIP": "10.0.0.5", "conditions": [
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": time},
            {"type": names::CLAIMS, "status": "True", "message": "lan/web 10.0.0.5:8080"},
            {"type": names::GATE, "status": status, "reason": reason, "message": "", "lastTransitionTime": time},
        ]},
    });
    Sight::read(&pod.to_string()).unwrap()
}

fn ground() -> Ground {
    let text = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n\
        registries: [{name: lan, http: {url: 'http://a:1'}}, {name: other, http: {url: 'http://b:1'}}]\n\
        bindings: [{name: web, namespaces: [shop], podSelector: {matchLabels: {app: web}}, registry: lan, service: web, port: 8080, drain: {fixed: 1s}}]\n";
    let configuration = crate::config::parse(text).unwrap();
    Ground { rules: configuration.registration, bindings: configuration.bindings, nodes: None }
}

fn made(sights: &[Sight], wanted: &Wanted) -> Report {
    report(&sights.iter().collect::<Vec<_>>(), &[], &ground(), wanted, Vec::new(), NOW.parse().unwrap())
}

fn shown(report: &Report) -> Vec<String> {
    report.workloads.iter().flat_map(|one| one.pods.iter().map(move |pod| format!("{}/{} {}", one.kind, one.name, pod.name))).collect()
}

fn crowd() -> Vec<Sight> {
    let set = |hash: &str| Some(("ReplicaSet", format!("web-{hash}")));
    let of = |set: &Option<(&'static str, String)>| set.as_ref().map(|(kind, name)| (*kind, name.clone()));
    let new = |name: &str, hash: &str, status: &str, reason: &str, since: &str| {
        let owner = of(&set(hash));
        sight(name, owner.as_ref().map(|(kind, name)| (*kind, name.as_str())), status, reason, since)
    };
    vec![
        sight("alone", None, "True", "Registered", "17:00:00"),
        new("web-aaa-1", "aaa", "True", "Registered", "17:00:00"),
        new("web-bbb-1", "bbb", "False", "Registering", "17:29:00"),
        new("web-bbb-2", "bbb", "False", "Registering", "17:28:00"),
        sight("db-0", Some(("StatefulSet", "db")), "False", "PortNotFound", "17:29:30"),
    ]
}

#[test]
fn the_worst_workload_comes_first_and_in_it_the_worst_pod() {
    let report = made(&crowd(), &Wanted::default());
    assert_eq!(
        shown(&report),
        ["StatefulSet/db db-0", "Deployment/web web-bbb-2", "Deployment/web web-bbb-1", "Deployment/web web-aaa-1", "Pod/alone alone"]
    );
    assert!(report.pods().any(Pod::is_stuck));
}

#[rstest]
#[case(json!({"workload": "web"}), 3)]
#[case(json!({"workload": "deployment/web"}), 3)]
#[case(json!({"workload": "statefulset/web"}), 0)]
#[case(json!({"registry": "lan"}), 5)]
#[case(json!({"registry": "other"}), 0)]
#[case(json!({"reason": "Registering"}), 2)]
#[case(json!({"workload": "db", "reason": "Registering"}), 0)]
fn filters_narrow_it(#[case] wanted: Value, #[case] count: usize) {
    let word = |key: &str| wanted[key].as_str().map(str::to_owned);
    let wanted = Wanted {
        workload: word("workload").as_deref().map(Named::parse),
        registry: word("registry"),
        reason: word("reason").and_then(|word| Reason::parse(&word)),
    };
    assert_eq!(made(&crowd(), &wanted).pods().count(), count);
}

#[test]
fn data_carries_what_people_see() {
    let report = made(&crowd()[4..], &Wanted::default());
    let data = serde_json::to_value(&report).unwrap();
    let pod = &data["workloads"][0]["pods"][0];
    assert_eq!(pod["standing"], "stuck");
    assert_eq!(pod["bindings"], json!(["web"]));
    assert_eq!(pod["targets"][0], json!({"registry": "lan", "service": "web", "address": "10.0.0.5:8080", "observed": false}));
    assert_eq!(pod["since"], "2026-11-29T17:29:30Z");
    assert_eq!(pod["until"], "2026-11-29T17:37:30Z");
}

#[test]
fn a_life_carries_its_stages_and_warnings() {
    let pod = sight("web-aaa-1", None, "True", "Registered", "17:00:00");
    let warning = Told {
        id: String::new(),
        uid: "web-aaa-1".into(),
        ours: true,
        warning: true,
        reason: "GateTimeout".into(),
        note: "n".into(),
        first: None,
        last: Some("2026-11-29T17:10:00Z".parse().unwrap()),
    };
    let life = life(Some(&pod), &[&warning], &ground(), Vec::new(), NOW.parse().unwrap());
    let data = serde_json::to_value(&life).unwrap();
    assert_eq!(data["timeline"][0]["stage"], "containersReady");
    assert_eq!(data["timeline"][1]["afterSeconds"], 0);
    assert_eq!(data["warnings"][0]["reason"], "GateTimeout");
}

#[test]
fn the_checked_in_schema_is_this_one() {
    let checked_in = include_str!("../../../../docs/status.schema.json");
    assert_eq!(checked_in, schema::<Shown>(), "write it anew: lockstep status --schema > docs/status.schema.json");
}
