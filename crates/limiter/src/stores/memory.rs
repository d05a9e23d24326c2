//! A limit in an entry of memory: decided and changed under its lock, at once for all sessions.
//!
//! If it is saved to its row, memory is a cache of rows. The state in memory counts; the row gets it later. A key that
//! is not in memory is loaded from its row. Between the read of the row and the load, other sessions may load, call,
//! save and evict the key. So a call that misses it notes the number of evictions in its partition, and a load fails if
//! that has changed. The same protects against a limit that leaves memory: a change of its definition is announced to
//! all sessions before the keys are removed, which counts as evictions. A call notes the number, then checks that its
//! definition is current, then reads the row: either it sees the new definition and begins again, or the load fails.

use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;

use super::shards::contents;
use crate::change::{Ask, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{
    Absent, Entries, Host, Id, KeyRef, LockedEntries, Pool, Retention, RowAccess, RowId, Rows,
    Seen, Stored, TRIES, tries,
};
use crate::request::Answer;
use crate::target::{Store, Target};

/// Makes a change of a limit in an entry.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): the pool of saved keys is full.
pub(crate) fn apply<H: Host>(host: &H, ask: &Ask) -> Result<Answer> {
    let target = &ask.target;
    let entries = entries(host, target)?;
    let id = id(entries, target, ask.entry);
    let phase = target.phase();
    for _ in 0..TRIES {
        let (mut locked, seen) = lock(host, entries, target, id)?;
        let now = host.now();
        let before = target.limit().state_or_initial(seen.state, now, phase);
        let Decided { answer, after, .. } = ask.decide(host, &ask.on(&before), None, now)?;
        let is_stored = after.is_none_or(|after| {
            locked.write(id, Some(&after), retention(target, &after, now, phase))
        });
        locked.unlock();
        if is_stored {
            return Ok(answer);
        }
        wait_for_capacity(host, target)?;
    }
    Err(LimiterError::MemoryFull(target.name_text()))
}

/// The entries for a target.
fn entries<'h, H: Host>(host: &'h H, target: &Target) -> Result<&'h H::Entries> {
    if target.store == Store::Saved { host.saved_entries() } else { host.entries() }
}

/// The address of a target's entry. Defined limits, configs in calls and saved limits have pools of their own.
pub fn id(entries: &impl Entries, target: &Target, known: Option<Id>) -> Id {
    let id = known.unwrap_or_else(|| entries.id(target.name, target.key));
    let pool = match target.store {
        Store::Saved => return Id { pool: Pool::Saved, ..id },
        _ if target.is_defined => Pool::Defined,
        _ => Pool::Inline,
    };
    Id { pool, slots: target.limit().concurrency().map_or(0, |limit| limit.slots), ..id }
}

/// Locks an entry and reads it for a call; loads it first if necessary.
fn lock<'e, H: Host>(
    host: &H,
    entries: &'e H::Entries,
    target: &Target,
    id: Id,
) -> Result<(<H::Entries as Entries>::Locked<'e>, Seen)> {
    for _ in 0..TRIES {
        let mut locked = entries.lock(&[id]);
        match locked.read(id) {
            Ok(seen) => return Ok((locked, seen)),
            Err(absent) => {
                drop(locked);
                load(host, target, id, absent)?;
            }
        }
        host.check_for_interrupts();
    }
    Err(LimiterError::MemoryFull(target.name_text()))
}

/// Reads the stored state of a target's limit; `None`: the limit is full, or not in memory.
pub(super) fn read<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    if !target.store.is_in_memory() {
        return Ok(None);
    }
    let entries = entries(host, target)?;
    let mut found = match entries.read(id(entries, target, None)) {
        Ok(found) => found,
        Err(_) => read_row(host, target)?,
    };
    // Expired leases don't count: their entries may be evicted at any time.
    if let (Store::Memory, Some(State::Leases(leases))) = (target.store, &mut found) {
        let now = host.now();
        leases.leases.retain(|lease| lease.is_live(now));
        if leases.leases.is_empty() {
            return Ok(None);
        }
    }
    Ok(found.filter(|state| target.limit().accepts(state.shape())))
}

