//! The slots of a concurrency limit in memory: an entry each, since an entry has no room for more than one lease.
//! All slots of a key are locked, decided at one instant, and those that change are written.

use ratelimit_core::algorithm::Lease;
use ratelimit_core::{Micros, State};

use crate::pg::clock;
use crate::store::memory::{Id, Memory, Scope};

/// The slots of a key in memory.
pub struct Slots {
    memory: &'static Memory,
    ids: Vec<Id>,
}

/// A lease in the memory of its slot: its id, which a float holds exactly, and when it lapses.
fn of_slot(lease: Lease) -> State {
    State { value: lease.id.0 as f64, ts: lease.lapses_at, prior: None, log: None }
}

impl Slots {
    /// Finds so many slots of a key.
    pub fn of(slots: u32, memory: &'static Memory, scope: Scope, name: &[u8], key: &[u8]) -> Slots {
        let mut key = key.to_vec();
        key.push(0); // which no text of Postgres has
        let length = key.len();
        let slot = |number: u32| {
            key.truncate(length);
            key.extend(number.to_ne_bytes());
            memory.id(scope, name, &key)
        };
        Slots { memory, ids: (0..slots).map(slot).collect() }
    }

    /// Locks the slots and decides; `work` gets their state as a row would have it, and returns the state after.
    pub fn change<T>(&self, work: impl FnOnce(&State, Micros) -> (T, Option<State>)) -> T {
        let mut found = Vec::with_capacity(self.ids.len());
        let mut states = self.memory.states.lock_all(self.ids.iter().copied());
        let now = clock::now();
        let (mut newest, mut log) = (Micros(i64::MIN), Vec::new());
        for &id in &self.ids {
            let lease = states
                .state(id)
                .map(|state| Lease { id: Micros(state.value as i64), lapses_at: state.ts });
            if let Some(lease) = lease {
                newest = newest.max(lease.id);
                log.extend([lease.id, lease.lapses_at]);
            }
            found.push(lease);
        }
        let before =
            State { value: log.len() as f64 / 2.0, ts: newest, prior: Some(0.0), log: Some(log) };
        let (result, after) = work(&before, now);
        if let Some(after) = after {
            let mut wanted: Vec<Lease> = Lease::of(&after).collect();
            // A lease that is there stays where it is.
            for (&id, found) in self.ids.iter().zip(&mut found) {
                let Some(live) = found.filter(|lease| lease.is_live(now)) else { continue };
                match wanted.iter().position(|lease| lease.id == live.id) {
                    Some(same) => {
                        let lease = wanted.swap_remove(same);
                        states.set(id, &of_slot(lease), Some(lease.lapses_at), now);
                    }
                    None => {
                        // Its id stays, so that it is given to no other.
                        let lapsed = Lease { lapses_at: now, ..live };
                        states.set(id, &of_slot(lapsed), Some(now), now);
                        *found = Some(lapsed);
                    }
                }
            }
            let free = self.ids.iter().zip(&found);
            let free = free.filter(|(_, found)| !found.is_some_and(|lease| lease.is_live(now)));
            for ((&id, _), lease) in free.zip(wanted) {
                states.set(id, &of_slot(lease), Some(lease.lapses_at), now);
            }
        }
        result
    }

    /// Reads their leases; `None` where none is taken.
    pub fn state(&self) -> Option<State> {
        self.change(|before, now| {
            let live = Lease::of(before).any(|lease| lease.is_live(now));
            (live.then(|| before.clone()), None)
        })
    }

    /// Forgets the leases; false if there was none.
    pub fn forget(&self) -> bool {
        self.ids.iter().filter(|&&id| self.memory.states.forget(id)).count() > 0
    }
}
