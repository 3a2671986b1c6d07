//! `lockstep release`: break glass. Pods are let go, so that Lockstep holds nothing of them any more.
//!
//! One pod, a workload, a namespace, or all. With `--all` it is the way to take Lockstep out: no pod is prepared any more, no replica
//! reconciles any more, then every pod goes free. Targets stay registered: traffic goes on, and nobody deregisters them but whoever
//! comes next.
//!
//! Invariant: only our finalizer, our gate and our mark are touched, in one patch that names the UID; running it twice does no harm.
//! Absent on purpose: registries; this must work when none of them can be reached.

mod effect;

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use futures_util::stream;

use super::access::{self, Access};
use super::workload::{self, Named};
use crate::args::ReleaseArgs;
use crate::certificates::bundle::Kind;
use crate::names;
use crate::pod::PodView;
use crate::reconcile::cluster::{ApiError, Cluster, Page};
use crate::reconcile::kubernetes::{KubeCluster, decode};
use crate::reconcile::tokio_clock::TokioClock;
use crate::reconcile::{Clock, cluster::LeaseRecord};
use crate::target::PodKey;
use crate::telemetry;
use effect::{Effect, is_free};

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
    let access = access::connect(&args.access).await?;
    let release = Release { cluster: access.cluster(names::RELEASE_HOLDER) };
    let held = release.held(&access, &args).await?;
    if !args.all && held.pods.is_empty() && held.missing.is_empty() {
        say("nothing of Lockstep is on any such pod");
        return Ok(ExitCode::SUCCESS);
    }
    if args.dry_run || asks(&args) {
        foretell(&held, &args);
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if asks(&args) && !confirmed(&question(&held, &args))? {
        say("nothing was done");
        return Ok(ExitCode::from(1));
    }
    let all_free = if args.all { release.everything(&args.webhook_configuration).await? } else { release.these(&held).await };
    Ok(if all_free { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What is asked for.
struct Held {
    /// Pods, also those that nothing is held of.
    pods: Vec<PodView>,
    /// Pods that were named and are not there.
    missing: Vec<PodKey>,
}

/// Says what will be done, and what is lost by it.
fn foretell(held: &Held, args: &ReleaseArgs) {
    if args.all {
        let name = &args.webhook_configuration;
        say(&format!("webhook configurations {name}: would be deleted; new pods start unprepared"));
        say(&format!("Lease {}: would be taken; no replica reconciles any more", names::LEASE));
    }
    for pod in &held.pods {
        say(&format!("pod {}: {}", pod.key, Effect::of(pod)));
    }
    for key in &held.missing {
        say(&format!("pod {key}: {}", Outcome::Gone.words()));
    }
    say(effect::LOSS);
}

/// Whether somebody is there to be asked.
fn asks(args: &ReleaseArgs) -> bool {
    !args.yes && std::io::stdin().is_terminal()
}

fn question(held: &Held, args: &ReleaseArgs) -> String {
    match (args.all, held.pods.len()) {
        (true, pods) => format!("Take Lockstep out of service, and let {pods} pods go?"),
        (false, 1) => "Let 1 pod go?".to_owned(),
        (false, pods) => format!("Let {pods} pods go?"),
    }
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    let mut answer = String::new();
    let mut complaint = std::io::stderr().lock();
    write!(complaint, "{question} [y/N] ").and_then(|()| complaint.flush()).context("standard error")?;
    std::io::stdin().lock().read_line(&mut answer).context("standard input")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

struct Release {
    cluster: KubeCluster,
}

impl Release {
    /// Reads the pods that are asked for.
    async fn held(&self, access: &Access, args: &ReleaseArgs) -> anyhow::Result<Held> {
        let mut held = Held { pods: Vec::new(), missing: Vec::new() };
        for named in &args.pods {
            let key = access.pod(named)?;
            match retried(async || self.cluster.pod(&key).await).await.with_context(|| format!("pod {key} cannot be read"))? {
                Some(pod) => held.pods.push(pod),
                None => held.missing.push(key),
            }
        }
        if !args.pods.is_empty() || (args.all && !args.dry_run && !asks(args)) {
            return Ok(held);
        }
        let namespace = args.whole_namespace.as_deref().unwrap_or(&access.namespace);
        let collection = access::collection("/api/v1", Some(namespace).filter(|_| !args.all), "pods");
        let pods = retried(async || access.list(&collection, "", decode::pod).await).await.context("pods cannot be listed")?;
        let named = args.workload.as_deref().map(Named::parse);
        let meant = |pod: &PodView| {
            let (kind, name) = workload::of(pod);
            named.as_ref().is_none_or(|named| named.means(&kind, &name))
        };
        held.pods.extend(pods.into_iter().filter(|pod| !is_free(pod) && meant(pod)));
        Ok(held)
    }

    async fn these(&self, held: &Held) -> bool {
        let outcomes = stream::iter(&held.pods).map(async |pod| (&pod.key, self.free(pod).await)).buffered(AT_ONCE);
        let mut outcomes: Vec<(&PodKey, Outcome)> = outcomes.collect().await;
        outcomes.extend(held.missing.iter().map(|key| (key, Outcome::Gone)));
        for (key, outcome) in &outcomes {
            say(&format!("pod {key}: {}", outcome.words()));
        }
        outcomes.iter().all(|(_, outcome)| matches!(outcome, Outcome::Released | Outcome::Free))
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
        let held = !lease.holder.is_empty() && lease.holder != names::RELEASE_HOLDER;
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
        say(&format!("Lease {}: kept for an hour, so that no replica reconciles; delete it to let one reconcile sooner", names::LEASE));
    }

    async fn write_lease(&self, lease: &LeaseRecord) -> Result<LeaseRecord, ApiError> {
        let now = TokioClock::start().wall();
        let changes_hands = lease.holder != names::RELEASE_HOLDER;
        self.cluster
            .write_lease(&LeaseRecord {
                resource_version: lease.resource_version.clone(),
                holder: names::RELEASE_HOLDER.into(),
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
        let patch = effect::patch(pod, TokioClock::start().wall());
        match retried(async || self.cluster.patch_pod(&pod.key, &patch).await).await {
            Ok(_) => {
                self.tell(pod).await;
                Outcome::Released
            }
            Err(error) if matches!(error.code(), Some(404 | 422)) => Outcome::Gone,
            Err(error) => {
                let (namespace, pod) = (&pod.key.namespace, &pod.key.name);
                tracing::warn!(%namespace, %pod, error = &error as &dyn std::error::Error, "a pod cannot be released");
                Outcome::Failed
            }
        }
    }

    /// Leaves an Event; nothing waits for it, since a namespace that ends takes none.
    async fn tell(&self, pod: &PodView) {
        if let Err(error) = self.cluster.event(&effect::event(pod)).await {
            let (namespace, pod) = (&pod.key.namespace, &pod.key.name);
            tracing::debug!(%namespace, %pod, error = &error as &dyn std::error::Error, "an event cannot be written");
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
    use super::*;

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
