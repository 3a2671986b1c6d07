//! JSON of the API server → the trimmed views of the reconciler.
//!
//! Ten thousand pods must fit into tens of megabytes while they are listed, so a page is decoded item by item and only what a view
//! holds is kept.
//!
//! Invariant: decoding an object is total: an unknown, missing or odd field never makes it unreadable, and an odd field never looks
//! like leave to let a pod go.
//! Absent on purpose: requests (`api`), what a field means (`registration`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api;
use super::loose::{Flag, List, Maybe, Number, Object, Text, Texts};
use crate::names;
use crate::pod::{Condition, ContainerPort, ContainerView, Deletion, Owner, Phase, PodView};
use crate::reconcile::cluster::{ApiError, NodeView, UnmanagedPod};
use crate::registration::record::Record;
use crate::target::{PodKey, PodUid};

/// What the API server assumes where a deletion does not name its grace period.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// A page of a list whose items are not decoded yet.
#[derive(Deserialize)]
pub(crate) struct RawPage<'a> {
    #[serde(default)]
    pub(crate) metadata: PageMetadata,
    #[serde(borrow, default)]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

/// Where a page stands in its list.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PageMetadata {
    pub(crate) resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

impl PageMetadata {
    /// Token of the next page.
    pub(crate) fn next(&self) -> Option<String> {
        (!self.next.is_empty()).then(|| self.next.clone())
    }
}

/// A pod, trimmed.
pub(crate) fn pod(json: &str) -> Result<PodView, ApiError> {
    let pod: Object<Pod<'_>> = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    Ok(view(pod.0))
}

/// What adoption needs of a pod's metadata.
pub(crate) fn unmanaged(json: &str) -> Result<UnmanagedPod, ApiError> {
    let Object(OnlyMetadata { metadata: Object(meta) }) = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    let job = meta.owner_references.0.iter().map(|owner| &owner.0);
    let job = job.filter(|owner| owner.controller.0).any(|owner| owner.kind.is("Job") && owner.in_group("batch"));
    Ok(UnmanagedPod {
        deleting: meta.deletion_timestamp.0.is_some(),
        mirror: meta.annotations.0.contains_key(MIRROR_ANNOTATION),
        job,
        released: meta.annotations.0.contains_key(names::RELEASED_ANNOTATION),
        finalizer: meta.finalizers.0.iter().any(|finalizer| finalizer.is(names::FINALIZER)),
        key: key(meta.namespace, meta.name),
        uid: PodUid::new(meta.uid.owned()),
        labels: meta.labels.0,
    })
}

/// A node, trimmed.
pub(crate) fn node(json: &str) -> Result<NodeView, ApiError> {
    let Object(node): Object<Node<'_>> = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    let tainted = |key: &str| node.spec.0.taints.0.iter().any(|taint| taint.0.key.is(key));
    let ready = node.status.0.conditions.0.iter().any(|condition| condition.0.type_.is("Ready") && condition.0.status.is("True"));
    Ok(NodeView {
        ready,
        unreachable: tainted("node.kubernetes.io/unreachable"),
        out_of_service: tainted("node.kubernetes.io/out-of-service"),
        name: node.metadata.0.name.owned().into(),
        kubelet_version: node.status.0.node_info.0.kubelet_version.owned(),
    })
}

/// Name of an object.
pub(crate) fn name(json: &str) -> Result<Arc<str>, ApiError> {
    let Object(OnlyMetadata { metadata }) = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    Ok(metadata.0.name.owned().into())
}

/// The text under `key` of a ConfigMap.
pub(crate) fn config_map_text(json: &str, key: &str) -> Result<Option<Arc<str>>, ApiError> {
    let Object(mut map): Object<ConfigMap> = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    Ok(map.data.0.remove(key).map(Arc::from))
}

