//! A limit in an entry of memory that is saved to its row: what is in memory counts, and the row has it later.
//!
//! A key that is not in memory is read from its row first. It may be called, saved and evicted between that read and
//! the lock of its entry: so the evictions of its part of memory are counted, and it is read again where they moved.
//! Who changes a definition so that a limit leaves memory marks it as leaving, evicts its keys once they are saved, and
//! commits. A call that meets the mark waits for that transaction and begins again; so does one that looked up the old
//! definition before, and comes to put a key in after. It looks for the mark, and then at its definition, between the
//! count of evictions and the row: a mark that is set later moves that count.
//!
//! A standby counts for itself, on what it replicated; once it is a primary, what it counted is held against the row,
//! and the lesser of the two counts.

use ratelimit_core::{Micros, State};

use super::memory::{self, worth};
use super::{Contents, Decide, shards, table};
use crate::error::{LimiterError, Result};
use crate::ports::{
    Entries, Host, Id, Loaded, LockedEntries, RowAccess, RowId, RowStore, SavedState, Stored,
    TRIES, Worth,
};
use crate::target::Target;

/// What the lock of an entry found.
enum Tried<T> {
    /// It was there, and this is what came of it.
    Done(T),
    /// It must be read from its row first.
    Absent,
    /// It was counted on a standby, and must be held against its row first.
    OfStandby,
    /// Its leases have no room.
    NoRoom,
    /// Its limit leaves memory.
    Leaving,
}

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
    let entries = host.saved_entries()?;
    let id = memory::id(entries, target, known);
    let result = locked(host, target, id, |locked, found, now| {
        let phase = target.phase();
        let before = memory::state(target, found, now, phase);
        let (result, after) = decide(Contents::One(&before), now)?;
        let is_written = after.is_none_or(|after| {
            let worth = worth(target, &after, now, phase);
            locked.write_saved(id, Some(&after), worth, save(target))
        });
        Ok(if is_written { Tried::Done(result) } else { Tried::NoRoom })
    });
    entries.save_later();
    result
}

/// How long a change may stay in memory only.
fn save(target: &Target) -> Micros {
    target.limit.save.unwrap_or_default()
}

/// Runs `work` on the locked entry of a key, with its state, after it is put in where it is not there.
///
/// # Errors
/// Those of the work and of the ports; [`LimiterError::NoRoom`] (53200).
fn locked<H: Host, T>(
    host: &H,
    target: &Target,
    id: Id,
    work: impl Fn(&mut <H::Entries as Entries>::Locked<'_>, Option<State>, Micros) -> Result<Tried<T>>,
) -> Result<T> {
    let entries = host.saved_entries()?;
    let mut row = None;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let tried = entries.locked(id, |locked| {
            if locked.is_leaving(id) {
                return Ok(Tried::Leaving);
            }
            let now = host.now();
            let found = match (locked.read_saved(id), row.take()) {
                (SavedState::Absent, _) => return Ok(Tried::Absent),
                (SavedState::OfStandby(_), None) => return Ok(Tried::OfStandby),
                (SavedState::OfStandby(found), Some(row)) => {
                    let less = lesser(target, found, row, now);
                    let worth = worth_of(target, less.as_ref(), now);
                    if !locked.write_saved(id, less.as_ref(), worth, save(target)) {
                        return Ok(Tried::NoRoom);
                    }
                    less
                }
                (SavedState::Here(found), _) => found,
            };
            work(locked, found, now)
        })?;
        match tried {
            Tried::Done(result) => return Ok(result),
            Tried::Absent => load(host, target, id)?,
            Tried::OfStandby => row = Some(read_row(host, target)?),
            Tried::NoRoom => wait_for_room(host, target)?,
            Tried::Leaving => host.wait_for_leaving(id)?,
        }
    }
    Err(no_room(target))
}

/// Reads the state of a key for a call, after it is put in where it is not there.
///
/// # Errors
/// As [`change`].
pub(super) fn call<H: Host>(host: &H, target: &Target, id: Id) -> Result<memory::Seen> {
    locked(host, target, id, |locked, found, _| Ok(Tried::Done(memory::seen(locked, id, found))))
}

/// Reads what a key has that means something to its limit: in memory, or else in its row.
///
/// # Errors
/// Those of the ports.
pub(super) fn read<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    let entries = host.saved_entries()?;
    let id = memory::id(entries, target, None);
    let found = match entries.locked(id, |locked| locked.read_saved(id)) {
        SavedState::Here(found) => found,
        SavedState::OfStandby(found) => lesser(target, found, read_row(host, target)?, host.now()),
        SavedState::Absent => read_row(host, target)?,
    };
    Ok(found.filter(|state| target.limit.accepts(state.shape())))
}

