//! The fields of an object, as serde reads them into a struct, and what is wrong with one of them:
//! its name, its value as it was written, and what may stand there.
//!
//! An error of serde_json is one line of text, from which the three can no longer be separated. Here
//! a struct is read from a list of fields instead, by [`Fields::read`]: what a type's `Visitor` is
//! `expecting` becomes the "allowed" of a [`FieldError`], to which the list adds the rest. Fields
//! are read in the order in which the struct declares them, so that of several that are wrong the
//! same one is told, however they were ordered; those that it doesn't have come first.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, DeserializeOwned, Deserializer, Expected, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;

use crate::text::{json_number, shortened};

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FieldError {
    /// The struct has no such field; `fields` are those that it has.
    #[error("{field:?} is not a field")]
    Unknown { field: String, value: String, fields: &'static [&'static str] },
    /// It stands there more than once.
    #[error("{field:?} is repeated")]
    Repeated { field: &'static str },
    /// It must stand there and doesn't.
    #[error("{field:?} is missing")]
    Missing { field: &'static str, allowed: String },
    /// Its value, as it was written and cut to what fits a message, is not allowed.
    #[error("{field:?} is {value}")]
    Invalid { field: &'static str, value: String, allowed: String },
}

impl FieldError {
    /// A field and its value added to what the type of the value says of it.
    fn of(self, field: &'static str, value: Option<Value>) -> FieldError {
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
    /// `allowed` is what may stand there, since that is all that a type knows of its field.
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
    /// Of a JSON object.
    Json(&'a RawValue),
    /// An argument of a function.
    Number(f64),
    /// An argument of a function.
    Text(&'a str),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Cow<str> = match self {
            Value::Json(json) => json.get().into(),
            Value::Number(number) => json_number(*number).into(),
            Value::Text(text) => serde_json::Value::from(*text).to_string().into(),
        };
        f.write_str(&shortened(&text))
    }
}

impl<'a> Value<'a> {
    fn visit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let json = match self {
            // Which JSON doesn't have, so no field can.
            Value::Number(number) if !number.is_finite() => {
                return Err(de::Error::custom("a finite number"));
            }
            Value::Number(number) => return visitor.visit_f64(number),
            Value::Text(text) => return visitor.visit_str(text),
            Value::Json(json) => json.get(),
        };
        let refuse = |visitor: &V| Err(de::Error::invalid_type(Unexpected::Other("JSON"), visitor));
        match json.as_bytes() {
            [b'"', ..] => match serde_json::from_str::<String>(json) {
                Ok(text) => visitor.visit_string(text),
                Err(_) => refuse(&visitor), // half a surrogate pair
            },
            // Exactly what the digits say, however many they are.
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
    /// The fields of a JSON object; `None` where it is none.
    pub(crate) fn of_json(json: &'a str) -> Option<Fields<'a>> {
        serde_json::from_str(json).ok()
    }

    /// The arguments of a function, those left out that are `None`.
    pub(crate) fn of_arguments(
        arguments: impl IntoIterator<Item = (&'static str, Option<Value<'a>>)>,
    ) -> Fields<'a> {
        let given =
            |(field, value): (&'static str, Option<Value<'a>>)| Some((field.into(), value?));
        Fields(arguments.into_iter().filter_map(given).collect())
    }

    /// The value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<Value<'a>> {
        self.0.iter().find(|(name, _)| name == field).map(|&(_, value)| value)
    }

    /// Takes a field out and reads it separately, before a struct of the rest.
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

    /// Reads all fields into a struct.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, FieldError> {
        T::deserialize(self)
    }

    /// The names of the fields that a struct has.
    pub(crate) fn names<T: DeserializeOwned>() -> &'static [&'static str] {
        // A name that none has: the refusal lists them.
        match Fields(vec![("".into(), Value::Number(0.0))]).read::<T>() {
            Err(FieldError::Unknown { fields, .. }) => fields,
            _ => &[],
        }
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

/// The value of a field, `None` where the field is left out; or an element of an array.
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
        .map_err(|error| error.of(self.field, self.value))
    }

    /// A field that is left out is none; one that is null is a value like any other.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Some(_) => visitor.visit_some(self),
            None => visitor.visit_none(),
        }
    }

    /// The JSON itself, where a type asks for it: [`RawValue`] does so by a name of its own.
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
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Reads a number for which `fits` holds.
pub(crate) struct Number {
    /// The same in words.
    pub allowed: &'static str,
    pub fits: fn(f64) -> bool,
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        if (self.fits)(number) {
            Ok(number)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
}

/// Reads a text that `read` understands.
pub(crate) struct TextField<T> {
    /// What that is, in words.
    pub allowed: &'static str,
    pub read: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for TextField<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A `true` or a `false`.
#[derive(Clone, Copy, serde::Serialize)]
pub(crate) struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flag, D::Error> {
        struct TrueOrFalse;

        impl Visitor<'_> for TrueOrFalse {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Flag, E> {
                Ok(Flag(flag))
            }
        }

        deserializer.deserialize_bool(TrueOrFalse)
    }
}
