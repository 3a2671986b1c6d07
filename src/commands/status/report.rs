//! What `status` found, as data: grouped by workload, the worst first.
//!
//! The types are the documented shape of `-o json|yaml`; docs/status.schema.json is made from them.
//!
//! Invariant: pure; nothing is shown to people that is not in the data.
//! Absent on purpose: decisions about one pod (`outlook`, `timeline`), how it looks (`text`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::outlook::{self, Ground, Help, Outlook, Standing};
use super::sight::{self, Sight, Told, by_object};
use super::timeline::{Reached, Stage, timeline};
use crate::commands::workload::{self, Named};
use crate::config::Mode;
use crate::registration::Reason;

/// Which pods are asked for; what is `None` takes all.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Name of the workload, or `kind/name`.
    pub(super) workload: Option<Named>,
    /// Name of a registry that it has, or wants, targets in.
    pub(super) registry: Option<String>,
    /// Its state.
    pub(super) reason: Option<Reason>,
}

/// Managed pods, grouped by workload, the worst first.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// What a reader must know of the whole: what could not be read, that nobody reconciles.
    pub(super) notes: Vec<String>,
    /// The workloads.
    pub(super) workloads: Vec<Workload>,
}

/// The pods of one workload.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Workload {
    /// Namespace.
    pub(super) namespace: String,
    /// Kind, as in `Deployment`; `Pod` for a pod that nothing controls.
    pub(super) kind: String,
    /// Name.
    pub(super) name: String,
    /// Its pods, the worst first.
    pub(super) pods: Vec<Pod>,
}

/// One pod.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    /// Namespace.
    pub(super) namespace: String,
    /// Name.
    pub(super) name: String,
    /// UID.
    pub(super) uid: String,
    /// Where it stands: one of the words that conditions, Events and metrics use.
    pub(super) state: String,
    /// `stuck` (it needs a person), `waiting` (within its time) or `settled`.
    pub(super) standing: Standing,
    /// Since when it stands there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Time>,
    /// The readiness gate; absent where the pod has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gate: Option<Gate>,
    /// Names of the bindings that select it.
    pub(super) bindings: Vec<String>,
    /// The preStop sleep that admission gave its containers; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sleep: Option<Sleep>,
    /// What is registered of it, or claimed.
    pub(super) targets: Vec<Target>,
    /// What the registry says, as far as it stands on the pod.
    pub(super) registry: String,
    /// What it waits for; absent where it is at rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waits_for: Option<String>,
    /// How long it waits at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Time>,
    /// What happens then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) then: Option<String>,
    /// What a person can do, the mildest first.
    pub(super) help: Vec<Help>,
    /// Codes of what a person should fix on it.
    pub(super) findings: Vec<String>,
}

/// A readiness gate.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gate {
    /// Whether it lets the pod be Ready.
    pub(super) open: bool,
    /// Reason of its condition; empty where there is none yet.
    pub(super) reason: String,
    /// Message of its condition.
    pub(super) message: String,
}

/// A preStop sleep, and the drain delay that it was made for.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sleep {
    /// How long.
    pub(super) seconds: i64,
    /// When the oldest answer of a registry came that it rests on; absent where none was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answered_at: Option<Time>,
    /// Names of bindings whose registry had not said how long it drains: their `fallback` counted.
    pub(super) fallback: Vec<String>,
}

/// A target that is claimed.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    /// Name of the registry in the configuration.
    pub(super) registry: String,
    /// The registry's name for the service.
    pub(super) service: String,
    /// Address and port.
    pub(super) address: String,
    /// Whether another controller owns it, and Lockstep only waits on it.
    pub(super) observed: bool,
}

/// One pod, with its life so far.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Life {
    /// What a reader must know of the whole.
    pub(super) notes: Vec<String>,
    /// The pod; absent where it is gone and only Events tell of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Pod>,
    /// The stages that it has reached.
    pub(super) timeline: Vec<StageData>,
    /// Warnings about it that Lockstep told, the oldest first.
    pub(super) warnings: Vec<Warning>,
}

/// A stage that was reached.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StageData {
    /// Which.
    pub(super) stage: Stage,
    /// When.
    pub(super) at: Time,
    /// Whole seconds since the stage before; absent for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_seconds: Option<i64>,
    /// Who keeps the time: a condition, a field, or an Event.
    pub(super) source: &'static str,
}

/// A warning that Lockstep told.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Warning {
    /// Its reason.
    pub(super) reason: String,
    /// Its sentence.
    pub(super) note: String,
    /// When it was told last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Time>,
}

/// A time, as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub(super) struct Time(#[schemars(with = "String", extend("format" = "date-time"))] pub(super) Timestamp);

/// The report of many pods.
pub(super) fn report(sights: &[&Sight], told: &[&Told], ground: &Ground, wanted: &Wanted, notes: Vec<String>, now: Timestamp) -> Report {
    let told = by_object(told.iter().copied());
    let mut workloads: BTreeMap<(String, String, String), Vec<Pod>> = BTreeMap::new();
    for sight in sights {
        let (kind, name) = workload::of(&sight.pod);
        if wanted.workload.as_ref().is_some_and(|named| !named.means(&kind, &name)) {
            continue;
        }
        let about = told.get(sight.pod.uid.as_str()).map(Vec::as_slice).unwrap_or_default();
        let outlook = outlook::outlook(sight, about, ground, now);
        if !wanted.takes(sight, &outlook, ground) {
            continue;
        }
        workloads.entry((sight.pod.key.namespace.to_string(), kind, name)).or_default().push(pod(sight, outlook, ground));
    }
    let sorted = |((namespace, kind, name), mut pods): ((String, String, String), Vec<Pod>)| {
        pods.sort_by(|one, other| badness(one).cmp(&badness(other)));
        Workload { namespace, kind, name, pods }
    };
    let mut workloads: Vec<Workload> = workloads.into_iter().map(sorted).collect();
    workloads.sort_by(|one, other| worst(one).cmp(&worst(other)));
    Report { notes, workloads }
}

