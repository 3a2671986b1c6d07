//! `lockstep inject`: the pod as it would be admitted, offline.
//!
//! It can stand in a pipe: whatever it is given comes out again, with the pods in it changed as the webhook would change them.
//!
//! Invariant: the decision is admission's own; a review is answered byte for byte as the server answers it.
//! Invariant: nothing on standard output where the exit code is 2.
//! Absent on purpose: a cluster; what it would tell is given with flags.

mod explain;
mod objects;

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use super::output::say;
use crate::admission::{Delays, Snapshot, answer, offline, prestop};
use crate::args::{InjectArgs, Output};
use crate::config::{self, Configuration};
use crate::names::OWN_NAMESPACE;
use crate::yaml::print;
use objects::{Documents, Input};

/// The most bytes of one input: far above any stream of manifests, far below the memory of a laptop.
pub(super) const INPUT_BYTES: u64 = 64 << 20;

/// Runs the command.
pub async fn run(args: InjectArgs) -> anyhow::Result<ExitCode> {
    let Some(snapshot) = snapshot(&args)? else { return Ok(ExitCode::from(2)) };
    let input = read(&args.file)?;
    match objects::read(&input).with_context(|| args.file.display().to_string())? {
        Input::Review(body) => review(&body, &args, &snapshot)?,
        Input::Documents(documents) => manifests(documents, &args, &snapshot)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn review(body: &[u8], args: &InjectArgs, snapshot: &Snapshot) -> anyhow::Result<()> {
    let explained = offline::review(body, snapshot)?;
    if args.explain {
        let subject = explain::Subject { kind: "AdmissionReview".to_owned(), ..explain::Subject::default() };
        return say(&explain::print(&[(subject, explained)], snapshot, args.output)?);
    }
    if args.patch {
        return say(&format!("{}\n", String::from_utf8_lossy(&explained.patch)));
    }
    warn("", &explained.warnings)?;
    let answered = answer(body, snapshot)?;
    say(&format!("{}\n", String::from_utf8_lossy(&answered.body)))
}

fn manifests(mut documents: Documents, args: &InjectArgs, snapshot: &Snapshot) -> anyhow::Result<()> {
    let explained = objects::inject(&mut documents.nodes, snapshot)?;
    if args.explain {
        return say(&explain::print(&explained, snapshot, args.output)?);
    }
    if args.patch {
        let patch = match &explained[..] {
            [] => "[]".to_owned(),
            [(_, explained)] => String::from_utf8_lossy(&explained.patch).into_owned(),
            more => bail!("--patch prints the patch of one object, and there are {}", more.len()),
        };
        return say(&format!("{patch}\n"));
    }
    let several = explained.len() > 1;
    for (subject, explained) in &explained {
        warn(&if several { format!("{subject}: ") } else { String::new() }, &explained.warnings)?;
    }
    let output = args.output.unwrap_or(if documents.json { Output::Json } else { Output::Yaml });
    let text: Vec<String> = match output {
        Output::Json => documents.nodes.iter().map(print::pretty_json).collect(),
        Output::Yaml => documents.nodes.iter().map(print::yaml).collect(),
    };
    say(&text.join(if output == Output::Yaml { "---\n" } else { "" }))
}

/// What the server would know: the configuration, the registries' answers and the versions; `None` where the configuration is wrong.
fn snapshot(args: &InjectArgs) -> anyhow::Result<Option<Snapshot>> {
    let text = String::from_utf8(read(&args.config)?).with_context(|| format!("{} is not UTF-8", args.config.display()))?;
    let configuration = match config::parse(&text) {
        Ok(configuration) => configuration,
        Err(errors) => {
            let lines = errors.errors.iter().map(|error| format!("{}: {error}\n", args.config.display())).collect::<String>();
            std::io::stderr().lock().write_all(lines.as_bytes())?;
            return Ok(None);
        }
    };
    if !prestop::is_version(&args.kubernetes_version) {
        bail!("--kubernetes-version {}: not a version; as in 1.34 or v1.30.4", args.kubernetes_version);
    }
    let answers = answers(args, &configuration)?;
    let delays =
        Delays::resolve(&configuration, |binding| answers.iter().rev().find(|(name, _)| **name == *binding.name).map(|(_, delay)| *delay));
    let version = &*args.kubernetes_version;
    let sleep = prestop::sleep_form(configuration.injection.pre_stop, version, [version]);
    Ok(Some(Snapshot { configuration: Arc::new(configuration), own_namespace: Arc::from(OWN_NAMESPACE), delays, sleep }))
}

fn answers<'a>(args: &'a InjectArgs, configuration: &Configuration) -> anyhow::Result<Vec<(&'a str, Duration)>> {
    let one = |flag: &'a String| {
        let (name, delay) = flag.split_once('=').ok_or_else(|| anyhow!("--drain-delay {flag}: as in web=300s"))?;
        let delay = config::duration(delay).map_err(|reason| anyhow!("--drain-delay {flag}: {reason}; as in web=300s"))?;
        if !configuration.bindings.iter().any(|binding| *binding.name == *name) {
            let names: Vec<&str> = configuration.bindings.iter().map(|binding| &*binding.name).collect();
            bail!("--drain-delay {flag}: there is no binding {name}; there are: {}", names.join(", "));
        }
        Ok((name, delay))
    };
    args.drain_delay.iter().map(one).collect()
}

/// The bytes of a file, or of standard input for `-`.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let taken = if path == Path::new("-") {
        std::io::stdin().lock().take(INPUT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(INPUT_BYTES + 1).read_to_end(&mut bytes))
    };
    let taken = taken.with_context(|| path.display().to_string())?;
    if taken as u64 > INPUT_BYTES {
        bail!("{}: larger than {} MiB", path.display(), INPUT_BYTES >> 20);
    }
    Ok(bytes)
}

/// Writes warnings to standard error, with `whose` they are.
fn warn(whose: &str, warnings: &[String]) -> anyhow::Result<()> {
    let lines: String = warnings.iter().map(|warning| format!("warning: {whose}{warning}\n")).collect();
    std::io::stderr().lock().write_all(lines.as_bytes()).context("standard error")
}
