//! One limit: takes, checks, credits and resets. `apply` makes each change in the store of the limit's state.

use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::{AsMany, Micros, State};

use crate::change::{Change, Contents};
use crate::engine::{self, Ask};
use crate::error::{LimiterError, Result};
use crate::ports::{Counted, Host, RowAccess};
use crate::request::{Answer, Request, Take};
use crate::stores::{self, memory};
use crate::target::{
    Store, Target, bad_tokens, check_as_many, check_count, check_key, if_valid, of_state,
};

/// Takes tokens, unless `allowed` refuses the target.
///
/// # Errors
/// [`LimiterError::BadState`] (55000): a value that no call writes.
pub fn limit<H: Host>(
    host: &H,
    request: &Request,
    allowed: impl Fn(&Target) -> Result<()>,
) -> Result<Answer> {
    let counter = host.counter(request.name, request.key)?;
    let entry = counter.map(|counter| host.entry_of(counter));
    let change = Change::Take(request.tokens());
    let ask = Ask { target: Target::resolve(host, request)?, change, entry };
    ask.target.refuse_leases("rl_limit")?;
    check_count(ask.target.limit(), request.count)?;
    allowed(&ask.target)?;
    let answer = apply(host, &ask)?;
    host.count(counter, request.counted(answer.verdict(), &answer));
    Ok(answer.or_let_pass())
}

/// Takes as many tokens as there are up to `request.count`, if these are at least `at_least`: [`Answer::taken`]. A dry
/// run and an exempt key admit all of `request.count`, however many tokens are left.
///
/// # Errors
/// 22023: a number that is not a count, or `at_least` above `request.count`; [`LimiterError::BadState`] (55000).
pub fn take<H: Host>(host: &H, request: &Request, at_least: f64) -> Result<Answer> {
    let counter = host.counter(request.name, request.key)?;
    let entry = counter.map(|counter| host.entry_of(counter));
    let target = Target::resolve(host, request)?;
    target.refuse_leases("rl_take")?;
    check_as_many(target.limit(), AsMany { count: request.count, at_least })?;
    let take = Take { at_least: Some(at_least), ..request.tokens() };
    let answer = apply(host, &Ask { target, change: Change::Take(take), entry })?;
    let counted = request.counted(answer.verdict(), &answer);
    host.count(counter, Counted { count: answer.taken, ..counted });
    let taken = if answer.enforced { answer.taken } else { request.count };
    Ok(Answer { taken, ..answer }.or_let_pass())
}

/// Makes a change of a target: locks, decides, and writes the state afterwards. If nothing changes, or a take's key is
/// blocked, answers from the latest committed state: takes no lock, writes nothing and never waits.
///
/// # Errors
/// [`LimiterError::BadState`] (55000); [`Host::refuse_read_only`].
pub(crate) fn apply<H: Host>(host: &H, ask: &Ask) -> Result<Answer> {
    if let Some(answer) = denied_by_block(host, ask)? {
        return Ok(answer);
    }
    let Ask { target, change, .. } = ask;
    match target.store {
        Store::Nowhere => {
            let now = host.now();
            let state = target.limit().initial_state(now, now);
            Ok(change.decide(host, target, Contents::One(target.limit(), &state), now)?.answer)
        }
        Store::Row | Store::Shards(_) => {
            host.refuse_read_only()?;
            host.with_rows(RowAccess::Write, |rows| engine::run_one(host, rows, ask))
        }
        Store::Memory | Store::Saved => memory::apply(host, target, change, ask.entry),
    }
}

/// The answer of a take of a blocked key. Asks for the time only if there is a block to compare it with.
#[inline]
pub(crate) fn denied_by_block<H: Host>(host: &H, ask: &Ask) -> Result<Option<Answer>> {
    let Ask { target, change, .. } = ask;
    if target.blocked_until.is_none() || change.block(target, host.now()).is_none() {
        return Ok(None);
    }
    // Without `blocked`, the block has just ended.
    Ok(Some(look(host, ask)?).filter(|answer| answer.blocked.is_some()))
}

/// Returns what a call would return, without locking or writing anything. Only a denial that expiries may end takes the
/// long way.
pub(crate) fn look<H: Host>(host: &H, ask: &Ask) -> Result<Answer> {
    let Ask { target, change, .. } = ask;
    let now = host.now();
    if change.block(target, now).is_none() && !change.never_passes(target, now) {
        let (found, now) = stores::peek(host, None, target, None)?;
        let decided = change.decide(host, target, Contents::All(&found.shards, None), now)?;
        if decided.answer.ok || !found.has_holds() {
            return Ok(Answer { level: found.shards.level(now), ..decided.answer });
        }
    }
    let decided = engine::check(host, std::slice::from_ref(ask))?.decided.pop();
    decided.map(|decided| decided.answer).ok_or_else(LimiterError::not_written)
}

/// Gives tokens back, or with a negative count takes them unconditionally.
///
/// # Errors
/// 22023: the count is not a number from -1e15 to 1e15; 0A000: a sliding kind.
pub fn credit<H: Host>(host: &H, request: &Request, taken_at: Option<Micros>) -> Result<Answer> {
    let target = Target::resolve(host, request)?;
    if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
        return Err(bad_tokens("count", request.count, "a number from -1e15 to 1e15"));
    }
    let change = Change::Credit { count: request.count, taken_at };
    apply(host, &Ask { target, change, entry: None })
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    let change = Change::Take(request.tokens());
    let ask = Ask { target: Target::resolve(host, request)?, change, entry: None };
    check_count(ask.target.limit(), request.count)?;
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
    /// The end of the key's block, or [`FOREVER`](crate::target::FOREVER); `None`: it is not blocked.
    pub blocked_until: Option<Micros>,
}

/// Reads what decides the calls of a key, without locking or writing anything.
///
/// # Errors
/// As [`check`].
pub fn value<H: Host>(host: &H, request: &Request) -> Result<Value> {
    let target = Target::resolve_to_look(host, request)?;
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
    stores::forget(host, name, key, definition.as_ref())
}

/// Resets every key of a name, and adds the number of keys that had a state to `count`, also if it ends with an error,
/// so that the caller can go on.
pub fn reset_keys<H: Host>(host: &H, name: &[u8], count: &mut i64) -> Result<()> {
    let may_be_in_table = match host.may_be_in_table(name) {
        Err(LimiterError::StoredConfig { .. }) => true,
        in_table => in_table?,
    };
    stores::forget_name(host, name, may_be_in_table, count)
}
