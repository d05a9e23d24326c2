//! Checking for interrupts in long loops.

use pgrx::prelude::*;

use crate::oom_reserve::{self, Larger};

/// Processes a cancel or a shutdown, and raises 53200 where memory is short.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if !oom_reserve::hold() {
        let detail = oom_reserve::NO_RESERVE.to_str().unwrap_or_default();
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory", detail);
    }
}

/// Makes the reserve larger until the result is dropped, for an argument of so many bytes, if that is long; otherwise
/// `None`. Raises as [`check_for_interrupts()`].
pub fn larger_reserve(bytes: usize) -> Option<Larger> {
    let larger = Larger::for_argument(bytes);
    if larger.is_some() {
        check_for_interrupts();
    }
    larger
}
