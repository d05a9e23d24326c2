//! Work inside a query, as that of a function that a query calls, for who looks at how deep the executor is: where a
//! trigger calls, or COPY, no query runs around the call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pgrx::pg_sys;

use crate::call::guarded;
use crate::raise::caught_below;

/// Where the row of the query goes.
#[repr(C)]
struct Receiver<'w> {
    /// First, since Postgres passes the receiver by it.
    callbacks: pg_sys::DestReceiver,
    /// What is to be done at the row.
    work: *mut (dyn FnMut() + 'w),
    /// The error contexts around the query, which has none of its own to tell.
    contexts: *mut pg_sys::ErrorContextCallback,
}

/// Runs `work` while the executor runs a query of one row, `SELECT 1` say, under the active snapshot. Its errors come
/// out as they are.
///
/// # Safety
/// Connected to SPI, with a plan of such a query; a snapshot is active. `work` leaves SPI as it found it.
pub unsafe fn inside(plan: pg_sys::SPIPlanPtr, work: &mut dyn FnMut()) {
    // SAFETY: the receiver and what it points to are there until the query has ended.
    unsafe {
        let mut receiver = Receiver {
            callbacks: pg_sys::DestReceiver {
                receiveSlot: Some(receive),
                rStartup: Some(started),
                rShutdown: Some(ended),
                rDestroy: Some(ended),
                mydest: pg_sys::CommandDest::DestNone,
            },
            work,
            contexts: pg_sys::error_context_stack,
        };
        let options = pg_sys::SPIExecuteOptions {
            read_only: true,
            dest: (&raw mut receiver).cast(),
            ..Default::default()
        };
        pg_sys::SPI_execute_plan_extended(plan, &options);
    }
}

/// Takes the row.
///
/// # Safety
/// Called by Postgres, with a [`Receiver`].
unsafe extern "C-unwind" fn receive(
    _: *mut pg_sys::TupleTableSlot,
    receiver: *mut pg_sys::DestReceiver,
) -> bool {
    // SAFETY: as the caller says; the receiver outlives the query. What is captured are pointers.
    unsafe {
        let receiver = receiver.cast::<Receiver>();
        let contexts = pg_sys::error_context_stack;
        pg_sys::error_context_stack = (*receiver).contexts;
        guarded(|below| {
            let work = || (*(*receiver).work)();
            catch_unwind(AssertUnwindSafe(work)).map_err(|caught| caught_below(caught, below))
        });
        pg_sys::error_context_stack = contexts;
    }
    true
}

/// Hears of the columns.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn started(_: *mut pg_sys::DestReceiver, _: i32, _: pg_sys::TupleDesc) {}

/// Hears of the end.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn ended(_: *mut pg_sys::DestReceiver) {}
