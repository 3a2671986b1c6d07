//! A tree as JSON or YAML again.
//!
//! Invariant: text stays text for every reader, YAML 1.1 ones included; a number keeps its digits.
//! Absent on purpose: comments and the styles of the input.

use std::fmt::Write;

use super::{Node, Value};

/// Words that some YAML reader takes for something else than text.
const WORDS: [&str; 16] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "~", "=", "<<", ".inf", ".nan", "-.inf"];

/// JSON on one line.
pub fn json(node: &Node) -> String {
    let mut out = String::new();
    json_value(&node.value, None, 0, &mut out);
    out
}

/// JSON for people, with a line break at the end.
pub fn pretty_json(node: &Node) -> String {
    let mut out = String::new();
    json_value(&node.value, Some("  "), 0, &mut out);
    out.push('\n');
    out
}

/// A YAML document, with a line break at the end.
pub fn yaml(node: &Node) -> String {
    let mut out = String::new();
    yaml_value(&node.value, 0, &mut out);
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn json_value(value: &Value, indent: Option<&str>, depth: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => out.push_str(&json_number(text)),
        Value::Text(text) => quoted(text, out),
        Value::List(items) if items.is_empty() => out.push_str("[]"),
        Value::Map(entries) if entries.is_empty() => out.push_str("{}"),
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                separate(i, indent, depth + 1, out);
                json_value(&item.value, indent, depth + 1, out);
            }
            break_line(indent, depth, out);
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (i, entry) in entries.iter().enumerate() {
                separate(i, indent, depth + 1, out);
                quoted(&entry.key, out);
                out.push_str(if indent.is_some() { ": " } else { ":" });
                json_value(&entry.value.value, indent, depth + 1, out);
            }
            break_line(indent, depth, out);
            out.push('}');
        }
    }
}

fn separate(index: usize, indent: Option<&str>, depth: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
    break_line(indent, depth, out);
}

fn break_line(indent: Option<&str>, depth: usize, out: &mut String) {
    if let Some(indent) = indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

/// A number of YAML as JSON writes it: the same value, and the same characters where JSON allows them.
fn json_number(text: &str) -> String {
    let (sign, unsigned) = match text.as_bytes() {
        [b'-', ..] => ("-", &text[1..]),
        [b'+', ..] => ("", &text[1..]),
        _ => ("", text),
    };
    let based = |digits: &str, base| u128::from_str_radix(digits, base).map_or_else(|_| "0".to_owned(), |n| n.to_string());
    let number = if let Some(digits) = unsigned.strip_prefix("0x") {
        based(digits, 16)
    } else if let Some(digits) = unsigned.strip_prefix("0o") {
        based(digits, 8)
    } else if unsigned.len() > 1 && unsigned.starts_with('0') && unsigned.bytes().all(|b| b.is_ascii_digit()) {
        // File modes are written like this, and Kubernetes' own reader takes them for octal.
        if unsigned.bytes().all(|b| b < b'8') { based(unsigned, 8) } else { unsigned.trim_start_matches('0').to_owned() }
    } else {
        let (mantissa, exponent) = unsigned.find(['e', 'E']).map_or((unsigned, ""), |at| unsigned.split_at(at));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole };
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{whole}{point}{fraction}{exponent}")
    };
    format!("{sign}{number}")
}

fn yaml_value(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => out.push_str(text),
        Value::Text(text) => yaml_text(text, depth, out),
        Value::List(items) if items.is_empty() => out.push_str("[]"),
        Value::Map(entries) if entries.is_empty() => out.push_str("{}"),
        Value::List(items) => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    margin(depth, out);
                }
                out.push_str("- ");
                yaml_value(&item.value, depth + 1, out);
                end_line(out);
            }
        }
        Value::Map(entries) => {
            for (i, entry) in entries.iter().enumerate() {
                if i > 0 {
                    margin(depth, out);
                }
                yaml_key(&entry.key, depth, out);
                yaml_entry(&entry.value.value, depth, out);
                end_line(out);
            }
        }
    }
}

/// What stands behind a key: on its line, or below it.
fn yaml_entry(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Map(entries) if !entries.is_empty() => {
            out.push_str(":\n");
            margin(depth + 1, out);
            yaml_value(value, depth + 1, out);
        }
        // A list stands at the margin of its key, as kubectl prints it.
        Value::List(items) if !items.is_empty() => {
            out.push_str(":\n");
            margin(depth, out);
            yaml_value(value, depth, out);
        }
        _ => {
            out.push_str(": ");
            yaml_value(value, depth + 1, out);
        }
    }
}

/// A key longer than YAML lets stand on one line is written with a question mark.
fn yaml_key(key: &str, depth: usize, out: &mut String) {
    const SIMPLE: usize = 512;
    if key.chars().count() > SIMPLE {
        out.push_str("? ");
        quoted(key, out);
        out.push('\n');
        margin(depth, out);
    } else if is_plain(key) {
        out.push_str(key);
    } else {
        quoted(key, out);
    }
}

