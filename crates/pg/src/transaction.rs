//! The caller's transaction: its numbers, snapshot and locks, and whether it allows a call.

use std::ffi::{CStr, c_char};
use std::thread::panicking;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use crate::error::{PgError, Result};
use crate::values::string;

pub use crate::unguarded;

/// Returns the number of the current subtransaction, greater than those of earlier ones.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads the state of the transaction.
    unsafe { unguarded::GetCurrentSubTransactionId() }
}

/// Returns the number of the current transaction in this session, whether or not it has written. Its start time would
/// not do: transactions in one message of the simple protocol share it.
pub fn local_transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: reads the state of this backend.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// An active snapshot, as every SQL statement has one. Without one, for example in the check of a domain that PL/pgSQL
/// assigns to after a COMMIT, a version that was found could be pruned, and TOAST can't be read. Popped when dropped.
pub struct Snapshot {
    pushed: bool,
}

impl Snapshot {
    /// Pushes a snapshot if none is active.
    pub fn ensure() -> Snapshot {
        // SAFETY: in a transaction; popped in the same function.
        unsafe {
            let pushed = !unguarded::ActiveSnapshotSet();
            if pushed {
                pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
            }
            Snapshot { pushed }
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // After an error the abort of the (sub)transaction pops it.
        if self.pushed && !panicking() {
            // SAFETY: what was pushed later is popped.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

/// Takes table locks that last as long as the writes under them. A query's locks belong to its portal, and are released
/// with a cursor that fails in a savepoint (AtSubAbort_Portals), while its earlier writes stay: a VACUUM FULL that
/// copies the table at that moment loses a row if its writer rolls back (rewrite_heap_dead_tuple). So these locks
/// belong to the (sub)transaction, like the lock on its number (AssignTransactionId) and those of large objects
/// (open_lo_relation). After an error its abort restores the resource owner.
pub fn with_lasting_locks(locks: impl FnOnce()) {
    // SAFETY: a transaction has a resource owner, which outlives its portals.
    unsafe {
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        locks();
        pg_sys::CurrentResourceOwner = owner;
    }
}

/// Runs `work`, which reads, and releases its table locks, as after a scan of a catalog. Otherwise they would belong to
/// the statement, and last until the transaction ends.
pub fn with_passing_locks<T>(work: impl FnOnce() -> T) -> T {
    use pg_sys::ResourceReleasePhase::{
        RESOURCE_RELEASE_AFTER_LOCKS, RESOURCE_RELEASE_BEFORE_LOCKS, RESOURCE_RELEASE_LOCKS, Type,
    };
    unsafe extern "C-unwind" {
        fn ResourceOwnerCreate(
            parent: pg_sys::ResourceOwner,
            name: *const c_char,
        ) -> pg_sys::ResourceOwner;
        fn ResourceOwnerRelease(
            owner: pg_sys::ResourceOwner,
            phase: Type,
            commits: bool,
            top: bool,
        );
        fn ResourceOwnerDelete(owner: pg_sys::ResourceOwner);
    }
    // SAFETY: like a portal's own owner. After an error the abort of the (sub)transaction restores the outer owner, and
    // releases this one with its parent. The guarded calls have nothing to drop.
    unsafe {
        let outer = pg_sys::CurrentResourceOwner;
        let own = pg_guard_ffi_boundary(|| ResourceOwnerCreate(outer, c"rate limit read".as_ptr()));
        pg_sys::CurrentResourceOwner = own;
        let result = work();
        pg_sys::CurrentResourceOwner = outer;
        pg_guard_ffi_boundary(|| {
            // Only locks are left, or Postgres would warn. At a commit they would go to the outer owner.
            ResourceOwnerRelease(own, RESOURCE_RELEASE_BEFORE_LOCKS, true, false);
            ResourceOwnerRelease(own, RESOURCE_RELEASE_LOCKS, false, false);
            ResourceOwnerRelease(own, RESOURCE_RELEASE_AFTER_LOCKS, true, false);
            ResourceOwnerDelete(own);
        });
        result
    }
}

/// In a savepoint, runs `locks` a second time, for the whole transaction: a rollback to the savepoint would release the
/// first locks. The session already has the locks, so it does not wait. Interrupts are held off: an error here would
/// leave locks until the transaction ends.
pub fn beyond_savepoints<E>(
    locks: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    // SAFETY: the transaction's own resource owner outlives all others; an error resets the count, and the abort of
    // the subtransaction restores the resource owner.
    unsafe {
        if pg_sys::GetCurrentTransactionNestLevel() <= 1 {
            return Ok(());
        }
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::TopTransactionResourceOwner;
        pg_sys::InterruptHoldoffCount += 1;
        let result = locks();
        pg_sys::InterruptHoldoffCount -= 1;
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// Refuses a call of `function`, such as `rl_check()`, in a parallel query (25000).
pub fn refuse_parallel(function: &'static CStr) -> Result<()> {
    // SAFETY: reads a flag.
    if unsafe { unguarded::IsInParallelMode() } {
        Err(PgError::Parallel { function })
    } else {
        Ok(())
    }
}

/// Whether the transaction may not write, for example on a standby.
pub fn is_read_only() -> bool {
    // SAFETY: reads a flag.
    unsafe { pg_sys::XactReadOnly }
}

/// Whether the catalogs can be read.
pub fn is_in_transaction() -> bool {
    // SAFETY: reads the session's state.
    unsafe { pg_sys::IsTransactionState() }
}

/// Whether the server is a standby, or recovers.
#[inline]
pub fn is_in_recovery() -> bool {
    // SAFETY: reads the server's state; once it is false, that of this session.
    unsafe { unguarded::RecoveryInProgress() }
}

/// Refuses a call of `function` that turns out to write, in a read-only transaction or in recovery (25006).
pub fn refuse_read_only_call(function: pg_sys::Oid) -> Result<()> {
    if !is_read_only() {
        return Ok(());
    }
    // SAFETY: a look-up in the catalog, of a name that is a C string or null.
    let name = unsafe { string(pg_sys::get_func_name(function)) };
    let call = format!("{}()", name.as_deref().unwrap_or("a function"));
    Err(PgError::ReadOnly { call, is_standby: is_in_recovery() })
}

/// Refuses a call that writes in a parallel query (25000); raises 25006 in a read-only transaction or in recovery.
pub fn refuse_read_only(function: &'static CStr) -> Result<()> {
    refuse_parallel(function)?;
    if is_read_only() {
        // SAFETY: raises or returns.
        unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) };
    }
    Ok(())
}

/// Returns the number of the transaction; 0: it has none.
#[inline]
pub fn number_if_any() -> u32 {
    // SAFETY: reads the state of the transaction.
    unsafe { unguarded::GetTopTransactionIdIfAny() }.into_inner()
}

/// An advisory lock that no SQL function takes: their `class` is 1 or 2.
pub(crate) const fn tag([database, number, other]: [u32; 3], class: [u8; 2]) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        locktag_field1: database,
        locktag_field2: number,
        locktag_field3: other,
        locktag_field4: u16::from_be_bytes(class),
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    }
}

/// Takes a lock until the transaction ends, shared with other callers. Waits for a session that has [locked
/// against](try_lock_against) it.
pub fn lock(numbers: [u32; 3]) {
    let tag = tag(numbers, *b"rl");
    // SAFETY: in a transaction.
    unsafe { pg_sys::LockAcquire(&raw const tag, pg_sys::RowExclusiveLock as _, false, false) };
}

/// Takes a lock until the transaction ends that excludes callers of [`lock`]; false if one of them has it.
pub fn try_lock_against(numbers: [u32; 3]) -> bool {
    let tag = tag(numbers, *b"rl");
    // SAFETY: in a transaction.
    let result =
        unsafe { pg_sys::LockAcquire(&raw const tag, pg_sys::ShareLock as _, false, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}
