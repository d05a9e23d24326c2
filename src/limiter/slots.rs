//! The slots of a concurrency limit in memory: an entry each, since an entry has no room for more than one lease.
//! All slots of a key are locked, decided at one instant, and those that change are written.

use std::collections::BTreeMap;

use ratelimit_core::algorithm::Lease;
use ratelimit_core::{Micros, State};

use crate::pg::clock;
use crate::store::memory::{Id, Memory, Scope};

/// The slots of a key in memory.
pub struct Slots {
    memory: &'static Memory,
    ids: Vec<Id>,
}

/// A lease in the memory of its slot: its id, which a float holds exactly until the year 2255, and when it lapses.
fn of_slot(lease: Lease) -> State {
    State { value: lease.id.0 as f64, ts: lease.lapses_at, prior: None, log: None }
}

/// The lease that a slot was given last.
fn lease_of(slot: State) -> Lease {
    Lease { id: Micros(slot.value as i64), lapses_at: slot.ts }
}

/// Leases as the state of a row.
fn as_row(leases: impl Iterator<Item = Lease>) -> State {
    let (mut newest, mut log) = (Micros(i64::MIN), Vec::new());
    for lease in leases {
        newest = newest.max(lease.id);
        log.extend([lease.id, lease.lapses_at]);
    }
    State { value: log.len() as f64 / 2.0, ts: newest, prior: Some(0.0), log: Some(log) }
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
        found.extend(self.ids.iter().map(|&id| states.state(id).map(lease_of)));
        let (result, after) = work(&as_row(found.iter().flatten().copied()), now);
        let Some(after) = after else { return result };
        // How often each lease is wanted, and when it is to lapse.
        let mut wanted: BTreeMap<Micros, (u32, Micros)> = BTreeMap::new();
        for lease in Lease::of(&after) {
            wanted.entry(lease.id).or_insert((0, lease.lapses_at)).0 += 1;
        }
        for (&id, found) in self.ids.iter().zip(&mut found) {
            let Some(live) = found.filter(|lease| lease.is_live(now)) else { continue };
            // A lease that is there stays where it is. The id of another stays, too, so that it is given to none.
            let lapses_at = match wanted.get_mut(&live.id) {
                Some((times @ 1.., lapses_at)) => {
                    *times -= 1;
                    *lapses_at
                }
                _ => now,
            };
            if lapses_at != live.lapses_at {
                let lease = Lease { lapses_at, ..live };
                states.set(id, &of_slot(lease), Some(lapses_at), now);
                *found = Some(lease);
            }
        }
        let free = self.ids.iter().zip(&found);
        let free = free.filter(|(_, found)| !found.is_some_and(|lease| lease.is_live(now)));
        let new = wanted.into_iter().flat_map(|(id, (times, lapses_at))| {
            std::iter::repeat_n(Lease { id, lapses_at }, times as usize)
        });
        for ((&id, _), lease) in free.zip(new) {
            states.set(id, &of_slot(lease), Some(lease.lapses_at), now);
        }
        result
    }

    /// Reads their leases; `None` where none is taken.
    pub fn state(&self) -> Option<State> {
        let found = self.memory.states.read_all(&self.ids);
        let now = clock::now();
        let live = found.into_iter().flatten().map(lease_of).filter(|lease| lease.is_live(now));
        let state = as_row(live);
        (state.value > 0.0).then_some(state)
    }

    /// Forgets the leases; false if there was none.
    pub fn forget(&self) -> bool {
        self.ids.iter().filter(|&&id| self.memory.states.forget(id)).count() > 0
    }
}
