//! `lockstep completions` and `lockstep manual`: what a shell and `man` want to know of the command line.
//!
//! Invariant: both are made from the arguments' own declaration, so neither can say anything else than `--help`.
//! Absent on purpose: installing them; packages and people do that.

use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::generate;

use super::output::say;
use crate::args::{Arguments, CompletionsArgs, ManualArgs};

/// Prints the completions of a shell.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    generate(args.shell.generator(), &mut Arguments::command(), &args.name, &mut script);
    say(&String::from_utf8(script).context("the completions")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages into a folder, which is made if it is not there.
pub fn manual(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.folder).with_context(|| format!("{}: cannot be made", args.folder.display()))?;
    clap_mangen::generate_to(Arguments::command(), &args.folder)
        .with_context(|| format!("{}: cannot be written", args.folder.display()))?;
    say(&format!("{}: written; try `man {0}/lockstep.1`\n", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
