//! Checking for interrupts in long loops.

use pgrx::prelude::*;

use crate::pg::memory;

/// Processes a cancel or a shutdown, and raises 53200 where memory is short.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if !memory::hold() {
        let detail = memory::NO_RESERVE.to_str().unwrap_or_default();
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory", detail);
    }
}
