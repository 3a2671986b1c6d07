//! Alerts, dashboard, runbooks and metrics: each speaks of what the others have, and promtool plays them.
//!
//! Invariant: an alert is seen silent and seen firing, over series that the program has.
//! Absent on purpose: a rollout under a scrape (on a real cluster).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::documentation_pages::runbooks;
use crate::exposed::{self, Series, dashboard, promtool, said, unanswered};

const ALERTS: &str = include_str!("../../charts/lockstep/monitoring/alerts.yaml");
const PLAYED: &str = include_str!("alerts.test.yaml");
/// Metrics of API servers, as their source names them.
const OF_API_SERVERS: [&str; 2] = ["apiserver_admission_webhook_fail_open_count", "apiserver_admission_webhook_rejection_count"];
/// A metric of any other program, to show what happens where ours is not there.
const OF_ANYBODY: &str = "up";

#[test]
fn promtool_takes_the_alerts_and_each_is_silent_and_fires() {
    for arguments in [["check", "rules", "charts/lockstep/monitoring/alerts.yaml"], ["test", "rules", "tests/integration/alerts.test.yaml"]]
    {
        let ran = promtool(&arguments);
        assert!(ran.status.success(), "{}", said(&ran));
    }
}

#[test]
fn every_alert_is_played_both_ways_and_has_its_runbook() {
    let alerts: BTreeSet<String> = alerts().iter().map(|alert| text(&alert["alert"])).collect();
    let (mut silent, mut firing) = (BTreeSet::new(), BTreeSet::new());
    for test in list(&yaml(PLAYED)["tests"]) {
        for played in list(&test["alert_rule_test"]) {
            let seen = if list(&played["exp_alerts"]).is_empty() { &mut silent } else { &mut firing };
            seen.insert(text(&played["alertname"]));
        }
    }
    assert_eq!((&silent, &firing), (&alerts, &alerts));

    let page = |name: &str| format!("docs/runbooks/{name}.md");
    assert_eq!(runbooks(), alerts.iter().map(|alert| page(alert)).collect::<Vec<_>>());
    for alert in self::alerts() {
        assert_eq!(text(&alert["annotations"]["runbook_url"]), page(&text(&alert["alert"])));
    }
    let index = include_str!("../../docs/runbooks/README.md");
    let rows: Vec<String> = index.lines().filter_map(|line| line.strip_prefix("| [")).map(first_word).collect();
    assert_eq!(rows, self::alerts().iter().map(|alert| text(&alert["alert"])).collect::<Vec<_>>(), "the index, in the order of the file");
}

#[test]
fn alerts_are_played_over_series_that_the_program_has() {
    let page = exposed::metrics().encode();
    let shown: BTreeMap<String, BTreeSet<String>> = exposed::labels(&page);
    let mut complaints = Vec::new();
    for series in list(&yaml(PLAYED)["tests"]).iter().flat_map(|test| list(&test["input_series"])) {
        let series = Series::parse(&text(&series["series"]));
        if OF_API_SERVERS.contains(&&*series.name) || series.name == OF_ANYBODY {
            continue;
        }
        let labels: BTreeSet<String> = series.labels.keys().filter(|label| *label != "pod").cloned().collect();
        if shown.get(&series.name) != Some(&labels) {
            complaints.push(format!("{} with {labels:?}: the program shows {:?}", series.name, shown.get(&series.name)));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn every_query_of_the_dashboard_has_an_answer() {
    const MINUTES: usize = 10;
    let metrics = exposed::metrics();
    let page = metrics.encode();
    let series: Vec<(String, String)> = exposed::series(&page)
        .into_iter()
        .map(|(series, value)| {
            let counts = ["_total", "_bucket", "_count", "_sum"].iter().any(|suffix| series.name.ends_with(suffix));
            let step = if counts { "+1" } else { "+0" };
            (series.of_pod("a"), format!("{value}{step}x{MINUTES}"))
        })
        .collect();
    let queries = dashboard();
    assert!(queries.len() > 20, "the dashboard was read");
    unanswered(&series, MINUTES, &queries).unwrap();
    let nonsense = ["lockstep_nothing_of_the_kind".to_owned()];
    assert!(unanswered(&series, MINUTES, &nonsense).is_err(), "a query of a metric that is not there is noticed");
}

#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let used = ALERTS.to_owned() + &dashboard().join("\n");
    let metrics = exposed::metrics();
    let unused: Vec<&str> = metrics.described().iter().map(|metric| &*metric.name).filter(|name| !used.contains(name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

fn alerts() -> Vec<Value> {
    list(&yaml(ALERTS)["groups"][0]["rules"])
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn first_word(line: &str) -> String {
    line.split(']').next().unwrap().to_owned()
}
