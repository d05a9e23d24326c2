//! A list of requests, as `rl_limit_all` takes it, from JSON.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::argument::ArgumentError;
use crate::config;
use crate::fields::{FieldError, Fields, Flag, Number};
use crate::text::shortened;

/// The longest name, in bytes. The shortest has one.
pub const MAX_NAME: usize = 200;
/// The allowed lengths of a name, in words.
pub const NAME_LENGTH: &str = "1 to 200 bytes";
/// The longest key, in bytes.
pub const MAX_KEY: usize = 1024;
/// The allowed lengths of a key, in words.
pub const KEY_LENGTH: &str = "at most 1024 bytes; pass a hash of a longer key";
/// The most requests of a list.
pub const MAX_REQUESTS: usize = 10_000;
/// The longest list, in bytes of JSON: 200 for each of [`MAX_REQUESTS`].
pub const MAX_BYTES: usize = 2_000_000;

/// A request as it was written; only its types are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct RawRequest {
    /// The limit's name.
    pub name: String,
    /// The key; empty where it is left out.
    pub key: String,
    /// Tokens; 1 where it is left out.
    pub count: f64,
    /// Whether the limit may go into debt; false where it is left out.
    pub reserve: bool,
    /// The limit's own config, as JSON.
    pub config: Option<String>,
}

/// An invalid list, or one of its requests. The error never carries a key, which may be personal, only its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The number of the request, from 1; 0: the list.
    pub n: usize,
    /// The error: of an argument, or `requests`, `it` or `a field`.
    pub error: ArgumentError,
}

impl std::error::Error for RequestError {}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.n > 0 {
            write!(f, "request {}: ", self.n)?;
        }
        match &self.error {
            ArgumentError::Null(argument) => write!(f, "{argument} must not be null"),
            error @ ArgumentError::Invalid { allowed, .. } => {
                write!(f, "{error} (allowed: {allowed})")
            }
        }
    }
}

const LIST: &str =
    r#"an array of objects such as [{"name": "perUser", "key": "u1"}, {"name": "global"}]"#;
const FIELDS: &str = r#"an object with "name", and "key", "count", "reserve" or "config""#;

/// The type of a JSON value, shown in place of a value that could be a key.
fn type_of(json: &str) -> &'static str {
    match json.as_bytes() {
        [b'{', ..] => "an object",
        b"[]" => "an empty array",
        [b'[', ..] => "an array",
        [b'"', ..] => "a string",
        [b't' | b'f', ..] => "a boolean",
        [b'n', ..] => "null",
        _ => "a number",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields {
    name: Name,
    key: Option<Key>,
    count: Option<Count>,
    reserve: Option<Flag>,
    config: Option<Box<RawValue>>,
}

struct Name(String);

struct Key(String);

struct Count(f64);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let text = Bounded { most: MAX_NAME, allowed: NAME_LENGTH };
        deserializer.deserialize_string(text).map(Name)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        let text = Bounded { most: MAX_KEY, allowed: KEY_LENGTH };
        deserializer.deserialize_string(text).map(Key)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        // The caller checks the range, which depends on the kind of the limit.
        let any = Number { allowed: "a number from 0 to 1e15", fits: |_| true };
        deserializer.deserialize_f64(any).map(Count)
    }
}

/// Reads a text, and refuses one that is too long in every encoding: the caller checks the length in the server's.
struct Bounded {
    most: usize,
    allowed: &'static str,
}

impl Visitor<'_> for Bounded {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        if text.len() > 6 * self.most { Err(E::custom(self.allowed)) } else { Ok(text.into()) }
    }
}

/// Reads a list of requests. The caller checks that the text is no longer than [`MAX_BYTES`], and the list no longer
/// than [`MAX_REQUESTS`].
///
/// ```
/// use ratelimit_core::requests;
///
/// let list = requests::parse(r#"[{"name": "perUser", "key": "u1", "count": 2}, {"name": "global"}]"#)?;
/// assert_eq!((list[0].count, list[1].count), (2.0, 1.0));
///
/// let error = requests::parse(r#"[{"name": "perUser", "key": 7}]"#).unwrap_err();
/// assert_eq!(error.to_string(), "request 1: key is a number (allowed: a string)");
/// # Ok::<(), requests::RequestError>(())
/// ```
///
/// # Errors
/// [`RequestError`] for JSON that is no list or an empty one, and for the first request that has a field
/// that is unknown, repeated or of a wrong type, or no name.
pub fn parse(json: &str) -> Result<Vec<RawRequest>, RequestError> {
    let list: Option<Vec<&RawValue>> = serde_json::from_str(json).ok();
    let list = list.filter(|list| !list.is_empty()).ok_or_else(|| RequestError {
        n: 0,
        error: ArgumentError::invalid("requests", type_of(json), LIST),
    })?;
    list.iter()
        .enumerate()
        .map(|(n, request)| {
            parse_one(request.get()).map_err(|error| RequestError { n: n + 1, error })
        })
        .collect()
}

