//! The configuration of a limit: from JSON to a validated [`Limit`], and from arguments to JSON.
//!
//! Owns every range and every message about a bad config. Pure: nothing of Postgres, and nothing
//! that depends on a setting, so that the SQL functions above it are IMMUTABLE by right.

use std::collections::BTreeMap;
use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::algorithm::{
    Calendar, FixedWindow, SlidingLog, SlidingWindow, Start, TokenBucket, Unit, Windows,
    local_date, zone,
};
use crate::{Limit, Micros};

/// The largest rate, capacity, maxReserved and count, in tokens.
pub const MAX_TOKENS: f64 = 1e15;
/// The largest rate of a sliding log, which keeps an entry a token.
pub const MAX_LOG: f64 = 10_000.0;
/// The longest config, in bytes of JSON; a sensible one has some 200.
pub const MAX_BYTES: usize = 10_000;
/// The most rows that a limit is spread over.
pub const MAX_SHARDS: u32 = 1024;
/// The largest period, in milliseconds (31,000 years): sums of periods stay far from overflow.
const MAX_PERIOD: f64 = 1e15;
/// The largest epoch milliseconds of an instant, either side of 1970 (273,000 years).
pub const MAX_EPOCH: f64 = 8.64e15;

/// Every field; the sliding kinds take the first 3, a token bucket the first 6.
const FIELDS: [&str; 8] =
    ["kind", "rate", "period", "capacity", "maxReserved", "shards", "start", "timezone"];

/// What is wrong with a config (or a state, see `state`): the field, its value, and what is allowed there.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    /// What stands there: `"rate" is -1`.
    pub problem: String,
    /// What may stand there: `a number greater than 0, at most 1e15`.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (allowed: {})", self.problem, self.allowed)
    }
}

impl ConfigError {
    pub(crate) fn new(problem: impl Into<String>, allowed: impl Into<String>) -> ConfigError {
        ConfigError { problem: problem.into(), allowed: allowed.into() }
    }

    /// A field whose value, as the user wrote it, is not allowed.
    pub fn field(field: &str, value: &str, allowed: impl Into<String>) -> ConfigError {
        ConfigError::new(format!("\"{field}\" is {}", shortened(value)), allowed)
    }
}

impl ConfigError {
    /// So many bytes of JSON are more than may be.
    pub fn too_long(bytes: usize, most: usize) -> ConfigError {
        ConfigError::new(format!("it is {bytes} bytes long"), format!("at most {most} bytes"))
    }
}

/// A value cut to what fits an error message.
pub fn shortened(value: &str) -> String {
    match value.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// A float in as few digits as tell it apart, as Postgres writes it.
pub fn float_text(number: f64) -> String {
    match number.abs() {
        f64::INFINITY => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        size if size >= 1e16 => format!("{number:e}").replace('e', "e+"),
        size if size > 0.0 && size < 1e-4 => format!("{number:e}"),
        _ => number.to_string(),
    }
}

/// Names of fields as messages list them.
pub(crate) fn quoted(fields: &[&str]) -> String {
    fields.iter().map(|field| format!("\"{field}\"")).collect::<Vec<_>>().join(", ")
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

pub(crate) fn object<'a>(json: &'a str, example: &str) -> Result<Fields<'a>, ConfigError> {
    serde_json::from_str(json).map_err(|_| {
        ConfigError::new(
            format!("it is {}", shortened(json)),
            format!("an object such as {example}"),
        )
    })
}

/// A number between two bounds, read exactly as its digits say.
pub(crate) fn number(
    field: &str,
    raw: &RawValue,
    allowed: &str,
    fits: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    let text = raw.get();
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && fits(number) => Ok(number),
        _ => Err(ConfigError::field(field, text, allowed)),
    }
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

const FIRST_REQUEST: &str =
    r#"1 where "start" is "first request": a key's first request finds one of the shards only"#;

