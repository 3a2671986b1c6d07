//! Servers of the http contract for tests: in this process or as a child, on free ports, ended by process id.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use clap::Parser;
use lockstep::args::{Arguments, RegistryArgs};
use lockstep::commands::registry::{Limits, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server in this process; it stops when this is dropped.
pub(crate) struct Inside {
    /// Its base URL.
    pub(crate) url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// A server as a child process; it is killed when this is dropped.
pub(crate) struct Outside {
    /// Its base URL.
    pub(crate) url: String,
    child: Child,
}

/// Arguments of the command as a person would give them, on a free port of the loopback.
pub(crate) fn arguments(store: &Path, more: &[&str]) -> RegistryArgs {
    let given = ["lockstep", "registry", "--listen", "127.0.0.1:0", "--store", store.to_str().unwrap()];
    match Arguments::try_parse_from(given.iter().chain(more)).unwrap().command {
        lockstep::args::Command::Registry(args) => args,
        other => panic!("{other:?}"),
    }
}

impl Inside {
    pub(crate) async fn start(store: &Path, more: &[&str]) -> Self {
        Self::start_with(store, more, Limits::default()).await
    }

    pub(crate) async fn start_with(store: &Path, more: &[&str], limits: Limits) -> Self {
        let mut server = Server::open(&arguments(store, more)).await.unwrap();
        server.limits = limits;
        let url = format!("{}://{}", server.scheme(), server.address);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve(async {
            let _ = stopped.await;
        }));
        Self { url, stop: Some(stop), task }
    }

    /// Stops it and waits until it has.
    pub(crate) async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.task.await.unwrap();
    }
}

impl Outside {
    pub(crate) fn start(store: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(["registry", "--listen", "127.0.0.1:0", "--store"]).arg(store).args(more);
        Self::launch(command)
    }

    /// One whose files cannot grow beyond a number of blocks of 512 bytes, so that its disk is full soon.
    pub(crate) fn start_on_small_disk(store: &Path, blocks: u32) -> Self {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" registry --listen 127.0.0.1:0 --store \"$1\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_lockstep")]).arg(store);
        Self::launch(command)
    }

    fn launch(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "the first line says where: {line:?}");
        Self { url, child }
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it the signal that asks it to end.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("/bin/sh").args(["-c", "kill -TERM $0", &id]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
