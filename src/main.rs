//! Parses the arguments and runs the subcommand.
//!
//! Invariant: the exit code is 0, 1 (found something) or 2 (could not look).
//! Absent on purpose: everything else.

use std::process::ExitCode;

use lockstep::args::{self, Command};
use lockstep::{commands, runtime};

fn main() -> ExitCode {
    let arguments = args::parse();
    let workers = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = workers.map_err(anyhow::Error::from).and_then(|workers| workers.block_on(dispatch(arguments.command)));
    outcome.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(2)
    })
}

async fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => runtime::serve(*args).await,
        Command::Inject(args) => commands::inject::run(args).await,
        Command::Check(args) => commands::check::run(args).await,
        Command::Status(args) => commands::status::run(args).await,
        Command::Doctor(args) => commands::doctor::run(args).await,
        Command::Release(args) => commands::release::run(args).await,
        Command::Registries(args) => commands::registries::run(args).await,
        Command::Registry(args) => commands::registry::run(args).await,
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Manual(args) => commands::shell::manual(&args),
    }
}

#[expect(clippy::print_stderr, reason = "the last word of a command is for the person who ran it")]
fn complain(error: &anyhow::Error) {
    eprintln!("lockstep: {error:#}");
}
