//! Checks of pods: held, without a gate, prepared for other times, or found fault with by admission.
//!
//! Invariant: pure; what is wrong with many pods of one workload is one finding.
//! Absent on purpose: workloads as such (`workloads`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::facts::Facts;
use super::finding::{Code, Finding};
use crate::admission;
use crate::admission::prestop::Sums;
use crate::commands::status::outlook::{Help, Keeper, Outlook, Standing, outlook, span};
use crate::commands::status::sight::{Sight, by_object};
use crate::commands::workload;
use crate::config::{Binding, Drain, Injection};
use crate::registration::life;

/// All that is wrong with pods.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    [stuck(facts), debts(facts), without_gate(facts), sleeps(facts), admission(facts)].into_iter().flatten().collect()
}

fn stuck(facts: &Facts) -> Vec<Finding> {
    let told = by_object(&facts.told);
    let held = facts.pods.iter().filter(|sight| sight.pod.finalizer || sight.pod.gated);
    let judged = held.filter_map(|sight| {
        let told = told.get(sight.pod.uid.as_str()).map(Vec::as_slice).unwrap_or_default();
        let outlook = outlook(sight, told, &facts.around.ground, facts.now);
        if outlook.standing != Standing::Stuck {
            return None;
        }
        let since = outlook.since.map(|since| format!(" for {}", span(facts.now.duration_since(since)))).unwrap_or_default();
        let waits_for = outlook.waits_for.as_deref()?;
        let evidence = format!("{}{since}: waits for {waits_for}; the registry: {}", outlook.state.as_str(), outlook.registry);
        let matters = "it takes no part in serving, or does not go away";
        Some(Finding::new(Code::PodStuck, format!("Pod {}", sight.pod.key), evidence, matters, freeing(sight, &outlook, facts)))
    });
    judged.collect()
}

/// What lets a stuck pod go on; where `status` would send a person to the doctor, the doctor itself has to say it.
fn freeing(sight: &Sight, outlook: &Outlook, facts: &Facts) -> String {
    let told = |help: &Help| format!("`{}` {}", help.command, help.effect);
    match outlook.kept_by {
        None => outlook.help.first().map(told).unwrap_or_default(),
        Some(Keeper::Lockstep) => {
            let own = &facts.own_namespace;
            format!("mend what is found of Lockstep itself; else `kubectl logs deployment/lockstep --namespace {own}` says what keeps it")
        }
        Some(Keeper::Registry) => {
            let claimed = sight.claims.iter().map(|claim| &*claim.service.registry);
            let bound = facts.bindings_of(&sight.pod).map(|binding| &*binding.service.registry);
            let pages: BTreeSet<String> = claimed.chain(bound).map(|registry| facts.page_of(registry)).collect();
            let pages = pages.into_iter().collect::<Vec<_>>().join(", ");
            let last = outlook.help.last().map(|help| format!("; if that cannot be: {}", told(help))).unwrap_or_default();
            format!("mend what is found of the registry: {pages} says what its words ask for{last}")
        }
    }
}

fn debts(facts: &Facts) -> Vec<Finding> {
    let owed = facts.debts.iter().map(|debt| {
        let age = span(facts.now.duration_since(debt.since));
        Finding::new(
            Code::Debt,
            debt.claim.to_string(),
            format!("owed for {age}, of pod {}, which is gone", debt.pod),
            "the registry may still send traffic to an address that nobody serves, or that another pod has by now",
            "see why the registry does not let go; it is paid by itself once it does, and given up after a day",
        )
    });
    owed.collect()
}

fn without_gate(facts: &Facts) -> Vec<Finding> {
    let lacks = |sight: &&Sight| {
        let pod = &sight.pod;
        let passes = pod.gated || pod.completes || pod.released || pod.is_opted_out() || !life::live(pod);
        !passes && facts.is_opted_in(&pod.key.namespace) && facts.bindings_of(pod).next().is_some()
    };
    let finding = |(about, pods): (String, Vec<&Sight>)| {
        let unknown = pods.iter().filter(|sight| !sight.pod.finalizer).count();
        let unknown = if unknown == 0 { String::new() } else { format!("; {unknown} not adopted, so registered nowhere yet") };
        Finding::new(
            Code::NoGate,
            about,
            format!("{} without the readiness gate: {}{unknown}", count(&pods), listed(&pods)),
            "they count as Ready before the registry knows them, so a rollout goes on too early; Lockstep adopts them within ten minutes",
            "mend PodsNotPrepared or WebhookChanged first where that is found too; then restart the workload, as with `kubectl rollout restart`",
        )
    };
    grouped(facts.pods.iter().filter(lacks)).into_iter().map(finding).collect()
}

