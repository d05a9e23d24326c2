//! Returns the HTTP headers for the outcome of one limit or of several.

use std::ops::RangeInclusive;
use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::headers::{self, CallOutcome, Item};
use ratelimit_core::requests::{self, CAPACITY, REMAINING, RETRY_AFTER, RawOutcome};
use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::error::LimiterError;

use super::arguments::{
    HeaderStyle, LimitKey, LimitName, list_json, required, valid_key, valid_name,
};
use crate::cache::definitions;
use crate::declaration::sql_function;
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::Call;
use ratelimit_pg::call::composite::Composite;
use ratelimit_pg::call::sql_types::{Json, Timestamptz, finite};
use ratelimit_pg::clock;
use ratelimit_pg::values::{Jsonb, jsonb_from_json, server_text, utf8_bytes};

sql_function! {
    /// 22004; 22023, also for a row without a required column; 42704.
    #[effect(Reads)]
    fn rl_headers(
        call: &Call,
        name: LimitName,
        result: Composite,
        key: LimitKey,
        style: HeaderStyle,
        config: Option<Jsonb>,
    ) -> Json {
        let (outcome, now) = outcome(&result)?;
        let definition = match config {
            Some(config) => definitions::inline(config)?,
            None => catalog::with(call.function(), TableLock::Read, |catalog| {
                definitions::of_key(catalog, name.0, key.0)
            })?,
        };
        let now = now.unwrap_or_else(current_time);
        Ok(Json::new(headers::headers(style.0, utf8_bytes(name.0), &definition.limit, &outcome, now)))
    }
}

sql_function! {
    /// As `rl_headers`, with the number of the request.
    #[effect(Reads)]
    fn rl_headers_all(call: &Call, results: Jsonb, style: HeaderStyle) -> Json {
        let (json, _larger) = list_json("results", results, requests::MAX_OUTCOMES_BYTES)?;
        let outcomes = requests::parse_outcomes(json)?;
        let definitions = catalog::with(call.function(), TableLock::Read, |catalog| {
            let in_request = |n: usize, error: Error| Error::from(LimiterError::in_request(n + 1, error));
            let find = |(n, outcome)| definition(catalog, outcome).map_err(|error| in_request(n, error));
            outcomes.iter().enumerate().map(find).collect::<Result<Vec<_>>>()
        })?;
        let times: Vec<Option<Micros>> = outcomes
            .iter()
            .map(|outcome| time_of_call(outcome.retry_at, seconds(outcome.retry_after)))
            .collect();
        let mut others = times.iter().copied().flatten();
        let common = others.next().unwrap_or_else(current_time);
        let items = outcomes.iter().zip(&definitions).zip(times).map(|((outcome, definition), now)| {
            let (remaining, capacity) = outcome.level.unwrap_or((f64::INFINITY, f64::INFINITY));
            Item {
                name: outcome.name.as_bytes(),
                limit: &definition.limit,
                outcome: CallOutcome {
                    ok: outcome.ok,
                    retry_after: seconds(outcome.retry_after),
                    remaining,
                    capacity,
                    reset_at: outcome.reset_at.filter(is_known),
                },
                denies: !outcome.ok && outcome.is_limited && definition.enforce,
                now: now.unwrap_or(common),
            }
        });
        Ok(Json::new(headers::headers_all(style.0, &items.collect::<Vec<_>>())))
    }
}

/// Finds the definition for the name and key of an outcome, unless its config is given. 22004, 22023, 42704.
fn definition(catalog: &Catalog, outcome: &RawOutcome) -> Result<Rc<Definition>> {
    let (name, key) = (server_text(&outcome.name), server_text(&outcome.key));
    let (name, key) = (valid_name(&name)?, valid_key(&key)?);
    match &outcome.config {
        Some(config) => definitions::inline(jsonb_from_json(config)),
        None => definitions::of_key(catalog, name, key),
    }
}

/// In whole milliseconds, as the times of an outcome: 60 seconds must not become 61.
fn current_time() -> Micros {
    clock::now().ceil_to_millis()
}

/// The latest time stands for all later ones.
fn is_known(at: &Micros) -> bool {
    *at < Micros::LATEST_SHOWN
}

fn seconds(wait: Option<f64>) -> Option<Micros> {
    wait.map(|seconds| Micros::from_millis(seconds * 1e3))
}

/// The time of an outcome's call, if it has one.
fn time_of_call(retry_at: Option<Micros>, retry_after: Option<Micros>) -> Option<Micros> {
    retry_at.filter(is_known).zip(retry_after).map(|(at, wait)| at.minus(wait))
}

/// Reads a result, possibly hand-made, and the time of its call, if known. 22004, 22023.
fn outcome(result: &Composite) -> Result<(CallOutcome, Option<Micros>)> {
    const ALLOWED: &str = "a row with ok, retry_after, retry_at, remaining, capacity and reset_at, as rl_limit() returns it";
    let number = |column| result.field::<f64>(column, ALLOWED);
    let time = |column| result.field::<Timestamptz>(column, ALLOWED);
    let ok = result.field::<bool>(c"ok", ALLOWED)?;
    let (retry_after, retry_at) = (number(c"retry_after")?, time(c"retry_at")?);
    let (remaining, capacity) = (number(c"remaining")?, number(c"capacity")?);
    let reset_at = time(c"reset_at")?;

    let within = |value, argument, range: RangeInclusive<f64>, allowed: &str| match value {
        Some(value) if !range.contains(&value) => {
            Err(Error::from(ArgumentError::invalid(argument, float_text(value), allowed)))
        }
        value => Ok(value),
    };
    let finite = |at: Option<Timestamptz>, argument| {
        at.map(|at| finite(clock::instant(at.0), argument)).transpose()
    };
    let ok = required(ok, "result.ok")?;
    let retry_after = seconds(within(retry_after, "result.retry_after", 0.0..=1e13, RETRY_AFTER)?);
    let retry_at = finite(retry_at, "result.retry_at")?;
    let remaining = within(remaining, "result.remaining", f64::MIN..=f64::MAX, REMAINING)?;
    let capacity = within(capacity, "result.capacity", 0.0..=MAX_TOKENS, CAPACITY)?;
    let (remaining, capacity) = match (remaining, capacity) {
        (None, None) => (f64::INFINITY, f64::INFINITY), // without a limit
        _ => (required(remaining, "result.remaining")?, required(capacity, "result.capacity")?),
    };
    let outcome = CallOutcome {
        ok,
        retry_after,
        remaining,
        capacity,
        reset_at: finite(reset_at, "result.reset_at")?.filter(is_known),
    };
    Ok((outcome, time_of_call(retry_at, retry_after)))
}
