//! Builds configs from the arguments of SQL functions.

use std::fmt;

use jiff::tz::TimeZone;

use super::times::{FIRST_REQUEST, LOCAL_DATE};
use super::{ConfigError, read_definition};
use crate::fields::Fields;
use crate::kinds::{local_date, zone};
use crate::text::json_number;
use crate::{Kind, Micros};

/// An argument of [`build`].
#[derive(Clone, Debug)]
pub enum Argument {
    /// Left out.
    Absent,
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A truth value.
    Flag(bool),
    /// A period: of fixed length, or with a `timezone` of days or months.
    Interval(Interval),
    /// A start: an instant, or with a `timezone` its local date.
    Instant(Micros),
}

/// Makes arguments from the types of function parameters.
macro_rules! arguments {
    ($($type:ty: $make:expr,)*) => {
        $(impl From<$type> for Argument {
            fn from(value: $type) -> Argument {
                $make(value)
            }
        })*
    };
}

arguments! {
    f64: Argument::Number,
    bool: Argument::Flag,
    String: Argument::Text,
    Interval: Argument::Interval,
    Micros: Argument::Instant,
}

impl From<i32> for Argument {
    fn from(number: i32) -> Argument {
        Argument::Number(number.into())
    }
}

impl<T: Into<Argument>> From<Option<T>> for Argument {
    fn from(value: Option<T>) -> Argument {
        value.map_or(Argument::Absent, Into::into)
    }
}

/// An interval as in PostgreSQL: three units, because months and days have no fixed length.
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

/// Builds the config of a kind from arguments, and checks it as [`definition`](super::definition) does. An argument has
/// the name of its field; `max_reserved` is `maxReserved`, and a true `first_request` the `start` of that name. A
/// period of fixed length becomes milliseconds, with days of 24 hours.
///
/// ```
/// use ratelimit_core::Kind;
/// use ratelimit_core::config::{Interval, build};
///
/// let minute = Interval { micros: 60_000_000, ..Interval::default() };
/// let config = build(Kind::SlidingWindow, &[("rate", 10_f64.into()), ("period", minute.into())])?;
/// assert_eq!(config.to_string(), r#"{"kind":"sliding window","period":60000,"rate":10}"#);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
///
/// # Errors
/// As [`definition`](super::definition), for a float that JSON doesn't have, and for `start` with `first_request`.
pub fn build(kind: Kind, arguments: &[(&str, Argument)]) -> Result<serde_json::Value, ConfigError> {
    let given = |name| arguments.iter().find(|(other, _)| *other == name).map(|(_, given)| given);
    let timezone = match given("timezone") {
        Some(Argument::Text(name)) => Some(name),
        _ => None,
    };
    let first_request = matches!(given("first_request"), Some(Argument::Flag(true)));
    let calendar = timezone.is_some();
    let problem = |problem: String, allowed: &str| ConfigError {
        kind: Some(kind),
        calendar,
        ..ConfigError::new(problem, allowed)
    };
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut fields = vec![("kind".to_owned(), text(kind.as_str()))];
    for (name, argument) in arguments {
        let value = match argument {
            Argument::Absent => continue,
            Argument::Flag(false) if *name == "first_request" => continue,
            Argument::Flag(true) if *name == "first_request" => text(FIRST_REQUEST),
            // Its length may not be fixed: the field may refuse it.
            Argument::Interval(length) if length.months != 0 || calendar && *name == "period" => {
                text(&length.to_string())
            }
            Argument::Interval(length) => {
                let days = i64::from(length.days).saturating_mul(Micros::DAY.0);
                Micros(length.micros.saturating_add(days)).to_json().to_string()
            }
            Argument::Instant(_) if first_request => {
                let both = "\"start\" and \"first_request\" are both given";
                return Err(problem(both.into(), "one of the two"));
            }
            Argument::Instant(start) => match timezone {
                None => start.to_json().to_string(),
                Some(timezone) => {
                    let zone = zone(timezone).unwrap_or(TimeZone::UTC); // refused below
                    let Some(date) = local_date(&zone, *start) else {
                        let problem_of = format!("\"{name}\" is {}", start.to_json());
                        return Err(problem(problem_of, LOCAL_DATE.allowed));
                    };
                    text(&date.to_string())
                }
            },
            Argument::Number(number) => json_number(*number),
            Argument::Text(given) => text(given),
            Argument::Flag(flag) => flag.to_string(),
        };
        let field = match *name {
            "max_reserved" => "maxReserved",
            "first_request" => "start",
            name => name,
        };
        fields.push((field.to_owned(), value));
    }
    let fields = Fields::from_arguments(fields);
    read_definition(&fields).map_err(|error| ConfigError { calendar, ..error })?;
    Ok(fields.to_json())
}
