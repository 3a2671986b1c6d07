//! The stories, and the looks at a pod that they share.
//!
//! Invariant: a story reads and writes only its own namespace and service; only the last ones touch Lockstep itself.
//! Absent on purpose: how things are applied and awaited (`cluster`, `world`).

pub(crate) mod admission;
pub(crate) mod availability;
pub(crate) mod break_glass;
pub(crate) mod cases;
pub(crate) mod cert_manager;
pub(crate) mod certificates;
pub(crate) mod commands;
pub(crate) mod configuration;
pub(crate) mod deletion;
pub(crate) mod doctor;
pub(crate) mod documentation;
pub(crate) mod end;
pub(crate) mod findings;
pub(crate) mod generated;
pub(crate) mod installs;
pub(crate) mod loss;
pub(crate) mod namespaces;
pub(crate) mod nodes;
pub(crate) mod registration;
pub(crate) mod target_group;
pub(crate) mod traces;
pub(crate) mod trouble;
pub(crate) mod workloads;
pub(crate) mod zero_loss;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::json;

use crate::Story;
use crate::cluster::eventually;
use crate::registry::Registry;
use crate::world::World;

/// Nothing that should happen takes longer, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Told at once; the longest first.
pub(crate) const TOGETHER: &[Story] = &[
    ("a_node_dies_comes_back_and_is_taken_away", nodes::dies),
    ("a_node_is_drained_within_a_disruption_budget", nodes::drained),
    ("pods_that_crash_again_and_again_never_empty_the_service", workloads::crashing),
    ("probes_that_flap_move_the_target_within_the_budget", workloads::flapping),
    ("a_stateful_set_keeps_its_names_and_leaves_no_old_target", workloads::stable_names),
    ("a_daemon_set_on_the_nodes_own_address_is_replaced", workloads::on_every_node),
    ("containers_that_ignore_sigterm_are_drained_then_killed", deletion::sigterm_is_ignored),
    ("a_forced_deletion_leaves_no_target", deletion::forced),
    ("a_deletion_with_too_little_grace_is_told", deletion::short_of_time),
    ("an_eviction_waits_until_another_pod_is_registered", deletion::evicted),
    ("a_namespace_opts_in_with_running_pods_and_out_again", namespaces::opted_in_and_out),
    ("a_deleted_namespace_waits_for_the_registry_and_goes", namespaces::deleted),
    ("a_pod_gets_gate_finalizer_label_record_and_sleep", admission::a_pod_is_prepared),
    ("a_namespace_without_the_label_sees_no_change", admission::no_label_no_change),
    ("every_case_of_admission_is_answered_over_tls", cases::every_case_over_tls),
    ("a_pod_that_is_taken_without_lockstep_is_taken_with_it", generated::what_is_taken_without_is_taken_with),
    ("findings_are_warnings_and_one_event_for_each_owner_and_code", findings::findings_are_told),
    ("a_rolling_update_never_has_fewer_endpoints_than_pods", registration::a_rolling_update),
    ("a_rolling_update_never_has_fewer_healthy_targets_of_aws_than_pods", target_group::a_rolling_update),
    ("scaling_to_zero_in_the_middle_of_a_rollout_leaves_nothing", registration::scaled_to_zero),
    ("a_registry_that_is_down_holds_pods_and_says_so", trouble::a_registry_goes_down),
    ("a_collector_finds_both_handshakes_of_a_pod_by_its_uid", traces::of_a_pod),
    ("the_command_status_tells_a_pods_life_from_its_start_to_after_its_end", commands::status_tells_a_life),
    ("the_command_status_follows_a_rollout_and_prints_only_news", commands::followed),
    ("the_command_release_says_what_is_lost_and_lets_a_workload_go", commands::released),
    ("the_command_doctor_names_every_broken_link_and_is_silent_where_all_is_well", doctor::of_workloads),
];

