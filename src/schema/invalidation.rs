//! Invalidations: only counted, because they arrive at any point. A cache keeps the count at which it was valid.
//!
//! A changed count shows that something may have changed, never that it has: with `debug_discard_caches`, on builds
//! with assertions, each lock announces everything. So a call that finds the count changed starts again once, and then
//! compares the tables themselves (`catalog::check`). `tests/pg_regress/sql/discard.sql` tests this.

use std::cell::Cell;

use pgrx::pg_sys;

/// The extension's tables: those of definitions and blocks, and the others.
pub type Tables = ([pg_sys::Oid; 2], [pg_sys::Oid; 2]);

thread_local! {
    /// The tables; `None`: unknown, so that every table may be one of them.
    static TABLES: Cell<Option<Tables>> = const { Cell::new(None) };
    /// The number of invalidations that may have changed the catalog.
    static CHANGES: Cell<u64> = const { Cell::new(1) };
    /// The number of invalidations that may have changed a definition or a block, which share a cache.
    static DEFINITION_CHANGES: Cell<u64> = const { Cell::new(1) };
}

/// Sets the tables to count changes of.
pub fn watch_tables(tables: Option<Tables>) {
    TABLES.set(tables);
}

/// The callback for relations.
pub fn relation_changed(relation: pg_sys::Oid) {
    let tables = TABLES.get().filter(|_| relation != pg_sys::InvalidOid);
    let of_definitions = tables.is_none_or(|(definitions, _)| definitions.contains(&relation));
    if of_definitions {
        DEFINITION_CHANGES.set(DEFINITION_CHANGES.get() + 1);
    }
    if of_definitions || tables.is_some_and(|(_, others)| others.contains(&relation)) {
        CHANGES.set(CHANGES.get() + 1);
    }
}

/// The callback for schemas.
pub fn schema_changed() {
    CHANGES.set(CHANGES.get() + 1);
}

/// Processes the invalidations of other sessions.
pub fn accept() {
    // SAFETY: in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Returns the count of changes of definitions and blocks that this backend has processed.
pub fn definition_changes() -> u64 {
    DEFINITION_CHANGES.get()
}

/// Returns the count of changes of the catalog that this backend has processed.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Invalidates a relation: in every backend when this transaction commits, in this one at its next command.
pub fn announce(relation: pg_sys::Oid) {
    // SAFETY: it is the relation of a running trigger, or one that was just looked up.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}
