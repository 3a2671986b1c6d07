//! `lockstep check`: every error of a configuration at its path and line, and what is legal but unwise.
//!
//! Invariant: exit code 0 means that the server would take the configuration, 1 that it would not, 2 that nothing could be read.
//! Absent on purpose: the rules (`config`).

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use serde::Serialize;

use super::inject::read;
use super::output::{data, say};
use crate::args::CheckArgs;
use crate::config::{self, Advice, ConfigError};
use crate::names::CONFIG_KEY;
use crate::yaml::{self, Limits, Node, Position};

/// A manifest that holds a whole ConfigMap, managed fields included.
const MANIFEST: Limits = Limits { bytes: 4 << 20, nodes: 200_000 };

/// What was found.
#[derive(Serialize)]
struct Report {
    valid: bool,
    errors: Vec<ConfigError>,
    advice: Vec<PlacedAdvice>,
}

/// Advice, and the line and column of what it is about.
#[derive(Serialize)]
struct PlacedAdvice {
    line: usize,
    column: usize,
    #[serde(flatten)]
    advice: Advice,
}

/// The text of a configuration, and where in its file it stands.
struct Text {
    text: String,
    /// Lines before its first one, and columns before its first one.
    above: usize,
    before: usize,
}

/// Runs the command.
pub async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.file else {
        say(&config::schema())?;
        return Ok(ExitCode::SUCCESS);
    };
    let file = String::from_utf8(read(path)?).map_err(|_| anyhow!("{}: not UTF-8", path.display()))?;
    let text = find(file).with_context(|| path.display().to_string())?;
    let report = check(&text);
    let valid = report.valid;
    match args.output {
        None => say(&for_people(&report, &path.display().to_string()))?,
        Some(output) => say(&data(&report, output)?)?,
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn check(text: &Text) -> Report {
    match config::parse(&text.text) {
        Ok(configuration) => {
            let root = yaml::documents(&text.text, MANIFEST).ok().and_then(|documents| documents.into_iter().next());
            let placed = |advice: Advice| {
                let at = root.as_ref().map_or(Position::START, |root| root.nearest_to(&advice.path));
                PlacedAdvice { line: at.line + text.above, column: at.column + text.before, advice }
            };
            Report { valid: true, errors: Vec::new(), advice: config::advise(&configuration).into_iter().map(placed).collect() }
        }
        Err(errors) => {
            let placed = |error: ConfigError| ConfigError { line: error.line + text.above, column: error.column + text.before, ..error };
            Report { valid: false, errors: errors.errors.into_iter().map(placed).collect(), advice: Vec::new() }
        }
    }
}

fn for_people(report: &Report, file: &str) -> String {
    let errors = report.errors.iter().map(|error| format!("{file}: error: {error}\n"));
    let advice = report.advice.iter().map(|PlacedAdvice { line, column, advice: Advice { path, reason, remedy } }| {
        format!("{file}: advice: line {line}, column {column}: {path}: {reason}; {remedy}\n")
    });
    let verdict = match (report.errors.len(), report.advice.len()) {
        (0, 0) => format!("{file}: valid\n"),
        (0, advice) => format!("{file}: valid, {advice} to think about\n"),
        (1, _) => format!("{file}: 1 error\n"),
        (errors, _) => format!("{file}: {errors} errors\n"),
    };
    errors.chain(advice).chain([verdict]).collect()
}

/// The text itself, or the one inside of a ConfigMap.
fn find(file: String) -> anyhow::Result<Text> {
    let whole = |text| Ok(Text { text, above: 0, before: 0 });
    let Ok(documents) = yaml::documents(&file, MANIFEST) else { return whole(file) };
    let is_manifest = |node: &&Node| node.text("kind") == Some("ConfigMap");
    let mut manifests = documents.iter().filter(is_manifest);
    match (manifests.next(), manifests.next()) {
        (None, _) => whole(file),
        (Some(_), Some(_)) => bail!("several ConfigMaps; check one at a time"),
        (Some(manifest), None) => {
            let data = manifest.entry("data").and_then(|data| data.entry(CONFIG_KEY));
            let data = data.ok_or_else(|| anyhow!("the ConfigMap has no data[\"{CONFIG_KEY}\"]"))?;
            let yaml::Value::Text(text) = &data.value else { bail!("data[\"{CONFIG_KEY}\"] is no text") };
            let (above, before) = offset(&file, data, text);
            Ok(Text { text: text.clone(), above, before })
        }
    }
}

/// Where a block of text begins in its file; nothing where it is not written as a block.
fn offset(file: &str, node: &Node, text: &str) -> (usize, usize) {
    let first = text.lines().next().unwrap_or_default();
    let found = file.lines().enumerate().skip(node.at.line - 1).take(2).find(|(_, line)| !first.is_empty() && line.trim() == first.trim());
    found.map_or((0, 0), |(above, line)| (above, line.len() - line.trim_start().len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_a_manifest_are_places_of_the_file() {
        let manifest = "kind: ConfigMap\ndata:\n  config.yaml: |\n    cluster: x\n    injektion: {}\n";
        let report = check(&find(manifest.to_owned()).unwrap());
        let error = report.errors.iter().find(|error| error.path == "injektion").unwrap();
        assert_eq!((error.line, error.column), (5, 5));
    }

    #[test]
    fn a_manifest_without_our_key_cannot_be_looked_at() {
        assert!(find("kind: ConfigMap\ndata: {other: x}\n".to_owned()).is_err());
        assert!(find("kind: ConfigMap\n---\nkind: ConfigMap\n".to_owned()).is_err());
    }

    #[test]
    fn advice_stands_at_its_line() {
        let text = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: x\ninjection:\n  margin: 1s\n";
        let report = check(&find(text.to_owned()).unwrap());
        assert!(report.valid);
        assert_eq!((report.advice[0].line, report.advice[0].column), (5, 11));
    }
}
