//! The calls of one limit.

use ratelimit_core::Micros;
use ratelimit_limiter::one;
use ratelimit_limiter::request::{Answer, Request};

use super::answers::{RlResult, denied};
use super::arguments::{Key, Name};
use crate::host::{self, Config, inline};
use crate::pg::call::Call;
use crate::pg::declaration::{One, sql_function};
use crate::pg::error::Result;
use crate::pg::values::Jsonb;

sql_function! {
    /// 25006 in a read-only transaction, PT429 with throws; otherwise as the arguments: 22004, 22023,
    /// 42501, 42704.
    #[sql(TAKES, comment = "takes count tokens from a rate limit, inside the caller's transaction")]
    fn rl_limit(
        call: &Call,
        name: Name,
        key: Key = "''",
        count: f64 = "1",
        reserve: bool = "false",
        throws: bool = "false",
        config: Option<Jsonb> = "NULL",
    ) -> One<RlResult> {
        let config = config.map(Config);
        let request = Request { name: name.0, key: key.0, count, reserve, config: inline(&config) };
        let answer = host::take(call.function(), |host| one::limit(host, &request))?;
        answered(&request, &answer, throws)
    }
}

sql_function! {
    /// Errors as `rl_limit`, save 25006.
    #[sql(READS, comment = "tells whether rl_limit would pass: consumes, locks and writes nothing")]
    fn rl_check(
        call: &Call,
        name: Name,
        key: Key = "''",
        count: f64 = "1",
        reserve: bool = "false",
        throws: bool = "false",
        config: Option<Jsonb> = "NULL",
    ) -> One<RlResult> {
        let config = config.map(Config);
        let request = Request { name: name.0, key: key.0, count, reserve, config: inline(&config) };
        let answer = host::read(call.function(), |host| one::check(host, &request))?;
        answered(&request, &answer, throws)
    }
}

sql_function! {
    /// 0A000 for the sliding kinds, otherwise as `rl_limit`.
    #[sql(
        TAKES,
        comment = "gives back count tokens that were taken and not used; a negative count takes unconditionally"
    )]
    fn rl_credit(
        call: &Call,
        name: Name,
        key: Key,
        count: f64,
        taken_at: Option<Micros> = "NULL",
        config: Option<Jsonb> = "NULL",
    ) -> One<RlResult> {
        let config = config.map(Config);
        let config = inline(&config);
        let request = Request { name: name.0, key: key.0, count, reserve: false, config };
        let answer = host::take(call.function(), |host| one::credit(host, &request, taken_at))?;
        Ok(One(RlResult::from(&answer)))
    }
}

/// Shapes the answer of a call.
///
/// # Errors
/// PT429 with `throws`: it is denied.
fn answered(request: &Request, answer: &Answer, throws: bool) -> Result<One<RlResult>> {
    if throws && !answer.ok && answer.enforced {
        return Err(denied(request, answer));
    }
    Ok(One(RlResult::from(answer)))
}
