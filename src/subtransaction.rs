//! Work that can be taken back: locks and writes inside a subtransaction of the caller's
//! transaction, so that a call that is refused in the end leaves no row locked.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgrx::pg_sys;

use crate::error::Result;

/// Does the work in a subtransaction, which is kept if it returns something, and otherwise, also
/// after an error, rolled back: what it locked is free again.
pub fn attempt<T>(work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    // SAFETY: as PL/pgSQL does it for a block with an EXCEPTION clause: the memory context and the
    // resource owner are put back after the subtransaction's end, whichever way it ends.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        // An error of Postgres unwinds as a panic until it leaves the SQL function.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        if matches!(outcome, Ok(Ok(Some(_)))) {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
