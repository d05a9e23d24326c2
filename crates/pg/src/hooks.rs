//! Hooks of the library that PostgreSQL calls: around the end of a transaction or a subtransaction, and at
//! invalidations. One callback for relations serves all, because all libraries together may have only ten.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use pgrx::pg_sys;
use pgrx::pg_sys::ResourceReleasePhase::{RESOURCE_RELEASE_AFTER_LOCKS, Type as ReleasePhase};
use pgrx::pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, Type as SubtransactionEvent};
use pgrx::pg_sys::XactEvent::{self, Type as TransactionEvent};
use pgrx::pg_sys::{Datum, Oid, SubTransactionId};

use crate::call::row_type;
use crate::error::{Raised, Result};
use crate::raise::{Raising, guarded};

/// The hooks of the library. One that is called after an end or at an invalidation, which can arrive at any point,
/// doesn't panic, and calls nothing of Postgres but LWLocks and the clock.
pub struct Hooks {
    /// Before the commit, when an error still rolls it back: after deferred triggers were fired
    /// (AfterTriggerFireDeferred in CommitTransaction), and before waiting ones are dropped (AfterTriggerEndXact), so
    /// its writes must queue no trigger.
    pub before_commit: fn(),
    /// Before PREPARE TRANSACTION.
    pub before_prepare: fn(),
    /// After the commit, when its invalidations were sent, or the rollback; with whether it committed.
    pub ended: fn(bool),
    /// After the rollback of a subtransaction, of the extension or of the caller; with its number.
    pub rolled_back: fn(SubTransactionId),
    /// At the invalidation of a relation; `InvalidOid`: of all.
    pub relation_changed: fn(Oid),
    /// At the invalidation of a schema.
    pub schema_changed: fn(),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Registers the hooks, once, when the library is loaded.
pub fn init(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
    let (schemas, none) = (pg_sys::SysCacheIdentifier::NAMESPACEOID as c_int, Datum::from(0));
    // SAFETY: the callbacks are C functions that live as long as the library.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), none);
        pg_sys::CacheRegisterSyscacheCallback(schemas, Some(schema_changed), none);
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ending), null_mut());
        pg_sys::RegisterXactCallback(Some(ending), null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(released), null_mut());
    }
}

/// Runs a hook before the end of a transaction, and raises its error.
///
/// # Safety
/// The caller's frame has nothing to drop.
pub unsafe fn run<E: Raised>(hook: fn() -> Result<(), E>) {
    // SAFETY: as the caller says; the closure has plain data only.
    unsafe { guarded(|| hook().map_err(|error| Raising::own(error.report()))) }
}

extern "C-unwind" fn ending(event: TransactionEvent, _: *mut c_void) {
    let Some(hooks) = HOOKS.get() else { return };
    match event {
        XactEvent::XACT_EVENT_PRE_COMMIT => (hooks.before_commit)(),
        XactEvent::XACT_EVENT_PRE_PREPARE => (hooks.before_prepare)(),
        XactEvent::XACT_EVENT_ABORT => (hooks.ended)(false),
        _ => {}
    }
}

/// Called for each phase of releasing resources; the last one follows AtEOXact_Inval.
extern "C-unwind" fn released(
    phase: ReleasePhase,
    is_commit: bool,
    is_top_level: bool,
    _: *mut c_void,
) {
    let is_last = phase == RESOURCE_RELEASE_AFTER_LOCKS;
    if let Some(hooks) = HOOKS.get().filter(|_| is_last && is_commit && is_top_level) {
        (hooks.ended)(true);
    }
}

extern "C-unwind" fn subtransaction_ending(
    event: SubtransactionEvent,
    number: SubTransactionId,
    _: SubTransactionId,
    _: *mut c_void,
) {
    if let Some(hooks) = HOOKS.get().filter(|_| event == SUBXACT_EVENT_ABORT_SUB) {
        (hooks.rolled_back)(number);
    }
}

extern "C-unwind" fn relation_changed(_: Datum, relation: Oid) {
    HOOKS.get().into_iter().for_each(|hooks| (hooks.relation_changed)(relation));
    row_type::changed(relation);
}

extern "C-unwind" fn schema_changed(_: Datum, _: c_int, _: u32) {
    HOOKS.get().into_iter().for_each(|hooks| (hooks.schema_changed)());
}
