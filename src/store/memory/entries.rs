//! The entries of memory as the limiter has them: the states of this database and extension.

use std::cell::Cell;

use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{
    BeforeRead, Entries, Id, Kept, Loaded, LockedEntries, Room, SavedKey, Worth,
};
use ratelimit_memory::SavedGuard;
use ratelimit_memory::saved::SavedCopy;

use super::id::{Scope, inline};
use super::saved::{self, SavedMemory};
use super::states::LockedStates;
use super::{Memory, SessionLock, writer};
use ratelimit_pg::clock;
use ratelimit_pg::server_log;
use ratelimit_pg::transaction::is_in_recovery;

/// The entries of limits of a database and an extension.
pub struct SharedEntries {
    /// Where they are.
    memory: &'static Memory,
    /// Whose they are.
    scope: Scope,
    /// By what the worker finds them.
    saver: writer::Origin,
    /// When the first of the keys that this call changed is to be written.
    due: Cell<Option<Micros>>,
}

/// Entries that are locked.
pub struct SharedLocked<'e> {
    entries: &'e SharedEntries,
    states: LockedStates<'e>,
    /// Partitions of saved keys by their numbers, in that order.
    first: Option<(usize, SavedGuard<'static, SessionLock>)>,
    others: Vec<(usize, SavedGuard<'static, SessionLock>)>,
}

impl SharedEntries {
    /// The entries in this memory.
    pub fn new(memory: &'static Memory, saver: writer::Origin) -> SharedEntries {
        SharedEntries { memory, scope: saver.scope, saver, due: Cell::new(None) }
    }

    /// What of the saved keys is locked, by the numbers of their partitions.
    fn lock_saved(
        &self,
        numbers: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (usize, SavedGuard<'static, SessionLock>)> {
        let saved = SavedMemory::seen();
        numbers.filter_map(move |number| Some((number, saved?.lock(number))))
    }
}

impl Entries for SharedEntries {
    type Locked<'e> = SharedLocked<'e>;

    #[inline]
    fn id(&self, name: &[u8], key: &[u8]) -> Id {
        self.memory.id(self.scope, name, key)
    }

    fn inline(&self, id: Id) -> Id {
        inline(id)
    }

    #[inline]
    fn prefetch(&self, id: Id) {
        self.memory.states.prefetch(id);
    }

    fn read(&self, id: Id) -> Option<Kept> {
        self.memory.states.read(id)
    }

    #[inline]
    fn locked<T>(&self, id: Id, work: impl FnOnce(&mut SharedLocked<'_>) -> T) -> T {
        let (states, first) = match id.room {
            Room::Saved => {
                let first = self.lock_saved(std::iter::once(saved::partition_of(id.key))).next();
                (self.memory.states.lock_none(), first)
            }
            _ => (self.memory.states.lock(id), None),
        };
        work(&mut SharedLocked { entries: self, states, first, others: Vec::new() })
    }

    fn lock_all(&self, ids: impl Iterator<Item = Id>) -> SharedLocked<'_> {
        let (saved, others): (Vec<Id>, Vec<Id>) = ids.partition(|id| id.room == Room::Saved);
        let states = self.memory.states.lock_all(others.into_iter());
        let mut numbers: Vec<usize> =
            saved.into_iter().map(|id| saved::partition_of(id.key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let others = self.lock_saved(numbers.into_iter()).collect();
        SharedLocked { entries: self, states, first: None, others }
    }

    fn forget_name(&self, name: &[u8]) -> u64 {
        let is_counted = |kept| !matches!(kept, Kept::Slot { is_first: false, .. });
        self.memory.states.forget_name(self.id(name, b""), is_counted)
    }

    fn before_read(&self, id: Id) -> BeforeRead {
        let evictions = SavedMemory::seen().map_or(0, |saved| saved.evictions(id));
        BeforeRead { evictions, on_standby: is_in_recovery() }
    }

    fn load(
        &self,
        id: Id,
        name_and_key: (&[u8], &[u8]),
        state: Option<&State>,
        before: BeforeRead,
    ) -> Loaded {
        let Some(saved) = SavedMemory::seen() else { return Loaded::NoRoom };
        saved.load(self.scope, id, name_and_key, state, before)
    }

    fn saved_keys(&self, name: Option<&[u8]>) -> Vec<SavedKey> {
        let keys = SavedMemory::seen().map_or_else(Vec::new, |saved| saved.keys(self.scope, name));
        keys.into_iter().map(|SavedCopy { name, key, .. }| SavedKey { name, key }).collect()
    }

    #[inline]
    fn save_later(&self) {
        if let Some(saved) = SavedMemory::seen() {
            writer::see_to(saved, &self.saver, self.due.take());
        }
    }

    #[inline]
    fn tell_losses(&self) {
        if let Some(lost) = self.memory.states.losses_to_tell() {
            server_log::line(&format!(
                "rate limits in memory: {lost} keys in use were evicted, and are full again; \
                 increase ratelimit.memory_keys"
            ));
        }
    }
}

impl SharedLocked<'_> {
    /// The partition of a saved key.
    #[inline]
    fn saved(&mut self, id: Id) -> Option<&mut SavedGuard<'static, SessionLock>> {
        let number = saved::partition_of(id.key);
        match &mut self.first {
            Some((first, guard)) if *first == number => Some(guard),
            _ => {
                let at = self.others.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                Some(&mut self.others[at].1)
            }
        }
    }
}

impl LockedEntries for SharedLocked<'_> {
    #[inline]
    fn read(&mut self, id: Id) -> Option<Kept> {
        self.states.state(id)
    }

    #[inline]
    fn gone(&mut self, id: Id) -> u32 {
        match id.room {
            Room::Saved => self.saved(id).map_or(0, |guard| guard.partition().evictions()),
            _ => LockedStates::gone(&mut self.states, id),
        }
    }

    #[inline]
    fn write(&mut self, id: Id, kept: Kept, worth: Worth) {
        let Worth { idle_at, half_used, now } = worth;
        self.states.set(id, kept, idle_at, half_used, now);
    }

    #[inline]
    fn remove(&mut self, id: Id) -> bool {
        self.states.remove(id)
    }

    #[inline]
    fn read_saved(&mut self, id: Id) -> Option<Option<State>> {
        self.saved(id)?.partition().call(id.key, is_in_recovery())
    }

    #[inline]
    fn write_saved(&mut self, id: Id, state: Option<&State>, save: Micros) -> bool {
        let (save, now) = ((save.0 / 1000) as u32, clock::monotonic());
        let Some(guard) = self.saved(id) else { return false };
        let Ok(due) = guard.partition().set(id.key, state, save, now) else { return false };
        let first = self.entries.due.get().into_iter().chain(due).min();
        self.entries.due.set(first);
        true
    }
}
