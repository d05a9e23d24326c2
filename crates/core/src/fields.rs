//! Reads the fields of a JSON object. An error has the field's name, its value as it was written, and the allowed
//! values.
//!
//! Callers look for unknown fields first, and then read the others in a fixed order: the same one of several invalid
//! fields is always reported.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::text::shortened;

/// An invalid field. Its value is as it was written, and shortened to fit a message.
#[derive(Debug)]
pub(crate) enum FieldError {
    /// There is no such field.
    Unknown { field: String, value: String },
    /// It is given more than once.
    Repeated { field: &'static str },
    /// It is required.
    Missing { field: &'static str, allowed: String },
    /// Its value is not allowed.
    Invalid { field: &'static str, value: String, allowed: String },
}

impl FieldError {
    /// The field with its value, and the allowed values, both in words; `unknown` has those of an unknown field.
    pub(crate) fn in_words(
        self,
        unknown: impl FnOnce(&str, String) -> (String, String),
    ) -> (String, String) {
        match self {
            FieldError::Unknown { field, value } => unknown(&field, value),
            FieldError::Repeated { field } => {
                (format!("\"{field}\" is given more than once"), "one value".into())
            }
            FieldError::Missing { field, allowed } => (format!("\"{field}\" is missing"), allowed),
            FieldError::Invalid { field, value, allowed } => {
                (format!("\"{field}\" is {value}"), allowed)
            }
        }
    }
}

/// The fields of an object, in the order in which they were written, each with its value as JSON.
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Fields<'a> {
    /// The fields of a JSON object; `None` for other JSON.
    pub(crate) fn from_json(json: &'a str) -> Option<Fields<'a>> {
        serde_json::from_str(json).ok()
    }

    /// The arguments of a function. A number that JSON doesn't have is refused by every reader.
    pub(crate) fn from_arguments(arguments: Vec<(String, String)>) -> Fields<'a> {
        Fields(arguments.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// The object.
    pub(crate) fn to_json(&self) -> Value {
        let value = |json: &str| -> Value { serde_json::from_str(json).unwrap_or_default() };
        self.0.iter().map(|(name, json)| (&**name, value(json))).collect()
    }

    /// The value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, value)| &**value)
    }

    /// Drops the fields that are null.
    pub(crate) fn drop_nulls(&mut self) {
        self.0.retain(|(_, value)| value != "null");
    }

    /// Refuses the first field, in the order of writing, that none of these lists has.
    pub(crate) fn only(&self, known: &[&[&str]]) -> Result<(), FieldError> {
        let is_known = |name: &str| known.iter().any(|fields| fields.contains(&name));
        match self.0.iter().find(|(name, _)| !is_known(name)) {
            Some((field, value)) => {
                Err(FieldError::Unknown { field: field.to_string(), value: shortened(value) })
            }
            None => Ok(()),
        }
    }

    /// The value of a field that is given at most once.
    pub(crate) fn once(&self, field: &'static str) -> Result<Option<&str>, FieldError> {
        let mut values = self.0.iter().filter(|(name, _)| name == field);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(FieldError::Repeated { field }),
            (value, None) => Ok(value.map(|(_, value)| &**value)),
        }
    }

    /// Reads a field that may be left out. Null is a value like any other.
    pub(crate) fn optional<T>(
        &self,
        field: &'static str,
        reader: &Reader<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.once(field)? else { return Ok(None) };
        let allowed = match value.trim_start_matches('-').as_bytes() {
            // NaN and the infinities, which arguments can have, and JSON doesn't.
            [b'N' | b'I', ..] => "a finite number",
            _ => match read(value, reader.read) {
                None => reader.allowed,
                read => return Ok(read),
            },
        };
        Err(self.refused(field, allowed))
    }

    /// Reads a field.
    pub(crate) fn required<T>(
        &self,
        field: &'static str,
        reader: &Reader<T>,
    ) -> Result<T, FieldError> {
        let missing = || FieldError::Missing { field, allowed: reader.allowed.into() };
        self.optional(field, reader)?.ok_or_else(missing)
    }

    /// The error of a field with a value that is not allowed.
    pub(crate) fn refused(&self, field: &'static str, allowed: &str) -> FieldError {
        let value = shortened(self.get(field).unwrap_or_default());
        FieldError::Invalid { field, value, allowed: allowed.into() }
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some((JsonText(field), value)) = map.next_entry::<_, &RawValue>()? {
                    fields.push((field, value.get().into()));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A text, borrowed from the JSON unless it has escapes.
#[derive(Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads a value.
pub(crate) struct Reader<T> {
    /// The allowed values, in words.
    pub allowed: &'static str,
    /// `None`: not allowed.
    pub read: fn(Given) -> Option<T>,
}

/// A value, as a [`Reader`] sees it.
pub(crate) enum Given<'a> {
    Number(f64),
    Text(&'a str),
    Flag(bool),
    Null,
    List(Vec<&'a RawValue>),
}

fn read<T>(json: &str, read: fn(Given) -> Option<T>) -> Option<T> {
    let text;
    read(match json.as_bytes() {
        [b'"', ..] => {
            JsonText(text) = serde_json::from_str(json).ok()?; // not half a surrogate pair
            Given::Text(&text)
        }
        [b'[', ..] => Given::List(serde_json::from_str(json).ok()?),
        [b'{', ..] => return None,
        b"true" => Given::Flag(true),
        b"false" => Given::Flag(false),
        b"null" => Given::Null,
        // Exactly the digits' value, for any number of digits.
        _ => Given::Number(json.parse().ok()?),
    })
}

impl Given<'_> {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Given::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number in a range.
    pub(crate) fn number(self, range: RangeInclusive<f64>) -> Option<f64> {
        match self {
            Given::Number(number) if range.contains(&number) => Some(number),
            _ => None,
        }
    }

    /// A whole number, at least 1.
    pub(crate) fn whole(self, most: u32) -> Option<u32> {
        let number = self.number(1.0..=most.into()).filter(|number| number.fract() == 0.0);
        number.map(|number| number as u32)
    }

    /// An array of at most `most` elements.
    pub(crate) fn list<T>(self, most: usize, element: fn(Given) -> Option<T>) -> Option<Vec<T>> {
        match self {
            Given::List(list) if list.len() <= most => {
                list.into_iter().map(|json| read(json.get(), element)).collect()
            }
            _ => None,
        }
    }
}

/// A `true` or a `false`.
pub(crate) const FLAG: Reader<bool> = Reader {
    allowed: "true or false",
    read: |given| match given {
        Given::Flag(flag) => Some(flag),
        _ => None,
    },
};

/// A text.
pub(crate) const TEXT: Reader<String> =
    Reader { allowed: "a string", read: |given| given.text().map(str::to_owned) };
