//! Decoding that never fails on a type: what fits is taken, what does not fit is as if it were absent.
//!
//! A pod that the API server stores must be readable whatever a later version puts into it, at the cost of one pass.
//!
//! Invariant: only bytes that are no JSON make these fail, or a key that stands twice in one object, which the API server never writes.
//! Absent on purpose: encoding.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A text, or nothing.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(pub(crate) Option<Cow<'a, str>>);

/// A whole number, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number(pub(crate) Option<i64>);

/// A boolean; `false` where it is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flag(pub(crate) bool);

/// An object of that form, or an empty one.
#[derive(Debug, Default)]
pub(crate) struct Object<T>(pub(crate) T);

/// An object, if there is one.
#[derive(Debug)]
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

/// A list, or an empty one.
#[derive(Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

/// A map of texts; entries that are no text are left out.
#[derive(Debug, Default)]
pub(crate) struct Texts(pub(crate) BTreeMap<String, String>);

impl<T> Default for Maybe<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl Text<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.0.as_deref() == Some(text)
    }

    pub(crate) fn owned(self) -> String {
        self.0.map(Cow::into_owned).unwrap_or_default()
    }
}

/// What became of one JSON value of any type.
enum Any<'de, T> {
    Text(Cow<'de, str>),
    Number(i64),
    Flag(bool),
    Object(T),
    Other,
}

/// Reads any value; an object is read as `T`.
struct AnyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for AnyVisitor<T> {
    type Value = Any<'de, T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Any::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Any::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_or(Any::Other, Any::Number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Any::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Any::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Any::Text(Cow::Borrowed(text)))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Any::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Any::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Any::Object)
    }
}

fn any<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Any<'de, T>, D::Error> {
    from.deserialize_any(AnyVisitor(PhantomData))
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match any::<IgnoredAny, D>(from)? {
            Any::Text(text) => Some(text),
            _ => None,
        }))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match any::<IgnoredAny, D>(from)? {
            Any::Number(number) => Some(number),
            _ => None,
        }))
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(matches!(any::<IgnoredAny, D>(from)?, Any::Flag(true))))
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match any::<T, D>(from)? {
            Any::Object(object) => object,
            _ => T::default(),
        }))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match any::<T, D>(from)? {
            Any::Object(object) => Some(object),
            _ => None,
        }))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let entries: Object<BTreeMap<String, Text<'_>>> = Object::deserialize(from)?;
        Ok(Self(entries.0.into_iter().filter_map(|(key, text)| Some((key, text.0?.into_owned()))).collect()))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("anything")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_i64<E>(self, _: i64) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_u64<E>(self, _: u64) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_f64<E>(self, _: f64) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_str<E>(self, _: &str) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_unit<E>(self) -> Result<Vec<T>, E> {
                Ok(Vec::new())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(items)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<T>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Vec::new())
            }
        }
        from.deserialize_any(ListVisitor(PhantomData)).map(Self)
    }
}
