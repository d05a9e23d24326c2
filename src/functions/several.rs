//! Calls for several limits at once, all or nothing.

use ratelimit_core::requests;
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::request::Request;
use ratelimit_limiter::several::{self, RequestOutcome};

use super::answers::{self, RlResult};
use super::arguments::{refuse_long_list, valid_key, valid_name};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::sql_types::{Constant, Json, Text, Timestamptz, sql_row};
use ratelimit_pg::call::{Call, Rows};
use ratelimit_pg::interrupts::larger_reserve;
use ratelimit_pg::values::{Jsonb, jsonb_from_json, server_text};

sql_row! {
    /// The outcome of the `n`th request, from 1.
    pub struct RequestRow as "@extschema@.rl_limit_all_result" {
        n: i32,
        name: Text,
        key: Text,
        ok: bool,
        retry_after: Option<f64>,
        retry_at: Option<Timestamptz>,
        remaining: Option<f64>,
        capacity: Option<f64>,
        reset_at: Option<Timestamptz>,
        limited_by: Option<Constant>,
        /// Always NULL: an error fails the whole call.
        error: Option<Json>,
    }
}

sql_function! {
    /// As `rl_limit`, with the number of the request.
    #[effect(Takes)]
    fn rl_limit_all(call: &Call, requests: Jsonb, throws: bool) -> Rows<RequestRow> {
        let make = |list: &[Request]| Session::run(Use::Takes, call.function(), |host| several::limit(host, list));
        answer_all(call, make, requests, throws)
    }
}

sql_function! {
    /// As `rl_limit_all`, except 25006.
    #[effect(Reads)]
    fn rl_check_all(call: &Call, requests: Jsonb, throws: bool) -> Rows<RequestRow> {
        let make = |list: &[Request]| Session::run(Use::Reads, call.function(), |host| several::check(host, list));
        answer_all(call, make, requests, throws)
    }
}

/// Makes a call, and returns its rows. 22023: an invalid list; PT429 with `throws` if it is denied.
fn answer_all(
    call: &Call,
    make: impl FnOnce(&[Request]) -> Result<Vec<RequestOutcome>>,
    given: Jsonb,
    throws: bool,
) -> Result<Rows<RequestRow>> {
    with_requests(given, |list| {
        let outcomes = make(list)?;
        if throws && let Some(denied) = denied_of_all(list, || outcomes.iter()) {
            return Err(denied);
        }
        let rows = call.rows()?;
        for (n, (request, outcome)) in list.iter().zip(&outcomes).enumerate() {
            rows.put(row(n, request, outcome));
        }
        Ok(rows)
    })
}

/// Reads a list of requests, and runs `work` on it. 22023: an invalid list.
pub fn with_requests<T>(given: Jsonb, work: impl FnOnce(&[Request]) -> Result<T>) -> Result<T> {
    refuse_long_list("requests", given)?;
    let json = given.to_exact_json("requests", requests::MAX_BYTES)?;
    let _larger = larger_reserve(json.len());
    let written = requests::parse(json)?;
    let names: Vec<(Vec<u8>, Vec<u8>)> = written
        .iter()
        .map(|request| (server_text(&request.name), server_text(&request.key)))
        .collect();
    let config = |json: &str| CallConfig(jsonb_from_json(json));
    let configs: Vec<Option<CallConfig>> =
        written.iter().map(|request| request.config.as_deref().map(config)).collect();
    let mut list = Vec::new();
    for (n, ((request, config), (name, key))) in
        written.iter().zip(&configs).zip(&names).enumerate()
    {
        let checked = || -> Result<Request, ArgumentError> {
            Ok(Request {
                name: valid_name(name)?,
                key: valid_key(key)?,
                count: request.count,
                reserve: request.reserve,
                config: inline(config),
            })
        };
        list.push(checked().map_err(|error| LimiterError::in_request(n + 1, error))?);
    }
    work(&list)
}

/// Returns the error of a denied call: for a request that can never succeed, if there is one, or else for the refusing
/// request with the longest wait.
pub fn denied_of_all<'o, O: Iterator<Item = &'o RequestOutcome>>(
    list: &[Request],
    outcomes: impl Fn() -> O,
) -> Option<Error> {
    if outcomes().all(|outcome| outcome.answer.ok) {
        return None;
    }
    let (request, outcome) = list.iter().zip(outcomes()).max_by_key(|(_, outcome)| {
        let refuses = outcome.answer.limited_by.is_some() && outcome.answer.enforced;
        let wait = outcome.answer.retry_after.unwrap_or(Micros(i64::MAX));
        (refuses, wait, outcome.never)
    })?;
    Some(answers::denied(request, &outcome.answer, None))
}

/// Returns the row of the `n`th request, from 0.
fn row(n: usize, request: &Request, outcome: &RequestOutcome) -> RequestRow {
    let RlResult { ok, retry_after, retry_at, remaining, capacity, reset_at, limited_by } =
        RlResult::from(&outcome.answer);
    RequestRow {
        n: n as i32 + 1,
        name: Text::new(request.name),
        key: Text::new(request.key),
        ok,
        retry_after,
        retry_at,
        remaining,
        capacity,
        reset_at,
        limited_by,
        error: None,
    }
}
