//! The transaction of the caller: its numbers, its snapshot, and what may not be done in it.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::pg::error::{Error, Result};

/// Functions of Postgres that raise no error, and so need none of pgrx's guard.
pub mod unguarded {
    use pgrx::pg_sys::{SubTransactionId, TimestampTz, TransactionId};

    unsafe extern "C-unwind" {
        pub fn ActiveSnapshotSet() -> bool;
        pub fn GetCurrentSubTransactionId() -> SubTransactionId;
        pub fn GetCurrentTimestamp() -> TimestampTz;
        pub fn GetTopTransactionIdIfAny() -> TransactionId;
        pub fn IsInParallelMode() -> bool;
    }
}

/// The number of the current subtransaction; one that begins later has a greater one.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads the state of the transaction.
    unsafe { unguarded::GetCurrentSubTransactionId() }
}

/// The number of the current transaction in this session, whether or not it has written. Its start
/// is no substitute: transactions of one message of the simple protocol share that.
pub fn local_transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: reads the state of this backend.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// Runs `work` with a snapshot active, as an SQL statement has one. Where none is, as in the check of a
/// domain that PL/pgSQL assigns to after a COMMIT, nothing would keep a version that was found from being
/// pruned, and TOAST can't be read. An error on the way leaves popping it to the abort of the
/// (sub)transaction.
pub fn with_snapshot<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: pushed and popped in pairs.
    unsafe {
        if unguarded::ActiveSnapshotSet() {
            return work();
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// Takes locks on tables that last as long as what is written under them. Those that a query takes are its
/// portal's, and go with a cursor that fails in a savepoint (AtSubAbort_Portals), while what it wrote before
/// stays: VACUUM FULL, which then copies the table beside the writer, loses a row whose writer rolls back
/// in that moment (rewrite_heap_dead_tuple). So these are the (sub)transaction's own, as the one on its
/// number (AssignTransactionId). An error on the way leaves putting the owner back to the abort of the
/// (sub)transaction.
pub fn with_lasting_locks(locks: impl FnOnce()) {
    // SAFETY: a transaction has an owner of what it holds, which outlives its portals.
    unsafe {
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        locks();
        pg_sys::CurrentResourceOwner = owner;
    }
}

/// Refuses a call of `function`, such as `rl_check()`, from a query that runs in parallel (25000).
pub fn refuse_parallel(function: &'static CStr) -> Result<()> {
    // SAFETY: reads a flag.
    if unsafe { unguarded::IsInParallelMode() } {
        Err(Error::Parallel { function })
    } else {
        Ok(())
    }
}

/// Refuses a call that writes in a transaction that may not (25006), or in parallel (25000).
pub fn refuse_read_only(function: &'static CStr) -> Result<()> {
    refuse_parallel(function)?;
    // SAFETY: reads a flag; raises or returns.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(function.as_ptr());
        }
    }
    Ok(())
}
