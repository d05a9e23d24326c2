//! The fields of each kind, and what they make of a limit.

use jiff::civil::Date;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::times::{Dates, LocalDate, Period, WindowStart, ZoneName};
use crate::fields::{FieldError, Fields, Flag};
use crate::kinds::{
    self, Calendar, Concurrency, FixedWindow, SlidingLog, SlidingWindow, TokenBucket, Unit, Windows,
};
use crate::numbers::{Rate, ShardCount, SlotCount, TokenCount, WholeRate};
use crate::{Kind, Limit};

/// A config without its kind, each field within its range.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Config {
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
pub(super) struct TokenBucketConfig {
    rate: Rate,
    period: Period,
    capacity: Option<TokenCount>,
    max_reserved: Option<TokenCount>,
    shards: Option<ShardCount>,
}

/// With a `timezone` (`Z`), `period` and `start` are dates.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FixedWindowConfig<P = Period, S = WindowStart, Z = Option<ZoneName>> {
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
pub(super) struct SlidingWindowConfig {
    rate: Rate,
    period: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlidingLogConfig {
    rate: WholeRate,
    period: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConcurrencyConfig {
    slots: SlotCount,
    ttl: Period,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnlimitedConfig {}

/// The fields that any kind has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[allow(dead_code, reason = "only its names are read")]
pub(super) struct AnyConfig {
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
    /// Reads the fields of a kind.
    ///
    /// # Errors
    /// As [`parse`](super::parse).
    pub(super) fn read(kind: Kind, fields: &Fields) -> Result<Config, ConfigError> {
        let config = match kind {
            Kind::TokenBucket => fields.read().map(Config::TokenBucket),
            Kind::FixedWindow if fields.get("timezone").is_some() => fields
                .read()
                .and_then(|config| with_overage(config, fields))
                .map(Config::CalendarWindow),
            Kind::FixedWindow => fields.read().and_then(|config: FixedWindowConfig| {
                let config = with_overage(config, fields)?;
                match (config.start, config.shards, fields.get("shards")) {
                    (Some(WindowStart::FirstRequest), Some(ShardCount(2.0..)), Some(shards)) => {
                        Err(FieldError::Invalid {
                            field: "shards",
                            value: shards.to_string(),
                            allowed: concat!(
                                r#"1 if "start" is "first request": "#,
                                "a key's first request reaches only one of the shards"
                            )
                            .into(),
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
    pub(super) fn to_json(&self, kind: Kind) -> serde_json::Value {
        let mut config = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = config.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
            fields.insert("kind".into(), kind.as_str().into());
        }
        config
    }
}

/// Refuses fields that have no meaning with an overage.
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
            refused("maxReserved", r#"none if "overage" is true: no call has to wait"#)
        }
        (Some(Flag(true)), _, Some(ShardCount(2.0..))) => {
            refused("shards", r#"1 if "overage" is true"#)
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
                let start = config.start.map_or(kinds::Start::Derived, Into::into);
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
