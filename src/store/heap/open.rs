//! Opens a table and its indexes.

use std::ops::Deref;
use std::thread::panicking;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use super::raw;
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::Result;

/// An open table and its indexes. Dropping it closes them, and keeps their locks.
pub struct Heap(Opened);

/// A table that is open.
#[derive(Clone, Copy)]
pub struct Opened {
    /// The table.
    pub table: pg_sys::Relation,
    /// The index of its primary key.
    pub index: pg_sys::Relation,
    /// Another index of it, or null.
    pub other: pg_sys::Relation,
    /// The slot of a fetched version. Empty between two operations, so that no page is pinned when a
    /// subtransaction ends.
    pub fetched: *mut pg_sys::TupleTableSlot,
    /// The slot of a version to write.
    pub written: *mut pg_sys::TupleTableSlot,
}

impl Deref for Heap {
    type Target = Opened;

    #[inline]
    fn deref(&self) -> &Opened {
        &self.0
    }
}

impl Opened {
    /// Opens a table, the index of its primary key and another one, or none for `InvalidOid`.
    ///
    /// # Safety
    /// Inside a guard; they are locked.
    unsafe fn new(oid: pg_sys::Oid, [index, other]: [pg_sys::Oid; 2]) -> Opened {
        // SAFETY: as the caller says; closed when the heap is dropped, or after an error by the resource owner.
        unsafe {
            let table = raw::table_open(oid, UNLOCKED);
            let index = raw::index_open(index, UNLOCKED);
            let other = match other {
                pg_sys::InvalidOid => std::ptr::null_mut(),
                other => raw::index_open(other, UNLOCKED),
            };
            let fetched = raw::table_slot_create(table, std::ptr::null_mut());
            let kind = &raw const pg_sys::TTSOpsHeapTuple;
            let written = raw::MakeSingleTupleTableSlot((*table).rd_att, kind);
            Opened { table, index, other, fetched, written }
        }
    }
}

impl Heap {
    /// Opens the table of rows. The locks on it and its index last until the transaction or a
    /// [read](catalog::reading) ends.
    ///
    /// # Errors
    /// [`Error::Moved`](crate::schema::error::Error::Moved): the table has changed since the catalog was read.
    pub fn open(catalog: &Catalog, index: pg_sys::Oid, lock: TableLock) -> Result<Heap> {
        let (oid, indexes) = (catalog.rate_limits.oid, [index, pg_sys::InvalidOid]);
        if let Some(heap) = Heap::open_unchanged(catalog, oid, indexes, lock) {
            return Ok(heap);
        }
        catalog::check(catalog)?;
        // SAFETY: locked above; plain data.
        Ok(Heap(unsafe { guarded(|| Opened::new(oid, indexes)) }))
    }

    /// Locks rateLimits, then a table, the index of its primary key and another one, or none for `InvalidOid`, and
    /// opens them; `None` if one of the extension's tables has changed since the catalog was read.
    pub fn open_unchanged(
        catalog: &Catalog,
        oid: pg_sys::Oid,
        indexes: [pg_sys::Oid; 2],
        lock: TableLock,
    ) -> Option<Heap> {
        let (mode, first) = (lock as pg_sys::LOCKMODE, catalog.rate_limits.oid);
        // SAFETY: plain data.
        let opened = unsafe {
            guarded(|| {
                // Before the check, since the locks process invalidations.
                lock.take(|| {
                    raw::LockRelationOid(first, mode);
                    if oid != first {
                        raw::LockRelationOid(oid, mode);
                    }
                    for &index in indexes.iter().filter(|&&index| index != pg_sys::InvalidOid) {
                        raw::LockRelationOid(index, mode);
                    }
                });
                catalog::is_fresh(catalog).then(|| Opened::new(oid, indexes))
            })
        };
        opened.map(Heap)
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
                if !self.other.is_null() {
                    raw::index_close(self.other, UNLOCKED);
                }
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