/// Told afterwards, one after the other, in this order: what is held to a second, and what takes Lockstep down.
pub(crate) const ALONE: &[Story] = &[
    ("no_request_is_lost_behind_haproxy", zero_loss::nothing_is_lost),
    ("a_pod_is_ready_only_once_the_registry_acknowledged", registration::ready_once_acknowledged),
    ("a_deleted_pod_is_drained_stopped_after_its_sleep_and_reaped_once_let_go", registration::a_deleted_pod),
    ("the_leader_is_killed_in_the_middle_of_a_rollout", trouble::the_leader_is_killed),
    ("lockstep_down_lets_pods_through_or_refuses_them", trouble::lockstep_is_down),
    ("without_lockstep_kubectl_alone_lets_pods_go", break_glass::without_lockstep),
    ("the_commands_of_the_documentation_run_as_they_stand", documentation::commands),
    ("the_dashboard_shows_a_rollout", documentation::dashboard),
    ("a_broken_configuration_is_refused_and_locks_nobody_out", configuration::a_broken_configuration),
    ("an_upgrade_keeps_what_the_program_wrote", end::an_upgrade),
    ("replicas_are_replaced_while_pods_are_created", availability::replaced_while_pods_are_created),
    ("one_of_two_nodes_goes_while_pods_are_created", loss::one_of_two_nodes_goes),
    ("an_upgrade_in_the_middle_of_a_rollout", installs::upgraded_in_the_middle),
    ("a_second_installation_is_refused_and_one_by_force_does_no_harm", installs::doubled),
    ("nothing_that_lockstep_asked_for_was_forbidden", end::no_request_was_forbidden),
    ("every_right_of_lockstep_was_used", end::no_right_is_spare),
    ("no_secret_is_told_by_anything_that_lockstep_says", end::no_secret_is_told),
    ("the_command_doctor_names_what_was_changed_since_a_pod_was_made", doctor::of_what_was_changed_since),
    ("the_command_doctor_names_what_is_broken_of_lockstep_itself", doctor::of_lockstep_itself),
    ("the_api_server_is_restarted_in_the_middle_of_a_rollout", trouble::the_api_server_restarts),
    ("nobody_is_owed_anything", end::no_debt_is_left),
    ("an_uninstall_in_the_middle_leaves_no_pod_held", end::an_uninstall),
    ("helm_3_leads_from_the_first_chart_to_this_one_and_back", installs::from_the_first_chart_by_helm_3),
    ("helm_4_leads_from_the_first_chart_to_this_one_and_back", installs::from_the_first_chart_by_helm_4),
    ("no_pod_fails_while_certificates_of_short_lives_come_and_go", certificates::short_lives),
];

/// Told only where they are asked for (`--ignored`): one takes half an hour, the other needs a program that no other story needs.
pub(crate) const LONG: &[Story] =
    &[("cert_manager_issues_and_renews_while_pods_are_created", cert_manager::issues_and_renews), ("zero_loss", zero_loss::everything)];

/// The condition of that type.
pub(crate) fn condition<'p>(pod: &'p Pod, kind: &str) -> Option<&'p PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition of that type is True.
pub(crate) fn holds(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition.status == "True")
}

/// Its name.
pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().expect("every pod has a name")
}

/// Its UID.
pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().expect("every pod has a UID")
}

/// A pod in a few words, for complaints.
pub(crate) fn seen(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let conditions: Vec<String> =
        conditions.map(|one| format!("{}={} {}", one.type_, one.status, one.reason.as_deref().unwrap_or_default())).collect();
    format!("{} deleted={} {}", name(pod), pod.metadata.deletion_timestamp.is_some(), conditions.join(", "))
}

