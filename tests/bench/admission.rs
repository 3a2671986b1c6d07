//! From review bytes to answer bytes, without any I/O.
//!
//! The budget: an 8 KiB pod within 25 µs on one core, and linear in the body up to 1 MiB.
//!
//! Invariant: every measured review is injected; a bench of a refusal would be fast and worth nothing.
//! Absent on purpose: TLS and HTTP (`serving`).
#![expect(clippy::print_stdout, reason = "a bench shows a table")]

mod report;
mod review;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use lockstep::admission::{Reason, answer};
use serde_json::{Value, json};

use report::Row;
use review::{review, snapshot};

/// Bodies that are measured.
const SIZES: [usize; 4] = [8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// What a review of an 8 KiB pod may take.
const BUDGET: f64 = 25_000.0;
/// A byte of the largest body may cost this many times what a byte of the smallest does.
const LINEAR: f64 = 1.1;

/// A shape of large pods: its name, and how a review of so many bytes is made.
type Shape = (&'static str, fn(usize) -> Vec<u8>);

/// Many containers, and one long text.
const SHAPES: [Shape; 2] = [("containers", review), ("blob", blob)];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    measure(&mut criterion);
    criterion.final_summary();
    report();
}

fn measure(criterion: &mut Criterion) {
    let snapshot = snapshot();
    for (name, make) in SHAPES {
        let mut group = criterion.benchmark_group(format!("admission-{name}"));
        group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
        for size in SIZES {
            let body = make(size);
            assert_eq!(answer(&body, &snapshot).map(|answered| answered.reason), Ok(Reason::Injected));
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::from_parameter(size), &body, |bencher, body| {
                bencher.iter(|| answer(black_box(body), &snapshot));
            });
        }
        group.finish();
    }
}

/// Brings together what criterion has written down.
fn report() {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (name, make) in SHAPES {
        let measured = SIZES.map(|size| (make(size).len(), median(name, size)));
        let [(small, first), .., (large, last)] = measured;
        let (Some(first), Some(last)) = (first, last) else { return };
        figures.extend(measured.iter().map(|(bytes, ns)| json!({"shape": name, "bytes": bytes, "nanoseconds": ns})));
        rows.push(Row::at_most(format!("{name}: review of {small} bytes, µs"), first / 1e3, BUDGET / 1e3));
        let growth = (last / large as f64) / (first / small as f64);
        rows.push(Row::at_most(format!("{name}: a byte of {large} against one of {small}, times"), growth, LINEAR));
    }
    println!("{}", report::finish("admission", &rows, json!({"median": figures})));
}

/// A review with one value that is that large.
fn blob(bytes: usize) -> Vec<u8> {
    let mut review: Value = serde_json::from_slice(&review(4 << 10)).expect("it is JSON");
    review["request"]["object"]["spec"]["containers"][0]["env"][0]["value"] = json!("x".repeat(bytes));
    review.to_string().into_bytes()
}

/// The median of one benchmark in nanoseconds; none where it was filtered out.
fn median(name: &str, size: usize) -> Option<f64> {
    let folder: PathBuf = Path::new(report::TARGET).join("criterion").join(format!("admission-{name}")).join(size.to_string());
    let text = std::fs::read_to_string(folder.join("new/estimates.json")).ok()?;
    serde_json::from_str::<Value>(&text).ok()?["median"]["point_estimate"].as_f64()
}
