//! `lockstep inject`.

use std::process::ExitCode;

/// Runs the command.
pub async fn run(_args: crate::args::InjectArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
