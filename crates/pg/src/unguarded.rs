//! PostgreSQL functions without the guard that pgrx puts around each.

use std::ffi::{c_char, c_int, c_void};

use pgrx::pg_sys::{
    ErrorData, LWLock, LWLockMode, MemoryContext, Size, SubTransactionId, TimestampTz,
    TransactionId,
};

// Functions that raise no error: this session holds the LWLock that it releases, and fewer than the 200 that
// it may hold.
unsafe extern "C-unwind" {
    /// Whether there is an active snapshot.
    pub fn ActiveSnapshotSet() -> bool;
    /// The number of the current subtransaction.
    pub fn GetCurrentSubTransactionId() -> SubTransactionId;
    /// The server's clock, in microseconds since 2000.
    pub fn GetCurrentTimestamp() -> TimestampTz;
    /// The transaction's number; 0 if it has written nothing.
    pub fn GetTopTransactionIdIfAny() -> TransactionId;
    /// Whether the query runs in parallel.
    pub fn IsInParallelMode() -> bool;
    pub(crate) fn LWLockAcquire(lock: *mut LWLock, mode: LWLockMode::Type) -> bool;
    pub(crate) fn LWLockRelease(lock: *mut LWLock);
    /// Allocates without an error: for an allowed size, and with MCXT_ALLOC_NO_OOM.
    pub fn palloc_extended(size: usize, flags: c_int) -> *mut c_void;
    /// Whether the server is a standby, or recovers.
    pub fn RecoveryInProgress() -> bool;
    pub(crate) fn pg_strong_random(buffer: *mut c_void, bytes: usize) -> bool;
}

// Functions that raise errors: call them only from a frame with nothing to drop.
unsafe extern "C-unwind" {
    pub(crate) fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    pub(crate) fn errcode(sqlerrcode: c_int) -> c_int;
    pub(crate) fn errmsg(fmt: *const c_char, ...) -> c_int;
    pub(crate) fn errdetail(fmt: *const c_char, ...) -> c_int;
    pub(crate) fn errhint(fmt: *const c_char, ...) -> c_int;
    pub(crate) fn errhidestmt(hide: bool) -> c_int;
    pub(crate) fn errhidecontext(hide: bool) -> c_int;
    pub(crate) fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
    pub(crate) fn MemoryContextStrdup(context: MemoryContext, text: *const c_char) -> *mut c_char;
    pub(crate) fn ThrowErrorData(error: *mut ErrorData);
}

// For an error context callback, which can't have a guard: an error there goes where the first one was going.
unsafe extern "C-unwind" {
    pub(crate) fn geterrcode() -> c_int;
    pub(crate) fn AllocSetContextCreateInternal(
        parent: MemoryContext,
        name: *const c_char,
        min: Size,
        init: Size,
        max: Size,
    ) -> MemoryContext;
    pub(crate) fn MemoryContextReset(context: MemoryContext);
    pub(crate) fn CopyErrorData() -> *mut ErrorData;
}
