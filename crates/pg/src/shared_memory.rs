//! A segment of memory that all sessions of the server share, made by the first that needs it: without
//! shared_preload_libraries, and so without a restart.
//!
//! Its handle stands in a few bytes of the server's main shared memory, which has some to spare, and
//! where ShmemInitStruct finds or makes them at any time: on all versions, although 17 and later have
//! GetNamedDSMSegment, which after a failure to allocate hands out what it has not made.
//! The segment is pinned: it is there until the server stops, or starts again after a crash.
//!
//! To make it takes as long as the system needs for so many pages. Who makes it holds a lock of the lock manager,
//! as a DDL statement does, and no LWLock: a wait for it can be cancelled, who would only count does not wait at all,
//! and it ends with its holder, however that ends. The handle is published when all is filled, and read without a
//! lock: until then there is no segment for anybody, and what was made is freed if its maker fails.

use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use pgrx::pg_sys;

use crate::error::{PgError, Result};
use crate::interrupts::check_for_interrupts;
use crate::unguarded::{LWLockAcquire, LWLockRelease, pg_strong_random};

/// The number of AddinShmemInitLock, under which extensions set up what they share: 15 to 18.
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

/// The lock of who makes a segment: an advisory one of no database, which no SQL function takes. In a pg_locks
/// it is `ratelimit` in ASCII.
const MAKING: pg_sys::LOCKTAG = pg_sys::LOCKTAG {
    locktag_field1: 0,
    locktag_field2: u32::from_be_bytes(*b"rate"),
    locktag_field3: u32::from_be_bytes(*b"limi"),
    locktag_field4: u16::from_be_bytes(*b"t\0"),
    locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
    locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
};

/// How much is zeroed between two looks for a cancel.
const ZEROED_AT_ONCE: usize = 1 << 24;

/// What every session finds, in the server's main shared memory: the handle of the segment; 0: there is none.
type Rendezvous = AtomicU32;

thread_local! {
    /// The name that was looked up last, and where its bytes are.
    static RENDEZVOUS: Cell<Option<(&'static CStr, &'static Rendezvous)>> = const { Cell::new(None) };
}

/// What becomes of a call that finds no segment.
#[derive(Clone, Copy, PartialEq)]
pub enum Need {
    /// It makes one, and waits for another session that does.
    Must,
    /// It makes one, unless another session does.
    Should,
    /// It goes without.
    May,
}

/// Returns the address of a name's segment, where it stays as long as the process, if there is one, or it is made as
/// `need` says: of so many bytes, zeroed, and filled. Another `name` is another segment.
///
/// # Errors
/// [`PgError::NotMapped`] (53200); raises 53100 or 53200 where the segment has no room, and what else
/// Postgres has to say of it, as of a cancel.
pub fn segment(
    name: &'static CStr,
    need: Need,
    size: usize,
    fill: impl Fn(*mut u8),
) -> Result<Option<*mut u8>> {
    contained(|| {
        // SAFETY: in `contained`.
        let rendezvous = unsafe { rendezvous(name) };
        let attach = || match rendezvous.load(Acquire) {
            0 => Ok(None),
            // SAFETY: the segment was published, and is pinned.
            handle => unsafe { map(handle) }.map(Some),
        };
        let found = attach()?;
        if found.is_some() || need == Need::May {
            return Ok(found);
        }
        // SAFETY: in a transaction; released here, and after an error by `contained`.
        unsafe {
            let exclusive = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
            let locked = pg_sys::LockAcquire(&MAKING, exclusive, false, need == Need::Should);
            if locked == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
                return Ok(None);
            }
            let mut found = attach()?; // another session may have made it
            if found.is_none() {
                found = Some(make(rendezvous, size, &fill));
            }
            pg_sys::LockRelease(&MAKING, exclusive, false);
            Ok(found)
        }
    })
}

