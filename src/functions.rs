//! The SQL functions: unpack the arguments, make one call, shape the row. What each of them does
//! is said in its COMMENT (sql/functions.sql) and in the README.

use std::ops::RangeInclusive;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{self, BOOLOID, FLOAT8OID, JSONBOID, TIMESTAMPTZOID};
use ratelimit_core::config::{self, Given, Interval, MAX_TOKENS};
use ratelimit_core::headers::{self, Style};
use ratelimit_core::requests::{self, MAX_REQUESTS};
use ratelimit_core::state::{self, StateError};
use ratelimit_core::text::{float_text, shortened};
use ratelimit_core::{Kind, Micros, decide};

use crate::limiter::request::{Answer, Request, check_count};
use crate::limiter::several::{self, Outcome};
use crate::limiter::{definitions, prune, single, status};
use crate::pg::call::composite::Composite;
use crate::pg::call::{Call, sql_function};
use crate::pg::catalog::{self, TableLock};
use crate::pg::clock::{self, to_timestamptz};
use crate::pg::error::{Error, Result};
use crate::pg::invalidation;
use crate::pg::transaction::{refuse_parallel, refuse_read_only};
use crate::pg::values::{
    float_datum, jsonb_datum, jsonb_from_json, server_text, text_datum, utf8, utf8_bytes,
};

use arguments::{finite, key, name, required, valid_key, valid_name};

mod arguments;
mod trigger;

/// The columns of rl_result.
const RL_RESULT: [BuiltinOid; 6] =
    [BOOLOID, FLOAT8OID, TIMESTAMPTZOID, FLOAT8OID, FLOAT8OID, TIMESTAMPTZOID];

sql_function!(
    /// `rl_limit(name, key, count, reserve, throws, config)`. 25006 in a read-only transaction,
    /// PT429 with throws; otherwise as the arguments: 22004, 22023, 42501, 42704.
    rl_limit, pg_finfo_rl_limit, |call| {
        refuse_read_only(c"rl_limit()")?;
        answer(call, single::limit)
    }
);

sql_function!(
    /// `rl_check(name, key, count, reserve, throws, config)`; errors as `rl_limit`, save 25006.
    rl_check, pg_finfo_rl_check, |call| {
        refuse_parallel(c"rl_check()")?;
        answer(call, single::check)
    }
);

sql_function!(
    /// `rl_credit(name, key, count, taken_at, config)`; 0A000 for the sliding kinds, otherwise as
    /// `rl_limit`.
    rl_credit, pg_finfo_rl_credit, |call| {
        refuse_read_only(c"rl_credit()")?;
        call.row_type(&RL_RESULT)?;
        let request = Request {
            name: name(call, 0)?,
            key: key(call, 1)?,
            count: required(call.float(2), "count")?,
            reserve: false,
            config: call.jsonb(4),
        };
        let taken_at = call.timestamptz(3).map(|at| finite(at, "taken_at")).transpose()?;
        let answer = single::credit(call.function(), &request, taken_at)?;
        result(call, &answer)
    }
);

sql_function!(
    /// `rl_limit_all(requests, throws)`; errors as `rl_limit`, each naming its request.
    rl_limit_all, pg_finfo_rl_limit_all, |call| {
        refuse_read_only(c"rl_limit_all()")?;
        answer_all(call, several::limit)
    }
);

sql_function!(
    /// `rl_check_all(requests, throws)`; errors as `rl_limit_all`, save 25006.
    rl_check_all, pg_finfo_rl_check_all, |call| {
        refuse_parallel(c"rl_check_all()")?;
        answer_all(call, several::check)
    }
);

sql_function!(
    /// `rl_reset(name, key)`; 25006 in a read-only transaction.
    rl_reset, pg_finfo_rl_reset, |call| {
        refuse_read_only(c"rl_reset()")?;
        let was = single::reset(call.function(), name(call, 0)?, key(call, 1)?)?;
        Ok(pg_sys::Datum::from(was))
    }
);

