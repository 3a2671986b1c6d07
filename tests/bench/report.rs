//! The figures of a bench beside their budgets: as a table for people, and as JSON so that runs can be compared.
//!
//! Invariant: a figure beyond its budget is marked; nothing fails because of it, since a busy machine is no bug.
//! Absent on purpose: how anything is measured.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

/// Where builds put what they make.
pub(crate) const TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target");

/// One figure, and what it may be.
pub(crate) struct Row {
    what: String,
    figure: f64,
    budget: f64,
    /// Whether the figure should be at least the budget, not at most.
    least: bool,
}

impl Row {
    /// A figure that should not be above the budget.
    pub(crate) fn at_most(what: impl Into<String>, figure: f64, budget: f64) -> Self {
        Self { what: what.into(), figure, budget, least: false }
    }

    /// A figure that should not be below the budget.
    #[allow(dead_code, reason = "the bench without a server has none")]
    pub(crate) fn at_least(what: impl Into<String>, figure: f64, budget: f64) -> Self {
        Self { what: what.into(), figure, budget, least: true }
    }

    fn met(&self) -> bool {
        if self.least { self.figure >= self.budget } else { self.figure <= self.budget }
    }
}

/// Writes `target/bench/NAME.json` and answers the table.
pub(crate) fn finish(name: &str, rows: &[Row], figures: Value) -> String {
    let budgets: Vec<Value> = rows
        .iter()
        .map(|row| {
            let bound = if row.least { "least" } else { "most" };
            json!({"what": row.what, "figure": row.figure, "budget": {bound: row.budget}, "met": row.met()})
        })
        .collect();
    let folder = Path::new(TARGET).join("bench");
    std::fs::create_dir_all(&folder).expect("the folder of builds can be written");
    let file = folder.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&json!({"bench": name, "budgets": budgets, "figures": figures})).expect("these are numbers");
    std::fs::write(&file, text + "\n").expect("the folder of builds can be written");
    let mut table = String::new();
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or_default();
    for row in rows {
        let (sign, mark) = (if row.least { "≥" } else { "≤" }, if row.met() { "" } else { "  over budget" });
        writeln!(table, "  {:width$}  {:>9.2}  {sign} {:<7}{mark}", row.what, row.figure, row.budget)
            .expect("writing into a String cannot fail");
    }
    writeln!(table, "  written to target/bench/{name}.json").expect("writing into a String cannot fail");
    table
}
