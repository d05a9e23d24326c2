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

/// A table, its indexes, and the slots of [`Heap`].
type Opened<const N: usize> = (
    pg_sys::Relation,
    [pg_sys::Relation; N],
    *mut pg_sys::TupleTableSlot,
    *mut pg_sys::TupleTableSlot,
);

/// Opens a table and its indexes.
///
/// # Safety
/// Inside a guard; they are locked.
unsafe fn opened<const N: usize>(oid: pg_sys::Oid, indexes: [pg_sys::Oid; N]) -> Opened<N> {
    // SAFETY: as the caller says; closed when the heap is dropped, or after an error by the resource owner.
    unsafe {
        let table = raw::table_open(oid, UNLOCKED);
        let mut open = [std::ptr::null_mut(); N];
        for (open, &index) in open.iter_mut().zip(&indexes) {
            *open = raw::index_open(index, UNLOCKED);
        }
        let fetched = raw::table_slot_create(table, std::ptr::null_mut());
        let kind = &raw const pg_sys::TTSOpsHeapTuple;
        (table, open, fetched, raw::MakeSingleTupleTableSlot((*table).rd_att, kind))
    }
}

/// Locks rateLimits, another table and its indexes, and opens them, unless one of the extension's tables has changed
/// since the catalog was read.
fn locked<const N: usize>(
    catalog: &Catalog,
    oid: pg_sys::Oid,
    indexes: [pg_sys::Oid; N],
    lock: TableLock,
) -> Option<Opened<N>> {
    let (mode, first) = (lock as pg_sys::LOCKMODE, catalog.rate_limits.oid);
    // SAFETY: plain data.
    unsafe {
        guarded(|| {
            // Before the check, since the locks process invalidations.
            lock.take(|| {
                raw::LockRelationOid(first, mode);
                if oid != first {
                    raw::LockRelationOid(oid, mode);
                }
                for &index in &indexes {
                    raw::LockRelationOid(index, mode);
                }
            });
            catalog::is_fresh(catalog).then(|| opened(oid, indexes))
        })
    }
}

impl Heap {
    /// Opens the table. The locks on it and its index last until the transaction or a [read](catalog::reading) ends.
    ///
    /// # Errors
    /// [`Error::Moved`](crate::schema::error::Error::Moved): the table has changed since the catalog was read.
    pub fn open(catalog: &Catalog, index: pg_sys::Oid, lock: TableLock) -> Result<Heap> {
        let oid = catalog.rate_limits.oid;
        let (table, [index], fetched, written) = match locked(catalog, oid, [index], lock) {
            Some(opened) => opened,
            None => {
                catalog::check(catalog)?;
                // SAFETY: locked above.
                unsafe { guarded(|| opened(oid, [index])) }
            }
        };
        Ok(Heap { table, index, fetched, written })
    }

    /// Opens another table with two indexes, the first of them in its `index`, and returns the second as well. Locks
    /// rateLimits before them. `None` if one of the extension's tables has changed since the catalog was read.
    pub fn open_others(
        catalog: &Catalog,
        oid: pg_sys::Oid,
        indexes: [pg_sys::Oid; 2],
        lock: TableLock,
    ) -> Option<(Heap, pg_sys::Relation)> {
        let (table, [index, other], fetched, written) = locked(catalog, oid, indexes, lock)?;
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