/// Resource version and decoded data of a Secret; values that are no text are left out.
pub(crate) fn secret(json: &str) -> Result<(String, BTreeMap<String, String>), ApiError> {
    let Object(ConfigMap { data }) = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    let decoded = data.0.into_iter().filter_map(|(key, value)| Some((key, base64_text(&value)?)));
    Ok((resource_version(json)?, decoded.collect()))
}

/// Names of the webhooks of a configuration that call a Service of `namespace`, or a URL, each with its caBundle.
pub(crate) fn webhooks(json: &str, namespace: &str) -> Result<Vec<(String, String)>, ApiError> {
    let Object(Webhooks { webhooks }) = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    let bundle = |client: &ClientConfig<'_>| client.ca_bundle.0.as_deref().and_then(base64_text).unwrap_or_default();
    let calls_us = |client: &ClientConfig<'_>| client.service.0.namespace.0.as_deref().is_none_or(|theirs| theirs == namespace);
    let ours = webhooks.0.into_iter().filter(|Object(webhook)| calls_us(&webhook.client_config.0));
    Ok(ours.map(|Object(webhook)| (webhook.name.owned(), bundle(&webhook.client_config.0))).collect())
}

/// Resource version of an object.
pub(crate) fn resource_version(json: &str) -> Result<String, ApiError> {
    let Object(OnlyMetadata { metadata }) = serde_json::from_str(json).map_err(|error| api::unreadable(&error))?;
    Ok(metadata.0.resource_version.owned())
}

/// The kubelet's mark of a pod that it runs from a file.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Object<Metadata<'a>>,
    #[serde(borrow)]
    spec: Object<PodSpec<'a>>,
    #[serde(borrow)]
    status: Object<PodStatus<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OnlyMetadata<'a> {
    #[serde(borrow)]
    metadata: Object<Metadata<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    namespace: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(borrow)]
    resource_version: Text<'a>,
    labels: Texts,
    annotations: Texts,
    #[serde(borrow)]
    finalizers: List<Text<'a>>,
    #[serde(borrow)]
    owner_references: List<Object<OwnerReference<'a>>>,
    #[serde(borrow)]
    deletion_timestamp: Text<'a>,
    deletion_grace_period_seconds: Number,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnerReference<'a> {
    #[serde(borrow)]
    api_version: Text<'a>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    controller: Flag,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec<'a> {
    #[serde(borrow)]
    node_name: Text<'a>,
    #[serde(borrow)]
    restart_policy: Text<'a>,
    #[serde(borrow)]
    readiness_gates: List<Object<Gate<'a>>>,
    #[serde(borrow)]
    containers: List<Object<Container<'a>>>,
    #[serde(borrow)]
    init_containers: List<Object<Container<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Gate<'a> {
    #[serde(borrow)]
    condition_type: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    restart_policy: Text<'a>,
    #[serde(borrow)]
    ports: List<Object<Port<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    container_port: Number,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus<'a> {
    #[serde(borrow)]
    phase: Text<'a>,
    #[serde(borrow, rename = "podIP")]
    pod_ip: Text<'a>,
    #[serde(borrow, rename = "podIPs")]
    pod_ips: List<Object<Address<'a>>>,
    #[serde(borrow)]
    conditions: List<Object<StatusCondition<'a>>>,
    #[serde(borrow)]
    container_statuses: List<Object<ContainerStatus<'a>>>,
    #[serde(borrow)]
    init_container_statuses: List<Object<ContainerStatus<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address<'a> {
    #[serde(borrow)]
    ip: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusCondition<'a> {
    #[serde(borrow, rename = "type")]
    type_: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow)]
    reason: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow)]
    last_transition_time: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStatus<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    state: Object<ContainerState<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState<'a> {
    #[serde(borrow)]
    terminated: Maybe<Terminated<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated<'a> {
    #[serde(borrow)]
    finished_at: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Node<'a> {
    #[serde(borrow)]
    metadata: Object<Metadata<'a>>,
    #[serde(borrow)]
    spec: Object<NodeSpec<'a>>,
    #[serde(borrow)]
    status: Object<NodeStatus<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec<'a> {
    #[serde(borrow)]
    taints: List<Object<Taint<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Taint<'a> {
    #[serde(borrow)]
    key: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus<'a> {
    #[serde(borrow)]
    conditions: List<Object<StatusCondition<'a>>>,
    #[serde(borrow)]
    node_info: Object<NodeInfo<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo<'a> {
    #[serde(borrow)]
    kubelet_version: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: Texts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Webhooks<'a> {
    #[serde(borrow)]
    webhooks: List<Object<Webhook<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Webhook<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    client_config: Object<ClientConfig<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConfig<'a> {
    #[serde(borrow)]
    ca_bundle: Text<'a>,
    #[serde(borrow)]
    service: Object<Metadata<'a>>,
}

