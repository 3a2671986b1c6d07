//! `inject --explain`: why, and the sums as a person would write them down.
//!
//! Invariant: every number that is shown comes from the decision itself.
//! Absent on purpose: advice about the configuration (`check`).

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::admission::offline::Explained;
use crate::admission::prestop::Sums;
use crate::admission::{Reason, Snapshot};
use crate::args::Output;
use crate::commands::output;
use crate::config::{Configuration, Drain, show_duration};

/// What an answer is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Subject {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "" => f.write_str(&self.kind),
            name => write!(f, "{} {}/{name}", self.kind, self.namespace),
        }
    }
}

/// The explanation as data.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    reason: &'static str,
    bindings: Vec<&'a str>,
    sleep_seconds: u64,
    grace_seconds: i64,
    findings: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sums: Option<SumsData>,
    warnings: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SumsData {
    drain_seconds: f64,
    margin_seconds: f64,
    wanted_seconds: u64,
    after_max_sleep_seconds: u64,
    sleep_seconds: u64,
    grace_before: i64,
}

/// The explanations of all objects of an input.
pub(super) fn print(all: &[(Subject, Explained)], snapshot: &Snapshot, form: Option<Output>) -> anyhow::Result<String> {
    let Some(form) = form else {
        return Ok(all.iter().map(|(subject, explained)| for_people(subject, explained, snapshot)).collect::<Vec<_>>().join("\n"));
    };
    let data: Vec<Data<'_>> = all.iter().map(|(subject, explained)| data(subject, explained, &snapshot.configuration)).collect();
    match &data[..] {
        [one] => output::data(one, form),
        all => output::data(&all, form),
    }
}

fn data<'a>(subject: &'a Subject, explained: &'a Explained, configuration: &'a Configuration) -> Data<'a> {
    Data {
        kind: &subject.kind,
        namespace: &subject.namespace,
        name: &subject.name,
        reason: explained.reason.as_str(),
        bindings: explained.bindings.iter().map(|index| &*configuration.bindings[*index].name).collect(),
        sleep_seconds: explained.sleep_seconds,
        grace_seconds: explained.grace_seconds,
        findings: explained.findings.iter().map(|(finding, _)| finding.as_str()).collect(),
        sums: explained.sums.map(|sums| SumsData {
            drain_seconds: sums.drain.as_secs_f64(),
            margin_seconds: sums.margin.as_secs_f64(),
            wanted_seconds: sums.wanted,
            after_max_sleep_seconds: sums.after_max_sleep,
            sleep_seconds: sums.seconds,
            grace_before: sums.grace_before,
        }),
        warnings: &explained.warnings,
    }
}

fn for_people(subject: &Subject, explained: &Explained, snapshot: &Snapshot) -> String {
    let mut text = format!("{subject}: ");
    lines(&mut text, explained, snapshot).expect("writing into a String cannot fail");
    text
}

fn lines(text: &mut String, explained: &Explained, snapshot: &Snapshot) -> std::fmt::Result {
    writeln!(text, "{}: {}", explained.reason.as_str(), meaning(explained.reason))?;
    if explained.reason != Reason::Injected {
        return explained.warnings.iter().try_for_each(|warning| writeln!(text, "  {warning}"));
    }
    let names: Vec<&str> = explained.bindings.iter().map(|index| &*snapshot.configuration.bindings[*index].name).collect();
    writeln!(text, "  bindings: {}", names.join(", "))?;
    if let Some(sums) = &explained.sums {
        self::sums(text, sums, explained, snapshot)?;
        grace(text, sums, explained)?;
    }
    for place in places(&explained.patch) {
        writeln!(text, "  changes {place}")?;
    }
    for (finding, about) in &explained.findings {
        let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
        writeln!(text, "  finding {}: {}{about}", finding.as_str(), finding.meaning())?;
        writeln!(text, "    what to do: {}", finding.remedy())?;
    }
    Ok(())
}

