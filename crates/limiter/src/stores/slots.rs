//! The leases of a concurrency limit in memory: an entry for each slot that is taken, since an entry has no room for
//! more than one lease. Those of a key are numbered from 0 on without a gap, whatever the number of slots is now, and
//! are in one partition: they are read, decided, written and forgotten under its lock, at once, as a row is.
//!
//! The key's own entry has the state of another kind. As in a row, a take under one kind ends the state of the other:
//! leases count as none while that entry is there, and a lease that is granted removes it.

use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Micros, State};

use super::{Contents, Decide, memory};
use crate::error::Result;
use crate::ports::{Entries, Host, Id, Kept, LockedEntries, Worth};
use crate::target::Target;

/// What the slots of a key held.
struct Found {
    /// The leases in the order of their numbers, of which some have expired, and the latest instant at which they were
    /// changed.
    leases: Leases,
    /// Beyond the last number that has an entry.
    end: u32,
}

/// Changes the leases of a key, whose limit has so many slots: they are decided as the state of a row would be.
///
/// # Errors
/// As [`change`](super::change).
pub(super) fn change<H: Host, T>(
    host: &H,
    target: &Target,
    slots: u32,
    decide: impl Decide<T>,
) -> Result<T> {
    let entries = host.entries()?;
    let id = memory::id(entries, target, None);
    let result = entries.locked(id, |locked| {
        let now = host.now();
        let Found { leases, end } = find(locked, id, slots);
        let (result, after) = decide(Contents::One(&State::Leases(leases)), now)?;
        if let Some(State::Leases(after)) = after {
            write(locked, id, &after, end, now, slots);
        }
        Ok(result)
    });
    entries.tell_losses();
    result
}

/// Reads the leases that have not expired; `None` where there is none.
///
/// # Errors
/// As [`Host::entries`].
pub(super) fn read<H: Host>(host: &H, target: &Target, slots: u32) -> Result<Option<State>> {
    let entries = host.entries()?;
    let id = memory::id(entries, target, None);
    let mut leases = entries.locked(id, |locked| find(locked, id, slots)).leases;
    let now = host.now();
    leases.leases.retain(|lease| lease.is_live(now));
    Ok((!leases.leases.is_empty()).then_some(State::Leases(leases)))
}

/// Forgets the leases of a key whose partition is locked, in so many slots and those beyond up to the first that is not
/// there; false if there was none.
pub(super) fn forget(locked: &mut impl LockedEntries, id: Id, slots: u32) -> bool {
    let mut was = false;
    for number in 0..MAX_SLOTS_IN_MEMORY {
        let removed = locked.remove(id.slot(number));
        was |= removed;
        if !removed && number >= slots {
            break;
        }
    }
    was
}

/// Reads the slots of the definition, where one may be missing that has made room for another key's, and those
/// beyond up to the first that is not there.
fn find(locked: &mut impl LockedEntries, id: Id, slots: u32) -> Found {
    let was_another_kind = locked.read(id).is_some();
    let (mut leases, mut end) = (Leases { leases: Vec::new(), ts: Micros(i64::MIN) }, 0);
    for number in 0..MAX_SLOTS_IN_MEMORY {
        match locked.read(id.slot(number)) {
            Some(Kept::Slot { lease, ts, .. }) => {
                leases.leases.push(lease);
                leases.ts = leases.ts.max(ts);
                end = number + 1;
            }
            _ if number < slots => {}
            _ => break,
        }
    }
    if was_another_kind {
        leases = Leases { leases: Vec::new(), ts: Micros(i64::MIN) };
    }
    Found { leases, end }
}

/// Writes the leases of a state, which are all that there are: what has expired or was released is gone, so that
/// it lives again at no time to which the clock steps back.
fn write(
    locked: &mut impl LockedEntries,
    id: Id,
    after: &Leases,
    end: u32,
    now: Micros,
    slots: u32,
) {
    locked.remove(id);
    let half_used = 2 * after.leases.len() >= slots as usize;
    let mut number = 0;
    for &lease in &after.leases {
        let Lease { expires_at, .. } = lease;
        let kept = Kept::Slot { lease, ts: after.ts, is_first: number == 0 };
        let worth = Worth { idle_at: Some(expires_at), half_used, now };
        locked.write(id.slot(number), kept, worth);
        number += 1;
    }
    for number in number..end {
        locked.remove(id.slot(number));
    }
}
