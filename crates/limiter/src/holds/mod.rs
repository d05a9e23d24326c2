//! Holds: takes that are settled later, with what was used, or expire.

use std::collections::BTreeMap;
use std::slice::from_ref;

use ratelimit_core::kinds::Lease;
use ratelimit_core::{ArgumentError, AsMany, Micros, Take, valid_tokens};

use crate::change::held::{HeldTake, Settlement, random_id};
use crate::change::{Ask, Change, Decided};
use crate::engine;
use crate::error::{LimiterError, NoHolds, Result};
use crate::ports::{Counted, Host};
pub use crate::request::Terms;
use crate::request::{Answer, Request};
use crate::several::{answer_of_call, in_order};
use crate::stores::expiry::Limits;
use crate::target::{Store, Target};

/// The outcome of a hold of a limit.
pub struct Held {
    /// The answer to the take.
    pub answer: Answer,
    /// The hold's id; `None`: there is no hold.
    pub id: Option<Vec<u8>>,
    /// The tokens that it holds now; if there is no hold and the call passes, the tokens that it would hold.
    pub count: f64,
    /// When it expires.
    pub expires_at: Option<Micros>,
}

/// A limit of a hold that was settled.
pub struct Settled {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, in the server's encoding.
    pub key: Vec<u8>,
    /// The answer, as of a credit; `None`: the limit is gone.
    pub answer: Option<Answer>,
}

/// The tokens used of a hold.
pub enum Used {
    /// All that it held.
    All,
    /// This number of tokens of each limit.
    Count(f64),
    /// These numbers of tokens of the limits with these names; all of the others.
    ByName(Vec<(Vec<u8>, f64)>),
}

impl Used {
    /// Returns the tokens used of the limit with this name; `None`: all that it held.
    fn of(&self, name: &[u8]) -> Option<f64> {
        match self {
            Used::All => None,
            Used::Count(used) => Some(*used),
            Used::ByName(used) => used.iter().find(|(of, _)| of == name).map(|&(_, used)| used),
        }
    }
}

/// Takes tokens and holds them, or extends what the id holds already; with `at_least` as many as there are.
///
/// # Errors
/// 0A000: [`LimiterError::NotForHolds`]; 22023: a number that is not a count, or `at_least` above `request.count`.
pub fn hold<H: Host>(
    host: &H,
    request: &Request,
    at_least: Option<f64>,
    terms: &Terms,
) -> Result<Held> {
    let id = id_of(host, terms)?;
    let ask = ask(host, true, request, at_least, (&id, terms))?;
    let held = run(host, true, from_ref(request), (&[0], &[ask]))?.pop();
    held.ok_or_else(LimiterError::not_written)
}

/// Takes tokens from all the limits and holds them, or none; takes only the tokens that the id doesn't hold already.
///
/// # Errors
/// The errors of [`hold`], each with the number of its request; 22023 also for two requests of one limit.
pub fn hold_all<H: Host>(host: &H, requests: &[Request], terms: &Terms) -> Result<Vec<Held>> {
    let id = id_of(host, terms)?;
    let mut sorted = BTreeMap::new();
    for (n, request) in requests.iter().enumerate() {
        let in_request = |error| LimiterError::in_request(n + 1, error);
        let ask = ask(host, false, request, None, (&id, terms));
        let ask = ask.map_err(in_request)?;
        if sorted.insert((request.name, request.key), (n, ask)).is_some() {
            let value = "a list with two requests for the same name and key";
            let error = ArgumentError::invalid("requests", value, "one request per name and key");
            return Err(in_request(error.into()));
        }
    }
    let (order, asks): (Vec<usize>, Vec<Ask>) = sorted.into_values().unzip();
    run(host, false, requests, (&order, &asks))
}

/// Makes asks, given with the numbers of their requests, and counts them. `alone`: as in [`ask`].
fn run<H: Host>(
    host: &H,
    alone: bool,
    requests: &[Request],
    (order, asks): (&[usize], &[Ask]),
) -> Result<Vec<Held>> {
    let outcome = engine::run(host, asks)?;
    let (ok, answer_of_call) = (outcome.ok, answer_of_call(&outcome));
    let mut all = Vec::with_capacity(asks.len());
    for ((&n, ask), decided) in order.iter().zip(asks).zip(&outcome.decided) {
        let (Change::Hold(asked), Some(change)) = (&ask.change, &decided.hold) else { continue };
        let (request, answer) = (&requests[n], &decided.answer);
        // Not counted: a request that already holds all that it asks for; in a refused call, one that its limit allows,
        // which took nothing because of another.
        if change.asks && (ok || !answer.ok) {
            let asked = (request.count - change.had).max(0.0);
            let count = if answer.ok { change.took } else { asked };
            let counter = host.counter(request.name, request.key)?;
            host.count(counter, Counted { count, ..request.counted(answer) });
        }
        // A denial leaves an existing hold as it is.
        let kept = if ok { change.after } else { change.before };
        all.push(Held {
            answer: answer_of_call(answer),
            id: kept.filter(|_| ok || alone).map(|_| asked.id.to_vec()),
            count: match ok {
                true => {
                    change.held(ask.target.limit(), request.count, answer.passes(), answer.enforced)
                }
                false => change.had,
            },
            expires_at: kept.map(|hold| hold.expires_at),
        });
    }
    Ok(in_order(order, all))
}

