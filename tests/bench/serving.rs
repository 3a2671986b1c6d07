//! What the webhook costs over TLS, against a bare axum and rustls handler that reads the same body and answers a constant of the same
//! size, side by side in one run.
//!
//! The servers take turns, round for round, so that whatever else the machine does hits both; figures are medians of the rounds. Servers
//! run on the first core and the load on the second, so that the load does not take the server's time.
//!
//! Invariant: CPU is the server process's own, user and kernel together, as the kernel counts it.
//! Absent on purpose: the decision alone (`admission`); a network between the two.
#![expect(clippy::disallowed_methods, reason = "a bench looks at the clock and at its arguments")]
#![allow(clippy::print_stdout, reason = "a bench shows a table")]

mod load;
mod report;
mod review;
mod servers;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use lockstep::certificates::authority::{Due, Lifetimes, Material, Wanted};
use lockstep::names::MUTATE_PATH;
use lockstep::reconcile::Clock;
use lockstep::reconcile::tokio_clock::TokioClock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde_json::{Value, json};

use load::{Arrivals, Load};
use report::Row;
use servers::{Kind, Process};

/// Bytes of the review.
pub(crate) const BODY: usize = 8 << 10;
/// Name in the certificate.
const NAME: &str = "lockstep.lockstep-system.svc";
/// Connections of a load that saturates, and of one that comes at its own times: as many as a few API servers keep open.
const CONNECTIONS: usize = 64;
/// Connections in an overload: API servers open one more for each request that waits, up to their own limits.
const CROWD: usize = 900;
/// Share of the slower one's saturation at which latencies are compared.
const LOAD: f64 = 0.7;

/// What a review may cost more than a bare answer, in µs of CPU.
const MORE_CPU: f64 = 30.0;
/// Share of the bare server's throughput.
const THROUGHPUT: f64 = 0.8;
/// Times the bare server's 99th percentile.
const TAIL: f64 = 1.3;
/// MiB that the process may grow by over a million reviews: what allocators keep in their pockets.
const GROWTH: f64 = 4.0;
/// MiB that an overload may take at its peak: bodies and buffers of all connections.
const CROWDED: f64 = 128.0;

/// How long everything takes.
struct Plan {
    rounds: usize,
    saturate: Duration,
    steady: Duration,
    requests: u64,
    overload: Duration,
}

const FULL: Plan = Plan {
    rounds: 7,
    saturate: Duration::from_secs(4),
    steady: Duration::from_secs(6),
    requests: 1_000_000,
    overload: Duration::from_secs(10),
};
const SHORT: Plan = Plan {
    rounds: 3,
    saturate: Duration::from_secs(1),
    steady: Duration::from_secs(2),
    requests: 50_000,
    overload: Duration::from_secs(2),
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--serve", kind, folder] => servers::serve(kind, Path::new(folder)),
        given if given.contains(&"--pinned") => measure(if given.contains(&"--short") { &SHORT } else { &FULL }),
        given => return pin(given),
    }
    ExitCode::SUCCESS
}

/// Runs this program on the second core.
fn pin(arguments: &[&str]) -> ExitCode {
    let here = std::env::current_exe().expect("this program runs");
    let status = Command::new("taskset").args(["--cpu-list", "1"]).arg(here).args(arguments).arg("--pinned").status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        // taskset has said why: most likely there is only one core.
        _ => ExitCode::FAILURE,
    }
}

/// One of the two servers.
struct Side {
    process: Process,
    load: Load,
    figures: Figures,
}

/// What was measured of a server, once for each round.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    saturation_per_second: Vec<f64>,
    cpu_microseconds_at_saturation: Vec<f64>,
    cores_at_saturation: Vec<f64>,
    cpu_microseconds: Vec<f64>,
    p50_microseconds: Vec<f64>,
    p99_microseconds: Vec<f64>,
}

fn measure(plan: &Plan) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let (tls, name) = certificate(folder.path());
    let request: Arc<[u8]> = request(&review::review(BODY)).into();
    let side = |kind| {
        let process = Process::start(kind, folder.path());
        let load = Load { address: process.address, tls: tls.clone(), name: name.clone(), request: request.clone() };
        Side { process, load, figures: Figures::default() }
    };
    let (mut lockstep, mut bare) = (side(Kind::Lockstep), side(Kind::Bare));
    for side in [&lockstep, &bare] {
        let warm = side.load.saturate(CONNECTIONS, plan.requests / 20, plan.saturate);
        assert_eq!((warm.refused, warm.lost), (0, 0), "the servers answer");
    }
    for _ in 0..plan.rounds {
        lockstep.saturate(plan);
        bare.saturate(plan);
    }
    let rate = LOAD * lockstep.saturation().min(bare.saturation());
    for _ in 0..plan.rounds {
        lockstep.steady(rate, plan);
        bare.steady(rate, plan);
    }
    let memory = memory(&lockstep, plan);
    let overload = overload(&lockstep, rate, plan);
    let rows = rows(&lockstep, &bare, &memory, &overload);
    print!("{}", beside(&lockstep, &bare, rate));
    let figures = json!({
        "bodyBytes": BODY, "rounds": plan.rounds, "rate": rate, "lockstep": lockstep.figures, "bare": bare.figures,
        "memory": memory, "overload": overload,
    });
    println!("{}", report::finish("serving", &rows, figures));
}

impl Side {
    fn saturate(&mut self, plan: &Plan) {
        let before = self.process.cpu();
        let outcome = self.load.saturate(CONNECTIONS, u64::MAX, plan.saturate);
        let cpu = self.process.cpu() - before;
        self.figures.saturation_per_second.push(outcome.rate());
        self.figures.cpu_microseconds_at_saturation.push(cpu / outcome.answered as f64 * 1e6);
        self.figures.cores_at_saturation.push(cpu / outcome.took.as_secs_f64());
    }

