//! A limit in an entry of memory that is saved to its row: memory is a cache of rows. What is in memory counts, and the
//! row has it later.
//!
//! A key that is not in memory is read from its row first. It may be called, saved and evicted between that read and
//! the lock of its entry: so the evictions of its part of memory are counted, and it is read again where they moved.
//! So is one whose limit leaves memory meanwhile: whoever changes the definition tells all sessions, then removes the
//! keys, which counts as well. A call looks at the count, then whether its definition is still that of now, then at
//! the row: either it sees the new definition, and begins again, or the count has moved.

use ratelimit_core::{Micros, State};

use super::memory::{self, Seen};
use super::{Contents, Decide, delete, shards};
use crate::error::{LimiterError, Result};
use crate::ports::{
    Entries, Host, Id, Loaded, LockedEntries, RowAccess, RowId, Rows, Stored, TRIES,
};
use crate::target::Target;

/// Changes a limit in an entry that is saved; `known` is its id in the room of defined limits.
///
/// # Errors
/// As [`change`](super::change); [`LimiterError::NoRoom`] (53200).
pub(super) fn change<H: Host, T>(
    host: &H,
    target: &Target,
    known: Option<Id>,
    decide: impl Decide<T>,
) -> Result<T> {
    let id = memory::id(host.saved_entries()?, target, known);
    with_locked(host, target, id, |locked, found, now| {
        let before = memory::state(target, found, now, target.phase());
        let (result, after) = decide(Contents::One(&before), now)?;
        let has_room = after.is_none_or(|after| locked.write_saved(id, Some(&after), save(target)));
        Ok(has_room.then_some(result))
    })
}

/// How long a change may stay in memory only.
fn save(target: &Target) -> Micros {
    target.definition.save.unwrap_or_default()
}

/// Runs `work` on the locked entry of a key, with its state, after it is put in where it is not there; again where
/// `work` finds no room.
///
/// # Errors
/// Those of the work and of the ports; [`LimiterError::NoRoom`] (53200).
fn with_locked<H: Host, T>(
    host: &H,
    target: &Target,
    id: Id,
    work: impl Fn(&mut <H::Entries as Entries>::Locked<'_>, Option<State>, Micros) -> Result<Option<T>>,
) -> Result<T> {
    let entries = host.saved_entries()?;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let tried = entries.locked(id, |locked| {
            let found = locked.read_saved(id)?;
            Some(work(locked, found, host.now()))
        });
        entries.save_later();
        match tried.transpose()? {
            Some(Some(result)) => return Ok(result),
            None if load(host, target, id)? => {}
            _ if host.wait_for_save()? => {}
            _ => break,
        }
    }
    Err(LimiterError::NoRoom { name: target.name_text() })
}

/// Reads the state of a key for a call, after it is put in where it is not there.
///
/// # Errors
/// As [`change`].
pub(super) fn call<H: Host>(host: &H, target: &Target, id: Id) -> Result<Seen> {
    with_locked(host, target, id, |locked, found, _| Ok(Some(memory::seen(locked, id, found))))
}

/// Reads what a key has that means something to its limit: in memory, or else in its row.
///
/// # Errors
/// Those of the ports.
pub(super) fn read<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    let entries = host.saved_entries()?;
    let id = memory::id(entries, target, None);
    let found = match entries.locked(id, |locked| locked.read_saved(id)) {
        Some(found) => found,
        None => read_row(host, target)?,
    };
    Ok(found.filter(|state| target.limit().accepts(state.shape())))
}

/// Puts a key in, with what its row has; false where it has no room.
///
/// # Errors
/// Those of the ports.
fn load<H: Host>(host: &H, target: &Target, id: Id) -> Result<bool> {
    let entries = host.saved_entries()?;
    let before = entries.before_read(id);
    host.check_definitions()?;
    let state = read_row(host, target)?;
    let loaded = entries.load(id, (target.name, target.key), state.as_ref(), before);
    Ok(loaded != Loaded::NoRoom)
}

/// Reads what the rows of a key have; of a limit that had shards their total.
///
/// # Errors
/// Those of the ports.
fn read_row<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    host.with_rows(RowAccess::Glance, |rows| {
        let found = rows.read_key(target.name, target.key)?;
        // Of whatever kind: it may be that of the definition again.
        if let [(0, row)] = &found[..]
            && let Stored::State(state) = &row.stored
        {
            return Ok(Some(state.clone()));
        }
        if !delete::has_state(target.limit(), &found) {
            return Ok(None);
        }
        let (now, shards) = shards::peek(host, rows, target)?;
        Ok(Some(shards.total(now)))
    })
}

/// Forgets what a key has, of whatever kind: in memory it is full from now on, and its row will be. False if there was
/// nothing.
///
/// # Errors
/// As [`change`].
pub(super) fn forget<H: Host>(host: &H, target: &Target) -> Result<bool> {
    let entries = host.saved_entries()?;
    let id = memory::id(entries, target, None);
    let is_here = entries.locked(id, |locked| locked.read_saved(id)).is_some();
    if !is_here && read_row(host, target)?.is_none() {
        return Ok(false);
    }
    with_locked(host, target, id, |locked, found, _| {
        let is_written = found.is_none() || locked.write_saved(id, None, save(target));
        Ok(is_written.then_some(found.is_some()))
    })
}

/// Writes the state of a key to its row, `None`: it is full; false where somebody holds it. Without `wait` it waits for
/// nobody, as far as the rows can.
///
/// # Errors
/// Those of the rows; [`LimiterError::NotWritten`] (55000).
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
            (None, seen) => seen.as_ref().and_then(|seen| seen.stored.reset()),
        };
        let Some(stored) = stored else { return Ok(true) };
        let is_written = match &seen {
            None if wait => rows.insert(id, &stored)?,
            None => rows.try_insert(id, &stored)?,
            Some(seen) if rows.replaces() && !seen.stored.is_marker() => {
                rows.replace(id, seen, &stored, wait)?
            }
            Some(_) => write_locked(host, rows, id, &stored, wait)?,
        };
        if is_written || !wait {
            return Ok(is_written);
        }
    }
    Err(rows.not_written())
}

/// Writes a row after it is locked: through SQL, and where a limit had shards, whose rows go.
///
/// # Errors
/// As [`write()`].
fn write_locked<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
    stored: &Stored,
    wait: bool,
) -> Result<bool> {
    let written = host.attempt(|| {
        let mut root = None;
        for (shard, _) in rows.read_key(id.name, id.key)? {
            let id = RowId { shard, ..id };
            match if wait { rows.lock(id)? } else { rows.try_lock(id)? } {
                None => return Ok(None),
                Some(row) if shard == 0 => root = Some(row),
                Some(row) => rows.delete(id, row.tuple)?,
            }
        }
        let Some(root) = root else { return Ok(None) };
        rows.update(id, root.tuple, stored)?;
        Ok(Some(()))
    })?;
    Ok(written.is_some())
}
