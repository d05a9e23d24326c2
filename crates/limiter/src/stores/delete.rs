//! Forgets whole rows: those of a key that is reset, and idle ones.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;

use super::expiry;
use super::shards::contents::{of_shards, shards_of};
use super::with_locked;
use crate::error::{LimiterError, Result};
use crate::keys::each_key;
use crate::ports::{
    Host, Key, KeyRows, KeyedRow, Listing, Row, RowId, Rows, ShardRow, Stored, tries,
};
use crate::target::{Store, Target};

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

/// Locks all rows of a key, given by its row 0, in ascending order. The number of shards may change between the list of
/// the rows and the locks, so they are listed again until all of them are locked. Such a change locks row 0 first, so
/// none can follow once row 0 is locked here. Rows behind a missing row are not locked: a row may appear in its place,
/// which comes before them.
pub(super) fn lock_key(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    wait: bool,
) -> Result<Vec<ShardRow>> {
    let shard = |(shard, _): &ShardRow| *shard;
    let mut listed = rows.read_key(id.name, id.key, None)?;
    tries(host, || {
        let mut locked = Vec::new();
        for (shard, _) in std::mem::take(&mut listed) {
            let Some(row) = lock_or_busy(rows, RowId { shard, ..id }, wait)? else { break };
            locked.push((shard, row));
        }
        listed = rows.read_key(id.name, id.key, None)?;
        let is_same = listed.iter().map(shard).eq(locked.iter().map(shard));
        Ok(Some(locked).filter(|_| is_same || Fault::RowsListedOnce.is_on()))
    })
}

/// Resets the rows of a key, given by its row 0; false if none had a state.
pub fn reset_key(host: &impl Host, rows: &dyn Rows, id: RowId) -> Result<bool> {
    tries(host, || {
        let seen = rows.read(id)?.filter(|seen| !seen.stored.is_marker());
        let Some(seen) = seen else { return reset_shards(host, rows, id).map(Some) };
        let reset = seen.stored.reset().filter(|_| !Fault::ResetSkipped.is_on());
        let Some(reset) = reset else { return Ok(Some(false)) };
        if rows.replace(id, &seen, &reset.into(), false)? {
            return Ok(Some(true));
        }
        // Nothing is written if it is a marker or was reset by now, which the next read shows.
        let was_reset = with_locked(host, rows, id, |row| {
            let reset = row.stored.reset().filter(|_| !row.stored.is_marker());
            reset.map(|reset| rows.update(id, row.tuple, &reset.into())).transpose()
        })?;
        Ok(was_reset.map(|()| true))
    })
}

/// Resets the rows of a key with shards; false if none had a state.
fn reset_shards(host: &impl Host, rows: &dyn Rows, id: RowId) -> Result<bool> {
    // If no row has anything to forget, all are released again.
    let reset = host.attempt(|| {
        let mut was = None;
        let locked = match Fault::ResetWithoutLocks.is_on() {
            true => rows.read_key(id.name, id.key, None)?,
            false => lock_key(host, rows, id, true)?,
        };
        for (shard, row) in locked {
            if let Some(reset) = row.stored.reset() {
                rows.update(RowId { shard, ..id }, row.tuple, &reset.into())?;
                was = Some(());
            }
        }
        Ok(was)
    })?;
    Ok(reset.is_some())
}

/// A set of names and keys, in the order in which rows are locked.
pub(crate) type Keys = BTreeSet<Key>;

/// Lists the keys of a listing that have holds; with `held`, only those that hold tokens now. See
/// [`KeyHolds::keys`](crate::ports::KeyHolds::keys).
pub(crate) fn holders(host: &impl Host, listing: Listing, held: bool) -> Result<Keys> {
    if !host.has_holds() {
        return Ok(Keys::new());
    }
    let held_at = held.then(|| host.now());
    host.with_key_holds(|holds| holds.keys(listing, held_at))
}

