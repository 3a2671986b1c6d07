//! The decision about one pod: the first reason that holds, or the changes that it needs.
//!
//! Invariant: the order of the reasons is the order of the documentation's table.
//! Invariant: a pod that has all of our changes gets none.
//! Absent on purpose: bytes in and out (`review`, `patch`), the sums (`prestop`).

use std::time::Duration;

use jiff::Timestamp;

use super::Snapshot;
use super::finding::{Finding, shown};
use super::hook::ExactSleep;
use super::part::Part;
use super::patch::{Change, Place};
use super::pod::{Annotations, Container, Labels, Metadata, Pod, Probe, Spec};
use super::prestop::{SleepForm, Sums, grace_of};
use super::record::Record;
use crate::config::{Drain, PreStop, ProbeGrace};
use crate::names::{INJECT_DISABLED, INJECT_LABEL, MANAGED_LABEL, MANAGED_VALUE, RECORD_ANNOTATION};

/// Namespaces of the cluster itself; their pods are never injected.
const CLUSTER_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// The API server takes no more bytes of annotations on one object.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// Why an answer is what it is; exactly one for each review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Something else than the creation of a pod.
    NotPodCreate,
    /// The namespace is never injected.
    ExcludedNamespace,
    /// The kubelet's own pod.
    MirrorPod,
    /// The pod's label says so.
    OptedOut,
    /// It ends by itself.
    RunsToCompletion,
    /// No binding selects it.
    NoBinding,
    /// A part that decides has the wrong type.
    Unreadable,
    /// There is no room for the record.
    AnnotationsFull,
    /// Everything is there already.
    AlreadyInjected,
    /// It is changed.
    Injected,
}

/// A pod that someone wants to create.
pub(super) struct PodRequest<'p, 'a> {
    pub(super) namespace: &'p str,
    pub(super) pod: &'p Part<Pod<'a>>,
    /// Whether it is known from elsewhere that a Job controls it.
    pub(super) job: bool,
}

/// What to do, and why.
pub(super) struct Decision {
    pub(super) reason: Reason,
    pub(super) injection: Option<Injection>,
    /// Besides the warnings of findings.
    pub(super) warning: Option<String>,
}

/// An injection, also one that finds everything in place.
pub(super) struct Injection {
    /// Places of the matching bindings in the configuration.
    pub(super) bindings: Vec<usize>,
    pub(super) sums: Sums,
    /// The sleep that our containers carry afterwards; 0 where none does.
    pub(super) sleep_seconds: u64,
    /// The pod's grace period afterwards, where it has one.
    pub(super) grace_seconds: Option<i64>,
    pub(super) findings: Vec<(Finding, String)>,
    pub(super) changes: Vec<Change>,
}

impl Reason {
    /// Every reason, in the order in which they are tried.
    pub const ALL: [Self; 10] = [
        Self::NotPodCreate,
        Self::ExcludedNamespace,
        Self::MirrorPod,
        Self::OptedOut,
        Self::RunsToCompletion,
        Self::NoBinding,
        Self::Unreadable,
        Self::AnnotationsFull,
        Self::AlreadyInjected,
        Self::Injected,
    ];

    /// The word for people, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotPodCreate => "NotPodCreate",
            Self::ExcludedNamespace => "ExcludedNamespace",
            Self::MirrorPod => "MirrorPod",
            Self::OptedOut => "OptedOut",
            Self::RunsToCompletion => "RunsToCompletion",
            Self::NoBinding => "NoBinding",
            Self::Unreadable => "Unreadable",
            Self::AnnotationsFull => "AnnotationsFull",
            Self::AlreadyInjected => "AlreadyInjected",
            Self::Injected => "Injected",
        }
    }
}

