//! `lockstep release`: break glass. Pods are let go, so that Lockstep holds nothing of them any more.
//!
//! With `--all` it is the way to take Lockstep out: no pod is prepared any more, no replica reconciles any more, then every pod goes free.
//! Targets stay registered: traffic goes on, and nobody deregisters them but whoever comes next.
//!
//! Invariant: only our finalizer, our gate and our mark are touched, in one patch that names the UID; running it twice does no harm.
//! Absent on purpose: registries; this must work when none of them can be reached.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use futures_util::stream;

use crate::args::ReleaseArgs;
use crate::certificates::bundle::Kind;
use crate::names;
use crate::pod::PodView;
use crate::reconcile::cluster::{ApiError, Cluster, ConditionPatch, Page, PodPatch, Presence};
use crate::reconcile::kubernetes::{Api, KubeCluster, Own};
use crate::reconcile::tokio_clock::TokioClock;
use crate::reconcile::{Clock, cluster::LeaseRecord};
use crate::target::PodKey;
use crate::telemetry;

/// Holder of the Lease from then on.
const HOLDER: &str = "lockstep-release";
/// The Lease is kept this long after the last pod, so that no replica starts again before it is taken out as well.
const KEEP_SECONDS: u32 = 3600;
/// A replica that held the Lease stops writing within its renew deadline of 7 s.
const HANDOVER: Duration = Duration::from_secs(7);
/// Pods of one page.
const PAGE: u32 = 100;
/// Pods that are let go at the same time.
const AT_ONCE: usize = 16;
/// Tries of one request before it counts as failed.
const TRIES: u32 = 5;
/// Pause between tries, and between two looks at all pods.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks at all pods; each but the last found something new. A pod that was admitted just before the webhook went shows up in the second.
const LOOKS: u32 = 20;

/// What became of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Let go now.
    Released,
    /// Nothing of ours was on it.
    Free,
    /// It does not exist, or not any more.
    Gone,
    /// It could not be let go.
    Failed,
}

