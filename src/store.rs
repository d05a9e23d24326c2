//! The rows of `rateLimits`, in one of two stores: through SQL or through direct access to the heap.

use pgrx::pg_sys;
use ratelimit_limiter::ports::RowStore;

use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::settings::{self, Access};
use crate::schema::spi;
use ratelimit_pg::transaction::with_lasting_locks;

use held::Remembering;

mod codec;
pub mod heap;
pub mod held;
pub mod memory;
mod sql;

/// Runs `work` on the store that `ratelimit.access` and the table allow. `lock` is the strongest lock
/// that the whole work needs: upgrading it later could deadlock with REINDEX, which upgrades its own.
///
/// # Errors
/// Those of the work; [`Error::NoHeap`] (0A000): `ratelimit.access` is heap, and the table needs SQL;
/// [`Error::Moved`]: the table has changed since the catalog was read, before the work began.
pub fn with_store<T>(
    catalog: &Catalog,
    lock: TableLock,
    work: impl FnOnce(&dyn RowStore) -> Result<T>,
) -> Result<T> {
    let (table, is_of_1_0) = (catalog.rate_limits.oid.into(), catalog.rl_blocks.is_none());
    if let (Access::Auto | Access::Heap, Ok(index)) = (settings::access(), catalog.index) {
        let work = |heap: &_| work(&Remembering { store: heap, table, is_of_1_0 });
        return heap::with_heap(catalog, index, lock, work);
    }
    // SAFETY: in a transaction. Locked before the check, since the lock processes invalidations.
    with_lasting_locks(|| unsafe { pg_sys::LockRelationOid(catalog.rate_limits.oid, lock as _) });
    if !catalog::is_current() && !catalog::is_unchanged(catalog) {
        return Err(Error::Moved);
    }
    match (settings::access(), catalog.index) {
        (Access::Heap, Err(why)) => Err(Error::NoHeap { why }),
        _ => spi::with_owner(catalog, catalog.rate_limits, lock, |sql| {
            work(&Remembering { store: sql, table, is_of_1_0 })
        }),
    }
}