/// Decides about the creation of a pod.
pub(super) fn decide(request: &PodRequest<'_, '_>, snapshot: &Snapshot) -> Decision {
    let pod = match request.pod {
        Part::Absent => return Decision::leave(Reason::NotPodCreate),
        Part::Wrong => &Pod { metadata: Part::Absent, spec: Part::Wrong },
        Part::Found(pod) => pod,
    };
    let configuration = &snapshot.configuration;
    let namespace = request.namespace;
    if CLUSTER_NAMESPACES.contains(&namespace)
        || *namespace == *snapshot.own_namespace
        || configuration.injection.excluded_namespaces.iter().any(|excluded| **excluded == *namespace)
    {
        return Decision::leave(Reason::ExcludedNamespace);
    }
    let metadata = pod.metadata.found();
    let spec = pod.spec.found();
    if metadata.and_then(|metadata| metadata.annotations.found()).is_some_and(|annotations| annotations.mirror) {
        return Decision::leave(Reason::MirrorPod);
    }
    let labels = metadata.and_then(|metadata| metadata.labels.found());
    let label = |key: &str| labels.and_then(|labels| labels.value(key));
    if label(INJECT_LABEL) == Some(INJECT_DISABLED) {
        return Decision::leave(Reason::OptedOut);
    }
    let ends = spec.is_some_and(|spec| matches!(spec.restart_policy.text(), "Never" | "OnFailure"));
    if ends || request.job || metadata.is_some_and(Metadata::has_job) {
        return Decision::leave(Reason::RunsToCompletion);
    }
    let selected = configuration.bindings.iter().enumerate().filter(|(_, binding)| binding.selects(namespace, label));
    let bindings: Vec<usize> = selected.map(|(index, _)| index).collect();
    if bindings.is_empty() {
        return Decision::leave(Reason::NoBinding);
    }
    if let Some(part) = pod.wrong_part() {
        return Decision::unreadable(&part);
    }
    match spec {
        Some(spec) => inject(pod, spec, bindings, snapshot),
        None => Decision::unreadable("spec"),
    }
}

impl Decision {
    pub(super) fn leave(reason: Reason) -> Self {
        Self { reason, injection: None, warning: None }
    }

    fn unreadable(part: &str) -> Self {
        let warning = format!("lockstep: not injected: {part} has the wrong type, or is missing");
        Self { warning: Some(super::finding::bounded(&warning)), ..Self::leave(Reason::Unreadable) }
    }

    /// The changes; none where nothing is to be done.
    pub(super) fn changes(&self) -> &[Change] {
        self.injection.as_ref().map_or(&[], |injection| &injection.changes)
    }

    /// The findings, where the pod is changed.
    pub(super) fn findings(&self) -> &[(Finding, String)] {
        self.injection.as_ref().map_or(&[], |injection| &injection.findings)
    }

    /// The admission warnings; none on a pass that changes nothing.
    pub(super) fn warnings(&self) -> Vec<String> {
        let findings = if self.reason == Reason::Injected { self.findings() } else { &[] };
        self.warning.iter().cloned().chain(findings.iter().map(|(finding, about)| finding.warning(about))).collect()
    }
}

fn inject(pod: &Pod<'_>, spec: &Spec<'_>, bindings: Vec<usize>, snapshot: &Snapshot) -> Decision {
    let metadata = pod.metadata.found();
    let annotations = metadata.and_then(|metadata| metadata.annotations.found());
    let old = annotations.and_then(|annotations| annotations.record.as_deref()).and_then(Record::parse);
    let believed = old.as_ref().filter(|record| is_borne_out(record, spec));
    let view = View::new(spec, believed, &bindings, snapshot);
    let findings = view.findings(&bindings, snapshot);
    let sleep_seconds = i64::try_from(view.sleep_seconds()).unwrap_or(i64::MAX);
    let (fallback, answered_at) = match believed {
        // What the registry has answered since the earlier pass did not change the sleep.
        Some(record) if record.sleep_seconds == sleep_seconds => (record.fallback.clone(), record.answered_at.clone()),
        _ => (unanswered(&bindings, sleep_seconds, snapshot), oldest_answer(&bindings, sleep_seconds, snapshot)),
    };
    let record = Record::new(
        bindings.iter().map(|index| snapshot.configuration.bindings[*index].name.to_string()).collect(),
        sleep_seconds,
        view.grace_before,
        findings.iter().map(|(finding, _)| finding.as_str().to_owned()).collect(),
        view.lookalikes(),
    )
    .resting_on(fallback, answered_at);
    let record = (old.as_ref() != Some(&record)).then(|| record.text());
    if let Some(text) = &record
        && annotations.map_or(0, |annotations| annotations.foreign_bytes) + RECORD_ANNOTATION.len() + text.len() > ANNOTATION_BYTES
    {
        let warning = "lockstep: not injected: the annotations have no room for the record (256 KiB in all)";
        return Decision { warning: Some(warning.to_owned()), ..Decision::leave(Reason::AnnotationsFull) };
    }
    let mut changes = presence(metadata, spec, record);
    view.sleeps(&mut changes);
    view.grace(&mut changes);
    view.probes(snapshot.configuration.injection.probe_grace, &mut changes);
    let reason = if changes.is_empty() { Reason::AlreadyInjected } else { Reason::Injected };
    let injection = Injection {
        bindings,
        sums: view.sums,
        sleep_seconds: view.sleep_seconds(),
        grace_seconds: view.grace_wanted().or(spec.grace.found().copied()),
        findings,
        changes,
    };
    Decision { reason, injection: Some(injection), warning: None }
}

