//! Reading only the parts of a JSON object that decide, borrowed from the text.
//!
//! A pod is mostly foreign to us; a typed round trip would lose what we do not know, and a tree of it would cost a second copy.
//! Here each part that decides is visited in place, and all else is skipped without being looked at.
//!
//! Invariant: a part of the wrong type is noted as such and never ends the reading of the rest.
//! Invariant: of a key that stands twice the last one counts, as for the API server's own reader.
//! Absent on purpose: the meaning of any part (`pod`, `review`).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A part as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Part<T> {
    /// Absent, or null.
    #[default]
    Absent,
    /// There, with the type that it should have.
    Found(T),
    /// There, with another type.
    Wrong,
}

/// What a part can be made of; each method that is not overridden says that this type is wrong.
pub(super) trait Shape<'de>: Sized {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Part::Wrong)
    }

    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Part<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Part::Wrong)
    }

    fn of_text(_: &str) -> Part<Self> {
        Part::Wrong
    }

    fn of_borrowed_text(text: &'de str) -> Part<Self> {
        Self::of_text(text)
    }

    fn of_integer(_: i64) -> Part<Self> {
        Part::Wrong
    }

    fn of_bool(_: bool) -> Part<Self> {
        Part::Wrong
    }
}

/// Reads over a value.
pub(super) fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

/// A list whose items are parts of their own.
pub(super) type Items<T> = Vec<Part<T>>;

/// The key of a map.
pub(super) struct Key<'de>(pub(super) Cow<'de, str>);

impl<T> Part<T> {
    pub(super) fn found(&self) -> Option<&T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Absent | Self::Wrong => None,
        }
    }

    pub(super) fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong)
    }
}

impl Part<Cow<'_, str>> {
    /// The text; empty where there is none.
    pub(super) fn text(&self) -> &str {
        self.found().map_or("", |text| text)
    }
}

impl<'de> Shape<'de> for Cow<'de, str> {
    fn of_text(text: &str) -> Part<Self> {
        Part::Found(Cow::Owned(text.to_owned()))
    }

    fn of_borrowed_text(text: &'de str) -> Part<Self> {
        Part::Found(Cow::Borrowed(text))
    }
}

impl Shape<'_> for i64 {
    fn of_integer(value: i64) -> Part<Self> {
        Part::Found(value)
    }
}

impl Shape<'_> for bool {
    fn of_bool(value: bool) -> Part<Self> {
        Part::Found(value)
    }
}

impl<'de, T: Shape<'de>> Shape<'de> for Items<T> {
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Part<Self>, A::Error> {
        let mut items = Self::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Part::Found(items))
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PartVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct PartVisitor<T>(PhantomData<T>);

impl<'de, T: Shape<'de>> Visitor<'de> for PartVisitor<T> {
    type Value = Part<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Part::Absent)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(T::of_bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(T::of_integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(value).map_or(Part::Wrong, T::of_integer))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Part::Wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(T::of_text(text))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(T::of_borrowed_text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::of_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::of_list(list)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Key(Cow::Borrowed(text)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Takes no kind of value.
    struct Nothing;

    impl Shape<'_> for Nothing {}

    #[rstest]
    fn a_value_of_a_kind_that_is_not_taken_is_wrong(
        #[values("true", "7", "-7", "7.5", r#""x""#, r#""\u00e9""#, "[1, {}]", r#"{"a": [1]}"#)] json: &str,
    ) {
        let part: Part<Nothing> = serde_json::from_str(json).unwrap();
        assert!(part.is_wrong(), "{json}");
        let list: Vec<Part<Nothing>> = serde_json::from_str(&format!("[null, {json}, null]")).unwrap();
        assert!(!list[0].is_wrong() && list[1].is_wrong() && !list[2].is_wrong(), "{json} ends where it ends");
    }
}
