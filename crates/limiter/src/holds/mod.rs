//! Holds: takes that are settled later, with what was used, or expire.

pub(crate) mod expiry;
pub mod prune;

mod settle;
mod take;

use std::collections::BTreeMap;

use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, Micros};

use crate::error::{LimiterError, NoHolds, Result};
use crate::ports::{Counted, Host, Verdict as Counts};
use crate::request::{Answer, Request};
use crate::several::RequestOutcome;
use crate::target::{Store, Target, check_count};

use expiry::can_be_credited;
use settle::check_used;
use take::{Verdict, Wanted};

/// On which terms a hold is taken.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// How long it lasts, from 1 ms to 366 days.
    pub ttl: Micros,
    /// Its id, from 1 to 200 bytes in the server's encoding; `None`: a random one.
    pub id: Option<&'a [u8]>,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
}

/// The outcome of a hold of a limit.
pub struct Held {
    /// The outcome of the take.
    pub outcome: RequestOutcome,
    /// The hold's id; `None`: there is no hold.
    pub id: Option<Vec<u8>>,
    /// The tokens that it holds now; where there is no hold and the call passes, those that it would.
    pub count: f64,
    /// When it expires.
    pub expires_at: Option<Micros>,
}

/// A limit of a hold that was settled.
pub struct Settled {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// The answer, as of a credit; `None`: there is no limit any more.
    pub answer: Option<Answer>,
}

/// What was used of a hold.
#[derive(Clone, Copy)]
pub enum Used<'a> {
    /// All that it held.
    All,
    /// This number of tokens of each limit.
    Count(f64),
    /// These numbers of tokens of the limits of these names; all of the others.
    ByName(&'a [(Vec<u8>, f64)]),
}

impl Used<'_> {
    /// What was used of the limit of this name; `None`: all that it held.
    fn of(&self, name: &[u8]) -> Option<f64> {
        match *self {
            Used::All => None,
            Used::Count(used) => Some(used),
            Used::ByName(used) => used.iter().find(|(of, _)| of == name).map(|&(_, used)| used),
        }
    }
}

/// Takes tokens and holds them, or extends what the id holds already; with `at_least` as many as there are.
///
/// # Errors
/// 0A000: [`LimiterError::NotForHolds`]; 22023: numbers that are no counts, or `at_least` above `request.count`.
pub fn hold<H: Host>(
    host: &H,
    request: &Request,
    at_least: Option<f64>,
    terms: &Terms,
) -> Result<Held> {
    let target = Target::resolve(host, request)?;
    let wanted = [wanted("rl_hold", request, target, at_least)?];
    let id = id_of(host, terms)?;
    let (mut verdicts, ok) = take::take(host, &wanted, &id, terms)?;
    let Some(verdict) = verdicts.pop() else { return Err(LimiterError::not_written()) };
    count(host, request, &wanted[0], &verdict, ok)?;
    let held = verdict.held(&wanted[0]);
    // A denial leaves what there is.
    let kept = verdict.after.or(verdict.before.as_ref().filter(|_| !ok).map(|row| row.hold));
    let never = is_never(&verdict);
    Ok(Held {
        outcome: RequestOutcome { never, answer: verdict.answer.or_let_pass() },
        id: kept.map(|_| id),
        count: held,
        expires_at: kept.map(|hold| hold.expires_at),
    })
}

/// Whether a refused request can never pass.
fn is_never(verdict: &Verdict) -> bool {
    !verdict.passes && verdict.decision.retry_after.is_none()
}

/// Counts a request of a hold, unless it takes nothing since it has all that it asks for.
fn count<H: Host>(
    host: &H,
    request: &Request,
    wanted: &Wanted,
    verdict: &Verdict,
    ok: bool,
) -> Result<()> {
    // In a refused call one that its limit allows took nothing, because of another.
    let is_counted = verdict.asks && (ok || !verdict.decision.ok);
    if !is_counted {
        return Ok(());
    }
    let asked = (wanted.count - verdict.had).max(0.0);
    let tokens = if verdict.decision.ok { verdict.took } else { asked };
    let counted_as = match (verdict.decision.ok, verdict.answer.enforced) {
        (true, _) => Counts::Allowed,
        (false, enforced) => Counts::Denied { enforced },
    };
    let counter = host.counter(request.name, request.key)?;
    let counted = request.counted(counted_as, &verdict.answer);
    host.count(counter, Counted { count: tokens, ..counted });
    Ok(())
}

/// What a request wants to be held.
///
/// # Errors
/// As [`hold`].
fn wanted<'a>(
    function: &'static str,
    request: &Request<'a>,
    target: Target<'a>,
    at_least: Option<f64>,
) -> Result<Wanted<'a>> {
    let kind = target.limit().kind();
    let why = match target.store {
        _ if kind.has_leases() && function == "rl_hold" => Some(NoHolds::Kind(kind)),
        Store::Memory | Store::Saved if kind.has_leases() => Some(NoHolds::SlotsInMemory),
        Store::Memory | Store::Saved => Some(NoHolds::Memory),
        Store::Shards(_) => Some(NoHolds::Shards),
        Store::Row if kind.has_leases() => None,
        Store::Row => Some(NoHolds::Kind(kind)).filter(|_| !can_be_credited(target.limit())),
        Store::Nowhere => None,
    };
    if let Some(why) = why {
        return Err(LimiterError::NotForHolds { function, name: target.name_text(), why });
    }
    check_count(target.limit(), request.count)?;
    if let Some(at_least) = at_least {
        check_at_least(at_least, request.count)?;
    }
    let config = request.config.filter(|_| !target.is_defined).map(|config| config.json());
    Ok(Wanted { target, count: request.count, reserve: request.reserve, at_least, config })
}