fn view(Pod { metadata: Object(meta), spec: Object(spec), status: Object(status) }: Pod<'_>) -> PodView {
    let controller = meta.owner_references.0.into_iter().map(|owner| owner.0).find(|owner| owner.controller.0);
    PodView {
        resource_version: meta.resource_version.owned(),
        record: Record::read(meta.annotations.0.get(names::RECORD_ANNOTATION).map(String::as_str)),
        released: meta.annotations.0.contains_key(names::RELEASED_ANNOTATION),
        finalizer: meta.finalizers.0.iter().any(|finalizer| finalizer.is(names::FINALIZER)),
        gated: spec.readiness_gates.0.iter().any(|gate| gate.0.condition_type.is(names::GATE)),
        controller: controller.map(Owner::from),
        deletion: deletion(&meta.deletion_timestamp, meta.deletion_grace_period_seconds),
        phase: phase(&status.phase),
        addresses: addresses(&status),
        ports: ports(&spec),
        containers: containers(&spec, &status),
        finished: finished(&spec, &status),
        completes: spec.restart_policy.is("Never") || spec.restart_policy.is("OnFailure"),
        containers_ready: condition(&status, "ContainersReady"),
        gate: condition(&status, names::GATE),
        claims: condition(&status, names::CLAIMS),
        node: spec.node_name.0.filter(|name| !name.is_empty()).map(Arc::from),
        key: key(meta.namespace, meta.name),
        uid: PodUid::new(meta.uid.owned()),
        labels: meta.labels.0.into_iter().collect(),
    }
}

fn base64_text(value: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(value).ok()?).ok()
}

fn key(namespace: Text<'_>, name: Text<'_>) -> PodKey {
    PodKey::new(namespace.owned(), name.owned())
}

fn deletion(at: &Text<'_>, grace: Number) -> Option<Deletion> {
    let at = at.0.as_deref()?;
    // A time that cannot be read is never past: only what the kubelet reports lets such a pod go.
    let at = at.parse().unwrap_or(Timestamp::MAX);
    Some(Deletion { at, grace_seconds: grace.0.unwrap_or(DEFAULT_GRACE_SECONDS) })
}

fn phase(text: &Text<'_>) -> Phase {
    match text.0.as_deref() {
        Some("Pending") => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => Phase::Unknown,
    }
}

fn addresses(status: &PodStatus<'_>) -> Vec<IpAddr> {
    let parse = |text: &Text<'_>| text.0.as_deref().and_then(|ip| ip.parse().ok());
    let mut addresses: Vec<IpAddr> = parse(&status.pod_ip).into_iter().collect();
    for address in status.pod_ips.0.iter().filter_map(|address| parse(&address.0.ip)) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Containers that end with the pod: regular ones, then restartable init containers.
fn lasting<'s, 'a>(spec: &'s PodSpec<'a>) -> impl Iterator<Item = &'s Container<'a>> {
    let sidecars = spec.init_containers.0.iter().filter(|container| container.0.restart_policy.is("Always"));
    spec.containers.0.iter().chain(sidecars).map(|container| &container.0)
}

fn ports(spec: &PodSpec<'_>) -> Vec<ContainerPort> {
    let ports = lasting(spec).flat_map(|container| &container.ports.0);
    let ports = ports.filter_map(|port| Some((port, u16::try_from(port.0.container_port.0?).ok().filter(|number| *number > 0)?)));
    ports.map(|(port, number)| ContainerPort { name: port.0.name.0.as_deref().map(Arc::from), number }).collect()
}

fn containers(spec: &PodSpec<'_>, status: &PodStatus<'_>) -> Vec<ContainerView> {
    let view = |state: Option<&ContainerState<'_>>| ContainerView {
        terminated: state.is_some_and(|state| state.terminated.0.is_some()),
        reported: state.is_some(),
    };
    states(spec, status).map(view).collect()
}