sql_function!(
    /// `rl_reset_all(name)`; 25006 in a read-only transaction.
    rl_reset_all, pg_finfo_rl_reset_all, |call| {
        refuse_read_only(c"rl_reset_all()")?;
        Ok(pg_sys::Datum::from(single::reset_all(call.function(), name(call, 0)?)?))
    }
);

sql_function!(
    /// `rl_define(name, config, key)`; 22023 for a bad config, 25006 in a read-only transaction.
    rl_define, pg_finfo_rl_define, |call| {
        refuse_read_only(c"rl_define()")?;
        let catalog = catalog::current(call.function(), TableLock::Read)?;
        let config = required(call.jsonb(1), "config")?;
        let changed = definitions::define(&catalog, name(call, 0)?, key(call, 2)?, config)?;
        Ok(pg_sys::Datum::from(changed))
    }
);

sql_function!(
    /// `rl_undefine(name, key)`; 25006 in a read-only transaction.
    rl_undefine, pg_finfo_rl_undefine, |call| {
        refuse_read_only(c"rl_undefine()")?;
        let catalog = catalog::current(call.function(), TableLock::Read)?;
        let was = definitions::undefine(&catalog, name(call, 0)?, key(call, 1)?)?;
        Ok(pg_sys::Datum::from(was))
    }
);

sql_function!(
    /// `rl_status(name, key)`; 22023, and for a bad stored config or state what `rl_check` raises.
    rl_status, pg_finfo_rl_status, |call| {
        refuse_parallel(c"rl_status()")?;
        let mut rows = call.rows()?;
        let only = (
            call.text(0).map(valid_name).transpose()?,
            call.text(1).map(valid_key).transpose()?,
        );
        status::each(call.function(), only.0, only.1, |status| {
            let standing = status.limit.as_ref();
            let retry_after = standing.and_then(|standing| standing.retry_after);
            let (_, retry_at) = retry(status.as_of, retry_after, Micros::ceil_to_millis);
            rows.put([
                Some(text_datum(status.name)),
                Some(text_datum(status.key)),
                standing.map(|standing| text_datum(standing.limit.kind().as_str().as_bytes())),
                standing.map(|standing| float_datum(standing.remaining)),
                standing.map(|standing| float_datum(standing.limit.capacity())),
                retry_at,
                to_timestamptz(status.as_of).map(pg_sys::Datum::from),
                Some(pg_sys::Datum::from(status.shards as i32)),
                standing.map(|standing| pg_sys::Datum::from(standing.limited)),
            ]);
        })?;
        Ok(call.end_of_rows())
    }
);

sql_function!(
    /// `rl_prune(max_rows, undefined_idle)`; 22004, 22023; 25006 in a read-only transaction.
    rl_prune, pg_finfo_rl_prune, |call| {
        refuse_read_only(c"rl_prune()")?;
        let max_rows = required(call.int(0), "max_rows")?;
        if max_rows < 1 {
            return Err(Error::InvalidArgument {
                argument: "max_rows",
                value: max_rows.to_string(),
                allowed: "a whole number from 1".into(),
            });
        }
        let undefined_idle = match call.interval(1) {
            // A month counts as 30 days, as where PostgreSQL makes a number of an interval.
            Some((months, days, micros)) => Some(span(days.saturating_add(months.saturating_mul(30)), micros))
                .filter(|&idle| idle >= Micros(0))
                .map(Some)
                .ok_or_else(|| Error::InvalidArgument {
                    argument: "undefined_idle",
                    value: "negative".into(),
                    allowed: "an interval of 0 or more, or NULL".into(),
                })?,
            None => None,
        };
        let deleted = prune::prune(call.function(), i64::from(max_rows), undefined_idle)?;
        Ok(pg_sys::Datum::from(deleted))
    }
);

sql_function!(
    /// `rl_token_bucket(rate, period, capacity, max_reserved, shards)`; 22004, 22023.
    rl_token_bucket, pg_finfo_rl_token_bucket, |call| {
        build(Kind::TokenBucket, Given {
            capacity: call.float(2),
            max_reserved: call.float(3),
            shards: call.int(4),
            ..given(call)?
        })
    }
);

