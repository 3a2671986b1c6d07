//! The stories, and the looks at a pod that they share.
//!
//! Invariant: a story reads and writes only its own namespace and service; only the last ones touch Lockstep itself.
//! Absent on purpose: how things are applied and awaited (`cluster`, `world`).

pub(crate) mod admission;
pub(crate) mod cases;
pub(crate) mod configuration;
pub(crate) mod end;
pub(crate) mod findings;
pub(crate) mod generated;
pub(crate) mod registration;
pub(crate) mod trouble;
pub(crate) mod zero_loss;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};

use crate::Story;
use crate::cluster::eventually;
use crate::world::World;

/// Nothing that should happen takes longer, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Told at once.
pub(crate) const TOGETHER: &[Story] = &[
    ("a_pod_gets_gate_finalizer_label_record_and_sleep", admission::a_pod_is_prepared),
    ("a_namespace_without_the_label_sees_no_change", admission::no_label_no_change),
    ("every_case_of_admission_is_answered_over_tls", cases::every_case_over_tls),
    ("a_pod_that_is_taken_without_lockstep_is_taken_with_it", generated::what_is_taken_without_is_taken_with),
    ("findings_are_warnings_and_one_event_for_each_owner_and_code", findings::findings_are_told),
    ("a_rolling_update_never_has_fewer_endpoints_than_pods", registration::a_rolling_update),
    ("scaling_to_zero_in_the_middle_of_a_rollout_leaves_nothing", registration::scaled_to_zero),
    ("a_registry_that_is_down_holds_pods_and_says_so", trouble::a_registry_goes_down),
];

/// Told afterwards, one after the other, in this order: what is held to a second, and what takes Lockstep down.
pub(crate) const ALONE: &[Story] = &[
    ("no_request_is_lost_behind_haproxy", zero_loss::nothing_is_lost),
    ("a_pod_is_ready_only_once_the_registry_acknowledged", registration::ready_once_acknowledged),
    ("a_deleted_pod_is_drained_stopped_after_its_sleep_and_reaped_once_let_go", registration::a_deleted_pod),
    ("the_leader_is_killed_in_the_middle_of_a_rollout", trouble::the_leader_is_killed),
    ("lockstep_down_lets_pods_through_or_refuses_them", trouble::lockstep_is_down),
    ("a_broken_configuration_is_refused_and_locks_nobody_out", configuration::a_broken_configuration),
    ("an_upgrade_keeps_what_the_program_wrote", end::an_upgrade),
    ("nothing_that_lockstep_asked_for_was_forbidden", end::no_request_was_forbidden),
    ("an_uninstall_in_the_middle_leaves_no_pod_held", end::an_uninstall),
];

/// Told only where it is asked for (`--ignored`): it takes half an hour.
pub(crate) const LONG: &[Story] = &[("zero_loss", zero_loss::everything)];

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

/// Waits until no pod object of the workload is left.
pub(crate) fn await_none(world: &World, namespace: &str) {
    eventually(&format!("no pod of {namespace} is left"), SOON, || {
        let pods = world.cluster.pods(namespace, "app=web");
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(seen).collect::<Vec<_>>().join("; ")) }
    });
}