/// Forgets the keys of a listing one by one, in the order in which every call locks rows: those with rows by `forget`,
/// which returns whether the key had a state, and those with holds alone. Passes the name of each key that had a state
/// to `had`.
pub(crate) fn forget_keys<H: Host>(
    host: &H,
    rows: &dyn Rows,
    listing: Listing,
    mut forget: impl FnMut(RowId) -> Result<bool>,
    mut had: impl FnMut(Vec<u8>),
) -> Result<()> {
    let forget_held = |held: Keys, wait: bool, had: &mut dyn FnMut(Vec<u8>)| {
        held.into_iter().try_for_each(|own| {
            host.check_for_interrupts();
            if forget_holds(host, rows, RowId::first(&own), wait)? {
                had(own.0);
            }
            Ok(())
        })
    };
    let mut held = holders(host, listing, false)?;
    let _ = each_key(host, rows, listing, |KeyRows { key: own, .. }| {
        let later = held.split_off(&own);
        forget_held(std::mem::replace(&mut held, later), true, &mut had)?;
        if forget(RowId::first(&own))? {
            had(own.0);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    forget_held(held, true, &mut had)?; // after the rows of all keys before them
    // Holds that came meanwhile, of keys that are locked here; others would be locked out of order.
    let held = holders(host, listing, false)?;
    forget_held(held, false, &mut had)
}

/// Deletes the holds of a key under the lock of its row 0, which a new hold waits for; if there is no row, under the
/// lock of one that is deleted afterwards. Resets a state that has come meanwhile; false if none has. Without `wait`,
/// leaves a key that another session has, or that has shards, as it is.
pub(crate) fn forget_holds<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
    wait: bool,
) -> Result<bool> {
    tries(host, || {
        if let Some(row) = rows.lock(id, wait)? {
            if !wait && row.stored.is_marker() {
                return Ok(Some(false));
            }
            let was = reset_key(host, rows, id)?;
            expiry::forget(host, id)?;
            return Ok(Some(was));
        }
        if !wait && rows.read(id)?.is_some() {
            return Ok(Some(false));
        }
        if rows.insert(id, &Stored::Reset { ts: host.now() }.into(), wait)? {
            expiry::forget(host, id)?;
            let own = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
            rows.delete(id, own.tuple)?;
            return Ok(Some(false));
        }
        Ok(None)
    })
}

/// Deletes the rows of a key, given by its row 0; false if none had a state.
pub fn delete_key(host: &impl Host, rows: &dyn Rows, id: RowId) -> Result<bool> {
    let locked = lock_key(host, rows, id, true)?;
    delete_locked(rows, id, &locked)?;
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
    let (mut keys, mut sharded) = (Keys::new(), None);
    tries(host, || {
        let Some(deleted) = rows.delete_name(name)? else { return Ok(Some(false)) };
        // A session that reshards a key meanwhile has written rows that were not seen: repeat until such keys have
        // none.
        let is_shard = |(_, (shard, row)): &&KeyedRow| *shard != 0 || row.stored.is_marker();
        let of_shards = || deleted.iter().filter(is_shard).map(|(key, _)| key.clone()).collect();
        let sharded: &Keys = sharded.get_or_insert_with(of_shards);
        let again = deleted.iter().any(|(key, _)| sharded.contains(key));
        let had_state = |(_, (_, row)): &KeyedRow| row.stored.reset().is_some();
        let known = keys.len();
        keys.extend(deleted.into_iter().filter(had_state).map(|(key, _)| key));
        *count += (keys.len() - known) as i64;
        Ok((!again || Fault::NameDeletedOnce.is_on()).then_some(true))
    })
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
    let (id @ RowId { name, key, .. }, seen) = (RowId::first(&found.key), &found.rows);
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
            host.with_key_holds(|holds| holds.first_expiry((name, key), since))?.is_some()
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
    if !has_holds(seen)
        && let removed @ 1.. = rows.remove(std::slice::from_ref(found))?
    {
        return Ok(removed as i64);
    }
    let deleted = host.attempt(|| {
        let locked = lock_key(host, rows, id, false)?;
        if !idle(&locked) && !Fault::PrunedUnseen.is_on() {
            return Ok(None);
        }
        if has_holds(seen) {
            expiry::forget(host, id)?;
        }
        delete_locked(rows, id, &locked)?;
        Ok(Some(locked.len() as i64))
    });
    match deleted {
        Err(LimiterError::Busy) => Ok(0),
        deleted => Ok(deleted?.unwrap_or(0)),
    }
}

/// Deletes the locked rows of a key.
fn delete_locked(rows: &dyn Rows, id: RowId, locked: &[ShardRow]) -> Result<()> {
    locked.iter().try_for_each(|&(shard, ref row)| rows.delete(RowId { shard, ..id }, row.tuple))
}

/// Whether the rows of a key are idle: every call would be answered the same without them.
fn is_idle(target: &Target, rows: &[ShardRow], now: Micros) -> bool {
    of_shards(rows).all(|(number, found)| {
        let limit = target.limit().shard_limit(shards_of(*number));
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
