//! What commands print: text for people, data for programs.
//!
//! Invariant: a reader that has gone away is no error.
//! Absent on purpose: what is printed (each command), warnings and the last word (standard error).

use std::io::Write;

use anyhow::Context;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;

use crate::args::Output;
use crate::yaml::{json, print};

/// Writes to standard output.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    tell(text).map(drop)
}

/// Writes to standard output; answers whether somebody still reads it.
pub(super) fn tell(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("standard output"),
    }
}

/// JSON Schema of what a command prints as data, with a line break at the end.
pub(super) fn schema<T: JsonSchema>() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema always serialises");
    text.push('\n');
    text
}

/// A value as JSON or YAML, with a line break at the end.
pub(super) fn data<T: Serialize>(value: &T, output: Output) -> anyhow::Result<String> {
    let text = serde_json::to_string(value).context("what was found cannot be printed")?;
    let node = json::values(&text).context("what was found cannot be printed")?.remove(0);
    Ok(match output {
        Output::Json => print::pretty_json(&node),
        Output::Yaml => print::yaml(&node),
    })
}