/// Names of the bindings whose registry is to say how long it drains, and has not; none where there is no sleep to rest on that.
fn unanswered(bindings: &[usize], sleep_seconds: i64, snapshot: &Snapshot) -> Vec<String> {
    let known = bindings.iter().map(|index| (&snapshot.configuration.bindings[*index], snapshot.delays.answer(*index)));
    let falls_back = known.filter(|(binding, answer)| sleep_seconds > 0 && binding.drain.is_asked() && answer.is_none());
    falls_back.map(|(binding, _)| binding.name.to_string()).collect()
}

/// When the oldest answer came that says how long to sleep; fractions of a second tell nobody anything.
fn oldest_answer(bindings: &[usize], sleep_seconds: i64, snapshot: &Snapshot) -> Option<String> {
    let asked = |index: &&usize| snapshot.configuration.bindings[**index].drain.is_asked();
    let answers = bindings.iter().filter(asked).filter_map(|index| snapshot.delays.answered_at(*index));
    let oldest = answers.min().filter(|_| sleep_seconds > 0)?;
    Some(Timestamp::from_second(oldest.as_second()).ok()?.to_string())
}

/// A record is believed only as far as the pod bears it out: some container carries exactly that sleep.
fn is_borne_out(record: &Record, spec: &Spec<'_>) -> bool {
    let carried = |container: &Container<'_>| matches!(hook(container, Some(record)), Hook::Ours(_));
    record.sleep_seconds >= 1 && record.grace_before >= 1 && containers(spec).any(|(_, container)| carried(container))
}

/// Gate, finalizer, label and record, as far as they are missing.
fn presence(metadata: Option<&Metadata<'_>>, spec: &Spec<'_>, record: Option<String>) -> Vec<Change> {
    let mut changes = Vec::with_capacity(8);
    if !spec.has_gate() {
        changes.push(Change::Gate { fresh: spec.gates.found().is_none() });
    }
    let Some(metadata) = metadata else {
        changes.extend(record.map(|record| Change::Metadata { record }));
        return changes;
    };
    if !metadata.finalizers.found().is_some_and(|finalizers| finalizers.ours) {
        changes.push(Change::Finalizer { fresh: metadata.finalizers.found().is_none() });
    }
    let labels: Option<&Labels<'_>> = metadata.labels.found();
    if labels.and_then(|labels| labels.value(MANAGED_LABEL)) != Some(MANAGED_VALUE) {
        changes.push(Change::Label { fresh: labels.is_none() });
    }
    let annotations: Option<&Annotations<'_>> = metadata.annotations.found();
    changes.extend(record.map(|text| Change::Record { fresh: annotations.is_none(), text }));
    changes
}

/// Whose hook a container has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hook {
    /// None that holds anything.
    Empty(Place),
    /// A sleep that we wrote in an earlier pass.
    Ours(ExactSleep),
    /// The owner's, and how long it visibly sleeps.
    Own(Option<f64>),
}

/// What of a pod decides about its sleep.
struct View<'s, 'a> {
    spec: &'s Spec<'a>,
    hooks: Vec<(usize, &'s Container<'a>, Hook)>,
    grace_before: i64,
    kills_at_once: bool,
    sums: Sums,
    form: SleepForm,
    /// Whether this form works on the pod's operating system.
    supported: bool,
}

