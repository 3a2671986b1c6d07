//! Boots the cluster, goes into its network namespace, and ends it.
//!
//! The test program starts itself again inside the cluster's network namespace; there the API server, every pod and every registry
//! are plain addresses, and no test needs to know of namespaces.
//!
//! Invariant: a keeper process holds the other end of a pipe of ours: however this process ends, the pipe closes and the keeper takes
//! the cluster down, each process by its id.
//! Absent on purpose: what is done in the cluster (`cluster`), what is installed in it (`world`).

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Says, to the process inside, where the cluster's state is.
const STATE: &str = "LOCKSTEP_TEST_CLUSTER";
/// Leaves the cluster up when set to anything.
const KEEP: &str = "KEEP";

/// Where this process stands.
pub(crate) enum Entered {
    /// In the cluster's network namespace.
    Inside(Ground),
    /// Outside; the tests ran in another process and ended so.
    Over(ExitCode),
    /// On a machine that cannot run a cluster.
    Impossible(String),
}

/// A running cluster.
pub(crate) struct Ground {
    /// Folder of everything that belongs to it.
    pub state: PathBuf,
    /// Folder of its programs.
    pub bin: PathBuf,
}

/// Boots a cluster with that many nodes and runs the tests inside; inside, says so.
pub(crate) fn enter(nodes: usize) -> Entered {
    if let Some(state) = env::var_os(STATE) {
        let state = PathBuf::from(state);
        let bin = fs::read_to_string(state.join("bin")).expect("the process outside wrote it");
        return Entered::Inside(Ground { state, bin: bin.into() });
    }
    if run("id", &["-u"]) != "0" {
        return Entered::Impossible("they need root, for network namespaces and containers".into());
    }
    let state = PathBuf::from(run("mktemp", &["--directory", "--tmpdir", "lockstep-XXXXXX"]));
    let mut keeper = keeper(&state);
    let ground = boot(state, nodes);
    let namespace = format!("--net=/run/netns/{}", fs::read_to_string(ground.state.join("netns")).expect("`up` wrote it").trim());
    let here = env::current_exe().expect("this program runs");
    // Stories say what they saw; a backtrace through the harness adds nothing.
    let settings = [(STATE, ground.state.as_os_str()), ("RUST_BACKTRACE", "0".as_ref())];
    let inside = Command::new("nsenter").arg(&namespace).arg(here).args(env::args_os().skip(1)).envs(settings).status();
    let passed = inside.expect("nsenter is there").success();
    if !passed {
        keep_logs(&ground.state);
    }
    if env::var_os(KEEP).is_some() {
        let kubectl = ground.bin.join("kubectl");
        let config = ground.state.join("admin.kubeconfig");
        eprintln!("kept: nsenter {namespace} {} --kubeconfig {}", kubectl.display(), config.display());
        eprintln!("end it with: {} {}", script("down").display(), ground.state.display());
        keeper.dismiss();
    }
    Entered::Over(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a program to its end and answers what it printed.
pub(crate) fn run(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let program = program.as_ref();
    let output = Command::new(program).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{} {arguments:?}: {}", program.display(), output.status);
    String::from_utf8(output.stdout).expect("programs print text").trim_end().to_owned()
}

/// A script beside this file.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(name)
}

fn boot(state: PathBuf, nodes: usize) -> Ground {
    run(script("packages"), &["haproxy"]);
    let bin = PathBuf::from(run(script("build"), &[]));
    let folder = state.to_str().expect("mktemp prints text");
    run_aloof(script("up"), &[folder, bin.to_str().expect("paths are text"), "--nodes", &nodes.to_string()]);
    fs::write(state.join("bin"), bin.as_os_str().as_encoded_bytes()).expect("the folder is ours");
    if nodes > 0 {
        let images = state.join("images");
        let here = env::current_exe().expect("this program runs");
        let [images_text, here] = [&images, &here].map(|path| path.to_str().expect("paths are text"));
        run(script("images"), &[env!("CARGO_BIN_EXE_lockstep"), images_text, here]);
        for node in 1..=nodes {
            let socket = format!("{folder}/node{node}/containerd.sock");
            // Only web servers run beyond the first node.
            for image in &["app.tar", "lockstep.tar", "web.tar"][..if node == 1 { 3 } else { 1 }] {
                let image = images.join(image);
                let import = Command::new(bin.join("ctr"))
                    .args(["--address", &socket, "--namespace", "k8s.io", "images", "import"])
                    .arg(&image)
                    .output()
                    .expect("ctr was built");
                assert!(import.status.success(), "import of {}: {}", image.display(), String::from_utf8_lossy(&import.stderr));
            }
        }
    }
    Ground { state, bin }
}

/// As [`run`], but out of reach of the terminal's Ctrl-C: what it starts must be ended in order, by the keeper.
fn run_aloof(program: PathBuf, arguments: &[&str]) {
    let status = Command::new(&program).args(arguments).stdout(Stdio::null()).process_group(0).status();
    let status = status.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(status.success(), "{} {arguments:?}: {status}", program.display());
}

/// Takes the cluster down once it is dropped, or once this process is gone.
struct Keeper(Child);

fn keeper(state: &Path) -> Keeper {
    let child = Command::new("sh")
        .args(["-c", "cat > /dev/null; exec \"$0\" \"$1\""])
        .arg(script("down"))
        .arg(state)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn();
    Keeper(child.expect("sh is there"))
}

impl Keeper {
    /// Ends it without its deed.
    fn dismiss(&mut self) {
        self.0.kill().expect("it is our child");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it is our child");
    }
}

/// Leaves what the cluster's programs logged where a build machine finds it.
fn keep_logs(state: &Path) {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster-log");
    if kept.exists() {
        fs::remove_dir_all(&kept).expect("the folder is ours");
    }
    run("cp", &["-r", state.join("log").to_str().expect("paths are text"), kept.to_str().expect("paths are text")]);
    eprintln!("logs of the cluster: {}", kept.display());
}