sql_function!(
    /// `rl_fixed_window(rate, period, capacity, max_reserved, shards, start, first_request,
    /// timezone)`; 22004, 22023.
    rl_fixed_window, pg_finfo_rl_fixed_window, |call| {
        build(Kind::FixedWindow, Given {
            capacity: call.float(2),
            max_reserved: call.float(3),
            shards: call.int(4),
            start: call.timestamptz(5).map(|start| finite(start, "start")).transpose()?,
            first_request: call.bool(6).unwrap_or(false),
            timezone: call.text(7).map(timezone).transpose()?,
            ..given(call)?
        })
    }
);

sql_function!(
    /// `rl_sliding_window(rate, period)`; 22004, 22023.
    rl_sliding_window, pg_finfo_rl_sliding_window, |call| build(Kind::SlidingWindow, given(call)?)
);

sql_function!(
    /// `rl_sliding_log(rate, period)`; 22004, 22023.
    rl_sliding_log, pg_finfo_rl_sliding_log, |call| build(Kind::SlidingLog, given(call)?)
);

sql_function!(
    /// `rl_headers(name, result, style, config)`: an outcome as HTTP headers. The definition is the
    /// name's own, since there is no key to look for an override; 22004, 22023, 42704.
    rl_headers, pg_finfo_rl_headers, |call| {
        refuse_parallel(c"rl_headers()")?;
        let name = name(call, 0)?;
        let (outcome, now) = outcome(&required(call.composite(1), "result")?)?;
        let style = style(&utf8(required(call.text(2), "style")?))?;
        let limit = match call.jsonb(3) {
            Some(config) => definitions::inline(config)?,
            None => definitions::resolve(&*catalog::current(call.function(), TableLock::Read)?, name, b"", None)?,
        };
        // In whole milliseconds, as the times of the outcome are: 60 seconds must not become 61.
        let now = now.unwrap_or_else(|| clock::now().ceil_to_millis());
        let headers = headers::headers(style, utf8_bytes(name), &limit, &outcome, now);
        Ok(jsonb_datum(headers).unwrap_or(pg_sys::Datum::from(0)))
    }
);

sql_function!(
    /// `rl_calculate(config, state, at, count, reserve)`: the algorithm, exact to the
    /// microsecond; 22004, 22023.
    rl_calculate, pg_finfo_rl_calculate, |call| {
        call.row_type(&[BOOLOID, FLOAT8OID, TIMESTAMPTZOID, FLOAT8OID, JSONBOID])?;
        let limit = definitions::inline(required(call.jsonb(0), "config")?)?;
        let at = finite(required(call.timestamptz(2), "at")?, "at")?;
        let count = required(call.float(3), "count")?;
        let reserve = required(call.bool(4), "reserve")?;
        check_count(&limit, count)?;
        let given = call.jsonb(1);
        let state = match given {
            Some(state) => state
                .to_json(state::MAX_BYTES)
                .map_err(StateError::too_long)
                .and_then(|json| state::parse(&json, &limit))
                .map_err(Error::State)?,
            // A fixed window without a start of its own begins at the time given.
            None => limit.initial_state(at, at),
        };
        let decision = decide(&limit, &state, at, count, reserve);
        let (retry_after, retry_at) = retry(at, decision.retry_after, |at| at);
        let state = match decision.state {
            Some(state) => jsonb_datum(state::to_json(&state)),
            None => given.map(|state| state.datum),
        };
        call.row([
            Some(pg_sys::Datum::from(decision.ok)),
            retry_after,
            retry_at,
            Some(float_datum(decision.level.remaining)),
            state,
        ])
    }
);

sql_function!(
    /// The triggers on `rl_config`: check what is written there by whatever means, and make every
    /// backend forget what it remembers. 22023; 39P01 when it is no trigger that calls.
    rl_config_changed, pg_finfo_rl_config_changed, |call| {
        let trigger =
            call.trigger().ok_or(Error::NotATrigger { function: "rl_config_changed" })?;
        // A NULL is left to the table's own constraints.
        trigger.text(c"name")?.map(valid_name).transpose()?;
        trigger.text(c"key")?.map(valid_key).transpose()?;
        trigger.jsonb(c"config")?.map(definitions::inline).transpose()?;
        invalidation::announce(trigger.relation());
        Ok(trigger.proceed())
    }
);

