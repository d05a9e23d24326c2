//! One limit: takes, checks, credits and resets. `apply` has each change made where the limit's state is.

use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::{AsMany, Micros, State};
use ratelimit_faults::Fault;

use crate::change::{Change, Contents};
use crate::error::{LimiterError, Result};
use crate::holds::expiry;
use crate::ports::{Counted, Definitions, Host, Id, RowAccess};
use crate::request::{Answer, Request, Take};
use crate::stores::{self, Peeked, memory, row, shards};
use crate::target::{
    FOREVER, Store, Target, bad_count, check_as_many, check_count, check_key, of_state,
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
    let target = Target::resolve(host, request)?;
    target.refuse_leases("rl_limit")?;
    check_count(target.limit(), request.count)?;
    allowed(&target)?;
    let answer = apply(host, &target, &Change::Take(request.tokens()), entry)?;
    host.count(counter, request.counted(answer.verdict(), &answer));
    Ok(answer.or_let_pass())
}

/// Takes as many tokens as there are up to `request.count`, if these are at least `at_least`: [`Answer::taken`]. A dry run
/// lets all of `request.count` pass, whatever the limit has; likewise an exempt key.
///
/// # Errors
/// 22023: numbers that are no counts, or `at_least` above `request.count`; [`LimiterError::BadState`] (55000).
pub fn take<H: Host>(host: &H, request: &Request, at_least: f64) -> Result<Answer> {
    let counter = host.counter(request.name, request.key)?;
    let entry = counter.map(|counter| host.entry_of(counter));
    let target = Target::resolve(host, request)?;
    target.refuse_leases("rl_take")?;
    check_as_many(target.limit(), AsMany { count: request.count, at_least })?;
    let take = Take { at_least: Some(at_least), ..request.tokens() };
    let answer = apply(host, &target, &Change::Take(take), entry)?;
    let counted = request.counted(answer.verdict(), &answer);
    host.count(counter, Counted { count: answer.taken, ..counted });
    let taken = if answer.enforced { answer.taken } else { request.count };
    Ok(Answer { taken, ..answer }.or_let_pass())
}

/// Applies a change to what a target has: locks, decides, and writes the state after it. What changes nothing is
/// answered from the latest committed state: it takes no lock, writes nothing and never waits; likewise a take while the
/// key is blocked. `entry` is the target's entry among those of defined limits, if that is known.
///
/// # Errors
/// [`LimiterError::BadState`] (55000); [`Host::refuse_read_only`].
pub(crate) fn apply<H: Host>(
    host: &H,
    target: &Target,
    change: &Change,
    entry: Option<Id>,
) -> Result<Answer> {
    if let &Change::Take(take) = change
        && let Some(answer) = blocked(host, target, take)?
    {
        return Ok(answer);
    }
    match target.store {
        Store::Nowhere => {
            let now = host.now();
            let state = target.limit().initial_state(now, now);
            Ok(change.decide(target, Contents::One(&state), now)?.answer)
        }
        Store::Row | Store::Shards(_) => {
            host.refuse_read_only()?;
            host.with_rows(RowAccess::Write, |rows| match target.store {
                Store::Shards(_) => shards::apply(host, rows, target, change),
                _ => row::apply(host, rows, target, change),
            })
        }
        Store::Memory | Store::Saved => memory::apply(host, target, entry, change),
    }
}

/// The answer to a take while the key is blocked; `None`: it is not.
fn blocked<H: Host>(host: &H, target: &Target, take: Take) -> Result<Option<Answer>> {
    // Not asked for the time where there is none to compare it with.
    let is_blocked = target.blocked_until.is_some() && target.block(host.now()).is_some();
    if !is_blocked || Fault::BlockOverlooked.is_on() {
        return Ok(None);
    }
    // Not blocked either: the block has just ended.
    Ok(Some(look(host, target, take, true)?).filter(|answer| answer.blocked.is_some()))
}

/// Gives tokens back, or with a negative count takes them unconditionally.
///
/// # Errors
/// 22023: no count from -1e15 to 1e15; 0A000: a sliding kind.
pub fn credit<H: Host>(host: &H, request: &Request, taken_at: Option<Micros>) -> Result<Answer> {
    let target = Target::resolve(host, request)?;
    if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
        return Err(bad_count(request.count, "a number from -1e15 to 1e15"));
    }
    apply(host, &target, &Change::Credit { count: request.count, taken_at }, None)
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, request: &Request) -> Result<Answer> {
    let target = Target::resolve(host, request)?;
    check_count(target.limit(), request.count)?;
    Ok(look(host, &target, request.tokens(), true)?.or_let_pass())
}