impl<'s, 'a> View<'s, 'a> {
    fn new(spec: &'s Spec<'a>, believed: Option<&Record>, bindings: &[usize], snapshot: &Snapshot) -> Self {
        let hook = |container: &Container<'_>| hook(container, believed);
        let hooks = containers(spec).map(|(index, container)| (index, container, hook(container))).collect();
        let asked = grace_of(spec.grace.found().copied());
        let grace_before = believed.map_or(asked, |record| record.grace_before);
        let kills_at_once = grace_before == 0;
        let configuration = &snapshot.configuration;
        let delay = |index: &usize| configuration.bindings[*index].drain.delay(snapshot.delays.answer(*index));
        let drain = bindings.iter().map(delay).max().unwrap_or(Duration::ZERO);
        let injection = &configuration.injection;
        let sums = if kills_at_once || injection.pre_stop == PreStop::None {
            Sums::none(drain, grace_before, injection)
        } else {
            Sums::new(drain, grace_before, injection)
        };
        let form = snapshot.sleep;
        Self { spec, hooks, grace_before, kills_at_once, sums, form, supported: form == SleepForm::Native || !spec.is_windows() }
    }

    fn writes_sleeps(&self) -> bool {
        self.sums.seconds > 0 && self.supported
    }

    fn carries(&self, hook: &Hook) -> bool {
        match hook {
            Hook::Empty(_) => self.writes_sleeps(),
            Hook::Ours(_) => true,
            Hook::Own(_) => false,
        }
    }

    /// The sleep that our containers carry in the end. Where none is wanted any more the old one stays: a patch removes nothing.
    fn sleep_seconds(&self) -> u64 {
        let old = self.hooks.iter().find_map(|(_, _, hook)| match hook {
            Hook::Ours(sleep) => Some(sleep.seconds()),
            Hook::Empty(_) | Hook::Own(_) => None,
        });
        match old {
            _ if self.writes_sleeps() && self.hooks.iter().any(|(_, _, hook)| self.carries(hook)) => self.sums.seconds,
            Some(old) => old,
            None => 0,
        }
    }

    /// Containers whose own hook is exactly the sleep that ours carry.
    fn lookalikes(&self) -> Vec<String> {
        let seconds = self.sleep_seconds();
        let alike = |container: &Container<'_>| seconds > 0 && exact(container).is_some_and(|sleep| sleep.seconds() == seconds);
        let own = self.hooks.iter().filter(|(_, container, hook)| matches!(hook, Hook::Own(_)) && alike(container));
        own.map(|(_, container, _)| container.name.text().to_owned()).collect()
    }

    fn sleeps(&self, changes: &mut Vec<Change>) {
        if !self.writes_sleeps() {
            return;
        }
        let seconds = self.sums.seconds;
        for (container, _, hook) in &self.hooks {
            let (place, form) = match hook {
                Hook::Empty(place) => (*place, self.form),
                Hook::Ours(sleep) if sleep.seconds() == seconds => continue,
                Hook::Ours(ExactSleep::Native(_)) => (Place::Action, SleepForm::Native),
                Hook::Ours(ExactSleep::Command(_)) => (Place::Action, SleepForm::Command),
                Hook::Own(_) => continue,
            };
            changes.push(Change::Sleep { container: *container, place, form, seconds });
        }
    }

    /// G + S, where a container carries our sleep and the pod has less.
    fn grace_wanted(&self) -> Option<i64> {
        let seconds = i64::try_from(self.sleep_seconds()).unwrap_or(i64::MAX);
        let wanted = self.grace_before.saturating_add(seconds);
        let present = self.spec.grace.found().copied();
        (seconds > 0 && present.is_none_or(|present| present < wanted)).then_some(wanted)
    }

    fn grace(&self, changes: &mut Vec<Change>) {
        changes.extend(self.grace_wanted().map(|seconds| Change::Grace { seconds }));
    }

