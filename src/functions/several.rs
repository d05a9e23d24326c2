//! Calls for several limits at once: all or nothing, or each on its own.

use ratelimit_core::config::Interval;
use ratelimit_core::requests::{self, InvalidRequest, RawRequest};
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::each;
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::Host;
use ratelimit_limiter::request::{Answer, Request};
use ratelimit_limiter::several;

use super::answers::{self, Outcome};
use super::arguments::{length, list_json, valid_key, valid_name};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::sql_types::{Checked, Json, Text, sql_row};
use ratelimit_pg::call::{Call, Rows};
use ratelimit_pg::error::Report;
use ratelimit_pg::values::{Jsonb, jsonb_from_json, server_text};

sql_row! {
    /// The outcome of the `n`th request, from 1.
    pub struct RequestRow as "@extschema@.rl_limit_all_result" {
        n: i32,
        /// NULL, and the key, if a request that is made on its own has none.
        name: Option<Text>,
        key: Option<Text>,
        ok: bool,
        ..outcome: Outcome,
        /// The error of a request that is made on its own; any other fails the whole call.
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

/// How long a call waits for locked rows.
pub struct LockWait(Micros);

impl Checked<'_> for LockWait {
    type Base = Interval;

    fn check(wait: Interval, argument: &'static str) -> Result<LockWait, ArgumentError> {
        let refused = |length| match length {
            Micros(..0) => Some("negative"),
            Micros(i64::MAX) => Some("out of range"),
            _ => None,
        };
        length(wait, argument, refused, "an interval of 0 or more, or NULL").map(LockWait)
    }
}

sql_function! {
    /// As `rl_limit`, except that errors of a request are in its row, with 55P03 after `lock_wait`.
    #[effect(Takes)]
    fn rl_limit_each(call: &Call, requests: Jsonb, lock_wait: Option<LockWait>) -> Rows<RequestRow> {
        let lock_wait = lock_wait.map(|LockWait(length)| length);
        let (json, _larger) = list_json("requests", requests, requests::MAX_BYTES)?;
        let written = requests::parse_each(json)?;
        let texts: Vec<Texts> = written.iter().map(texts).collect();
        let mut errors: Vec<Option<Error>> = Vec::new();
        let (mut list, mut at) = (Vec::new(), Vec::new());
        for (n, (written, texts)) in written.iter().zip(&texts).enumerate() {
            let request = written.as_ref().map_err(|invalid| invalid.error.clone());
            match request.and_then(|written| texts.request(written)) {
                Ok(request) => {
                    list.push(request);
                    at.push(n);
                    errors.push(None);
                }
                Err(error) => errors.push(Some(error.into())),
            }
        }
        let answers = Session::run(Use::Takes, call.function(), |host| {
            match lock_wait.is_some() && !host.has_holds() {
                true => Err(Error::LockWaitOnCitus.into()),
                false => each::limit(host, &list, lock_wait),
            }
        })?;
        let mut answered = at.into_iter().zip(list.iter().zip(answers)).peekable();
        let rows = call.rows()?;
        for (n, (texts, error)) in texts.iter().zip(errors).enumerate() {
            rows.put(match answered.next_if(|&(at, _)| at == n) {
                Some((_, (request, Ok(answer)))) => row(n, request, &answer),
                Some((_, (_, Err(error)))) => texts.row(n, &error.into(), call),
                None => texts.row(n, &error.unwrap_or(Error::Moved), call),
            });
        }
        Ok(rows)
    }
}

/// The texts of a request, in the server's encoding; `None`: it has none.
struct Texts<'a> {
    name: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    config: Option<CallConfig<'a>>,
}

fn texts<'a>(written: &Result<RawRequest, InvalidRequest>) -> Texts<'a> {
    let text = |text: &Option<String>| text.as_deref().map(server_text);
    match written {
        Ok(RawRequest { name, key, config, .. }) => Texts {
            name: Some(server_text(name)),
            key: Some(server_text(key)),
            config: config.as_deref().map(|json| CallConfig(jsonb_from_json(json))),
        },
        Err(InvalidRequest { name, key, .. }) => {
            Texts { name: text(name), key: text(key), config: None }
        }
    }
}

