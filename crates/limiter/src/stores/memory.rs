//! A limit in an entry of memory: decided and changed under its lock, at once for all sessions.

use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;

use super::saved;
use crate::change::{Ask, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Entries, Host, Id, LockedEntries, Pool, Retention, Seen, TRIES};
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
        let before = state(target, seen.state, now, phase);
        let Decided { answer, after, .. } = ask.decide_on(host, &before, None, now)?;
        let after = after.filter(|_| !Fault::EntryNotWritten.is_on());
        let is_stored = after.is_none_or(|after| {
            locked.write(id, Some(&after), retention(target, &after, now, phase))
        });
        locked.unlock();
        if is_stored {
            return Ok(answer);
        }
        saved::wait_for_capacity(host, target)?;
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
pub(super) fn lock<'e, H: Host>(
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
                saved::load(host, target, id, absent)?;
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
        Err(_) => saved::read_row(host, target)?,
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
    let idle_at = match target.store {
        Store::Saved => None,
        _ => limit.idle_at(state, now, phase),
    };
    Retention { idle_at, half_used: limit.is_half_used(state), now, save }
}

/// Interprets the stored state of a target, of which the definition may have changed since; `phase` is the target's.
pub fn state(target: &Target, found: Option<State>, now: Micros, phase: Micros) -> State {
    found
        .filter(|state| target.limit().accepts(state.shape()))
        .unwrap_or_else(|| target.limit().initial_state(now, phase))
}

/// Removes an entry that is not saved; false if there was none. Its limit may have had `slots`.
pub(super) fn forget(entries: &impl Entries, id: Id, slots: u32) -> bool {
    let id = Id { slots, ..id };
    let mut locked = entries.lock(&[id]);
    let was = locked.write(id, None, Retention::default());
    locked.unlock();
    was
}
