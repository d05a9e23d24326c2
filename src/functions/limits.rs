//! The calls of one limit.

use pgrx::pg_sys;
use ratelimit_core::Micros;

use super::answers::RlResult;
use super::arguments::{Key, Name};
use crate::limiter::request::{Answer, Request};
use crate::limiter::single;
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
        let request = Request { name: name.0, key: key.0, count, reserve, config };
        answer(call, single::limit, &request, throws)
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
        let request = Request { name: name.0, key: key.0, count, reserve, config };
        answer(call, single::check, &request, throws)
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
        let request = Request { name: name.0, key: key.0, count, reserve: false, config };
        let answer = single::credit(call.function(), &request, taken_at)?;
        Ok(One(RlResult::from(&answer)))
    }
}

/// Makes a call, and shapes its answer.
///
/// # Errors
/// Those of the call; PT429 with `throws`: it is denied.
fn answer(
    call: &Call,
    make: fn(pg_sys::Oid, &Request) -> Result<Answer>,
    request: &Request,
    throws: bool,
) -> Result<One<RlResult>> {
    let answer = make(call.function(), request)?;
    if throws && !answer.ok && answer.enforced {
        return Err(request.denied(&answer));
    }
    Ok(One(RlResult::from(&answer)))
}