    fn steady(&mut self, rate: f64, plan: &Plan) {
        let before = self.process.cpu();
        let arrivals = Arrivals { rate, connections: CONNECTIONS, room: usize::MAX, during: plan.steady };
        let outcome = self.load.steady(arrivals);
        self.figures.cpu_microseconds.push((self.process.cpu() - before) / outcome.answered as f64 * 1e6);
        self.figures.p50_microseconds.push(outcome.quantile(0.5));
        self.figures.p99_microseconds.push(outcome.quantile(0.99));
    }

    fn saturation(&self) -> f64 {
        median(&self.figures.saturation_per_second)
    }
}

/// A million reviews, one after the other.
fn memory(side: &Side, plan: &Plan) -> Value {
    let before = side.process.memory();
    let outcome = side.load.saturate(CONNECTIONS, plan.requests, Duration::MAX);
    json!({"reviews": outcome.answered, "beforeMib": before, "afterMib": side.process.memory()})
}

/// Twice what it can take, and right afterwards what it takes well.
fn overload(side: &Side, rate: f64, plan: &Plan) -> Value {
    let crowd = Arrivals { rate: 2.0 * side.saturation(), connections: CROWD, room: CROWD, during: plan.overload };
    let outcome = side.load.steady(crowd);
    let peak = side.process.peak();
    let after = side.load.steady(Arrivals { rate, connections: CONNECTIONS, room: usize::MAX, during: plan.steady });
    json!({
        "offeredPerSecond": crowd.rate, "answeredPerSecond": outcome.rate(), "refused": outcome.refused, "lost": outcome.lost,
        "turnedAway": outcome.turned_away, "p99Microseconds": outcome.quantile(0.99), "peakMib": peak,
        "p99AfterwardsMicroseconds": after.quantile(0.99), "lostAfterwards": after.lost + after.refused,
    })
}

fn rows(lockstep: &Side, bare: &Side, memory: &Value, overload: &Value) -> Vec<Row> {
    let number = |value: &Value, key: &str| value[key].as_f64().expect("it was put there");
    let more = |of: fn(&Figures) -> &[f64]| median(of(&lockstep.figures)) - median(of(&bare.figures));
    let share = lockstep.saturation() / bare.saturation();
    let usual_tail = median(&lockstep.figures.p99_microseconds);
    let tail = usual_tail / median(&bare.figures.p99_microseconds);
    let kept = number(overload, "answeredPerSecond") / lockstep.saturation();
    let recovered = number(overload, "p99AfterwardsMicroseconds") / usual_tail;
    vec![
        Row::at_most("more CPU a review at 70 %, µs", more(|figures| &figures.cpu_microseconds), MORE_CPU),
        Row::at_most("more CPU a review at saturation, µs", more(|figures| &figures.cpu_microseconds_at_saturation), MORE_CPU),
        Row::at_least("throughput, of the bare one's", share, THROUGHPUT),
        Row::at_most("p99 at 70 %, times the bare one's", tail, TAIL),
        Row::at_most("grown over the reviews, MiB", number(memory, "afterMib") - number(memory, "beforeMib"), GROWTH),
        Row::at_least("overload: answered, of saturation", kept, THROUGHPUT),
        Row::at_most("overload: peak memory, MiB", number(overload, "peakMib"), CROWDED),
        Row::at_most("overload: p99 right afterwards, times before", recovered, TAIL),
        Row::at_most("overload: lost afterwards", number(overload, "lostAfterwards"), 0.0),
    ]
}

/// What was measured of both, side by side.
fn beside(lockstep: &Side, bare: &Side, rate: f64) -> String {
    let (lockstep, bare) = (&lockstep.figures, &bare.figures);
    let line = |what: &str, of: fn(&Figures) -> &[f64]| format!("  {what:45}  {:>9.1}  {:>9.1}\n", median(of(lockstep)), median(of(bare)));
    let mut table = format!("\n  {:45}  {:>9}  {:>9}\n", format!("median of {} rounds", bare.p99_microseconds.len()), "lockstep", "bare");
    table += &line("saturation, reviews a second", |figures| &figures.saturation_per_second);
    table += &line("server CPU a review at saturation, µs", |figures| &figures.cpu_microseconds_at_saturation);
    table += &line("cores that the server used at saturation", |figures| &figures.cores_at_saturation);
    table += &line(&format!("server CPU a review at {rate:.0} a second, µs"), |figures| &figures.cpu_microseconds);
    table += &line(&format!("p50 at {rate:.0} a second, µs"), |figures| &figures.p50_microseconds);
    table += &line(&format!("p99 at {rate:.0} a second, µs"), |figures| &figures.p99_microseconds);
    table + "\n"
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Writes a serving pair where the servers find it, and answers how to trust it.
fn certificate(folder: &Path) -> (Arc<ClientConfig>, ServerName<'static>) {
    let wanted = Wanted::new(vec![NAME.into()], Lifetimes::default()).expect("the name is one");
    let material = Material::default().after(Due::Everything, &wanted, TokioClock::start().wall()).expect("a pair can be made");
    for (name, text) in [("chain.pem", &material.chain), ("key.pem", &material.key)] {
        std::fs::write(folder.join(name), text).expect("the folder was just made");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(material.ca.as_bytes()).map(|one| one.expect("it was just made")));
    let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (Arc::new(tls), ServerName::try_from(NAME).expect("it is a name"))
}

/// As an API server sends it.
fn request(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {MUTATE_PATH}?timeout=5s HTTP/1.1\r\nHost: {NAME}:443\r\nUser-Agent: kube-apiserver-admission\r\nContent-Length: {}\r\n\
         Accept: application/json, */*\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
