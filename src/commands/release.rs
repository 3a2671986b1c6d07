//! `lockstep release`.

use std::process::ExitCode;

/// Runs the command.
pub async fn run(_args: crate::args::ReleaseArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
