//! The leases of a concurrency limit in memory: an entry for each slot that is taken, since an entry has no room for
//! more than one lease. Those of a key are numbered from 0 on without a gap, whatever the number of slots is now, and
//! are in one partition: they are read, decided, written and forgotten under its lock, at once, as a row is.

use std::iter;

use ratelimit_core::algorithm::{Lease, Leases};
use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::{Micros, State};

use crate::pg::clock;
use crate::store::memory::{Id, Kept, LockedStates, Memory};

/// The slots of a key in memory.
pub struct Slots {
    memory: &'static Memory,
    /// Of the key.
    id: Id,
    /// How many the definition has now.
    slots: u32,
}

/// What the slots of a key held.
struct Found {
    /// In the order of their numbers; some have expired.
    leases: Vec<Lease>,
    /// The latest instant at which they were changed.
    ts: Micros,
    /// Beyond the last number that has an entry.
    end: u32,
}

/// Whether it is a slot of a key that has another, its first.
pub fn is_further_slot(kept: Kept) -> bool {
    matches!(kept, Kept::Slot { is_first: false, .. })
}

impl Found {
    /// The leases as the state of a row.
    fn into_state(self) -> State {
        State::Leases(Leases { leases: self.leases, ts: self.ts })
    }
}

impl Slots {
    /// The slots of a key of a limit that has so many.
    pub fn of(slots: u32, memory: &'static Memory, id: Id) -> Slots {
        Slots { memory, id, slots }
    }

    /// Locks the slots and decides; `work` gets their state as a row would have it, and returns the state after.
    pub fn change<T>(&self, work: impl FnOnce(&State, Micros) -> (T, Option<State>)) -> T {
        let mut states = self.lock();
        let now = clock::now();
        let found = self.find(&mut states);
        let end = found.end;
        let (result, after) = work(&found.into_state(), now);
        if let Some(State::Leases(after)) = after {
            self.write(&mut states, &after, end, now);
        }
        result
    }

    /// Reads the leases; `None` where none is taken.
    pub fn state(&self) -> Option<State> {
        let mut found = self.find(&mut self.lock());
        let now = clock::now();
        found.leases.retain(|lease| lease.is_live(now));
        (!found.leases.is_empty()).then(|| found.into_state())
    }

    /// Forgets the leases; false if there was none.
    pub fn forget(&self) -> bool {
        let mut states = self.lock();
        (0..MAX_SLOTS_IN_MEMORY).filter(|&number| states.remove(self.id.slot(number))).count() > 0
    }

    fn lock(&self) -> LockedStates<'_> {
        self.memory.states.lock_all(iter::once(self.id))
    }

    /// Reads the slots of the definition, where one may be missing that has made room for another key's, and those
    /// beyond up to the first that is not there.
    fn find(&self, states: &mut LockedStates) -> Found {
        let mut found = Found { leases: Vec::new(), ts: Micros(i64::MIN), end: 0 };
        for number in 0..MAX_SLOTS_IN_MEMORY {
            match states.state(self.id.slot(number)) {
                Some(Kept::Slot { lease, ts, .. }) => {
                    found.leases.push(lease);
                    found.ts = found.ts.max(ts);
                    found.end = number + 1;
                }
                _ if number < self.slots => {}
                _ => break,
            }
        }
        found
    }

    /// Writes the leases of a state, which are all that there are: what has expired or was released is gone, so that
    /// it lives again at no time to which the clock steps back.
    fn write(&self, states: &mut LockedStates, after: &Leases, end: u32, now: Micros) {
        let half_used = 2 * after.leases.len() >= self.slots as usize;
        let mut number = 0;
        for &lease in &after.leases {
            let kept = Kept::Slot { lease, ts: after.ts, is_first: number == 0 };
            states.set(self.id.slot(number), kept, Some(lease.expires_at), half_used, now);
            number += 1;
        }
        for number in number..end {
            states.remove(self.id.slot(number));
        }
    }
}
