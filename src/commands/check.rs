//! `lockstep check`.

use std::process::ExitCode;

/// Runs the command.
pub async fn run(_args: crate::args::CheckArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
