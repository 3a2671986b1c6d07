//! What people see, as they see it.
//!
//! Invariant: a whole table and a whole life stand here, letter for letter.
//! Absent on purpose: every kind of pod (`outlook`).

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::commands::status::outlook::Ground;
use crate::commands::status::report::{self, Wanted};
use crate::commands::status::sight::Sight;
use crate::names;

fn sight(name: &str, status: &str, reason: &str, message: &str) -> Sight {
    let pod = json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "finalizers": [names::FINALIZER], "creationTimestamp": "2026-11-29T17:00:00Z",
            "ownerReferences": [{"kind": "StatefulSet", "name": "web", "uid": "o", "controller": true}],
            "labels": {"app": "web", names::MANAGED_LABEL: "true"},
            "annotations": {names::RECORD_ANNOTATION:
                r#"{"version":1,"bindings":["web"],"sleepSeconds":45,"graceBefore":30,"findings":["NoReadinessProbe"]}"#},
        },
        "spec": {"nodeName": "n", "readinessGates": [{"conditionType": names::GATE}]},
        "status": {"phase": "Running", "podIP": "10.0.0.5", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T17:00:00Z"},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-11-29T17:00:07Z"},
            {"type": names::CLAIMS, "status": "True", "message": "lan/web 10.0.0.5:8080", "lastTransitionTime": "2026-11-29T17:00:07Z"},
            {"type": names::GATE, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-29T17:00:09Z"},
        ]},
    });
    Sight::read(&pod.to_string()).unwrap()
}

fn look(colours: bool) -> Look {
    Look { colours, cut: true, now: "2026-11-29T17:03:09Z".parse().unwrap() }
}

fn held() -> Sight {
    sight("web-1", "False", "Registering", "Waiting for lan/web 10.0.0.5:8080 (the registry cannot be reached).")
}

#[test]
fn a_table_shows_the_worst_first() {
    let (held, well) = (held(), sight("web-0", "True", "Registered", "Every registry has acknowledged the pod."));
    let notes = vec!["no replica of Lockstep reconciles".to_owned()];
    let report = report::report(&[&well, &held], &[], &Ground::default(), &Wanted::default(), notes, look(false).now);
    insta::assert_snapshot!(table(&report, look(false)), @r"
    note: no replica of Lockstep reconciles
      POD    STATE        GATE    BINDINGS  REGISTRY                        SINCE  WAITS FOR
    shop/statefulset/web: 1 of 2 settled
      web-1  Registering  closed  web       the registry cannot be reached  3m2s   lan/web 10.0.0.5:8080 (the registry cannot be reached) to be acknowledged
      web-0  Registered   open    web       acknowledged                    3m0s   -
    ");
    let coloured = table(&report, look(true));
    assert!(coloured.contains("\u{1b}[31mRegistering\u{1b}[0m") && coloured.contains("\u{1b}[32mRegistered\u{1b}[0m"), "{coloured}");
}

#[test]
fn nothing_found_is_said() {
    let report = report::report(&[], &[], &Ground::default(), &Wanted::default(), Vec::new(), look(false).now);
    assert_eq!(table(&report, look(false)), "No managed pods found here; -A looks in every namespace.\n");
}

#[test]
fn a_life_says_what_was_what_is_and_what_comes() {
    let life = report::life(Some(&held()), &[], &Ground::default(), Vec::new(), look(false).now);
    insta::assert_snapshot!(super::life(&life, "shop/web-1", look(false)), @r"
    Pod:       shop/web-1
    State:     Registering (stuck, for 3m2s)
    Gate:      closed (Registering: Waiting for lan/web 10.0.0.5:8080 (the registry cannot be reached).)
    Bindings:  web
    Sleep:     45 s
    Target:    lan/web 10.0.0.5:8080
    Registry:  the registry cannot be reached
    Waits for: lan/web 10.0.0.5:8080 (the registry cannot be reached) to be acknowledged
    Until:     17:08:07Z (in 4m58s)
    Then:      a Warning Event; the pod goes on waiting (onGateTimeout: hold)
    Help:      lockstep doctor   # says which link of the chain is broken
    Help:      lockstep release shop/web-1   # break glass: opens its gate although nothing was acknowledged
    Findings:  NoReadinessProbe (docs/findings.md says what to do)

    Timeline:
      2026-11-29 17:00:00Z            admitted
      2026-11-29 17:00:00Z       +0s  scheduled
      2026-11-29 17:00:07Z       +7s  containers ready
      2026-11-29 17:00:07Z       +0s  registered
      2026-11-29 17:03:09Z     +3m2s  now: waits for lan/web 10.0.0.5:8080 (the registry cannot be reached) to be acknowledged
    ");
}

#[rstest]
#[case::fixed(None, &[], "45 s")]
#[case::told(Some("2026-11-29T16:55:00Z"), &[], "45 s, for the drain delay that a registry told at 2026-11-29 16:55:00Z")]
#[case::not_told(None, &["web", "api"], "45 s, by `fallback` of web, api, whose registry had not answered")]
fn a_sleep_is_shown_with_what_it_rests_on(#[case] answered: Option<&str>, #[case] fallback: &[&str], #[case] shown: &str) {
    let answered_at = answered.map(|at| report::Time(at.parse().unwrap()));
    let sleep = Sleep { seconds: 45, answered_at, fallback: fallback.iter().map(ToString::to_string).collect() };
    assert_eq!(rests_on(&sleep), shown);
}

#[test]
fn cells_are_cut_on_a_terminal_alone() {
    let long = format!("Waiting for lan/web 10.0.0.5:8080 ({}).", "why ".repeat(40).trim_end());
    let report = report::report(
        &[&sight("web-1", "False", "Registering", &long)],
        &[],
        &Ground::default(),
        &Wanted::default(),
        vec![],
        look(false).now,
    );
    assert!(table(&report, look(false)).contains("why w..."));
    let whole = table(&report, Look { cut: false, ..look(false) });
    assert!(whole.contains("why) to be acknowledged") && !whole.contains("..."), "{whole}");
}

#[test]
fn long_words_are_cut_at_a_character() {
    assert_eq!(cut(&"ä".repeat(CELL)), "ä".repeat(CELL));
    assert_eq!(cut(&"ä".repeat(CELL + 1)), format!("{}...", "ä".repeat(CELL)));
}