/// Runs the command: 0 when every pod is free, 1 when one is not, 2 when the API server cannot be asked.
pub async fn run(args: ReleaseArgs) -> anyhow::Result<ExitCode> {
    telemetry::start(&args.log)?;
    let api = Api::connect().await.context("no access to a cluster")?;
    let own = Own { namespace: args.own_namespace.clone(), identity: HOLDER.into(), config_map: String::new() };
    let release = Release { cluster: KubeCluster::new(api, TokioClock::start(), own) };
    let all_free = if args.all { release.everything(&args.webhook_configuration).await? } else { release.named(&args).await? };
    Ok(if all_free { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

struct Release {
    cluster: KubeCluster,
}

impl Release {
    async fn named(&self, args: &ReleaseArgs) -> anyhow::Result<bool> {
        let mut all_free = true;
        for name in &args.pods {
            let (namespace, name) = name.split_once('/').unwrap_or((&args.namespace, name));
            let key = PodKey::new(namespace, name);
            let pod = retried(async || self.cluster.pod(&key).await).await.with_context(|| format!("pod {key} cannot be read"))?;
            let outcome = match pod {
                Some(pod) => self.free(&pod).await,
                None => Outcome::Gone,
            };
            say(&format!("pod {key}: {}", outcome.words()));
            all_free &= matches!(outcome, Outcome::Released | Outcome::Free);
        }
        Ok(all_free)
    }

    async fn everything(&self, webhook_configuration: &str) -> anyhow::Result<bool> {
        for kind in [Kind::Mutating, Kind::Validating] {
            self.delete(kind, webhook_configuration).await?;
        }
        let lease = self.take_lease().await;
        let all_free = self.every_pod().await;
        if let Ok(Some(lease)) = &lease {
            self.keep_lease(lease).await;
        }
        lease.context("every pod was looked at, but the Lease could not be taken")?;
        all_free
    }

    async fn delete(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        let path = format!("{}/{name}", kind.collection());
        match retried(async || self.cluster.api().delete(&path).await).await {
            Ok(()) => say(&format!("{} {name}: deleted", kind.object())),
            Err(error) if error.code() == Some(404) => say(&format!("{} {name}: not there", kind.object())),
            Err(error) => return Err(error).with_context(|| format!("{} {name} cannot be deleted", kind.object())),
        }
        Ok(())
    }

    /// Takes the Lease from whoever holds it; `None` where there is none.
    async fn take_lease(&self) -> Result<Option<LeaseRecord>, ApiError> {
        let lease = match retried(async || self.cluster.read_lease().await).await {
            Ok(lease) => lease,
            Err(error) if error.code() == Some(404) => return Ok(None),
            Err(error) => return Err(error),
        };
        let held = !lease.holder.is_empty() && lease.holder != HOLDER;
        let taken = retried(async || self.write_lease(&self.cluster.read_lease().await?).await).await?;
        if held {
            say(&format!("Lease {}: taken from {}; waiting until it has stopped", names::LEASE, lease.holder));
            tokio::time::sleep(HANDOVER).await;
        } else {
            say(&format!("Lease {}: taken; no replica reconciles any more", names::LEASE));
        }
        Ok(Some(taken))
    }

    /// Renews it once more at the end, so that the time to take the rest out counts from there.
    async fn keep_lease(&self, lease: &LeaseRecord) {
        if let Err(error) = self.write_lease(lease).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the Lease was not renewed at the end");
        }
        say(&format!("Lease {}: kept for an hour, unless it is deleted", names::LEASE));
    }

    async fn write_lease(&self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        let now = TokioClock::start().wall();
        let changes_hands = lease.holder != HOLDER;
        self.cluster
            .write_lease(&LeaseRecord {
                resource_version: lease.resource_version.clone(),
                holder: HOLDER.into(),
                duration_seconds: KEEP_SECONDS,
                acquired: if changes_hands { Some(now) } else { lease.acquired },
                renewed: Some(now),
                transitions: lease.transitions + u32::from(changes_hands),
            })
            .await
    }

    /// Looks at all pods until one look finds nothing of ours.
    async fn every_pod(&self) -> anyhow::Result<bool> {
        let mut released = 0;
        for _ in 0..LOOKS {
            let look = self.look(&mut released).await?;
            if look.found == 0 {
                say(&format!("released {released} pods; nothing of Lockstep is left on any pod"));
                return Ok(true);
            }
            if look.failed.len() == look.found {
                for key in &look.failed {
                    say(&format!("pod {key}: {}", Outcome::Failed.words()));
                }
                say(&format!("released {released} pods; {} could not be released", look.failed.len()));
                return Ok(false);
            }
            tokio::time::sleep(PAUSE).await;
        }
        say(&format!("released {released} pods; new ones with our finalizer keep appearing"));
        Ok(false)
    }

    async fn look(&self, released: &mut usize) -> anyhow::Result<Look> {
        let mut look = Look::default();
        let mut token = None;
        loop {
            let page = Page { limit: PAGE, token: token.take() };
            let page = retried(async || self.cluster.list_all_pods(page.clone()).await).await.context("pods cannot be listed")?;
            let held = page.pods.into_iter().filter(|pod| !is_free(pod));
            let outcomes = stream::iter(held).map(async |pod| (self.free(&pod).await, pod.key)).buffer_unordered(AT_ONCE);
            let outcomes: Vec<_> = outcomes.collect().await;
            look.found += outcomes.len();
            *released += outcomes.iter().filter(|(outcome, _)| *outcome == Outcome::Released).count();
            look.failed.extend(outcomes.into_iter().filter(|(outcome, _)| *outcome == Outcome::Failed).map(|(_, key)| key));
            if look.found > 0 {
                say(&format!("released {released} pods so far"));
            }
            token = page.next;
            if token.is_none() {
                return Ok(look);
            }
        }
    }

    async fn free(&self, pod: &PodView) -> Outcome {
        if is_free(pod) {
            return Outcome::Free;
        }
        let patch = release_patch(pod, TokioClock::start().wall());
        match retried(async || self.cluster.patch_pod(&pod.key, &patch).await).await {
            Ok(_) => Outcome::Released,
            Err(error) if matches!(error.code(), Some(404 | 422)) => Outcome::Gone,
            Err(error) => {
                let (namespace, pod) = (&pod.key.namespace, &pod.key.name);
                tracing::warn!(%namespace, %pod, error = &error as &dyn std::error::Error, "a pod cannot be released");
                Outcome::Failed
            }
        }
    }
}

/// What one look at all pods found.
#[derive(Debug, Default)]
struct Look {
    found: usize,
    failed: BTreeSet<PodKey>,
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Free => "nothing of Lockstep is on it",
            Self::Gone => "not there",
            Self::Failed => "could not be released",
        }
    }
}

