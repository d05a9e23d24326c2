//! A limit in an entry of memory that is saved to its row: memory is a cache of rows. The state in memory counts; the
//! row gets it later.
//!
//! A key that is not in memory is loaded from its row. Between the read of the row and the load, other sessions may
//! load, call, save and evict the key. So a call that misses it notes the number of evictions in its partition, and a
//! load fails if that has changed. The same protects against a limit that leaves memory: a change of its definition is
//! announced to all sessions before the keys are removed, which counts as evictions. A call notes the number, then
//! checks that its definition is current, then reads the row: either it sees the new definition and begins again, or
//! the load fails.

use ratelimit_core::State;
use ratelimit_faults::Fault;

use super::memory;
use super::shards::contents;
use crate::error::{LimiterError, Result};
use crate::ports::{
    Absent, Entries, Host, Id, LockedEntries, Retention, RowAccess, RowId, Rows, Stored, TRIES,
};
use crate::target::Target;

/// Loads a key from its row. If the pool is full, waits until keys are saved.
pub(super) fn load<H: Host>(host: &H, target: &Target, id: Id, absent: Absent) -> Result<()> {
    host.check_definitions()?;
    let state = read_row(host, target)?.filter(|_| !Fault::EvictedIsFull.is_on());
    let entries = host.saved_entries()?;
    let absent = match Fault::EvictionsCountedLate.is_on() {
        true => entries.read(id).err().unwrap_or(absent),
        false => absent,
    };
    match entries.load(id, target.row(0), state.as_ref(), absent) {
        true => Ok(()),
        false => wait_for_capacity(host, target),
    }
}

/// Waits until keys are saved, which can then be evicted.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): no key could be saved.
pub(super) fn wait_for_capacity<H: Host>(host: &H, target: &Target) -> Result<()> {
    match host.wait_for_save()? {
        true => Ok(()),
        false => Err(LimiterError::MemoryFull(target.name_text())),
    }
}

/// Reads the state in a key's rows; if the limit had shards, their total.
pub(super) fn read_row<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    host.with_rows(RowAccess::Glance, |rows| {
        let found = rows.read_key(target.name, target.key, None)?;
        // A state of any kind, since the definition may become that kind again.
        if let [(0, row)] = &found[..]
            && let Stored::State(state) = &row.stored
        {
            return Ok(Some(state.clone()));
        }
        Ok(contents::stored(host, rows, target, found)?.0)
    })
}

/// Resets a key: it is full in memory, and its row will be. False if there was no state.
pub(super) fn forget<H: Host>(host: &H, target: &Target) -> Result<bool> {
    let entries = host.saved_entries()?;
    let id = memory::id(entries, target, None);
    if entries.read(id).is_err() && read_row(host, target)?.is_none() {
        return Ok(false);
    }
    let (mut locked, seen) = memory::lock(host, entries, target, id)?;
    if seen.state.is_some() {
        let save = target.definition.save.unwrap_or_default();
        locked.write(id, None, Retention { save, ..Retention::default() });
    }
    locked.unlock();
    Ok(seen.state.is_some())
}

/// Writes the state of a key to its row, `None`: full; false if another session has locked the row. Without `wait`,
/// doesn't wait for a lock, as far as the rows can avoid that.
pub fn write<H: Host>(
    host: &H,
    rows: &dyn Rows,
    (name, key): (&[u8], &[u8]),
    state: Option<&State>,
    wait: bool,
) -> Result<bool> {
    let id = RowId { name, key, shard: 0 };
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let seen = rows.read(id)?;
        let stored = match (state, &seen) {
            (Some(state), _) => Some(Stored::State(state.clone())),
            (None, _) if Fault::FullNotWritten.is_on() => None,
            (None, seen) => seen.as_ref().and_then(|seen| seen.stored.reset()),
        };
        let Some(stored) = stored else { return Ok(true) };
        let is_written = match &seen {
            None => rows.insert(id, &stored.into(), wait)?,
            Some(seen) if !rows.facts().locks_first && !seen.stored.is_marker() => {
                rows.replace(id, seen, &seen.with(stored), wait)? || Fault::LockedRowSkipped.is_on()
            }
            Some(_) => write_locked(host, rows, id, stored, wait)?,
        };
        if is_written || !wait {
            return Ok(is_written);
        }
    }
    Err(LimiterError::not_written())
}

/// Locks a row and writes it: through SQL, or if the limit had shards, of which it deletes the rows.
fn write_locked<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
    stored: Stored,
    wait: bool,
) -> Result<bool> {
    let written = host.attempt(|| {
        // The number of shards can't change from here on.
        let Some(root) = rows.lock(id, wait)? else { return Ok(None) };
        let found = rows.read_key(id.name, id.key, None)?;
        for (shard, _) in found.into_iter().filter(|&(shard, _)| shard != 0) {
            let id = RowId { shard, ..id };
            let Some(row) = rows.lock(id, wait)? else { return Ok(None) };
            rows.delete(id, row.tuple)?;
        }
        rows.update(id, root.tuple, &root.with(stored))?;
        Ok(Some(()))
    })?;
    Ok(written.is_some())
}
