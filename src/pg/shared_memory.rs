//! A segment of memory that all sessions of the server share, made by the first that needs it: without
//! shared_preload_libraries, and so without a restart.
//!
//! Its handle stands in a few bytes of the server's main shared memory, which has some to spare, and
//! where ShmemInitStruct finds or makes them at any time: on all versions, although 17 and later have
//! GetNamedDSMSegment, which after a failure to allocate hands out what it has not made.
//! The segment is pinned: it is there until the server stops, or starts again after a crash.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use pgrx::pg_sys;

use crate::pg::error::{Error, Result};

// Functions of Postgres that raise no error: an LWLock that this session holds is released, and it holds
// fewer than the 200 that it may.
unsafe extern "C-unwind" {
    fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut pg_sys::LWLock);
    fn pg_strong_random(buffer: *mut c_void, bytes: usize) -> bool;
}

/// The number of AddinShmemInitLock, under which extensions set up what they share: 15 to 18.
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

/// What every session finds, in the server's main shared memory.
#[repr(C)]
struct Rendezvous {
    /// Held while the segment is made, so that of many sessions that need it at once one makes it: the
    /// others would take its room.
    lock: Lock,
    /// 0: there is no segment yet.
    handle: pg_sys::dsm_handle,
}

/// Returns the address of a name's segment, where it stays as long as the process; `None`: there is none.
/// Another `name` is another segment.
///
/// # Errors
/// [`Error::NotMapped`] (53200); raises what Postgres has to say of it.
pub fn find(name: &'static CStr) -> Result<Option<*mut u8>> {
    find_or_make(name, || None)
}

/// Returns the address of a name's segment as [`find`]; where there is none, makes one of so many bytes,
/// zeroed, and has it filled.
///
/// # Errors
/// [`Error::NotMapped`] (53200); raises 53100 or 53200 where the segment has no room, and what else
/// Postgres has to say of it.
pub fn segment(name: &'static CStr, size: usize, fill: impl Fn(*mut u8)) -> Result<*mut u8> {
    let make = || {
        // SAFETY: the segment is new, and has this size.
        unsafe {
            let segment = pg_sys::dsm_create(size, 0);
            let address = pg_sys::dsm_segment_address(segment).cast::<u8>();
            // Where min_dynamic_shared_memory is set it holds what was there before.
            address.write_bytes(0, size);
            fill(address);
            Some(segment)
        }
    };
    find_or_make(name, make)?.ok_or(Error::NotMapped)
}

/// Maps the segment of a name, which `make` may have to make.
///
/// # Errors
/// As [`segment`].
fn find_or_make(
    name: &'static CStr,
    make: impl Fn() -> Option<*mut pg_sys::dsm_segment>,
) -> Result<Option<*mut u8>> {
    contained(|| {
        // SAFETY: in a transaction. What Postgres keeps of a mapping is allocated where it asks for it.
        unsafe {
            pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let rendezvous = rendezvous(name);
            let held = (*rendezvous).lock.exclusive();
            let mut segment = null_mut();
            match (*rendezvous).handle {
                0 => {
                    if let Some(made) = make() {
                        pg_sys::dsm_pin_segment(made);
                        (*rendezvous).handle = pg_sys::dsm_segment_handle(made);
                        segment = made;
                    }
                }
                handle => {
                    segment = pg_sys::dsm_find_mapping(handle);
                    if segment.is_null() {
                        segment = pg_sys::dsm_attach(handle);
                    }
                    if segment.is_null() {
                        return Err(Error::NotMapped);
                    }
                }
            }
            drop(held);
            if segment.is_null() {
                return Ok(None);
            }
            pg_sys::dsm_pin_mapping(segment);
            Ok(Some(pg_sys::dsm_segment_address(segment).cast()))
        }
    })
}

