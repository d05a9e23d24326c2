//! The configuration of a limit: from JSON to a validated [`Limit`], and from arguments to JSON.
//!
//! A config is an object with a `kind`, and the fields of that kind:
//!
//! | field | kinds | meaning |
//! |---|---|---|
//! | `kind` | all | `"token bucket"`, `"fixed window"`, `"sliding window"`, `"sliding log"`, `"concurrency"` or `"unlimited"` |
//! | `rate` | the first four | tokens a period: more than 0, at most 1e15; of a sliding log a whole number, at most 10,000 |
//! | `period` | the first four | milliseconds, or a duration such as `"1 minute"` or `"PT1M"`: from 1 ms to 1e15 of them; a day is 24 hours |
//! | `capacity` | token bucket, fixed window | the most tokens that accumulate, 0 to 1e15; left out: `rate` |
//! | `maxReserved` | token bucket, fixed window | the largest debt of reservations, 0 to 1e15; left out: bounded by a wait of ten years |
//! | `shards` | token bucket, fixed window | into how many shards it is divided, a whole number, 1 to 1,024; left out: 1 |
//! | `start` | fixed window | where windows begin: epoch milliseconds, a time with its offset, or `"first request"`; left out: at the `phase` that [`Limit::initial_state`] is given |
//! | `timezone` | fixed window | an IANA name: windows turn on local dates of that zone. `period` is then a whole number of days, weeks, months or years, at most 100 years, and `start` a date; left out: Monday 1970-01-05 for days and weeks, 1970-01-01 for months and years |
//! | `overage` | fixed window | `true`: calls pass beyond what is there, into a debt that ends with the window; left out: `false`. Not with `maxReserved` or `shards` |
//! | `slots` | concurrency | how many leases at once, a whole number, 1 to 1,000; in memory to 100 |
//! | `ttl` | concurrency | after which time a lease expires: as `period` |
//! | `store` | all | `"table"`, or `"memory"`, which has no place for a sliding log and for shards; left out: `"table"` |
//! | `enforce` | all | `false`: a dry run, in which what would be denied passes; left out: `true` |
//! | `keyed` | all | `true`: the empty key, which is everybody's, is refused; left out: `false` |
//!
//! An unknown, missing or repeated field, a wrong type and a number out of range are a
//! [`ConfigError`]: nothing is guessed. Nothing here depends on a setting of the process or the
//! machine.

use std::fmt;
use std::ops::Deref;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::algorithm::{
    self, Calendar, Concurrency, FixedWindow, SlidingLog, SlidingWindow, TokenBucket, Unit,
    Windows, local_date, zone,
};
use crate::fields::{FieldError, Fields, Flag, TextField, Value};
use crate::numbers::{Rate, ShardCount, SlotCount, TokenCount, WholeRate};
use crate::text::{json_number, quoted, shortened};
use crate::{Kind, Limit, Micros};

pub use crate::numbers::{MAX_LOG, MAX_SHARDS, MAX_SLOTS, MAX_SLOTS_IN_MEMORY, MAX_TOKENS};

use times::{Dates, LocalDate, Period, WindowStart, ZoneName, time_with_offset};

mod times;

/// The longest config, in bytes of JSON; a sensible one has some 200.
pub const MAX_BYTES: usize = 10_000;
/// The largest epoch milliseconds of an instant, either side of 1970 (273,000 years).
const MAX_EPOCH: f64 = 8.64e15;

/// What is wrong with a config: the field, its value, and what is allowed there.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{problem} (allowed: {allowed})")]
#[non_exhaustive]
pub struct ConfigError {
    /// What stands there: `"rate" is -1`.
    pub problem: String,
    /// What may stand there: `a number greater than 0, at most 1e15`.
    pub allowed: String,
    /// The kind of the config, where it has one.
    pub kind: Option<Kind>,
    /// Whether the config has a `timezone`.
    pub calendar: bool,
}

impl ConfigError {
    /// Refuses a config of so many bytes of JSON, more than [`MAX_BYTES`].
    pub fn too_long(bytes: usize) -> ConfigError {
        let allowed = format!("at most {MAX_BYTES} bytes");
        let problem = format!("it is {bytes} bytes long");
        ConfigError { problem, allowed, kind: None, calendar: false }
    }

