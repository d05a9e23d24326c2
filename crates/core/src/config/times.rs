//! Periods, starts and time zones of a config, read from JSON and written to it.

use std::ops::RangeInclusive;

use jiff::SpanRelativeTo;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};

use crate::Micros;
use crate::fields::{Given, read_by};
use crate::kinds::{Start, Unit, zone};
use crate::micros::{MAX_EPOCH, time_with_offset};
use crate::text::JsonNumber;

/// The largest period, in milliseconds (31,000 years): sums of periods stay far from overflow.
const MAX_PERIOD: f64 = 1e15;

/// The minimum and maximum of [`Save`], in milliseconds.
const MIN_SAVE: f64 = 100.0;
const MAX_SAVE: f64 = 3_600_000.0;

/// The `start` of windows that begin with a key's first request.
pub(crate) const FIRST_REQUEST: &str = "first request";

/// A period of fixed length: milliseconds, or a duration as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period(pub Micros);

read_by!(
    Period,
    concat!(
        r#"a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; "#,
        r#"a day is 24 hours; months and years only in a fixed window with "timezone""#
    ),
    |given| Some(Period(span(given, 1.0..=MAX_PERIOD)?))
);

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        JsonNumber(self.0.as_millis()).serialize(serializer)
    }
}

/// How often a limit in memory is written to the table: milliseconds, or a duration as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Save(pub Micros);

read_by!(Save, r#"100 milliseconds to 1 hour, such as "1 second" or 1000"#, |given| {
    Some(Save(span(given, MIN_SAVE..=MAX_SAVE)?))
});

/// Reads a number of milliseconds in a range, or a duration of that length.
fn span(given: Given, range: RangeInclusive<f64>) -> Option<Micros> {
    let millis = match given {
        Given::Number(millis) => millis,
        Given::Text(duration) => duration_in_millis(duration)?,
        _ => return None,
    };
    range.contains(&millis).then(|| Micros::from_millis(millis))
}

/// Reads a duration of fixed length, with days of 24 hours, truncated to whole microseconds.
fn duration_in_millis(duration: &str) -> Option<f64> {
    let span: jiff::Span = duration.parse().ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Some(duration.as_micros() as f64 / 1e3)
}

/// A period of whole days or of whole months, for windows of local dates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dates {
    pub unit: Unit,
    /// The number of units, at most 100 years.
    pub every: i64,
}

read_by!(
    Dates,
    concat!(
        r#"with "timezone", a whole number of days and weeks, or of months and years, "#,
        r#"at most 100 years, such as "7 days" or "1 month""#
    ),
    |given| match given {
        Given::Text(duration) => duration_in_dates(duration),
        _ => None,
    }
);

impl Serialize for Dates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let unit = match self.unit {
            Unit::Days => "day",
            Unit::Months => "month",
        };
        let plural = if self.every == 1 { "" } else { "s" };
        serializer.collect_str(&format_args!("{} {unit}{plural}", self.every))
    }
}

/// Reads a duration of whole days or of whole months.
fn duration_in_dates(duration: &str) -> Option<Dates> {
    let span: jiff::Span = duration.parse().ok()?;
    if !span.years(0).months(0).weeks(0).days(0).is_zero() {
        return None;
    }
    let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
    let days = i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
    match (months, days) {
        (0, 1..=36_525) => Some(Dates { unit: Unit::Days, every: days }),
        (1..=1_200, 0) => Some(Dates { unit: Unit::Months, every: months }),
        _ => None,
    }
}

read_by!(
    Start,
    concat!(
        r#"epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", "#,
        r#"or "first request""#
    ),
    |given| match given {
        Given::Number(millis) if millis.abs() <= MAX_EPOCH => {
            Some(Start::At(Micros::from_millis(millis)))
        }
        Given::Text(FIRST_REQUEST) => Some(Start::FirstRequest),
        Given::Text(time) => time_with_offset(time).map(Start::At),
        _ => None,
    }
);

impl Serialize for Start {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Start::At(at) => JsonNumber(at.as_millis()).serialize(serializer),
            Start::FirstRequest => serializer.serialize_str(FIRST_REQUEST),
            Start::Derived => serializer.serialize_none(),
        }
    }
}

/// The date from which windows of local dates are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalDate(pub Date);

impl LocalDate {
    pub(crate) const ALLOWED: &str = r#"with "timezone", a local date such as "2027-01-31""#;
}

read_by!(LocalDate, LocalDate::ALLOWED, |given| match given {
    // Only the form in which dates are written: jiff would accept others, and drop a time of day.
    Given::Text(text) => {
        text.parse().ok().filter(|date: &Date| date.to_string() == text).map(LocalDate)
    }
    _ => None,
});

impl Serialize for LocalDate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The time zone of an IANA name.
#[derive(Clone, Debug)]
pub(crate) struct ZoneName(pub TimeZone);

read_by!(
    ZoneName,
    r#"the IANA name of a time zone in its exact spelling, such as "Europe/Berlin""#,
    |given| match given {
        Given::Text(name) => zone(name).map(ZoneName),
        _ => None,
    }
);

impl Serialize for ZoneName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.iana_name().serialize(serializer)
    }
}
