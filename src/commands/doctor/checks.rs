//! Checks of load balancers' own health checks, beside the probes of the workloads behind them.
//!
//! Two answers to the question whether a pod serves are one too many: where the two ask different things, a pod waits at its gate for a
//! check that cannot pass, or gets traffic after Kubernetes has given it up.
//!
//! Invariant: pure; a check that its registry does not tell is never found fault with.
//! Absent on purpose: probes by themselves (`workloads`).

use serde_json::Value;

use super::facts::Facts;
use super::finding::{Code, Finding};
use super::registries;
use super::workloads::{Probe, about, bound_port, judged, only_container};
use crate::commands::registries::{Answer, Check};
use crate::config::{Binding, show_duration};

/// All that is wrong between checks and probes.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let slow = facts.answered().filter_map(|answer| slow(answer, facts));
    let asked = |binding: &Binding| facts.answer_of(&binding.service)?.health_check.as_ref();
    let differ = judged(facts)
        .flat_map(|(workload, bindings)| bindings.into_iter().filter_map(move |binding| elsewhere(workload, binding, asked(binding)?)));
    slow.chain(differ).collect()
}

/// The check takes longer than a gate waits.
fn slow(answer: &Answer, facts: &Facts) -> Option<Finding> {
    let check = answer.health_check.as_ref()?;
    let gate = facts.around.ground.rules.gate_timeout;
    let lag = check.interval_seconds.saturating_mul(check.passes.into());
    (lag >= gate.as_secs()).then(|| {
        Finding::new(
            Code::CheckSlow,
            registries::about(answer),
            format!(
                "its check asks every {} s and wants {} passes, which is {lag} s; gateTimeout is {}",
                check.interval_seconds,
                check.passes,
                show_duration(gate)
            ),
            "a pod may not be acknowledged before its gate is given up, though nothing is wrong with it",
            "let the check ask more often, or want fewer passes; or raise registration.gateTimeout, and progressDeadlineSeconds with it",
        )
    })
}

/// Check and probe ask different things.
fn elsewhere(workload: &Value, binding: &Binding, check: &Check) -> Option<Finding> {
    let container = only_container(workload)?;
    let probe = Probe::of(container)?;
    let port = check.port.map(i64::from).or_else(|| bound_port(container, &binding.port))?;
    let talks = matches!(check.protocol.as_str(), "http" | "https");
    let path = check.path.as_deref().filter(|_| talks);
    let differ = port != probe.port || talks != probe.talks || path.zip(probe.path).is_some_and(|(asked, probed)| asked != probed);
    differ.then(|| {
        let asked = format!("{} on port {port}{}", check.protocol, path.unwrap_or_default());
        let probed = format!("{} on port {}{}", probe.kind, probe.port, probe.path.unwrap_or_default());
        Finding::new(
            Code::CheckElsewhere,
            about(workload),
            format!("the check of {} asks {asked}, the readiness probe {probed}", binding.service),
            "one may pass while the other fails: a pod that is ready waits at its gate, or one that is not gets traffic",
            "let both ask the same port and, by HTTP, the same path",
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::commands::doctor::tests::facts;
    use crate::commands::registries::Answers;

    fn found(probe: Value, check: Option<Check>) -> Vec<Code> {
        found_of(1, probe, check)
    }

    fn found_of(replicas: i64, probe: Value, check: Option<Check>) -> Vec<Code> {
        let mut facts = facts();
        facts.workloads = vec![json!({
            "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"replicas": replicas, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": probe}]},
            }},
        })];
        let (registry, service) = ("lan".to_owned(), "web".to_owned());
        let answer =
            Answer { registry, service, error: None, refusal: None, targets: None, drain_delay_seconds: None, health_check: check };
        facts.answers = Some(Answers { services: vec![answer] });
        super::check(&facts).into_iter().map(|finding| finding.code).collect()
    }

    fn asks(protocol: &str, port: Option<u16>, path: Option<&str>) -> Option<Check> {
        Some(Check { protocol: protocol.into(), port, path: path.map(str::to_owned), interval_seconds: 15, passes: 3 })
    }

    #[rstest]
    #[case::another_port(json!({"httpGet": {"path": "/", "port": "http"}}), asks("http", Some(9090), Some("/")))]
    #[case::another_path(json!({"httpGet": {"path": "/ready", "port": 8080}}), asks("http", None, Some("/")))]
    #[case::the_default_path(json!({"httpGet": {"port": 8080}}), asks("http", None, Some("/ready")))]
    #[case::only_a_connection(json!({"httpGet": {"path": "/", "port": 8080}}), asks("tcp", None, None))]
    #[case::more_than_a_connection(json!({"tcpSocket": {"port": 8080}}), asks("http", None, Some("/")))]
    fn what_differs_is_found(#[case] probe: Value, #[case] check: Option<Check>) {
        assert_eq!(found(probe, check), [Code::CheckElsewhere]);
    }

    #[rstest]
    #[case::the_same(json!({"httpGet": {"path": "/", "port": "http"}}), asks("http", None, Some("/")))]
    #[case::the_same_with_its_number(json!({"httpGet": {"path": "/", "port": "http"}}), asks("https", Some(8080), Some("/")))]
    #[case::connections(json!({"tcpSocket": {"port": "http"}}), asks("tcp", None, None))]
    #[case::grpc(json!({"grpc": {"port": 8080}}), asks("http", None, Some("/AWS.ALB/healthcheck")))]
    #[case::a_command(json!({"exec": {"command": ["/check"]}}), asks("tcp", Some(9090), None))]
    #[case::no_probe(json!(null), asks("tcp", None, None))]
    #[case::not_told(json!({"tcpSocket": {"port": 1}}), None)]
    fn all_is_well(#[case] probe: Value, #[case] check: Option<Check>) {
        assert_eq!(found(probe, check), []);
    }

    #[rstest]
    #[case::some(1, &[Code::CheckElsewhere])]
    #[case::none(0, &[])]
    fn a_workload_that_wants_no_pods_is_not_judged(#[case] replicas: i64, #[case] expected: &[Code]) {
        assert_eq!(found_of(replicas, json!({"tcpSocket": {"port": 8080}}), asks("http", None, Some("/"))), expected);
    }

    #[rstest]
    #[case::as_long_as_the_gate_waits(60, 8, &[Code::CheckSlow])]
    #[case::a_little_less(60, 7, &[])]
    fn a_check_that_takes_too_long_is_found(#[case] interval_seconds: u64, #[case] passes: u32, #[case] expected: &[Code]) {
        let check = asks("http", None, Some("/")).map(|check| Check { interval_seconds, passes, ..check });
        assert_eq!(found(json!({"httpGet": {"path": "/", "port": "http"}}), check), expected);
    }
}
