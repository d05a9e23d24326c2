//! The keys that are denied most.

use std::cell::Cell;

use ratelimit_limiter::ports::Id;
use ratelimit_memory::{Denied, TEXT};

use super::SessionLock;
use super::id::Scope;
use ratelimit_pg::values::clipped;

/// The rankings' layout in shared memory.
type Shared = ratelimit_memory::SharedRankings<SessionLock, Scope>;

thread_local! {
    /// The key that this session counted last, and the number of its counter.
    static LAST: Cell<([u64; 2], usize)> = const { Cell::new(([0; 2], 0)) };
}

/// The rankings, in shared memory.
pub struct Rankings(&'static Shared);

impl Rankings {
    /// The size in bytes.
    pub const SIZE: usize = size_of::<Shared>();

    /// Views rankings.
    ///
    /// # Safety
    /// There are the bytes of this type at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](Rankings::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8) -> Rankings {
        // SAFETY: as the caller says; a scope is two numbers.
        Rankings(unsafe { Shared::at(address) })
    }

    /// Initializes the locks.
    ///
    /// # Safety
    /// No other session sees them yet.
    pub unsafe fn init(&self, lock_group: i32) {
        // SAFETY: as the caller says.
        self.0.locks().for_each(|lock| unsafe { lock.0.init(lock_group) });
    }

    /// Counts a denial of a key.
    pub fn count(&self, id: Id, scope: Scope, name: &[u8], key: &[u8]) {
        let key = clipped(key, TEXT.saturating_sub(name.len())); // not under the lock
        let (last, number) = LAST.get();
        let last = Some(number).filter(|_| last == id.key);
        LAST.set((id.key, self.0.count(id.key, last, scope, name, key)));
    }

    /// Returns the keys of a name, or of all, that were denied most, in descending order.
    pub fn most_denied(&self, scope: Scope, name: Option<&[u8]>, rows: usize) -> Vec<Denied> {
        self.0.most_denied(scope, name, rows)
    }

    /// The scopes of the keys, in no order, with repeats.
    pub fn scopes(&self) -> Vec<Scope> {
        self.0.scopes()
    }

    /// Removes a key of every name; `id`: the key's address under a name.
    pub fn forget_key(&self, scope: Scope, id: impl Fn(&[u8]) -> Id) {
        self.0.forget_key(scope, |name| id(name).key);
    }

    /// Removes the keys of a name, or of all.
    pub fn forget(&self, scope: Scope, name: Option<&[u8]>) {
        self.0.forget(scope, name);
    }
}
