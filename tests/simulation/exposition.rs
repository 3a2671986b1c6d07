//! Reads values out of the metrics that the product exposes.
//!
//! The judges see what a scrape would see, nothing else.
//!
//! Invariant: a series that is not there counts as zero.
//! Absent on purpose: histograms.

/// Sum of the series of `name` that carry `label`.
pub(crate) fn value(text: &str, name: &str, label: Option<(&str, &str)>) -> f64 {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| series(line, name, label)).sum()
}

/// Whether the text calls `name` a counter.
pub(crate) fn is_counter(text: &str, name: &str) -> bool {
    let family = name.strip_suffix("_total").unwrap_or(name);
    text.lines().any(|line| line.strip_prefix("# TYPE ").is_some_and(|rest| rest.split(' ').eq([family, "counter"])))
}

fn series(line: &str, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once('}')?,
        None => ("", rest),
    };
    if !value.starts_with(' ') {
        return None;
    }
    let carries = |(key, wanted): (&str, &str)| labels.split(',').any(|one| one.split_once('=') == Some((key, &format!("\"{wanted}\""))));
    label.is_none_or(carries).then(|| value.trim().split(' ').next()?.parse().ok())?
}