fn finished(spec: &PodSpec<'_>, status: &PodStatus<'_>) -> Option<Timestamp> {
    let times = states(spec, status).filter_map(|state| state?.terminated.0.as_ref()?.finished_at.0.as_deref()?.parse().ok());
    times.max()
}

/// The reported state of each lasting container.
fn states<'s, 'a>(spec: &'s PodSpec<'a>, status: &'s PodStatus<'a>) -> impl Iterator<Item = Option<&'s ContainerState<'a>>> {
    let statuses: BTreeMap<&str, &ContainerState<'a>> = (status.container_statuses.0.iter().chain(&status.init_container_statuses.0))
        .filter_map(|status| Some((status.0.name.0.as_deref()?, &status.0.state.0)))
        .collect();
    lasting(spec).map(move |container| statuses.get(container.name.0.as_deref().unwrap_or_default()).copied())
}

fn condition(status: &PodStatus<'_>, type_: &str) -> Option<Condition> {
    let condition = &status.conditions.0.iter().find(|condition| condition.0.type_.is(type_))?.0;
    let text = |text: &Text<'_>| text.0.as_deref().unwrap_or_default().to_owned();
    Some(Condition {
        status: condition.status.is("True"),
        reason: text(&condition.reason),
        message: text(&condition.message),
        since: condition.last_transition_time.0.as_deref().and_then(|time| time.parse().ok()),
    })
}

impl OwnerReference<'_> {
    fn in_group(&self, group: &str) -> bool {
        self.api_version.0.as_deref().and_then(|version| version.split_once('/')).is_some_and(|(of, _)| of == group)
    }
}

