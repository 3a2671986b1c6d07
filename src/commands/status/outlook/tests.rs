//! Pods as they are met, and what is said of each.
//!
//! Invariant: each row is a pod as the API server has it, read as the command reads it.
//! Absent on purpose: how it looks (`text`).

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::names;

/// When everybody looks.
const NOW: &str = "2026-11-29T17:30:00Z";

fn at(time: &str) -> Timestamp {
    format!("2026-11-29T{time}Z").parse().unwrap()
}

/// A pod of namespace `shop` that runs on a node, with these conditions.
fn pod(conditions: Value, change: impl FnOnce(&mut Value)) -> Sight {
    let mut pod = json!({
        "metadata": {
            "namespace": "shop", "name": "web-1", "uid": "u", "creationTimestamp": "2026-11-29T17:00:00Z",
            "labels": {"app": "web", names::MANAGED_LABEL: "true"}, "finalizers": [names::FINALIZER],
            "annotations": {names::RECORD_ANNOTATION: r#"{"version":1,"bindings":["web"],"sleepSeconds":45}"#},
        },
        "spec": {"nodeName": "node1", "readinessGates": [{"conditionType": names::GATE}], "containers": [{"name": "web"}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.5", "conditions": conditions,
            "containerStatuses": [{"name": "web", "state": {"running": {}}}],
        },
    });
    change(&mut pod);
    Sight::read(&pod.to_string()).unwrap()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, since: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": format!("2026-11-29T{since}Z")})
}

fn ready(since: &str) -> Value {
    condition("ContainersReady", "True", "", "", since)
}

fn unready(since: &str) -> Value {
    condition("ContainersReady", "False", "", "", since)
}

fn claims() -> Value {
    condition(names::CLAIMS, "True", "Claimed", "lan/web 10.0.0.5:8080", "17:01:00")
}

fn gate(status: &str, reason: &str, message: &str) -> Value {
    condition(names::GATE, status, reason, message, "17:02:00")
}

fn deleted(pod: &mut Value, at: &str, grace: i64) {
    pod["metadata"]["deletionTimestamp"] = json!(format!("2026-11-29T{at}Z"));
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
}

fn stopped(pod: &mut Value, at: &str) {
    pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"finishedAt": format!("2026-11-29T{at}Z")}});
}

fn failing(last: &str) -> Told {
    Told {
        id: String::new(),
        uid: "u".into(),
        ours: true,
        warning: true,
        reason: "RegistryFailing".into(),
        note: "lan/web: the registry cannot be reached.".into(),
        first: Some(at("17:00:00")),
        last: Some(at(last)),
    }
}

fn look(sight: &Sight, told: &[&Told], change: impl FnOnce(&mut Ground)) -> Outlook {
    let mut ground = Ground::default();
    change(&mut ground);
    outlook(sight, told, &ground, NOW.parse().unwrap())
}

fn settled(outlook: &Outlook) -> bool {
    outlook.standing == Standing::Settled && outlook.waits_for.is_none() && outlook.until.is_none() && outlook.help.is_empty()
}

#[rstest]
#[case("Registered", Reason::Registered, "acknowledged")]
#[case("NoBinding", Reason::NoBinding, "not asked")]
#[case("GateTimeout", Reason::GateTimeout, "did not acknowledge in time")]
fn an_open_gate_waits_for_nothing(#[case] reason: &str, #[case] state: Reason, #[case] says: &str) {
    let outlook = look(&pod(json!([ready("17:01:00"), gate("True", reason, "")]), |_| {}), &[], |_| {});
    assert!(settled(&outlook), "{outlook:?}");
    assert_eq!((outlook.state, &*outlook.registry, outlook.since), (state, says, Some(at("17:02:00"))));
}

