//! Pods of the simulated API server, and what kubelets, users and controllers do to them.
//!
//! A pod object keeps what the product can see or the judges need; every change goes through [`World::change`].
//!
//! Invariant: each change is one resource version, one entry of the watch's log, and a pod that nothing holds is reaped in it.
//! Invariant: `Ready` and `ContainersReady` follow from containers and gates; nobody writes them.
//! Absent on purpose: reactions; what a kubelet does, and when, is told by the story.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lockstep::names;
use lockstep::pod::{Condition, ContainerPort, ContainerView, Deletion, Labels, Owner, Phase, PodView};
use lockstep::reconcile::cluster::NodeView;
use lockstep::registration::record::Record;
use lockstep::target::{PodKey, PodUid, ServiceId};

use super::invariants::Claim;
use super::record::{Milestone, What};
use super::{Moment, World};
use crate::executor::ProcessId;

/// Number of a pod in its world; every incarnation has its own.
pub(crate) type PodId = usize;

/// A pod object, and what is remembered of it once it is gone.
pub(crate) struct Pod {
    pub(crate) handle: Arc<str>,
    pub(crate) key: PodKey,
    pub(crate) uid: PodUid,
    pub(crate) version: u64,
    pub(crate) spec: Spec,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) foreign_finalizers: Vec<String>,
    pub(crate) finalizer: bool,
    pub(crate) released: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) deletion: Option<Deletion>,
    pub(crate) deleted_first: Option<Moment>,
    pub(crate) forced: Option<Moment>,
    pub(crate) ended: Option<Moment>,
    terminated: usize,
    /// When its labels last changed.
    pub(crate) labelled: Duration,
    /// When the last container that counts was seen to end.
    pub(crate) finished: Option<jiff::Timestamp>,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) phase: Phase,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) containers: Vec<Container>,
    pub(crate) foreign: BTreeMap<String, String>,
    pub(crate) containers_ready: Condition,
    pub(crate) ready_since: Option<Moment>,
    /// Version in which `ContainersReady` last changed.
    pub(crate) ready_version: u64,
    pub(crate) gate: Option<Condition>,
    pub(crate) claims_condition: Option<Condition>,
    pub(crate) claims: Vec<Claim>,
    /// Where a claim of it was last dropped, and when.
    pub(crate) dropped: BTreeMap<ServiceId, Duration>,
    /// Where a register of it was ever sent.
    pub(crate) registered: BTreeSet<(ServiceId, SocketAddr)>,
    /// When the object went away.
    pub(crate) gone: Option<Duration>,
    pub(crate) view: Arc<PodView>,
}

/// What is fixed for a pod's life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    pub(crate) gated: bool,
    pub(crate) foreign_gates: Vec<String>,
    pub(crate) controller: Option<Owner>,
    pub(crate) mirror: bool,
    /// `restartPolicy` is not `Always`.
    pub(crate) completes: bool,
}

/// A container and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) init: bool,
    pub(crate) restartable: bool,
    pub(crate) ports: Vec<ContainerPort>,
    pub(crate) state: ContainerState,
    pub(crate) ready: bool,
}

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ContainerState {
    Waiting,
    Running,
    Terminated,
}

/// A pod to be made.
pub(crate) struct NewPod {
    pub(crate) handle: Arc<str>,
    pub(crate) key: PodKey,
    pub(crate) spec: Spec,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) finalizer: bool,
    pub(crate) grace: Duration,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) containers: Vec<Container>,
}

impl Container {
    /// Whether it must be ready for the pod to be, and gone for it to be gone.
    pub(crate) fn counts(&self) -> bool {
        !self.init || self.restartable
    }

    /// Whether it is a plain init container that has ended.
    fn is_past(&self) -> bool {
        self.init && !self.restartable && self.state == ContainerState::Terminated
    }
}

impl Pod {
    /// No deletion, not ended, still there.
    pub(crate) fn is_live(&self) -> bool {
        self.gone.is_none() && self.deletion.is_none() && !self.is_terminal()
    }

    /// Phase `Succeeded` or `Failed`.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it carries our label.
    pub(crate) fn is_managed(&self) -> bool {
        self.labels.get(names::MANAGED_LABEL).is_some_and(|value| value == names::MANAGED_VALUE)
    }

    /// Whether the kubelet said that nothing of it runs any more.
    pub(crate) fn reported_gone(&self) -> bool {
        self.is_terminal() || self.containers.iter().filter(|one| one.counts()).all(|one| one.state == ContainerState::Terminated)
    }

