//! Adoption: running pods of opted-in namespaces that nobody prepared are taken into care.
//!
//! A namespace is opted in while pods run in it, and admission that fails open lets pods through untouched; a look now and then finds them.
//!
//! Invariant: only pods that admission would have prepared are adopted; never one that is being deleted, and never with a gate.
//! Absent on purpose: a watch of all pods; the metadata of opted-in namespaces is listed page by page.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;

use super::Drivers;
use super::actor::{Actor, UNWATCHED};
use super::clock::{Clock, Instant};
use super::cluster::{ApiError, Cluster, Page, PodPatch, Presence, Subject, UnmanagedPod};
use super::input::Input;
use super::limits::Backoff;
use crate::config::Configuration;
use crate::lease::Tenure;
use crate::names;
use crate::pod::PodView;
use crate::registration::{Reason, life, observe};

/// Without any event, namespaces are looked through this often.
const EVERY: Duration = Duration::from_secs(600);
/// Pods a page.
const PAGE: u32 = 500;
/// Pods that are adopted at a time.
const AT_A_TIME: usize = 8;
/// Namespaces of the cluster itself.
const CLUSTER_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The looks for pods to adopt.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    looking: bool,
    again: bool,
    due: Instant,
    backoff: Backoff,
}

impl<C: Cluster, D: Drivers, K: Clock> Actor<C, D, K> {
    /// There may be pods to adopt.
    pub(super) fn want_adoption(&mut self) {
        if let Some(term) = &mut self.term {
            term.adoption.again = true;
            term.chores = Instant::default();
        }
    }

    /// Looks for pods to adopt, where it is time.
    pub(super) fn adopt_when_due(&mut self) {
        let now = self.clock.now();
        if self.stopping {
            return;
        }
        let (Some(configuration), Some(opted)) = (self.settings.current.clone(), &self.namespaces) else { return };
        let Some(term) = &mut self.term else { return };
        let adoption = &mut term.adoption;
        if adoption.looking || !(adoption.again || now >= adoption.due) || now < adoption.backoff.until() {
            return;
        }
        adoption.looking = true;
        adoption.again = false;
        adoption.due = now.after(EVERY);
        let own = Arc::clone(&self.options.namespace);
        let namespaces: Vec<Arc<str>> = opted.iter().filter(|name| **name != own && !is_excluded(name, &configuration)).cloned().collect();
        let look = Look {
            cluster: self.cluster.clone(),
            clock: self.clock.clone(),
            tenure: self.tenure.clone(),
            configuration,
            inbox: self.inbox.clone(),
            term: term.number,
        };
        let number = term.number;
        self.post(async move {
            let mut complete = true;
            for namespace in namespaces {
                complete &= look.through(&namespace).await;
            }
            Input::AdoptionEnded { term: number, complete }
        });
    }

    /// A pod was adopted.
    pub(super) fn adopted(&mut self, term: u64, pod: PodView) {
        let about = Subject::Pod { key: pod.key.clone(), uid: pod.uid.clone() };
        let gated = pod.gated;
        self.bring(pod);
        if let Some(current) = self.term.as_mut().filter(|current| current.number == term && !gated) {
            let note = "The pod ran before it was prepared; it is registered and held, but has no readiness gate.";
            current.events.tell(about, Reason::Adopted, note.to_owned(), String::new());
        }
    }

    /// A pod is ours and has lost our label, and cannot get it back: no watch will speak of it.
    pub(super) fn strayed(&mut self, pod: PodView) {
        let at = self.clock.now().after(UNWATCHED);
        let uid = pod.uid.clone();
        self.bring(pod);
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.unwatched = Some(at);
            self.retries.insert((at, uid));
        }
    }

    /// A look has ended.
    pub(super) fn adoption_ended(&mut self, term: u64, complete: bool) {
        let (now, jitter) = (self.clock.now(), self.clock.jitter());
        let Some(current) = self.term.as_mut().filter(|current| current.number == term) else { return };
        current.adoption.looking = false;
        if complete {
            current.adoption.backoff.succeed();
        } else {
            current.adoption.backoff.fail(now, jitter);
            current.adoption.again = true;
        }
        current.chores = current.chores.min(now.after(Duration::from_secs(1)));
    }
}

