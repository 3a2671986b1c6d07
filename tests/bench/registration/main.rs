//! What registration costs, measured on a real API server: how fast gates open, what a storm, many pods and a change of leader take.
//!
//! The control plane is real and has no kubelets: this program writes what kubelets would, so that nothing but Lockstep and the API
//! server is measured. Times are those of the API server's own audit log.
//!
//! Invariant: each figure and what it is held against come from the same run; the table shows the budget beside both.
//! Absent on purpose: admission (a bench of its own), containers, pass and fail: a busy machine must not turn a build red.
#![expect(clippy::disallowed_methods, reason = "a bench looks at the clock, at its arguments and at the environment")]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "a bench tells a person what it measured")]

mod audit;
#[path = "../../cluster/cluster.rs"]
#[expect(dead_code, reason = "the cluster's tests use more of it")]
mod cluster;
#[path = "../../cluster/ground.rs"]
mod ground;
mod kubelet;
mod phases;
mod report;
mod stage;
#[path = "../report.rs"]
mod table;

use std::env;
use std::process::ExitCode;

use cluster::Cluster;
use ground::Entered;
use report::Report;
use stage::Stage;

/// A measurement.
type Phase = fn(&Stage, &mut Report);

/// The measurements; some of them alone with `cargo bench --bench registration -- NAME`.
const PHASES: &[(&str, Phase)] = &[("pace", phases::pace), ("storm", phases::storm), ("many", phases::many)];

fn main() -> ExitCode {
    match ground::enter(0) {
        Entered::Impossible(why) => {
            eprintln!("registration is not measured: {why}");
            ExitCode::SUCCESS
        }
        Entered::Over(code) => code,
        Entered::Inside(ground) => {
            let stage = Stage::set(Cluster::connect(ground));
            let mut report = Report::default();
            for (name, measure) in PHASES {
                if env::args().skip(1).all(|argument| argument.starts_with('-')) || env::args().any(|argument| argument == *name) {
                    measure(&stage, &mut report);
                }
            }
            report.print();
            ExitCode::SUCCESS
        }
    }
}