    /// The condition `Ready`.
    pub(crate) fn is_ready(&self) -> bool {
        let gate = |type_: &String| {
            if type_ == names::GATE {
                self.gate.as_ref().is_some_and(|gate| gate.status)
            } else {
                self.foreign.get(type_).is_some_and(|status| status == "True")
            }
        };
        let ours = !self.spec.gated || self.gate.as_ref().is_some_and(|gate| gate.status);
        self.containers_ready.status && ours && self.spec.foreign_gates.iter().all(gate)
    }

    /// Changes the containers as the kubelet does when all of them are, or are not, ready.
    pub(crate) fn set_containers_ready(&mut self, ready: bool) {
        if ready {
            self.phase = Phase::Running;
        }
        for container in self.containers.iter_mut().filter(|one| !one.is_past()) {
            container.ready = ready;
            if ready {
                container.state = ContainerState::Running;
            }
        }
    }

    /// Changes one container.
    pub(crate) fn set_container(&mut self, name: &str, state: ContainerState) {
        for container in self.containers.iter_mut().filter(|one| one.name == name) {
            container.state = state;
            container.ready &= state == ContainerState::Running;
        }
    }

    /// Ends every container.
    pub(crate) fn terminate(&mut self) {
        for container in &mut self.containers {
            container.state = ContainerState::Terminated;
            container.ready = false;
        }
    }

    /// Changes the phase; the last two end every container.
    pub(crate) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        if self.is_terminal() {
            self.terminate();
        }
    }

    /// Releases it as the command does.
    pub(crate) fn release(&mut self, now: Moment) {
        self.annotations.insert(names::RELEASED_ANNOTATION.to_owned(), names::RELEASED_VALUE.to_owned());
        self.released.get_or_insert(now.at);
        self.finalizer = false;
        if self.spec.gated {
            let since = self.gate.as_ref().filter(|gate| gate.status).map_or(Some(now.wall), |gate| gate.since);
            self.gate = Some(Condition {
                status: true,
                reason: "Released".to_owned(),
                message: "Lockstep holds nothing of this pod.".to_owned(),
                since,
            });
        }
    }

    /// As the product sees it.
    fn look(&self) -> PodView {
        let counted = || self.containers.iter().filter(|one| one.counts());
        PodView {
            key: self.key.clone(),
            uid: self.uid.clone(),
            resource_version: self.version.to_string(),
            labels: self.labels.clone().into_iter().collect(),
            record: Record::read(self.annotations.get(names::RECORD_ANNOTATION).map(String::as_str)),
            released: self.annotations.contains_key(names::RELEASED_ANNOTATION),
            finalizer: self.finalizer,
            gated: self.spec.gated,
            controller: self.spec.controller.clone(),
            deletion: self.deletion,
            node: self.node.clone(),
            phase: self.phase,
            addresses: self.ips.clone(),
            ports: counted().flat_map(|one| one.ports.iter().cloned()).collect(),
            containers: counted()
                .map(|one| ContainerView { terminated: one.state == ContainerState::Terminated, reported: self.node.is_some() })
                .collect(),
            completes: self.spec.completes,
            finished: self.finished,
            containers_ready: Some(self.containers_ready.clone()),
            gate: self.gate.clone(),
            claims: self.claims_condition.clone(),
        }
    }
}

impl World {
    /// The pod of that handle.
    pub(crate) fn pod_of_handle(&self, handle: &str) -> Option<PodId> {
        self.by_handle.get(handle).copied()
    }

    /// The pod of that UID, gone or not.
    pub(crate) fn pod_of_uid(&self, uid: &PodUid) -> Option<PodId> {
        self.by_uid.get(uid).copied()
    }

    /// The object of that name.
    pub(crate) fn pod_of_key(&self, key: &PodKey) -> Option<PodId> {
        self.by_key.get(key).copied()
    }