    fn waiting_probes(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let carrying = self.hooks.iter().filter(|(_, _, hook)| self.carries(hook));
        carrying.flat_map(|(index, container, _)| {
            let probes = [("livenessProbe", &container.liveness), ("startupProbe", &container.startup)];
            probes.into_iter().filter(|(_, probe)| Probe::waits(probe)).map(|(name, _)| (*index, name))
        })
    }

    fn probes(&self, policy: ProbeGrace, changes: &mut Vec<Change>) {
        if policy == ProbeGrace::Bound {
            let seconds = self.grace_before;
            changes.extend(self.waiting_probes().map(|(container, probe)| Change::Probe { container, probe, seconds }));
        }
    }

    /// Every finding that holds, in the order of the codes, with what its warning shall name.
    fn findings(&self, bindings: &[usize], snapshot: &Snapshot) -> Vec<(Finding, String)> {
        let mut findings = Vec::new();
        let mut say = |finding, holds: bool, about: &dyn Fn() -> String| {
            if holds {
                findings.push((finding, about()));
            }
        };
        let nothing = || String::new();
        let configuration = &snapshot.configuration;
        let seconds = self.sums.seconds;
        let short = |length: &Option<f64>| length.is_some_and(|length| length < seconds as f64);
        let hooks = || self.hooks.iter().map(|(_, _, hook)| hook);
        let holds_short = |hook: &Hook| matches!(hook, Hook::Own(length) if length.is_none() || short(length));
        let only_own = hooks().all(|hook| matches!(hook, Hook::Own(_)));
        let would_carry = hooks().any(|hook| !matches!(hook, Hook::Own(_)));
        let short_one = self.hooks.iter().find(|(_, _, hook)| matches!(hook, Hook::Own(length) if short(length)));
        let polls = |index: &usize| matches!(configuration.bindings[*index].drain, Drain::HealthCheck { .. });
        let empty = hooks().any(|hook| matches!(hook, Hook::Empty(_)));
        let wanted = seconds > 0;

        say(Finding::FinalizerWithoutSleep, wanted && only_own && hooks().any(holds_short), &nothing);
        say(Finding::GraceZero, self.kills_at_once, &nothing);
        say(Finding::HealthCheckPollsPod, bindings.iter().any(polls), &nothing);
        let probe_grace = configuration.injection.probe_grace;
        say(Finding::LivenessRestartWaits, probe_grace == ProbeGrace::Keep && self.waiting_probes().next().is_some(), &nothing);
        say(Finding::NoReadinessProbe, !self.spec.has_readiness_probe(), &nothing);
        say(Finding::OwnPreStopShort, wanted && short_one.is_some(), &|| {
            let name = short_one.map_or("", |(_, container, _)| container.name.text());
            format!("container {}, {seconds} s needed", shown(name))
        });
        say(Finding::PreStopUnsupported, wanted && !self.supported && empty, &nothing);
        say(Finding::SleepCut, self.sums.is_cut() && self.supported && would_carry, &|| {
            format!("{seconds} s instead of {} s", self.sums.wanted)
        });
        findings
    }
}

fn containers<'s, 'a>(spec: &'s Spec<'a>) -> impl Iterator<Item = (usize, &'s Container<'a>)> {
    let list = spec.containers.found().map_or(&[][..], |list| list);
    list.iter().enumerate().filter_map(|(index, container)| Some((index, container.found()?)))
}

fn exact(container: &Container<'_>) -> Option<ExactSleep> {
    container.hook()?.exact()
}

fn hook(container: &Container<'_>, believed: Option<&Record>) -> Hook {
    let Some(handler) = container.hook() else {
        return Hook::Empty(match container.lifecycle.found().map(|lifecycle| &lifecycle.pre_stop) {
            None => Place::Lifecycle,
            Some(Part::Found(handler)) if handler.keys > 0 => Place::Action,
            Some(_) => Place::PreStop,
        });
    };
    let ours = |sleep: ExactSleep| {
        believed.is_some_and(|record| {
            i64::try_from(sleep.seconds()) == Ok(record.sleep_seconds) && !record.own.iter().any(|name| name == container.name.text())
        })
    };
    match handler.exact() {
        Some(sleep) if ours(sleep) => Hook::Ours(sleep),
        _ => Hook::Own(handler.visible_seconds()),
    }
}