/// Runs `work`, after whose error a caller may go on: it leaves no lock of shared memory and no mapping. Not in
/// a subtransaction, which other extensions would hear of: Citus tells its connections, which can't be told
/// while rows are copied over them. Of what an abort does (AbortSubTransaction), taken here: it restores the
/// memory context and the resource owner, releases the LWLocks (LWLockReleaseAll), and what the resource owner
/// has, the segment. Not needed: the work writes nothing, locks no table and pins no buffer, and where
/// Postgres raises an error in it, no wait event is left (dsm_impl.c).
///
/// # Errors
/// Those of the work.
fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: as above. An error of Postgres unwinds as a panic until it leaves the SQL function.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        let own = pg_sys::ResourceOwnerCreate(owner, c"ratelimit".as_ptr());
        pg_sys::CurrentResourceOwner = own;
        let outcome = catch_unwind(AssertUnwindSafe(work));
        pg_sys::CurrentResourceOwner = owner;
        pg_sys::MemoryContextSwitchTo(context);
        if outcome.is_err() {
            pg_sys::LWLockReleaseAll();
        }
        let done = matches!(outcome, Ok(Ok(_)));
        for phase in [
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_BEFORE_LOCKS,
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_LOCKS,
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS,
        ] {
            pg_sys::ResourceOwnerRelease(own, phase, done, false);
        }
        pg_sys::ResourceOwnerDelete(own);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// # Safety
/// In a server.
unsafe fn addin_shmem_init_lock() -> *mut pg_sys::LWLock {
    // SAFETY: the array has this lock in all versions that this is built for.
    unsafe { &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock }
}

/// Finds or makes the few bytes of a name.
///
/// # Safety
/// In [`contained`], which releases the lock after an error.
unsafe fn rendezvous(name: &CStr) -> *mut Rendezvous {
    // SAFETY: as the caller says; under the lock the bytes are made and filled once.
    unsafe {
        let lock = addin_shmem_init_lock();
        LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let here: *mut Rendezvous =
            pg_sys::ShmemInitStruct(name.as_ptr(), size_of::<Rendezvous>(), &mut found).cast();
        if !found {
            here.write_bytes(0, 1);
            (*here).lock.init(new_lock_group());
        }
        LWLockRelease(lock);
        here
    }
}

/// Fills memory with random bytes that nobody can foresee; false where the system has none.
pub fn random(words: &mut [u64]) -> bool {
    // SAFETY: writes as many bytes as the words have.
    unsafe { pg_strong_random(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Returns the number of a new group of locks, as wait events show it.
pub fn new_lock_group() -> i32 {
    // SAFETY: counts up under a lock of its own.
    unsafe { pg_sys::LWLockNewTrancheId() }
}

/// Names a group of locks in this session, for pg_stat_activity.
pub fn name_lock_group(group: i32, name: &'static CStr) {
    // SAFETY: the name lives as long as the process.
    unsafe { pg_sys::LWLockRegisterTranche(group, name.as_ptr()) }
}

/// A lock in shared memory, as PostgreSQL's own data there has: a wait for it can't be cancelled, and
/// while it is held no signal is looked at. So what is done under it is short, calls nothing of
/// Postgres but the clock, and raises nothing.
#[repr(transparent)]
pub struct Lock(UnsafeCell<pg_sys::LWLock>);

/// A lock that is held until this is dropped. After an error or a panic it stays held up to the abort of the
/// (sub)transaction, which releases all (LWLockReleaseAll): an error of Postgres has set
/// InterruptHoldoffCount to 0, and a plain release would count it down from there, so that the session could
/// never be cancelled again.
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// Initializes a lock of a group; nobody else sees it yet.
    pub fn init(&self, group: i32) {
        // SAFETY: the memory is the lock's.
        unsafe { pg_sys::LWLockInitialize(self.0.get(), group) }
    }

    /// Waits until nobody else holds it.
    pub fn exclusive(&self) -> Held<'_> {
        // SAFETY: initialized, and not held by this session.
        unsafe { LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Held(self)
    }

    /// Waits until nobody holds it exclusively.
    pub fn shared(&self) -> Held<'_> {
        // SAFETY: as above.
        unsafe { LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_SHARED) };
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: held by this session, which gave it to nobody.
            unsafe { LWLockRelease(self.0.0.get()) };
        }
    }
}