/// One look for pods to adopt.
#[derive(Clone)]
struct Look<C, K> {
    cluster: C,
    clock: K,
    tenure: Tenure,
    configuration: Arc<Configuration>,
    inbox: tokio::sync::mpsc::Sender<Input>,
    term: u64,
}

impl<C: Cluster, K: Clock> Look<C, K> {
    /// Looks through a namespace; whether all of it could be done.
    async fn through(&self, namespace: &str) -> bool {
        let mut page = Page { limit: PAGE, token: None };
        let mut complete = true;
        loop {
            let list = self.cluster.list_unmanaged(namespace, page.clone());
            let Ok(answer) = super::calls::api_limited(&self.clock, list).await else { return false };
            let candidates: Vec<UnmanagedPod> =
                answer.pods.into_iter().filter(|pod| pod.finalizer || pod.released || is_candidate(pod, &self.configuration)).collect();
            let adopted = futures_util::stream::iter(candidates).map(|pod| self.adopt(pod)).buffered(AT_A_TIME);
            complete &= adopted.fold(true, |all, done| async move { all && done }).await;
            match answer.next {
                Some(token) => page.token = Some(token),
                None => return complete,
            }
        }
    }

    async fn adopt(&self, candidate: UnmanagedPod) -> bool {
        let pod = match super::calls::api_limited(&self.clock, self.cluster.pod(&candidate.key)).await {
            Ok(Some(pod)) if pod.uid == candidate.uid => pod,
            Ok(_) => return true,
            Err(_) => return false,
        };
        let held = candidate.finalizer && pod.finalizer && (!life::live(&pod) || pod.released);
        // What it has registered is swept where nobody knows of it, and owed where somebody does once it ends.
        let serves = pod.released && !observe::claims_of(&pod).is_empty();
        if held || serves {
            return self.inbox.send(Input::Stray(Box::new(pod))).await.is_ok();
        }
        if !life::live(&pod) || pod.released || (pod.completes && !pod.finalizer) {
            return true;
        }
        let patch = PodPatch {
            uid: pod.uid.clone(),
            resource_version: None,
            conditions: Vec::new(),
            finalizer: Some(Presence::Present),
            label: true,
            annotations: Vec::new(),
        };
        if !self.tenure.holds(self.clock.now()) {
            return false;
        }
        match super::calls::api_limited(&self.clock, self.cluster.patch_pod(&pod.key, &patch)).await {
            Ok(pod) => self.inbox.send(Input::Adopted { term: self.term, pod: Box::new(pod) }).await.is_ok(),
            Err(ApiError::Status { code: 404 | 422, .. }) => self.refused(&pod).await,
            Err(_) => false,
        }
    }

    /// An adoption was refused as that of a pod that is gone, taken or being deleted by now. Where that is not so the pod must be known all the
    /// same: it may have targets, which would pass for nobody's.
    async fn refused(&self, before: &PodView) -> bool {
        match super::calls::api_limited(&self.clock, self.cluster.pod(&before.key)).await {
            Ok(Some(pod)) if pod.uid == before.uid && life::live(&pod) => self.inbox.send(Input::Stray(Box::new(pod))).await.is_ok(),
            Ok(_) => true,
            Err(_) => false,
        }
    }
}

/// Whether admission would have prepared a pod, as far as its metadata tells.
fn is_candidate(pod: &UnmanagedPod, configuration: &Configuration) -> bool {
    let opted_out = pod.labels.get(names::INJECT_LABEL).is_some_and(|value| value == names::INJECT_DISABLED);
    let bound = configuration.bindings_of(&pod.key.namespace, |key| pod.labels.get(key).map(String::as_str)).next().is_some();
    bound && !opted_out && !pod.deleting && !pod.mirror && !pod.job && !pod.released
}

fn is_excluded(namespace: &str, configuration: &Configuration) -> bool {
    CLUSTER_NAMESPACES.contains(&namespace) || configuration.injection.excluded_namespaces.iter().any(|name| **name == *namespace)
}