/// Reads and checks a config.
///
/// # Errors
/// [`ConfigError`] for an unknown or missing field, a wrong type, a value out of range and a field
/// that the kind does not take.
pub fn parse(json: &str) -> Result<Limit, ConfigError> {
    const EXAMPLE: &str = r#"{"kind": "token bucket", "rate": 10, "period": "1 minute"}"#;
    const KINDS: &str = r#""token bucket", "fixed window", "sliding window" or "sliding log""#;

    let fields = object(json, EXAMPLE)?;
    let kind = fields.get("kind").and_then(|raw| text(raw)).unwrap_or_default();
    let takes: Option<&[&str]> = match kind.as_str() {
        "token bucket" => Some(&FIELDS[..6]),
        "fixed window" => Some(&FIELDS),
        "sliding window" | "sliding log" => Some(&FIELDS[..3]),
        _ => None,
    };
    let allowed = takes.unwrap_or(&FIELDS);
    if let Some((field, value)) =
        fields.iter().find(|(field, _)| !allowed.contains(&field.as_str()))
    {
        let problem = if FIELDS.contains(&field.as_str()) {
            format!("\"{field}\" is {}, and a {kind} has no such field", shortened(value.get()))
        } else {
            format!("{} is not a field", Value::from(shortened(field)))
        };
        return Err(ConfigError::new(problem, quoted(allowed)));
    }
    let required = |field: &str, allowed: &str| {
        fields
            .get(field)
            .copied()
            .ok_or_else(|| ConfigError::new(format!("\"{field}\" is missing"), allowed))
    };

    let raw_kind = required("kind", KINDS)?;
    if takes.is_none() {
        return Err(ConfigError::field("kind", raw_kind.get(), KINDS));
    }

    let rate = {
        const WHOLE: &str = "a whole number from 1 to 10000";
        const POSITIVE: &str = "a number greater than 0, at most 1e15";
        if kind == "sliding log" {
            number("rate", required("rate", WHOLE)?, WHOLE, |rate| {
                (1.0..=MAX_LOG).contains(&rate) && rate.fract() == 0.0
            })?
        } else {
            number("rate", required("rate", POSITIVE)?, POSITIVE, |rate| {
                rate > 0.0 && rate <= MAX_TOKENS
            })?
        }
    };
    let tokens = |field: &str| {
        fields.get(field).copied().map(|raw| {
            number(field, raw, "a number from 0 to 1e15", |tokens| {
                (0.0..=MAX_TOKENS).contains(&tokens)
            })
        })
    };
    let capacity = tokens("capacity").transpose()?.unwrap_or(rate);
    let max_reserved = tokens("maxReserved").transpose()?;
    let shards = match fields.get("shards") {
        Some(raw) => number("shards", raw, "a whole number from 1 to 1024", |shards| {
            (1.0..=f64::from(MAX_SHARDS)).contains(&shards) && shards.fract() == 0.0
        })? as u32,
        None => 1,
    };
    let period = || period(required("period", PERIOD)?);
    Ok(match kind.as_str() {
        "token bucket" => Limit::TokenBucket(TokenBucket {
            rate,
            period: period()?,
            capacity,
            max_reserved,
            shards,
        }),
        "fixed window" => {
            let start = fields.get("start").copied();
            let windows = match fields.get("timezone") {
                Some(timezone) => {
                    Windows::Calendar(calendar(timezone, required("period", DATES)?, start)?)
                }
                None => Windows::Every {
                    period: period()?,
                    start: start.map_or(Ok(Start::Derived), instant)?,
                },
            };
            if let (Windows::Every { start: Start::FirstRequest, .. }, Some(raw), 2..) =
                (&windows, fields.get("shards"), shards)
            {
                return Err(ConfigError::field("shards", raw.get(), FIRST_REQUEST));
            }
            Limit::FixedWindow(FixedWindow { rate, windows, capacity, max_reserved, shards })
        }
        "sliding window" => Limit::SlidingWindow(SlidingWindow { rate, period: period()? }),
        _ => Limit::SlidingLog(SlidingLog { rate: rate as u32, period: period()? }),
    })
}

const PERIOD: &str = r#"a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; a day is 24 hours; months and years only in a fixed window with "timezone""#;

fn period(raw: &RawValue) -> Result<Micros, ConfigError> {
    let refuse = || ConfigError::field("period", raw.get(), PERIOD);
    let millis = match text(raw) {
        None => return number("period", raw, PERIOD, in_period).map(Micros::from_millis),
        Some(duration) => duration_in_millis(&duration).ok_or_else(refuse)?,
    };
    if in_period(millis) { Ok(Micros::from_millis(millis)) } else { Err(refuse()) }
}

fn in_period(millis: f64) -> bool {
    (1.0..=MAX_PERIOD).contains(&millis)
}