/// Returns what a call would return, without locking or writing anything; `dry_run_passes` as in
/// [`Target::blocked`].
pub(crate) fn look<H: Host>(
    host: &H,
    target: &Target,
    take: Take,
    dry_run_passes: bool,
) -> Result<Answer> {
    let answer = |&Peeked { now, ref shards, .. }: &Peeked| match target.block(now) {
        Some(until) => target.blocked(until, shards, now, take, dry_run_passes),
        None => {
            let decision = take.on_shards(shards, now, &mut 0.0);
            target.answer(&decision, shards.level(now), now)
        }
    };
    if let Some(answer) = without_holds(host, target, take, dry_run_passes)? {
        return Ok(answer);
    }
    let peeked = stores::peek(host, target)?;
    let first = answer(&peeked);
    // Only a limit in one row counts what expires.
    if first.ok || peeked.holds_due.is_none() {
        return Ok(first);
    }
    host.with_rows(RowAccess::Read, |rows| {
        expiry::in_one_state(host, rows, &[target], || {
            let peeked = stores::peek_rows(host, rows, target)?;
            let answer = answer(&peeked);
            match peeked.shards.states() {
                [state] if peeked.holds_due.is_some() && !answer.ok => {
                    let is_dry = dry_run_passes && !target.definition.enforce;
                    let passes = is_dry && answer.blocked.is_some();
                    expiry::denial(host, target, take, state, peeked.holds_due, answer, passes)
                }
                _ => Ok(answer),
            }
        })
    })
}

/// The answer to a call which no hold that has expired can change: that of a block, or a denial of more than the limit can
/// have. It counts only what the row has. `None`: nothing has expired, or it matters.
fn without_holds<H: Host>(
    host: &H,
    target: &Target,
    take: Take,
    dry_run_passes: bool,
) -> Result<Option<Answer>> {
    let may_be = target.block(host.now()).is_some() || take.never_passes(target, host.now());
    if !may_be || target.store != Store::Row {
        return Ok(None);
    }
    host.with_rows(RowAccess::Read, |rows| {
        let Some(Peeked { now, shards, .. }) = stores::peek_unexpired(host, rows, target)? else {
            return Ok(None);
        };
        let answer = match target.block(now) {
            Some(until) => target.blocked(until, &shards, now, take, dry_run_passes),
            None => {
                let decision = take.on_shards(&shards, now, &mut 0.0);
                target.answer(&decision, shards.level(now), now)
            }
        };
        // What expires may let it pass sooner after the end of the block.
        let is_final = match answer.blocked {
            Some(FOREVER) => true,
            Some(until) => answer.retry_after == Some(until.minus(now)),
            None => !answer.ok && take.never_passes(target, now),
        };
        Ok(Some(answer).filter(|_| is_final))
    })
}

/// What decides the calls of a key.
pub struct Value {
    /// Its config, or that of the call.
    pub definition: Rc<Definition>,
    /// Where its windows begin.
    pub phase: Micros,
    /// What is stored, as it is [`reported`](ratelimit_core::Limit::reported): of a limit with shards their total; `None`: nothing,
    /// so that it is full.
    pub state: Option<State>,
    /// The instant after that was read.
    pub now: Micros,
    /// Until when the key is blocked, or [`FOREVER`].
    pub blocked_until: Option<Micros>,
}

/// Reads what decides the calls of a key, without locking or writing anything.
///
/// # Errors
/// As [`check`].
pub fn value<H: Host>(host: &H, request: &Request) -> Result<Value> {
    let target = Target::resolve_to_look(host, request)?;
    let (now, stored) = stores::stored(host, &target)?;
    let state = stored.map(|state| target.limit().reported(state, now));
    // Its time fixes the phase while it lives, also where it is too late for a clock that was adjusted.
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
    // What is defined nowhere, or not rightly, may have been taken by a config in the call.
    let definition = match of_state(host, name, key) {
        Err(LimiterError::StoredConfig { .. }) => None,
        defined => defined?,
    };
    if let Some(definition) = &definition {
        // A key that the limit takes no more can be reset.
        let keyed = definition.keyed.filter(|&keyed| keyed);
        check_key::<H>(name, key, keyed, &definition.limit)?;
    }
    stores::forget(host, name, key, definition.as_ref())
}

/// Resets every key of a name, and adds the number of keys that had a state to `count`: also where it ends with an
/// error, so that it can go on.
pub fn reset_keys<H: Host>(host: &H, name: &[u8], count: &mut i64) -> Result<()> {
    let may_be_in_table = match Definitions::may_be_in_table(host, name) {
        Err(LimiterError::StoredConfig { .. }) => true,
        in_table => in_table?,
    };
    stores::forget_name(host, name, may_be_in_table, count)
}