/// Makes the segment and publishes it.
///
/// # Safety
/// In [`contained`], under the lock of who makes it.
unsafe fn make(rendezvous: &Rendezvous, size: usize, fill: &impl Fn(*mut u8)) -> *mut u8 {
    // SAFETY: the segment is new, and has this size.
    unsafe {
        let segment = pg_sys::dsm_create(size, 0);
        let address = pg_sys::dsm_segment_address(segment).cast::<u8>();
        // Otherwise it is the system's, which gives no page that is not zeroed.
        if pg_sys::min_dynamic_shared_memory > 0 {
            for begin in (0..size).step_by(ZEROED_AT_ONCE) {
                check_for_interrupts();
                address.add(begin).write_bytes(0, ZEROED_AT_ONCE.min(size - begin));
            }
        }
        fill(address);
        // Nothing is raised between: a segment that is pinned and not published would stay for good.
        pg_sys::dsm_pin_segment(segment);
        rendezvous.store(pg_sys::dsm_segment_handle(segment), Release);
        pg_sys::dsm_pin_mapping(segment);
        address
    }
}

/// Maps a segment into this session.
///
/// # Errors
/// [`PgError::NotMapped`] (53200).
///
/// # Safety
/// In [`contained`]; the handle is that of a segment that is there.
unsafe fn map(handle: pg_sys::dsm_handle) -> Result<*mut u8> {
    // SAFETY: as the caller says.
    unsafe {
        let mut segment = pg_sys::dsm_find_mapping(handle);
        if segment.is_null() {
            segment = pg_sys::dsm_attach(handle);
        }
        if segment.is_null() {
            return Err(PgError::NotMapped);
        }
        pg_sys::dsm_pin_mapping(segment);
        Ok(pg_sys::dsm_segment_address(segment).cast())
    }
}

/// Runs `work`, after whose error a caller may go on: it leaves no lock of shared memory and no mapping. Not in
/// a subtransaction, which other extensions would hear of: Citus tells its connections, which can't be told
/// while rows are copied over them. Of what an abort does (AbortSubTransaction), taken here: it restores the
/// memory context and the resource owner, releases the LWLocks (LWLockReleaseAll), ends a wait for a lock
/// (LockErrorCleanup), and releases what the resource owner has, segment and lock. Not needed: the work writes
/// nothing and pins no buffer, and where Postgres raises an error in it, no wait event is left (dsm_impl.c). It doesn't
/// switch to TopMemoryContext, where the copy of an error would stay.
///
/// Who is not in a transaction, such as a worker that is not connected yet, may have no resource owner. It gets one to
/// be the parent of the work's own, since ResourceOwnerRelease gives locks one by one to a parent.
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
        // The work keeps no lock, so that its parent has none either.
        pg_sys::ResourceOwnerDelete(if owner.is_null() { parent } else { own });
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
unsafe fn rendezvous(name: &'static CStr) -> &'static Rendezvous {
    if let Some((_, here)) = RENDEZVOUS.get().filter(|&(known, _)| known == name) {
        return here;
    }
    // SAFETY: as the caller says; under the lock the bytes are made and zeroed once, and they stay.
    let here = unsafe {
        let lock = addin_shmem_init_lock();
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
/// Postgres but the clock, does no I/O and raises nothing. Several are taken in the order of their numbers.
#[repr(transparent)]
pub struct Lock(UnsafeCell<pg_sys::LWLock>);

/// A lock that is held until this is dropped. After an error or a panic it stays held up to the abort of the
/// (sub)transaction, which releases all (LWLockReleaseAll): an error of Postgres has set
/// InterruptHoldoffCount to 0, and a plain release would count it down from there, so that the session could
/// never be cancelled again.
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// Initializes a lock of a group.
    ///
    /// # Safety
    /// Nobody else sees it yet, and nobody holds it.
    pub unsafe fn init(&self, group: i32) {
        // SAFETY: the memory is the lock's, which this session has for itself.
        unsafe { pg_sys::LWLockInitialize(self.0.get(), group) }
    }

    /// Waits until nobody holds it: for ever, if this session does.
    pub fn exclusive(&self) -> Held<'_> {
        // SAFETY: initialized, before anybody else saw it.
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
