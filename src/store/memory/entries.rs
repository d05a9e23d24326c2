//! The limiter's port to the memory: the entries of one database and extension.

use pgrx::pg_sys;
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{
    Absent, Entries, Id, Key, LockedEntries, Pool, Retention, RowId, Seen,
};
use ratelimit_memory::saved::SavedCopy;
use ratelimit_memory::states::{self, Owner, Partition};
use ratelimit_memory::{PartitionWriteGuard, SavedGuard};

use super::locked::Locked;
use super::saved::{self, SavedMemory};
use super::states::{LockedStates, address, partition_of};
use super::{Memory, SessionLock};
use crate::store::memory::writer;
use ratelimit_pg::clock;
use ratelimit_pg::server_log;
use ratelimit_pg::transaction::is_in_recovery;

/// The entries of a database and an extension, for one call.
pub struct SharedEntries {
    memory: &'static Memory,
    /// The caller.
    role: pg_sys::Oid,
    /// Their scope, and the arguments for starting a writer.
    origin: writer::Origin,
}

/// Entries that are locked.
pub struct SharedLocked<'e> {
    entries: &'e SharedEntries,
    states: LockedStates<'e>,
    saved: Locked<SavedGuard<'static, SessionLock>>,
    /// The time when the first of the changed keys has to be written.
    due: Option<Micros>,
}

impl SharedEntries {
    /// The entries in this memory. Called before the call becomes the tables' owner.
    pub fn new(memory: &'static Memory, origin: writer::Origin) -> SharedEntries {
        // SAFETY: reads a variable of the session.
        let role = unsafe { pg_sys::GetUserId() };
        SharedEntries { memory, role, origin }
    }
}

impl Entries for SharedEntries {
    type Locked<'e> = SharedLocked<'e>;

    #[inline]
    fn id(&self, name: &[u8], key: &[u8]) -> Id {
        self.memory.id(self.origin.scope, name, key)
    }

    fn read(&self, id: Id) -> Result<Option<State>, Absent> {
        match id.pool {
            Pool::Saved => Ok(self.lock(&[id]).read(id)?.state),
            Pool::Defined | Pool::Inline => Ok(self.memory.states.read(id)),
        }
    }

    #[inline]
    fn lock(&self, ids: &[Id]) -> SharedLocked<'_> {
        let is_saved = |id: &&Id| id.pool == Pool::Saved;
        let states = self.memory.states.lock(ids.iter().filter(|id| !is_saved(id)).copied());
        let saved = SavedMemory::seen()
            .map_or_else(Locked::default, |saved| saved.lock(ids.iter().filter(is_saved).copied()));
        SharedLocked { entries: self, states, saved, due: None }
    }

    fn load(&self, id: Id, row: RowId, state: Option<&State>, absent: Absent) -> bool {
        SavedMemory::seen()
            .is_some_and(|saved| saved.load(self.origin.scope, id, row, state, absent))
    }

    fn saved_keys(&self, name: Option<&[u8]>) -> Vec<Key> {
        let keys =
            SavedMemory::seen().map_or_else(Vec::new, |saved| saved.keys(self.origin.scope, name));
        keys.into_iter().map(|SavedCopy { name, key, .. }| (name, key)).collect()
    }

    fn forget_name(&self, name: &[u8]) -> u64 {
        self.memory.states.forget_name(self.id(name, b"").name)
    }
}

impl SharedLocked<'_> {
    /// The partition of a key that is not saved.
    #[inline]
    fn state(&mut self, id: Id) -> Option<Partition<'_>> {
        self.states.get(partition_of(id)).map(PartitionWriteGuard::partition)
    }

    /// The partition of a saved key.
    #[inline]
    fn saved(&mut self, id: Id) -> Option<&mut SavedGuard<'static, SessionLock>> {
        self.saved.get(saved::partition_of(id.key))
    }
}

impl LockedEntries for SharedLocked<'_> {
    #[inline]
    fn read(&mut self, id: Id) -> Result<Seen, Absent> {
        if id.pool != Pool::Saved {
            let Some(mut partition) = self.state(id) else {
                return Ok(Seen { state: None, gone: None });
            };
            let state = partition.read(address(id));
            let gone = state.is_none().then(|| partition.view().gone());
            return Ok(Seen { state, gone });
        }
        let on_standby = is_in_recovery();
        let absent = |evictions| Absent { evictions, on_standby };
        let guard = self.saved(id).ok_or(absent(0))?;
        let mut partition = guard.partition();
        let found = partition.read(id.key, on_standby);
        let evictions = partition.head().evictions;
        let state = found.ok_or(absent(evictions))?;
        let gone = state.is_none().then_some(evictions);
        Ok(Seen { state, gone })
    }

    #[inline]
    fn write(&mut self, id: Id, state: Option<&State>, retention: Retention) -> bool {
        if id.pool != Pool::Saved {
            let SharedEntries { memory, role, origin } = *self.entries;
            let Some(mut partition) = self.state(id) else { return false };
            let Some(state) = state else { return partition.remove(address(id)) };
            let (owner, fair_by_name) =
                (origin.scope.owner(id.pool, role), id.pool == Pool::Defined);
            let owner = Owner { id: owner, name: id.name[0], fair_by_name };
            let Retention { idle_at, half_used, now, .. } = retention;
            let retention = states::Retention { idle_at, half_used, now };
            memory.states.count(partition.write(address(id), owner, state, retention));
            return true;
        }
        let (save, now) = ((retention.save.0 / 1000) as u32, clock::monotonic());
        let Some(guard) = self.saved(id) else { return false };
        let Ok(due) = guard.partition().set(id.key, state, save, now) else { return false };
        self.due = self.due.into_iter().chain(due).min();
        true
    }

    #[inline]
    fn unlock(self) {
        let SharedLocked { entries, states, saved, due } = self;
        let (has_states, has_saved) = (!states.is_empty(), !saved.is_empty());
        drop((states, saved));
        if has_saved && let Some(saved) = SavedMemory::seen() {
            writer::note_and_start(saved, &entries.origin, due);
        }
        if has_states && let Some(lost) = entries.memory.states.losses_to_log() {
            log_losses(lost);
        }
    }
}

#[cold]
fn log_losses(lost: u64) {
    server_log::line(&format!(
        "rate limits in memory: {lost} keys in use were evicted, and are full again; \
         increase ratelimit.memory_keys"
    ));
}