impl From<OwnerReference<'_>> for Owner {
    fn from(owner: OwnerReference<'_>) -> Self {
        Self { api_version: owner.api_version.owned(), kind: owner.kind.owned(), name: owner.name.owned(), uid: owner.uid.owned() }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const RUNNING: &str = include_str!("examples/pod-running.json");
    const ENDED: &str = include_str!("examples/pod-ended.json");
    const NODE: &str = include_str!("examples/node.json");

    fn changed(json: &str, change: impl FnOnce(&mut Value)) -> String {
        let mut value = serde_json::from_str(json).unwrap();
        change(&mut value);
        value.to_string()
    }

    #[test]
    fn a_running_pod_as_a_kubelet_reports_it() {
        let pod = pod(RUNNING).unwrap();
        assert_eq!(pod.key, PodKey::new("shop", "web-6fb4c8fc88-nn2cr"));
        assert_eq!(pod.uid.as_str(), "81159174-a90e-485f-9b05-26b08b337c4f");
        assert_eq!(pod.resource_version, "324");
        assert_eq!(pod.labels.get("app"), Some("web"));
        assert!(!pod.record.bindings.is_empty());
        assert!(pod.finalizer && pod.gated && !pod.released);
        assert_eq!(pod.controller.unwrap().kind, "ReplicaSet");
        assert_eq!(pod.deletion, None);
        assert_eq!(pod.node.as_deref(), Some("node1"));
        assert_eq!(pod.phase, Phase::Running);
        assert_eq!(pod.addresses, ["10.88.1.2".parse::<IpAddr>().unwrap()]);
        let ports: Vec<_> = pod.ports.iter().map(|port| (port.name.as_deref(), port.number)).collect();
        assert_eq!(ports, [(Some("http"), 8080), (None, 9090), (Some("metrics"), 9000)]);
        assert_eq!(pod.containers, [ContainerView { terminated: false, reported: true }; 2], "the plain init container does not count");
        let ready = pod.containers_ready.unwrap();
        assert!(ready.status);
        assert_eq!(ready.since, Some("2026-11-29T16:53:42Z".parse().unwrap()));
        assert_eq!((pod.gate, pod.claims), (None, None));
        assert_eq!((pod.finished, pod.completes), (None, false));
    }

    #[rstest]
    #[case("Never", true)]
    #[case("OnFailure", true)]
    #[case("Always", false)]
    fn restart_policies(#[case] policy: &str, #[case] completes: bool) {
        assert_eq!(pod(&changed(RUNNING, |pod| pod["spec"]["restartPolicy"] = policy.into())).unwrap().completes, completes);
    }

    #[test]
    fn an_ended_pod_that_only_the_finalizer_holds() {
        let pod = pod(ENDED).unwrap();
        assert_eq!(pod.phase, Phase::Failed);
        assert_eq!(pod.deletion, Some(Deletion { at: "2026-11-29T16:53:46Z".parse().unwrap(), grace_seconds: 3 }));
        assert_eq!(pod.containers, [ContainerView { terminated: true, reported: true }; 2]);
        assert_eq!(pod.finished, Some("2026-11-29T16:53:44Z".parse().unwrap()), "the init container ended earlier");
        assert!(!pod.containers_ready.unwrap().status);
    }

    #[test]
    fn our_conditions_are_found_among_others() {
        let json = changed(RUNNING, |pod| {
            let ours =
                json!({"type": names::GATE, "status": "False", "reason": "Registering", "message": "waits", "lastTransitionTime": null});
            let claims = json!({"type": names::CLAIMS, "status": "True", "reason": "Claimed", "message": "lan/web 10.0.0.1:80"});
            pod["status"]["conditions"].as_array_mut().unwrap().extend([ours, claims]);
        });
        let pod = pod(&json).unwrap();
        let expected = Condition { status: false, reason: "Registering".into(), message: "waits".into(), since: None };
        assert_eq!(pod.gate, Some(expected));
        assert_eq!(pod.claims.unwrap().message, "lan/web 10.0.0.1:80");
    }

    #[test]
    fn both_addresses_with_the_primary_first() {
        let json = changed(RUNNING, |pod| {
            pod["status"]["podIP"] = "fd00::7".into();
            pod["status"]["podIPs"] = json!([{"ip": "fd00::7"}, {"ip": "10.0.0.7"}, {"ip": "odd"}]);
        });
        let expected: Vec<IpAddr> = vec!["fd00::7".parse().unwrap(), "10.0.0.7".parse().unwrap()];
        assert_eq!(pod(&json).unwrap().addresses, expected);
    }

    /// Every value of the pod, one after the other, is replaced by something of another type; the pod stays readable.
    #[rstest]
    #[case(json!(null))]
    #[case(json!(true))]
    #[case(json!(-7))]
    #[case(json!(1e300))]
    #[case(json!("odd"))]
    #[case(json!([1, {"a": []}]))]
    #[case(json!({"odd": [1]}))]
    fn nothing_odd_makes_a_pod_unreadable(#[case] odd: Value) {
        for json in [RUNNING, ENDED] {
            let whole: Value = serde_json::from_str(json).unwrap();
            let pointers = pointers(&whole, String::new());
            assert!(pointers.len() > 100);
            for pointer in pointers {
                let mut changed = whole.clone();
                *changed.pointer_mut(&pointer).unwrap() = odd.clone();
                let text = changed.to_string();
                assert!(pod(&text).is_ok() && unmanaged(&text).is_ok() && name(&text).is_ok(), "{pointer}");
            }
        }
    }

    fn pointers(value: &Value, at: String) -> Vec<String> {
        let escape = |key: &String| key.replace('~', "~0").replace('/', "~1");
        let mut all: Vec<String> = match value {
            Value::Object(map) => map.iter().flat_map(|(key, value)| pointers(value, format!("{at}/{}", escape(key)))).collect(),
            Value::Array(list) => list.iter().enumerate().flat_map(|(i, value)| pointers(value, format!("{at}/{i}"))).collect(),
            _ => Vec::new(),
        };
        all.push(at);
        all
    }

    #[test]
    fn a_deletion_whose_time_is_odd_is_never_past() {
        let json = changed(ENDED, |pod| pod["metadata"]["deletionTimestamp"] = "soon".into());
        assert_eq!(pod(&json).unwrap().deletion.unwrap().at, Timestamp::MAX);
    }

    #[test]
    fn a_container_without_a_status_is_not_terminated() {
        let json = changed(ENDED, |pod| pod["status"]["initContainerStatuses"] = Value::Null);
        assert_eq!(pod(&json).unwrap().containers[1], ContainerView { terminated: false, reported: false });
    }

    #[rstest]
    #[case("batch/v1", "Job", true, true)]
    #[case("batch/v1", "Job", false, false)]
    #[case("example.org/v1", "Job", true, false)]
    #[case("batch/v1", "CronJob", true, false)]
    #[case("apps/v1", "ReplicaSet", true, false)]
    fn jobs_are_told_by_group_kind_and_control(#[case] api: &str, #[case] kind: &str, #[case] controller: bool, #[case] job: bool) {
        let json = changed(RUNNING, |pod| {
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": api, "kind": kind, "name": "x", "uid": "u", "controller": controller}]);
        });
        assert_eq!(unmanaged(&json).unwrap().job, job);
    }

    #[test]
    fn metadata_of_an_unmanaged_pod() {
        let json =
            changed(ENDED, |pod| pod["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: "x", names::RELEASED_ANNOTATION: "true"}));
        let pod = unmanaged(&json).unwrap();
        assert!(pod.deleting && pod.mirror && pod.released);
        assert_eq!(pod.labels["app"], "web");
    }

    #[rstest]
    #[case(json!([]), false, false)]
    #[case(json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]), true, false)]
    #[case(json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}, {"key": "x"}]), false, true)]
    fn a_node_with_its_taints(#[case] taints: Value, #[case] unreachable: bool, #[case] out_of_service: bool) {
        let node = node(&changed(NODE, |node| node["spec"]["taints"] = taints)).unwrap();
        assert_eq!((&*node.name, node.kubelet_version.as_str(), node.ready), ("node1", "v1.36.3", true));
        assert_eq!((node.unreachable, node.out_of_service), (unreachable, out_of_service));
    }

    #[test]
    fn a_config_map_without_the_key_has_no_text() {
        let map = r#"{"metadata":{"name":"c"},"data":{"config.yaml":"a: 1"}}"#;
        assert_eq!(config_map_text(map, "config.yaml").unwrap().as_deref(), Some("a: 1"));
        assert_eq!(config_map_text(map, "other").unwrap(), None);
        assert_eq!(config_map_text("{}", "config.yaml").unwrap(), None);
    }

    #[test]
    fn a_secret_and_a_webhook_configuration_are_decoded() {
        let secret = secret(r#"{"metadata":{"resourceVersion":"7"},"data":{"tls.crt":"aGVsbG8=","odd":"*","n":1}}"#).unwrap();
        assert_eq!(secret, ("7".into(), BTreeMap::from([("tls.crt".into(), "hello".into())])));
        let hooks = r#"{"webhooks":[
            {"name":"a","clientConfig":{"caBundle":"aGVsbG8=","service":{"namespace":"ours","name":"lockstep"}}},
            {"name":"b","clientConfig":{"url":"https://192.0.2.1/mutate"}},
            {"name":"c","clientConfig":{"service":{"namespace":"theirs","name":"lockstep"}}}]}"#;
        assert_eq!(webhooks(hooks, "ours").unwrap(), [("a".into(), "hello".into()), ("b".into(), String::new())]);
    }
}
