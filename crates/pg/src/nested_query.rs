//! Runs work inside a dummy query, because Citus decides by the executor's depth, and a call by a trigger or COPY is
//! inside no query.

use pgrx::pg_sys;

use crate::raise::guarded;

/// The receiver of the query's row.
#[repr(C)]
struct Receiver<'w> {
    /// The first field, because Postgres passes the receiver by it.
    callbacks: pg_sys::DestReceiver,
    /// Runs when the row arrives.
    work: *mut (dyn FnMut() + 'w),
    /// The error contexts around the query; the query itself adds none.
    contexts: *mut pg_sys::ErrorContextCallback,
}

/// Runs `work` while the executor runs a query of one row, such as `SELECT 1`, under the active snapshot. Errors
/// come out unchanged.
///
/// # Safety
/// Connected to SPI, with the plan of such a query; a snapshot is active. `work` leaves SPI as it found it.
pub unsafe fn inside(plan: pg_sys::SPIPlanPtr, work: &mut dyn FnMut()) {
    // SAFETY: the receiver and its pointers live until the query has ended.
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

/// Receives the row.
///
/// # Safety
/// Called by Postgres, with a [`Receiver`].
unsafe extern "C-unwind" fn receive(
    _: *mut pg_sys::TupleTableSlot,
    receiver: *mut pg_sys::DestReceiver,
) -> bool {
    // SAFETY: as the caller says; the receiver outlives the query. The closures capture pointers only.
    unsafe {
        let receiver = receiver.cast::<Receiver>();
        let contexts = pg_sys::error_context_stack;
        pg_sys::error_context_stack = (*receiver).contexts;
        guarded(|| {
            (*(*receiver).work)();
            Ok(())
        });
        pg_sys::error_context_stack = contexts;
    }
    true
}

/// Ignores the columns.
extern "C-unwind" fn started(_: *mut pg_sys::DestReceiver, _: i32, _: pg_sys::TupleDesc) {}

/// Ignores the end.
extern "C-unwind" fn ended(_: *mut pg_sys::DestReceiver) {}
