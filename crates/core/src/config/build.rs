//! Builds configs from the arguments of SQL functions.

use std::fmt;

use jiff::tz::TimeZone;

use super::times::{FIRST_REQUEST, LocalDate};
use super::{COMMON_FIELDS, ConfigError, read_definition};
use crate::fields::{Fields, Value};
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
/// the name of its field, in snake case; a true `first_request` is the `start` of that name. A period of fixed length
/// becomes milliseconds, with days of 24 hours.
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
    let mut fields = Vec::new();
    for (name, argument) in arguments {
        let (name, value) = match argument {
            Argument::Absent => continue,
            Argument::Flag(false) if *name == "first_request" => continue,
            Argument::Flag(true) if *name == "first_request" => {
                ("start", Argument::Text(FIRST_REQUEST.into()))
            }
            Argument::Interval(length) => {
                (*name, length.to_argument(calendar && *name == "period"))
            }
            Argument::Instant(_) if first_request => {
                let both = "\"start\" and \"first_request\" are both given";
                return Err(problem(both.into(), "one of the two"));
            }
            Argument::Instant(start) => match timezone {
                None => (*name, Argument::Number(start.as_millis())),
                Some(timezone) => {
                    let zone = zone(timezone).unwrap_or(TimeZone::UTC); // refused below
                    let Some(date) = local_date(&zone, *start) else {
                        let start = json_number(start.as_millis());
                        return Err(problem(format!("\"{name}\" is {start}"), LocalDate::ALLOWED));
                    };
                    (*name, Argument::Text(date.to_string()))
                }
            },
            other => (*name, other.clone()),
        };
        fields.push((camel_case(name), value));
    }
    let values = fields.iter().filter_map(|(name, argument)| match argument {
        Argument::Number(number) => Some((&**name, Value::Number(*number))),
        Argument::Text(text) => Some((&**name, Value::Text(text))),
        Argument::Flag(flag) => Some((&**name, Value::Flag(*flag))),
        _ => None,
    });
    let values: Vec<_> = values.collect();
    let with_kind = values.iter().copied().chain([("kind", Value::Text(kind.as_str()))]);
    read_definition(Fields::from_arguments(with_kind))
        .map_err(|error| ConfigError { calendar, ..error })?;
    let (common, own): (Vec<_>, Vec<_>) =
        values.into_iter().partition(|(name, _)| COMMON_FIELDS.contains(name));
    let mut json = kind
        .json(&Fields::from_arguments(own))
        .map_err(|error| ConfigError { calendar, ..ConfigError::from_field(error, Some(kind)) })?;
    if let Some(json) = json.as_object_mut() {
        json.extend(common.into_iter().map(|(name, value)| (name.into(), value.to_json())));
    }
    Ok(json)
}

impl Interval {
    /// The period in milliseconds if it has a fixed length, or else as text, which a field may refuse.
    fn to_argument(self, calendar: bool) -> Argument {
        if self.months != 0 || calendar {
            return Argument::Text(self.to_string());
        }
        let days = i64::from(self.days).saturating_mul(Micros::DAY.0);
        Argument::Number(Micros(self.micros.saturating_add(days)).as_millis())
    }
}

/// Writes `max_reserved` as `maxReserved`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (head, rest) = word.split_at(word.len().min(1));
        name + &head.to_uppercase() + rest
    })
}
