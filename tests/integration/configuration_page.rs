//! The reference page of the configuration, written from the schema, which is written from the types.
//!
//! Invariant: every key of the schema is on the page, with its type, its default and what it means.
//! Absent on purpose: whether the schema is right (`configuration_schema`).

use lockstep::config::schema;
use serde_json::{Map, Value};

use crate::documentation_pages::{hold, read};

/// Where what is written by hand ends.
const BEGIN: &str = "<!-- from here on written from the types -->\n";
/// Parts of the page: heading, name in the schema, and a word about it.
const PARTS: [(&str, &str, &str); 15] = [
    ("The whole", "", "The text of `config.yaml`."),
    ("injection", "Injection", "What admission changes on pods."),
    ("registration", "Registration", "How long registration waits for what, and what happens then."),
    ("registries", "Registry", "A list: the external systems. Each has a name and exactly one of the four drivers."),
    ("aws", "Aws", "See [aws](registries/aws.md)."),
    ("consul", "Consul", "See [consul](registries/consul.md)."),
    ("haproxy", "Haproxy", "See [haproxy](registries/haproxy.md)."),
    ("tls", "Tls", "Of an HAProxy registry."),
    ("http", "Http", "See [http](registries/http.md)."),
    ("bindings", "Binding", "A list: which pods belong in which service of which registry, on which port."),
    ("podSelector", "Selector", "As everywhere in Kubernetes: all that is named must hold."),
    ("matchExpressions", "Expression", "A list."),
    ("drain", "Drain", "Exactly one of `from`, `fixed` and `healthCheck`. [Which one, and how long](drain-delays.md)."),
    ("healthCheck", "HealthCheck", "The drain delay is interval × unhealthyThreshold + timeout."),
    ("Words", "", ""),
];

#[test]
fn the_page_is_what_the_types_give() {
    const PAGE: &str = "docs/configuration.md";
    let page = read(PAGE);
    let (intro, _) = page.split_once(BEGIN).expect("the page says where it is written from the types");
    hold(PAGE, &format!("{intro}{BEGIN}{}", written()));
}

fn written() -> String {
    let root: Value = serde_json::from_str(&schema()).unwrap();
    let mut page = String::new();
    for (heading, name, about) in &PARTS[..PARTS.len() - 1] {
        let part = if name.is_empty() { &root } else { &root["$defs"][name] };
        page += &format!("\n## {heading}\n\n{about}\n\n| key | type | default | what |\n| --- | --- | --- | --- |\n");
        for (key, property) in part["properties"].as_object().unwrap() {
            page += &row(key, property, part, &root);
        }
    }
    page += "\n## Words\n\n| type | what |\n| --- | --- |\n";
    for (name, definition) in root["$defs"].as_object().unwrap() {
        let is_word = definition["properties"].is_null() && definition["enum"].is_null();
        if let (true, Some(what)) = (is_word, definition["description"].as_str()) {
            page += &format!("| {} | {what} |\n", word(name));
        }
    }
    page
}

fn row(key: &str, property: &Value, part: &Value, root: &Value) -> String {
    let is_required = part["required"].as_array().is_some_and(|required| required.iter().any(|one| one == key));
    let default = match &property["default"] {
        Value::Null if is_required => "required".to_owned(),
        Value::Null => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    };
    let what = property["description"].as_str().unwrap().replace('\n', " ").replace('|', "\\|");
    format!("| `{key}` | {} | {default} | {what} |\n", kind(property, root))
}

/// The type of a property, in words.
fn kind(property: &Value, root: &Value) -> String {
    let choices = property["anyOf"].as_array();
    let property = choices.and_then(|any| any.iter().find(|one| one["type"] != "null")).unwrap_or(property);
    if let Some(name) = property["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return referred(name, &root["$defs"][name]);
    }
    let types: Vec<&str> = match &property["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).filter(|one| *one != "null").collect(),
        one => one.as_str().into_iter().collect(),
    };
    match types[..] {
        ["array"] => format!("list of {}", kind(&property["items"], root)),
        ["object"] => "labels".to_owned(),
        ["boolean"] => "`true`, `false`".to_owned(),
        ["integer"] => format!("number, {} to {}", property["minimum"], property["maximum"]),
        ["string"] => "text".to_owned(),
        _ => panic!("no words for {property}"),
    }
}

fn referred(name: &str, definition: &Value) -> String {
    if let Some(words) = definition["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_str().map_or(word.to_string(), str::to_owned))).collect();
        return words.join(", ");
    }
    match PARTS.iter().find(|(_, part, _)| *part == name) {
        Some((heading, ..)) => format!("[{heading}](#{})", heading.to_lowercase()),
        None => {
            assert!(definition.get("properties").and_then(Value::as_object).is_none_or(Map::is_empty), "{name} needs a part of the page");
            format!("[{}](#words)", word(name))
        }
    }
}

/// A name of the schema in words for people.
fn word(name: &str) -> String {
    if name == "Url" { name.to_uppercase() } else { name.to_lowercase() }
}
