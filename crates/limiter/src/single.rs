//! One limit: takes, leases, checks, credits and resets. `apply` makes each change in the store of the limit's state.

use std::rc::Rc;
use std::slice::from_ref;

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::kinds::Lease;
use ratelimit_core::{ArgumentError, Micros, State, Take};

use crate::change::{Ask, Change};
use crate::engine;
use crate::error::{LimiterError, Result};
use crate::ports::{Counted, Host, RowAccess};
use crate::request::{Answer, Request};
use crate::stores::{self, memory};
use crate::target::{Store, Target, check_key, if_valid, of_state};

/// Takes tokens, unless `allowed` refuses the target.
pub fn limit<H: Host>(
    host: &H,
    request: &Request,
    allowed: impl Fn(&Target) -> Result<()>,
) -> Result<Answer> {
    take_as(host, "rl_limit", request, request.tokens(), allowed)
}

/// Takes as many tokens as there are up to `request.count`, if these are at least `at_least`: [`Answer::taken`]. A dry
/// run and an exempt key admit all of `request.count`, however many tokens are left.
///
/// # Errors
/// 22023: a number that is not a count, or `at_least` above `request.count`.
pub fn take<H: Host>(host: &H, request: &Request, at_least: f64) -> Result<Answer> {
    let take = Take { at_least: Some(at_least), ..request.tokens() };
    let answer = take_as(host, "rl_take", request, take, |_| Ok(()))?;
    let taken = if answer.enforced { answer.taken } else { request.count };
    Ok(Answer { taken, ..answer })
}

/// Takes slots; the answer has their lease.
///
/// # Errors
/// 0A000: the limit is of another kind.
pub fn acquire<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    // Not made from the clock, which may stand or step back, nor from stored data, which may be reset, pruned, rolled
    // back or lost: an earlier lease with this id would then release another's slots.
    let id = Lease::random_id(host.unguessable()?);
    let take = Take { lease: Some(id), ..request.tokens() };
    let answer = take_as(host, "rl_acquire", request, take, |_| Ok(()));
    answer.map_err(LimiterError::for_leases)
}

/// Takes what a request of this function asks for, and counts it.
#[inline]
fn take_as<H: Host>(
    host: &H,
    function: &'static str,
    request: &Request,
    take: Take,
    allowed: impl Fn(&Target) -> Result<()>,
) -> Result<Answer> {
    let counter = host.counter(request.name, request.key)?;
    let entry = counter.map(|counter| host.entry_of(counter));
    let ask = Ask { target: Target::resolve(host, request)?, change: Change::Take(take), entry };
    ask.target.check_kind(function, take.lease.is_some())?;
    take.check(ask.target.limit())?;
    allowed(&ask.target)?;
    let answer = apply(host, &ask)?;
    let count = if take.at_least.is_some() { answer.taken } else { request.count };
    host.count(counter, Counted { count, ..request.counted(&answer) });
    Ok(answer.or_let_pass())
}

/// Extends a lease; returns its new expiry, or `None` if it has expired or was released. If the key has become exempt,
/// its user may go on indefinitely.
pub fn extend<H: Host>(host: &H, request: &Request, id: Micros) -> Result<Option<Micros>> {
    let answer = change_lease(host, request, "rl_extend", Change::Extend(id))?;
    Ok(answer.map_or(Some(Micros::FOREVER), |answer| answer.lease.map(|lease| lease.expires_at)))
}

/// Releases a lease; false if it has expired or was released. If the key has become exempt, its slots are left to
/// expire.
pub fn release<H: Host>(host: &H, request: &Request, id: Micros) -> Result<bool> {
    let answer = change_lease(host, request, "rl_release", Change::Release(id))?;
    Ok(answer.is_some_and(|answer| answer.ok))
}

/// Extends or releases a lease, found by the key with which it was taken; `None`: the key is exempt.
fn change_lease<H: Host>(
    host: &H,
    request: &Request,
    function: &'static str,
    change: Change<'static>,
) -> Result<Option<Answer>> {
    let target = Target::resolve_checking(host, request, |_| false);
    let target = target.map_err(LimiterError::for_leases)?;
    if target.store == Store::Nowhere {
        return Ok(None);
    }
    target.check_kind(function, true)?;
    apply(host, &Ask { target, change, entry: None }).map(Some)
}

/// Makes a change of a target: locks, decides, and writes the state afterwards. If nothing changes, or a take's key is
/// blocked, answers from the latest committed state: takes no lock, writes nothing and never waits.
pub(crate) fn apply<H: Host>(host: &H, ask: &Ask) -> Result<Answer> {
    if let Some(answer) = denied_by_block(host, ask)? {
        return Ok(answer);
    }
    let target = &ask.target;
    match target.store {
        Store::Nowhere => {
            let now = host.now();
            let state = target.limit().initial_state(now, now);
            Ok(ask.decide(host, &ask.on(&state), None, now)?.answer)
        }
        Store::Row | Store::Shards(_) => {
            host.refuse_read_only()?;
            host.with_rows(RowAccess::Write, |rows| engine::run_one(host, rows, ask))
        }
        Store::Memory | Store::Saved => memory::apply(host, ask),
    }
}

