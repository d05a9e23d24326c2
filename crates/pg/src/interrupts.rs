//! Checks for interrupts in long loops.

use pgrx::prelude::*;

use crate::oom_reserve::{self, Larger};

/// Processes a cancel or a shutdown; raises 53200 if memory is low.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if !oom_reserve::refill() {
        let detail = oom_reserve::NO_RESERVE.to_str().unwrap_or_default();
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory", detail);
    }
}

/// Enlarges the memory reserve for an argument of this number of bytes until the result is dropped; `None` if the
/// argument is short. Raises as [`check_for_interrupts()`].
pub fn larger_reserve(bytes: usize) -> Option<Larger> {
    let larger = Larger::for_argument(bytes);
    if larger.is_some() {
        check_for_interrupts();
    }
    larger
}
