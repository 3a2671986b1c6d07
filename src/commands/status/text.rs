//! What `status` found, for people: a table of pods, or the life of one.
//!
//! Invariant: pure; columns are as wide as what stands in them, colours are left out unless they are asked for.
//! Absent on purpose: anything that is not in the report.

use std::fmt::Write;

use jiff::Timestamp;

use super::outlook::{Help, Standing, clock, span};
use super::report::{Life, Pod, Report, Sleep, Workload};

/// The longest text of a column that is cut: what a pod waits for is told in full when one asks for the pod.
const CELL: usize = 80;
/// Before each column.
const GAP: &str = "  ";
/// Columns of a pod's line.
const COLUMNS: [&str; 7] = ["POD", "STATE", "GATE", "BINDINGS", "REGISTRY", "SINCE", "WAITS FOR"];

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// With colours, as a terminal shows them.
    pub(super) colours: bool,
    /// Long cells are cut, so that a line fits on a screen; who reads a pipe wants all of it.
    pub(super) cut: bool,
    /// The present time, for ages.
    pub(super) now: Timestamp,
}

/// The table of many pods.
pub(super) fn table(report: &Report, look: Look) -> String {
    let mut text = notes(&report.notes);
    let rows: Vec<Vec<[String; 7]>> =
        report.workloads.iter().map(|workload| workload.pods.iter().map(|pod| row(pod, look)).collect()).collect();
    if rows.is_empty() {
        text.push_str("No managed pods found here; -A looks in every namespace.\n");
        return text;
    }
    let mut widths = COLUMNS.map(str::len);
    for row in rows.iter().flatten() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    line(&mut text, &COLUMNS.map(str::to_owned), &widths, None);
    for (workload, rows) in report.workloads.iter().zip(&rows) {
        head(&mut text, workload);
        for (row, pod) in rows.iter().zip(&workload.pods) {
            line(&mut text, row, &widths, look.colours.then_some(pod.standing));
        }
    }
    text
}

/// The life of one pod.
pub(super) fn life(life: &Life, name: &str, look: Look) -> String {
    let mut text = notes(&life.notes);
    match &life.pod {
        Some(pod) => present(&mut text, pod, look),
        None => writeln!(text, "pod {name} is gone; its Events still tell:").expect(WRITES),
    }
    timeline(&mut text, life, look.now);
    if !life.warnings.is_empty() {
        text.push_str("\nWarnings:\n");
    }
    for warning in &life.warnings {
        let ago = warning.last.map(|last| format!("{} ago", span(look.now.duration_since(last.0)))).unwrap_or_default();
        writeln!(text, "  {ago:>10}  {}: {}", warning.reason, warning.note).expect(WRITES);
    }
    text
}

const WRITES: &str = "writing into a String cannot fail";

fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

fn head(text: &mut String, workload: &Workload) {
    let (settled, all) = (workload.pods.iter().filter(|pod| pod.standing == Standing::Settled).count(), workload.pods.len());
    let kind = workload.kind.to_lowercase();
    writeln!(text, "{}/{kind}/{}: {settled} of {all} settled", workload.namespace, workload.name).expect(WRITES);
}

fn row(pod: &Pod, look: Look) -> [String; 7] {
    let gate = pod.gate.as_ref().map_or("none", |gate| if gate.open { "open" } else { "closed" });
    let since = pod.since.map(|since| span(look.now.duration_since(since.0)));
    let fitted = |text: &str| if look.cut { cut(text) } else { text.to_owned() };
    [
        pod.name.clone(),
        pod.state.clone(),
        gate.to_owned(),
        or_dash(pod.bindings.join(",")),
        fitted(&pod.registry),
        or_dash(since.unwrap_or_default()),
        or_dash(fitted(pod.waits_for.as_deref().unwrap_or_default())),
    ]
}

