//! A segment of memory that all sessions of the server share. The first session that needs it creates it, so neither
//! shared_preload_libraries nor a restart is necessary.
//!
//! Its handle is in a few bytes of the server's main shared memory, which has some to spare, and in which
//! ShmemInitStruct can find or create them at any time. GetNamedDSMSegment of 17 and later is not used: after a failed
//! allocation it returns a segment that was not created. The segment is pinned: it exists until the server stops, or
//! restarts after a crash.
//!
//! Creating it takes as long as the system needs for its pages. Meanwhile a lock of the lock manager is held, as by a
//! DDL statement, and no LWLock: waiting for it can be cancelled, sessions that only count don't wait, and it is
//! released when its holder ends. The handle is published when the segment is filled, and read without a lock; if its
//! creator fails before, the segment is freed.
use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use pgrx::pg_sys;

use crate::error::{PgError, Result};
use crate::interrupts::check_for_interrupts;
use crate::transaction::tag;
use crate::unguarded::{LWLockAcquire, LWLockRelease, pg_strong_random};

/// The number of AddinShmemInitLock in MainLWLockArray, the same in 15 to 18. A macro in C, which pgrx can't bind.
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

/// The lock for creating a segment: an advisory lock of no database, which no SQL function takes. In pg_locks it is
/// `ratelimit` in ASCII.
const MAKING: pg_sys::LOCKTAG =
    tag([0, u32::from_be_bytes(*b"rate"), u32::from_be_bytes(*b"limi")], *b"t\0");

/// The number of bytes zeroed between two checks for a cancel.
const ZEROED_AT_ONCE: usize = 1 << 24;

/// The handle of the segment, in the server's main shared memory; 0: there is none.
type Rendezvous = AtomicU32;

thread_local! {
    /// The name looked up last, and the address of its handle.
    static RENDEZVOUS: Cell<Option<(&'static CStr, &'static Rendezvous)>> = const { Cell::new(None) };
}

/// The action of a call if there is no segment.
#[derive(Clone, Copy, PartialEq)]
pub enum Need {
    /// Create one; wait for another session that is creating it.
    Must,
    /// Create one, unless another session is creating it.
    Should,
    /// Continue without.
    May,
}

/// Returns the address of a name's segment, which stays mapped for the life of the process. If there is none, creates
/// it as `need` says, with `size` zeroed bytes, and fills it.
///
/// # Errors
/// [`PgError::NotMapped`] (53200). Raises 53100 or 53200 if there is no memory, and other errors of Postgres such
/// as a cancel.
pub fn segment(
    name: &'static CStr,
    need: Need,
    size: usize,
    fill: impl Fn(*mut u8),
) -> Result<Option<*mut u8>> {
    contained(|| {
        // SAFETY: in `contained`.
        let rendezvous = unsafe { rendezvous(name) };
        let attach = || {
            let handle = rendezvous.load(Acquire);
            if handle == 0 {
                return Ok(None);
            }
            // SAFETY: the segment was published and is pinned.
            unsafe {
                let mut segment = pg_sys::dsm_find_mapping(handle);
                if segment.is_null() {
                    segment = pg_sys::dsm_attach(handle);
                }
                if segment.is_null() {
                    return Err(PgError::NotMapped);
                }
                pg_sys::dsm_pin_mapping(segment);
                Ok(Some(pg_sys::dsm_segment_address(segment).cast()))
            }
        };
        let found = attach()?;
        if found.is_some() || need == Need::May {
            return Ok(found);
        }
        // SAFETY: in a transaction; released here, or after an error by `contained`.
        unsafe {
            let exclusive = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
            let locked = pg_sys::LockAcquire(&MAKING, exclusive, false, need == Need::Should);
            if locked == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
                return Ok(None);
            }
            let mut found = attach()?; // another session may have created it
            if found.is_none() {
                found = Some(make(rendezvous, size, &fill));
            }
            pg_sys::LockRelease(&MAKING, exclusive, false);
            Ok(found)
        }
    })
}

/// Creates the segment and publishes it.
///
/// # Safety
/// In [`contained`], under the lock for creating it.
unsafe fn make(rendezvous: &Rendezvous, size: usize, fill: &impl Fn(*mut u8)) -> *mut u8 {
    // SAFETY: the segment is new, and has this size.
    unsafe {
        let segment = pg_sys::dsm_create(size, 0);
        let address = pg_sys::dsm_segment_address(segment).cast::<u8>();
        // Memory from the system is zeroed.
        if pg_sys::min_dynamic_shared_memory > 0 {
            for begin in (0..size).step_by(ZEROED_AT_ONCE) {
                check_for_interrupts();
                address.add(begin).write_bytes(0, ZEROED_AT_ONCE.min(size - begin));
            }
        }
        fill(address);
        // No error may come between: a pinned segment that is not published would never be freed.
        pg_sys::dsm_pin_segment(segment);
        rendezvous.store(pg_sys::dsm_segment_handle(segment), Release);
        pg_sys::dsm_pin_mapping(segment);
        address
    }
}

