//! Periods, starts and time zones of a config.

use std::ops::RangeInclusive;

use jiff::SpanRelativeTo;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::Micros;
use crate::fields::{Given, Reader};
use crate::kinds::{Start, Unit, zone};
use crate::micros::{MAX_EPOCH, time_with_offset};

/// The largest period, in milliseconds (31,000 years): sums of periods stay far from overflow.
const MAX_PERIOD: f64 = 1e15;

/// The minimum and maximum of [`SAVE`], in milliseconds.
const MIN_SAVE: f64 = 100.0;
const MAX_SAVE: f64 = 3_600_000.0;

/// The `start` of windows that begin with a key's first request.
pub(crate) const FIRST_REQUEST: &str = "first request";

/// A period of fixed length: milliseconds, or a duration as text.
pub(crate) const PERIOD: Reader<Micros> = Reader {
    allowed: concat!(
        r#"a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; "#,
        r#"a day is 24 hours; months and years only in a fixed window with "timezone""#
    ),
    read: |given| span(given, 1.0..=MAX_PERIOD),
};

/// How often a limit in memory is written to the table: milliseconds, or a duration as text.
pub(crate) const SAVE: Reader<Micros> = Reader {
    allowed: r#"100 milliseconds to 1 hour, such as "1 second" or 1000"#,
    read: |given| span(given, MIN_SAVE..=MAX_SAVE),
};

/// Reads a number of milliseconds in a range, or a duration of that length.
fn span(given: Given, range: RangeInclusive<f64>) -> Option<Micros> {
    let given = match given {
        Given::Text(duration) => Given::Number(duration_in_millis(duration)?),
        given => given,
    };
    given.number(range).map(Micros::from_millis)
}

/// Reads a duration of fixed length, with days of 24 hours, truncated to whole microseconds.
fn duration_in_millis(duration: &str) -> Option<f64> {
    let span: jiff::Span = duration.parse().ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Some(duration.as_micros() as f64 / 1e3)
}

/// A period of whole days or of whole months, at most 100 years, for windows of local dates.
pub(crate) const DATES: Reader<(Unit, i64)> = Reader {
    allowed: concat!(
        r#"with "timezone", a whole number of days and weeks, or of months and years, "#,
        r#"at most 100 years, such as "7 days" or "1 month""#
    ),
    read: |given| duration_in_dates(given.text()?),
};

/// Reads a duration of whole days or of whole months.
fn duration_in_dates(duration: &str) -> Option<(Unit, i64)> {
    let span: jiff::Span = duration.parse().ok()?;
    if !span.years(0).months(0).weeks(0).days(0).is_zero() {
        return None;
    }
    let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
    let days = i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
    match (months, days) {
        (0, 1..=36_525) => Some((Unit::Days, days)),
        (1..=1_200, 0) => Some((Unit::Months, months)),
        _ => None,
    }
}

/// The start of windows of fixed length.
pub(crate) const START: Reader<Start> = Reader {
    allowed: concat!(
        r#"epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", "#,
        r#"or "first request""#
    ),
    read: |given| match given {
        Given::Text(FIRST_REQUEST) => Some(Start::FirstRequest),
        Given::Text(time) => time_with_offset(time).map(Start::At),
        given => {
            let millis = given.number(-MAX_EPOCH..=MAX_EPOCH)?;
            Some(Start::At(Micros::from_millis(millis)))
        }
    },
};

/// The date from which windows of local dates are counted.
pub(crate) const LOCAL_DATE: Reader<Date> = Reader {
    allowed: r#"with "timezone", a local date such as "2027-01-31""#,
    read: |given| {
        let text = given.text()?;
        // Only the form in which dates are written: jiff would accept others, and drop a time of day.
        text.parse().ok().filter(|date: &Date| date.to_string() == text)
    },
};

/// The time zone of an IANA name.
pub(crate) const ZONE: Reader<TimeZone> = Reader {
    allowed: r#"the IANA name of a time zone in its exact spelling, such as "Europe/Berlin""#,
    read: |given| zone(given.text()?),
};