/// Checks the least that a hold is to have.
///
/// # Errors
/// 22023: it is no number from 0 to the count.
fn check_at_least(at_least: f64, count: f64) -> Result<()> {
    if (0.0..=count).contains(&at_least) {
        return Ok(());
    }
    let allowed = format!("a number from 0 to count, which is {}", float_text(count));
    Err(ArgumentError::invalid("at_least", float_text(at_least), allowed).into())
}

/// The id of a hold: that of the call, or a random one.
fn id_of<H: Host>(host: &H, terms: &Terms) -> Result<Vec<u8>> {
    terms.id.map_or_else(|| random_id(host), |id| Ok(id.to_vec()))
}

/// A random id, as text of a UUID (version 4).
fn random_id<H: Host>(host: &H) -> Result<Vec<u8>> {
    let (high, low) = (host.unguessable()?, host.unguessable()?);
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    let (d, e) = (low >> 48, low & 0xffff_ffff_ffff);
    Ok(format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}").into_bytes())
}

/// Settles a hold of one limit: gives back what was not used, or takes what was used beyond it; `None`: there is no such
/// hold.
///
/// # Errors
/// [`LimiterError::SeveralLimits`] (22023); 22023: `used` is no number from 0 to 1e15.
pub fn settle<H: Host>(host: &H, id: &[u8], used: Option<f64>) -> Result<Option<Settled>> {
    used.map_or(Ok(()), check_used)?;
    host.refuse_read_only()?;
    let held = host.with_holds(|holds| holds.of_id(id))?;
    if held.is_empty() {
        return Ok(None);
    }
    if held.len() > 1 {
        return Err(LimiterError::SeveralLimits { limits: held.len() });
    }
    let used = used.map_or(Used::All, Used::Count);
    Ok(settle::settle(host, held, &used)?.pop())
}

/// Settles all limits of a hold, in the order of name and key.
///
/// # Errors
/// 22023: a number is none from 0 to 1e15.
pub fn settle_all<H: Host>(host: &H, id: &[u8], used: &Used) -> Result<Vec<Settled>> {
    match *used {
        Used::All => {}
        Used::Count(used) => check_used(used)?,
        Used::ByName(used) => used.iter().try_for_each(|&(_, used)| check_used(used))?,
    }
    host.refuse_read_only()?;
    let held = host.with_holds(|holds| holds.of_id(id))?;
    if held.is_empty() {
        return Ok(Vec::new());
    }
    settle::settle(host, held, used)
}

/// Takes tokens from all the limits and holds them, or none; of what the id holds already takes only what is missing.
///
/// # Errors
/// Those of [`hold`], each with the number of its request; 22023 also for two requests of one limit.
pub fn hold_all<H: Host>(host: &H, requests: &[Request], terms: &Terms) -> Result<Vec<Held>> {
    let mut sorted = BTreeMap::new();
    for (n, request) in requests.iter().enumerate() {
        let in_request = |error| LimiterError::in_request(n + 1, error);
        let target = Target::resolve(host, request).map_err(in_request)?;
        let wanted = wanted("rl_hold_all", request, target, None).map_err(in_request)?;
        if sorted.insert((request.name, request.key), (n, wanted)).is_some() {
            let value = "a list with two requests for the same name and key";
            let error = ArgumentError::invalid("requests", value, "one request per name and key");
            return Err(in_request(error.into()));
        }
    }
    let (order, wanted): (Vec<usize>, Vec<Wanted>) = sorted.into_values().unzip();
    let id = id_of(host, terms)?;
    let (verdicts, ok) = take::take(host, &wanted, &id, terms)?;
    let never = !ok && verdicts.iter().any(is_never);
    let mut outcomes = Vec::with_capacity(requests.len());
    for ((n, wanted), verdict) in order.into_iter().zip(&wanted).zip(verdicts) {
        count(host, &requests[n], wanted, &verdict, ok)?;
        let held = if ok { verdict.held(wanted) } else { verdict.had };
        let kept = match ok {
            true => verdict.after,
            false => verdict.before.as_ref().map(|row| row.hold),
        };
        let is_never = is_never(&verdict);
        let waits = if ok { verdict.decision.ok } else { !(verdict.passes || never) };
        let retry_after = verdict.answer.retry_after.filter(|_| waits);
        let level = if ok { verdict.answer.level } else { verdict.level };
        let answer = Answer { ok, retry_after, level, ..verdict.answer };
        outcomes.push((
            n,
            Held {
                outcome: RequestOutcome { never: is_never, answer },
                id: verdict.after.filter(|_| ok).map(|_| id.clone()),
                count: held,
                expires_at: kept.map(|hold| hold.expires_at),
            },
        ));
    }
    outcomes.sort_by_key(|&(n, _)| n);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
