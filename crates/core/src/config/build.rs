//! From arguments to a config.

use std::fmt;

use jiff::tz::TimeZone;

use super::ConfigError;
use super::kinds::Config;
use super::times::LocalDate;
use crate::fields::{Fields, Value};
use crate::kinds::{local_date, zone};
use crate::text::json_number;
use crate::{Kind, Micros};

/// The arguments of [`build`]: the fields of a config, typed.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// `rate`, in tokens a period.
    pub rate: f64,
    /// `period`: of fixed length, or of days or months where there is a `timezone`.
    pub period: Interval,
    /// `capacity`, in tokens.
    pub capacity: Option<f64>,
    /// `maxReserved`, in tokens.
    pub max_reserved: Option<f64>,
    /// `shards`.
    pub shards: Option<i32>,
    /// `start`, as an instant; with a `timezone`, the local date of it.
    pub start: Option<Micros>,
    /// Whether `start` is `"first request"`.
    pub first_request: bool,
    /// `timezone`, as an IANA name.
    pub timezone: Option<String>,
    /// `slots`.
    pub slots: i32,
}

/// An interval as PostgreSQL has it: of three units, none of which is a number of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Calendar months.
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
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

/// Builds the config of a kind from arguments, and checks it as [`parse`](super::parse) does. A period of fixed
/// length becomes milliseconds, with days of 24 hours; for a concurrency limit it is the `ttl`.
///
/// ```
/// use ratelimit_core::Kind;
/// use ratelimit_core::config::{Given, Interval, build};
///
/// let minute = Interval { micros: 60_000_000, ..Interval::default() };
/// let config = build(Kind::SlidingWindow, &Given { rate: 10.0, period: minute, ..Given::default() })?;
/// assert_eq!(config.to_string(), r#"{"kind":"sliding window","period":60000,"rate":10}"#);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
///
/// # Errors
/// As [`parse`](super::parse), for a float that JSON can't hold, and for `start` with `first_request`.
pub fn build(kind: Kind, given: &Given) -> Result<serde_json::Value, ConfigError> {
    let calendar = given.timezone.is_some();
    let problem = |problem: String, allowed: &str| ConfigError {
        problem,
        allowed: allowed.into(),
        kind: Some(kind),
        calendar,
    };
    let Interval { months, days, micros } = given.period;
    let dates = given.period.to_string();
    let period = if months == 0 && given.timezone.is_none() {
        const DAY: i64 = 86_400_000_000;
        let micros = micros.saturating_add(i64::from(days).saturating_mul(DAY));
        Value::Number(Micros(micros).as_millis())
    } else {
        Value::Text(&dates) // what they may not be is refused below
    };
    let date;
    let start = match (given.start, given.first_request, &given.timezone) {
        (Some(_), true, _) => {
            let both = "\"start\" and \"first_request\" are both given";
            return Err(problem(both.into(), "one of the two"));
        }
        (Some(start), false, None) => Some(Value::Number(start.as_millis())),
        (Some(start), false, Some(name)) => {
            let zone = zone(name).unwrap_or(TimeZone::UTC); // which is refused below
            let Some(local) = local_date(&zone, start) else {
                let start = json_number(start.as_millis());
                return Err(problem(format!("\"start\" is {start}"), LocalDate::ALLOWED));
            };
            date = local.to_string();
            Some(Value::Text(&date))
        }
        (None, true, _) => Some(Value::Text("first request")),
        (None, false, _) => None,
    };
    let fields = match kind {
        Kind::Unlimited => Fields::of_arguments([]),
        Kind::Concurrency => Fields::of_arguments([
            ("slots", Some(Value::Number(given.slots.into()))),
            ("ttl", Some(period)),
        ]),
        _ => Fields::of_arguments([
            ("rate", Some(Value::Number(given.rate))),
            ("period", Some(period)),
            ("capacity", given.capacity.map(Value::Number)),
            ("maxReserved", given.max_reserved.map(Value::Number)),
            ("shards", given.shards.map(|shards| Value::Number(shards.into()))),
            ("start", start),
            ("timezone", given.timezone.as_deref().map(Value::Text)),
        ]),
    };
    Config::read(kind, &fields)
        .map(|config| config.to_json(kind))
        .map_err(|error| ConfigError { calendar, ..error })
}
