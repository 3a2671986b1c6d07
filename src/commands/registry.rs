//! `lockstep registry`.

use std::process::ExitCode;

/// Runs the command.
pub async fn run(_args: crate::args::RegistryArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
