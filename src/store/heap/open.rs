//! Opens the table and its index.

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use super::raw;
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::Result;

/// The open table and its index.
#[derive(Clone, Copy)]
pub struct Heap {
    /// The table.
    pub table: pg_sys::Relation,
    /// The index of its primary key.
    pub index: pg_sys::Relation,
    /// The slot of a fetched version: empty between two operations, so no page is pinned when a subtransaction ends.
    pub fetched: *mut pg_sys::TupleTableSlot,
    /// The slot of a version to write.
    pub written: *mut pg_sys::TupleTableSlot,
}

/// Runs `work` with the table open. The locks on it and its index last until the transaction ends, or a
/// [read](catalog::reading) does. [`Error::Moved`](crate::schema::error::Error::Moved): the table has changed since the catalog was read.
pub fn with_heap<T>(
    catalog: &Catalog,
    index_oid: pg_sys::Oid,
    lock: TableLock,
    work: impl FnOnce(&Heap) -> Result<T>,
) -> Result<T> {
    let oid = catalog.rate_limits.oid;
    let (mode, none) = (lock as pg_sys::LOCKMODE, pg_sys::NoLock as pg_sys::LOCKMODE);
    // SAFETY: opened and closed in pairs; after an error the resource owner closes them.
    unsafe {
        let open = || {
            let table = raw::table_open(oid, none);
            let index = raw::index_open(index_oid, none);
            let fetched = raw::table_slot_create(table, std::ptr::null_mut());
            let kind = &raw const pg_sys::TTSOpsHeapTuple;
            let written = raw::MakeSingleTupleTableSlot((*table).rd_att, kind);
            Heap { table, index, fetched, written }
        };
        let opened = guarded(|| {
            // Before the check, since the locks process invalidations.
            lock.take(|| {
                raw::LockRelationOid(oid, mode);
                raw::LockRelationOid(index_oid, mode);
            });
            catalog::is_fresh(catalog).then(open)
        });
        let heap = match opened {
            Some(heap) => heap,
            None => {
                catalog::check(catalog)?;
                guarded(open)
            }
        };
        let result = work(&heap);
        let Heap { table, index, fetched, written } = heap;
        guarded(|| {
            raw::ExecDropSingleTupleTableSlot(written);
            raw::ExecDropSingleTupleTableSlot(fetched);
            raw::index_close(index, none);
            raw::table_close(table, none);
        });
        result
    }
}

/// Runs calls of [`raw`]; their errors unwind from here.
///
/// # Safety
/// `calls` and its callees hold no value with a destructor, call no guarded function of `pg_sys`, and don't panic.
pub unsafe fn guarded<T: Copy>(calls: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller says.
    unsafe { pg_guard_ffi_boundary(calls) }
}