/// Runs `work` so that a caller may continue after its error: no lock of shared memory and no mapping is left.
///
/// A subtransaction would not do: other extensions are notified of it, and Citus notifies its connections, which is
/// impossible while rows are copied over them. So the steps of an abort (AbortSubTransaction) are made here: restoring
/// memory context and resource owner, releasing LWLocks (LWLockReleaseAll), ending a wait for a lock
/// (LockErrorCleanup), and releasing the segment and the lock of the resource owner. Other steps are not needed: the
/// work writes nothing and pins no buffer, and an error of Postgres in it leaves no wait event (dsm_impl.c). It doesn't
/// switch to TopMemoryContext, in which the copy of an error would stay.
///
/// Outside a transaction, for example in a worker that is not connected yet, there may be no resource owner. One is
/// created as the parent of the work's owner, because ResourceOwnerRelease gives locks one by one to a parent.
fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: as above. An error of Postgres unwinds as a panic until it leaves the SQL function.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        let create = |parent| pg_sys::ResourceOwnerCreate(parent, c"ratelimit".as_ptr());
        let parent = if owner.is_null() { create(owner) } else { owner };
        let own = create(parent);
        pg_sys::CurrentResourceOwner = own;
        let outcome = catch_unwind(AssertUnwindSafe(work));
        pg_sys::CurrentResourceOwner = owner;
        pg_sys::MemoryContextSwitchTo(context);
        if outcome.is_err() {
            pg_sys::LWLockReleaseAll();
            pg_sys::LockErrorCleanup(); // it waits for no lock any more
        }
        let done = matches!(outcome, Ok(Ok(_)));
        for phase in [
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_BEFORE_LOCKS,
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_LOCKS,
            pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS,
        ] {
            pg_sys::ResourceOwnerRelease(own, phase, done, false);
        }
        // The work keeps no lock, so neither does its parent.
        pg_sys::ResourceOwnerDelete(if owner.is_null() { parent } else { own });
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Finds or creates the handle of a name.
///
/// # Safety
/// In [`contained`], which releases the lock after an error.
unsafe fn rendezvous(name: &'static CStr) -> &'static Rendezvous {
    if let Some((_, here)) = RENDEZVOUS.get().filter(|&(known, _)| known == name) {
        return here;
    }
    // SAFETY: as the caller says; the array has this lock in all versions that this is built for. The bytes are created
    // and zeroed once, under the lock, and stay.
    let here = unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let here: *mut Rendezvous =
            pg_sys::ShmemInitStruct(name.as_ptr(), size_of::<Rendezvous>(), &mut found).cast();
        if !found {
            here.write(AtomicU32::new(0));
        }
        LWLockRelease(lock);
        &*here
    };
    RENDEZVOUS.set(Some((name, here)));
    here
}

/// Fills memory with unpredictable random bytes; false if the system has none.
pub fn random(words: &mut [u64]) -> bool {
    // SAFETY: writes as many bytes as the words have.
    unsafe { pg_strong_random(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Returns the number of a new group of locks, which wait events show.
pub fn new_lock_group() -> i32 {
    // SAFETY: increments a counter under a lock of its own.
    unsafe { pg_sys::LWLockNewTrancheId() }
}

/// Names a group of locks in this session, for pg_stat_activity.
pub fn name_lock_group(group: i32, name: &'static CStr) {
    // SAFETY: the name lives as long as the process.
    unsafe { pg_sys::LWLockRegisterTranche(group, name.as_ptr()) }
}

/// A lock in shared memory, like those on PostgreSQL's own data there. A wait for it can't be cancelled, and signals
/// are not processed while it is held. So the work under it must be short, call nothing of Postgres but the clock, do
/// no I/O and raise no error. Several locks are taken in the order of their numbers.
#[repr(transparent)]
pub struct Lock(UnsafeCell<pg_sys::LWLock>);

/// A locked [`Lock`], until dropped. After an error or a panic it stays locked until the abort of the (sub)transaction
/// releases all (LWLockReleaseAll): an error of Postgres sets InterruptHoldoffCount to 0, from which a release would
/// count down, so that the session could never be cancelled again.
pub struct LockGuard<'a>(&'a Lock);

impl Lock {
    /// Initializes a lock of a group.
    ///
    /// # Safety
    /// No other session can reach it yet.
    pub unsafe fn init(&self, group: i32) {
        // SAFETY: only this session has the lock's memory.
        unsafe { pg_sys::LWLockInitialize(self.0.get(), group) }
    }

    /// Locks it exclusively. Waits forever if this session already has it.
    pub fn exclusive(&self) -> LockGuard<'_> {
        // SAFETY: initialized before other sessions can reach it.
        unsafe { LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_EXCLUSIVE) };
        LockGuard(self)
    }

    /// Locks it together with other readers.
    pub fn shared(&self) -> LockGuard<'_> {
        // SAFETY: as above.
        unsafe { LWLockAcquire(self.0.get(), pg_sys::LWLockMode::LW_SHARED) };
        LockGuard(self)
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: locked by this session.
            unsafe { LWLockRelease(self.0.0.get()) };
        }
    }
}