#[rstest]
#[case::within("Waiting for lan/web 10.0.0.5:8080.", "17:29:00", Standing::Waiting, "not acknowledged yet", Some("17:37:00"))]
#[case::checked("Waiting for lan/web 10.0.0.5:8080 (unhealthy).", "17:29:00", Standing::Waiting, "unhealthy", Some("17:37:00"))]
#[case::overdue("Waiting for lan/web 10.0.0.5:8080 (unhealthy).", "17:20:00", Standing::Stuck, "unhealthy", None)]
#[case::down(
    "Waiting for lan/web 10.0.0.5:8080 (the registry cannot be reached), a/b [fd00::5]:80 (the registry cannot be reached).",
    "17:29:00",
    Standing::Stuck,
    "the registry cannot be reached",
    Some("17:37:00")
)]
#[case::own_words(
    "Waiting for lan/web 10.0.0.5:8080 (the registry refuses the change: no (really) not).",
    "17:29:00",
    Standing::Stuck,
    "the registry refuses the change: no (really) not",
    Some("17:37:00")
)]
fn a_closed_gate_waits_for_the_registry(
    #[case] message: &str,
    #[case] since: &str,
    #[case] standing: Standing,
    #[case] says: &str,
    #[case] until: Option<&str>,
) {
    let outlook = look(&pod(json!([ready(since), claims(), gate("False", "Registering", message)]), |_| {}), &[], |_| {});
    assert_eq!((outlook.state, outlook.standing, &*outlook.registry), (Reason::Registering, standing, says));
    assert_eq!((outlook.since, outlook.until), (Some(at(since)), until.map(at)));
    let waits_for = outlook.waits_for.unwrap();
    assert!(waits_for.starts_with("lan/web 10.0.0.5:8080") && waits_for.ends_with("to be acknowledged"), "{waits_for}");
    assert!(outlook.then.unwrap().contains("onGateTimeout: hold"));
    assert_eq!(outlook.help.last().unwrap().command, "lockstep release shop/web-1");
}

#[test]
fn the_configuration_says_what_a_gate_timeout_does() {
    let sight = pod(json!([ready("17:29:00"), gate("False", "Registering", "Waiting for a/b 10.0.0.5:80.")]), |_| {});
    let outlook = look(&sight, &[], |ground| {
        ground.rules.on_gate_timeout = OnGateTimeout::Open;
        ground.rules.gate_timeout = std::time::Duration::from_secs(120);
    });
    assert_eq!(outlook.until, Some(at("17:31:00")));
    assert!(outlook.then.unwrap().starts_with("the gate opens"));
}

#[test]
fn a_port_that_is_not_there_needs_a_person_at_once() {
    let message = "The pod has no container port named http, which binding web wants.";
    let outlook = look(&pod(json!([ready("17:29:50"), gate("False", "PortNotFound", message)]), |_| {}), &[], |_| {});
    assert_eq!((outlook.state, outlook.standing), (Reason::PortNotFound, Standing::Stuck));
    assert!(outlook.waits_for.unwrap().starts_with("the pod has no container port"));
    assert!(outlook.help[0].command.contains("ports"), "{:?}", outlook.help);
}

#[rstest]
#[case::no_node(json!([condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available", "17:00:00")]), "0/3 nodes", Standing::Waiting)]
#[case::starting(json!([unready("17:00:01")]), "containers to be ready", Standing::Waiting)]
fn a_pod_that_starts_waits_for_its_containers(#[case] conditions: Value, #[case] what: &str, #[case] standing: Standing) {
    let outlook = look(&pod(conditions, |_| {}), &[], |_| {});
    assert_eq!((outlook.state, outlook.standing), (Reason::WaitingForContainers, standing));
    assert!(outlook.waits_for.as_ref().unwrap().contains(what), "{outlook:?}");
    assert_eq!(outlook.help[0].command, "kubectl describe pod web-1 --namespace shop");
}

