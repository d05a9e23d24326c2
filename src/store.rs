//! The rows of `rateLimits`, by one of the two ways to them.

use pgrx::pg_sys;

use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::error::{Error, Result};
use crate::pg::settings::{self, Access};
use crate::pg::spi;
use crate::pg::transaction::with_lasting_locks;

mod codec;
pub mod heap;
mod rows;
mod sql;

pub use rows::{
    KeyedRow, MARKER, Row, RowId, ShardRow, Store, TRIES, TupleId, is_marker, is_reset, reset_state,
};

/// Runs `work` on the rows, reached as `ratelimit.access` says and as the table allows. `lock` is what
/// the whole work needs: who first reads and then writes would ask for more while it holds less, and
/// REINDEX, which does so too, would wait for it.
///
/// # Errors
/// [`Error::NoHeap`]: `heap` where that can't be; [`Error::Moved`]: the table has changed since the
/// catalog was read, and nothing is done yet.
pub fn with_store<T>(
    catalog: &Catalog,
    lock: TableLock,
    work: impl FnOnce(&dyn Store) -> Result<T>,
) -> Result<T> {
    if let (Access::Auto | Access::Heap, Ok(index)) = (settings::access(), catalog.index) {
        return heap::with_heap(catalog, index, lock, |heap| work(heap));
    }
    // SAFETY: locks first, since what is announced by then may have moved the table.
    with_lasting_locks(|| unsafe { pg_sys::LockRelationOid(catalog.rate_limits.oid, lock as _) });
    if !catalog::is_current() {
        return Err(Error::Moved);
    }
    match (settings::access(), catalog.index) {
        (Access::Heap, Err(why)) => Err(Error::NoHeap { why }),
        _ => spi::with_owner(catalog, catalog.rate_limits, lock, |sql| work(sql)),
    }
}