fn sums(text: &mut String, sums: &Sums, explained: &Explained, snapshot: &Snapshot) -> std::fmt::Result {
    let delays: Vec<(Duration, String)> = explained.bindings.iter().map(|index| drain_of(*index, snapshot)).collect();
    if sums.wanted == 0 {
        writeln!(text, "  no sleep is wanted")?;
    } else {
        let longest = delays.iter().rev().max_by_key(|(delay, _)| *delay).map_or("drain", |(_, line)| line);
        for (_, line) in delays.iter().filter(|(_, line)| line != longest) {
            writeln!(text, "  {line} (not the longest)")?;
        }
        writeln!(text, "  {longest} + margin {} = {} s", seconds(sums.margin), sums.wanted)?;
    }
    let injection = &snapshot.configuration.injection;
    if sums.after_max_sleep < sums.wanted {
        writeln!(text, "  cut to maxSleep ({}): {} s", show_duration(injection.max_sleep), sums.after_max_sleep)?;
    }
    if sums.seconds < sums.after_max_sleep {
        let limit = show_duration(injection.max_grace);
        writeln!(text, "  cut to what maxGrace ({limit}) leaves beside a grace period of {} s: {} s", sums.grace_before, sums.seconds)?;
    }
    Ok(())
}

fn grace(text: &mut String, sums: &Sums, explained: &Explained) -> std::fmt::Result {
    let sleep = i64::try_from(explained.sleep_seconds).unwrap_or(i64::MAX);
    if sleep == 0 {
        return writeln!(text, "  no container gets a sleep; the grace period stays at {} s", explained.grace_seconds);
    }
    let sum = sums.grace_before.saturating_add(sleep);
    writeln!(text, "  grace {} s + {sleep} s = {sum} s", sums.grace_before)?;
    match explained.grace_seconds {
        grace if grace > sum => writeln!(text, "  the pod has {grace} s already, and it is never lowered"),
        _ => Ok(()),
    }
}

/// The drain delay of a binding, and where it comes from.
fn drain_of(index: usize, snapshot: &Snapshot) -> (Duration, String) {
    let binding = &snapshot.configuration.bindings[index];
    let answer = snapshot.delays.answer(index);
    let delay = binding.drain.delay(answer);
    let drain = format!("drain {} of {}", seconds(delay), binding.name);
    let registry = &binding.service.registry;
    let line = match binding.drain {
        Drain::Fixed(_) => drain,
        Drain::HealthCheck { interval, unhealthy_threshold, timeout } => {
            let (interval, timeout) = (seconds(interval), seconds(timeout));
            format!("{drain} (health check: {interval} x {unhealthy_threshold} + {timeout})")
        }
        Drain::FromRegistry { .. } if answer.is_some() => format!("{drain} from the registry {registry}"),
        Drain::FromRegistry { .. } => format!("{drain} (fallback: the registry {registry} has not answered)"),
    };
    (delay, line)
}

/// The places that a patch names.
fn places(patch: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Operation {
        path: String,
    }
    let operations: Vec<Operation> = serde_json::from_slice(patch).unwrap_or_default();
    operations.into_iter().map(|operation| operation.path).collect()
}

fn seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 { format!("{} s", duration.as_secs()) } else { format!("{} s", duration.as_secs_f64()) }
}

fn meaning(reason: Reason) -> &'static str {
    match reason {
        Reason::NotPodCreate => "only the creation of a pod is ever changed",
        Reason::ExcludedNamespace => "pods of this namespace are never injected",
        Reason::MirrorPod => "the kubelet's own pod, which nobody can change",
        Reason::OptedOut => "the pod's label opts it out",
        Reason::RunsToCompletion => "the pod ends by itself and serves nobody",
        Reason::NoBinding => "no binding of the configuration selects this namespace and these labels",
        Reason::Unreadable => "a part that decides has the wrong type",
        Reason::AnnotationsFull => "there is no room for the record",
        Reason::AlreadyInjected => "everything is there already",
        Reason::Injected => "the pod is changed",
    }
}