#[test]
fn a_container_that_crashes_needs_a_person() {
    let crashing = |pod: &mut Value| pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let conditions = json!([condition("PodScheduled", "True", "", "", "17:00:00"), unready("17:00:01")]);
    let outlook = look(&pod(conditions, crashing), &[], |_| {});
    assert_eq!(outlook.standing, Standing::Stuck);
    assert!(outlook.waits_for.unwrap().ends_with("web CrashLoopBackOff"));
}

#[test]
fn a_pod_that_serves_no_more_needs_a_person() {
    let outlook = look(&pod(json!([unready("17:20:00"), claims(), gate("False", "NotServing", "")]), |_| {}), &[], |_| {});
    assert_eq!((outlook.state, outlook.standing, &*outlook.registry), (Reason::NotServing, Standing::Stuck, "taken out of use"));
    let kept = look(&pod(json!([unready("17:20:00"), claims(), gate("True", "Registered", "")]), |_| {}), &[], |_| {});
    assert_eq!((kept.state, &*kept.registry, kept.since), (Reason::NotServing, "left in", Some(at("17:20:00"))));
}

#[test]
fn a_lost_node_is_named_where_nodes_can_be_read() {
    let sight = pod(json!([ready("17:01:00"), claims(), gate("True", "Registered", "")]), |_| {});
    let node = |ready| NodeView { name: "node1".into(), ready, unreachable: false, out_of_service: false, kubelet_version: String::new() };
    let with = |ready| look(&sight, &[], |ground| ground.nodes = Some([("node1".into(), node(ready))].into()));
    assert_eq!((with(false).state, with(true).state), (Reason::NodeLost, Reason::Registered));
    assert_eq!(look(&sight, &[], |_| {}).state, Reason::Registered, "nobody may say that a node is lost that nobody looked at");
}

#[rstest]
#[case::sleeping("17:30:50", 75, "preStop sleep until 17:30:20Z", "17:30:50", "the kubelet kills")]
#[case::stopping("17:30:10", 75, "its containers to stop", "17:30:10", "the kubelet kills")]
#[case::over("17:29:40", 75, "its containers to stop", "17:30:40", "count as gone")]
fn a_deleted_pod_waits_for_its_containers(
    #[case] end: &str,
    #[case] grace: i64,
    #[case] what: &str,
    #[case] until: &str,
    #[case] then: &str,
) {
    let sight = pod(json!([ready("17:01:00"), claims(), gate("True", "Registered", "")]), |pod| deleted(pod, end, grace));
    let outlook = look(&sight, &[], |_| {});
    assert_eq!((outlook.state, outlook.standing, outlook.until), (Reason::Draining, Standing::Waiting, Some(at(until))));
    assert!(outlook.waits_for.as_ref().unwrap().contains(what) && outlook.then.as_ref().unwrap().contains(then), "{outlook:?}");
    assert_eq!(outlook.registry, "no new traffic");
    let failing = failing("17:29:59");
    assert_eq!(look(&sight, &[&failing], |_| {}).standing, Standing::Stuck);
}

#[rstest]
#[case::within("17:25:00", Standing::Waiting, Some("17:35:00"), "a Warning Event")]
#[case::overdue("17:15:00", Standing::Stuck, None, "nothing by itself")]
fn an_ended_pod_waits_to_be_let_go(#[case] end: &str, #[case] standing: Standing, #[case] until: Option<&str>, #[case] then: &str) {
    let sight = pod(json!([unready(end), claims(), gate("True", "Registered", "")]), |pod| {
        deleted(pod, "17:15:00", 75);
        stopped(pod, end);
    });
    let outlook = look(&sight, &[], |_| {});
    assert_eq!((outlook.state, outlook.standing, outlook.until), (Reason::Deregistering, standing, until.map(at)));
    assert_eq!(outlook.waits_for.as_deref(), Some("lan/web 10.0.0.5:8080 to be let go"));
    assert!(outlook.then.unwrap().starts_with(then));
    assert!(outlook.help.iter().any(|help| help.command == "lockstep release shop/web-1"));
    let failing = failing("17:29:00");
    let told = look(&sight, &[&failing], |_| {});
    assert_eq!((told.standing, &*told.registry), (Standing::Stuck, "lan/web: the registry cannot be reached"));
}

