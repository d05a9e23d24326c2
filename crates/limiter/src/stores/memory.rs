//! A limit in an entry of memory: decided and changed under its lock, at once for all sessions.

use ratelimit_core::{Micros, State};

use super::{Contents, Decide, saved, slots};
use crate::error::Result;
use crate::ports::{Entries, Host, Id, Kept, LockedEntries, Room, Worth};
use crate::target::{Store, Target};

/// Changes a limit in an entry; `known` is its id in the room of defined limits.
///
/// # Errors
/// As [`change`](super::change).
pub(super) fn change<H: Host, T>(
    host: &H,
    target: &Target,
    known: Option<Id>,
    decide: impl Decide<T>,
) -> Result<T> {
    let entries = host.entries()?;
    let id = id(entries, target, known);
    let phase = target.phase();
    let result = entries.locked(id, |locked| {
        let now = host.now();
        let before = state(target, read_locked(locked, id), now, phase);
        let (result, after) = decide(Contents::One(&before), now)?;
        if let Some(after) = after {
            write(locked, target, id, &after, worth(target, &after, now, phase));
        }
        Ok(result)
    });
    entries.tell_losses();
    result
}

/// Identifies the entry of a target: there is a room for limits that are defined, one for those whose config is in the
/// call, and one for those that are saved.
pub fn id(entries: &impl Entries, target: &Target, known: Option<Id>) -> Id {
    let id = known.unwrap_or_else(|| entries.id(target.name, target.key));
    match target.store {
        Store::Saved => Id { room: Room::Saved, ..id },
        _ if target.is_defined => id,
        _ => entries.inline(id),
    }
}

/// Reads what is stored of a target that means something to its limit; `None`: nothing, so that it is full.
///
/// # Errors
/// As [`Host::entries`].
pub(super) fn read<H: Host>(host: &H, target: &Target) -> Result<Option<State>> {
    let entries = host.entries()?;
    let found = entries.read(id(entries, target, None)).and_then(Kept::state);
    Ok(found.filter(|state| target.limit().accepts(state.shape())))
}

/// What was read of an entry: the same, as long as it is equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The state that is stored; `None`: none is.
    pub state: Option<State>,
    /// Where there is none, [how many entries are gone](LockedEntries::gone): one may have come and gone, which tells
    /// of another instant at which the key is full.
    gone: Option<u32>,
}

/// Reads what is stored, for a call, which may deny it.
///
/// # Errors
/// As [`change`](super::change).
pub fn call<H: Host>(host: &H, target: &Target, id: Id) -> Result<Seen> {
    match id.room {
        Room::Saved => saved::call(host, target, id),
        _ => Ok(host.entries()?.locked(id, |locked| {
            let state = read_locked(locked, id);
            seen(locked, id, state)
        })),
    }
}

/// Reads one of the entries that are locked, for a call; `None`: it is one that is saved, and must be read from its row
/// first, as [`call`] does.
pub fn see(locked: &mut impl LockedEntries, id: Id) -> Option<Seen> {
    let state = match id.room {
        Room::Saved => locked.read_saved(id)?,
        _ => read_locked(locked, id),
    };
    Some(seen(locked, id, state))
}

/// What a locked entry holds, which has this state.
pub(super) fn seen(locked: &mut impl LockedEntries, id: Id, state: Option<State>) -> Seen {
    let gone = state.is_none().then(|| locked.gone(id));
    Seen { state, gone }
}

/// Reads the state of one of the entries that are locked.
fn read_locked(locked: &mut impl LockedEntries, id: Id) -> Option<State> {
    locked.read(id).and_then(Kept::state)
}

/// Writes one of the entries that are locked.
pub fn write(
    locked: &mut impl LockedEntries,
    target: &Target,
    id: Id,
    state: &State,
    worth: Worth,
) {
    if id.room == Room::Saved {
        // Such a state has no leases, which alone could lack room.
        locked.write_saved(id, Some(state), target.definition.save.unwrap_or_default());
    } else if let Some(kept) = Kept::of(state) {
        // A log or leases: no limit in memory has such a state.
        locked.write(id, kept, worth);
    }
}

/// What a state is worth that is stored at `now`; `phase` is the target's.
pub fn worth(target: &Target, state: &State, now: Micros, phase: Micros) -> Worth {
    let limit = target.limit();
    Worth { idle_at: limit.idle_at(state, now, phase), half_used: limit.is_half_used(state), now }
}

/// Interprets what is stored of a target, whose definition may have changed since; `phase` is the target's.
pub fn state(target: &Target, found: Option<State>, now: Micros, phase: Micros) -> State {
    found
        .filter(|state| target.limit().accepts(state.shape()))
        .unwrap_or_else(|| target.limit().initial_state(now, phase))
}

/// Forgets the entry of a key, and those of its slots; false if there was none. `slots` is how many it may have, of
/// which some may be missing.
pub(super) fn forget(entries: &impl Entries, id: Id, slots: u32) -> bool {
    entries.locked(id, |locked| {
        let was = locked.remove(id);
        slots::forget(locked, id, slots) || was
    })
}
