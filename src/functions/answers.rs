//! Converts answers to the columns of result rows; times and waits are rounded up.

use ratelimit_core::Micros;
use ratelimit_limiter::request::{Answer, LimitedBy, Request};

use crate::schema::error::Error;
use ratelimit_pg::call::sql_types::{Constant, Timestamptz, constant_text, sql_row};
use ratelimit_pg::clock::to_timestamptz;
use ratelimit_pg::values::utf8;

sql_row! {
    /// The outcome of a call.
    pub struct RlResult as "@extschema@.rl_result" {
        ok: bool,
        ..outcome: Outcome,
    }
}

sql_row! {
    /// How a limit is after a call, and when to try again.
    #[derive(Default)]
    pub struct Outcome {
        retry_after: Option<f64>,
        retry_at: Option<Timestamptz>,
        remaining: Option<f64>,
        capacity: Option<f64>,
        reset_at: Option<Timestamptz>,
        limited_by: Option<Constant>,
    }
}

impl From<&Answer> for RlResult {
    fn from(answer: &Answer) -> RlResult {
        RlResult { ok: answer.ok, outcome: answer.into() }
    }
}

impl From<&Answer> for Outcome {
    #[inline]
    fn from(answer: &Answer) -> Outcome {
        let (retry_after, retry_at) = retry(answer.now, answer.retry_after, Micros::ceil_to_millis);
        Outcome {
            retry_after,
            retry_at,
            remaining: finite(answer.level.remaining),
            capacity: finite(answer.capacity),
            reset_at: answer.level.reset_at.and_then(|at| time(at.ceil_to_millis())),
            limited_by: answer.limited_by.map(word),
        }
    }
}

/// Converts the reason of a denial.
pub fn word(by: LimitedBy) -> Constant {
    static BLOCK: [u8; 6] = constant_text(LimitedBy::Block.as_str());
    static SLOTS: [u8; 6] = constant_text(LimitedBy::Slots.as_str());
    static TOKENS: [u8; 7] = constant_text(LimitedBy::Tokens.as_str());
    Constant::new(match by {
        LimitedBy::Block => &BLOCK,
        LimitedBy::Slots => &SLOTS,
        LimitedBy::Tokens => &TOKENS,
    })
}

/// Returns the error for a denial, with `throws` or in a trigger. `message`: the trigger's, in the server's encoding.
pub fn denied(request: &Request, answer: &Answer, message: Option<&[u8]>) -> Error {
    Error::RateLimited {
        name: utf8(request.name).into_owned(),
        retry_after: answer.retry_after,
        capacity: answer.capacity,
        forever: answer.blocked == Some(Micros::FOREVER),
        message: message.map(|message| utf8(message).into_owned()),
    }
}

/// Converts a time for a result. [`Micros::FOREVER`] and times that drivers can't read become [`Micros::LATEST_SHOWN`].
pub fn time(at: Micros) -> Option<Timestamptz> {
    to_timestamptz(at.min(Micros::LATEST_SHOWN)).map(Timestamptz)
}

/// Converts a number of tokens; NULL without a limit.
pub fn finite(tokens: f64) -> Option<f64> {
    Some(tokens).filter(|tokens| tokens.is_finite())
}

/// Returns retry_after in seconds and retry_at, both rounded; NULL if waiting does not help.
pub fn retry(
    now: Micros,
    wait: Option<Micros>,
    rounded: fn(Micros) -> Micros,
) -> (Option<f64>, Option<Timestamptz>) {
    wait.and_then(|wait| Some((wait, time(rounded(now.plus(wait)))?)))
        .map(|(wait, at)| (rounded(wait).as_secs(), at))
        .unzip()
}
