//! Forgets whole rows: those of a key that is reset, and idle ones.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use ratelimit_core::{Limit, Micros, State};
use ratelimit_faults::Fault;

use super::expiry;
use super::shards::contents::{of_shards, shard_limit_of, shards_of};
use super::with_locked;
use crate::error::{LimiterError, Result};
use crate::keys::{Listing, each_key};
use crate::ports::{Host, Key, KeyRows, KeyedRow, Row, RowId, Rows, ShardRow, Stored, TRIES};
use crate::target::{FOREVER, Store, Target};

/// Whether rows of a key hold a state that a limit uses.
pub(super) fn has_state(limit: &Limit, rows: &[ShardRow]) -> bool {
    rows.iter().any(|(_, row)| row.stored.suits(limit) == Some(true))
}

/// Whether two lists have rows of the same shard numbers.
fn same_rows(one: &[ShardRow], other: &[ShardRow]) -> bool {
    one.iter().map(|(shard, _)| shard).eq(other.iter().map(|(shard, _)| shard))
}

/// Locks a row; `None` if it is gone.
///
/// # Errors
/// [`LimiterError::Busy`]: it is locked, and `wait` is false.
pub(super) fn lock_or_busy(rows: &dyn Rows, id: RowId, wait: bool) -> Result<Option<Row>> {
    let row = rows.lock(id, wait)?;
    if !wait && row.is_none() && rows.read(id)?.is_some() {
        return Err(LimiterError::Busy);
    }
    Ok(row)
}

/// Locks all rows of a key, in ascending order. The number of shards may change between the list of the rows and the
/// locks, so they are listed again until all of them are locked. Such a change locks row 0 first, so none can follow
/// once row 0 is locked here. Rows behind a missing row are not locked: a row may appear in its place, which comes
/// before them.
pub(super) fn lock_key(
    host: &impl Host,
    rows: &dyn Rows,
    name: &[u8],
    key: &[u8],
    wait: bool,
) -> Result<Vec<ShardRow>> {
    let mut listed = rows.read_key(name, key, None)?;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let mut locked = Vec::new();
        for (shard, _) in listed {
            let Some(row) = lock_or_busy(rows, RowId { name, key, shard }, wait)? else { break };
            locked.push((shard, row));
        }
        listed = rows.read_key(name, key, None)?;
        if same_rows(&listed, &locked) || Fault::RowsListedOnce.is_on() {
            return Ok(locked);
        }
    }
    Err(LimiterError::not_written())
}

/// Resets the rows of a key; false if none had a state.
pub fn reset_key(host: &impl Host, rows: &dyn Rows, name: &[u8], key: &[u8]) -> Result<bool> {
    let id = RowId { name, key, shard: 0 };
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let seen = rows.read(id)?.filter(|seen| !seen.stored.is_marker());
        let Some(seen) = seen else { return reset_shards(host, rows, name, key) };
        let reset = seen.stored.reset().filter(|_| !Fault::ResetSkipped.is_on());
        let Some(reset) = reset else { return Ok(false) };
        if rows.replace(id, &seen, &reset.into(), false)? {
            return Ok(true);
        }
        // Nothing is written if it is a marker or was reset by now, which the next read shows.
        let was_reset = with_locked(host, rows, id, |row| {
            let reset = row.stored.reset().filter(|_| !row.stored.is_marker());
            reset.map(|reset| rows.update(id, row.tuple, &reset.into())).transpose()
        })?;
        if was_reset.is_some() {
            return Ok(true);
        }
    }
    Err(LimiterError::not_written())
}

/// Resets the rows of a key with shards; false if none had a state.
fn reset_shards(host: &impl Host, rows: &dyn Rows, name: &[u8], key: &[u8]) -> Result<bool> {
    // If no row has anything to forget, all are released again.
    let reset = host.attempt(|| {
        let mut was = None;
        let locked = match Fault::ResetWithoutLocks.is_on() {
            true => rows.read_key(name, key, None)?,
            false => lock_key(host, rows, name, key, true)?,
        };
        for (shard, row) in locked {
            if let Some(reset) = row.stored.reset() {
                rows.update(RowId { name, key, shard }, row.tuple, &reset.into())?;
                was = Some(());
            }
        }
        Ok(was)
    })?;
    Ok(reset.is_some())
}

/// A set of names and keys, in the order in which rows are locked.
pub(crate) type Keys = BTreeSet<Key>;

