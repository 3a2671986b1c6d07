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

use anyhow::{anyhow, bail};

use super::access;
use super::output::{data, say, schema, tell};
use super::workload::Named;
use crate::args::{self, Output, StatusArgs};
use crate::registration::Reason;
use reading::{Reading, Scope};
use report::{Shown, Wanted};
use text::Look;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

/// Runs the command: 0 where all is well, 1 where a pod is stuck.
pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    if args.schema {
        say(&schema::<Shown>())?;
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
    let clear = if screen { CLEAR } else { "" };
    let mut last = None;
    loop {
        let look = Look { colours: terminal && args::colours_allowed(), cut: terminal, now: reading.now() };
        let shown = shown(&reading, &wanted, look)?;
        let news = screen || last.as_ref() != Some(&shown);
        let is_read = !news || tell(&format!("{clear}{}", print(&shown, &reading, args.output, look)?))?;
        if !is_read || !args.watch {
            return Ok(if shown.is_stuck() { ExitCode::from(1) } else { ExitCode::SUCCESS });
        }
        last = Some(shown);
        reading.changed(screen).await;
    }
}

fn shown(reading: &Reading, wanted: &Wanted, look: Look) -> anyhow::Result<Shown> {
    let Some(key) = reading.pod() else { return Ok(Shown::Report(reading.report(wanted, look.now))) };
    let life = reading.life(look.now);
    if life.pod.is_none() && life.timeline.is_empty() {
        bail!("pod {key} is not there, and no Event tells of it; `lockstep status -A` lists the managed pods");
    }
    Ok(Shown::Life(Box::new(life)))
}

fn print(shown: &Shown, reading: &Reading, output: Option<Output>, look: Look) -> anyhow::Result<String> {
    match (output, shown) {
        (Some(output), _) => data(shown, output),
        (None, Shown::Report(report)) => Ok(text::table(report, look)),
        (None, Shown::Life(life)) => Ok(text::life(life, &reading.pod().map(ToString::to_string).unwrap_or_default(), look)),
    }
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
