//! The figures: each is told when it is there, and all of them stand in a table at the end.
//!
//! Invariant: a figure without a budget is shown all the same.
//! Absent on purpose: the form of table and file, which all benches share.

use serde_json::{Map, Value, json};

use crate::table::{self, Row};

/// What was measured so far.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<[String; 3]>,
    rows: Vec<Row>,
    figures: Map<String, Value>,
}

impl Report {
    /// Adds a figure: its name in the file, what it is, and what is to be said of it.
    pub(crate) fn add(&mut self, name: &str, what: &str, figure: f64, unit: &str, note: &str) {
        let reads = if figure.fract() == 0.0 { format!("{figure} {unit}") } else { format!("{figure:.2} {unit}") };
        eprintln!("  {what}: {reads}");
        self.lines.push([what.to_owned(), reads, note.to_owned()]);
        self.figures.insert(name.to_owned(), json!(figure));
    }

    /// Adds a figure that should not be above `most`.
    pub(crate) fn hold(&mut self, name: &str, what: &str, figure: f64, unit: &str, most: f64) {
        self.add(name, what, figure, unit, &format!("≤ {most} {unit}"));
        self.rows.push(Row::at_most(format!("{what}, {unit}"), figure, most));
    }

    /// Prints everything and writes the file.
    pub(crate) fn print(self) {
        let width = |column: usize| self.lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let (first, second) = (width(0), width(1));
        println!();
        for [what, figure, note] in &self.lines {
            println!("  {what:first$}  {figure:>second$}  {note}");
        }
        println!("\n{}", table::finish("registration", &self.rows, Value::Object(self.figures)));
    }
}

/// The value below which that share of the values lies.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}
