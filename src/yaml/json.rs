//! JSON as the same tree, with every digit of its numbers.
//!
//! Invariant: of whatever JSON says, nothing is rounded, reordered or merged; a key may stand twice.
//! Absent on purpose: positions (a JSON text is seldom written by hand).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{DEPTH, Entry, Node, Position, Value};

/// Every JSON value of a text, one behind the other.
pub fn values(text: &str) -> Result<Vec<Node>, serde_json::Error> {
    let mut nodes = Vec::new();
    for raw in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        nodes.push(node(raw?, DEPTH)?);
    }
    Ok(nodes)
}

fn node(raw: &RawValue, depth: usize) -> Result<Node, serde_json::Error> {
    let text = raw.get();
    let deeper = || depth.checked_sub(1).ok_or_else(|| serde_json::Error::custom(format!("nested deeper than {DEPTH}")));
    let value = match text.as_bytes().first() {
        Some(b'{') => {
            let depth = deeper()?;
            let entries: Entries<'_> = serde_json::from_str(text)?;
            let entry = |(key, raw): (String, &RawValue)| Ok(Entry { key, at: Position::START, value: node(raw, depth)? });
            Value::Map(entries.0.into_iter().map(entry).collect::<Result<_, serde_json::Error>>()?)
        }
        Some(b'[') => {
            let depth = deeper()?;
            let items: Items<'_> = serde_json::from_str(text)?;
            Value::List(items.0.into_iter().map(|raw| node(raw, depth)).collect::<Result<_, _>>()?)
        }
        Some(b'"') => Value::Text(serde_json::from_str(text)?),
        Some(b't' | b'f') => Value::Bool(serde_json::from_str(text)?),
        Some(b'n') => Value::Null,
        _ => Value::Number(text.to_owned()),
    };
    Ok(Node { value, at: Position::START })
}

struct Entries<'a>(Vec<(String, &'a RawValue)>);

struct Items<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Of)
    }
}

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Items<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Of)
    }
}

#[cfg(test)]
mod tests {
    use super::super::print::json;
    use super::*;

    #[test]
    fn json_comes_back_to_the_last_digit() {
        let text = r#"{"a":[1,-2.50,1e400,123456789012345678901234567890],"b":{"c":null,"c":true},"d":"x\ny"}"#;
        assert_eq!(json(&values(text).unwrap()[0]), text);
    }

    #[test]
    fn several_values_are_read_and_garbage_is_not() {
        assert_eq!(values("{} [] \n1").unwrap().len(), 3);
        assert!(values("{}]").is_err());
        assert!(values("{'a':1}").is_err());
        assert!(values(&"[".repeat(100_000)).is_err());
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(values(&deep).unwrap_err().to_string().contains("deeper"));
    }
}