/// Pods whose sleep is shorter than the configuration, and what registries say, ask for by now.
fn sleeps(facts: &Facts) -> Vec<Finding> {
    let Some(injection) = &facts.around.injection else { return Vec::new() };
    let wanted = |sight: &Sight| wanted_sleep(facts, injection, sight);
    let short = |sight: &&Sight| {
        let has = sight.pod.record.sleep_seconds;
        // Where a limit has cut it, admission has found that.
        let cut = sight.pod.record.findings.iter().any(|code| **code == *admission::Finding::SleepCut.as_str());
        life::live(&sight.pod) && !cut && has.zip(wanted(sight)).is_some_and(|(has, wanted)| has < wanted)
    };
    let finding = |(about, pods): (String, Vec<&Sight>)| {
        let has = pods.iter().filter_map(|sight| sight.pod.record.sleep_seconds).min().unwrap_or_default();
        let wanted = pods.iter().filter_map(|sight| wanted(sight)).max().unwrap_or_default();
        Finding::new(
            Code::SleepTooShort,
            about,
            format!("{} sleep for {has} s, and the drain delay and the margin ask for {wanted} s by now", count(&pods)),
            "the configuration, or the delay in the registry, was changed after they were made; they stop while the outside may still send",
            "restart the workload before anything else replaces its pods, as with `kubectl rollout restart`",
        )
    };
    grouped(facts.pods.iter().filter(short)).into_iter().map(finding).collect()
}

fn wanted_sleep(facts: &Facts, injection: &Injection, sight: &Sight) -> Option<i64> {
    let delay = |binding: &Binding| match binding.drain {
        Drain::FromRegistry { .. } => {
            let answer = facts.answer_of(&binding.service);
            answer.and_then(|answer| answer.drain_delay_seconds).map(Duration::from_secs)
        }
        Drain::Fixed(_) | Drain::HealthCheck { .. } => Some(binding.drain.delay(None)),
    };
    let drain = facts.bindings_of(&sight.pod).filter_map(delay).max()?;
    i64::try_from(Sums::new(drain, 0, injection).after_max_sleep).ok()
}

fn admission(facts: &Facts) -> Vec<Finding> {
    let mut found: BTreeMap<(String, admission::Finding), Vec<&Sight>> = BTreeMap::new();
    for sight in facts.pods.iter().filter(|sight| life::live(&sight.pod)) {
        for code in sight.pod.record.findings.iter().filter_map(|code| admission::Finding::of_code(code)) {
            found.entry((workload_of(sight), code)).or_default().push(sight);
        }
    }
    let finding = |((about, code), pods): ((String, admission::Finding), Vec<&Sight>)| {
        let evidence = format!("{}: {} ({})", code.as_str(), code.meaning(), count(&pods));
        Finding::new(Code::Admission, about, evidence, "docs/findings.md says what is lost by it", code.remedy())
    };
    found.into_iter().map(finding).collect()
}

fn grouped<'a>(sights: impl Iterator<Item = &'a Sight>) -> BTreeMap<String, Vec<&'a Sight>> {
    let mut groups: BTreeMap<String, Vec<&Sight>> = BTreeMap::new();
    for sight in sights {
        groups.entry(workload_of(sight)).or_default().push(sight);
    }
    groups
}

fn workload_of(sight: &Sight) -> String {
    let (kind, name) = workload::of(&sight.pod);
    format!("{kind} {}/{name}", sight.pod.key.namespace)
}

fn count(pods: &[&Sight]) -> String {
    match pods.len() {
        1 => "1 pod".to_owned(),
        more => format!("{more} pods"),
    }
}