/// Pods of the namespace's workload that nobody has deleted.
pub(crate) fn living(world: &World, namespace: &str) -> Vec<Pod> {
    world.cluster.pods(namespace, "app=web").into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

/// Waits until exactly that many pods live and are Ready, and answers them.
pub(crate) fn await_ready(world: &World, namespace: &str, count: usize) -> Vec<Pod> {
    eventually(&format!("{count} pods of {namespace} are Ready"), SOON, || {
        let pods = living(world, namespace);
        if pods.len() == count && pods.iter().all(|pod| holds(pod, "Ready")) {
            return Ok(pods);
        }
        Err(pods.iter().map(seen).collect::<Vec<_>>().join("; "))
    })
}

/// Waits until exactly that many pods live, all Ready, and the registry lists them and nothing else; answers them.
pub(crate) fn await_active(world: &World, namespace: &str, count: usize) -> Vec<Pod> {
    let pods = await_ready(world, namespace, count);
    let registry = world.registry();
    eventually(&format!("the registry lists the pods of {namespace} as active and nothing else"), SOON, || {
        let targets = registry.targets(namespace);
        let listed: BTreeSet<&str> = targets.iter().map(|target| target.uid.as_str()).collect();
        let right = targets.len() == count && targets.iter().all(|target| target.state == "active");
        if right && pods.iter().all(|pod| listed.contains(uid(pod))) { Ok(()) } else { Err(format!("{targets:?}")) }
    });
    pods
}

/// Waits until neither pod nor target is left.
pub(crate) fn await_clean(world: &World, namespace: &str) {
    await_none(world, namespace);
    assert_eq!(world.registry().targets(namespace), [], "a target outlived its pod in {namespace}");
}

/// Waits until Events of the pod, which may be gone, have all these reasons.
pub(crate) fn await_told(world: &World, namespace: &str, pod: &str, reasons: &[&str]) {
    eventually(&format!("Events of {namespace}/{pod} say {reasons:?}"), SOON, || {
        let told = world.cluster.events(namespace, pod);
        let misses = reasons.iter().any(|wanted| told.iter().all(|(reason, _)| reason != wanted));
        if misses { Err(format!("{told:?}")) } else { Ok(()) }
    });
}

/// Waits until `kubectl describe` of the pod shows all these words.
pub(crate) fn described(world: &World, namespace: &str, pod: &str, words: &[&str]) {
    eventually(&format!("kubectl describe of {namespace}/{pod} shows {words:?}"), SOON, || {
        let shown = world.cluster.kubectl(&["describe", "pod", "--namespace", namespace, pod]);
        if words.iter().all(|word| shown.contains(word)) { Ok(()) } else { Err(shown) }
    });
}

/// Whether a target of the service drains; what is listed where none does.
pub(crate) fn draining(registry: &Registry<'_>, service: &str) -> Result<(), String> {
    let targets = registry.targets(service);
    if targets.iter().any(|target| target.state == "draining") { Ok(()) } else { Err(format!("{targets:?}")) }
}

/// Whether our finalizer holds it.
pub(crate) fn carries_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == "lockstep.dev/deregistered")
}

/// Exit code of its container, once that has ended.
pub(crate) fn exit_code(pod: &Pod) -> Option<i32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code)
}

/// Restarts the workload of a namespace and waits until every pod is a new one.
pub(crate) fn roll(world: &World, namespace: &str, kind: &str) {
    let workload = format!("{kind}/web");
    world.cluster.kubectl(&["rollout", "restart", &workload, "--namespace", namespace]);
    await_rolled(world, namespace, kind);
}

/// Evicts a pod through the API, as a drain does, if disruption budgets allow it.
pub(crate) fn evict(world: &World, namespace: &str, pod: &str) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": namespace } });
    let output = world.cluster.attempt("kubectl", &["create", "--raw", &path, "-f", "-"], &eviction.to_string());
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The fewest endpoints of a service that were active at one moment while that went on.
pub(crate) fn fewest_active(world: &World, service: &str, during: impl FnOnce()) -> usize {
    let registry = world.registry();
    fewest(|| registry.uids(service, "active").len(), during)
}

/// The fewest that were counted at one moment while that went on.
pub(crate) fn fewest(count: impl Fn() -> usize + Send, during: impl FnOnce()) -> usize {
    let observe = move |over: &AtomicBool| {
        let mut fewest = usize::MAX;
        while !over.load(Ordering::Relaxed) {
            fewest = fewest.min(count());
        }
        fewest
    };
    beside(observe, during)
}

/// Does one thing while another goes on; `work` ends when it is told that the other is over, and its result is the answer.
pub(crate) fn beside<T: Send>(work: impl FnOnce(&AtomicBool) -> T + Send, during: impl FnOnce()) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&over));
        // However it ends, the work must end too, or the scope would wait for it.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        over.store(true, Ordering::Relaxed);
        let worked = working.join().expect("the work does not panic");
        ended.map_or_else(|panic| std::panic::resume_unwind(panic), |()| worked)
    })
}

/// Waits until a rollout is over.
pub(crate) fn await_rolled(world: &World, namespace: &str, kind: &str) {
    world.cluster.kubectl(&["rollout", "status", &format!("{kind}/web"), "--namespace", namespace, "--timeout", "120s"]);
}

/// Deletes the workload of a namespace, and with it its pods.
pub(crate) fn delete_workload(world: &World, namespace: &str, kind: &str) {
    world.cluster.kubectl(&["delete", kind, "web", "--namespace", namespace]);
}

/// Waits until no pod object of the workload is left.
pub(crate) fn await_none(world: &World, namespace: &str) {
    eventually(&format!("no pod of {namespace} is left"), SOON, || {
        let pods = world.cluster.pods(namespace, "app=web");
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
}
