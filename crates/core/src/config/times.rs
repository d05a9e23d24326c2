//! Periods, starts and time zones of a config, read from JSON and written to it.

use std::fmt;

use jiff::SpanRelativeTo;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

use crate::Micros;
use crate::fields::TextField;
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

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
        struct Millis;

        impl Visitor<'_> for Millis {
            type Value = Period;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(
                    r#"a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; "#,
                    r#"a day is 24 hours; months and years only in a fixed window with "timezone""#
                ))
            }

            fn visit_f64<E: de::Error>(self, millis: f64) -> Result<Period, E> {
                if !(1.0..=MAX_PERIOD).contains(&millis) {
                    return Err(E::invalid_value(Unexpected::Float(millis), &self));
                }
                Ok(Period(Micros::from_millis(millis)))
            }

            fn visit_str<E: de::Error>(self, duration: &str) -> Result<Period, E> {
                match duration_in_millis(duration) {
                    Some(millis) => self.visit_f64(millis),
                    None => Err(E::invalid_value(Unexpected::Str(duration), &self)),
                }
            }
        }

        deserializer.deserialize_any(Millis)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        JsonNumber(self.0.as_millis()).serialize(serializer)
    }
}

/// How often a limit in memory is written to the table: milliseconds, or a duration as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Save(pub Micros);

impl<'de> Deserialize<'de> for Save {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Save, D::Error> {
        struct Millis;

        impl Visitor<'_> for Millis {
            type Value = Save;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"100 milliseconds to 1 hour, such as "1 second" or 1000"#)
            }

            fn visit_f64<E: de::Error>(self, millis: f64) -> Result<Save, E> {
                if !(MIN_SAVE..=MAX_SAVE).contains(&millis) {
                    return Err(E::invalid_value(Unexpected::Float(millis), &self));
                }
                Ok(Save(Micros::from_millis(millis)))
            }

            fn visit_str<E: de::Error>(self, duration: &str) -> Result<Save, E> {
                match duration_in_millis(duration) {
                    Some(millis @ MIN_SAVE..=MAX_SAVE) => self.visit_f64(millis),
                    _ => Err(E::invalid_value(Unexpected::Str(duration), &self)),
                }
            }
        }

        deserializer.deserialize_any(Millis)
    }
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

impl<'de> Deserialize<'de> for Dates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dates, D::Error> {
        deserializer.deserialize_str(TextField {
            allowed: concat!(
                r#"with "timezone", a whole number of days and weeks, or of months and years, "#,
                r#"at most 100 years, such as "7 days" or "1 month""#
            ),
            read: duration_in_dates,
        })
    }
}

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

/// The start of windows of fixed length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WindowStart {
    At(Micros),
    FirstRequest,
}

impl<'de> Deserialize<'de> for WindowStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WindowStart, D::Error> {
        struct Instant;

        impl Visitor<'_> for Instant {
            type Value = WindowStart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(
                    r#"epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", "#,
                    r#"or "first request""#
                ))
            }

            fn visit_f64<E: de::Error>(self, millis: f64) -> Result<WindowStart, E> {
                if millis.abs() > MAX_EPOCH {
                    return Err(E::invalid_value(Unexpected::Float(millis), &self));
                }
                Ok(WindowStart::At(Micros::from_millis(millis)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WindowStart, E> {
                if text == FIRST_REQUEST {
                    return Ok(WindowStart::FirstRequest);
                }
                time_with_offset(text)
                    .map(WindowStart::At)
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Instant)
    }
}

impl Serialize for WindowStart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WindowStart::At(at) => JsonNumber(at.as_millis()).serialize(serializer),
            WindowStart::FirstRequest => serializer.serialize_str(FIRST_REQUEST),
        }
    }
}

impl From<WindowStart> for Start {
    fn from(start: WindowStart) -> Start {
        match start {
            WindowStart::At(at) => Start::At(at),
            WindowStart::FirstRequest => Start::FirstRequest,
        }
    }
}

/// The date from which windows of local dates are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalDate(pub Date);

impl LocalDate {
    pub(crate) const ALLOWED: &str = r#"with "timezone", a local date such as "2027-01-31""#;
}

impl<'de> Deserialize<'de> for LocalDate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LocalDate, D::Error> {
        // Only the form in which dates are written: jiff would accept others, and drop a time of day.
        let exact = |text: &str| text.parse().ok().filter(|date: &Date| date.to_string() == text);
        deserializer
            .deserialize_str(TextField { allowed: LocalDate::ALLOWED, read: exact })
            .map(LocalDate)
    }
}

impl Serialize for LocalDate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The time zone of an IANA name.
#[derive(Clone, Debug)]
pub(crate) struct ZoneName(pub TimeZone);

impl<'de> Deserialize<'de> for ZoneName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ZoneName, D::Error> {
        deserializer
            .deserialize_str(TextField {
                allowed: r#"the IANA name of a time zone in its exact spelling, such as "Europe/Berlin""#,
                read: zone,
            })
            .map(ZoneName)
    }
}

impl Serialize for ZoneName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.iana_name().serialize(serializer)
    }
}
