//! What users can be refused of their arguments: each type here is one of SQL, and checked where it
//! is read.

use ratelimit_core::Micros;
use ratelimit_core::config::{self, Interval};
use ratelimit_core::headers::Style;
use ratelimit_core::requests::{KEY_LENGTH, MAX_KEY, MAX_NAME, NAME_LENGTH};
use ratelimit_core::text::shortened;
use ratelimit_pg::error::{PgError as Error, Result};

use ratelimit_pg::call::sql_types::Checked;
use ratelimit_pg::values::utf8;

/// The name of a limit.
#[derive(Clone, Copy)]
pub struct LimitName<'a>(pub &'a [u8]);

impl<'a> Checked<'a> for LimitName<'a> {
    type Base = &'a [u8];

    fn check(name: &'a [u8], _: &'static str) -> Result<LimitName<'a>> {
        valid_name(name).map(LimitName)
    }
}

/// Whose limit it is.
#[derive(Clone, Copy)]
pub struct LimitKey<'a>(pub &'a [u8]);

impl<'a> Checked<'a> for LimitKey<'a> {
    type Base = &'a [u8];

    fn check(key: &'a [u8], _: &'static str) -> Result<LimitKey<'a>> {
        valid_key(key).map(LimitKey)
    }
}

/// How many rows at most.
pub struct MaxRows(pub i64);

impl Checked<'_> for MaxRows {
    type Base = i32;

    fn check(max_rows: i32, argument: &'static str) -> Result<MaxRows> {
        if max_rows >= 1 {
            return Ok(MaxRows(max_rows.into()));
        }
        Err(Error::InvalidArgument {
            argument,
            value: max_rows.to_string(),
            allowed: "a whole number from 1".into(),
        })
    }
}

/// The length of an interval. A month counts as 30 days, as PostgreSQL compares intervals.
pub struct Span(pub Micros);

impl Span {
    pub fn of(interval: Interval) -> Span {
        let days = i64::from(interval.days.saturating_add(interval.months.saturating_mul(30)));
        Span(Micros(interval.micros.saturating_add(days.saturating_mul(86_400_000_000))))
    }
}

/// For how long nothing has happened.
pub struct Idle(pub Micros);

impl Checked<'_> for Idle {
    type Base = Interval;

    fn check(idle: Interval, argument: &'static str) -> Result<Idle> {
        let Span(length) = Span::of(idle);
        if length >= Micros(0) {
            return Ok(Idle(length));
        }
        Err(Error::InvalidArgument {
            argument,
            value: "negative".into(),
            allowed: "an interval of 0 or more, or NULL".into(),
        })
    }
}

/// The name of a time zone, of no more bytes than a config can have.
pub struct LocalZone(pub String);

impl<'a> Checked<'a> for LocalZone {
    type Base = &'a [u8];

    fn check(name: &'a [u8], argument: &'static str) -> Result<LocalZone> {
        if name.len() <= config::MAX_BYTES {
            return Ok(LocalZone(utf8(name).into_owned()));
        }
        Err(Error::InvalidArgument {
            argument,
            value: format!("{} bytes long", name.len()),
            allowed: "the IANA name of a time zone".into(),
        })
    }
}

/// A style of headers.
pub struct HeaderStyle(pub Style);

impl<'a> Checked<'a> for HeaderStyle {
    type Base = &'a [u8];

    fn check(text: &'a [u8], argument: &'static str) -> Result<HeaderStyle> {
        let text = utf8(text);
        Style::parse(&text).map(HeaderStyle).ok_or_else(|| Error::InvalidArgument {
            argument,
            value: format!("'{}'", shortened(&text)),
            allowed: Style::ALLOWED.into(),
        })
    }
}

/// Refuses a NULL.
///
/// # Errors
/// 22004.
pub fn required<T>(argument: Option<T>, name: &'static str) -> Result<T> {
    argument.ok_or(Error::NullArgument(name))
}

/// Refuses a name that is empty or too long.
///
/// # Errors
/// 22023.
pub fn valid_name(name: &[u8]) -> Result<&[u8]> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(name);
    }
    Err(Error::InvalidArgument {
        argument: "name",
        value: format!("{} bytes long", name.len()),
        allowed: NAME_LENGTH.into(),
    })
}

/// Refuses a key that is too long.
///
/// # Errors
/// 22023.
pub fn valid_key(key: &[u8]) -> Result<&[u8]> {
    if key.len() <= MAX_KEY {
        return Ok(key);
    }
    Err(Error::InvalidArgument {
        argument: "key",
        value: format!("{} bytes long", key.len()),
        allowed: KEY_LENGTH.into(),
    })
}
