//! Checks of workloads: probes, and how they roll.
//!
//! Invariant: pure; only workloads that want pods, and whose pods a binding selects, are judged.
//! Absent on purpose: what admission finds on pods (`pods`).

use serde_json::Value;

use super::facts::Facts;
use super::finding::{Code, Finding};
use crate::config::{Binding, Port, show_duration};

/// What Kubernetes assumes of a Deployment that does not say it.
const PROGRESS_DEADLINE_SECONDS: i64 = 600;

/// All that is wrong with workloads.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let found = |(workload, bindings): (&Value, Vec<&Binding>)| {
        let found =
            [probe_trivial(workload), probe_elsewhere(workload, &bindings), progress_deadline(workload, facts), goes_dark(workload)];
        found.into_iter().flatten()
    };
    judged(facts).flat_map(found).collect()
}

/// The workloads that are looked at, each with the bindings that select its pods: one that wants no pods is nobody's trouble now.
pub(super) fn judged(facts: &Facts) -> impl Iterator<Item = (&Value, Vec<&Binding>)> {
    let with_bindings = facts.workloads.iter().map(|workload| (workload, bound(workload, facts)));
    with_bindings.filter(|(workload, bindings)| !bindings.is_empty() && replicas(workload) != Some(0))
}

fn bound<'f>(workload: &Value, facts: &'f Facts) -> Vec<&'f Binding> {
    let labels = workload.pointer("/spec/template/metadata/labels");
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    facts.around.ground.bindings.iter().filter(|binding| binding.selects(namespace(workload), label)).collect()
}

fn probe_trivial(workload: &Value) -> Option<Finding> {
    let trivial = |container: &&Value| {
        let command = container.pointer("/readinessProbe/exec/command").and_then(Value::as_array);
        command.is_some_and(|command| always_passes(&command.iter().filter_map(Value::as_str).collect::<Vec<_>>()))
    };
    let container = containers(workload).find(trivial)?;
    Some(Finding::new(
        Code::ProbeTrivial,
        about(workload),
        format!("the readiness probe of container {} runs {}", name(container), container["readinessProbe"]["exec"]["command"]),
        "it always passes, so the pod is registered, and gets traffic, before the application can serve it",
        "let the probe ask the application, on the port that gets the traffic",
    ))
}

fn always_passes(command: &[&str]) -> bool {
    let command: Vec<&str> = match command {
        [shell, "-c", script] if shell.ends_with("sh") => script.split_whitespace().collect(),
        direct => direct.to_vec(),
    };
    matches!(command[..], ["true" | "/bin/true" | "/usr/bin/true" | ":"] | ["exit", "0"]) || matches!(command[..], ["echo", ..])
}

/// A probe of another port says nothing of the one that gets the traffic.
fn probe_elsewhere(workload: &Value, bindings: &[&Binding]) -> Option<Finding> {
    let container = only_container(workload)?;
    let asked = Probe::of(container)?.port;
    let wanted: Vec<i64> = bindings.iter().filter_map(|binding| bound_port(container, &binding.port)).collect();
    if wanted.is_empty() || wanted.contains(&asked) {
        return None;
    }
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    Some(Finding::new(
        Code::ProbeElsewhere,
        about(workload),
        format!("the readiness probe asks port {asked}, traffic goes to port {}", wanted.join(" and ")),
        "the pod counts as ready although nobody knows whether the port that gets the traffic serves",
        "let the probe ask the port of the binding",
    ))
}

fn progress_deadline(workload: &Value, facts: &Facts) -> Option<Finding> {
    if kind(workload) != "Deployment" {
        return None;
    }
    let deadline = workload.pointer("/spec/progressDeadlineSeconds").and_then(Value::as_i64).unwrap_or(PROGRESS_DEADLINE_SECONDS);
    let gate = facts.around.ground.rules.gate_timeout;
    let gate_seconds = i64::try_from(gate.as_secs()).unwrap_or(i64::MAX);
    (deadline <= gate_seconds).then(|| {
        Finding::new(
            Code::ProgressDeadlineShort,
            about(workload),
            format!("progressDeadlineSeconds is {deadline}, gateTimeout {}", show_duration(gate)),
            "the rollout counts as failed, and is perhaps rolled back, while a registry still has its time to acknowledge",
            format!("set progressDeadlineSeconds to more than {gate_seconds}, or registration.gateTimeout to less than {deadline}s"),
        )
    })
}

fn goes_dark(workload: &Value) -> Option<Finding> {
    let strategy = workload.pointer(if kind(workload) == "Deployment" { "/spec/strategy" } else { "/spec/updateStrategy" })?;
    let matters = "no pod serves while the new ones start and register";
    if strategy.get("type").and_then(Value::as_str) == Some("Recreate") {
        let evidence = "strategy is Recreate".to_owned();
        return Some(Finding::new(Code::GoesDark, about(workload), evidence, matters, "use RollingUpdate with maxUnavailable: 0"));
    }
    let most = strategy.pointer("/rollingUpdate/maxUnavailable")?;
    let replicas = replicas(workload)?;
    let away = match (most.as_i64(), most.as_str().and_then(|text| text.strip_suffix('%')).and_then(|text| text.parse::<i64>().ok())) {
        (Some(count), _) => count,
        // The API server rounds it down.
        (None, Some(percent)) => replicas.saturating_mul(percent) / 100,
        (None, None) => return None,
    };
    (away >= replicas && kind(workload) != "StatefulSet").then(|| {
        let evidence = format!("maxUnavailable is {most}, with {replicas} replicas");
        Finding::new(Code::GoesDark, about(workload), evidence, matters, "set maxUnavailable to 0, or to less than the replicas")
    })
}

