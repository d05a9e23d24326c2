//! The entries of memory: what happens under a partition's lock is one step.

use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{
    BeforeRead, Entries, Id, Kept, Loaded, LockedEntries, Room, SavedKey, Worth,
};

use crate::content::{EntryContent, Total};
use crate::postgres::{Flaw, LoadedKey, Primitive, StepReply};
use crate::run::Run;
use crate::statement::{KEYS, NAME, key_number};

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

    fn before_read(&self, _: Id) -> BeforeRead {
        let _locked = self.lock_partition();
        let reply = self.at_once(Primitive::BeforeRead);
        let StepReply::BeforeRead(evictions, on_standby) = reply else { unreachable!("{reply:?}") };
        BeforeRead { evictions: evictions.into(), on_standby }
    }

    fn load(&self, id: Id, _: (&[u8], &[u8]), state: Option<&State>, before: BeforeRead) -> Loaded {
        let state = state.cloned().map(Total);
        let before = (before.evictions as u8, before.on_standby);
        let load = Primitive::LoadSaved(id.key[0] as u8, state, before);
        let _locked = self.lock_partition();
        match self.at_once(load) {
            StepReply::Loaded(LoadedKey::Yes) => Loaded::Yes,
            StepReply::Loaded(LoadedKey::Moved) => Loaded::Moved,
            _ => Loaded::NoRoom,
        }
    }

    fn saved_keys(&self, _: Option<&[u8]>) -> Vec<SavedKey> {
        if !self.setting.has_saved() {
            return Vec::new();
        }
        let _locked = self.lock_partition();
        let reply = self.at_once(Primitive::ListSaved);
        let StepReply::Copies(keys, _) = reply else { unreachable!("{reply:?}") };
        let key = |(key, _): (u8, Option<Total>)| SavedKey {
            name: NAME.to_vec(),
            key: KEYS[usize::from(key)].to_vec(),
        };
        keys.into_iter().map(key).collect()
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

impl LockedPartition<'_> {
    fn was(&self, step: Primitive) -> bool {
        let reply = self.0.at_once(step);
        let StepReply::Was(was) = reply else { unreachable!("{reply:?}") };
        was
    }
}

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

    fn gone(&mut self, id: Id) -> u32 {
        if id.room == Room::Saved {
            let reply = self.0.at_once(Primitive::BeforeRead);
            let StepReply::BeforeRead(gone, _) = reply else { unreachable!("{reply:?}") };
            return gone.into();
        }
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
        self.was(match id.room {
            Room::Saved => Primitive::RemoveSaved(id.key[0] as u8),
            _ => Primitive::RemoveEntry(id.key),
        })
    }

    fn read_saved(&mut self, id: Id) -> Option<Option<State>> {
        let reply = self.0.at_once(Primitive::ReadSaved(id.key[0] as u8));
        let StepReply::Saved(found) = reply else { unreachable!("{reply:?}") };
        found.map(|state| state.map(|Total(state)| state))
    }

    fn write_saved(&mut self, id: Id, state: Option<&State>, _: Micros) -> bool {
        self.was(Primitive::WriteSaved(id.key[0] as u8, state.cloned().map(Total)))
    }
}