/// Makes the ask of a request for a hold with this id. `alone`: a hold of one limit, never of slots, since a lease is
/// such a hold.
fn ask<'a, H: Host>(
    host: &H,
    alone: bool,
    request: &Request<'a>,
    at_least: Option<f64>,
    (id, terms): (&'a [u8], &Terms<'a>),
) -> Result<Ask<'a>> {
    let target = Target::resolve(host, request)?;
    let limit = target.limit();
    let kind = limit.kind();
    let why = match target.store {
        _ if kind.has_leases() && alone => Some(NoHolds::Kind),
        Store::Memory | Store::Saved => Some(NoHolds::Memory),
        Store::Shards(_) => Some(NoHolds::Shards),
        Store::Row if kind.has_leases() => None,
        Store::Row => Some(NoHolds::Kind).filter(|_| !limit.can_be_credited()),
        Store::Nowhere => None,
    };
    if let Some(why) = why {
        let function = if alone { "rl_hold" } else { "rl_hold_all" };
        return Err(LimiterError::NotForHolds { function, name: target.name_text(), kind, why });
    }
    limit.check_tokens("count", request.count)?;
    if let Some(at_least) = at_least {
        AsMany { count: request.count, at_least }.check()?;
    }
    let lease = match limit.concurrency() {
        Some(_) => Some(Lease::random_id(host.unguessable()?)),
        None => None,
    };
    let config = request.config.filter(|_| !target.is_defined).map(|config| config.json());
    let take = Take { lease, at_least, ..request.tokens() };
    let change = Change::Hold(HeldTake { take, terms: *terms, id, config });
    Ok(Ask { target, change, entry: None })
}

/// The id of a hold: the one of the call, or a random one.
fn id_of<H: Host>(host: &H, terms: &Terms) -> Result<Vec<u8>> {
    terms.id.map_or_else(|| random_id(host), |id| Ok(id.to_vec()))
}

/// Settles the limits of a hold, in the order of name and key: gives back unused tokens, or takes the tokens used
/// beyond it. Leaves out limits that are gone by then; there are none if there is no such hold. `alone`: the hold is of
/// one limit.
///
/// # Errors
/// [`LimiterError::SeveralLimits`] (22023); 22023: `used` is not a number from 0 to 1e15.
pub fn settle<H: Host>(host: &H, id: &[u8], used: &Used, alone: bool) -> Result<Vec<Settled>> {
    let check = |used| valid_tokens("used", used).map(drop);
    match used {
        Used::All => {}
        Used::Count(used) => check(*used)?,
        Used::ByName(used) => used.iter().try_for_each(|&(_, used)| check(used))?,
    }
    host.refuse_read_only()?;
    let held = host.with_holds(|holds| holds.of_id(id))?;
    if held.is_empty() {
        return Ok(Vec::new());
    }
    if alone && held.len() > 1 {
        return Err(LimiterError::SeveralLimits(held.len()));
    }
    let mut asks = Vec::with_capacity(held.len());
    for row in &held {
        let (name, key) = (&row.name[..], &row.key[..]);
        let definition = Limits::new(host, (name, key), None)?.of(row)?;
        let target = Target::remaining::<H>(name, key, definition, None);
        let change = Change::Settle(Settlement { row, used: used.of(name) });
        asks.push(Ask { target, change, entry: None });
    }
    let settled = |(ask, decided): (&Ask, Decided)| {
        // It was settled before, or reset.
        decided.hold.as_ref()?.before?;
        let (name, key) = (ask.target.name.to_vec(), ask.target.key.to_vec());
        Some(Settled { name, key, answer: ask.target.is_defined.then_some(decided.answer) })
    };
    Ok(asks.iter().zip(engine::settle(host, &asks)?).filter_map(settled).collect())
}
