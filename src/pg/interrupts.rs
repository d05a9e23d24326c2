//! Where a long piece of work can be cancelled.

use pgrx::prelude::*;

use crate::pg::memory;

/// Gives way to a cancel or a shutdown, and to an error where memory is short (53200).
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if !memory::hold() {
        let detail = memory::NO_RESERVE.to_str().unwrap_or_default();
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory", detail);
    }
}
