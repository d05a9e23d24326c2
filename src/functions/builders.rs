//! Builds configs, a function for each kind.

use ratelimit_core::config::{self, Given, Interval};
use ratelimit_core::{Kind, Micros};

use super::arguments::LocalZone;
use crate::declaration::sql_function;
use crate::schema::error::Result;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::Json;

sql_function! {
    /// 22004, 22023.
    #[effect(Computes)]
    fn rl_token_bucket(
        call: &Call,
        rate: f64,
        period: Interval,
        capacity: Option<f64>,
        max_reserved: Option<f64>,
        shards: Option<i32>,
    ) -> Json {
        build(Kind::TokenBucket, Given {
            rate, period, capacity, max_reserved, shards, ..Given::default()
        })
    }
}

sql_function! {
    /// 22004, 22023.
    #[effect(Computes)]
    fn rl_fixed_window(
        call: &Call,
        rate: f64,
        period: Interval,
        capacity: Option<f64>,
        max_reserved: Option<f64>,
        shards: Option<i32>,
        start: Option<Micros>,
        first_request: Option<bool>,
        timezone: Option<LocalZone>,
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
    #[effect(Computes)]
    fn rl_sliding_window(call: &Call, rate: f64, period: Interval) -> Json {
        build(Kind::SlidingWindow, Given { rate, period, ..Given::default() })
    }
}

sql_function! {
    /// 22004, 22023.
    #[effect(Computes)]
    fn rl_sliding_log(call: &Call, rate: f64, period: Interval) -> Json {
        build(Kind::SlidingLog, Given { rate, period, ..Given::default() })
    }
}

sql_function! {
    /// 22004, 22023.
    #[effect(Computes)]
    fn rl_concurrency(call: &Call, slots: i32, ttl: Interval) -> Json {
        build(Kind::Concurrency, Given { slots, period: ttl, ..Given::default() })
    }
}

sql_function! {
    /// No errors.
    #[effect(Computes)]
    fn rl_unlimited(call: &Call) -> Json {
        build(Kind::Unlimited, Given::default())
    }
}

/// Builds a config; 22023 if it is invalid.
fn build(kind: Kind, given: Given) -> Result<Json> {
    Ok(Json::new(config::build(kind, &given)?))
}
