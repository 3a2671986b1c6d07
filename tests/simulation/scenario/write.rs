//! Writes a scenario as a file that a person can read and the executor can run.
//!
//! A failing seed is shown so.
//!
//! Invariant: what is written parses to the same scenario.
//! Absent on purpose: comments, line breaking.

use serde_json::Value;

use super::grammar::Scenario;

/// The text of a scenario file.
pub(crate) fn write(scenario: &Scenario) -> String {
    let value = serde_json::to_value(scenario).expect("a scenario is always a value");
    let mut text = String::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Array(items) if key == "steps" || key == "expect" => {
                text.push_str(&format!("{key}:\n"));
                for item in items {
                    text.push_str(&format!("  - {}\n", flow(item)));
                }
            }
            Value::Object(fields) if key == "registries" => {
                text.push_str(&format!("{key}:\n"));
                for (name, value) in fields {
                    text.push_str(&format!("  {name}: {}\n", flow(value)));
                }
            }
            value => text.push_str(&format!("{key}: {}\n", flow(value))),
        }
    }
    text
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{}: {}", word(key), flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// A text without quotes where YAML reads it as the same text.
fn word(text: &str) -> String {
    let plain =
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-./_% ".contains(c));
    let odd = text.parse::<f64>().is_ok() || ["true", "false", "null", "True", "False"].contains(&text) || text.ends_with(' ');
    if plain && !odd { text.to_owned() } else { Value::String(text.to_owned()).to_string() }
}
