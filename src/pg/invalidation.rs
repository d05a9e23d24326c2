//! Invalidations: counted only, since they arrive at any point. A cache keeps the count at which it was
//! valid.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use pgrx::pg_sys;

/// The extension's tables.
#[derive(Clone, Copy)]
pub struct Tables {
    pub rate_limits: pg_sys::Oid,
    pub rl_config: pg_sys::Oid,
    pub rl_blocks: Option<pg_sys::Oid>,
}

thread_local! {
    /// The tables; `None`: unknown, so that every table may be one of them.
    static TABLES: Cell<Option<Tables>> = const { Cell::new(None) };
    /// Counts the invalidations that may have changed the catalog.
    static CHANGES: Cell<u64> = const { Cell::new(1) };
    /// Counts the invalidations that may have changed a definition, or a block, which are cached together.
    static DEFINITION_CHANGES: Cell<u64> = const { Cell::new(1) };
    /// The cached composite types, as relations.
    static TYPES: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// Counts the invalidations that may have changed one of them.
    static TYPE_CHANGES: Cell<u64> = const { Cell::new(1) };
}

/// Registers the callbacks; called once, when the library is loaded.
pub fn init() {
    // SAFETY: the callbacks are C functions that live as long as the library.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
        pg_sys::CacheRegisterSyscacheCallback(
            pg_sys::SysCacheIdentifier::NAMESPACEOID as c_int,
            Some(schema_changed),
            pg_sys::Datum::from(0),
        );
    }
}

/// Sets the tables whose changes are counted.
pub fn watch_tables(tables: Option<Tables>) {
    TABLES.set(tables);
}

/// The relcache callback.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn relation_changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
    let (ours, definitions) = match TABLES.get() {
        Some(Tables { rate_limits, rl_config, rl_blocks }) => {
            let definitions = relation == rl_config || Some(relation) == rl_blocks;
            (definitions || relation == rate_limits, definitions)
        }
        None => (true, true),
    };
    let all = relation == pg_sys::InvalidOid;
    if ours || all {
        CHANGES.set(CHANGES.get() + 1);
    }
    if definitions || all {
        DEFINITION_CHANGES.set(DEFINITION_CHANGES.get() + 1);
    }
    let types = TYPES.try_with(|types| match types.try_borrow() {
        Ok(types) => types.contains(&relation),
        Err(_) => true,
    });
    if types.unwrap_or(true) || all {
        TYPE_CHANGES.set(TYPE_CHANGES.get() + 1);
    }
}

/// The syscache callback of schemas.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn schema_changed(_: pg_sys::Datum, _: c_int, _: u32) {
    CHANGES.set(CHANGES.get() + 1);
}

/// Returns the count of changes of definitions and blocks that this backend has processed.
pub fn definition_changes() -> u64 {
    DEFINITION_CHANGES.get()
}

/// Returns the count of changes of watched composite types that this backend has processed.
pub fn type_changes() -> u64 {
    TYPE_CHANGES.get()
}

/// Watches a composite type, given by its relation.
pub fn watch_type(relation: pg_sys::Oid) {
    TYPES.with_borrow_mut(|types| {
        if !types.contains(&relation) {
            types.push(relation);
        }
    });
}

/// Returns the count of changes of the catalog that this backend has processed.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Invalidates a relation: in every backend when this transaction commits, in this one at its next
/// command.
pub fn announce(relation: pg_sys::Oid) {
    // SAFETY: it is the relation of a running trigger, or one that was just looked up.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}