/// Whether nothing of ours holds the pod: neither its start nor its end.
fn is_free(pod: &PodView) -> bool {
    let gate_open = !pod.gated || pod.gate.as_ref().is_some_and(|gate| gate.status);
    let ours = pod.finalizer || pod.gated || pod.labels.get(names::MANAGED_LABEL).is_some();
    !ours || (!pod.finalizer && gate_open && pod.released)
}

/// Finalizer off, gate open, and the mark that tells the reconciler to leave the pod alone.
fn release_patch(pod: &PodView, now: jiff::Timestamp) -> PodPatch {
    let was_open = pod.gate.as_ref().is_some_and(|gate| gate.status);
    let gate = ConditionPatch {
        type_: names::GATE,
        status: true,
        reason: "Released",
        message: "lockstep release let this pod go; its targets stay as they are".into(),
        transition: (!was_open).then_some(now),
    };
    PodPatch {
        uid: pod.uid.clone(),
        resource_version: None,
        conditions: if pod.gated { vec![gate] } else { Vec::new() },
        finalizer: Some(Presence::Absent),
        label: false,
        annotations: vec![(names::RELEASED_ANNOTATION, names::RELEASED_VALUE.to_owned())],
    }
}

/// Asks again while the API server is busy or cannot be reached, or somebody else wrote at the same time.
async fn retried<T>(mut ask: impl AsyncFnMut() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error) if tries < TRIES && matches!(error.code(), None | Some(409 | 429 | 500..)) => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

fn say(line: &str) {
    // A closed pipe is no reason to stop half way.
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::reconcile::kubernetes::decode;

    const RUNNING: &str = include_str!("../reconcile/kubernetes/examples/pod-running.json");

    fn pod(change: impl FnOnce(&mut Value)) -> PodView {
        let mut value = serde_json::from_str(RUNNING).unwrap();
        change(&mut value);
        decode::pod(&value.to_string()).unwrap()
    }

    fn with_gate(pod: &mut Value, status: &str) {
        pod["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": names::GATE, "status": status, "reason": "R"}));
    }

    fn strip(pod: &mut Value) {
        pod["metadata"]["finalizers"] = Value::Null;
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["spec"]["readinessGates"] = Value::Null;
    }

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({"finalizers": [names::FINALIZER]}), false)]
    #[case(json!({"labels": {names::MANAGED_LABEL: "true"}}), false)]
    #[case(json!({"finalizers": ["example.org/other"], "labels": {"app": "web"}}), true)]
    fn what_is_held_by_us(#[case] metadata: Value, #[case] free: bool) {
        let stripped = pod(|pod| {
            strip(pod);
            pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        });
        assert_eq!(is_free(&stripped), free);
        assert!(!is_free(&pod(|_| {})), "gate, finalizer and label are on it");
    }

    #[test]
    fn a_pod_is_free_once_the_patch_is_in() {
        let held = pod(|_| {});
        let patch = release_patch(&held, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(patch.finalizer, Some(Presence::Absent));
        let freed = pod(|pod| {
            pod["metadata"]["finalizers"] = json!([]);
            pod["metadata"]["annotations"] = json!({ patch.annotations[0].0: patch.annotations[0].1 });
            with_gate(pod, if patch.conditions[0].status { "True" } else { "False" });
        });
        assert!(is_free(&freed));
    }

    #[test]
    fn the_transition_moves_only_with_the_status() {
        let transition = |pod: &PodView| release_patch(pod, jiff::Timestamp::UNIX_EPOCH).conditions[0].transition;
        assert_eq!(transition(&pod(|pod| with_gate(pod, "True"))), None);
        assert!(transition(&pod(|pod| with_gate(pod, "False"))).is_some());
        assert!(transition(&pod(|_| {})).is_some());
    }

    #[test]
    fn a_pod_without_the_gate_gets_no_condition() {
        assert!(release_patch(&pod(strip), jiff::Timestamp::UNIX_EPOCH).conditions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_may_pass_is_tried_again() {
        for (code, tries) in [(409, TRIES), (500, TRIES), (429, TRIES), (403, 1), (404, 1), (422, 1)] {
            let mut asked = 0;
            let refused = ApiError::Status { code, text: String::new() };
            let answer: Result<(), _> = retried(async || {
                asked += 1;
                Err(refused.clone())
            })
            .await;
            assert_eq!((answer, asked), (Err(refused.clone()), tries), "{code}");
        }
    }
}