/// The answer of a take of a blocked key. Asks for the time only if there is a block to compare it with.
#[inline]
pub(crate) fn denied_by_block<H: Host>(host: &H, ask: &Ask) -> Result<Option<Answer>> {
    if ask.target.blocked_until.is_none() || ask.block(host.now()).is_none() {
        return Ok(None);
    }
    // Without `blocked`, the block has just ended.
    Ok(Some(look(host, ask)?).filter(|answer| answer.blocked.is_some()))
}

/// Returns what a call would return, without locking or writing anything. Only a denial that expiries may end takes the
/// long way.
pub(crate) fn look<H: Host>(host: &H, ask: &Ask) -> Result<Answer> {
    let now = host.now();
    if ask.block(now).is_none() && !ask.never_passes(now) {
        let (found, now) = stores::peek(host, None, &ask.target, None)?;
        let decided = ask.decide(host, &found.shards, None, now)?;
        if decided.answer.ok || !found.has_holds() {
            return Ok(Answer { level: found.shards.level(now), ..decided.answer });
        }
    }
    let decided = engine::check(host, from_ref(ask))?.decided.pop();
    decided.map(|decided| decided.answer).ok_or_else(LimiterError::not_written)
}

/// Gives tokens back, or with a negative count takes them unconditionally.
///
/// # Errors
/// 22023: the count is not a number from -1e15 to 1e15; 0A000: a sliding kind.
pub fn credit<H: Host>(host: &H, request: &Request, taken_at: Option<Micros>) -> Result<Answer> {
    let target = Target::resolve(host, request)?;
    if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
        let allowed = "a number from -1e15 to 1e15";
        return Err(ArgumentError::tokens("count", request.count, allowed).into());
    }
    let change = Change::Credit { count: request.count, taken_at };
    apply(host, &Ask { target, change, entry: None })
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    let change = Change::Take(request.tokens());
    let ask = Ask { target: Target::resolve(host, request)?, change, entry: None };
    request.tokens().check(ask.target.limit())?;
    Ok(look(host, &ask)?.or_let_pass())
}

/// The facts that decide the calls of a key.
pub struct Value {
    /// The key's config, or the call's.
    pub definition: Rc<Definition>,
    /// The start of its windows.
    pub phase: Micros,
    /// The stored state, as [`reported`](ratelimit_core::Limit::reported); with shards, their total; `None`: nothing is
    /// stored, and the limit is full.
    pub state: Option<State>,
    /// The instant after the read.
    pub now: Micros,
    /// The end of the key's block, or [`Micros::FOREVER`]; `None`: it is not blocked.
    pub blocked_until: Option<Micros>,
}

/// Reads what decides the calls of a key, without locking or writing anything.
pub fn value<H: Host>(host: &H, request: &Request) -> Result<Value> {
    // A limit that takes no key now may have had keys before.
    let target = Target::resolve_checking(host, request, |keyed| keyed)?;
    let (stored, now) = stores::stored(host, &target)?;
    let state = stored.map(|state| target.limit().reported(state, now));
    // While the state lives, its time fixes the phase, even if too late for a clock that was adjusted.
    let phase = match &state {
        Some(State::Tokens(tokens)) => tokens.ts,
        _ => target.phase(),
    };
    let blocked_until = target.block(now);
    Ok(Value { phase, state, now, blocked_until, definition: target.definition })
}

/// Resets a key; false if it had no state.
///
/// # Errors
/// 22004: the limit is keyed, and the key is empty.
pub fn reset<H: Host>(host: &H, name: &[u8], key: &[u8]) -> Result<bool> {
    // Without a valid definition, tokens may have been taken with a config in the call.
    let definition = if_valid(of_state(host, name, key))?;
    if let Some(definition) = &definition {
        // A key can be reset even if the limit no longer takes one.
        let keyed = definition.keyed.filter(|&keyed| keyed);
        check_key::<H>(name, key, keyed, &definition.limit)?;
    }
    stores::forget(host, (name, key), definition.as_ref())
}

/// Resets every key of a name, and adds the number of keys that had a state to `count`, also if it ends with an error,
/// so that the caller can go on.
pub fn reset_keys<H: Host>(host: &H, name: &[u8], count: &mut i64) -> Result<()> {
    let in_table = if_valid(host.may_be_in_table(name).map(Some))?;
    let may_be_in_table = in_table.unwrap_or(true); // without a valid definition, as in `reset`
    stores::forget_name(host, name, may_be_in_table, count)
}