    /// Every object, in order of namespace and name.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Pod> {
        self.by_key.values().map(|id| &self.pods[*id])
    }

    /// Makes a pod; `false` where its name is taken.
    pub(crate) fn create(&mut self, new: NewPod, finish: impl FnOnce(&mut Pod, Moment)) -> bool {
        if self.by_key.contains_key(&new.key) || self.by_handle.contains_key(&new.handle) {
            return false;
        }
        self.mention_namespace(&new.key.namespace);
        if let Some(node) = &new.node {
            self.mention_node(node);
        }
        let id = self.pods.len();
        let moment = self.moment();
        let uid = PodUid::new(format!("00000000-0000-4000-8000-{:012}", id + 1));
        let condition = Condition { status: false, reason: String::new(), message: String::new(), since: Some(moment.wall) };
        let mut pod = Pod {
            handle: new.handle.clone(),
            key: new.key.clone(),
            uid: uid.clone(),
            version: self.next_version(),
            spec: new.spec,
            labels: new.labels,
            annotations: new.annotations,
            foreign_finalizers: new.finalizers,
            finalizer: new.finalizer,
            released: None,
            grace: new.grace,
            deletion: None,
            deleted_first: None,
            forced: None,
            ended: None,
            finished: None,
            terminated: 0,
            labelled: moment.at,
            node: new.node,
            phase: Phase::Pending,
            ips: Vec::new(),
            containers: new.containers,
            foreign: BTreeMap::new(),
            containers_ready: condition,
            ready_since: None,
            ready_version: 0,
            gate: None,
            claims_condition: None,
            claims: Vec::new(),
            dropped: BTreeMap::new(),
            registered: BTreeSet::new(),
            gone: None,
            view: Arc::new(empty_view(&new.key, &uid)),
        };
        finish(&mut pod, moment);
        settle(&mut pod, moment);
        pod.view = Arc::new(pod.look());
        self.pods.push(pod);
        self.by_key.insert(new.key, id);
        self.by_uid.insert(uid, id);
        self.by_handle.insert(new.handle, id);
        self.tick();
        if self.seeded {
            self.note_shared_address(id);
        }
        self.publish(id, false);
        true
    }

    /// Changes a pod object: one write, one version, one event. Nothing where the object is gone.
    pub(crate) fn change(&mut self, id: PodId, write: impl FnOnce(&mut Pod, Moment)) {
        if self.pods[id].gone.is_some() {
            return;
        }
        let moment = self.moment();
        let version = self.next_version();
        let was_managed = self.pods[id].is_managed();
        let pod = &mut self.pods[id];
        let gate = pod.gate.as_ref().map(|gate| gate.status);
        let finalizer = pod.finalizer;
        let (ips, is_live, labels, claims) = (pod.ips.clone(), pod.is_live(), pod.labels.clone(), pod.claims.clone());
        write(pod, moment);
        if pod.labels != labels {
            pod.labelled = moment.at;
        }
        pod.version = version;
        settle(pod, moment);
        if pod.deletion.is_some_and(|deletion| deletion.grace_seconds == 0) && !pod.reported_gone() {
            pod.forced.get_or_insert(moment);
        }
        for claim in claims.iter().filter(|claim| !pod.claims.contains(claim)) {
            pod.dropped.insert(claim.service.clone(), moment.at);
        }
        pod.view = Arc::new(pod.look());
        let now_gate = pod.gate.as_ref().map(|gate| gate.status);
        let now_finalizer = pod.finalizer;
        let reaped =
            pod.deletion.is_some_and(|deletion| deletion.grace_seconds == 0) && !pod.finalizer && pod.foreign_finalizers.is_empty();
        if now_gate != gate
            && let Some(open) = now_gate
        {
            self.milestone(id, if open { What::GateTrue } else { What::GateFalse }, None);
        }
        if now_finalizer != finalizer {
            self.milestone(id, if now_finalizer { What::FinalizerAdded } else { What::FinalizerRemoved }, None);
        }
        self.tick();
        if self.seeded && (self.pods[id].ips != ips || !is_live) {
            self.note_shared_address(id);
        }
        if reaped { self.reap(id, was_managed) } else { self.publish(id, was_managed) }
    }

    /// Whether two pods that serve have one address: no cluster does that.
    fn note_shared_address(&mut self, id: PodId) {
        let pod = &self.pods[id];
        let shared = pod.is_live()
            && self.objects().any(|other| other.uid != pod.uid && other.is_live() && other.ips.iter().any(|ip| pod.ips.contains(ip)));
        self.impossible |= shared;
    }

    /// Takes the object away, whatever holds it.
    pub(crate) fn vanish(&mut self, id: PodId) {
        if self.pods[id].gone.is_some() {
            return;
        }
        let was_managed = self.pods[id].is_managed();
        let version = self.next_version();
        let had = std::mem::replace(&mut self.pods[id].finalizer, false);
        self.pods[id].foreign_finalizers.clear();
        self.pods[id].version = version;
        self.pods[id].view = Arc::new(self.pods[id].look());
        if had {
            self.milestone(id, What::FinalizerRemoved, None);
        }
        self.tick();
        self.reap(id, was_managed);
    }

    /// Deletes a pod through the API.
    pub(crate) fn delete(&mut self, id: PodId, grace: Option<Duration>) {
        self.change(id, |pod, moment| {
            let wanted = grace.unwrap_or(pod.grace);
            let wanted = if pod.node.is_none() || pod.is_terminal() { Duration::ZERO } else { wanted };
            let first = *pod.deleted_first.get_or_insert(moment);
            let seconds = i64::try_from(wanted.as_secs()).unwrap_or(i64::MAX);
            let seconds = pod.deletion.map_or(seconds, |deletion| deletion.grace_seconds.min(seconds));
            let at = first.wall.saturating_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(first.wall);
            pod.deletion = Some(Deletion { at, grace_seconds: seconds });
        });
    }

    /// The kubelet's last word: everything ended, and a delete with grace 0.
    pub(crate) fn final_delete(&mut self, id: PodId) {
        self.change(id, |pod, _| pod.terminate());
        self.delete(id, Some(Duration::ZERO));
    }

    /// Notes something that `order` can name.
    pub(crate) fn milestone(&mut self, pod: PodId, what: What, registry: Option<Arc<str>>) {
        let at = self.now;
        self.record.milestones.push(Milestone { at, pod, what, registry });
    }

    /// Whether the pod's node is lost.
    pub(crate) fn is_node_lost(&self, pod: &Pod) -> bool {
        pod.node.as_ref().is_some_and(|name| is_lost(self.nodes.get(name)))
    }

    /// Whether the pod's node is lost as far as a process was shown: a replica that reaches no API server is not told that a node is back.
    pub(crate) fn is_node_lost_to(&self, process: ProcessId, pod: &Pod) -> bool {
        pod.node.as_ref().is_some_and(|name| is_lost(self.processes[process].nodes.get(name)))
    }

    /// Whether nothing of the pod can run any more, as far as `goneWhen` asks.
    pub(crate) fn containers_gone(&self, pod: &Pod) -> bool {
        let node_gone = pod.node.as_ref().is_none_or(|name| self.nodes.get(name).is_none_or(|node| node.out_of_service));
        let past = pod.deletion.is_some_and(|deletion| {
            let after = self.in_force().map(|one| one.registration.unreachable_after).min().unwrap_or_default();
            self.exec.wall() >= deletion.at.saturating_add(after).unwrap_or(deletion.at)
        });
        pod.gone.is_some() || pod.reported_gone() || node_gone || past
    }

    fn reap(&mut self, id: PodId, was_managed: bool) {
        self.pods[id].gone = Some(self.now);
        let key = self.pods[id].key.clone();
        self.by_key.remove(&key);
        self.milestone(id, What::Reaped, None);
        self.publish(id, was_managed);
    }
}

