//! The builders of configs, a function a kind.

use ratelimit_core::config::{self, Given, Interval};
use ratelimit_core::{Kind, Micros};

use super::arguments::Timezone;
use crate::pg::call::Call;
use crate::pg::call::sql_types::Json;
use crate::pg::declaration::sql_function;
use crate::pg::error::Result;

sql_function! {
    /// 22004, 22023.
    #[sql(
        NONE,
        comment = "config of a token bucket: rate tokens a period flow in steadily, up to capacity"
    )]
    fn rl_token_bucket(
        call: &Call,
        rate: f64,
        period: Interval,
        capacity: Option<f64> = "NULL",
        max_reserved: Option<f64> = "NULL",
        shards: Option<i32> = "NULL",
    ) -> Json {
        build(Kind::TokenBucket, Given {
            rate, period, capacity, max_reserved, shards, ..Given::default()
        })
    }
}

sql_function! {
    /// 22004, 22023.
    #[sql(
        NONE,
        comment = "config of a fixed window: rate tokens arrive when each window turns, up to capacity"
    )]
    fn rl_fixed_window(
        call: &Call,
        rate: f64,
        period: Interval,
        capacity: Option<f64> = "NULL",
        max_reserved: Option<f64> = "NULL",
        shards: Option<i32> = "NULL",
        start: Option<Micros> = "NULL",
        first_request: Option<bool> = "NULL",
        timezone: Option<Timezone> = "NULL",
    ) -> Json {
        build(Kind::FixedWindow, Given {
            rate,
            period,
            capacity,
            max_reserved,
            shards,
            start,
            first_request: first_request.unwrap_or(false),
            timezone: timezone.map(|timezone| timezone.0),
            ..Given::default()
        })
    }
}

sql_function! {
    /// 22004, 22023.
    #[sql(
        NONE,
        comment = "config of a sliding window: about rate tokens in any period, from two counters"
    )]
    fn rl_sliding_window(call: &Call, rate: f64, period: Interval) -> Json {
        build(Kind::SlidingWindow, Given { rate, period, ..Given::default() })
    }
}

sql_function! {
    /// 22004, 22023.
    #[sql(NONE, comment = "config of a sliding log: at most rate tokens in any period, exactly")]
    fn rl_sliding_log(call: &Call, rate: f64, period: Interval) -> Json {
        build(Kind::SlidingLog, Given { rate, period, ..Given::default() })
    }
}

sql_function! {
    /// 22004, 22023.
    #[sql(
        NONE,
        comment = "config of a concurrency limit: at most slots leases at once, each of which expires after ttl"
    )]
    fn rl_concurrency(call: &Call, slots: i32, ttl: Interval) -> Json {
        build(Kind::Concurrency, Given { slots, period: ttl, ..Given::default() })
    }
}

sql_function! {
    /// No errors.
    #[sql(NONE, comment = "config of no limit, for keys and names that are exempt")]
    fn rl_unlimited(call: &Call) -> Json {
        build(Kind::Unlimited, Given::default())
    }
}

/// Builds a config.
///
/// # Errors
/// 22023: an invalid one.
fn build(kind: Kind, given: Given) -> Result<Json> {
    Ok(Json::new(config::build(kind, &given)?))
}
