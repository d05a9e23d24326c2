//! A list of requests, as an argument of `rl_limit_all`, from JSON.

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::Micros;
use crate::argument::ArgumentError;
use crate::config;
use crate::fields::{FLAG, FieldError, Fields, Reader, TEXT};
use crate::micros::time_with_offset;
use crate::text::shortened;

/// The maximum length of a name, in bytes; the minimum is one.
pub const MAX_NAME: usize = 200;
/// The allowed lengths of a name, in words.
pub const NAME_LENGTH: &str = "1 to 200 bytes";
/// The maximum length of a key, in bytes.
pub const MAX_KEY: usize = 1024;
/// The allowed lengths of a key, in words.
pub const KEY_LENGTH: &str = "at most 1024 bytes; pass a hash of a longer key";
/// The maximum number of requests in a list.
pub const MAX_REQUESTS: usize = 10_000;
/// The maximum length of a list, in bytes of JSON: 200 for each of [`MAX_REQUESTS`].
pub const MAX_BYTES: usize = 2_000_000;

/// A request as it was written; only the types are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct RawRequest {
    /// The limit's name.
    pub name: String,
    /// The key; empty if left out.
    pub key: String,
    /// Tokens; 1 if left out.
    pub count: f64,
    /// Whether the limit may go into debt; false if left out.
    pub reserve: bool,
    /// The limit's own config, as JSON.
    pub config: Option<String>,
}

/// An invalid list, or one of its requests. The error never contains a key, which may be personal, only its type.
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
            error @ ArgumentError::Empty(_) => write!(f, "{error}"),
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

/// The caller checks the range, which depends on the kind of the limit.
const COUNT: Reader<f64> = Reader {
    allowed: "a number from 0 to 1e15",
    read: |given| given.number(f64::NEG_INFINITY..=f64::INFINITY),
};

/// Reads a text, and refuses one that is too long in every encoding: the caller checks the length in the server's.
fn text(
    fields: &Fields,
    field: &'static str,
    most: usize,
    allowed: &str,
) -> Result<Option<String>, ArgumentError> {
    match fields.optional(field, &TEXT)? {
        Some(text) if text.len() > 6 * most => {
            Err(ArgumentError::invalid(field, "too long", allowed))
        }
        text => Ok(text),
    }
}

/// Reads the name and the key.
fn name_and_key(fields: &Fields) -> Result<(String, String), ArgumentError> {
    let name = text(fields, "name", MAX_NAME, NAME_LENGTH)?.ok_or(ArgumentError::Null("name"))?;
    Ok((name, text(fields, "key", MAX_KEY, KEY_LENGTH)?.unwrap_or_default()))
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
/// [`RequestError`] for JSON other than a list with items, and for the first request with a field that is unknown,
/// repeated or of a wrong type, or without a name.
pub fn parse(json: &str) -> Result<Vec<RawRequest>, RequestError> {
    let number = |(n, request): (usize, ParsedRequest)| {
        request.map_err(|InvalidRequest { error, .. }| RequestError { n: n + 1, error })
    };
    parse_each(json)?.into_iter().enumerate().map(number).collect()
}

/// A request of a list, or its error.
pub type ParsedRequest = Result<RawRequest, InvalidRequest>;

/// A request that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRequest {
    /// The limit's name, if it is a text.
    pub name: Option<String>,
    /// The key, if it is a text; empty if left out.
    pub key: Option<String>,
    /// The error.
    pub error: ArgumentError,
}

/// Reads a list of requests, each on its own, as [`parse`] reads all.
///
/// # Errors
/// [`RequestError`] for JSON other than a list with items.
pub fn parse_each(json: &str) -> Result<Vec<ParsedRequest>, RequestError> {
    let parse = |request: &&RawValue| {
        parse_one(request.get()).map_err(|error| {
            let given: Value = serde_json::from_str(request.get()).unwrap_or_default();
            let text = |field| given.get(field)?.as_str().map(str::to_owned);
            let has_no_key = given.is_object() && given.get("key").is_none();
            let key = text("key").or(has_no_key.then(String::new));
            InvalidRequest { name: text("name"), key, error }
        })
    };
    Ok(items(json, "requests", LIST)?.iter().map(parse).collect())
}

/// The items of a list that has any.
fn items<'j>(
    json: &'j str,
    argument: &'static str,
    allowed: &str,
) -> Result<Vec<&'j RawValue>, RequestError> {
    let list = serde_json::from_str(json).ok().filter(|list: &Vec<_>| !list.is_empty());
    let refused = || ArgumentError::invalid(argument, type_of(json), allowed);
    list.ok_or_else(|| RequestError { n: 0, error: refused() })
}