fn parse_one(json: &str) -> Result<RawRequest, ArgumentError> {
    let fields = Fields::from_json(json)
        .ok_or_else(|| ArgumentError::invalid("it", type_of(json), FIELDS))?;
    let request: RequestFields = fields.read()?;
    let config = request.config.map(|config| Box::<str>::from(config).into_string());
    let config = config.filter(|config| config != "null");
    if let Some(config) = config.as_ref().filter(|config| config.len() > config::MAX_BYTES) {
        let value = format!("{} bytes long", config.len());
        return Err(ArgumentError::invalid(
            "config",
            value,
            format!("at most {} bytes", config::MAX_BYTES),
        ));
    }
    Ok(RawRequest {
        name: request.name.0,
        key: request.key.map_or_else(String::new, |key| key.0),
        count: request.count.map_or(1.0, |count| count.0),
        reserve: request.reserve.is_some_and(|reserve| reserve.0),
        config,
    })
}

impl From<FieldError> for ArgumentError {
    fn from(error: FieldError) -> ArgumentError {
        match error {
            FieldError::Unknown { field, .. } => Self::invalid(
                "a field",
                format!("unknown: {}", Value::from(shortened(&field))),
                FIELDS,
            ),
            FieldError::Repeated { field } => {
                Self::invalid(field, "given more than once", "one value")
            }
            FieldError::Missing { field, .. } => Self::Null(field),
            FieldError::Invalid { field, value, .. } if value == "null" => Self::Null(field),
            FieldError::Invalid { field, value, allowed } => match (field, &*allowed) {
                (_, NAME_LENGTH | KEY_LENGTH) => Self::invalid(field, "too long", allowed),
                ("key", _) => Self::invalid(field, type_of(&value), allowed),
                _ => Self::invalid(field, value, allowed),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_the_defaults_of_a_single_call() {
        let requests = parse(concat!(
            r#"[{"name": "a"}, "#,
            r#"{"name": "b", "key": "k", "count": 2.5, "reserve": true, "config": {"rate": 1}}]"#
        ))
        .unwrap();
        assert_eq!(
            requests[0],
            RawRequest {
                name: "a".into(),
                key: String::new(),
                count: 1.0,
                reserve: false,
                config: None
            }
        );
        assert_eq!((requests[1].count, requests[1].reserve), (2.5, true));
        assert_eq!(requests[1].config.as_deref(), Some(r#"{"rate": 1}"#));
    }

    #[test]
    fn an_error_says_which_request_it_is() {
        for (json, n) in [
            ("{}", 0),
            ("[]", 0),
            ("[1]", 1),
            (r#"[{"name": "a"}, {"key": "k"}]"#, 2),
            (r#"[{"name": null}]"#, 1),
            (r#"[{"name": 1}]"#, 1),
            (r#"[{"name": "a", "key": null}]"#, 1),
            (r#"[{"name": "a", "key": 7}]"#, 1),
            (r#"[{"name": "a", "count": "1"}]"#, 1),
            (r#"[{"name": "a", "reserve": 1}]"#, 1),
            (r#"[{"name": "a", "throws": true}]"#, 1),
        ] {
            assert_eq!(parse(json).unwrap_err().n, n, "{json}");
        }
    }

    #[test]
    fn a_text_is_refused_only_where_it_is_too_long_in_every_encoding() {
        let key = |key: String| parse(&format!(r#"[{{"name": "a", "key": "{key}"}}]"#));
        assert_eq!(key("\\u0001".repeat(1024)).unwrap()[0].key, "\u{1}".repeat(1024));
        assert_eq!(key("x".repeat(6145)).unwrap_err().n, 1);
        let config = format!(r#"[{{"name": "a", "config": "{}"}}]"#, "x".repeat(10_000));
        assert_eq!(parse(&config).unwrap_err().n, 1);
    }

    #[test]
    fn an_error_never_carries_a_key() {
        let long = "secret".repeat(1_100);
        for request in [
            r#"{"name": "a", "key": ["secret"]}"#.into(),
            r#"{"name": "a", "key": {"secret": 1}}"#.into(),
            r#"{"name": "a", "Key": "secret"}"#.into(),
            r#"{"name": "a", "key": "secret", "key": "secret"}"#.into(),
            r#"{"name": 1, "key": "secret"}"#.into(),
            r#"{"key": "secret"}"#.into(),
            r#""secret""#.into(),
            format!(r#"{{"name": "a", "key": "{long}"}}"#),
        ] {
            let error = parse(&format!("[{request}]")).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
        let error = parse(r#"{"key": "secret"}"#).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn an_error_displays_request_argument_and_what_is_allowed() {
        for (json, message) in [
            ("[]", format!("requests is an empty array (allowed: {LIST})")),
            (r#"[{}]"#, "request 1: name must not be null".into()),
            (
                r#"[{"name": "a"}, {"name": "b", "reserve": 1}]"#,
                "request 2: reserve is 1 (allowed: true or false)".into(),
            ),
            (
                r#"[{"name": "a", "count": 1, "count": 2}]"#,
                "request 1: count is given more than once (allowed: one value)".into(),
            ),
        ] {
            assert_eq!(parse(json).unwrap_err().to_string(), message);
        }
    }
}
