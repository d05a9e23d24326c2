//! The list of requests that `rl_limit_all` takes, from JSON. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::{self, shortened};

/// The longest name, in bytes. The shortest has one.
pub const MAX_NAME: usize = 200;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 1024;
/// How many requests a list can have.
pub const MAX_REQUESTS: usize = 10_000;
/// The longest list, in bytes of JSON: so many requests with the longest keys, and configs.
pub const MAX_BYTES: usize = 2_000_000;

/// One of the requests, as it was written; only its types are checked.
#[derive(Debug, PartialEq)]
pub struct Request {
    pub name: String,
    pub key: String,
    pub count: f64,
    pub reserve: bool,
    /// The limit's own config, as JSON.
    pub config: Option<String>,
}

/// What is wrong with the list, or with one of its requests.
#[derive(Debug, PartialEq)]
pub enum RequestError {
    /// An argument is null, or a name is missing.
    Null(&'static str),
    /// What stands there, and what is allowed.
    Invalid { argument: &'static str, value: String, allowed: &'static str },
}

const LIST: &str =
    r#"an array of objects such as [{"name": "perUser", "key": "u1"}, {"name": "global"}]"#;
const FIELDS: &str = r#"an object with "name", and "key", "count", "reserve" or "config""#;

fn invalid(argument: &'static str, value: &str, allowed: &'static str) -> RequestError {
    RequestError::Invalid { argument, value: shortened(value), allowed }
}

/// What stands where a key could be: told without its value, since an error never carries a key.
fn invalid_kind(argument: &'static str, json: &str, allowed: &'static str) -> RequestError {
    let value = match json.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') if json == "[]" => "an empty array",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    RequestError::Invalid { argument, value: value.into(), allowed }
}

/// A text of a request, refused where it is longer than any that is allowed can be: all of its
/// characters could be escaped, with six for one.
fn bounded(
    argument: &'static str,
    json: &str,
    most: usize,
    allowed: &'static str,
) -> Result<Option<String>, RequestError> {
    if json.len() > 6 * most + 2 && json.starts_with('"') {
        return Err(RequestError::Invalid { argument, value: "too long".into(), allowed });
    }
    Ok(serde_json::from_str(json).ok())
}

/// Reads the list, which has [`MAX_BYTES`] at most.
///
/// # Errors
/// The number of the request at fault, from 1, or 0 for the list itself, and what is wrong.
pub fn parse(json: &str) -> Result<Vec<Request>, (usize, RequestError)> {
    let list: Vec<&RawValue> =
        serde_json::from_str(json).map_err(|_| (0, invalid_kind("requests", json, LIST)))?;
    if list.is_empty() {
        return Err((0, invalid_kind("requests", json, LIST)));
    }
    list.iter()
        .enumerate()
        .map(|(n, request)| parse_one(request.get()).map_err(|error| (n + 1, error)))
        .collect()
}

fn parse_one(json: &str) -> Result<Request, RequestError> {
    let mut fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(json).map_err(|_| invalid_kind("it", json, FIELDS))?;
    let mut take = |field: &'static str| match fields.remove(field).map(RawValue::get) {
        Some("null") if field != "config" => Err(RequestError::Null(field)),
        Some("null") | None => Ok(None),
        raw => Ok(raw),
    };
    let request = Request {
        name: {
            let raw = take("name")?.ok_or(RequestError::Null("name"))?;
            bounded("name", raw, 200, "1 to 200 bytes")?
                .ok_or_else(|| invalid("name", raw, "a string"))?
        },
        key: match take("key")? {
            None => String::new(),
            Some(raw) => {
                bounded("key", raw, 1024, "at most 1024 bytes; of a longer one, pass a hash")?
                    .ok_or_else(|| invalid_kind("key", raw, "a string"))?
            }
        },
        count: match take("count")? {
            None => 1.0,
            Some(raw) => {
                raw.parse().map_err(|_| invalid("count", raw, "a number from 0 to 1e15"))?
            }
        },
        reserve: match take("reserve")? {
            None | Some("false") => false,
            Some("true") => true,
            Some(raw) => return Err(invalid("reserve", raw, "true or false")),
        },
        config: match take("config")? {
            Some(raw) if raw.len() > config::MAX_BYTES => {
                return Err(RequestError::Invalid {
                    argument: "config",
                    value: format!("{} bytes long", raw.len()),
                    allowed: "at most 10000 bytes",
                });
            }
            config => config.map(str::to_owned),
        },
    };
    match fields.into_keys().next() {
        Some(unknown) => Err(invalid("field", &Value::from(unknown).to_string(), FIELDS)),
        None => Ok(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_the_defaults_of_a_single_call() {
        let requests = parse(r#"[{"name": "a"}, {"name": "b", "key": "k", "count": 2.5, "reserve": true, "config": {"rate": 1}}]"#).unwrap();
        assert_eq!(
            requests[0],
            Request {
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
            assert_eq!(parse(json).unwrap_err().0, n, "{json}");
        }
    }

    #[test]
    fn a_text_is_refused_only_where_it_is_too_long_in_every_encoding() {
        let key = |key: String| parse(&format!(r#"[{{"name": "a", "key": "{key}"}}]"#));
        assert_eq!(key("\\u0001".repeat(1024)).unwrap()[0].key, "\u{1}".repeat(1024));
        assert_eq!(key("x".repeat(6145)).unwrap_err().0, 1);
        let config = format!(r#"[{{"name": "a", "config": "{}"}}]"#, "x".repeat(10_000));
        assert_eq!(parse(&config).unwrap_err().0, 1);
    }
}