fn yaml_text(text: &str, depth: usize, out: &mut String) {
    if is_plain(text) {
        out.push_str(text);
    } else if is_block(text) {
        let body = text.strip_suffix('\n');
        out.push_str(if body.is_some() { "|" } else { "|-" });
        for line in body.unwrap_or(text).split('\n') {
            out.push('\n');
            if !line.is_empty() {
                margin(depth, out);
                out.push_str(line);
            }
        }
    } else {
        quoted(text, out);
    }
}

fn margin(depth: usize, out: &mut String) {
    (0..depth).for_each(|_| out.push_str("  "));
}

fn end_line(out: &mut String) {
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

/// Text that every reader takes for that text without quotes.
fn is_plain(text: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ' ' | '+' | '(' | ')' | ';' | '$' | '^');
    text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_'))
        && text.chars().enumerate().all(|(i, c)| safe(c) || (c == ':' && !matches!(text.as_bytes().get(i + 1), None | Some(b' '))))
        && !text.ends_with(' ')
        && !text.contains("  ")
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
        && !looks_like_a_number(text)
}

/// `e5`, `0x…` and `12:30` begin with what `is_plain` refuses; what is left are words such as `Infinity`.
fn looks_like_a_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

/// Text of several lines that a literal block gives back exactly.
fn is_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    text.contains('\n')
        && !body.is_empty()
        && !body.starts_with([' ', '\n', '\t'])
        && !body.ends_with('\n')
        && body.split('\n').all(|line| !line.ends_with(' ') && !line.trim_start_matches(' ').is_empty() || line.is_empty())
        && body
            .chars()
            .all(|c| c == '\n' || c == '\t' || (!c.is_control() && !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')))
}

/// A JSON string, which is a double-quoted scalar of YAML too.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let code = u32::from(c);
                write!(out, "\\u{code:04x}").expect("writing into a String cannot fail");
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::{Limits, documents};
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1 << 20, nodes: 10_000 };

    fn values(node: &Node) -> Value {
        match &node.value {
            Value::List(items) => Value::List(items.iter().map(bare).collect()),
            Value::Map(entries) => Value::Map(
                entries
                    .iter()
                    .map(|entry| super::super::Entry {
                        value: bare(&entry.value),
                        at: super::super::Position::START,
                        key: entry.key.clone(),
                    })
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn bare(node: &Node) -> Node {
        Node { value: values(node), at: super::super::Position::START }
    }

    #[rstest]
    #[case("a: 1\nb:\n- x\n- - y\n  - z: 1\n    w: {}\nc: []\nd:\n  e: null\n")]
    #[case("text: |\n  one\n\n    two\nlast: |-\n  a\n  b\n")]
    #[case(
        "quotes: [\"yes\", \"1\", \"1.5\", \"\", \" x\", \"a: b\", \"a #b\", \"- x\", \"null\", \"0x1\", \"12:30\", \"Infinity\", \"~\", \"x\\ty\\u0007\", \"ä\", \"a:b\"]\n"
    )]
    #[case("? \"a: b\"\n: 1\n\"on\": \"off\"\n")]
    #[case("- text: \"x \\n y\"\n- \"\\n\"\n- \"a\\n\\n\"\n- \" a\\nb\"\n")]
    #[case("n: [1e3, 9007199254740993, 1.10, 0644, -0.5, +1]\n")]
    fn yaml_comes_back(#[case] text: &str) {
        let node = documents(text, LIMITS).unwrap().remove(0);
        let printed = yaml(&node);
        let again = documents(&printed, LIMITS).unwrap_or_else(|error| panic!("{error}: {printed}")).remove(0);
        assert_eq!(bare(&again), bare(&node), "{printed}");
    }

    #[test]
    fn yaml_looks_as_kubectl_prints_it() {
        let text = "a:\n- b: 1\n  c:\n  - x\n- d\ne:\n  f: |\n    one\n    two\n";
        assert_eq!(yaml(&documents(text, LIMITS).unwrap()[0]), text);
    }

    #[test]
    fn a_long_key_comes_back() {
        let text = format!("{{\"a\": {{\"{}\": {{\"b\": [1]}}}}}}", "k".repeat(600));
        let node = documents(&text, LIMITS).unwrap().remove(0);
        let printed = yaml(&node);
        assert_eq!(bare(&documents(&printed, LIMITS).unwrap()[0]), bare(&node), "{printed}");
    }

    #[rstest]
    #[case("1e3", "1e3")]
    #[case("9007199254740993", "9007199254740993")]
    #[case("1.10", "1.10")]
    #[case("-0.5", "-0.5")]
    #[case("+1", "1")]
    #[case(".5", "0.5")]
    #[case("1.", "1")]
    #[case("1.e5", "1e5")]
    #[case("00", "0")]
    #[case("0644", "420")]
    #[case("0x1F", "31")]
    #[case("0o17", "15")]
    #[case("-007.5", "-7.5")]
    fn numbers_as_json(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(json_number(text), wanted);
        assert!(serde_json::from_str::<serde_json::Number>(wanted).is_ok());
    }
}
