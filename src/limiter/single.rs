//! One call from start to end: resolves the limit, reads the row, decides, writes.

use std::ops::ControlFlow;

use pgrx::pg_sys;
use ratelimit_core::config::{MAX_SLOTS_IN_MEMORY, MAX_TOKENS, Store as Kept};
use ratelimit_core::{Kind, Limit, Micros, Shards, State};

use crate::limiter::keys::each_key;
use crate::limiter::request::{Answer, Change, Request, Take, Target, bad_count, check_count};
use crate::limiter::slots::{Slots, is_further_slot};
use crate::limiter::tally::{self, Place, Verdict};
use crate::limiter::{definitions, in_memory, shards};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::transaction::{is_read_only, refuse_read_only_call};
use crate::store::memory::{Id, Memory, Scope};
use crate::store::{self, Row, Store, Stored, TRIES, with_locked};

/// Takes tokens.
///
/// # Errors
/// As [`definitions::resolve`](crate::limiter::definitions::resolve) and [`check_count`]; those of the
/// catalog and of the store; [`Error::BadState`] (55000): a value that no call writes.
///
/// [`Error::BadState`]: crate::pg::error::Error::BadState
pub fn limit(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    limit_if(function, request, |_| Ok(()))
}

/// Takes tokens, where a look at the target refuses nothing.
///
/// # Errors
/// As [`limit`], and those of `allowed`.
pub fn limit_if(
    function: pg_sys::Oid,
    request: &Request,
    allowed: impl Fn(&Target) -> Result<()>,
) -> Result<Answer> {
    catalog::with(function, lock_to_change(), |catalog| {
        let place = tally::place(catalog, request)?;
        if let Some(Place { memory, id }) = place {
            memory.states.prefetch(id);
        }
        let target = request.resolve(catalog)?;
        target.refuse_leases("rl_limit")?;
        check_count(&target.limit, request.count)?;
        allowed(&target)?;
        let mut answer = take(function, catalog, &target, request.take(), place)?;
        let verdict = match answer.ok {
            true => Verdict::Allowed,
            false => Verdict::Denied { enforced: answer.enforced },
        };
        tally::count(catalog, place, request, &answer, verdict);
        if !answer.enforced && !answer.ok {
            answer.let_pass();
        }
        Ok(answer)
    })
}

/// Takes tokens from a limit, or slots, unless the key is blocked.
///
/// # Errors
/// As [`change`].
pub(super) fn take(
    function: pg_sys::Oid,
    catalog: &Catalog,
    target: &Target,
    take: Take,
    place: Option<Place>,
) -> Result<Answer> {
    // Not asked for the time where there is none to compare it with.
    if target.blocked_until.is_some() && target.block(clock::now()).is_some() {
        let answer = look(catalog, target, take, true)?;
        // Otherwise it has just ended, and nothing was taken.
        if answer.blocked.is_some() {
            return Ok(answer);
        }
    }
    change(function, catalog, target, Change::Take(take), place)
}

/// Gives tokens back, or with a negative count takes them unconditionally.
///
/// # Errors
/// As [`limit`]; 22023: no count from -1e15 to 1e15; 0A000: a sliding kind.
pub fn credit(
    function: pg_sys::Oid,
    request: &Request,
    taken_at: Option<Micros>,
) -> Result<Answer> {
    catalog::with(function, lock_to_change(), |catalog| {
        let target = request.resolve(catalog)?;
        if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
            return Err(bad_count(request.count, "a number from -1e15 to 1e15"));
        }
        let credit = Change::Credit { count: request.count, taken_at };
        change(function, catalog, &target, credit, None)
    })
}

/// Returns the lock on the table that a change may need. Where the table can't be written, only
/// definitions are read, on a standby under no stronger one.
pub(super) fn lock_to_change() -> TableLock {
    if is_read_only() { TableLock::Read } else { TableLock::Write }
}

/// Makes a change where the limit is kept.
///
/// # Errors
/// As [`limit`] and [`credit`], but for the arguments; raises 25006 where the table is read-only.
fn change(
    function: pg_sys::Oid,
    catalog: &Catalog,
    target: &Target,
    change: Change,
    place: Option<Place>,
) -> Result<Answer> {
    match target.limit.store {
        _ if target.limit.kind() == Kind::Unlimited => {
            let now = clock::now();
            let decision =
                change.apply(&target.limit, &target.limit.initial_state(now, now), now)?;
            Ok(target.answer(&decision, decision.level, now))
        }
        Kept::Table => {
            refuse_read_only_call(function)?;
            store::with_store(catalog, TableLock::Write, |store| change_row(store, target, change))
        }
        Kept::Memory => {
            if let (Limit::Concurrency(limit), Change::Take(take)) = (&target.limit.limit, change) {
                let memory = Memory::get()?;
                let slots = Slots::of(limit.slots, memory, in_memory::id(memory, catalog, target));
                return Ok(in_memory::take_slots(&slots, memory, target, take));
            }
            let Place { memory, id } = match place {
                Some(place) => place,
                None => Place::of(Memory::get()?, catalog, target.name, target.key),
            };
            in_memory::change(memory, in_memory::in_its_room(id, target), target, change)
        }
    }
}

