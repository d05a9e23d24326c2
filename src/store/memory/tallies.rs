//! Counters of the answers to each name's calls, for every store. Counted immediately, outside any transaction.

use pgrx::pg_sys;
use ratelimit_limiter::ports::Id;
use ratelimit_memory::{Count, Totals};

use super::SessionLock;
use super::id::Scope;
use ratelimit_pg::clock;

/// The tallies' layout in shared memory.
type Shared = ratelimit_memory::SharedTallies<SessionLock, Scope>;

/// The tallies, in shared memory.
pub struct Tallies(&'static Shared);

/// The number that distributes sessions over counters.
fn session() -> usize {
    // SAFETY: constant in a process.
    unsafe { pg_sys::MyProcPid as usize }
}

impl Tallies {
    /// The size in bytes.
    pub const SIZE: usize = size_of::<Shared>();

    /// Views tallies.
    ///
    /// # Safety
    /// There are the bytes of this type at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](Tallies::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8) -> Tallies {
        // SAFETY: as the caller says; a scope is two numbers.
        Tallies(unsafe { Shared::at(address) })
    }

    /// Initializes the lock.
    ///
    /// # Safety
    /// No other session sees it yet.
    pub unsafe fn init(&self, lock_group: i32) {
        // SAFETY: as the caller says.
        unsafe { self.0.lock().0.init(lock_group) }
    }

    /// Counts the answer to a call.
    #[inline]
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        if !self.0.count(id.name, session(), count) {
            self.enter(id, scope, name, count);
        }
    }

    /// Counts the first call of a name, after removing the names of dropped databases and extensions from its window.
    #[cold]
    fn enter(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        let mut others = self.0.crowd(id.name);
        others.sort_unstable();
        others.dedup();
        for dropped in others.into_iter().filter(|other| other.is_dropped(scope)) {
            self.free(dropped);
        }
        self.0.enter(id.name, scope, name, session(), clock::system_time(), count);
    }

    /// Removes all names of an extension.
    pub fn free(&self, scope: Scope) {
        self.0.free(scope);
    }

    /// The scopes of the names, in no order, with repeats.
    pub fn scopes(&self) -> Vec<Scope> {
        self.0.scopes()
    }

    /// The number of calls not counted any more, because their names were replaced.
    pub fn dropped_calls(&self) -> u64 {
        self.0.dropped_calls()
    }

    /// Returns the counters of all names of an extension in this database, in no order.
    pub fn totals(&self, scope: Scope) -> Vec<Totals> {
        self.0.totals(scope)
    }

    /// Sets the counters of a name, or of all names, to zero; returns the number of names.
    pub fn reset(&self, scope: Scope, name: Option<&[u8]>) -> u64 {
        self.0.reset(scope, name, clock::system_time())
    }
}
