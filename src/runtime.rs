//! Wiring of serve: start order, then stop order, top to bottom.

use std::process::ExitCode;

/// Runs `lockstep serve` until it is told to stop.
pub async fn serve(_args: crate::args::ServeArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