/// The first few names.
fn listed(pods: &[&Sight]) -> String {
    const NAMED: usize = 3;
    let names: Vec<&str> = pods.iter().take(NAMED).map(|sight| &*sight.pod.key.name).collect();
    let more = if pods.len() > NAMED { ", ..." } else { "" };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::doctor::tests::facts;
    use crate::names;
    use crate::registration::claim::parse_debts;

    /// A pod that nothing is wrong with.
    fn well() -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": "web-1", "uid": "u", "finalizers": [names::FINALIZER],
                "labels": {"app": "web", names::MANAGED_LABEL: "true"},
                "annotations": {names::RECORD_ANNOTATION: r#"{"version":1,"bindings":["web"],"sleepSeconds":45,"findings":[]}"#},
            },
            "spec": {"nodeName": "n", "readinessGates": [{"conditionType": names::GATE}]},
            "status": {"phase": "Running", "podIP": "10.0.0.5", "conditions": [
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-11-29T17:00:00Z"},
                {"type": names::GATE, "status": "True", "reason": "Registered"},
            ]},
        })
    }

    fn found(pods: &[Value]) -> Vec<Finding> {
        let mut facts = facts();
        facts.pods = pods.iter().map(|pod| Sight::read(&pod.to_string()).unwrap()).collect();
        check(&facts)
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut pod = well();
        *pod.pointer_mut(pointer).unwrap() = value;
        pod
    }

    fn record(record: &str) -> Value {
        with("/metadata/annotations", json!({ names::RECORD_ANNOTATION: record }))
    }

    #[rstest]
    #[case::held(with("/status/conditions/1", json!({"type": names::GATE, "status": "False", "reason": "PortNotFound"})), Code::PodStuck)]
    #[case::no_gate(with("/spec/readinessGates", json!([])), Code::NoGate)]
    #[case::short_sleep(record(r#"{"version":1,"sleepSeconds":20}"#), Code::SleepTooShort)]
    #[case::found_fault(record(r#"{"version":1,"sleepSeconds":45,"findings":["NoReadinessProbe"]}"#), Code::Admission)]
    fn a_broken_link_is_found(#[case] pod: Value, #[case] code: Code) {
        let codes: Vec<Code> = found(&[pod]).into_iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [code]);
    }

    #[rstest]
    #[case::as_it_is(well())]
    #[case::longer_sleep(record(r#"{"version":1,"sleepSeconds":60}"#))]
    #[case::no_sleep_at_all(record(r#"{"version":1}"#))]
    #[case::an_unknown_finding(record(r#"{"version":1,"sleepSeconds":45,"findings":["OfTheFuture"]}"#))]
    fn all_is_well(#[case] pod: Value) {
        assert_eq!(found(&[pod]), []);
    }

    #[rstest]
    #[case::its_port("PortNotFound", "The pod has no container port named http, which binding web wants.", "`kubectl get pod web-1")]
    #[case::its_registry("Registering", "Waiting for lan/web 10.0.0.5:80 (it is down).", "docs/registries/http.md")]
    #[case::no_answer("GateTimeout", "Waiting for lan/web 10.0.0.5:80.", "docs/registries/http.md")]
    fn a_stuck_pod_comes_with_a_change_and_not_with_the_doctor_again(#[case] reason: &str, #[case] message: &str, #[case] change: &str) {
        let gate = json!({"type": names::GATE, "status": "False", "reason": reason, "message": message});
        let stuck = found(&[with("/status/conditions/1", gate)]).remove(0);
        assert_eq!(stuck.code, Code::PodStuck);
        assert!(stuck.change.contains(change) && !stuck.change.contains("lockstep doctor"), "{stuck:?}");
    }

    #[test]
    fn a_pod_that_lockstep_does_nothing_about_points_at_lockstep() {
        let unseen = found(&[with("/status/conditions/1", json!({"type": "Other", "status": "True"}))]).remove(0);
        assert!(unseen.change.contains("kubectl logs deployment/lockstep --namespace lockstep-system"), "{unseen:?}");
    }

    #[rstest]
    #[case(json!({"metadata": {"labels": {"app": "web", names::INJECT_LABEL: "disabled"}}}))]
    #[case(json!({"metadata": {"labels": {"app": "other"}}}))]
    #[case(json!({"spec": {"restartPolicy": "Never"}}))]
    #[case(json!({"status": {"phase": "Succeeded"}}))]
    fn a_pod_that_needs_no_gate_lacks_none(#[case] change: Value) {
        let mut pod = json!({"metadata": {"namespace": "shop", "name": "a", "labels": {"app": "web"}}, "spec": {}, "status": {}});
        for (part, fields) in change.as_object().unwrap() {
            pod[part].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        assert_eq!(found(&[pod]), []);
    }

    #[test]
    fn a_delay_that_a_registry_has_raised_is_found() {
        let mut facts = facts();
        facts.pods = vec![Sight::read(&well().to_string()).unwrap()];
        let bindings = &mut facts.around.ground.bindings;
        bindings[0].drain = Drain::FromRegistry { fallback: Duration::from_secs(300) };
        assert_eq!(check(&facts), [], "it was not asked");
        for (seconds, code) in [(30, None), (31, Some(Code::SleepTooShort))] {
            let answer = json!({"services": [{"registry": "lan", "service": "web", "drainDelaySeconds": seconds}]});
            facts.answers = Some(serde_json::from_value(answer).unwrap());
            assert_eq!(check(&facts).first().map(|finding| finding.code), code, "{seconds} s");
        }
    }

    #[test]
    fn many_pods_of_one_workload_are_one_finding() {
        let pods: Vec<Value> = (0..5)
            .map(|number| {
                let mut pod = with("/spec/readinessGates", json!([]));
                pod["metadata"]["name"] = json!(format!("web-{number}"));
                pod["metadata"]["ownerReferences"] = json!([{"kind": "StatefulSet", "name": "web", "uid": "o", "controller": true}]);
                pod
            })
            .collect();
        let all = found(&pods);
        assert_eq!((all.len(), &*all[0].about), (1, "StatefulSet shop/web"));
        assert!(all[0].evidence.starts_with("5 pods without") && all[0].evidence.ends_with("..."), "{}", all[0].evidence);
    }

    #[test]
    fn a_debt_is_told_with_its_age() {
        let mut facts = facts();
        facts.debts = parse_debts("lan/web 10.0.0.5:80 shop/web-1 uid-1 2026-11-29T16:30:00Z");
        let all = check(&facts);
        assert_eq!(all[0].code, Code::Debt);
        assert!(all[0].evidence.contains("60m") && all[0].evidence.contains("shop/web-1"), "{}", all[0].evidence);
    }
}