    /// Words what is wrong with a field, of a config of this kind or of none.
    fn of_field(error: FieldError, kind: Option<Kind>) -> ConfigError {
        let (problem, allowed) = match error {
            FieldError::Unknown { field, value, fields } => {
                let problem = match kind {
                    Some(kind) if Fields::names::<AnyConfig>().contains(&&*field) => {
                        let kind = kind.with_article();
                        format!("\"{field}\" is {value}, and {kind} has no such field")
                    }
                    _ => format!("{} is not a field", serde_json::Value::from(shortened(&field))),
                };
                (
                    problem,
                    quoted(["kind"].iter().chain(fields).chain(&["store", "enforce", "keyed"])),
                )
            }
            FieldError::Repeated { field } => {
                (format!("\"{field}\" is there more than once"), "one value".into())
            }
            FieldError::Missing { field, allowed } => (format!("\"{field}\" is missing"), allowed),
            FieldError::Invalid { field, value, allowed } => {
                (format!("\"{field}\" is {value}"), allowed)
            }
        };
        ConfigError { problem, allowed, kind, calendar: false }
    }
}

/// A config: a limit, and what the caller does with it. A [`Limit`] decides, whatever they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The limit.
    pub limit: Limit,
    /// Where its states are kept.
    pub store: StoreKind,
    /// Whether a denial is one; otherwise this is a dry run, which changes nothing and passes.
    pub enforce: bool,
    /// Whether a call without a key is refused, which would be everybody's; that is left to the caller.
    pub keyed: bool,
}

impl Definition {
    /// Checks what a call may bring that is not defined: in memory it is full again within a leap year, so that whoever
    /// may call leaves no state there for longer.
    ///
    /// # Errors
    /// It is full again later, or a lease is held for longer.
    pub fn check_in_call(&self) -> Result<(), ConfigError> {
        let (kind, time) = (self.kind(), self.time_to_full());
        if self.store == StoreKind::Table || time <= Micros::YEAR {
            return Ok(());
        }
        let days = time.0 / Micros::DAY.0;
        let (problem, what) = match kind {
            Kind::Concurrency => (format!("\"ttl\" is {days} days"), "a ttl"),
            _ => (
                format!("with its \"rate\" and \"period\" it is full again after {days} days"),
                "a time to full",
            ),
        };
        let allowed = format!(
            "{what} of at most 366 days in memory, for a config in the call; a defined limit has no such bound"
        );
        Err(ConfigError { problem, allowed, kind: Some(kind), calendar: false })
    }
}

impl Deref for Definition {
    type Target = Limit;

    fn deref(&self) -> &Limit {
        &self.limit
    }
}

/// Where the states of a limit are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In a table, with the caller's transaction.
    #[default]
    Table,
    /// In memory, whatever becomes of the transaction.
    Memory,
}

impl<'de> Deserialize<'de> for StoreKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StoreKind, D::Error> {
        deserializer.deserialize_str(TextField {
            allowed: r#""table" or "memory""#,
            read: |text| match text {
                "table" => Some(StoreKind::Table),
                "memory" => Some(StoreKind::Memory),
                _ => None,
            },
        })
    }
}

/// Reads and checks the limit of a config. Its text should be no longer than [`MAX_BYTES`], which is left to the
/// caller.
///
/// ```
/// use ratelimit_core::config;
///
/// let error = config::parse(r#"{"kind": "sliding log", "rate": 0.5, "period": "1 s"}"#).unwrap_err();
/// assert_eq!(error.problem, r#""rate" is 0.5"#);
/// assert_eq!(error.allowed, "a whole number from 1 to 10000");
/// ```
///
/// # Errors
/// [`ConfigError`] for an unknown, missing or repeated field, a wrong type, a value out of range and
/// a field that the kind does not take.
pub fn parse(json: &str) -> Result<Limit, ConfigError> {
    definition(json).map(|definition| definition.limit)
}

