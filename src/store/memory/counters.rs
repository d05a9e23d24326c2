//! Counts the answers to each name's calls, for every store, and the denials of keys: immediately, outside any
//! transaction.

use std::cell::Cell;

use pgrx::pg_sys;
use ratelimit_limiter::ports::Id;
use ratelimit_memory::{Count, SharedRankings, SharedTallies, TEXT};

use super::id::Scope;
use super::{Memory, SessionLock};
use ratelimit_pg::clock;
use ratelimit_pg::values::clipped;

/// The counters of names.
pub type Tallies = SharedTallies<SessionLock, Scope>;
/// The keys that are denied most.
pub type Rankings = SharedRankings<SessionLock, Scope>;

thread_local! {
    /// The key of which this session counted a denial last, and the number of its counter.
    static LAST: Cell<([u64; 2], usize)> = const { Cell::new(([0; 2], 0)) };
}

/// The number that distributes sessions over counters.
fn session() -> usize {
    // SAFETY: constant in a process.
    unsafe { pg_sys::MyProcPid as usize }
}

impl Memory {
    /// Counts the answer to a call.
    #[inline]
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        if !self.tallies.count(id.name, session(), count) {
            self.enter(id, scope, name, count);
        }
    }

    /// Counts the first call of a name, after removing the names of dropped databases and extensions from its window.
    #[cold]
    fn enter(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        scope.dropped(self.tallies.crowd(id.name)).iter().for_each(|&of| self.tallies.free(of));
        self.tallies.enter(id.name, scope, name, session(), clock::system_time(), count);
    }

    /// Counts a denial of a key.
    pub fn count_denial(&self, id: Id, scope: Scope, name: &[u8], key: &[u8]) {
        let key = clipped(key, TEXT.saturating_sub(name.len())); // not under the lock
        let (last, number) = LAST.get();
        let last = Some(number).filter(|_| last == id.key);
        LAST.set((id.key, self.rankings.count(id.key, last, scope, name, key)));
    }
}
