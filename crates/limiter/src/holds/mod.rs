//! Holds: takes that are settled later, with what was used, or expire.

pub mod prune;

use std::collections::BTreeMap;

use ratelimit_core::kinds::Lease;
use ratelimit_core::{ArgumentError, Micros};

use crate::change::held::{HeldTake, HoldChange, Settlement, random_id};
use crate::change::{Change, Decided};
use crate::engine::{self, Ask};
use crate::error::{LimiterError, NoHolds, Result};
use crate::ports::{Counted, HoldRow, Host};
pub use crate::request::Terms;
use crate::request::{Answer, Request, Take};
use crate::several::{RequestOutcome, request_outcome};
use crate::stores::expiry::Limits;
use crate::target::{Store, Target, check_at_least, check_count, valid_tokens};

/// The outcome of a hold of a limit.
pub struct Held {
    /// The outcome of the take.
    pub outcome: RequestOutcome,
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
    let take = Take { at_least, ..request.tokens() };
    let ask = ask(host, For::OneOfTokens, request, take, (&id, terms))?;
    let held = run(host, std::slice::from_ref(request), &[ask])?.pop();
    // A denial leaves an existing hold as it is.
    let with_id = |held: Held| Held { id: held.expires_at.map(|_| id), ..held };
    held.map(with_id).ok_or_else(LimiterError::not_written)
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
        let ask = ask(host, For::Several, request, request.tokens(), (&id, terms));
        let ask = ask.map_err(in_request)?;
        if sorted.insert((request.name, request.key), (n, ask)).is_some() {
            let value = "a list with two requests for the same name and key";
            let error = ArgumentError::invalid("requests", value, "one request per name and key");
            return Err(in_request(error.into()));
        }
    }
    let (order, asks): (Vec<usize>, Vec<Ask>) = sorted.into_values().unzip();
    let in_order: Vec<Request> = order.iter().map(|&n| requests[n].clone()).collect();
    let held = run(host, &in_order, &asks)?;
    let mut outcomes: Vec<(usize, Held)> = order.into_iter().zip(held).collect();
    outcomes.sort_by_key(|&(n, _)| n);
    Ok(outcomes.into_iter().map(|(_, held)| held).collect())
}

/// Makes the asks of these requests, one for each, and counts them.
fn run<H: Host>(host: &H, requests: &[Request], asks: &[Ask]) -> Result<Vec<Held>> {
    let outcome = engine::run(host, asks)?;
    let (ok, request_outcome) = (outcome.ok, request_outcome(&outcome));
    let mut all = Vec::with_capacity(asks.len());
    for ((request, ask), decided) in requests.iter().zip(asks).zip(&outcome.decided) {
        let (Change::Hold(asked), Some(change)) = (&ask.change, decided.hold()) else { continue };
        count(host, request, &decided.answer, change, ok)?;
        let limit = ask.target.limit();
        let kept = if ok { change.after } else { change.before };
        all.push(Held {
            outcome: request_outcome(&decided.answer),
            id: kept.filter(|_| ok).map(|_| asked.id.to_vec()),
            count: match ok {
                true => change.held(&decided.answer, limit, request.count),
                false => change.had,
            },
            expires_at: kept.map(|hold| hold.expires_at),
        });
    }
    Ok(all)
}

/// Counts a request of a hold, unless it takes nothing because it already holds all that it asks for.
fn count<H: Host>(
    host: &H,
    request: &Request,
    answer: &Answer,
    change: &HoldChange,
    ok: bool,
) -> Result<()> {
    // In a refused call, a request that its limit allows took nothing, because of another.
    let is_counted = change.asks && (ok || !answer.ok);
    if !is_counted {
        return Ok(());
    }
    let asked = (request.count - change.had).max(0.0);
    let count = if answer.ok { change.took } else { asked };
    let counter = host.counter(request.name, request.key)?;
    host.count(counter, Counted { count, ..request.counted(answer.verdict(), answer) });
    Ok(())
}

/// The functions that ask for holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// A hold of one limit, never of slots: a lease is such a hold.
    OneOfTokens,
    /// A hold of several limits.
    Several,
}