/// The report of one pod; `told` are Events about it.
pub(super) fn life(sight: Option<&Sight>, told: &[&Told], ground: &Ground, notes: Vec<String>, now: Timestamp) -> Life {
    let reached = timeline(sight, told);
    let stage = |(index, one): (usize, &Reached)| StageData {
        stage: one.stage,
        at: Time(one.at),
        after_seconds: index.checked_sub(1).map(|before| one.at.as_second() - reached[before].at.as_second()),
        source: one.source,
    };
    let mut warnings: Vec<&Told> = told.iter().copied().filter(|one| one.ours && one.warning).collect();
    warnings.sort_by_key(|one| one.last);
    Life {
        notes,
        pod: sight.map(|sight| pod(sight, outlook::outlook(sight, told, ground, now), ground)),
        timeline: reached.iter().enumerate().map(stage).collect(),
        warnings: warnings
            .into_iter()
            .map(|one| Warning { reason: one.reason.clone(), note: one.note.clone(), last: one.last.map(Time) })
            .collect(),
    }
}

/// What is printed as data.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "lockstep status -o json|yaml")]
pub(super) enum Shown {
    /// Without a name.
    Report(Report),
    /// With the name of a pod.
    Life(Box<Life>),
}

impl Shown {
    /// Whether a pod needs a person.
    pub(super) fn is_stuck(&self) -> bool {
        match self {
            Self::Report(report) => report.pods().any(Pod::is_stuck),
            Self::Life(life) => life.pod.as_ref().is_some_and(Pod::is_stuck),
        }
    }
}

impl Report {
    /// All pods.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.workloads.iter().flat_map(|workload| &workload.pods)
    }
}

impl Pod {
    /// Whether it needs a person.
    pub(super) fn is_stuck(&self) -> bool {
        self.standing == Standing::Stuck
    }
}

impl Wanted {
    fn takes(&self, sight: &Sight, outlook: &Outlook, ground: &Ground) -> bool {
        let claimed = |name: &str| sight.claims.iter().any(|claim| &*claim.service.registry == name);
        let bound = |name: &str| {
            let mut selecting = ground.bindings.iter().filter(|binding| sight.pod.is_selected_by(binding));
            selecting.any(|binding| &*binding.service.registry == name)
        };
        self.reason.is_none_or(|reason| reason == outlook.state) && self.registry.as_ref().is_none_or(|name| claimed(name) || bound(name))
    }
}

fn pod(sight: &Sight, outlook: Outlook, ground: &Ground) -> Pod {
    let view = &sight.pod;
    let target = |claim: &crate::registration::claim::Claim| Target {
        registry: claim.service.registry.to_string(),
        service: claim.service.service.to_string(),
        address: claim.address.to_string(),
        observed: claim.mode == Mode::Observe,
    };
    let gate = || match &view.gate {
        Some(gate) => Gate { open: gate.status, reason: gate.reason.clone(), message: gate.message.clone() },
        None => Gate { open: false, reason: String::new(), message: "nobody has looked at it yet".to_owned() },
    };
    Pod {
        namespace: view.key.namespace.to_string(),
        name: view.key.name.to_string(),
        uid: view.uid.to_string(),
        state: outlook.state.as_str().to_owned(),
        standing: outlook.standing,
        since: outlook.since.map(Time),
        gate: view.gated.then(gate),
        bindings: bindings(sight, ground),
        sleep: sight.sleep.as_ref().map(sleep),
        targets: sight.claims.iter().map(target).collect(),
        registry: outlook.registry,
        waits_for: outlook.waits_for,
        until: outlook.until.map(Time),
        then: outlook.then,
        help: outlook.help,
        findings: sight.pod.record.findings.iter().map(ToString::to_string).collect(),
    }
}

fn sleep(sleep: &sight::Sleep) -> Sleep {
    Sleep { seconds: sleep.seconds, answered_at: sleep.answered.map(Time), fallback: sleep.fallback.clone() }
}

/// The bindings of now; where the configuration is not known, those of the pod's admission.
fn bindings(sight: &Sight, ground: &Ground) -> Vec<String> {
    if ground.bindings.is_empty() {
        return sight.pod.record.bindings.iter().map(ToString::to_string).collect();
    }
    ground.bindings.iter().filter(|binding| sight.pod.is_selected_by(binding)).map(|binding| binding.name.to_string()).collect()
}

/// Orders pods: the worst first, of those the one that has been so for longest.
fn badness(pod: &Pod) -> (Standing, Time, &str) {
    (pod.standing, pod.since.unwrap_or(Time(Timestamp::MAX)), &pod.name)
}

/// Orders workloads by their worst pod; those at rest by name.
fn worst(workload: &Workload) -> (Standing, Time, &str, &str) {
    let (standing, since) = workload.pods.first().map_or((Standing::Settled, None), |pod| (pod.standing, pod.since));
    let since = since.filter(|_| standing != Standing::Settled).unwrap_or(Time(Timestamp::MAX));
    (standing, since, &workload.namespace, &workload.name)
}

#[cfg(test)]
mod tests;
