//! Holds tokens, to be settled later by the actual use.

use std::slice;

use ratelimit_core::config::{Interval, MAX_TOKENS};
use ratelimit_core::text::{float_text, shortened};
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::holds::{self, Held, Settled, Terms, Used};
use ratelimit_limiter::request::Request;
use serde_json::Value;

use super::answers::{Outcome, RlResult, time};
use super::arguments::{HoldId, LimitKey, LimitName, length};
use super::several::{denied_of_all, with_requests};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use crate::schema::error::{Result, literal};
use ratelimit_pg::call::sql_types::{Checked, Text, Timestamptz, sql_row};
use ratelimit_pg::call::{Call, Rows};
use ratelimit_pg::values::{Jsonb, server_text, utf8};

/// How long a hold lasts.
pub struct Ttl(Micros);

impl Checked<'_> for Ttl {
    type Base = Interval;

    fn check(ttl: Interval, argument: &'static str) -> Result<Ttl, ArgumentError> {
        const LONGEST: Micros = Micros(366 * 86_400_000_000);
        let refused = |length| match length {
            Micros(..0) => Some("negative"),
            _ if length < Micros::MILLISECOND => Some("less than 1 millisecond"),
            _ if length > LONGEST => Some("longer than 366 days"),
            _ => None,
        };
        length(ttl, argument, refused, "an interval from 1 millisecond to 366 days").map(Ttl)
    }
}

/// What to do with a hold that expires unsettled: whether its tokens stay taken.
#[derive(Clone, Copy)]
pub struct OnExpiry {
    charge: bool,
}

impl<'a> Checked<'a> for OnExpiry {
    type Base = &'a [u8];

    fn check(text: &'a [u8], argument: &'static str) -> Result<OnExpiry, ArgumentError> {
        match text {
            b"refund" => Ok(OnExpiry { charge: false }),
            b"charge" => Ok(OnExpiry { charge: true }),
            _ => {
                let value = literal(&shortened(&utf8(text)));
                Err(ArgumentError::invalid(argument, value, "refund or charge"))
            }
        }
    }
}

sql_row! {
    /// A hold, or when to try again.
    pub struct HeldRow as "@extschema@.rl_hold_result" {
        ok: bool,
        hold: Option<Text>,
        held: f64,
        expires_at: Option<Timestamptz>,
        ..outcome: Outcome,
    }
}

sql_function! {
    /// As `rl_limit`; 0A000 for a limit that has no holds.
    #[effect(Takes)]
    fn rl_hold(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        count: f64,
        ttl: Ttl,
        id: Option<HoldId>,
        at_least: Option<f64>,
        on_expiry: OnExpiry,
        reserve: bool,
        throws: bool,
        config: Option<CallConfig>,
    ) -> HeldRow {
        let request = Request { name: name.0, key: key.0, count, reserve, config: inline(&config) };
        let terms = terms(&ttl, &id, on_expiry);
        let hold = |host: &Session| holds::hold(host, &request, at_least, &terms);
        let held = Session::run(Use::Takes, call.function(), hold)?;
        refuse(slice::from_ref(&request), slice::from_ref(&held), throws)?;
        Ok(held_row(&held))
    }
}

sql_function! {
    /// 22023; 25006 in a read-only transaction.
    #[effect(Takes)]
    fn rl_settle(call: &Call, hold: Option<&[u8]>, used: Option<f64>) -> RlResult {
        let used = used.map(|used| checked("used", used)).transpose()?;
        let used = used.map_or(Used::All, Used::Count);
        // The hold of an exempt key: nothing to settle.
        let Some(hold) = hold else { return Ok(RlResult { ok: true, outcome: Outcome::default() }) };
        let settle = |host: &Session| holds::settle(host, hold, &used, true);
        let settled = Session::run(Use::Takes, call.function(), settle)?;
        let outcome = settled.first().map(outcome);
        Ok(RlResult { ok: outcome.is_some(), outcome: outcome.unwrap_or_default() })
    }
}

sql_row! {
    /// The outcome of the `n`th request, from 1.
    pub struct HeldOfAllRow as "@extschema@.rl_hold_all_result" {
        n: i32,
        name: Text,
        key: Text,
        ..held: HeldRow,
    }
}

sql_function! {
    /// As `rl_hold`, with the number of the request.
    #[effect(Takes)]
    fn rl_hold_all(
        call: &Call,
        requests: Jsonb,
        ttl: Ttl,
        id: Option<HoldId>,
        on_expiry: OnExpiry,
        throws: bool,
    ) -> Rows<HeldOfAllRow> {
        let terms = terms(&ttl, &id, on_expiry);
        with_requests(requests, |list| {
            let hold = |host: &Session| holds::hold_all(host, list, &terms);
            let held = Session::run(Use::Takes, call.function(), hold)?;
            refuse(list, &held, throws)?;
            let rows = call.rows()?;
            for (n, (request, held)) in list.iter().zip(&held).enumerate() {
                let (name, key) = (Text::new(request.name), Text::new(request.key));
                rows.put(HeldOfAllRow { n: n as i32 + 1, name, key, held: held_row(held) });
            }
            Ok(rows)
        })
    }
}