fn parse_one(json: &str) -> Result<RawRequest, ArgumentError> {
    let fields = Fields::from_json(json)
        .ok_or_else(|| ArgumentError::invalid("it", type_of(json), FIELDS))?;
    fields.only(&[&["name", "key", "count", "reserve", "config"]])?;
    let (name, key) = name_and_key(&fields)?;
    let count = fields.optional("count", &COUNT)?.unwrap_or(1.0);
    let reserve = fields.optional("reserve", &FLAG)?.unwrap_or(false);
    let config = fields.once("config")?.filter(|&config| config != "null").map(str::to_owned);
    if let Some(config) = config.as_ref().filter(|config| config.len() > config::MAX_BYTES) {
        let value = format!("{} bytes long", config.len());
        return Err(ArgumentError::invalid(
            "config",
            value,
            format!("at most {} bytes", config::MAX_BYTES),
        ));
    }
    Ok(RawRequest { name, key, count, reserve, config })
}

/// The outcome of a request as it was written, with or without its name and key.
#[derive(Clone, Debug, PartialEq)]
pub struct RawOutcome {
    /// The limit's name.
    pub name: String,
    /// The key; empty if left out.
    pub key: String,
    /// Whether the whole call succeeded.
    pub ok: bool,
    /// Whether its own limit denies it, or the key is blocked.
    pub is_limited: bool,
    /// Seconds.
    pub retry_after: Option<f64>,
    /// `retry_after` as a time.
    pub retry_at: Option<Micros>,
    /// Tokens left and capacity; `None` for an unlimited key.
    pub level: Option<(f64, f64)>,
    /// The time when the limit is full, or its window ends.
    pub reset_at: Option<Micros>,
    /// The limit's own config, as JSON.
    pub config: Option<String>,
}

/// The maximum length of a list of outcomes, in bytes of JSON: 500 for each of [`MAX_REQUESTS`].
pub const MAX_OUTCOMES_BYTES: usize = 5_000_000;

/// The allowed values of an outcome's `retry_after`, in words.
pub const RETRY_AFTER: &str = "a number of seconds from 0 to 1e13, or NULL";
/// The allowed values of `remaining`.
pub const REMAINING: &str = "a finite number";
/// The allowed values of `capacity`.
pub const CAPACITY: &str = "a number from 0 to 1e15";
const TIME: &str = "a time with its offset";
const LIMITED_BY: &str = "block, slots or tokens, or NULL";
const OUTCOMES: &str = "an array of the rows of rl_limit_all, as jsonb_agg(r ORDER BY n) makes it";
const OUTCOME: &str = "an object, a row of rl_limit_all";

const SECONDS: Reader<f64> =
    Reader { allowed: RETRY_AFTER, read: |given| given.number(0.0..=1e13) };

const TOKENS_LEFT: Reader<f64> =
    Reader { allowed: REMAINING, read: |given| given.number(f64::MIN..=f64::MAX) };

const MOST_TOKENS: Reader<f64> =
    Reader { allowed: CAPACITY, read: |given| given.number(0.0..=config::MAX_TOKENS) };

const INSTANT: Reader<Micros> =
    Reader { allowed: TIME, read: |given| time_with_offset(given.text()?) };

/// The reason why a request is denied.
const REASON: Reader<()> = Reader {
    allowed: LIMITED_BY,
    read: |given| matches!(given.text()?, "block" | "slots" | "tokens").then_some(()),
};

/// Reads a list of outcomes, as `jsonb_agg` makes it of the rows of `rl_limit_all`; a config may be added to each. The
/// caller checks its length.
///
/// # Errors
/// [`RequestError`] for JSON other than a list with items, and for the first outcome with a field that is missing,
/// or of a wrong type or range.
pub fn parse_outcomes(json: &str) -> Result<Vec<RawOutcome>, RequestError> {
    let parse = |(n, outcome): (usize, &&RawValue)| {
        parse_outcome(outcome.get()).map_err(|error| RequestError { n: n + 1, error })
    };
    items(json, "results", OUTCOMES)?.iter().enumerate().map(parse).collect()
}