/// Lists the keys that have holds, of one name or one key if given; with `held`, only those that hold tokens now. See
/// [`KeyHolds::keys`](crate::ports::KeyHolds::keys).
pub(crate) fn holders<H: Host>(
    host: &H,
    name: Option<&[u8]>,
    key: Option<&[u8]>,
    held: bool,
) -> Result<Keys> {
    match host.has_holds() {
        true => {
            let held_at = held.then(|| host.now());
            host.with_key_holds(|holds| holds.keys(name, key, held_at))
        }
        false => Ok(Keys::new()),
    }
}

/// Forgets the keys of a listing one by one, in the order in which every call locks rows: those with rows by `forget`,
/// which returns whether the key had a state, and those with holds alone. Passes the name of each key that had a state
/// to `had`.
pub(crate) fn forget_keys<H: Host>(
    host: &H,
    rows: &dyn Rows,
    listing: Listing,
    mut forget: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    mut had: impl FnMut(Vec<u8>),
) -> Result<()> {
    let forget_held = |held: Keys, wait: bool, had: &mut dyn FnMut(Vec<u8>)| {
        held.into_iter().try_for_each(|(name, key)| {
            host.check_for_interrupts();
            if forget_holds(host, rows, &name, &key, wait)? {
                had(name);
            }
            Ok(())
        })
    };
    let mut held = holders(host, listing.name, listing.key, false)?;
    let _ = each_key(host, rows, listing, |KeyRows { name, key, .. }| {
        let own = (name, key);
        let later = held.split_off(&own);
        forget_held(std::mem::replace(&mut held, later), true, &mut had)?;
        if forget(&own.0, &own.1)? {
            had(own.0);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    forget_held(held, true, &mut had)?; // after the rows of all keys before them
    // Holds that came meanwhile, of keys that are locked here; others would be locked out of order.
    let held = holders(host, listing.name, listing.key, false)?;
    forget_held(held, false, &mut had)
}

/// Deletes the holds of a key under the lock of its row 0, which a new hold waits for; if there is no row, under the
/// lock of one that is deleted afterwards. Resets a state that has come meanwhile; false if none has. Without `wait`,
/// leaves a key that another session has, or that has shards, as it is.
pub(crate) fn forget_holds<H: Host>(
    host: &H,
    rows: &dyn Rows,
    name: &[u8],
    key: &[u8],
    wait: bool,
) -> Result<bool> {
    let id = RowId { name, key, shard: 0 };
    for _ in 0..TRIES {
        host.check_for_interrupts();
        if let Some(row) = rows.lock(id, wait)? {
            if !wait && row.stored.is_marker() {
                return Ok(false);
            }
            let was = reset_key(host, rows, name, key)?;
            expiry::forget(host, id)?;
            return Ok(was);
        }
        if !wait && rows.read(id)?.is_some() {
            return Ok(false);
        }
        if rows.insert(id, &Stored::Reset { ts: host.now() }.into(), wait)? {
            expiry::forget(host, id)?;
            let own = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
            rows.delete(id, own.tuple)?;
            return Ok(false);
        }
    }
    Err(LimiterError::not_written())
}

/// Deletes the rows of a key; false if none had a state.
pub fn delete_key(host: &impl Host, rows: &dyn Rows, name: &[u8], key: &[u8]) -> Result<bool> {
    let locked = lock_key(host, rows, name, key, true)?;
    delete_locked(rows, name, key, &locked)?;
    Ok(locked.iter().any(|(_, row)| row.stored.reset().is_some()))
}

/// Deletes the rows of a name, and adds the number of keys that had a state to `count`; false: they are to be deleted
/// key by key.
pub fn delete_name(
    host: &impl Host,
    rows: &dyn Rows,
    name: &[u8],
    count: &mut i64,
) -> Result<bool> {
    let (mut keys, mut sharded) = (BTreeSet::new(), None);
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let Some(deleted) = rows.delete_name(name)? else { return Ok(false) };
        // A session that reshards a key meanwhile has written rows that were not seen: repeat until such keys have
        // none.
        let is_shard = |row: &&KeyedRow| row.row.0 != 0 || row.row.1.stored.is_marker();
        let sharded = sharded.get_or_insert_with(|| -> BTreeSet<Vec<u8>> {
            deleted.iter().filter(is_shard).map(|row| row.key.clone()).collect()
        });
        let again = deleted.iter().any(|row| sharded.contains(&row.key));
        let had_state = |row: &KeyedRow| row.row.1.stored.reset().is_some();
        let known = keys.len();
        keys.extend(deleted.into_iter().filter(had_state).map(|row| row.key));
        *count += (keys.len() - known) as i64;
        if !again || Fault::NameDeletedOnce.is_on() {
            return Ok(true);
        }
    }
    Err(LimiterError::not_written())
}

/// Deletes the rows of a key if they are idle, can all be locked without waiting, and are still idle then; returns
/// their number. Without a limit, rows are idle if they are reset, or unused for longer than `undefined_idle`, and hold
/// no lease. If rows are deleted together, adds idle keys to `waiting` instead.
pub fn prune_key<H: Host>(
    host: &H,
    rows: &dyn Rows,
    found: &KeyRows,
    undefined_idle: Option<Micros>,
    waiting: &mut Vec<KeyRows>,
) -> Result<i64> {
    let KeyRows { name, key, rows: seen } = found;
    let definition = match host.look_up(name, key) {
        Err(LimiterError::StoredConfig { .. }) => return Ok(0), // unknown whether they are idle
        known => known?.definition,
    };
    if let Some(definition) = definition.as_ref().filter(|definition| definition.save.is_some())
        && host.in_force(name, definition.clone()).save.is_none()
    {
        return Ok(0); // not this clock's
    }
    let definition = definition.filter(|own| Store::from_definition(own) != Store::Nowhere);
    let has_holds = |rows: &[ShardRow]| rows.iter().any(|(_, row)| row.holds_due.is_some());
    // Some of its tokens come back later; without a definition, as long as the limit may be defined again.
    let is_held = match (has_holds(seen), &definition, undefined_idle) {
        (false, ..) => false,
        (true, None, Some(idle)) => {
            let since = host.now().minus(idle);
            !host.with_key_holds(|holds| holds.returning(name, key, since, FOREVER, 1))?.is_empty()
        }
        _ => true,
    };
    let idle = |rows: &[ShardRow]| match &definition {
        _ if is_held || has_holds(rows) != has_holds(seen) => false,
        Some(definition) => {
            let target = Target::defined::<H>(name, key, definition.clone(), None);
            is_idle(&target, rows, host.now())
        }
        None => is_expired(rows, undefined_idle, host.now()),
    };
    if !idle(seen) && !Fault::BusyRowsPruned.is_on() {
        return Ok(0);
    }
    if rows.facts().batch > 1 {
        waiting.push(found.without_states());
        return Ok(0);
    }
    // In one step if possible: each subtransaction uses up a transaction id, and more than 64 of them in one
    // transaction slow down all other snapshots.
    let removed = match has_holds(seen) {
        true => 0,
        false => rows.remove(std::slice::from_ref(found))?,
    };
    if removed > 0 {
        return Ok(removed as i64);
    }
    let deleted = host.attempt(|| {
        let locked = lock_key(host, rows, name, key, false)?;
        if !idle(&locked) && !Fault::PrunedUnseen.is_on() {
            return Ok(None);
        }
        if has_holds(seen) {
            expiry::forget(host, RowId { name, key, shard: 0 })?;
        }
        delete_locked(rows, name, key, &locked)?;
        Ok(Some(locked.len() as i64))
    });
    match deleted {
        Err(LimiterError::Busy) => Ok(0),
        deleted => Ok(deleted?.unwrap_or(0)),
    }
}

/// Deletes the locked rows of a key.
fn delete_locked(rows: &dyn Rows, name: &[u8], key: &[u8], locked: &[ShardRow]) -> Result<()> {
    for &(shard, ref row) in locked {
        rows.delete(RowId { name, key, shard }, row.tuple)?;
    }
    Ok(())
}

/// Whether the rows of a key are idle: every call would be answered the same without them.
fn is_idle(target: &Target, rows: &[ShardRow], now: Micros) -> bool {
    of_shards(rows).all(|(number, found)| {
        let limit = shard_limit_of(target.limit(), shards_of(*number));
        // Keeps invalid rows for inspection, and rows that are ahead of the clock, which may be wrong now.
        target
            .state(&limit, Some(&found.stored), now)
            .is_ok_and(|state| state.ts() <= now && limit.is_idle(&state, now, target.phase()))
    })
}

/// Whether the rows of an undefined name are reset, or unused for longer than `undefined_idle`, and hold no lease.
fn is_expired(rows: &[ShardRow], undefined_idle: Option<Micros>, now: Micros) -> bool {
    let unused = |ts: Micros| undefined_idle.is_some_and(|idle| ts < now.minus(idle));
    rows.iter().all(|(_, found)| match &found.stored {
        Stored::Reset { .. } => true,
        // As idle as the other rows of its key.
        Stored::Marker { reset } => *reset || undefined_idle.is_some(),
        &Stored::Invalid { ts, .. } => unused(ts),
        // A lease may have been extended since it was given.
        Stored::State(State::Leases(leases)) => {
            unused(leases.ts) && !leases.leases.iter().any(|lease| lease.is_live(now))
        }
        Stored::State(state) => unused(state.ts()),
    })
}