/// What a readiness probe asks over the network.
pub(super) struct Probe<'w> {
    /// The key under which it stands.
    pub(super) kind: &'static str,
    /// Its port.
    pub(super) port: i64,
    /// Its path, where it has one.
    pub(super) path: Option<&'w str>,
    /// It asks the application, and not only whether somebody listens.
    pub(super) talks: bool,
}

impl<'w> Probe<'w> {
    pub(super) fn of(container: &'w Value) -> Option<Self> {
        let probe = container.get("readinessProbe")?;
        let of = |kind: &'static str, talks| {
            let asked = probe.get(kind)?;
            let path = asked.get("path").and_then(Value::as_str).or((kind == "httpGet").then_some("/"));
            Some(Self { kind, port: number(container, asked.get("port")?)?, path, talks })
        };
        of("httpGet", true).or_else(|| of("tcpSocket", false)).or_else(|| of("grpc", true))
    }
}

/// The container of a workload that has just one: where there are several, each has a part in what a probe or a port says.
pub(super) fn only_container(workload: &Value) -> Option<&Value> {
    let mut all = containers(workload);
    all.next().filter(|_| all.next().is_none())
}

fn containers(workload: &Value) -> impl Iterator<Item = &Value> {
    workload.pointer("/spec/template/spec/containers").and_then(Value::as_array).into_iter().flatten()
}

/// A port by its number, or by its name in the container.
fn number(container: &Value, port: &Value) -> Option<i64> {
    port.as_i64().or_else(|| named(container, port.as_str()?))
}

pub(super) fn bound_port(container: &Value, port: &Port) -> Option<i64> {
    match port {
        Port::Number(number) => Some(i64::from(*number)),
        Port::Name(name) => named(container, name),
    }
}

fn named(container: &Value, name: &str) -> Option<i64> {
    let ports = container.get("ports").and_then(Value::as_array)?;
    ports.iter().find(|port| port.get("name").and_then(Value::as_str) == Some(name))?.get("containerPort")?.as_i64()
}

/// Replicas of a workload that has such a number.
pub(super) fn replicas(workload: &Value) -> Option<i64> {
    let field = if kind(workload) == "DaemonSet" { "/status/desiredNumberScheduled" } else { "/spec/replicas" };
    workload.pointer(field).and_then(Value::as_i64)
}

fn kind(workload: &Value) -> &str {
    workload.get("kind").and_then(Value::as_str).unwrap_or("Workload")
}

fn namespace(workload: &Value) -> &str {
    workload.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object.get("name").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn about(workload: &Value) -> String {
    let name = workload.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    format!("{} {}/{name}", kind(workload), namespace(workload))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::commands::doctor::tests::facts;

    /// A Deployment that nothing is wrong with.
    fn well() -> Value {
        json!({
            "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "replicas": 3, "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{
                        "name": "web", "ports": [{"name": "http", "containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    }]},
                },
            },
        })
    }

    fn found(change: impl FnOnce(&mut Value)) -> Vec<Code> {
        let mut workload = well();
        change(&mut workload);
        let mut facts = facts();
        facts.workloads = vec![workload];
        check(&facts).into_iter().map(|finding| finding.code).collect()
    }

    fn set(pointer: &'static str, value: Value) -> impl FnOnce(&mut Value) {
        move |workload| *workload.pointer_mut(pointer).unwrap() = value
    }

    const PROBE: &str = "/spec/template/spec/containers/0/readinessProbe";
    const UNAVAILABLE: &str = "/spec/strategy/rollingUpdate/maxUnavailable";

    #[rstest]
    #[case::true_itself(PROBE, json!({"exec": {"command": ["/bin/true"]}}), Code::ProbeTrivial)]
    #[case::by_shell(PROBE, json!({"exec": {"command": ["/bin/sh", "-c", "exit 0"]}}), Code::ProbeTrivial)]
    #[case::other_port(PROBE, json!({"tcpSocket": {"port": 9090}}), Code::ProbeElsewhere)]
    #[case::short_deadline("/spec/progressDeadlineSeconds", json!(480), Code::ProgressDeadlineShort)]
    #[case::all_away(UNAVAILABLE, json!("100%"), Code::GoesDark)]
    #[case::as_many_away(UNAVAILABLE, json!(3), Code::GoesDark)]
    #[case::recreate("/spec/strategy", json!({"type": "Recreate"}), Code::GoesDark)]
    fn a_broken_link_is_found(#[case] pointer: &'static str, #[case] value: Value, #[case] code: Code) {
        assert_eq!(found(set(pointer, value)), [code]);
    }

    #[rstest]
    #[case::as_it_is(PROBE, json!({"httpGet": {"path": "/", "port": 8080}}))]
    #[case::no_probe(PROBE, Value::Null)]
    #[case::a_real_command(PROBE, json!({"exec": {"command": ["/bin/check", "true"]}}))]
    #[case::a_name_that_is_not_there(PROBE, json!({"httpGet": {"port": "other"}}))]
    #[case::default_deadline("/spec/progressDeadlineSeconds", Value::Null)]
    #[case::rounded_down(UNAVAILABLE, json!("99%"))]
    #[case::not_bound("/spec/template/metadata/labels", json!({"app": "other"}))]
    #[case::no_replicas("/spec/replicas", json!(0))]
    fn all_is_well(#[case] pointer: &'static str, #[case] value: Value) {
        assert_eq!(found(set(pointer, value)), []);
    }

    #[test]
    fn odd_objects_are_passed_over() {
        for odd in [json!(null), json!({"spec": 7}), json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": {}}}}})] {
            assert_eq!(found(|workload| *workload = odd), []);
        }
    }
}