fn parse_outcome(json: &str) -> Result<RawOutcome, ArgumentError> {
    let mut fields = Fields::from_json(json)
        .ok_or_else(|| ArgumentError::invalid("it", type_of(json), OUTCOME))?;
    fields.drop_nulls();
    // Other fields are ignored: a later version may return more.
    let (name, key) = name_and_key(&fields)?;
    let ok = fields.required("ok", &FLAG)?;
    let retry_after = fields.optional("retry_after", &SECONDS)?;
    let retry_at = fields.optional("retry_at", &INSTANT)?;
    let remaining = fields.optional("remaining", &TOKENS_LEFT)?;
    let capacity = fields.optional("capacity", &MOST_TOKENS)?;
    let reset_at = fields.optional("reset_at", &INSTANT)?;
    let is_limited = fields.optional("limited_by", &REASON)?.is_some();
    let config = fields.once("config")?.map(str::to_owned);
    let level = remaining.zip(capacity);
    match (remaining, capacity) {
        (None, Some(_)) => Err(ArgumentError::Null("remaining")),
        (Some(_), None) => Err(ArgumentError::Null("capacity")),
        _ => Ok(RawOutcome {
            name,
            key,
            ok,
            is_limited,
            retry_after,
            retry_at,
            level,
            reset_at,
            config,
        }),
    }
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
            FieldError::Invalid { field: "key", value, allowed } => {
                Self::invalid("key", type_of(&value), allowed)
            }
            FieldError::Invalid { field, value, allowed } => Self::invalid(field, value, allowed),
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

    /// A row of rl_limit_all as PostgreSQL writes it, with one field replaced or added.
    fn row(field: &str, value: &str) -> String {
        let row = r#"{"n": 1, "ok": false, "key": "u", "name": "a", "capacity": 10, "reset_at": "2027-01-01T12:00:10+00:00", "retry_at": "2027-01-01T13:00:00.5+01:00", "remaining": 0.25, "retry_after": 0.5, "limited_by": "tokens"}"#;
        let mut row: serde_json::Map<String, Value> = serde_json::from_str(row).unwrap();
        row.insert(field.into(), serde_json::from_str(value).unwrap());
        Value::Array(vec![row.into()]).to_string()
    }

    #[test]
    fn an_outcome_is_read_as_a_row_has_it() {
        let noon = Micros(1_798_804_800_000_000);
        let outcome = RawOutcome {
            name: "a".into(),
            key: "u".into(),
            ok: false,
            is_limited: true,
            retry_after: Some(0.5),
            retry_at: Some(noon.plus(Micros(500_000))),
            level: Some((0.25, 10.0)),
            reset_at: Some(noon.plus(Micros(10_000_000))),
            config: None,
        };
        assert_eq!(
            parse_outcomes(&row("of a later version", "[1]")).unwrap(),
            std::slice::from_ref(&outcome)
        );
        let config = RawOutcome { config: Some(r#"{"rate":1}"#.into()), ..outcome.clone() };
        assert_eq!(parse_outcomes(&row("config", r#"{"rate":1}"#)).unwrap(), [config]);
        // In the form of Date.toISOString.
        let zulu = row("reset_at", r#""2027-01-01T12:00:10.000Z""#);
        assert_eq!(parse_outcomes(&zulu).unwrap(), std::slice::from_ref(&outcome));
        let nulls = RawOutcome { retry_after: None, ..outcome };
        assert_eq!(
            parse_outcomes(&row("retry_after", "null")).unwrap(),
            std::slice::from_ref(&nulls)
        );
        let admitted = RawOutcome { is_limited: false, ..nulls };
        let json = row("limited_by", "null").replace("\"retry_after\":0.5", "\"retry_after\":null");
        assert_eq!(parse_outcomes(&json).unwrap(), [admitted]);
    }

    #[test]
    fn an_invalid_outcome_is_refused_by_its_field() {
        for (field, value, message) in [
            ("name", "null", "name must not be null".into()),
            ("name", "1", "name is 1 (allowed: a string)".into()),
            ("key", "7", "key is a number (allowed: a string)".into()),
            ("ok", "1", "ok is 1 (allowed: true or false)".into()),
            ("limited_by", r#""time""#, format!(r#"limited_by is "time" (allowed: {LIMITED_BY})"#)),
            ("remaining", "null", "remaining must not be null".into()),
            (
                "remaining",
                r#""Infinity""#,
                format!(r#"remaining is "Infinity" (allowed: {REMAINING})"#),
            ),
            ("capacity", "-1", format!("capacity is -1 (allowed: {CAPACITY})")),
            ("retry_after", "-1", format!("retry_after is -1 (allowed: {RETRY_AFTER})")),
            ("reset_at", "0", format!("reset_at is 0 (allowed: {TIME})")),
            ("retry_at", r#""noon""#, format!(r#"retry_at is "noon" (allowed: {TIME})"#)),
        ] {
            let json = row(field, value);
            let error = parse_outcomes(&json).unwrap_err();
            assert_eq!(error.to_string(), format!("request 1: {message}"), "{json}");
        }
        assert_eq!(parse_outcomes("[]").unwrap_err().n, 0);
        assert_eq!(
            parse_outcomes("[1]").unwrap_err().to_string(),
            format!("request 1: it is a number (allowed: {OUTCOME})")
        );
    }
}
