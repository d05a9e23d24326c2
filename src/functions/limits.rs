//! Calls for one limit.

use ratelimit_core::Micros;
use ratelimit_limiter::request::{Answer, Request};
use ratelimit_limiter::single;

use super::answers::{Outcome, RlResult, denied};
use super::arguments::{LimitKey, LimitName};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use crate::schema::error::Result;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::sql_row;

sql_function! {
    /// 22004, 22023, 42501, 42704; 25006 in a read-only transaction; PT429 with `throws`.
    #[effect(Takes)]
    fn rl_limit(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        reserve: bool,
        throws: bool,
        config: Option<CallConfig>,
    ) -> RlResult {
        let request = Request { name: name.0, key: key.0, count, reserve, config: inline(&config) };
        let answer = Session::run(Use::Takes, call.function(), |host| single::limit(host, &request, |_| Ok(())))?;
        answered(&request, &answer, throws)
    }
}

sql_function! {
    /// As `rl_limit`, except 25006.
    #[effect(Reads)]
    fn rl_check(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        reserve: bool,
        throws: bool,
        config: Option<CallConfig>,
    ) -> RlResult {
        let request = Request { name: name.0, key: key.0, count, reserve, config: inline(&config) };
        let answer = Session::run(Use::Reads, call.function(), |host| single::check(host, &request))?;
        answered(&request, &answer, throws)
    }
}

sql_row! {
    /// The outcome of a call that takes as many tokens as are left.
    pub struct Taken as "@extschema@.rl_take_result" {
        ok: bool,
        taken: f64,
        ..outcome: Outcome,
    }
}

sql_function! {
    /// As `rl_limit`.
    #[effect(Takes)]
    fn rl_take(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        at_least: f64,
        throws: bool,
        config: Option<CallConfig>,
    ) -> Taken {
        let request = Request { name: name.0, key: key.0, count, reserve: false, config: inline(&config) };
        let answer = Session::run(Use::Takes, call.function(), |host| single::take(host, &request, at_least))?;
        let RlResult { ok, outcome } = answered(&request, &answer, throws)?;
        Ok(Taken { ok, taken: answer.taken, outcome })
    }
}

sql_function! {
    /// 0A000 for the sliding kinds, otherwise as `rl_limit`.
    #[effect(Takes)]
    fn rl_credit(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        taken_at: Option<Micros>,
        config: Option<CallConfig>,
    ) -> RlResult {
        let request = Request { name: name.0, key: key.0, count, reserve: false, config: inline(&config) };
        let answer = Session::run(Use::Takes, call.function(), |host| single::credit(host, &request, taken_at))?;
        Ok(RlResult::from(&answer))
    }
}

/// Converts the answer of a call; PT429 with `throws` if it is denied.
fn answered(request: &Request, answer: &Answer, throws: bool) -> Result<RlResult> {
    if throws && !answer.ok {
        return Err(denied(request, answer, None));
    }
    Ok(RlResult::from(answer))
}