/// Reads an entry for a call, which may deny it, and marks it as used.
pub fn touch<H: Host>(host: &H, target: &Target, id: Id) -> Result<Seen> {
    let (locked, seen) = lock(host, entries(host, target)?, target, id)?;
    // A read of another pool evicts nothing.
    if id.pool == Pool::Saved {
        locked.unlock();
    }
    Ok(seen)
}

/// How long to keep a state that is stored at `now`; `phase` is the target's.
pub fn retention(target: &Target, state: &State, now: Micros, phase: Micros) -> Retention {
    let limit = target.limit();
    let save = target.definition.save.unwrap_or_default();
    let is_kept = target.store == Store::Saved;
    let idle_at = if is_kept { None } else { limit.idle_at(state, now, phase) };
    Retention { idle_at, half_used: limit.is_half_used(state), now, save }
}

/// Removes an entry that is not saved; false if there was none. Its limit may have had `slots`.
pub(super) fn remove(entries: &impl Entries, id: Id, slots: u32) -> bool {
    let id = Id { slots, ..id };
    let mut locked = entries.lock(&[id]);
    let was = locked.write(id, None, Retention::default());
    locked.unlock();
    was
}

/// Loads a key from its row. If the pool is full, waits until keys are saved.
fn load<H: Host>(host: &H, target: &Target, id: Id, absent: Absent) -> Result<()> {
    host.check_definitions()?;
    let state = read_row(host, target)?.filter(|_| !Fault::EvictedIsFull.is_on());
    let entries = host.saved_entries()?;
    match entries.load(id, target.row(0), state.as_ref(), absent) {
        true => Ok(()),
        false => wait_for_capacity(host, target),
    }
}

/// Waits until keys are saved, which can then be evicted.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): no key could be saved.
fn wait_for_capacity<H: Host>(host: &H, target: &Target) -> Result<()> {
    match host.wait_for_save()? {
        true => Ok(()),
        false => Err(LimiterError::MemoryFull(target.name_text())),
    }
}

/// Reads the state in a key's rows; if the limit had shards, their total.
fn read_row<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
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
pub(super) fn forget_saved<H: Host>(host: &H, target: &Target) -> Result<bool> {
    let entries = host.saved_entries()?;
    let id = id(entries, target, None);
    if entries.read(id).is_err() && read_row(host, target)?.is_none() {
        return Ok(false);
    }
    let (mut locked, seen) = lock(host, entries, target, id)?;
    if seen.state.is_some() {
        let save = target.definition.save.unwrap_or_default();
        locked.write(id, None, Retention { save, ..Retention::default() });
    }
    locked.unlock();
    Ok(seen.state.is_some())
}

/// Writes the state of a key to its row, `None`: full; false if another session has locked the row. Without `wait`,
/// doesn't wait for a lock, as far as the rows can avoid that.
pub fn save<H: Host>(
    host: &H,
    rows: &dyn Rows,
    (name, key): KeyRef,
    state: Option<&State>,
    wait: bool,
) -> Result<bool> {
    let id = RowId { name, key, shard: 0 };
    tries(host, || {
        let seen = rows.read(id)?;
        let full = seen.as_ref().and_then(|seen| seen.stored.reset());
        let full = full.filter(|_| !Fault::FullNotWritten.is_on());
        let stored = state.map_or(full, |state| Some(Stored::State(state.clone())));
        let Some(stored) = stored else { return Ok(Some(true)) };
        let is_written = match &seen {
            None => rows.insert(id, &stored.into(), wait)?,
            Some(seen) if !rows.facts().locks_first && !seen.stored.is_marker() => {
                rows.replace(id, seen, &seen.with(stored), wait)? || Fault::LockedRowSkipped.is_on()
            }
            // Through SQL, or of a limit that had shards, of which it deletes the rows.
            Some(_) => {
                let written = host.attempt(|| {
                    // The number of shards can't change from here on.
                    let Some(root) = rows.lock(id, wait)? else { return Ok(None) };
                    let found = rows.read_key(name, key, None)?;
                    for (shard, _) in found.into_iter().filter(|&(shard, _)| shard != 0) {
                        let id = RowId { shard, ..id };
                        let Some(row) = rows.lock(id, wait)? else { return Ok(None) };
                        rows.delete(id, row.tuple)?;
                    }
                    rows.update(id, root.tuple, &root.with(stored)).map(Some)
                })?;
                written.is_some()
            }
        };
        Ok((is_written || !wait).then_some(is_written))
    })
}
