//! The page of metrics and the program name the same metrics.

use std::collections::BTreeSet;

use lockstep::metrics::Metrics;

const PAGE: &str = include_str!("../../docs/metrics.md");

#[test]
fn the_page_and_the_program_name_the_same_metrics() {
    let metrics = Metrics::new();
    let program: BTreeSet<String> =
        metrics.described().iter().map(|metric| format!("| `{}` | {} | {} |", metric.name, metric.kind, metric.help)).collect();
    let page: BTreeSet<String> = PAGE.lines().filter(|line| line.starts_with("| `lockstep_")).map(str::to_owned).collect();
    let missing: Vec<_> = program.difference(&page).collect();
    let stale: Vec<_> = page.difference(&program).collect();
    assert!(missing.is_empty() && stale.is_empty(), "docs/metrics.md lacks:\n{missing:#?}\nand has, of old:\n{stale:#?}");
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
