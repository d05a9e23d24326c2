//! What calls of each name were answered, whatever the store of the limit: counted at once, and kept
//! whatever becomes of the transaction.

use pgrx::pg_sys;
use ratelimit_limiter::ports::Id;
use ratelimit_memory::{Count, Totals};

use super::SessionLock;
use super::id::Scope;
use ratelimit_pg::clock;

/// The tallies as they lie in shared memory.
type Shared = ratelimit_memory::SharedTallies<SessionLock, Scope>;

/// The tallies, in shared memory: one for each of some names.
pub struct Tallies(&'static Shared);

/// The number by which sessions are spread over counters.
fn session() -> usize {
    // SAFETY: constant in a process.
    unsafe { pg_sys::MyProcPid as usize }
}

impl Tallies {
    /// How many bytes they take.
    pub const SIZE: usize = size_of::<Shared>();

    /// Looks at tallies.
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

    /// Counts the answer of a call.
    #[inline]
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        if !self.0.count(id.name, session(), count) {
            self.enter(id, scope, name, count);
        }
    }

    /// Counts the first call of a name, for which those of dropped databases and extensions make room.
    #[cold]
    fn enter(&self, id: Id, scope: Scope, name: &[u8], count: Count) {
        let mut others = self.0.crowd(id.name);
        others.sort_unstable();
        others.dedup();
        for dropped in others.into_iter().filter(|other| other.is_dropped(scope)) {
            self.free(dropped);
        }
        self.0.enter(id.name, (scope, name), (session(), clock::system_time()), count);
    }

    /// Frees all names of an extension.
    pub fn free(&self, scope: Scope) {
        self.0.free(scope);
    }

    /// Whose the names are, in no order and some several times.
    pub fn scopes(&self) -> Vec<Scope> {
        self.0.scopes()
    }

    /// How many calls of the server are counted no more, since their names made room for others.
    pub fn dropped_calls(&self) -> u64 {
        self.0.dropped_calls()
    }

    /// Returns the counters of all names of an extension in this database, in no order.
    pub fn totals(&self, scope: Scope) -> Vec<Totals> {
        self.0.totals(scope)
    }

    /// Sets the counters of a name to zero, or those of all names; returns of how many.
    pub fn reset(&self, scope: Scope, name: Option<&[u8]>) -> u64 {
        self.0.reset(scope, name, clock::system_time())
    }
}
