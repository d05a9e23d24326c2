//! The entries of memory: what happens under a partition's lock is one step.

use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{
    Entries, Id, Kept, Loaded, LockedEntries, Room, SavedKey, SavedState, Worth,
};

use crate::content::EntryContent;
use crate::postgres::{Flaw, Primitive, StepReply};
use crate::run::Run;
use crate::statement::{KEYS, key_number};

impl Entries for Run<'_> {
    type Locked<'e>
        = LockedPartition<'e>
    where
        Self: 'e;

    fn id(&self, _: &[u8], key: &[u8]) -> Id {
        let key = [u64::from(key_number(key)), 0];
        Id { name: [0, 0], key, room: Room::Defined, owner: 0 }
    }

    fn inline(&self, id: Id) -> Id {
        Id { key: [id.key[0] + 100, id.key[1]], room: Room::Inline, ..id }
    }

    fn read(&self, id: Id) -> Option<Kept> {
        self.lock_partition().read(id)
    }

    fn locked<T>(&self, _: Id, work: impl FnOnce(&mut LockedPartition<'_>) -> T) -> T {
        work(&mut self.lock_partition())
    }

    fn lock_all(&self, _: impl Iterator<Item = Id>) -> LockedPartition<'_> {
        self.lock_partition()
    }

    fn forget_name(&self, _: &[u8]) -> u64 {
        let keys = 0..KEYS.len() as u64;
        // Each in a partition of its own, of which one is locked at a time.
        let forget = |&key: &u64| {
            self.step(Primitive::LockPartition);
            self.at_once(Primitive::RemoveEntries(key)) == StepReply::Was(true)
        };
        keys.filter(forget).count() as u64
    }

    fn evictions(&self, _: Id) -> u32 {
        unreachable!("no limit is saved")
    }

    fn load(&self, _: Id, _: (&[u8], &[u8]), _: Option<&State>, _: (u32, Micros)) -> Loaded {
        unreachable!("no limit is saved")
    }

    fn saved_keys(&self, _: Option<&[u8]>) -> Vec<SavedKey> {
        Vec::new()
    }

    fn save_later(&self) {}

    fn tell_losses(&self) {}
}

impl Run<'_> {
    fn lock_partition(&self) -> LockedPartition<'_> {
        self.step(Primitive::LockPartition);
        self.is_locked.set(true);
        LockedPartition(self)
    }
}

/// The memory, of which a partition is locked.
pub struct LockedPartition<'e>(&'e Run<'e>);

impl Drop for LockedPartition<'_> {
    fn drop(&mut self) {
        self.0.is_locked.set(false);
    }
}

impl LockedEntries for LockedPartition<'_> {
    fn read(&mut self, id: Id) -> Option<Kept> {
        let reply = self.0.at_once(Primitive::ReadEntry(id.key));
        let StepReply::Entry(found) = reply else { unreachable!("{reply:?}") };
        found.map(|EntryContent(kept)| kept)
    }

    fn gone(&mut self, _: Id) -> u32 {
        let reply = self.0.at_once(Primitive::CountGone);
        let StepReply::Number(gone) = reply else { unreachable!("{reply:?}") };
        gone.into()
    }

    fn write(&mut self, id: Id, kept: Kept, worth: Worth) {
        if self.0.has(Flaw::PartitionGivenUp) {
            self.0.step(Primitive::LockPartition);
        }
        let idle_at = worth.idle_at.map_or(i64::MAX, |at| at.0);
        self.0.at_once(Primitive::WriteEntry(id.key, EntryContent(kept), idle_at, worth.now.0));
    }

    fn remove(&mut self, id: Id) -> bool {
        let reply = self.0.at_once(Primitive::RemoveEntry(id.key));
        let StepReply::Was(was) = reply else { unreachable!("{reply:?}") };
        was
    }

    fn read_saved(&mut self, _: Id) -> SavedState {
        unreachable!("no limit is saved")
    }

    fn write_saved(&mut self, _: Id, _: Option<&State>, _: Worth, _: Micros) -> bool {
        unreachable!("no limit is saved")
    }
}
