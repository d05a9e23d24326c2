//! Runs work in a subtransaction, so that a refused call leaves no row locked.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use ratelimit_core::Micros;

use crate::settings::locally;

/// Runs `work` in a subtransaction. Commits it if the result is `Some`. Otherwise, and after an error, rolls it back,
/// which releases its locks. An error is caught, and unwinds on after the rollback: one that escaped would leave the
/// session inside the subtransaction.
pub fn attempt<T, E>(work: impl FnOnce() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
    // SAFETY: as PL/pgSQL runs a block with an EXCEPTION clause: memory context and resource owner are restored after
    // the subtransaction, however it ends.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        // An error of Postgres unwinds as a panic until it leaves the SQL function. The commit can fail, too: Citus
        // sends it to other nodes. A subtransaction left open would be rolled back instead of an outer one; if there is
        // none, the session would stay in its transaction block.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let outcome = work();
            if matches!(outcome, Ok(Some(_))) {
                pg_sys::ReleaseCurrentSubTransaction();
            }
            outcome
        }));
        if !matches!(outcome, Ok(Ok(Some(_)))) {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Runs `work` as [`attempt`], and waits for no lock in it for longer than `limit`, in whole milliseconds from one, nor
/// than lock_timeout; `None` also after that. Settings made in it end with it.
pub fn attempt_within<T, E>(
    limit: Micros,
    work: impl FnOnce() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let work = || {
        let limit = limit.ceil_to_millis().0 / Micros::MILLISECOND.0;
        // SAFETY: reads a setting.
        let given = i64::from(unsafe { pg_sys::LockTimeout });
        let limit = limit.clamp(1, if given > 0 { given } else { i32::MAX.into() });
        let limit = CString::new(format!("{limit}ms")).unwrap_or_default();
        locally(&[(c"lock_timeout", &limit)], work)
    };
    PgTryBuilder::new(AssertUnwindSafe(|| attempt(work)))
        .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |_| Ok(None))
        .execute()
}