impl Texts<'_> {
    /// The request with these texts.
    fn request(&self, written: &RawRequest) -> Result<Request<'_>, ArgumentError> {
        Ok(Request {
            name: valid_name(self.name.as_deref().unwrap_or_default())?,
            key: valid_key(self.key.as_deref().unwrap_or_default())?,
            count: written.count,
            reserve: written.reserve,
            config: inline(&self.config),
        })
    }

    /// The row of the `n`th request, from 0, which has an error.
    fn row(&self, n: usize, error: &Error, call: &Call) -> RequestRow {
        let Report { sqlstate, message, detail, hint } = call.report(error);
        let fields = [
            ("code", Some(String::from_utf8_lossy(&sqlstate).into_owned())),
            ("message", Some(message)),
            ("detail", detail),
            ("hint", hint),
        ];
        let given =
            fields.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
        let error: serde_json::Map<String, serde_json::Value> = given.collect();
        RequestRow {
            n: n as i32 + 1,
            name: self.name.as_deref().map(Text::new),
            key: self.key.as_deref().map(Text::new),
            ok: false,
            outcome: Outcome::default(),
            error: Some(Json::new(error.into())),
        }
    }
}

/// Makes a call, and returns its rows. 22023: an invalid list; PT429 with `throws` if it is denied.
fn answer_all(
    call: &Call,
    make: impl FnOnce(&[Request]) -> Result<Vec<Answer>>,
    given: Jsonb,
    throws: bool,
) -> Result<Rows<RequestRow>> {
    with_requests(given, |list| {
        let answers = make(list)?;
        if throws && let Some(denied) = denied_of_all(list, || answers.iter()) {
            return Err(denied);
        }
        let rows = call.rows()?;
        for (n, (request, answer)) in list.iter().zip(&answers).enumerate() {
            rows.put(row(n, request, answer));
        }
        Ok(rows)
    })
}

/// Reads a list of requests, and runs `work` on it. 22023: an invalid list.
pub fn with_requests<T>(given: Jsonb, work: impl FnOnce(&[Request]) -> Result<T>) -> Result<T> {
    let (json, _larger) = list_json("requests", given, requests::MAX_BYTES)?;
    let written: Vec<_> = requests::parse(json)?.into_iter().map(Ok).collect();
    let texts: Vec<Texts> = written.iter().map(texts).collect();
    let mut list = Vec::new();
    for (n, (written, texts)) in written.iter().flatten().zip(&texts).enumerate() {
        let request = texts.request(written);
        list.push(request.map_err(|error| LimiterError::in_request(n + 1, error))?);
    }
    work(&list)
}

/// Returns the error of a denied call: for a request that can never succeed, if there is one, or else for the refusing
/// request with the longest wait.
pub fn denied_of_all<'a, A: Iterator<Item = &'a Answer>>(
    list: &[Request],
    answers: impl Fn() -> A,
) -> Option<Error> {
    if answers().all(|answer| answer.ok) {
        return None;
    }
    let (request, answer) = list.iter().zip(answers()).max_by_key(|(_, answer)| {
        let refuses = answer.limited_by.is_some() && answer.enforced;
        (refuses, answer.retry_after.unwrap_or(Micros::FOREVER), answer.never)
    })?;
    Some(answers::denied(request, answer, None))
}

/// Returns the row of the `n`th request, from 0.
fn row(n: usize, request: &Request, answer: &Answer) -> RequestRow {
    RequestRow {
        n: n as i32 + 1,
        name: Some(Text::new(request.name)),
        key: Some(Text::new(request.key)),
        ok: answer.ok,
        outcome: answer.into(),
        error: None,
    }
}
