//! Reads the fields of an object into a struct. An error has the field's name, its value as it was written, and the
//! allowed values.
//!
//! An error of serde_json is one line of text; the three can't be separated any more. [`Fields::read`] reads a struct
//! from a list of fields instead: the text that a type's `Visitor` is `expecting` becomes the "allowed" of a
//! [`FieldError`], and the list adds the rest. Fields are read in the order of their declaration in the struct, so the
//! same one of several invalid fields is always reported; unknown ones come first.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, DeserializeOwned, Deserializer, Expected, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;

use crate::text::{JsonNumber, json_number, shortened};

/// An invalid field.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FieldError {
    /// The struct has no such field, only `fields`.
    #[error("{field:?} is not a field")]
    Unknown { field: String, value: String, fields: &'static [&'static str] },
    /// It is given more than once.
    #[error("{field:?} is repeated")]
    Repeated { field: &'static str },
    /// It is required.
    #[error("{field:?} is missing")]
    Missing { field: &'static str, allowed: String },
    /// Its value, as it was written and shortened to fit a message, is not allowed.
    #[error("{field:?} is {value}")]
    Invalid { field: &'static str, value: String, allowed: String },
}

impl FieldError {
    /// Adds a field and its value to an error about the value's type.
    fn at(self, field: &'static str, value: Option<Value>) -> FieldError {
        match (self, value) {
            (FieldError::Invalid { allowed, .. }, Some(value)) => {
                FieldError::Invalid { field, value: value.to_string(), allowed }
            }
            (FieldError::Invalid { allowed, .. }, None) => FieldError::Missing { field, allowed },
            (other, _) => other,
        }
    }
}

impl de::Error for FieldError {
    /// A type knows only its allowed values; [`FieldError::at`] adds the field.
    fn custom<T: fmt::Display>(allowed: T) -> FieldError {
        FieldError::Invalid { field: "", value: String::new(), allowed: allowed.to_string() }
    }

    fn invalid_type(_: Unexpected, expected: &dyn Expected) -> FieldError {
        FieldError::custom(expected)
    }

    fn invalid_value(_: Unexpected, expected: &dyn Expected) -> FieldError {
        FieldError::custom(expected)
    }

    fn unknown_field(field: &str, fields: &'static [&'static str]) -> FieldError {
        FieldError::Unknown { field: field.into(), value: String::new(), fields }
    }

    fn duplicate_field(field: &'static str) -> FieldError {
        FieldError::Repeated { field }
    }
}

/// The value of a field, as it was written.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    /// In a JSON object.
    Json(&'a RawValue),
    /// An argument of a function.
    Number(f64),
    /// An argument of a function.
    Text(&'a str),
    /// An argument of a function.
    Flag(bool),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Cow<str> = match self {
            Value::Json(json) => json.get().into(),
            Value::Number(number) => json_number(*number).into(),
            Value::Text(text) => serde_json::Value::from(*text).to_string().into(),
            Value::Flag(flag) => flag.to_string().into(),
        };
        f.write_str(&shortened(&text))
    }
}

impl<'a> Value<'a> {
    /// The value as JSON.
    pub(crate) fn to_json(self) -> serde_json::Value {
        match self {
            Value::Json(json) => serde_json::from_str(json.get()).unwrap_or_default(),
            Value::Number(number) => serde_json::to_value(JsonNumber(number)).unwrap_or_default(),
            Value::Text(text) => text.into(),
            Value::Flag(flag) => flag.into(),
        }
    }

    fn visit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let json = match self {
            // JSON has no such number.
            Value::Number(number) if !number.is_finite() => {
                return Err(de::Error::custom("a finite number"));
            }
            Value::Number(number) => return visitor.visit_f64(number),
            Value::Text(text) => return visitor.visit_str(text),
            Value::Flag(flag) => return visitor.visit_bool(flag),
            Value::Json(json) => json.get(),
        };
        let refuse = |visitor: &V| Err(de::Error::invalid_type(Unexpected::Other("JSON"), visitor));
        match json.as_bytes() {
            [b'"', ..] => match serde_json::from_str::<String>(json) {
                Ok(text) => visitor.visit_string(text),
                Err(_) => refuse(&visitor), // half a surrogate pair
            },
            // Exactly the digits' value, for any number of digits.
            [b'-' | b'0'..=b'9', ..] => match json.parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => refuse(&visitor),
            },
            [b'[', ..] => match serde_json::from_str::<Vec<&RawValue>>(json) {
                Ok(elements) => {
                    let elements = elements.into_iter().map(|json| Some(Value::Json(json)));
                    let elements = elements.map(|value| Field { field: "", value });
                    visitor.visit_seq(SeqDeserializer::new(elements))
                }
                Err(_) => refuse(&visitor),
            },
            b"true" => visitor.visit_bool(true),
            b"false" => visitor.visit_bool(false),
            b"null" => visitor.visit_unit(),
            _ => refuse(&visitor),
        }
    }
}