#[test]
fn what_a_registry_said_before_the_deletion_counts_no_more() {
    let sight = pod(json!([claims(), gate("True", "Registered", "")]), |pod| {
        deleted(pod, "17:29:00", 60);
        stopped(pod, "17:29:30");
    });
    let before = failing("17:20:00");
    let outlook = look(&sight, &[&before], |_| {});
    assert_eq!((outlook.standing, &*outlook.registry), (Standing::Waiting, "not let go yet"));
}

#[test]
fn a_forced_deletion_is_held_only_for_its_timeout() {
    let sight = pod(json!([ready("17:01:00"), claims(), gate("True", "Registered", "")]), |pod| deleted(pod, "17:29:50", 0));
    let outlook = look(&sight, &[], |_| {});
    assert_eq!((outlook.state, outlook.until), (Reason::Deregistering, Some(at("17:30:20"))));
    assert!(outlook.then.unwrap().contains("forceTimeout"));
}

#[test]
fn nobody_looks_after_a_pod_that_stays_without_claims() {
    let held = |end: &str| {
        let sight = pod(json!([]), |pod| {
            deleted(pod, end, 30);
            stopped(pod, end);
        });
        look(&sight, &[], |_| {}).standing
    };
    assert_eq!((held("17:29:45"), held("17:20:00")), (Standing::Waiting, Standing::Stuck));
}

#[test]
fn a_pod_that_others_hold_says_who() {
    let sight = pod(json!([]), |pod| {
        deleted(pod, "17:20:00", 30);
        stopped(pod, "17:20:00");
        pod["metadata"]["finalizers"] = json!(["example.org/other"]);
    });
    let outlook = look(&sight, &[], |_| {});
    assert_eq!(outlook.state, Reason::Deregistered);
    assert!(outlook.waits_for.unwrap().contains("example.org/other"));
}

#[test]
fn a_released_pod_and_an_ended_one_are_at_rest() {
    let released = |pod: &mut Value| pod["metadata"]["annotations"][names::RELEASED_ANNOTATION] = json!("true");
    assert!(settled(&look(&pod(json!([ready("17:01:00"), gate("False", "Registering", "")]), released), &[], |_| {})));
    let ended = pod(json!([]), |pod| {
        pod["status"]["phase"] = json!("Succeeded");
        pod["metadata"]["finalizers"] = json!([]);
        stopped(pod, "17:20:00");
    });
    assert!(settled(&look(&ended, &[], |_| {})));
}

#[test]
fn a_pod_without_a_gate_says_what_can_be_known() {
    let adopted = pod(json!([ready("17:01:00"), claims()]), |pod| pod["spec"]["readinessGates"] = Value::Null);
    let outlook = look(&adopted, &[], |_| {});
    assert!(settled(&outlook));
    assert_eq!(outlook.state, Reason::Adopted);
    let failing = failing("17:29:00");
    assert_eq!(look(&adopted, &[&failing], |_| {}).standing, Standing::Stuck);
}

#[test]
fn a_pod_that_nobody_has_looked_at_is_told_after_a_while() {
    let fresh = look(&pod(json!([ready("17:29:50")]), |_| {}), &[], |_| {});
    let old = look(&pod(json!([ready("17:20:00")]), |_| {}), &[], |_| {});
    assert_eq!((fresh.standing, old.standing), (Standing::Waiting, Standing::Stuck));
}

#[rstest]
#[case(0, "0s")]
#[case(119, "119s")]
#[case(192, "3m12s")]
#[case(3600, "60m")]
#[case(9000, "2h30m")]
#[case(200_000, "2d7h")]
#[case(-5, "5s")]
fn spans_are_short(#[case] seconds: i64, #[case] shown: &str) {
    assert_eq!(span(SignedDuration::from_secs(seconds)), shown);
}
