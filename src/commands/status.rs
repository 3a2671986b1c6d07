//! `lockstep status`: what pods wait for, as a table or as the life of one pod.
//!
//! Invariant: only the API server is asked, and only to read; what may not be read is a note, save the pods themselves.
//! Absent on purpose: registries (an operator's laptop has no credentials for them), decisions (the files below).

pub(super) mod outlook;
mod reading;
mod report;
pub(super) mod sight;
mod text;
mod timeline;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::anyhow;

use super::access;
use super::output::{data, say, schema, tell};
use super::workload::Named;
use crate::args::{self, Output, StatusArgs};
use crate::registration::Reason;
use reading::{Reading, Scope};
use report::Wanted;
use text::Look;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

/// Runs the command: 0 where all is well, 1 where a pod is stuck.
pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    if args.schema {
        say(&schema::<report::Shapes>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = wanted(&args)?;
    let access = access::connect(&args.access).await?;
    let scope = match &args.pod {
        Some(named) => Scope::Pod(access.pod(named)?),
        None if args.all_namespaces => Scope::Everywhere,
        None => Scope::Namespace(access.namespace.clone()),
    };
    let mut reading = Reading::start(access, scope).await?;
    let terminal = std::io::stdout().is_terminal();
    // Ages pass on a screen; into a pipe and as data goes only what is news.
    let screen = terminal && args.watch && args.output.is_none();
    let mut last: Option<Shown> = None;
    loop {
        let shown = show(&reading, &wanted, &args, terminal)?;
        let news = screen || last.as_ref().is_none_or(|last| last.data != shown.data);
        let clear = if screen { CLEAR } else { "" };
        let goes_on = (!news || tell(&format!("{clear}{}", shown.text))?) && args.watch;
        let stuck = shown.stuck;
        last = Some(shown);
        if !goes_on {
            return Ok(if stuck { ExitCode::from(1) } else { ExitCode::SUCCESS });
        }
        reading.changed(screen).await;
    }
}

/// One look at the cluster.
struct Shown {
    /// As it is printed.
    text: String,
    /// The same without ages: another one is news.
    data: String,
    /// Whether a pod is stuck.
    stuck: bool,
}

fn show(reading: &Reading, wanted: &Wanted, args: &StatusArgs, terminal: bool) -> anyhow::Result<Shown> {
    let look = Look { colours: terminal && args::colours_allowed(), now: reading.now() };
    if let Some(key) = reading.pod() {
        let life = reading.life(look.now);
        if life.pod.is_none() && life.timeline.is_empty() {
            return Err(anyhow!("pod {key} is not there, and no Event tells of it; `lockstep status -A` lists the managed pods"));
        }
        let stuck = life.pod.as_ref().is_some_and(report::Pod::is_stuck);
        let text = args.output.map_or_else(|| Ok(text::life(&life, &key.to_string(), look)), |output| data(&life, output))?;
        return Ok(Shown { text, data: data(&life, Output::Json)?, stuck });
    }
    let report = reading.report(wanted, look.now);
    let stuck = report.pods().any(report::Pod::is_stuck);
    let text = args.output.map_or_else(|| Ok(text::table(&report, look)), |output| data(&report, output))?;
    Ok(Shown { text, data: data(&report, Output::Json)?, stuck })
}

fn wanted(args: &StatusArgs) -> anyhow::Result<Wanted> {
    let reason = |word: &String| {
        let known = Reason::ALL.into_iter().find(|reason| reason.as_str().eq_ignore_ascii_case(word));
        let words = || Reason::ALL.map(Reason::as_str).join(", ");
        known.ok_or_else(|| anyhow!("--reason {word}: no such state; one of {}", words()))
    };
    Ok(Wanted {
        workload: args.workload.as_deref().map(Named::parse),
        registry: args.registry.clone(),
        reason: args.reason.as_ref().map(reason).transpose()?,
    })
}
