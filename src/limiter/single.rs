//! One call from start to end: resolve the limit, read the row, decide, write.

use std::ops::ControlFlow;

use pgrx::pg_sys;
use ratelimit_core::config::MAX_TOKENS;
use ratelimit_core::{Micros, State};

use crate::limiter::keys::each_key;
use crate::limiter::request::{Answer, Change, Request, Target, bad_count, check_count};
use crate::limiter::shards;
use crate::pg::catalog::{self, TableLock};
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::store::{self, Store, TRIES, is_marker};

/// Takes tokens.
pub fn limit(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    catalog::with(function, TableLock::Write, |catalog| {
        let target = request.resolve(catalog)?;
        check_count(&target.limit, request.count)?;
        let take = Change::Take { count: request.count, reserve: request.reserve };
        store::with_store(catalog, TableLock::Write, |store| change(store, &target, take))
    })
}

/// Gives tokens back, or with a negative count takes them unconditionally.
///
/// # Errors
/// [`Error::NotForKind`] for the sliding kinds.
pub fn credit(
    function: pg_sys::Oid,
    request: &Request,
    taken_at: Option<Micros>,
) -> Result<Answer> {
    catalog::with(function, TableLock::Write, |catalog| {
        let target = request.resolve(catalog)?;
        if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
            return Err(bad_count(request.count, "a number from -1e15 to 1e15"));
        }
        let credit = Change::Credit { count: request.count, taken_at };
        store::with_store(catalog, TableLock::Write, |store| change(store, &target, credit))
    })
}

/// Reads a row, decides, and writes what was decided, in one step where the store can and nobody
/// else got there first; otherwise the row is locked and looked at again. What changes nothing is
/// answered from a plain read of the latest committed state: a denial takes no lock, writes nothing
/// and waits for nobody. That is right because what is in flight can only take more, or roll back to
/// this state.
fn change(store: &dyn Store, target: &Target, change: Change) -> Result<Answer> {
    if target.limit.shards() > 1 {
        return shards::change(store, target, change);
    }
    let id = target.row(0);
    let decide = |stored: Option<State>| -> Result<(Answer, Option<State>)> {
        let now = clock::now();
        let state = target.state(&target.limit, stored, now)?;
        let decision = change.apply(&target.limit, &state, now)?;
        Ok((target.answer(&decision, decision.level, now), decision.state))
    };
    for _ in 0..TRIES {
        check_for_interrupts();
        let Some(seen) = store.read(id)? else {
            let (answer, state) = decide(None)?;
            let Some(state) = state else { return Ok(answer) };
            if !store.insert(id, &state)? {
                continue;
            }
            if clock::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited, for another session's insert that rolled back. The key was full all the
            // time, so the call still passes; but it does so now.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, state) = decide(None)?;
            if let Some(state) = state {
                store.update(id, own.tuple, &state)?;
            }
            return Ok(answer);
        };
        if is_marker(Some(&seen.state)) {
            // The limit had shards until lately.
            let (now, holding) = shards::look(store, target)?;
            let decision = change.decide(&target.limit, &holding.parts, now)?;
            if decision.state.is_none() {
                return Ok(target.answer(&decision, holding.parts.level(now), now));
            }
            shards::rearrange(store, target)?;
            continue;
        }
        let (answer, state) = decide(Some(seen.state.clone()))?;
        let Some(state) = state else { return Ok(answer) };
        if store.replace(id, &seen, &state, true)? {
            if clock::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited, for another transaction that in the end changed nothing: decide again at the
            // time of the lock.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, state) = decide(Some(seen.state.clone()))?;
            store.update(id, own.tuple, &state.unwrap_or(seen.state))?;
            return Ok(answer);
        }
        // The lock may have been waited for: look at the row, and at the clock, again.
        let Some(locked) = store.lock(id)? else { continue };
        if is_marker(Some(&locked.state)) {
            continue;
        }
        let (answer, state) = decide(Some(locked.state))?;
        if let Some(state) = state {
            store.update(id, locked.tuple, &state)?;
        }
        return Ok(answer);
    }
    Err(store.not_written())
}

/// Tells what [`limit`] would answer, consuming, locking and writing nothing.
pub fn check(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    catalog::with(function, TableLock::Read, |catalog| {
        let target = request.resolve(catalog)?;
        check_count(&target.limit, request.count)?;
        store::with_store(catalog, TableLock::Read, |store| {
            let (now, holding) = shards::look(store, &target)?;
            let decision = holding.parts.decide(now, request.count, request.reserve);
            Ok(target.answer(&decision, holding.parts.level(now), now))
        })
    })
}

/// Forgets the state of a key; whether there was any.
pub fn reset(function: pg_sys::Oid, name: &[u8], key: &[u8]) -> Result<bool> {
    catalog::with(function, TableLock::Write, |catalog| {
        store::with_store(catalog, TableLock::Write, |store| store.reset(name, key))
    })
}

/// Forgets the state of every key of a name; of how many there was any. The rows are locked and
/// deleted key by key, in the order in which everybody locks rows: a key that appears behind the one
/// that it has reached is as one that appears after the call.
pub fn reset_all(function: pg_sys::Oid, name: &[u8]) -> Result<i64> {
    // Out here, since it begins again where the table has changed.
    let mut were = 0;
    catalog::with(function, TableLock::Write, |catalog| {
        store::with_store(catalog, TableLock::Write, |store| {
            let mut delete = |key: &[u8]| -> Result<()> {
                check_for_interrupts();
                were += i64::from(store.delete_key(name, key)?);
                Ok(())
            };
            delete(b"")?; // which comes first, and after no other
            let _ = each_key(store, (name, b""), true, |found| {
                delete(&found.key)?;
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(were)
        })
    })
}
