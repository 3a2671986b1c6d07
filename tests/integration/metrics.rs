//! The page of metrics and the program name the same metrics, with the same labels.

use lockstep::metrics::{Described, Metrics};

use crate::documentation_pages::{hold, read};
use crate::exposed;

/// Head of the table.
const TABLE: &str = "| name | type | labels | what it tells |\n| --- | --- | --- | --- |\n";

#[test]
fn the_page_has_every_metric_with_its_labels() {
    const PAGE: &str = "docs/metrics.md";
    let page = read(PAGE);
    let (intro, _) = page.split_once(TABLE).expect("the page has the table");
    let metrics = exposed::metrics();
    let labels = exposed::labels(&metrics.encode());
    let row = |metric: &Described| {
        let labels = labels.get(&metric.name).unwrap_or_else(|| panic!("{} is not shown", metric.name));
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {} | {} | {} |\n", metric.name, metric.kind, labels.join(", "), metric.help)
    };
    hold(PAGE, &format!("{intro}{TABLE}{}", metrics.described().iter().map(row).collect::<String>()));
}

#[test]
fn what_is_set_is_exposed() {
    let metrics = Metrics::new();
    metrics.reconcile.config_valid.set(1);
    metrics.admission.refused(413);
    let text = metrics.encode();
    assert!(text.contains("lockstep_config_valid 1\n"), "{text}");
    assert!(text.contains("lockstep_admission_refusals_total{status=\"413\"} 1\n"), "{text}");
    assert!(text.contains("lockstep_build_info{version="), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

/// Anybody can look the hash of a text up with `sha256sum`.
#[test]
fn the_hash_of_the_configuration_is_that_of_its_newest_text() {
    let metrics = Metrics::new();
    metrics.reconcile.in_force("an earlier text");
    metrics.reconcile.in_force("abc");
    let text = metrics.encode();
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with("lockstep_config_info{")).collect();
    assert_eq!(shown, ["lockstep_config_info{hash=\"ba7816bf8f01\"} 1"]);
}