/// Puts a key in, with what its row has.
///
/// # Errors
/// As [`change`].
fn load<H: Host>(host: &H, target: &Target, id: Id) -> Result<()> {
    let entries = host.saved_entries()?;
    let before = entries.before_read(id);
    host.wait_for_leaving(id)?;
    let state = read_row(host, target)?;
    let texts = (target.name, target.key);
    match entries.load(id, texts, state.as_ref(), (before, save(target))) {
        Loaded::Yes | Loaded::Moved => Ok(()),
        Loaded::NoRoom => wait_for_room(host, target),
    }
}

/// Waits until something was saved, which can then make room.
///
/// # Errors
/// [`LimiterError::NoRoom`] (53200): nobody saves; a cancel.
fn wait_for_room<H: Host>(host: &H, target: &Target) -> Result<()> {
    if host.wait_for_save()? { Ok(()) } else { Err(no_room(target)) }
}

fn no_room(target: &Target) -> LimiterError {
    LimiterError::NoRoom { name: target.name_text() }
}

/// Reads what the rows of a key have; of a limit that had shards their total.
///
/// # Errors
/// Those of the ports.
fn read_row<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    host.with_rows(RowAccess::Glance, |rows| {
        let found = rows.read_key(target.name, target.key)?;
        if !table::has_state(&target.limit, &found) {
            return Ok(None);
        }
        let (now, shards) = shards::peek(host, rows, target)?;
        Ok(Some(shards.total(now)))
    })
}

/// What a state is worth, `None`: it is full.
fn worth_of(target: &Target, state: Option<&State>, now: Micros) -> Worth {
    match state {
        Some(state) => worth(target, state, now, target.phase()),
        None => Worth { idle_at: Some(now), half_used: false, now },
    }
}

/// The one of two states that has less left at `now`.
fn lesser(target: &Target, one: Option<State>, other: Option<State>, now: Micros) -> Option<State> {
    let left = |state: &Option<State>| {
        let state = memory::state(target, state.clone(), now, target.phase());
        target.limit.level(&state, now).remaining
    };
    if left(&one) <= left(&other) { one } else { other }
}

/// Forgets what a key has: in memory it is full from now on, and its row will be. False if there was nothing.
///
/// # Errors
/// As [`change`].
pub(super) fn forget<H: Host>(host: &H, target: &Target) -> Result<bool> {
    let entries = host.saved_entries()?;
    if read(host, target)?.is_none() {
        return Ok(false);
    }
    let id = memory::id(entries, target, None);
    let was = locked(host, target, id, |locked, found, now| {
        let worth = worth_of(target, None, now);
        let is_written = found.is_none() || locked.write_saved(id, None, worth, save(target));
        Ok(if is_written { Tried::Done(found.is_some()) } else { Tried::NoRoom })
    });
    entries.save_later();
    was
}

/// Writes the state of a key to its row, `None`: it is full; false where somebody holds it. Waits for nobody.
///
/// # Errors
/// Those of the rows.
pub fn write<H: Host>(
    host: &H,
    rows: &dyn RowStore,
    (name, key): (&[u8], &[u8]),
    state: Option<&State>,
) -> Result<bool> {
    let id = RowId { name, key, shard: 0 };
    let seen = rows.read(id)?;
    let stored = match (state, &seen) {
        (Some(state), _) => Stored::State(state.clone()),
        (None, None) => return Ok(true),
        (None, Some(seen)) => match seen.stored.reset() {
            Some(reset) => reset,
            None => return Ok(true),
        },
    };
    match &seen {
        None => return rows.insert(id, &stored),
        Some(seen) if seen.stored.is_marker() => {}
        Some(seen) if rows.replaces() => return rows.replace(id, seen, &stored, false),
        Some(_) => {}
    }
    // Through SQL, or rows of a limit that had shards.
    let written = host.attempt(|| {
        let mut root = None;
        for (shard, _) in rows.read_key(name, key)? {
            let id = RowId { name, key, shard };
            match rows.try_lock(id)? {
                None => return Ok(None),
                Some(row) if shard == 0 => root = Some(row),
                Some(row) => rows.delete(id, row.tuple)?,
            }
        }
        let Some(root) = root else { return Ok(None) };
        rows.update(id, root.tuple, &stored)?;
        Ok(Some(()))
    })?;
    Ok(written.is_some())
}
