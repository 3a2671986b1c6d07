//! Logs: one line an event, JSON or text, on standard error.
//!
//! Invariant: libraries stay silent unless the filter names them; ours is the vocabulary of a log line.
//! Invariant: a panic is a log line as well, without the values that it was about.
//! Absent on purpose: metrics (`metrics`), traces.

use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::args::{LogArgs, LogFormat};

/// Libraries that log on their own; a filter that names one of them wins over this.
const QUIET: &str = "kube_client=off,tower=off,hyper=off,hyper_util=off,rustls=off,h2=off,aws_config=off,aws_smithy_runtime=off";

/// Why logs cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is none.
    #[error("the log filter {0:?} cannot be read")]
    Filter(String, #[source] tracing_subscriber::filter::ParseError),
    /// Somebody else started logs in this process.
    #[error("logs are started already")]
    Started(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Starts logging for the rest of the process.
pub fn start(args: &LogArgs) -> Result<(), TelemetryError> {
    let filter = format!("{QUIET},{}", args.log);
    let filter = EnvFilter::try_new(filter).map_err(|error| TelemetryError::Filter(args.log.clone(), error))?;
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let started = match args.log_format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Text => lines.try_init(),
    };
    started.map_err(TelemetryError::Started)?;
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

fn panicked(panic: &PanicHookInfo<'_>) {
    // The message may quote what was being worked on, which may be a secret; the place is enough to find the bug.
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(error = %place, "a task panicked");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_named() {
        let error = start(&LogArgs { log: "lockstep=loud".into(), log_format: LogFormat::Json }).unwrap_err();
        assert!(error.to_string().contains("lockstep=loud"), "{error}");
    }
}
