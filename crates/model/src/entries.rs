//! The entries of memory. Everything done under a partition's lock is one step.

use ratelimit_core::State;
use ratelimit_faults::Fault;
use ratelimit_limiter::ports::{
    Absent, Entries, Id, Key, LockedEntries, Pool, Retention, RowId, Seen,
};

use crate::content::Total;
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
        Id { name: [0, 0], key, pool: Pool::Defined, slots: 0 }
    }

    fn read(&self, id: Id) -> std::result::Result<Option<State>, Absent> {
        self.lock(&[id]).read(id).map(|seen| seen.state)
    }

    fn lock(&self, _: &[Id]) -> LockedPartition<'_> {
        self.step(Primitive::LockPartition);
        self.is_locked.set(true);
        LockedPartition(self)
    }

    fn load(&self, id: Id, _: RowId, state: Option<&State>, absent: Absent) -> bool {
        let late = Fault::EvictionsCountedLate.is_on().then(|| self.read(id).err()).flatten();
        let absent = late.unwrap_or(absent);
        let before = (absent.evictions as u8, absent.on_standby);
        let load = Primitive::LoadSaved(id.key[0] as u8, state.cloned().map(Total), before);
        let _locked = self.lock(&[id]);
        matches!(self.at_once(load), StepReply::Loaded(LoadedKey::Yes | LoadedKey::Moved))
    }

    fn saved_keys(&self, _: Option<&[u8]>) -> Vec<Key> {
        if !self.setting.has_saved() {
            return Vec::new();
        }
        let _locked = self.lock(&[]);
        let reply = self.at_once(Primitive::ListSaved);
        let StepReply::Copies(keys, _) = reply else { unreachable!("{reply:?}") };
        let key = |(key, _): (u8, Option<Total>)| (NAME.to_vec(), KEYS[usize::from(key)].to_vec());
        keys.into_iter().map(key).collect()
    }

    fn forget_name(&self, _: &[u8]) -> u64 {
        let keys = 0..KEYS.len() as u64;
        // Each key has a partition of its own; they are locked one by one.
        let forget = |&key: &u64| {
            self.step(Primitive::LockPartition);
            self.at_once(Primitive::RemoveEntries(key)) == StepReply::Was(true)
        };
        keys.filter(forget).count() as u64
    }
}

/// The memory, with a partition locked.
pub struct LockedPartition<'e>(&'e Run<'e>);

impl LockedPartition<'_> {
    fn was(&self, step: Primitive) -> bool {
        let reply = self.0.at_once(step);
        let StepReply::Was(was) = reply else { unreachable!("{reply:?}") };
        was
    }

    /// Reads the number of evictions of saved keys, and whether this is a standby.
    fn absent(&self) -> Absent {
        let reply = self.0.at_once(Primitive::BeforeRead);
        let StepReply::BeforeRead(evictions, on_standby) = reply else { unreachable!("{reply:?}") };
        Absent { evictions: evictions.into(), on_standby }
    }

    /// The number of entries evicted or removed.
    fn gone(&self) -> u32 {
        let reply = self.0.at_once(Primitive::CountGone);
        let StepReply::Number(gone) = reply else { unreachable!("{reply:?}") };
        gone.into()
    }
}

/// The key of an entry. Configs in calls have entries of their own.
fn place(id: Id) -> [u64; 2] {
    [id.key[0] + if id.pool == Pool::Inline { 100 } else { 0 }, id.key[1]]
}

impl Drop for LockedPartition<'_> {
    fn drop(&mut self) {
        self.0.is_locked.set(false);
    }
}

impl LockedEntries for LockedPartition<'_> {
    fn read(&mut self, id: Id) -> std::result::Result<Seen, Absent> {
        let found = if id.pool == Pool::Saved {
            let reply = self.0.at_once(Primitive::ReadSaved(id.key[0] as u8));
            let StepReply::Saved(found) = reply else { unreachable!("{reply:?}") };
            found.ok_or_else(|| self.absent())?
        } else {
            let reply = self.0.at_once(Primitive::ReadEntry(place(id)));
            let StepReply::Entry(found) = reply else { unreachable!("{reply:?}") };
            found
        };
        let state = found.map(|Total(state)| state);
        let is_full = state.is_none() && !self.0.has(Flaw::GoneEntryOverlooked);
        let gone = is_full.then(|| match id.pool {
            Pool::Saved => self.absent().evictions,
            _ => self.gone(),
        });
        Ok(Seen { state, gone })
    }

    fn write(&mut self, id: Id, state: Option<&State>, retention: Retention) -> bool {
        let state = state.cloned().map(Total);
        match state {
            Some(_) if Fault::EntryNotWritten.is_on() => true,
            state if id.pool == Pool::Saved => {
                self.was(Primitive::WriteSaved(id.key[0] as u8, state))
            }
            None => self.was(Primitive::RemoveEntry(place(id))),
            // Without leases there is no entry.
            Some(Total(State::Leases(leases))) if leases.leases.is_empty() => {
                self.was(Primitive::RemoveEntry(place(id)));
                true
            }
            Some(state) => {
                if self.0.has(Flaw::PartitionGivenUp) {
                    self.0.step(Primitive::LockPartition);
                }
                let idle_at = retention.idle_at.map_or(i64::MAX, |at| at.0);
                let write = Primitive::WriteEntry(place(id), state, idle_at, retention.now.0);
                self.0.at_once(write);
                true
            }
        }
    }

    fn unlock(self) {}
}