fn line(text: &mut String, cells: &[String; 7], widths: &[usize; 7], standing: Option<Standing>) {
    text.push_str(GAP);
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let last = index + 1 == cells.len();
        let padding = if last { 0 } else { width - cell.chars().count() };
        match standing.filter(|_| index == 1) {
            Some(standing) => text.push_str(&coloured(cell, standing)),
            None => text.push_str(cell),
        }
        text.extend(std::iter::repeat_n(' ', padding));
        if !last {
            text.push_str(GAP);
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

fn present(text: &mut String, pod: &Pod, look: Look) {
    let mut say = |name: &str, value: &str| writeln!(text, "{name:<11}{value}").expect(WRITES);
    say("Pod:", &format!("{}/{}", pod.namespace, pod.name));
    let state = if look.colours { coloured(&pod.state, pod.standing) } else { pod.state.clone() };
    let since = pod.since.map(|since| format!(", for {}", span(look.now.duration_since(since.0)))).unwrap_or_default();
    say("State:", &format!("{state} ({}{since})", pod.standing.as_str()));
    say(
        "Gate:",
        &pod.gate.as_ref().map_or_else(
            || "none".to_owned(),
            |gate| {
                let why = if gate.reason.is_empty() { gate.message.clone() } else { format!("{}: {}", gate.reason, gate.message) };
                format!("{} ({why})", if gate.open { "open" } else { "closed" })
            },
        ),
    );
    say("Bindings:", &or_dash(pod.bindings.join(", ")));
    if let Some(sleep) = &pod.sleep {
        say("Sleep:", &rests_on(sleep));
    }
    for target in &pod.targets {
        let observed = if target.observed { " (only observed)" } else { "" };
        say("Target:", &format!("{}/{} {}{observed}", target.registry, target.service, target.address));
    }
    say("Registry:", &pod.registry);
    say("Waits for:", pod.waits_for.as_deref().unwrap_or("nothing"));
    if let Some(until) = pod.until {
        say("Until:", &format!("{} (in {})", clock(until.0), span(until.0.duration_since(look.now))));
    }
    if let Some(then) = &pod.then {
        say("Then:", then);
    }
    for Help { command, effect } in &pod.help {
        say("Help:", &format!("{command}   # {effect}"));
    }
    if !pod.findings.is_empty() {
        say("Findings:", &format!("{} (docs/findings.md says what to do)", pod.findings.join(", ")));
    }
}

fn rests_on(sleep: &Sleep) -> String {
    let answered = sleep.answered_at.map(|at| format!(", for the drain delay that a registry told at {}", day_and_time(at.0)));
    let fallback = if sleep.fallback.is_empty() {
        String::new()
    } else {
        format!(", by `fallback` of {}, whose registry had not answered", sleep.fallback.join(", "))
    };
    format!("{} s{}{fallback}", sleep.seconds, answered.unwrap_or_default())
}

fn timeline(text: &mut String, life: &Life, now: Timestamp) {
    text.push_str("\nTimeline:\n");
    for stage in &life.timeline {
        let after = stage.after_seconds.map(|seconds| format!("+{}", span(jiff::SignedDuration::from_secs(seconds)))).unwrap_or_default();
        let at = day_and_time(stage.at.0);
        writeln!(text, "  {at}  {after:>8}  {}", stage.stage.words()).expect(WRITES);
    }
    let Some((pod, last)) = life.pod.as_ref().zip(life.timeline.last()) else { return };
    let at = day_and_time(now);
    let since = format!("+{}", span(now.duration_since(last.at.0)));
    let now = match &pod.waits_for {
        Some(what) => format!("waits for {what}"),
        None => "at rest".to_owned(),
    };
    writeln!(text, "  {at}  {since:>8}  now: {now}").expect(WRITES);
}

fn day_and_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

fn coloured(text: &str, standing: Standing) -> String {
    let colour = match standing {
        Standing::Stuck => 31,
        Standing::Waiting => 33,
        Standing::Settled => 32,
    };
    format!("\u{1b}[{colour}m{text}\u{1b}[0m")
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CELL) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests;