/// Makes the ask of a request for a hold with this id.
fn ask<'a, H: Host>(
    host: &H,
    of: For,
    request: &Request<'a>,
    take: Take,
    (id, terms): (&'a [u8], &Terms<'a>),
) -> Result<Ask<'a>> {
    let target = Target::resolve(host, request)?;
    let limit = target.limit();
    let kind = limit.kind();
    let why = match target.store {
        _ if kind.has_leases() && of == For::OneOfTokens => Some(NoHolds::Kind),
        Store::Memory | Store::Saved => Some(NoHolds::Memory),
        Store::Shards(_) => Some(NoHolds::Shards),
        Store::Row if kind.has_leases() => None,
        Store::Row => Some(NoHolds::Kind).filter(|_| !limit.can_be_credited()),
        Store::Nowhere => None,
    };
    if let Some(why) = why {
        let function = match of {
            For::OneOfTokens => "rl_hold",
            For::Several => "rl_hold_all",
        };
        return Err(LimiterError::NotForHolds { function, name: target.name_text(), kind, why });
    }
    check_count(limit, take.count)?;
    if let Some(at_least) = take.at_least {
        check_at_least(at_least, take.count)?;
    }
    let lease = match limit.concurrency() {
        Some(_) => Some(Lease::random_id(host.unguessable()?)),
        None => None,
    };
    let config = request.config.filter(|_| !target.is_defined).map(|config| config.json());
    let change = Change::Hold(HeldTake { take: Take { lease, ..take }, terms: *terms, id, config });
    Ok(Ask { target, change, entry: None })
}

/// The id of a hold: the one of the call, or a random one.
fn id_of<H: Host>(host: &H, terms: &Terms) -> Result<Vec<u8>> {
    terms.id.map_or_else(|| random_id(host), |id| Ok(id.to_vec()))
}

/// Settles a hold of one limit: gives back unused tokens, or takes the tokens used beyond it; `None`: there is no such
/// hold.
///
/// # Errors
/// [`LimiterError::SeveralLimits`] (22023); 22023: `used` is not a number from 0 to 1e15.
pub fn settle<H: Host>(host: &H, id: &[u8], used: Option<f64>) -> Result<Option<Settled>> {
    let used = used.map_or(Used::All, Used::Count);
    let held = held(host, id, &used)?;
    if held.len() > 1 {
        return Err(LimiterError::SeveralLimits(held.len()));
    }
    Ok(settle_held(host, held, &used)?.pop())
}

/// Settles all limits of a hold, in the order of name and key.
///
/// # Errors
/// 22023: not a number from 0 to 1e15.
pub fn settle_all<H: Host>(host: &H, id: &[u8], used: &Used) -> Result<Vec<Settled>> {
    settle_held(host, held(host, id, used)?, used)
}

/// Checks the numbers of a settlement, and reads what it settles.
fn held<H: Host>(host: &H, id: &[u8], used: &Used) -> Result<Vec<HoldRow>> {
    let check = |used| valid_tokens("used", used).map(drop);
    match used {
        Used::All => {}
        Used::Count(used) => check(*used)?,
        Used::ByName(used) => used.iter().try_for_each(|&(_, used)| check(used))?,
    }
    host.refuse_read_only()?;
    host.with_holds(|holds| holds.of_id(id))
}

/// Settles the limits of a hold, given in the order of name and key. Leaves out limits that are gone by then.
fn settle_held<H: Host>(host: &H, held: Vec<HoldRow>, used: &Used) -> Result<Vec<Settled>> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let mut definitions = Vec::with_capacity(held.len());
    for row in &held {
        definitions.push(Limits::new(host, &row.name, &row.key, None)?.of(row)?);
    }
    let asks: Vec<Ask> = held
        .iter()
        .zip(&definitions)
        .map(|(row, definition)| {
            let (name, key) = (&row.name[..], &row.key[..]);
            let target = Target::remaining::<H>(name, key, definition.clone(), None);
            let change = Change::Settle(Settlement { row: row.clone(), used: used.of(name) });
            Ask { target, change, entry: None }
        })
        .collect();
    let decided = engine::settle(host, &asks)?;
    let settled = |((row, definition), decided): ((&HoldRow, &Option<_>), Decided)| {
        // It was settled before, or reset.
        decided.hold()?.before?;
        let (name, key) = (row.name.clone(), row.key.clone());
        Some(Settled { name, key, answer: definition.as_ref().map(|_| decided.answer) })
    };
    Ok(held.iter().zip(&definitions).zip(decided).filter_map(settled).collect())
}
