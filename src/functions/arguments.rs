//! Arguments as types: each is checked when it is read.

use ratelimit_core::config::{self, Interval};
use ratelimit_core::headers::Style;
use ratelimit_core::requests::{KEY_LENGTH, MAX_KEY, MAX_NAME, MAX_REQUESTS, NAME_LENGTH};
use ratelimit_core::text::{json_array, shortened};
use ratelimit_core::{ArgumentError, Micros};

use crate::schema::error::literal;
use ratelimit_pg::call::sql_types::Checked;
use ratelimit_pg::values::{Jsonb, utf8};

type Result<T> = std::result::Result<T, ArgumentError>;

/// The name of a limit.
#[derive(Clone, Copy)]
pub struct LimitName<'a>(pub &'a [u8]);

impl<'a> Checked<'a> for LimitName<'a> {
    type Base = &'a [u8];

    fn check(name: &'a [u8], _: &'static str) -> Result<LimitName<'a>> {
        valid_name(name).map(LimitName)
    }
}

/// The key of a limit.
#[derive(Clone, Copy)]
pub struct LimitKey<'a>(pub &'a [u8]);

impl<'a> Checked<'a> for LimitKey<'a> {
    type Base = &'a [u8];

    fn check(key: &'a [u8], _: &'static str) -> Result<LimitKey<'a>> {
        valid_key(key).map(LimitKey)
    }
}

/// The most bytes of a block's reason.
const MAX_REASON: usize = 200;

/// Why a key is blocked.
pub struct BlockReason<'a>(pub &'a [u8]);

impl<'a> Checked<'a> for BlockReason<'a> {
    type Base = &'a [u8];

    fn check(reason: &'a [u8], _: &'static str) -> Result<BlockReason<'a>> {
        valid_reason(reason).map(BlockReason)
    }
}

/// The largest number of rows.
pub struct MaxRows(pub i64);

impl Checked<'_> for MaxRows {
    type Base = i32;

    fn check(max_rows: i32, argument: &'static str) -> Result<MaxRows> {
        if max_rows >= 1 {
            return Ok(MaxRows(max_rows.into()));
        }
        Err(ArgumentError::invalid(argument, max_rows.to_string(), "a whole number from 1"))
    }
}

/// The length of an interval. A month has 30 days, as when PostgreSQL compares intervals.
pub struct Span(pub Micros);

impl Span {
    pub fn from_interval(interval: Interval) -> Span {
        let days = i64::from(interval.days.saturating_add(interval.months.saturating_mul(30)));
        Span(Micros(interval.micros.saturating_add(days.saturating_mul(86_400_000_000))))
    }
}

/// The age of the last call.
pub struct Idle(pub Micros);

impl Checked<'_> for Idle {
    type Base = Interval;

    fn check(idle: Interval, argument: &'static str) -> Result<Idle> {
        let Span(length) = Span::from_interval(idle);
        if length >= Micros(0) {
            return Ok(Idle(length));
        }
        Err(ArgumentError::invalid(argument, "negative", "an interval of 0 or more, or NULL"))
    }
}

/// The text of a config's field, at most as long as a config.
pub struct FieldText(pub String);

impl<'a> Checked<'a> for FieldText {
    type Base = &'a [u8];

    fn check(text: &'a [u8], argument: &'static str) -> Result<FieldText> {
        if text.len() <= config::MAX_BYTES {
            return Ok(FieldText(utf8(text).into_owned()));
        }
        let allowed = format!("at most {} bytes", config::MAX_BYTES);
        Err(ArgumentError::invalid(argument, format!("{} bytes long", text.len()), allowed))
    }
}

/// The style of headers.
pub struct HeaderStyle(pub Style);

impl<'a> Checked<'a> for HeaderStyle {
    type Base = &'a [u8];

    fn check(text: &'a [u8], argument: &'static str) -> Result<HeaderStyle> {
        let text = utf8(text);
        Style::parse(&text).map(HeaderStyle).ok_or_else(|| {
            ArgumentError::invalid(argument, literal(&shortened(&text)), Style::ALLOWED)
        })
    }
}

/// Refuses a NULL.
pub fn required<T>(argument: Option<T>, name: &'static str) -> Result<T> {
    argument.ok_or(ArgumentError::Null(name))
}

/// Refuses a name that is empty or too long.
pub fn valid_name(name: &[u8]) -> Result<&[u8]> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(name);
    }
    Err(ArgumentError::invalid("name", format!("{} bytes long", name.len()), NAME_LENGTH))
}

/// Refuses a key that is too long.
pub fn valid_key(key: &[u8]) -> Result<&[u8]> {
    if key.len() <= MAX_KEY {
        return Ok(key);
    }
    Err(key_too_long(key.len()))
}

/// The maximum number of texts in a key: each takes at least three bytes.
pub const MAX_PARTS: usize = (MAX_KEY - 1) / 3;

/// Makes a key of several texts: a JSON array without blanks, `["acme","ada"]`. Refuses a key that is too long.
pub fn joined_key(parts: &[&[u8]]) -> Result<Vec<u8>> {
    json_array(parts, MAX_KEY).map_err(key_too_long)
}

fn key_too_long(bytes: usize) -> ArgumentError {
    ArgumentError::invalid("key", format!("{bytes} bytes long"), KEY_LENGTH)
}

/// Refuses a list with more items than a list of requests may have.
pub fn refuse_long_list(argument: &'static str, list: Jsonb) -> Result<()> {
    let allowed = format!("a list of at most {MAX_REQUESTS}");
    match list.array_length().filter(|&length| length > MAX_REQUESTS) {
        Some(length) => {
            Err(ArgumentError::invalid(argument, format!("a list of {length}"), allowed))
        }
        None => Ok(()),
    }
}

/// Refuses a reason that is too long.
pub fn valid_reason(reason: &[u8]) -> Result<&[u8]> {
    if reason.len() <= MAX_REASON {
        return Ok(reason);
    }
    Err(ArgumentError::invalid(
        "reason",
        format!("{} bytes long", reason.len()),
        "at most 200 bytes",
    ))
}
