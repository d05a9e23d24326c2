//! Limits in memory: their states, and the counters of all limits, in a segment that all sessions of the server share.
//! It does not survive the server, and is not part of any transaction.
//!
//! Everything is found by a keyed hash of database, extension, name and key. So callers who choose keys can't aim at a
//! partition or at another key's state, and no session finds the remains of a dropped extension.

use std::cell::Cell;
use std::ffi::{CStr, CString};

use ratelimit_core::Micros;
use ratelimit_limiter::ports::Id;
use ratelimit_memory::ReadWriteLock;

use crate::schema::error::Result;
use crate::schema::settings;
use ratelimit_pg::clock;
use ratelimit_pg::error::PgError;
use ratelimit_pg::shared_memory::{self, Lock, LockGuard, Need};

use counters::{Rankings, Tallies};
use databases::Databases;
use id::Identifier;
use states::States;

mod counters;
mod databases;
mod entries;
mod id;
mod locked;
mod saved;
mod states;

pub mod writer;

pub use entries::SharedEntries;
pub use id::Scope;
pub use ratelimit_memory::{Count, Denied, Totals};
pub use saved::{SavedMemory, SavedUsage, Writer};

/// The number of the segment's layout. Raise it if a meaning changes without any size, such as the meaning of an entry
/// (`ratelimit_memory::states::Content`).
const LAYOUT: u32 = 8;

/// The beginning of the segment. The states, the tallies and the rankings follow.
#[repr(C, align(128))]
struct Header {
    seed: [u64; 2],
    /// `ratelimit.memory_keys` when the segment was made.
    keys: u64,
    lock_group: i32,
    /// Epoch microseconds.
    since: i64,
    databases: Databases,
}

/// The lock of a part of the segment.
#[repr(transparent)]
pub struct SessionLock(Lock);

// SAFETY: an LWLock excludes processes, with the barriers that that takes. A session that asks for one that it has
// waits forever, unless both are shared. The guard releases it; after an error the end of the (sub)transaction does,
// which comes after the panic has left all frames with a guard. No guard is kept in anything that outlives a call.
unsafe impl ReadWriteLock for SessionLock {
    type Guard<'a> = LockGuard<'a>;

    #[inline]
    fn shared(&self) -> LockGuard<'_> {
        self.0.shared()
    }

    #[inline]
    fn exclusive(&self) -> LockGuard<'_> {
        self.0.exclusive()
    }
}

/// The segment, mapped into this session.
pub struct Memory {
    /// The states of limits in memory.
    pub states: States,
    /// The counts of answers for each name.
    pub tallies: &'static Tallies,
    /// The keys that are denied most.
    pub rankings: &'static Rankings,
    databases: &'static Databases,
    identifier: Identifier,
    /// The time when the segment was created.
    pub since: Micros,
    /// Its size in bytes.
    pub size: usize,
}

thread_local! {
    static MEMORY: Cell<Option<&'static Memory>> = const { Cell::new(None) };
    static NAME: &'static CStr = name();
}

