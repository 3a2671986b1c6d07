//! A real HAProxy for tests: in a folder of its own, ended by process id.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

/// Where Debian puts it.
const PROGRAM: &str = "/usr/sbin/haproxy";
/// Runs a program as the first of its process namespace; what it has started ends with it.
const CONTAINER: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// Longer than it takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// One running HAProxy.
pub(crate) struct Haproxy {
    folder: TempDir,
    config: String,
    how: How,
    child: Child,
}

/// How it is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    Mastered,
    Contained,
}

impl Haproxy {
    /// Starts one with `sections` behind the usual defaults; `FOLDER` in them means its folder. Its socket has `level admin`.
    pub(crate) fn start(sections: &str) -> Self {
        Self::launch(sections, How::Plain)
    }

    /// The same with a master, which takes a signal to reload.
    pub(crate) fn start_mastered(sections: &str) -> Self {
        Self::launch(sections, How::Mastered)
    }

    /// The same with a process namespace of its own, as in a container; `None` where that may not be made.
    pub(crate) fn start_contained(sections: &str) -> Option<Self> {
        let may = Command::new(CONTAINER[0]).args(&CONTAINER[1..]).arg("true").status().is_ok_and(|status| status.success());
        may.then(|| Self::launch(sections, How::Contained))
    }

    fn launch(sections: &str, how: How) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "global\n stats socket FOLDER/admin level admin expose-fd listeners\n stats socket FOLDER/weak level user\n server-state-file FOLDER/state\n\
             defaults\n mode http\n timeout connect 2s\n timeout client 60s\n timeout server 60s\n load-server-state-from-file global\n\
             {sections}\n"
        );
        let config = config.replace("FOLDER", folder.path().to_str().unwrap());
        let child = launch(folder.path(), &config, how);
        let one = Self { folder, config, how, child };
        one.wait();
        one
    }

    /// Its runtime API, as the configuration of Lockstep names it.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.folder.path().join("admin").display())
    }

    /// A socket of it that may do little.
    pub(crate) fn weak_address(&self) -> String {
        format!("unix:{}", self.folder.path().join("weak").display())
    }

    /// What it answers to one command; in the moment of a reload nobody answers.
    pub(crate) fn ask(&self, command: &str) -> String {
        let begun = Instant::now();
        loop {
            match self.try_ask(command) {
                Ok(answer) => return answer,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{command}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.folder.path().join("admin"))?;
        writeln!(stream, "{command}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Keeps the state of its servers, and has the master start a new process at once.
    pub(crate) fn reload(&self) {
        self.save_state();
        self.replace();
    }

    /// Keeps the state of its servers, as it is now.
    pub(crate) fn save_state(&self) {
        std::fs::write(self.folder.path().join("state"), self.ask("show servers state")).unwrap();
    }

    /// Has the master start a new process, which takes the listeners over.
    pub(crate) fn replace(&self) {
        let before = self.process().expect("it runs");
        self.signal("USR2");
        let begun = Instant::now();
        // For a moment both processes take connections, so the old one must be gone before the next answer counts.
        let leaving = PathBuf::from(format!("/proc/{before}"));
        while leaving.exists() || self.process().is_none_or(|now| now == before) {
            assert!(begun.elapsed() < PATIENCE, "HAProxy does not reload");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Id of the process that answers, if one does.
    fn process(&self) -> Option<u32> {
        let info = self.try_ask("show info").ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid: ")?.trim().parse().ok())
    }

    /// Ends it at once.
    pub(crate) fn stop(&mut self) {
        end(&mut self.child);
    }

    /// Starts it again.
    pub(crate) fn resume(&mut self) {
        self.child = launch(self.folder.path(), &self.config, self.how);
        self.wait();
    }

    /// Goes on running where nobody can reach it.
    pub(crate) fn hide(&self) {
        std::fs::rename(self.folder.path().join("admin"), self.folder.path().join("hidden")).unwrap();
    }

    /// Can be reached again.
    pub(crate) fn show(&self) {
        std::fs::rename(self.folder.path().join("hidden"), self.folder.path().join("admin")).unwrap();
    }

    /// Takes connections and says nothing any more.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Goes on.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("/bin/sh").args(["-c", "kill -$0 $1", name, &id]).status().unwrap().success());
    }

    fn wait(&self) {
        let begun = Instant::now();
        while UnixStream::connect(self.folder.path().join("admin")).is_err() {
            assert!(begun.elapsed() < PATIENCE, "HAProxy does not start; its configuration is\n{}", self.config);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn launch(folder: &Path, config: &str, how: How) -> Child {
    let file: PathBuf = folder.join("haproxy.cfg");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(if how == How::Contained { CONTAINER[0] } else { PROGRAM });
    if how == How::Contained {
        command.args(&CONTAINER[1..]).arg(PROGRAM);
    }
    let mode = if how == How::Mastered { "-W" } else { "-db" };
    command.args([mode, "-f"]).arg(file).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("Debian's haproxy is installed")
}

/// Ends a process at once. What a master has started notices that it is gone, and ends too.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Whether the address is in a server that takes traffic.
pub(crate) fn serves(process: &Haproxy, address: SocketAddr) -> bool {
    let state = process.ask("show servers state web");
    state.lines().skip(2).map(|line| line.split(' ').collect::<Vec<_>>()).any(|fields| {
        fields.len() > 18
            && fields[4] == address.ip().to_string()
            && fields[18] == address.port().to_string()
            && fields[6].parse::<u32>().unwrap() & 0x7b == 0
            && fields[7] != "0"
    })
}

/// A port that nobody has at this moment.
pub(crate) fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