/// A duration as text, of fixed length: days are 24 hours, weeks 7 of them.
fn duration_in_millis(duration: &str) -> Option<f64> {
    let span: jiff::Span = duration.parse().ok()?;
    if span.get_months() != 0 || span.get_years() != 0 {
        return None;
    }
    let days = i128::from(span.get_weeks()) * 7 + i128::from(span.get_days());
    let seconds = (days * 24 + i128::from(span.get_hours())) * 3600
        + i128::from(span.get_minutes()) * 60
        + i128::from(span.get_seconds());
    let micros = seconds * 1_000_000
        + i128::from(span.get_milliseconds()) * 1_000
        + i128::from(span.get_microseconds())
        + i128::from(span.get_nanoseconds()) / 1_000;
    Some(micros as f64 / 1e3)
}

fn instant(raw: &RawValue) -> Result<Start, ConfigError> {
    const ALLOWED: &str = r#"epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", or "first request""#;
    match text(raw) {
        Some(start) if start == "first request" => Ok(Start::FirstRequest),
        Some(start) => time_with_offset(&start)
            .map(Start::At)
            .ok_or_else(|| ConfigError::field("start", raw.get(), ALLOWED)),
        None => number("start", raw, ALLOWED, |millis| millis.abs() <= MAX_EPOCH)
            .map(|millis| Start::At(Micros::from_millis(millis))),
    }
}

const DATES: &str = r#"with "timezone", a whole number of days and weeks, or of months and years, at most 100 years, such as "7 days" or "1 month""#;
const DATE: &str = r#"with "timezone", a local date such as "2027-01-31""#;

/// The windows of a config with a time zone.
fn calendar(
    timezone: &RawValue,
    period: &RawValue,
    start: Option<&RawValue>,
) -> Result<Calendar, ConfigError> {
    const ZONE: &str =
        r#"the IANA name of a time zone in its exact spelling, such as "Europe/Berlin""#;
    /// A Monday, so that weeks begin on one.
    const FIRST_DAY: Date = jiff::civil::date(1970, 1, 5);
    const FIRST_MONTH: Date = jiff::civil::date(1970, 1, 1);

    let refuse = |field, raw: &RawValue, allowed| ConfigError::field(field, raw.get(), allowed);
    let zone = text(timezone)
        .and_then(|name| zone(&name))
        .ok_or_else(|| refuse("timezone", timezone, ZONE))?;
    let (unit, every) = text(period)
        .and_then(|duration| duration_in_dates(&duration))
        .ok_or_else(|| refuse("period", period, DATES))?;
    let start = match (start, unit) {
        (Some(start), _) => text(start)
            // As it is written back: jiff would read more, and drop a time of day.
            .and_then(|text| text.parse::<Date>().ok().filter(|date| date.to_string() == text))
            .ok_or_else(|| refuse("start", start, DATE))?,
        (None, Unit::Days) => FIRST_DAY,
        (None, Unit::Months) => FIRST_MONTH,
    };
    Ok(Calendar { unit, every, zone, start })
}

/// A duration as text, of whole days or of whole months.
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

/// An RFC 3339 time, or the same with a space or a short offset as Postgres prints it:
/// `2027-01-01 00:00:00+00`.
fn time_with_offset(text: &str) -> Option<Micros> {
    text.parse::<jiff::Timestamp>().ok().map(|time| Micros(time.as_microsecond()))
}

/// The earliest clock in epoch milliseconds: 4714 BC, where a timestamptz begins.
const FIRST_CLOCK: f64 = -210_866_803_200_000.0;

/// An instant as `ratelimit.clock` takes it: a time with its offset, or epoch milliseconds.
pub fn parse_instant(text: &str) -> Option<Micros> {
    match text.parse::<f64>() {
        Ok(millis) if (FIRST_CLOCK..=MAX_EPOCH).contains(&millis) => {
            Some(Micros::from_millis(millis))
        }
        Ok(_) => None,
        Err(_) => time_with_offset(text).filter(|at| at.as_millis() >= FIRST_CLOCK),
    }
}

/// The fields that a builder was given, in the config's own words.
#[derive(Default)]
pub struct Given {
    pub rate: f64,
    pub period: Interval,
    pub capacity: Option<f64>,
    pub max_reserved: Option<f64>,
    pub shards: Option<i32>,
    pub start: Option<Micros>,
    pub first_request: bool,
    pub timezone: Option<String>,
}

/// An interval as Postgres has it: of three units, none of which is a number of another.
#[derive(Clone, Copy, Default)]
pub struct Interval {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (number, unit) in [(self.months, "month"), (self.days, "day")] {
            if number != 0 {
                parts.push(format!("{number} {unit}{}", if number == 1 { "" } else { "s" }));
            }
        }
        if self.micros != 0 || parts.is_empty() {
            parts.push(format!("{} s", Micros(self.micros).as_secs()));
        }
        f.write_str(&parts.join(" "))
    }
}