/// Reads and checks a whole config, as [`parse`] reads its limit.
///
/// ```
/// use ratelimit_core::config::{self, StoreKind};
///
/// let json = r#"{"kind": "sliding window", "rate": 5, "period": "1 s", "store": "memory"}"#;
/// let definition = config::definition(json)?;
/// assert_eq!((definition.store, definition.enforce), (StoreKind::Memory, true));
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
///
/// # Errors
/// As [`parse`], and for a `store` that the limit can't be kept in.
pub fn definition(json: &str) -> Result<Definition, ConfigError> {
    let fields = Fields::of_json(json).ok_or_else(|| ConfigError {
        problem: format!("it is {}", shortened(json)),
        allowed: r#"an object such as {"kind": "token bucket", "rate": 10, "period": "1 minute"}"#
            .into(),
        kind: None,
        calendar: false,
    })?;
    let calendar = fields.get("timezone").is_some();
    definition_of(fields).map_err(|error| ConfigError { calendar, ..error })
}

fn definition_of(mut fields: Fields) -> Result<Definition, ConfigError> {
    let kind = fields.take("kind");
    let store = fields.take::<Option<StoreKind>>("store");
    let enforce = fields.take::<Option<Flag>>("enforce");
    let keyed = fields.take::<Option<Flag>>("keyed");
    let kind = kind.map_err(|error| {
        // Where none is told, a field that no kind has comes first all the same.
        match fields.read::<AnyConfig>() {
            Err(unknown @ FieldError::Unknown { .. }) => ConfigError::of_field(unknown, None),
            _ => ConfigError::of_field(error, None),
        }
    })?;
    let limit = Config::read(kind, &fields).map(Limit::from)?;
    let of_field = |error| ConfigError::of_field(error, Some(kind));
    let store = store.map_err(of_field)?.unwrap_or_default();
    let enforce = enforce.map_err(of_field)?.is_none_or(|flag| flag.0);
    let keyed = keyed.map_err(of_field)?.is_some_and(|flag| flag.0);
    let refused = |field, value: String, allowed: &str| {
        of_field(FieldError::Invalid { field, value, allowed: allowed.into() })
    };
    match store {
        StoreKind::Memory if kind == Kind::SlidingLog => Err(refused(
            "store",
            r#""memory""#.into(),
            r#""table" for a sliding log, whose state is an entry a token"#,
        )),
        StoreKind::Memory if limit.shards() > 1 => Err(refused(
            "shards",
            limit.shards().to_string(),
            r#"1 where "store" is "memory", whose calls wait for no transaction"#,
        )),
        StoreKind::Memory
            if kind == Kind::Concurrency && limit.capacity() > MAX_SLOTS_IN_MEMORY.into() =>
        {
            Err(refused(
                "slots",
                limit.capacity().to_string(),
                r#"a whole number from 1 to 100 where "store" is "memory""#,
            ))
        }
        _ => Ok(Definition { limit, store, enforce, keyed }),
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_str(TextField {
            allowed: r#""token bucket", "fixed window", "sliding window", "sliding log", "concurrency" or "unlimited""#,
            read: |text| Kind::ALL.into_iter().find(|kind| kind.as_str() == text),
        })
    }
}