impl Memory {
    /// Returns the server's segment; creates it if there is none.
    ///
    /// # Errors
    /// 53200; raises 53100 or 53200 if there is no room for the segment, and other errors of Postgres about it.
    #[inline]
    pub fn get() -> Result<&'static Memory> {
        match MEMORY.get() {
            Some(memory) => Ok(memory),
            None => Memory::open(Need::Must)?.ok_or(PgError::NotMapped.into()),
        }
    }

    /// Returns the segment if this session has mapped it.
    #[inline]
    pub fn seen() -> Option<&'static Memory> {
        MEMORY.get()
    }

    /// Maps the server's segment, or creates it if `need` says so.
    #[cold]
    pub fn open(need: Need) -> Result<Option<&'static Memory>> {
        if let Some(memory) = MEMORY.get() {
            return Ok(Some(memory));
        }
        let keys = settings::memory_keys();
        let fill = |address| fill(address, keys);
        let segment = NAME.with(|name| shared_memory::segment(name, need, parts(keys)[3], fill))?;
        let Some(address) = segment else { return Ok(None) };
        // SAFETY: a segment of this name is laid out as below, and stays as long as the process. It begins with a
        // header, which never changes, except what it guards.
        let (header, memory) = unsafe {
            let header = &*address.cast::<Header>();
            (header, view(address, header))
        };
        shared_memory::name_lock_group(header.lock_group, c"ratelimit");
        // Once per session.
        let memory = &*Box::leak(Box::new(memory));
        MEMORY.set(Some(memory));
        Ok(Some(memory))
    }

    /// Identifies a name and key.
    #[inline]
    pub fn id(&self, scope: Scope, name: &[u8], key: &[u8]) -> Id {
        self.identifier.id(scope, name, key)
    }

    /// Removes the counters of [dropped](Scope::dropped) databases and extensions.
    pub fn forget_dropped(&self, own: Scope) {
        let scopes = self.tallies.scopes().into_iter().chain(self.rankings.scopes());
        for dropped in own.dropped(scopes) {
            self.tallies.free(dropped);
            self.rankings.forget(dropped, None);
        }
    }
}

/// The segment's name, with its layout. A library with another layout has a segment and counts of its own, such as the
/// old library in sessions that started before an upgrade.
fn name() -> &'static CStr {
    // The offsets for a given number of keys represent the sizes of all types in the segment.
    let [states, tallies, rankings, size] = parts(100_000);
    let name = format!("ratelimit {LAYOUT} {states:x} {tallies:x} {rankings:x} {size:x}");
    // Once per session. The name has no zero byte.
    CString::new(name).map_or(c"ratelimit", |name| Box::leak(name.into_boxed_c_str()))
}

/// The offsets of the states, the tallies and the rankings, and the size of the segment, in bytes.
fn parts(keys: usize) -> [usize; 4] {
    let sizes = [States::size(keys), size_of::<Tallies>(), size_of::<Rankings>()];
    let mut parts = [size_of::<Header>().next_multiple_of(128); 4];
    for (n, size) in sizes.into_iter().enumerate() {
        parts[n + 1] = (parts[n] + size).next_multiple_of(128);
    }
    parts
}

/// Views a segment with this header.
///
/// # Safety
/// The segment is there as long as the process, and as large as its number of keys wants; zeroed, or [filled](fill). It
/// is accessed only through what is returned, except for the header before others see it.
unsafe fn view(address: *mut u8, header: &'static Header) -> Memory {
    let keys = header.keys as usize;
    let [states, tallies, rankings, size] = parts(keys);
    // SAFETY: the segment has this layout, for the number of keys in its header; no part overlaps another, or the
    // header. Tallies and rankings are at multiples of 128; zeros are valid ones, because a scope is two numbers.
    unsafe {
        Memory {
            states: States::new(address.add(states), keys),
            tallies: &*address.add(tallies).cast(),
            rankings: &*address.add(rankings).cast(),
            databases: &header.databases,
            identifier: Identifier::new(header.seed),
            since: Micros(header.since),
            size,
        }
    }
}

/// Fills a new segment, which is zeroed.
fn fill(address: *mut u8, keys: usize) {
    let lock_group = shared_memory::new_lock_group();
    let mut seed = [0; 2];
    if !shared_memory::random(&mut seed) {
        seed.fill_with(|| fastrand::u64(..));
    }
    let since = clock::system_time().0;
    // SAFETY: no other session sees the segment yet, which is as large as `open` asked for; zeros are a header without
    // databases.
    unsafe {
        let header = address.cast::<Header>();
        (&raw mut (*header).seed).write(seed);
        (&raw mut (*header).keys).write(keys as u64);
        (&raw mut (*header).lock_group).write(lock_group);
        (&raw mut (*header).since).write(since);
        let memory = view(address, &*header);
        memory.databases.lock().0.init(lock_group);
        memory.states.init(lock_group);
        memory.tallies.lock().0.init(lock_group);
        memory.rankings.locks().for_each(|lock| lock.0.init(lock_group));
    }
}