fn is_lost(node: Option<&NodeView>) -> bool {
    node.is_none_or(|node| !node.ready || node.unreachable || node.out_of_service)
}

/// Brings what follows from the containers in line.
fn settle(pod: &mut Pod, moment: Moment) {
    let ready = pod.containers.iter().filter(|one| one.counts()).all(|one| one.ready) && !pod.is_terminal();
    if pod.containers_ready.status != ready || pod.ready_version == 0 {
        pod.containers_ready = Condition { status: ready, since: Some(moment.wall), ..pod.containers_ready.clone() };
        pod.ready_since = ready.then_some(moment);
        pod.ready_version = pod.version;
    }
    let terminated = pod.containers.iter().filter(|one| one.counts()).filter(|one| one.state == ContainerState::Terminated).count();
    if terminated > pod.terminated {
        pod.finished = Some(moment.wall);
    }
    pod.terminated = terminated;
    if terminated == 0 {
        pod.finished = None;
    }
    if pod.is_terminal() || pod.reported_gone() {
        pod.ended.get_or_insert(moment);
    }
}

fn empty_view(key: &PodKey, uid: &PodUid) -> PodView {
    PodView {
        key: key.clone(),
        uid: uid.clone(),
        resource_version: String::new(),
        labels: Labels::default(),
        record: Record::default(),
        released: false,
        finalizer: false,
        gated: false,
        controller: None,
        deletion: None,
        node: None,
        phase: Phase::Pending,
        addresses: Vec::new(),
        ports: Vec::new(),
        containers: Vec::new(),
        completes: false,
        finished: None,
        containers_ready: None,
        gate: None,
        claims: None,
    }
}
