//! Reads and writes the whole state of a key. Leases take an entry for each slot, because only one fits into an entry.
//! They are numbered from 0 without a gap, independently of the present number of slots; but one may have been evicted.
//!
//! The key's own entry has the state of any other kind. A take under one kind ends the state of the other, as in a row:
//! leases don't count while that entry exists, and a granted lease removes it.

use std::ops::AddAssign;

use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::kinds::Leases;
use ratelimit_core::{Micros, State};

use super::{Content, Owner, Partition, PartitionView};

/// A key, and the slots of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// A hash that callers can't predict.
    pub key: [u64; 2],
    /// The number of slots; 0: not a concurrency limit.
    pub slots: u32,
}

/// The data that decides which entry is evicted.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// The time when the state is full again; `None`: never.
    pub idle_at: Option<Micros>,
    /// Whether half of the limit or more is used.
    pub half_used: bool,
    /// The time of the call.
    pub now: Micros,
}

/// The numbers of states that a write evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// States that were idle: their keys are full anyway.
    pub idle: u64,
    /// States that were not idle: their keys are full again too early.
    pub live: u64,
}

impl AddAssign for Evictions {
    fn add_assign(&mut self, others: Evictions) {
        self.idle += others.idle;
        self.live += others.live;
    }
}

impl Id {
    /// The key of a slot.
    fn slot(self, number: u32) -> [u64; 2] {
        // An odd number with multiples far from each other: 2^64 divided by the golden ratio.
        let apart = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1);
        [self.key[0], self.key[1].wrapping_add(apart)]
    }

    /// Reads the leases in the slots, and beyond them up to the first free one; `None`: no leases.
    fn leases(self, mut read: impl FnMut([u64; 2]) -> Option<Content>) -> Option<State> {
        let mut found = Leases { leases: Vec::new(), ts: Micros(i64::MIN) };
        for number in 0..MAX_SLOTS_IN_MEMORY {
            match read(self.slot(number)) {
                Some(Content::Slot { lease, ts, .. }) => {
                    found.leases.push(lease);
                    found.ts = found.ts.max(ts);
                }
                _ if number < self.slots => {}
                _ => break,
            }
        }
        (!found.leases.is_empty()).then_some(State::Leases(found))
    }
}

impl PartitionView<'_> {
    /// Reads the state of a key.
    pub fn read(self, id: Id) -> Option<State> {
        let read = |key| self.find(key).map(|entry| entry.content());
        let own = read(id.key).and_then(Content::state);
        if own.is_some() || id.slots == 0 { own } else { id.leases(read) }
    }
}

impl Partition<'_> {
    /// Reads the state of a key for a call, and marks it as used.
    #[inline]
    pub fn read(&mut self, id: Id) -> Option<State> {
        let own = self.touch(id.key).and_then(|entry| entry.content().state());
        if own.is_some() || id.slots == 0 {
            return own;
        }
        id.leases(|key| self.touch(key).map(|entry| entry.content()))
    }

    /// Stores the state of a key; returns the evictions. A log doesn't fit: no limit in memory has one.
    #[inline]
    pub fn write(
        &mut self,
        id: Id,
        owner: Owner,
        state: &State,
        retention: Retention,
    ) -> Evictions {
        if let State::Leases(leases) = state {
            return self.write_leases(id, owner, leases, retention);
        }
        let Some(content) = Content::new(state) else { return Evictions::default() };
        let (entry, evictions) = self.entry(id.key, owner, retention.now);
        entry.set(content, retention.idle_at, retention.half_used);
        evictions
    }

    /// Stores leases in place of all others: an expired one would be valid again after a step of the clock.
    fn write_leases(
        &mut self,
        id: Id,
        owner: Owner,
        Leases { leases, ts }: &Leases,
        Retention { half_used, now, .. }: Retention,
    ) -> Evictions {
        let mut evictions = Evictions::default();
        self.remove_entry(id.key);
        for (number, &lease) in (0..).zip(leases) {
            let (entry, evicted) = self.entry(id.slot(number), owner, now);
            let content = Content::Slot { lease, ts: *ts, is_first: number == 0 };
            entry.set(content, Some(lease.expires_at), half_used);
            evictions += evicted;
        }
        self.remove_leases(id, leases.len() as u32);
        evictions
    }

    /// Removes the state of a key; false if there was none.
    pub fn remove(&mut self, id: Id) -> bool {
        let was = self.remove_entry(id.key);
        self.remove_leases(id, 0) || was
    }

    /// Removes the leases from a number on; false if there were none.
    fn remove_leases(&mut self, id: Id, from: u32) -> bool {
        let mut was = false;
        for number in from..MAX_SLOTS_IN_MEMORY {
            let removed = self.remove_entry(id.slot(number));
            was |= removed;
            if !removed && number >= id.slots {
                break;
            }
        }
        was
    }
}