/// Makes the config of a kind, and checks it as [`parse`] does.
///
/// # Errors
/// As [`parse`], and for a float that JSON cannot hold.
pub fn build(kind: &str, given: &Given) -> Result<Value, ConfigError> {
    let mut config = Map::new();
    config.insert("kind".into(), kind.into());
    config.insert("rate".into(), json_number("rate", given.rate)?);
    let Interval { months, days, micros } = given.period;
    let period = if months == 0 && given.timezone.is_none() {
        const DAY: i64 = 86_400_000_000;
        let micros = micros.saturating_add(i64::from(days).saturating_mul(DAY));
        json_number("period", Micros(micros).as_millis())?
    } else {
        given.period.to_string().into() // what it may not be, the parser refuses
    };
    config.insert("period".into(), period);
    if let Some(capacity) = given.capacity {
        config.insert("capacity".into(), json_number("capacity", capacity)?);
    }
    if let Some(max_reserved) = given.max_reserved {
        config.insert("maxReserved".into(), json_number("maxReserved", max_reserved)?);
    }
    if let Some(shards) = given.shards {
        config.insert("shards".into(), shards.into());
    }
    match (given.start, given.first_request) {
        (Some(_), true) => {
            return Err(ConfigError::new(
                "\"start\" and \"first_request\" are both given",
                "one of the two",
            ));
        }
        (Some(start), false) => {
            let start = match &given.timezone {
                None => json_number("start", start.as_millis())?,
                Some(name) => {
                    let zone = zone(name).unwrap_or(TimeZone::UTC); // which the parser refuses
                    let date = local_date(&zone, start).ok_or_else(|| {
                        ConfigError::field("start", &float_text(start.as_millis()), DATE)
                    })?;
                    date.to_string().into()
                }
            };
            config.insert("start".into(), start);
        }
        (None, true) => {
            config.insert("start".into(), "first request".into());
        }
        (None, false) => {}
    }
    if let Some(timezone) = &given.timezone {
        config.insert("timezone".into(), timezone.as_str().into());
    }
    let config = Value::Object(config);
    parse(&config.to_string())?;
    Ok(config)
}

