//! Hooks at the end of a transaction: just before it commits, when an error still rolls it back, and after its
//! invalidations were sent.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pgrx::pg_sys;

use crate::call::guarded;
use crate::error::{Raised, Result};
use crate::oom_reserve;
use crate::raise::{Raising, caught_below, out_of_memory, plain};

/// The hooks of the library.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Runs before the commit: after deferred triggers were fired (AfterTriggerFireDeferred in CommitTransaction), and
    /// before waiting ones are dropped (AfterTriggerEndXact), so its writes must queue no trigger.
    pub before_commit: fn(),
    /// Runs before PREPARE TRANSACTION.
    pub before_prepare: fn(),
    /// Runs after the commit or rollback, with whether it committed. May call nothing of Postgres but LWLocks
    /// and the clock.
    pub ended: fn(bool),
}

thread_local! {
    static HOOKS: Cell<Option<Hooks>> = const { Cell::new(None) };
}

/// Registers the hooks, once, when the library is loaded.
pub fn init(hooks: Hooks) {
    HOOKS.set(Some(hooks));
    // SAFETY: the callbacks are C functions that live as long as the library.
    unsafe {
        pg_sys::RegisterXactCallback(Some(ending), std::ptr::null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(released), std::ptr::null_mut());
    }
}

/// Runs a hook and raises its error.
///
/// # Safety
/// The caller's frame has nothing to drop.
pub unsafe fn run<E: Raised>(hook: fn() -> Result<(), E>) {
    let report = |error: E| Raising::Report(plain(&error.report(&String::new)));
    // SAFETY: as the caller says; the closures have nothing to drop.
    unsafe {
        if !oom_reserve::refill() {
            out_of_memory().raise();
        }
        guarded(|below| {
            catch_unwind(AssertUnwindSafe(|| hook().map_err(report)))
                .unwrap_or_else(|caught| Err(caught_below(caught, below)))
        });
    }
}

/// Called by PostgreSQL.
///
/// # Safety
/// As above.
unsafe extern "C-unwind" fn ending(event: pg_sys::XactEvent::Type, _: *mut c_void) {
    let Some(hooks) = HOOKS.get() else { return };
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => (hooks.before_commit)(),
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => (hooks.before_prepare)(),
        pg_sys::XactEvent::XACT_EVENT_ABORT => (hooks.ended)(false),
        _ => {}
    }
}

/// Called by PostgreSQL for each phase of releasing resources; the last one follows AtEOXact_Inval.
///
/// # Safety
/// As above.
unsafe extern "C-unwind" fn released(
    phase: pg_sys::ResourceReleasePhase::Type,
    is_commit: bool,
    is_top_level: bool,
    _: *mut c_void,
) {
    let is_last = phase == pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS;
    if let Some(hooks) = HOOKS.get().filter(|_| is_last && is_commit && is_top_level) {
        (hooks.ended)(true);
    }
}