/// Unpacks a call of rl_limit or rl_check, makes it, and shapes its answer.
fn answer(
    call: &mut Call,
    make: fn(pg_sys::Oid, &Request) -> Result<Answer>,
) -> Result<pg_sys::Datum> {
    call.row_type(&RL_RESULT)?;
    let request = Request {
        name: name(call, 0)?,
        key: key(call, 1)?,
        count: required(call.float(2), "count")?,
        reserve: required(call.bool(3), "reserve")?,
        config: call.jsonb(5),
    };
    let throws = required(call.bool(4), "throws")?;
    let answer = make(call.function(), &request)?;
    if throws && !answer.ok {
        return Err(request.denied(&answer));
    }
    result(call, &answer)
}

/// Shapes an rl_result.
fn result(call: &mut Call, answer: &Answer) -> Result<pg_sys::Datum> {
    let [retry_after, retry_at, remaining, capacity, reset_at] = columns(answer);
    call.row([
        Some(pg_sys::Datum::from(answer.ok)),
        retry_after,
        retry_at,
        remaining,
        capacity,
        reset_at,
    ])
}

/// retry_after, retry_at, remaining, capacity and reset_at of an answer.
fn columns(answer: &Answer) -> [Option<pg_sys::Datum>; 5] {
    let (retry_after, retry_at) = retry(answer.now, answer.retry_after, Micros::ceil_to_millis);
    let reset_at = answer.level.reset_at.and_then(|at| to_timestamptz(at.ceil_to_millis()));
    [
        retry_after,
        retry_at,
        Some(float_datum(answer.level.remaining)),
        Some(float_datum(answer.capacity)),
        reset_at.map(pg_sys::Datum::from),
    ]
}

/// Unpacks a call of rl_limit_all or rl_check_all, makes it, and shapes its rows.
fn answer_all(
    call: &mut Call,
    make: fn(pg_sys::Oid, &[Request]) -> Result<Vec<Outcome>>,
) -> Result<pg_sys::Datum> {
    let throws = required(call.bool(1), "throws")?;
    let given = required(call.jsonb(0), "requests")?;
    if let Some(length) = given.array_length().filter(|&length| length > MAX_REQUESTS) {
        return Err(Error::InvalidArgument {
            argument: "requests",
            value: format!("a list of {length}"),
            allowed: format!("a list of at most {MAX_REQUESTS}"),
        });
    }
    let json = given.to_exact_json("requests", requests::MAX_BYTES)?;
    let written = requests::parse(&json)?;
    let names: Vec<(Vec<u8>, Vec<u8>)> = written
        .iter()
        .map(|request| (server_text(&request.name), server_text(&request.key)))
        .collect();
    let mut list = Vec::new();
    for (n, (request, (name, key))) in written.iter().zip(&names).enumerate() {
        let checked = || {
            Ok(Request {
                name: valid_name(name)?,
                key: valid_key(key)?,
                count: request.count,
                reserve: request.reserve,
                config: request.config.as_deref().map(jsonb_from_json),
            })
        };
        list.push(
            checked().map_err(|error| Error::InRequest { n: n + 1, error: Box::new(error) })?,
        );
    }
    let outcomes = make(call.function(), &list)?;
    if throws && outcomes.iter().any(|outcome| !outcome.answer.ok) {
        // The one to wait for longest, of those that refuse.
        let longest = list.iter().zip(&outcomes).max_by_key(|(_, outcome)| {
            (!outcome.allows, outcome.answer.retry_after.unwrap_or(Micros(i64::MAX)))
        });
        if let Some((request, Outcome { answer, .. })) = longest {
            return Err(request.denied(answer));
        }
    }
    let mut rows = call.rows()?;
    for (n, (request, outcome)) in list.iter().zip(&outcomes).enumerate() {
        let [retry_after, retry_at, remaining, capacity, reset_at] = columns(&outcome.answer);
        rows.put([
            Some(pg_sys::Datum::from(n as i32 + 1)),
            Some(text_datum(request.name)),
            Some(text_datum(request.key)),
            Some(pg_sys::Datum::from(outcome.answer.ok)),
            Some(pg_sys::Datum::from(outcome.allows)),
            retry_after,
            retry_at,
            remaining,
            capacity,
            reset_at,
        ]);
    }
    Ok(call.end_of_rows())
}