/// Reads the row, decides, and writes the new state: where the store can, in one step, which waits for
/// another transaction and after it begins anew, without a lock; otherwise after locking the row and
/// deciding again. A call that changes nothing is answered from a plain read of the latest committed state:
/// a denial takes no lock, writes nothing and never waits. That is right because transactions in progress
/// either take more or roll back to this state.
///
/// # Errors
/// As [`limit`] and [`credit`], but for the arguments.
fn change_row(store: &dyn Store, target: &Target, change: Change) -> Result<Answer> {
    if target.limit.shards() > 1 {
        return shards::change(store, target, change);
    }
    let id = target.row(0);
    let decide = |stored: Option<Stored>| -> Result<(Answer, Option<Stored>)> {
        let now = clock::now();
        let state = target.state(&target.limit, stored, now)?;
        let decision = change.apply(&target.limit, &state, now)?;
        let answer = target.answer(&decision, decision.level, now);
        Ok((answer, decision.state.map(Stored::State)))
    };
    let mut tries = TRIES;
    while tries > 0 {
        check_for_interrupts();
        tries -= 1;
        let Some(seen) = store.read(id)? else {
            let (answer, after) = decide(None)?;
            let Some(after) = after else { return Ok(answer) };
            if !store.insert(id, &after)? {
                continue;
            }
            if clock::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited for another session's insert, which rolled back. The key was full all the
            // time, so the call still passes, but at this instant.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, after) = decide(None)?;
            if let Some(after) = after {
                store.update(id, own.tuple, &after)?;
            }
            return Ok(answer);
        };
        if matches!(seen.stored, Stored::Marker) {
            // The rows are still those of a limit with shards.
            match shards::change_to_one(store, target, change)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        let (answer, after) = decide(Some(seen.stored.clone()))?;
        let Some(after) = after else { return Ok(answer) };
        if store.replace(id, &seen, &after, true)? {
            if clock::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited for a transaction that changed nothing in the end: decide again, at the time
            // of the lock.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, after) = decide(Some(seen.stored.clone()))?;
            store.update(id, own.tuple, &after.unwrap_or(seen.stored))?;
            return Ok(answer);
        }
        if store.replaces() {
            // Another call came first, after a wait or without one; it is no try that came to nothing.
            tries = TRIES;
            continue;
        }
        let mut denied = None;
        let changed = with_locked(store, id, |locked| {
            if matches!(locked.stored, Stored::Marker) {
                return Ok(None);
            }
            let (answer, after) = decide(Some(locked.stored))?;
            let Some(after) = after else {
                denied = Some(answer);
                return Ok(None);
            };
            store.update(id, locked.tuple, &after)?;
            Ok(Some(answer))
        })?;
        if let Some(answer) = changed.or(denied) {
            return Ok(answer);
        }
    }
    Err(store.not_written())
}

/// Answers as [`limit`] would, without locking or writing anything.
///
/// # Errors
/// As [`limit`].
pub fn check(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    catalog::with(function, TableLock::Read, |catalog| {
        let target = request.resolve(catalog)?;
        check_count(&target.limit, request.count)?;
        look(catalog, &target, request.take(), false)
    })
}

/// Tells what a call would be answered, without locking or writing anything; `dry_run_passes` as in
/// [`Target::blocked`].
///
/// # Errors
/// As [`check`].
fn look(catalog: &Catalog, target: &Target, take: Take, dry_run_passes: bool) -> Result<Answer> {
    let answer = |now: Micros, shards: Shards| match target.block(now) {
        Some(until) => target.blocked(until, &shards, now, take, dry_run_passes),
        None => {
            let decision = shards.decide(now, take.count, take.reserve);
            target.answer(&decision, shards.level(now), now)
        }
    };
    let of_one = |now, state| answer(now, Shards::new(&target.limit, vec![state]));
    match target.limit.store {
        _ if target.limit.kind() == Kind::Unlimited => {
            let now = clock::now();
            Ok(of_one(now, target.limit.initial_state(now, now)))
        }
        Kept::Table => store::with_store(catalog, TableLock::Read, |store| {
            let (now, holding) = shards::peek(store, target)?;
            Ok(answer(now, holding.shards))
        }),
        Kept::Memory => {
            let (now, state) = in_memory::peek(catalog, target)?;
            Ok(of_one(now, state))
        }
    }
}

/// Reads the state of a key: of a limit with shards their total; `None` where there is none, so that the
/// limit is full.
///
/// # Errors
/// As [`check`], but for the count.
pub fn state(function: pg_sys::Oid, request: &Request) -> Result<Option<State>> {
    catalog::with(function, TableLock::Read, |catalog| {
        let target = request.resolve(catalog)?;
        let (name, key) = (target.name, target.key);
        if target.limit.store == Kept::Memory {
            let memory = Memory::get()?;
            return Ok(in_memory::find(memory, in_memory::id(memory, catalog, &target), &target));
        }
        store::with_store(catalog, TableLock::Read, |store| {
            let stored =
                |row: &Row| row.stored.shape().is_some_and(|shape| target.limit.accepts(shape));
            if !store.read_key(name, key)?.iter().any(|(_, row)| stored(row)) {
                return Ok(None);
            }
            let (now, holding) = shards::peek(store, &target)?;
            Ok(Some(holding.shards.total(now)))
        })
    })
}

/// Resets a key; false if it had no state.
///
/// # Errors
/// Those of the catalog and of the store; 22004: the limit is keyed, and the key is empty.
pub fn reset(function: pg_sys::Oid, name: &[u8], key: &[u8]) -> Result<bool> {
    catalog::with(function, lock_to_change(), |catalog| {
        // What is defined nowhere, or not rightly, may have been taken by a config in the call.
        let limit = match definitions::of_state(catalog, name, key) {
            Err(Error::StoredConfig { .. }) => None,
            defined => defined?,
        };
        if let Some(limit) = &limit {
            definitions::check_key(name, key, limit.keyed, limit)?;
        }
        let in_memory_only = limit.as_ref().is_some_and(|limit| limit.store == Kept::Memory);
        // Of what is not defined, they may be as many as any limit has.
        let has_slots = limit.as_ref().is_none_or(|limit| limit.kind() == Kind::Concurrency);
        if !in_memory_only {
            refuse_read_only_call(function)?;
        }
        let memory = memory_to_forget(in_memory_only)?;
        let was_in_memory = memory.is_some_and(|memory| {
            let id = memory.id(Scope::new(catalog.extension), name, key);
            let forget = |id: Id, has_slots: bool| {
                let slots = || Slots::of(MAX_SLOTS_IN_MEMORY, memory, id).forget();
                let of_slots = has_slots && slots();
                memory.states.forget(id) || of_slots
            };
            // Of which kind a config in a call was no definition tells.
            let was_inline = forget(id.inline(), true);
            forget(id, has_slots) || was_inline
        });
        if in_memory_only {
            return Ok(was_in_memory);
        }
        let was_in_table =
            store::with_store(catalog, TableLock::Write, |store| store.reset(name, key))?;
        Ok(was_in_memory || was_in_table)
    })
}

/// Returns the memory in which states are to be forgotten; `None` where there is none and the limit
/// does not need it.
///
/// # Errors
/// As [`Memory::get`].
fn memory_to_forget(needed: bool) -> Result<Option<&'static Memory>> {
    if needed { Memory::get().map(Some) } else { tally::memory_if_any(false) }
}

