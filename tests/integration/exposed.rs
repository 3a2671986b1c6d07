//! A page of metrics on which everything is shown, and queries over pages, asked with promtool.
//!
//! Invariant: every metric of the catalog is on the page, with every label that it can have.
//! Absent on purpose: what the values mean; a query that answers at all is what is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use jiff::Timestamp;
use lockstep::admission::{Answered, Finding, Reason as Admitted};
use lockstep::metrics::Metrics;
use lockstep::metrics::pods::Holder;
use lockstep::metrics::reconcile::{CallLabels, OutcomeLabel, ReasonLabel, RegistryLabel};
use lockstep::registration::Reason;
use lockstep::target::ServiceId;
use serde_json::{Value, json};

use crate::programs::printed;

/// A series as a scrape shows it: name and labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    /// Name of the metric, with the suffix of its type.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// The metrics of a process to which everything has happened once.
pub(crate) fn metrics() -> Metrics {
    let metrics = Metrics::new();
    let (service, registry) = (ServiceId::new("lan", "web"), RegistryLabel { registry: "lan".into() });
    let at = Timestamp::from_second(1000).unwrap();
    let answered = Answered {
        body: Vec::new(),
        reason: Admitted::Injected,
        namespace: "shop".into(),
        pod: "web".into(),
        findings: vec![Finding::SleepCut],
        sleep_seconds: 45,
    };
    metrics.admission.answered(&answered, Duration::from_micros(30));
    metrics.admission.refused(503);
    metrics.delays.answered(&service, Duration::from_secs(30), at);
    metrics.certificate_expiry.set(900_000);
    metrics.pods.stand(Reason::Registered, 2);
    Holder::ALL.into_iter().for_each(|holder| metrics.pods.waits(holder, Some(at)));

    metrics.traced.get_or_create(&OutcomeLabel { outcome: "sent" }).inc();
    let shown = &metrics.reconcile;
    shown.in_force("text");
    shown.heard("pods", at);
    shown.call_seconds(&registry.registry, "apply").observe(0.1);
    shown.drains_refused.get_or_create(&(&service).into()).set(1);
    shown.registry_calls.get_or_create(&CallLabels { registry: "lan".into(), operation: "list", outcome: "ok" }).inc();
    shown.registry_down.get_or_create(&registry).set(1);
    shown.registry_instances_out.get_or_create(&registry).set(1);
    shown.pod_writes.get_or_create(&OutcomeLabel { outcome: "ok" }).inc();
    shown.transitions.get_or_create(&ReasonLabel { reason: "Registered" }).inc();
    metrics
}

/// The series of a page, with their values.
pub(crate) fn series(page: &str) -> BTreeMap<Series, String> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (Series::parse(series), value.to_owned())
        })
        .collect()
}

/// The labels of each metric of a page, by the name in the catalog.
pub(crate) fn labels(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for series in series(page).into_keys() {
        let name = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| series.name.strip_suffix(suffix)).unwrap_or(&series.name);
        labels.entry(name.to_owned()).or_default().extend(series.labels.into_keys().filter(|label| label != "le"));
    }
    labels
}

/// Asks each query over these series, one value a minute, and answers what promtool says of those that never had an answer.
pub(crate) fn unanswered(series: &[(String, String)], minutes: usize, queries: &[String]) -> Result<(), String> {
    let input: Vec<Value> = series.iter().map(|(series, values)| json!({ "series": series, "values": values })).collect();
    let ask = |query: &String| {
        let never = format!("absent_over_time(({query})[{minutes}m:1m])");
        json!({ "expr": never, "eval_time": format!("{minutes}m"), "exp_samples": [] })
    };
    let questions: Vec<Value> = queries.iter().map(ask).collect();
    let test = json!({ "interval": "1m", "input_series": input, "promql_expr_test": questions });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.yaml");
    std::fs::write(&file, json!({ "evaluation_interval": "1m", "tests": [test] }).to_string()).unwrap();
    let ran = promtool(&["test", "rules", file.to_str().unwrap()]);
    if ran.status.success() { Ok(()) } else { Err(said(&ran)) }
}

/// The queries of the dashboard, with an interval where Grafana puts one in.
pub(crate) fn dashboard() -> Vec<String> {
    let text = include_str!("../../charts/lockstep/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m")).collect()
}

/// Runs promtool.
pub(crate) fn promtool(arguments: &[&str]) -> Output {
    let program = printed("tests/cluster/build", "prometheus").join("promtool");
    Command::new(program).args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).output().unwrap()
}

/// What a program said.
pub(crate) fn said(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr)
}

impl Series {
    /// Reads `name{label="value"}`; values of ours have neither quotes nor commas.
    pub(crate) fn parse(text: &str) -> Self {
        let (name, rest) = text.split_once('{').unwrap_or((text, ""));
        let pairs = rest.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
        let labels = pairs.map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned())).collect();
        Self { name: name.to_owned(), labels }
    }

    /// As a scrape of the replica of that name has it.
    pub(crate) fn of_pod(&self, pod: &str) -> String {
        let all = self.labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).chain([format!("pod=\"{pod}\"")]);
        format!("{}{{{}}}", self.name, all.collect::<Vec<_>>().join(","))
    }
}