/// What an rl_result tells, which may have been made by hand, and when that was, if it tells.
fn outcome(result: &Composite) -> Result<(headers::Outcome, Option<Micros>)> {
    let number =
        |column, argument, range: RangeInclusive<f64>, allowed: &str| match result.float(column)? {
            Some(value) if !range.contains(&value) => Err(Error::InvalidArgument {
                argument,
                value: float_text(value),
                allowed: allowed.into(),
            }),
            value => Ok(value),
        };
    let time =
        |column, argument| result.timestamptz(column)?.map(|at| finite(at, argument)).transpose();
    const RETRY_AFTER: &str = "a number of seconds from 0 to 1e13, or NULL";
    let retry_after = number(c"retry_after", "result.retry_after", 0.0..=1e13, RETRY_AFTER)?
        .map(|seconds| Micros::from_millis(seconds * 1e3));
    let retry_at = time(c"retry_at", "result.retry_at")?;
    let remaining =
        number(c"remaining", "result.remaining", f64::MIN..=f64::MAX, "a finite number")?;
    let capacity =
        number(c"capacity", "result.capacity", 0.0..=MAX_TOKENS, "a number from 0 to 1e15")?;
    let outcome = headers::Outcome {
        ok: required(result.bool(c"ok")?, "result.ok")?,
        retry_after,
        remaining: required(remaining, "result.remaining")?,
        capacity: required(capacity, "result.capacity")?,
        reset_at: time(c"reset_at", "result.reset_at")?,
    };
    Ok((outcome, retry_at.zip(retry_after).map(|(at, wait)| at.minus(wait))))
}

fn style(text: &str) -> Result<Style> {
    Style::parse(text).ok_or_else(|| Error::InvalidArgument {
        argument: "style",
        value: format!("'{}'", shortened(text)),
        allowed: Style::ALLOWED.into(),
    })
}

/// retry_after in seconds and retry_at, each rounded; both NULL where there is nothing to wait
/// for, or where the time is later than a timestamptz can tell.
fn retry(
    now: Micros,
    wait: Option<Micros>,
    rounded: fn(Micros) -> Micros,
) -> (Option<pg_sys::Datum>, Option<pg_sys::Datum>) {
    let times = wait.and_then(|wait| Some((wait, to_timestamptz(rounded(now.plus(wait)))?)));
    match times {
        Some((wait, at)) => {
            (Some(float_datum(rounded(wait).as_secs())), Some(pg_sys::Datum::from(at)))
        }
        None => (None, None),
    }
}

/// The arguments that every builder begins with.
fn given(call: &Call) -> Result<Given> {
    let rate = required(call.float(0), "rate")?;
    let (months, days, micros) = required(call.interval(1), "period")?;
    let period = Interval { months, days, micros };
    Ok(Given { rate, period, ..Given::default() })
}

/// The name of a time zone, of no more bytes than a config can have.
fn timezone(name: &[u8]) -> Result<String> {
    if name.len() <= config::MAX_BYTES {
        return Ok(utf8(name).into_owned());
    }
    Err(Error::InvalidArgument {
        argument: "timezone",
        value: format!("{} bytes long", name.len()),
        allowed: "the IANA name of a time zone".into(),
    })
}

/// Days of 24 hours, and microseconds.
fn span(days: i32, micros: i64) -> Micros {
    Micros(micros.saturating_add(i64::from(days).saturating_mul(86_400_000_000)))
}

fn build(kind: Kind, given: Given) -> Result<pg_sys::Datum> {
    let config = config::build(kind, &given)?;
    Ok(jsonb_datum(config).unwrap_or(pg_sys::Datum::from(0)))
}
