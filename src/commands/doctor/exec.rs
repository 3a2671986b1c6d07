//! Asks the registries where their credentials are: `lockstep registries` in a pod of Lockstep, through `kubectl exec`.
//!
//! kubectl brings everything that a person's way to the cluster may need: plugins for credentials, proxies, contexts.
//!
//! Invariant: an answer or a sentence that says why there is none, within [`TIME`].
//! Absent on purpose: what is asked (`registries`), what the answers mean (the checks).

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::args::AccessArgs;
use crate::commands::registries::Answers;
use crate::text::one_line;

/// All registries have answered by then: each call has 5 s, and some wait for their turn.
const TIME: Duration = Duration::from_secs(60);
/// Deployment of the program, as the chart names it.
const DEPLOYMENT: &str = "deployment/lockstep";
/// The program in its image.
const PROGRAM: &str = "/lockstep";
/// A complaint is shown up to this many characters.
const COMPLAINT_CHARS: usize = 300;

/// What the registries of a configuration answer a pod of Lockstep, or why that cannot be known.
pub(super) async fn ask(access: &AccessArgs, configuration: &str) -> Result<Answers, String> {
    let asked = tokio::time::timeout(TIME, run(access, configuration)).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {} s", TIME.as_secs())))
}

async fn run(access: &AccessArgs, configuration: &str) -> Result<Answers, String> {
    let mut command = Command::new("kubectl");
    if let Some(kubeconfig) = &access.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    if let Some(context) = &access.context {
        command.args(["--context", context]);
    }
    command.args([
        "exec",
        "--stdin",
        "--namespace",
        &access.own_namespace,
        DEPLOYMENT,
        "--",
        PROGRAM,
        "registries",
        "-",
        "--output",
        "json",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("kubectl cannot be run: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // kubectl says itself why it takes no more.
        let _ = stdin.write_all(configuration.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(|error| format!("kubectl: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        one_line(complaint.trim()).take(COMPLAINT_CHARS).collect()
    })
}
