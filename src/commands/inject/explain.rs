//! `inject --explain`: why, and the sums as a person would write them down.
//!
//! Invariant: every number that is shown comes from the decision itself.
//! Absent on purpose: advice about the configuration (`check`).

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::admission::offline::Explained;
use crate::admission::prestop::Sums;
use crate::admission::{Finding, Reason};
use crate::args::Output;
use crate::config::{Binding, Configuration, Drain, show_duration};
use crate::yaml::{json, print};

/// What an answer is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Subject {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
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
pub(super) fn print(all: &[(Subject, Explained)], configuration: &Configuration, output: Option<Output>) -> anyhow::Result<String> {
    let Some(output) = output else {
        return Ok(all.iter().map(|(subject, explained)| for_people(subject, explained, configuration)).collect::<Vec<_>>().join("\n"));
    };
    let data: Vec<Data<'_>> = all.iter().map(|(subject, explained)| data(subject, explained, configuration)).collect();
    let text = match &data[..] {
        [one] => serde_json::to_string(one),
        all => serde_json::to_string(all),
    };
    let node = json::values(&text.context("an explanation")?).context("an explanation")?.remove(0);
    Ok(match output {
        Output::Json => print::pretty_json(&node),
        Output::Yaml => print::yaml(&node),
    })
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
        findings: explained.findings.iter().map(|finding| finding.as_str()).collect(),
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

fn for_people(subject: &Subject, explained: &Explained, configuration: &Configuration) -> String {
    let mut text = match &*subject.name {
        "" => format!("{}: ", subject.kind),
        name => format!("{} {}/{name}: ", subject.kind, subject.namespace),
    };
    lines(&mut text, explained, configuration).expect("writing into a String cannot fail");
    text
}

fn lines(text: &mut String, explained: &Explained, configuration: &Configuration) -> std::fmt::Result {
    writeln!(text, "{}: {}", explained.reason.as_str(), meaning(explained.reason))?;
    let bindings: Vec<&Binding> = explained.bindings.iter().map(|index| &configuration.bindings[*index]).collect();
    if explained.reason == Reason::Injected {
        let names: Vec<&str> = bindings.iter().map(|binding| &*binding.name).collect();
        writeln!(text, "  bindings: {}", names.join(", "))?;
        if let Some(sums) = &explained.sums {
            self::sums(text, sums, explained, &bindings, configuration)?;
        }
        writeln!(text, "  added: whatever of gate, finalizer, label and record was missing")?;
    } else {
        for warning in &explained.warnings {
            writeln!(text, "  {warning}")?;
        }
    }
    for finding in &explained.findings {
        write_finding(text, *finding)?;
    }
    Ok(())
}

fn sums(text: &mut String, sums: &Sums, explained: &Explained, bindings: &[&Binding], configuration: &Configuration) -> std::fmt::Result {
    for binding in bindings {
        writeln!(text, "  drain delay of {}: {}", binding.name, source(binding, sums, bindings.len() == 1))?;
    }
    if sums.wanted == 0 {
        writeln!(text, "  no sleep is wanted")?;
    } else {
        let longest = if bindings.len() > 1 { "longest drain delay" } else { "drain" };
        writeln!(text, "  sleep: {longest} {} + margin {} = {} s", seconds(sums.drain), seconds(sums.margin), sums.wanted)?;
    }
    if sums.after_max_sleep < sums.wanted {
        writeln!(text, "  cut to maxSleep ({}): {} s", show_duration(configuration.injection.max_sleep), sums.after_max_sleep)?;
    }
    if sums.seconds < sums.after_max_sleep {
        let limit = show_duration(configuration.injection.max_grace);
        writeln!(text, "  cut to what maxGrace ({limit}) leaves beside a grace period of {} s: {} s", sums.grace_before, sums.seconds)?;
    }
    match explained.sleep_seconds {
        0 => writeln!(text, "  no container gets a sleep; the grace period stays at {} s", explained.grace_seconds),
        sleep => {
            let sum = sums.grace_before.saturating_add(i64::try_from(sleep).unwrap_or(i64::MAX));
            writeln!(text, "  grace: {} s + sleep {sleep} s = {sum} s", sums.grace_before)?;
            match explained.grace_seconds {
                grace if grace > sum => writeln!(text, "  the pod has {grace} s already, and it is never lowered"),
                _ => Ok(()),
            }
        }
    }
}

/// Where a drain delay comes from; the number itself where it is the only one, or known from the configuration.
fn source(binding: &Binding, sums: &Sums, only: bool) -> String {
    match binding.drain {
        Drain::Fixed(delay) => format!("{} (fixed)", seconds(delay)),
        Drain::HealthCheck { interval, unhealthy_threshold, timeout } => format!(
            "{} x {unhealthy_threshold} + {} = {} (health check)",
            seconds(interval),
            seconds(timeout),
            seconds(binding.drain.delay(None))
        ),
        Drain::FromRegistry { .. } if only => {
            format!("{} (from the registry {}, or its fallback)", seconds(sums.drain), binding.service.registry)
        }
        Drain::FromRegistry { fallback } => {
            format!("from the registry {}; {} until it has answered", binding.service.registry, seconds(fallback))
        }
    }
}

fn seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 { format!("{} s", duration.as_secs()) } else { format!("{} s", duration.as_secs_f64()) }
}

fn write_finding(text: &mut String, finding: Finding) -> std::fmt::Result {
    writeln!(text, "  finding {}: {}", finding.as_str(), finding.meaning())?;
    writeln!(text, "    what to do: {}", finding.remedy())
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
