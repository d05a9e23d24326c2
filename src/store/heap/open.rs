//! Opens the table and its index.

use std::thread::panicking;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use super::raw;
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::Result;

/// The open table and its index. Dropping it closes them, and keeps their locks.
pub struct Heap {
    /// The table.
    pub table: pg_sys::Relation,
    /// The index of its primary key.
    pub index: pg_sys::Relation,
    /// The slot of a fetched version. Empty between two operations, so that no page is pinned when a
    /// subtransaction ends.
    pub fetched: *mut pg_sys::TupleTableSlot,
    /// The slot of a version to write.
    pub written: *mut pg_sys::TupleTableSlot,
}

impl Heap {
    /// Opens the table. The locks on it and its index last until the transaction or a [read](catalog::reading) ends.
    ///
    /// # Errors
    /// [`Error::Moved`](crate::schema::error::Error::Moved): the table has changed since the catalog was read.
    pub fn open(catalog: &Catalog, index_oid: pg_sys::Oid, lock: TableLock) -> Result<Heap> {
        let oid = catalog.rate_limits.oid;
        let mode = lock as pg_sys::LOCKMODE;
        // SAFETY: closed when dropped, or after an error by the resource owner.
        unsafe {
            let open = || {
                let table = raw::table_open(oid, UNLOCKED);
                let index = raw::index_open(index_oid, UNLOCKED);
                let fetched = raw::table_slot_create(table, std::ptr::null_mut());
                let kind = &raw const pg_sys::TTSOpsHeapTuple;
                let written = raw::MakeSingleTupleTableSlot((*table).rd_att, kind);
                (table, index, fetched, written)
            };
            let opened = guarded(|| {
                // Before the check, since the locks process invalidations.
                lock.take(|| {
                    raw::LockRelationOid(oid, mode);
                    raw::LockRelationOid(index_oid, mode);
                });
                catalog::is_fresh(catalog).then(open)
            });
            let (table, index, fetched, written) = match opened {
                Some(opened) => opened,
                None => {
                    catalog::check(catalog)?;
                    guarded(open)
                }
            };
            Ok(Heap { table, index, fetched, written })
        }
    }
}

impl Heap {
    /// Opens another table with two indexes, the first of them in its `index`, and returns the second as well. Locks
    /// rateLimits before them. `None` if one of the extension's tables has changed since the catalog was read.
    pub fn open_others(
        catalog: &Catalog,
        oid: pg_sys::Oid,
        indexes: [pg_sys::Oid; 2],
        lock: TableLock,
    ) -> Option<(Heap, pg_sys::Relation)> {
        let mode = lock as pg_sys::LOCKMODE;
        let rate_limits = catalog.rate_limits.oid;
        // SAFETY: closed when dropped, or after an error by the resource owner.
        let opened = unsafe {
            guarded(|| {
                lock.take(|| {
                    raw::LockRelationOid(rate_limits, mode);
                    raw::LockRelationOid(oid, mode);
                    raw::LockRelationOid(indexes[0], mode);
                    raw::LockRelationOid(indexes[1], mode);
                });
                if !catalog::is_fresh(catalog) {
                    return None;
                }
                let table = raw::table_open(oid, UNLOCKED);
                let [index, other] = indexes.map(|index| raw::index_open(index, UNLOCKED));
                let fetched = raw::table_slot_create(table, std::ptr::null_mut());
                let kind = &raw const pg_sys::TTSOpsHeapTuple;
                let written = raw::MakeSingleTupleTableSlot((*table).rd_att, kind);
                Some((table, index, other, fetched, written))
            })
        };
        let (table, index, other, fetched, written) = opened?;
        Some((Heap { table, index, fetched, written }, other))
    }

    /// Closes an index that was opened with the table.
    pub fn close_index(&self, index: pg_sys::Relation) {
        if panicking() {
            return;
        }
        // SAFETY: open, and not used any more.
        unsafe { guarded(|| raw::index_close(index, UNLOCKED)) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // While an error unwinds, only the abort may close them.
        if panicking() {
            return;
        }
        // SAFETY: open, and not used any more.
        unsafe {
            guarded(|| {
                raw::ExecDropSingleTupleTableSlot(self.written);
                raw::ExecDropSingleTupleTableSlot(self.fetched);
                raw::index_close(self.index, UNLOCKED);
                raw::table_close(self.table, UNLOCKED);
            });
        }
    }
}

/// Takes no lock when a table is opened, and releases none when it is closed.
const UNLOCKED: pg_sys::LOCKMODE = pg_sys::NoLock as pg_sys::LOCKMODE;

/// Runs calls of [`raw`]; their errors unwind from here.
///
/// # Safety
/// `calls` and its callees hold no value with a destructor, call no guarded function of `pg_sys`, and don't panic.
pub unsafe fn guarded<T: Copy>(calls: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller says.
    unsafe { pg_guard_ffi_boundary(calls) }
}