sql_row! {
    /// The settlement of one limit of a hold.
    pub struct SettledRow as "@extschema@.rl_settle_all_result" {
        name: Text,
        key: Text,
        retry_after: Option<f64>,
        retry_at: Option<Timestamptz>,
        remaining: Option<f64>,
        capacity: Option<f64>,
        reset_at: Option<Timestamptz>,
    }
}

sql_function! {
    /// As `rl_settle`.
    #[effect(Takes)]
    fn rl_settle_all(call: &Call, hold: Option<&[u8]>, used: Option<Jsonb>) -> Rows<SettledRow> {
        let used = used.map_or(Ok(Used::All), read_use)?;
        let settled = match hold {
            Some(hold) => Session::run(Use::Takes, call.function(), |host| {
                holds::settle(host, hold, &used, false)
            })?,
            None => Vec::new(),
        };
        let rows = call.rows()?;
        for settled in &settled {
            let Outcome { retry_after, retry_at, remaining, capacity, reset_at, .. } = outcome(settled);
            let (name, key) = (Text::new(&settled.name), Text::new(&settled.key));
            rows.put(SettledRow { name, key, retry_after, retry_at, remaining, capacity, reset_at });
        }
        Ok(rows)
    }
}

/// Reads the use of a hold: a number, or an object of numbers by the names of limits. 22023.
fn read_use(used: Jsonb) -> Result<Used> {
    const MAX_BYTES: usize = 1_000_000;
    let json = used.to_exact_json("used", MAX_BYTES)?;
    // A number in jsonb may be beyond the range of a float.
    let value = serde_json::from_str(json).map_err(|_| bad_use("too large".into()))?;
    match value {
        Value::Number(number) => Ok(Used::Count(count(&number)?)),
        Value::Object(fields) => {
            let by_name = |(name, value): (String, Value)| match value {
                Value::Number(number) => Ok((server_text(&name), count(&number)?)),
                other => {
                    let name = Value::from(shortened(&name));
                    Err(bad_use(format!("{} for {name}", type_of(&other))))
                }
            };
            let counts = fields.into_iter().map(by_name);
            Ok(Used::ByName(counts.collect::<Result<_, ArgumentError>>()?))
        }
        other => Err(bad_use(type_of(&other).into()).into()),
    }
}

/// Reads a number of tokens.
fn count(number: &serde_json::Number) -> Result<f64, ArgumentError> {
    checked("used", number.as_f64().unwrap_or(f64::INFINITY))
}

/// Refuses a number of tokens that is out of range.
fn checked(argument: &'static str, used: f64) -> Result<f64, ArgumentError> {
    match (0.0..=MAX_TOKENS).contains(&used) {
        true => Ok(used),
        false => Err(ArgumentError::invalid(argument, float_text(used), USED)),
    }
}

/// The allowed numbers, in words.
const USED: &str = "a number from 0 to 1e15, or NULL";

fn bad_use(value: String) -> ArgumentError {
    let allowed = r#"a number from 0 to 1e15, an object of them by name, such as {"llmTokens": 2750}, or NULL"#;
    ArgumentError::invalid("used", value, allowed)
}

/// The type of a JSON value that is not a number.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The terms of a hold.
fn terms<'a>(ttl: &Ttl, id: &Option<HoldId<'a>>, on_expiry: OnExpiry) -> Terms<'a> {
    Terms { ttl: ttl.0, id: id.map(|id| id.0), charge: on_expiry.charge }
}

/// The outcome of a settlement.
fn outcome(settled: &Settled) -> Outcome {
    let outcome = settled.answer.as_ref().map(Outcome::from).unwrap_or_default();
    Outcome { limited_by: None, ..outcome }
}

/// PT429 with `throws` if a hold is denied.
fn refuse(list: &[Request], held: &[Held], throws: bool) -> Result<()> {
    let denied = || denied_of_all(list, || held.iter().map(|held| &held.answer));
    if throws && let Some(denied) = denied() { Err(denied) } else { Ok(()) }
}

/// The row of a hold.
fn held_row(held: &Held) -> HeldRow {
    HeldRow {
        ok: held.answer.ok,
        hold: held.id.as_deref().map(Text::new),
        held: held.count,
        expires_at: held.expires_at.and_then(time),
        outcome: (&held.answer).into(),
    }
}