/// The fields of an object, in the order in which they were written.
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Fields<'a> {
    /// The fields of a JSON object; `None` for other JSON.
    pub(crate) fn from_json(json: &'a str) -> Option<Fields<'a>> {
        serde_json::from_str(json).ok()
    }

    /// The arguments of a function.
    pub(crate) fn from_arguments(
        arguments: impl IntoIterator<Item = (&'a str, Value<'a>)>,
    ) -> Fields<'a> {
        Fields(arguments.into_iter().map(|(field, value)| (field.into(), value)).collect())
    }

    /// The value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<Value<'a>> {
        self.0.iter().find(|(name, _)| name == field).map(|&(_, value)| value)
    }

    /// Removes a field and reads it separately, before the rest is read into a struct.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
    ) -> Result<T, FieldError> {
        let mut values = self.0.extract_if(.., |(name, _)| name == field).map(|(_, value)| value);
        let value = values.next();
        if values.next().is_some() {
            return Err(FieldError::Repeated { field });
        }
        T::deserialize(Field { field, value })
    }

    /// Drops the fields that are null.
    pub(crate) fn drop_nulls(&mut self) {
        self.0.retain(|(_, value)| !matches!(value, Value::Json(json) if json.get() == "null"));
    }

    /// The first field, in the order of writing, that is none of these.
    pub(crate) fn unknown(&self, fields: &'static [&'static str]) -> Option<FieldError> {
        let (field, value) = self.0.iter().find(|(name, _)| !fields.contains(&&**name))?;
        Some(FieldError::Unknown { field: field.to_string(), value: value.to_string(), fields })
    }

    /// Reads all fields into a struct.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, FieldError> {
        T::deserialize(self)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(Cow<'de, str>, Value<'de>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((field, value)) = map.next_entry::<String, _>()? {
                    fields.push((field.into(), Value::Json(value)));
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Object).map(Fields)
    }
}

impl<'de> Deserializer<'de> for &'de Fields<'de> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        self.deserialize_struct("", &[], visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        let unknown = self
            .0
            .iter()
            .filter(|(name, _)| !fields.contains(&&**name))
            .map(|(name, value)| (Name(name, Some(*value)), Field { field: "", value: None }));
        let known = fields.iter().flat_map(|&field| {
            let values = self.0.iter().filter(move |(name, _)| name == field);
            let left_out = self.get(field).is_none().then_some(None);
            let values = values.map(|&(_, value)| Some(value)).chain(left_out);
            values.map(move |value| (Name(field, value), Field { field, value }))
        });
        visitor.visit_map(MapDeserializer::new(unknown.chain(known)))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The name of a field, with its value.
struct Name<'a>(&'a str, Option<Value<'a>>);

impl<'de> IntoDeserializer<'de, FieldError> for Name<'de> {
    type Deserializer = Name<'de>;

    fn into_deserializer(self) -> Name<'de> {
        self
    }
}

impl<'de> Deserializer<'de> for Name<'de> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_str(self.0).map_err(|error| match (error, self.1) {
            (FieldError::Unknown { field, fields, .. }, Some(value)) => {
                FieldError::Unknown { field, value: value.to_string(), fields }
            }
            (error, _) => error,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

/// The value of a field, `None` if it is left out; or an element of an array.
struct Field<'a> {
    field: &'static str,
    value: Option<Value<'a>>,
}

impl<'de> IntoDeserializer<'de, FieldError> for Field<'de> {
    type Deserializer = Field<'de>;

    fn into_deserializer(self) -> Field<'de> {
        self
    }
}

impl<'de> Deserializer<'de> for Field<'de> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Some(value) => value.visit(visitor),
            None => Err(de::Error::invalid_type(Unexpected::Other("nothing"), &visitor)),
        }
        .map_err(|error| error.at(self.field, self.value))
    }

    /// A missing field is `None`; null is a value like any other.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Some(_) => visitor.visit_some(self),
            None => visitor.visit_none(),
        }
    }

    /// The value of a field that the struct doesn't have, and allows.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_unit()
    }

    /// The JSON itself, for [`RawValue`], which requests it by a name of its own.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        match self.value {
            Some(Value::Json(json)) => {
                json.deserialize_newtype_struct(name, visitor).map_err(de::Error::custom)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

/// The value of a field, as a [`Reader`] sees it.
pub(crate) enum Given<'a> {
    Number(f64),
    Text(&'a str),
    Flag(bool),
    Null,
}

/// Reads a value that `read` understands.
pub(crate) struct Reader<T> {
    /// The values that it understands, in words.
    pub allowed: &'static str,
    pub read: fn(Given) -> Option<T>,
}

impl<T> Reader<T> {
    fn value<E: de::Error>(self, given: Given) -> Result<T, E> {
        (self.read)(given).ok_or_else(|| E::invalid_value(Unexpected::Other("value"), &self))
    }
}

impl<T> Visitor<'_> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.value(Given::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        self.value(Given::Text(text))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<T, E> {
        self.value(Given::Flag(flag))
    }

    fn visit_unit<E: de::Error>(self) -> Result<T, E> {
        self.value(Given::Null)
    }
}

/// Has a type read by a [`Reader`]: its allowed values, in words, and the function that understands them.
macro_rules! read_by {
    ($type:ty, $allowed:expr, $read:expr) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                from.deserialize_any($crate::fields::Reader { allowed: $allowed, read: $read })
            }
        }
    };
}
pub(crate) use read_by;

/// A `true` or a `false`.
#[derive(Clone, Copy, serde::Serialize)]
pub(crate) struct Flag(pub bool);

read_by!(Flag, "true or false", |given| match given {
    Given::Flag(flag) => Some(Flag(flag)),
    _ => None,
});
