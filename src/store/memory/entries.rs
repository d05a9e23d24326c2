//! The entries of memory as the limiter has them: the states of this database and extension.

use ratelimit_limiter::ports::{Entries, Id, Kept, LockedEntries, Worth};

use super::Memory;
use super::id::{Scope, inline};
use super::states::LockedStates;
use ratelimit_pg::server_log;

/// The entries of limits of a database and an extension.
pub struct SharedEntries {
    /// Where they are.
    pub memory: &'static Memory,
    /// Whose they are.
    pub scope: Scope,
}

impl Entries for SharedEntries {
    type Locked<'e> = LockedStates<'e>;

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
    fn locked<T>(&self, id: Id, work: impl FnOnce(&mut LockedStates<'_>) -> T) -> T {
        work(&mut self.memory.states.lock(id))
    }

    fn lock_all(&self, ids: impl Iterator<Item = Id>) -> LockedStates<'_> {
        self.memory.states.lock_all(ids)
    }

    fn forget_name(&self, name: &[u8]) -> u64 {
        let is_counted = |kept| !matches!(kept, Kept::Slot { is_first: false, .. });
        self.memory.states.forget_name(self.id(name, b""), is_counted)
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

impl LockedEntries for LockedStates<'_> {
    #[inline]
    fn read(&mut self, id: Id) -> Option<Kept> {
        self.state(id)
    }

    #[inline]
    fn gone(&mut self, id: Id) -> u32 {
        LockedStates::gone(self, id)
    }

    #[inline]
    fn write(&mut self, id: Id, kept: Kept, worth: Worth) {
        let Worth { idle_at, half_used, now } = worth;
        self.set(id, kept, idle_at, half_used, now);
    }

    #[inline]
    fn remove(&mut self, id: Id) -> bool {
        LockedStates::remove(self, id)
    }
}
