//! Invalidations of relations: a single PostgreSQL callback, because all libraries together may have only ten.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::call::row_type;

/// A callback at the invalidation of a relation; `InvalidOid`: of all. It can arrive at any point, so it calls nothing
/// of Postgres and does not panic.
pub type RelationHook = fn(pg_sys::Oid);

thread_local! {
    static HOOKS: Cell<&'static [RelationHook]> = const { Cell::new(&[]) };
}

/// Registers callbacks, once, when the library is loaded.
pub fn init(hooks: &'static [RelationHook]) {
    HOOKS.set(hooks);
    // SAFETY: the callback is a C function that lives as long as the library.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::from(0)) };
}

/// Runs the callbacks.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
    HOOKS.get().iter().for_each(|hook| hook(relation));
    row_type::changed(relation);
}
