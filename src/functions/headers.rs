//! Returns the HTTP headers for an outcome.

use std::ops::RangeInclusive;

use ratelimit_core::config::MAX_TOKENS;
use ratelimit_core::headers;
use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, Micros};

use super::answers::RlResult;
use super::arguments::{HeaderStyle, LimitName, required};
use crate::cache::definitions;
use crate::declaration::sql_function;
use crate::schema::catalog::{self, TableLock};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::Call;
use ratelimit_pg::call::composite::Composite;
use ratelimit_pg::call::sql_types::{Json, finite};
use ratelimit_pg::clock;
use ratelimit_pg::values::{Jsonb, utf8_bytes};

sql_function! {
    /// 22004, 22023, 42704. The result has no key, so an override does not count.
    #[effect(Reads)]
    fn rl_headers(
        call: &Call,
        name: LimitName,
        result: Composite<RlResult>,
        style: HeaderStyle,
        config: Option<Jsonb>,
    ) -> Json {
        let (outcome, now) = outcome(&result)?;
        let definition = match config {
            Some(config) => definitions::inline(config)?,
            None => catalog::with(call.function(), TableLock::Read, |catalog| {
                definitions::of_name(catalog, name.0)
            })?,
        };
        // In whole milliseconds, like the times of the outcome: 60 seconds must not become 61.
        let now = now.unwrap_or_else(|| clock::now().ceil_to_millis());
        Ok(Json::new(headers::headers(style.0, utf8_bytes(name.0), &definition.limit, &outcome, now)))
    }
}

/// Reads an rl_result, which may be hand-made, and the time of its call, if it has one. 22004, 22023; 42804: the type's
/// columns were altered.
fn outcome(result: &Composite<RlResult>) -> Result<(headers::CallOutcome, Option<Micros>)> {
    let number =
        |column, argument, range: RangeInclusive<f64>, allowed: &str| match result.float(column)? {
            Some(value) if !range.contains(&value) => {
                Err(Error::from(ArgumentError::invalid(argument, float_text(value), allowed)))
            }
            value => Ok(value),
        };
    let time = |column, argument| -> Result<Option<Micros>> {
        Ok(result.timestamptz(column)?.map(|at| finite(at, argument)).transpose()?)
    };
    let ok = required(result.bool(c"ok")?, "result.ok")?;
    const RETRY_AFTER: &str = "a number of seconds from 0 to 1e13, or NULL";
    let retry_after = number(c"retry_after", "result.retry_after", 0.0..=1e13, RETRY_AFTER)?
        .map(|seconds| Micros::from_millis(seconds * 1e3));
    let retry_at = time(c"retry_at", "result.retry_at")?;
    // The latest time stands for all later ones.
    let is_known = |at: &Micros| *at < Micros::LATEST_SHOWN;
    let remaining =
        number(c"remaining", "result.remaining", f64::MIN..=f64::MAX, "a finite number")?;
    let capacity =
        number(c"capacity", "result.capacity", 0.0..=MAX_TOKENS, "a number from 0 to 1e15")?;
    let (remaining, capacity) = match (remaining, capacity) {
        (None, None) => (f64::INFINITY, f64::INFINITY), // without a limit
        _ => (required(remaining, "result.remaining")?, required(capacity, "result.capacity")?),
    };
    let outcome = headers::CallOutcome {
        ok,
        retry_after,
        remaining,
        capacity,
        reset_at: time(c"reset_at", "result.reset_at")?.filter(is_known),
    };
    let retry = retry_at.filter(is_known).zip(retry_after);
    Ok((outcome, retry.map(|(at, wait)| at.minus(wait))))
}