/// A config without its kind, each field within its range.
#[derive(Serialize)]
#[serde(untagged)]
enum Config {
    TokenBucket(TokenBucketConfig),
    FixedWindow(FixedWindowConfig),
    CalendarWindow(FixedWindowConfig<Dates, LocalDate, ZoneName>),
    SlidingWindow(SlidingWindowConfig),
    SlidingLog(SlidingLogConfig),
    Concurrency(ConcurrencyConfig),
    Unlimited(UnlimitedConfig),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TokenBucketConfig {
    rate: Rate,
    period: Period,
    capacity: Option<TokenCount>,
    max_reserved: Option<TokenCount>,
    shards: Option<ShardCount>,
}

/// With a `timezone` (`Z`), `period` and `start` are dates.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FixedWindowConfig<P = Period, S = WindowStart, Z = Option<ZoneName>> {
    rate: Rate,
    period: P,
    capacity: Option<TokenCount>,
    max_reserved: Option<TokenCount>,
    shards: Option<ShardCount>,
    start: Option<S>,
    timezone: Z,
    overage: Option<Flag>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlidingWindowConfig {
    rate: Rate,
    period: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlidingLogConfig {
    rate: WholeRate,
    period: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConcurrencyConfig {
    slots: SlotCount,
    ttl: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnlimitedConfig {}

/// The fields that any kind has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[allow(dead_code, reason = "only its names are read")]
struct AnyConfig {
    rate: IgnoredAny,
    period: IgnoredAny,
    capacity: IgnoredAny,
    max_reserved: IgnoredAny,
    shards: IgnoredAny,
    start: IgnoredAny,
    timezone: IgnoredAny,
    overage: IgnoredAny,
    slots: IgnoredAny,
    ttl: IgnoredAny,
}

impl Config {
    fn read(kind: Kind, fields: &Fields) -> Result<Config, ConfigError> {
        let config = match kind {
            Kind::TokenBucket => fields.read().map(Config::TokenBucket),
            Kind::FixedWindow if fields.get("timezone").is_some() => {
                fields.read().and_then(|config| with_overage(config, fields)).map(Config::CalendarWindow)
            }
            Kind::FixedWindow => fields.read().and_then(|config: FixedWindowConfig| {
                let config = with_overage(config, fields)?;
                match (config.start, config.shards, fields.get("shards")) {
                    (Some(WindowStart::FirstRequest), Some(ShardCount(2.0..)), Some(shards)) => {
                        Err(FieldError::Invalid {
                            field: "shards",
                            value: shards.to_string(),
                            allowed: r#"1 where "start" is "first request": a key's first request finds one of the shards only"#.into(),
                        })
                    }
                    _ => Ok(Config::FixedWindow(config)),
                }
            }),
            Kind::SlidingWindow => fields.read().map(Config::SlidingWindow),
            Kind::SlidingLog => fields.read().map(Config::SlidingLog),
            Kind::Concurrency => fields.read().map(Config::Concurrency),
            Kind::Unlimited => fields.read().map(Config::Unlimited),
        };
        config.map_err(|error| ConfigError::of_field(error, Some(kind)))
    }

    /// The config as JSON, without the fields that were left out.
    fn to_json(&self, kind: Kind) -> serde_json::Value {
        let mut config = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = config.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
            fields.insert("kind".into(), kind.as_str().into());
        }
        config
    }
}

/// Refuses what has no meaning beside an overage.
///
/// # Errors
/// [`FieldError::Invalid`].
fn with_overage<P, S, Z>(
    config: FixedWindowConfig<P, S, Z>,
    fields: &Fields,
) -> Result<FixedWindowConfig<P, S, Z>, FieldError> {
    let refused = |field, allowed: &str| {
        let value = fields.get(field).map(|value| value.to_string()).unwrap_or_default();
        Err(FieldError::Invalid { field, value, allowed: allowed.into() })
    };
    match (&config.overage, &config.max_reserved, &config.shards) {
        (Some(Flag(true)), Some(_), _) => {
            refused("maxReserved", r#"none where "overage" is true: no call waits there"#)
        }
        (Some(Flag(true)), _, Some(ShardCount(2.0..))) => {
            refused("shards", r#"1 where "overage" is true"#)
        }
        _ => Ok(config),
    }
}

impl From<Config> for Limit {
    fn from(config: Config) -> Limit {
        match config {
            Config::TokenBucket(config) => Limit::TokenBucket(TokenBucket {
                rate: config.rate.0,
                period: config.period.0,
                capacity: config.capacity.map_or(config.rate.0, |capacity| capacity.0),
                max_reserved: config.max_reserved.map(|most| most.0),
                shards: config.shards.map_or(1, |shards| shards.0 as u32),
            }),
            Config::FixedWindow(config) => {
                let start = config.start.map_or(algorithm::Start::Derived, Into::into);
                let windows = Windows::Every { period: config.period.0, start };
                config.with(windows)
            }
            Config::CalendarWindow(config) => {
                /// A Monday, so that weeks begin on one.
                const FIRST_DAY: Date = jiff::civil::date(1970, 1, 5);
                const FIRST_MONTH: Date = jiff::civil::date(1970, 1, 1);

                let Dates { unit, every } = config.period;
                let start = match (config.start, unit) {
                    (Some(LocalDate(start)), _) => start,
                    (None, Unit::Days) => FIRST_DAY,
                    (None, Unit::Months) => FIRST_MONTH,
                };
                let zone = config.timezone.0.clone();
                config.with(Windows::Calendar(Calendar { unit, every, zone, start }))
            }
            Config::SlidingWindow(config) => {
                Limit::SlidingWindow(SlidingWindow { rate: config.rate.0, period: config.period.0 })
            }
            Config::SlidingLog(config) => Limit::SlidingLog(SlidingLog {
                rate: config.rate.0 as u32,
                period: config.period.0,
            }),
            Config::Concurrency(config) => {
                Limit::Concurrency(Concurrency { slots: config.slots.0 as u32, ttl: config.ttl.0 })
            }
            Config::Unlimited(UnlimitedConfig {}) => Limit::Unlimited,
        }
    }
}

impl<P, S, Z> FixedWindowConfig<P, S, Z> {
    fn with(self, windows: Windows) -> Limit {
        Limit::FixedWindow(FixedWindow {
            rate: self.rate.0,
            windows,
            capacity: self.capacity.map_or(self.rate.0, |capacity| capacity.0),
            max_reserved: self.max_reserved.map(|most| most.0),
            shards: self.shards.map_or(1, |shards| shards.0 as u32),
            overage: self.overage.is_some_and(|overage| overage.0),
        })
    }
}

/// The earliest instant in epoch milliseconds: 4714 BC, where PostgreSQL's timestamptz begins.
const FIRST_CLOCK: f64 = -210_866_803_200_000.0;

/// Reads an instant, as the setting `ratelimit.clock` has it: a time with its offset, or epoch
/// milliseconds, from 4714 BC on. `None` for anything else.
pub fn parse_instant(text: &str) -> Option<Micros> {
    match text.parse::<f64>() {
        Ok(millis) if (FIRST_CLOCK..=MAX_EPOCH).contains(&millis) => {
            Some(Micros::from_millis(millis))
        }
        Ok(_) => None,
        Err(_) => time_with_offset(text).filter(|at| at.as_millis() >= FIRST_CLOCK),
    }
}

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

/// Makes the config of a kind from arguments, and checks it as [`parse`] does. A period of fixed
/// length is in milliseconds there, with days of 24 hours; of a concurrency limit it is the `ttl`.
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
/// As [`parse`], for a float that JSON can't hold, and for a `start` beside `first_request`.
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
    fn a_definition_wants_a_key_only_where_it_says_so() {
        for (more, keyed) in
            [("", false), (r#", "keyed": false"#, false), (r#", "keyed": true"#, true)]
        {
            let json = format!(r#"{{"kind": "unlimited"{more}}}"#);
            assert_eq!(definition(&json).unwrap().keyed, keyed, "{json}");
        }
        assert_eq!(problem(r#"{"kind": "unlimited", "keyed": null}"#), r#""keyed" is null"#);
    }

    #[test]
    fn an_error_tells_whether_the_config_has_a_timezone() {
        let json = r#"{"kind": "fixed window", "rate": 0, "period": "1 day", "timezone": "UTC"}"#;
        assert!(parse(json).unwrap_err().calendar);
        assert!(!parse(r#"{"kind": "fixed window", "rate": 0}"#).unwrap_err().calendar);
        let given = Given { timezone: Some("UTC".into()), ..Given::default() };
        assert!(build(Kind::FixedWindow, &given).unwrap_err().calendar);
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
        let config = build(Kind::FixedWindow, &given).unwrap();
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
            build(Kind::FixedWindow, &dates).unwrap().to_string(),
            r#"{"capacity":1000000000000000,"kind":"fixed window","maxReserved":0,"period":"1 month","rate":2.5,"start":"1970-01-01","timezone":"Asia/Tokyo"}"#
        );
        assert_eq!(
            build(Kind::FixedWindow, &Given { rate: f64::NAN, ..dates }).unwrap_err().problem,
            "\"rate\" is NaN"
        );
    }

    #[test]
    fn an_error_tells_the_kind_beside_field_value_and_what_is_allowed() {
        let error = |json: &str| parse(json).unwrap_err();
        let whole = error(r#"{"kind": "sliding log", "rate": 0.50, "period": 1}"#);
        assert_eq!(
            whole,
            ConfigError {
                problem: r#""rate" is 0.50"#.into(),
                allowed: "a whole number from 1 to 10000".into(),
                kind: Some(Kind::SlidingLog),
                calendar: false,
            }
        );
        let whole: Box<dyn std::error::Error> = whole.into();
        assert_eq!(
            whole.to_string(),
            r#""rate" is 0.50 (allowed: a whole number from 1 to 10000)"#
        );
        for (json, kind) in [
            ("1", None),
            (r#"{"rate": 1}"#, None),
            (r#"{"kind": "leaky bucket"}"#, None),
            (r#"{"kind": "fixed window"}"#, Some(Kind::FixedWindow)),
            (r#"{"kind": "sliding window", "shards": 2}"#, Some(Kind::SlidingWindow)),
        ] {
            assert_eq!(error(json).kind, kind, "{json}");
        }
    }

    #[test]
    fn a_repeated_field_is_refused_and_not_guessed() {
        for (field, json) in [
            (
                "kind",
                r#"{"kind": "sliding window", "kind": "sliding log", "rate": 1, "period": 1}"#,
            ),
            ("rate", r#"{"kind": "sliding log", "rate": 1, "period": 1, "r\u0061te": 2}"#),
            (
                "timezone",
                r#"{"kind": "fixed window", "rate": 1, "period": "1 day", "timezone": "UTC", "timezone": "UTC"}"#,
            ),
        ] {
            assert_eq!(problem(json), format!("\"{field}\" is there more than once"));
        }
    }

    #[test]
    fn of_several_faults_the_same_is_told_in_whatever_order_they_stand() {
        for json in [
            r#"{"kind": "token bucket", "shards": 0, "capacity": -1, "period": 1, "rate": 1}"#,
            r#"{"capacity": -1, "rate": 1, "shards": 0, "period": 1, "kind": "token bucket"}"#,
        ] {
            assert_eq!(problem(json), r#""capacity" is -1"#);
        }
        // What is no field at all comes first, also where there is no kind.
        assert_eq!(problem(r#"{"rate": 0, "Kind": "token bucket"}"#), r#""Kind" is not a field"#);
        assert_eq!(
            problem(r#"{"kind": "sliding log", "rate": 0, "capacity": 1}"#),
            r#""capacity" is 1, and a sliding log has no such field"#
        );
    }

    #[test]
    fn every_field_of_a_kind_is_known() {
        let kinds = [
            Fields::names::<TokenBucketConfig>(),
            Fields::names::<FixedWindowConfig>(),
            Fields::names::<FixedWindowConfig<Dates, LocalDate, ZoneName>>(),
            Fields::names::<SlidingWindowConfig>(),
            Fields::names::<SlidingLogConfig>(),
            Fields::names::<ConcurrencyConfig>(),
        ];
        let of_kinds: std::collections::BTreeSet<_> = kinds.into_iter().flatten().collect();
        assert_eq!(of_kinds, Fields::names::<AnyConfig>().iter().collect());
    }

    #[test]
    fn numbers_are_what_their_digits_say() {
        let rate = |digits: &str| {
            let json = format!(r#"{{"kind": "token bucket", "rate": {digits}, "period": 1}}"#);
            parse(&json).map(|limit| limit.capacity())
        };
        // Half a unit in the last place above 1, and a digit more, thousands of digits later.
        let half = "1.00000000000000011102230246251565404236316680908203125";
        assert_eq!(rate(half), Ok(1.0));
        assert_eq!(rate(&format!("{half}{}1", "0".repeat(5_000))), Ok(1.0f64.next_up()));
        let problem = rate(&"9".repeat(5_000)).unwrap_err().problem;
        assert_eq!(problem, format!(r#""rate" is {}..."#, "9".repeat(80)));
        assert!(rate(&format!("0.{}1", "0".repeat(5_000))).is_err());
    }

    #[test]
    fn durations_are_cut_to_whole_microseconds() {
        for (duration, micros) in [
            ("1 ms 999 ns", 1_000),
            ("1 ms 1 us 999 ns", 1_001),
            ("1 week 2 days 3 hours 4 minutes 5 seconds 6 ms 7 us 8 ns", 788_645_006_007),
            ("PT0.0015005S", 1_500),
        ] {
            let json =
                format!(r#"{{"kind": "sliding window", "rate": 1, "period": "{duration}"}}"#);
            assert_eq!(parse(&json).unwrap().policy().1, Some(Micros(micros)), "{duration}");
        }
    }
}
