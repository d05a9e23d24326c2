//! Arguments as types: each is checked when it is read.

use std::ops::RangeInclusive;

use ratelimit_core::config::{self, Interval};
use ratelimit_core::headers::Style;
use ratelimit_core::requests::{KEY_LENGTH, MAX_KEY, MAX_NAME, MAX_REQUESTS, NAME_LENGTH};
use ratelimit_core::text::{json_array, shortened};
use ratelimit_core::{ArgumentError, Micros};

use crate::schema::error::{self, literal};
use ratelimit_pg::call::sql_types::Checked;
use ratelimit_pg::interrupts::larger_reserve;
use ratelimit_pg::oom_reserve::Larger;
use ratelimit_pg::values::{Jsonb, utf8};

type Result<T> = std::result::Result<T, ArgumentError>;

/// Declares texts that are checked when they are read.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $check:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name<'a>(pub &'a [u8]);

        impl<'a> Checked<'a> for $name<'a> {
            type Base = &'a [u8];

            fn check(text: &'a [u8], _: &'static str) -> Result<$name<'a>> {
                $check(text).map($name)
            }
        }
    )*};
}

texts! {
    /// The name of a limit.
    LimitName: valid_name;
    /// The key of a limit.
    LimitKey: valid_key;
    /// Why a key is blocked.
    BlockReason: valid_reason;
    /// The id of a hold, chosen by the caller.
    HoldId: valid_hold_id;
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

/// Returns the length of an interval, unless there is a reason to refuse it; `allowed`: in words. A month has 30 days,
/// as when PostgreSQL compares intervals.
pub fn length(
    interval: Interval,
    argument: &'static str,
    refused: impl FnOnce(Micros) -> Option<&'static str>,
    allowed: &str,
) -> Result<Micros> {
    let days = i64::from(interval.days.saturating_add(interval.months.saturating_mul(30)));
    let length = Micros(interval.micros.saturating_add(days.saturating_mul(86_400_000_000)));
    match refused(length) {
        None => Ok(length),
        Some(value) => Err(ArgumentError::invalid(argument, value, allowed)),
    }
}

/// The age of the last call.
pub struct Idle(pub Micros);

impl Checked<'_> for Idle {
    type Base = Interval;

    fn check(idle: Interval, argument: &'static str) -> Result<Idle> {
        let refused = |length| (length < Micros(0)).then_some("negative");
        length(idle, argument, refused, "an interval of 0 or more, or NULL").map(Idle)
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
        Err(wrong_length(argument, text.len(), format!("at most {} bytes", config::MAX_BYTES)))
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

/// Refuses a text of another length, in bytes; `allowed`: in words.
fn of_length<'t>(
    argument: &'static str,
    text: &'t [u8],
    lengths: RangeInclusive<usize>,
    allowed: &str,
) -> Result<&'t [u8]> {
    match lengths.contains(&text.len()) {
        true => Ok(text),
        false => Err(wrong_length(argument, text.len(), allowed)),
    }
}

fn wrong_length(argument: &'static str, bytes: usize, allowed: impl Into<String>) -> ArgumentError {
    ArgumentError::invalid(argument, format!("{bytes} bytes long"), allowed)
}

/// Refuses a name that is empty or too long.
pub fn valid_name(name: &[u8]) -> Result<&[u8]> {
    of_length("name", name, 1..=MAX_NAME, NAME_LENGTH)
}

/// Refuses a key that is too long.
pub fn valid_key(key: &[u8]) -> Result<&[u8]> {
    of_length("key", key, 0..=MAX_KEY, KEY_LENGTH)
}

/// Refuses a reason that is too long.
pub fn valid_reason(reason: &[u8]) -> Result<&[u8]> {
    of_length("reason", reason, 0..=200, "at most 200 bytes")
}

fn valid_hold_id(id: &[u8]) -> Result<&[u8]> {
    of_length("id", id, 1..=200, "1 to 200 bytes, or NULL")
}

/// The maximum number of texts in a key: each takes at least three bytes.
pub const MAX_PARTS: usize = (MAX_KEY - 1) / 3;

/// Makes a key of several texts: a JSON array without blanks, `["acme","ada"]`. Refuses a key that is too long.
pub fn joined_key(parts: &[&[u8]]) -> Result<Vec<u8>> {
    json_array(parts, MAX_KEY).map_err(|bytes| wrong_length("key", bytes, KEY_LENGTH))
}

/// The JSON of a list, and a larger memory reserve while it is read. 22023: it has more than `most` bytes, or more
/// items than a list of requests may have.
pub fn list_json(
    argument: &'static str,
    list: Jsonb,
    most: usize,
) -> error::Result<(&'static str, Option<Larger>)> {
    if let Some(length) = list.array_length().filter(|&length| length > MAX_REQUESTS) {
        let (value, allowed) =
            (format!("a list of {length}"), format!("a list of at most {MAX_REQUESTS}"));
        return Err(ArgumentError::invalid(argument, value, allowed).into());
    }
    let json = list.to_exact_json(argument, most)?;
    Ok((json, larger_reserve(json.len())))
}