/// Resets every key of a name; returns the number of keys that had a state. Rows are locked and
/// deleted key by key, in the order in which every call locks rows: a key that appears behind the
/// current one counts as created after the call.
///
/// # Errors
/// Those of the catalog and of the store.
pub fn reset_all(function: pg_sys::Oid, name: &[u8]) -> Result<i64> {
    // Outside, since the work begins again where the table has changed.
    let mut count = 0;
    catalog::with(function, lock_to_change(), |catalog| {
        let in_table = match definitions::may_be_in_table(catalog, name) {
            Err(Error::StoredConfig { .. }) => true,
            in_table => in_table?,
        };
        if in_table {
            refuse_read_only_call(function)?;
        }
        if let Some(memory) = memory_to_forget(!in_table)? {
            let id = memory.id(Scope::new(catalog.extension), name, b"");
            count += memory.states.forget_name(id, |kept| !is_further_slot(kept)) as i64;
        }
        if !in_table {
            return Ok(count);
        }
        store::with_store(catalog, TableLock::Write, |store| {
            let mut delete = |key: &[u8]| -> Result<()> {
                check_for_interrupts();
                count += i64::from(store.delete_key(name, key)?);
                Ok(())
            };
            delete(b"")?; // the first key, which comes after no other
            let _ = each_key(store, (name, b""), true, |found| {
                delete(&found.key)?;
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(count)
        })
    })
}