/// A float as a JSON number, a whole one without a fraction.
pub(crate) fn json_number(field: &str, number: f64) -> Result<Value, ConfigError> {
    if number.fract() == 0.0 && number.abs() <= 2f64.powi(53) {
        return Ok((number as i64).into());
    }
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| ConfigError::field(field, &float_text(number), "a finite number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(period: &str, more: &str) -> Result<Calendar, ConfigError> {
        let json = format!(
            r#"{{"kind": "fixed window", "rate": 1, "period": {period}, "timezone": "Asia/Tokyo"{more}}}"#
        );
        match parse(&json)? {
            Limit::FixedWindow(FixedWindow { windows: Windows::Calendar(calendar), .. }) => {
                Ok(calendar)
            }
            limit => panic!("{limit:?}"),
        }
    }

    fn problem(json: &str) -> String {
        parse(json).unwrap_err().problem
    }

    #[test]
    fn periods_in_every_form_are_the_same_period() {
        for period in
            [r#"60000"#, r#""1 minute""#, r#""PT1M""#, r#""60s""#, r#""1m""#, r#""00:01:00""#]
        {
            let json = format!(r#"{{"kind": "sliding window", "rate": 1, "period": {period}}}"#);
            let Limit::SlidingWindow(limit) = parse(&json).unwrap() else { panic!("{json}") };
            assert_eq!(limit.period, Micros(60_000_000), "{period}");
        }
        for (period, hours) in [(r#""1 day""#, 24), (r#""1 week""#, 168), (r#""P1DT1H""#, 25)] {
            let json = format!(r#"{{"kind": "sliding window", "rate": 1, "period": {period}}}"#);
            let Limit::SlidingWindow(limit) = parse(&json).unwrap() else { panic!("{json}") };
            assert_eq!(limit.period, Micros(hours * 3_600_000_000), "{period}");
        }
    }

    #[test]
    fn calendar_windows_are_whole_days_or_whole_months() {
        for (period, unit, every) in [
            (r#""1 day""#, Unit::Days, 1),
            (r#""P7D""#, Unit::Days, 7),
            (r#""2 weeks 1 day""#, Unit::Days, 15),
            (r#""36525 days""#, Unit::Days, 36_525),
            (r#""1 month""#, Unit::Months, 1),
            (r#""P1Y6M""#, Unit::Months, 18),
            (r#""100 years""#, Unit::Months, 1_200),
        ] {
            let calendar = calendar(period, "").unwrap();
            assert_eq!((calendar.unit, calendar.every), (unit, every), "{period}");
        }
        for period in [
            "86400000",
            r#""24 hours""#,
            r#""1 day 1 hour""#,
            r#""1 month 1 day""#,
            r#""1.5 days""#,
            r#""0 days""#,
            r#""-1 day""#,
            r#""1 day ago""#,
            r#""36526 days""#,
            r#""1201 months""#,
            r#""9999 years 1 day""#,
            r#""month""#,
        ] {
            let problem = calendar(period, "").unwrap_err().problem;
            assert_eq!(problem, format!(r#""period" is {period}"#));
        }
    }

    #[test]
    fn calendar_windows_count_from_a_date() {
        let start = |period: &str, more: &str| calendar(period, more).unwrap().start.to_string();
        assert_eq!(start(r#""1 week""#, ""), "1970-01-05");
        assert_eq!(start(r#""1 year""#, ""), "1970-01-01");
        assert_eq!(start(r#""1 day""#, r#", "start": "2028-02-29""#), "2028-02-29");
        for value in [
            "0",
            r#""first request""#,
            r#""2027-02-29""#,
            r#""20270131""#,
            r#""2027-01-31T00:00:00Z""#,
            r#""2027-01-31 00:00""#,
            r#"" 2027-01-31""#,
        ] {
            let problem = calendar(r#""1 day""#, &format!(r#", "start": {value}"#)).unwrap_err();
            assert_eq!(problem.problem, format!(r#""start" is {value}"#));
        }
    }

    #[test]
    fn instants_need_an_offset() {
        let noon = Some(Micros(1_798_804_800_000_000));
        for text in [
            "2027-01-01T12:00:00Z",
            "2027-01-01 12:00:00+00",
            "2027-01-01 13:00:00+01:00",
            "1798804800000",
        ] {
            assert_eq!(parse_instant(text), noon, "{text}");
        }
        for text in ["2027-01-01 12:00:00", "noon", "", "NaN", "inf", "1e300"] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
    }

    #[test]
    fn a_bad_field_is_named_with_its_value() {
        let with = |field: &str| {
            format!(r#"{{"kind": "token bucket", "rate": 1, "period": 1000, {field}}}"#)
        };
        assert_eq!(problem(&with(r#""capacity": -1"#)), r#""capacity" is -1"#);
        assert_eq!(problem(&with(r#""capacity": null"#)), r#""capacity" is null"#);
        assert_eq!(problem(&with(r#""maxReserved": "5""#)), r#""maxReserved" is "5""#);
        assert_eq!(problem(&with(r#""burst": 1"#)), r#""burst" is not a field"#);
        assert_eq!(
            problem(&with(r#""start": 1"#)),
            r#""start" is 1, and a token bucket has no such field"#
        );
        assert_eq!(problem(r#"{"kind": "token bucket", "period": 1}"#), r#""rate" is missing"#);
        assert_eq!(problem("[]"), "it is []");
        assert!(problem(&with(&format!(r#""capacity": 1{}"#, "0".repeat(400)))).ends_with("..."));
    }

    #[test]
    fn what_a_builder_makes_is_what_the_parser_reads() {
        let given = Given {
            rate: 2.5,
            period: Interval { micros: 1_500, ..Interval::default() },
            capacity: Some(1e15),
            max_reserved: Some(0.0),
            start: Some(Micros(-1_000)),
            ..Given::default()
        };
        let config = build("fixed window", &given).unwrap();
        assert_eq!(
            config.to_string(),
            r#"{"capacity":1000000000000000,"kind":"fixed window","maxReserved":0,"period":1.5,"rate":2.5,"start":-1}"#
        );
        // With a time zone: dates. In Tokyo the last millisecond of 1969 was in 1970.
        let dates = Given {
            period: Interval { months: 1, ..Interval::default() },
            timezone: Some("Asia/Tokyo".into()),
            ..given
        };
        assert_eq!(
            build("fixed window", &dates).unwrap().to_string(),
            r#"{"capacity":1000000000000000,"kind":"fixed window","maxReserved":0,"period":"1 month","rate":2.5,"start":"1970-01-01","timezone":"Asia/Tokyo"}"#
        );
        assert_eq!(
            build("token bucket", &Given { rate: f64::NAN, ..dates }).unwrap_err().problem,
            "\"rate\" is NaN"
        );
    }
}
