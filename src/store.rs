//! The rows of `rateLimits`: the small interface through which the limiter reaches them.

use pgrx::pg_sys;
use ratelimit_core::{Micros, State};

use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::error::{Error, Result};
use crate::pg::settings::{self, Access};
use crate::pg::spi;

mod codec;
pub mod heap;
mod sql;

/// Reaches the rows as `ratelimit.access` says, and as the table allows. `lock` is what the whole
/// work needs: who first reads and then writes would ask for more while it holds less, and REINDEX,
/// which does so too, would wait for it.
///
/// # Errors
/// [`Error::NoHeap`]: `heap` where that can't be; [`Error::Moved`]: the table has changed since the
/// catalog was read, and nothing is done yet.
pub fn opened<T>(
    catalog: &Catalog,
    lock: TableLock,
    work: impl FnOnce(&dyn Store) -> Result<T>,
) -> Result<T> {
    if let (Access::Auto | Access::Heap, Ok(index)) = (settings::access(), catalog.index) {
        return heap::opened(catalog, index, lock, |heap| work(heap));
    }
    // SAFETY: locks first, since what is announced by then may have moved the table.
    unsafe { pg_sys::LockRelationOid(catalog.rate_limits.oid, lock as _) };
    if !catalog::is_current() {
        return Err(Error::Moved);
    }
    match (settings::access(), catalog.index) {
        (Access::Heap, Err(why)) => Err(Error::NoHeap { why }),
        _ => spi::connected(catalog, catalog.rate_limits, lock, |sql| work(sql)),
    }
}

/// Which row.
#[derive(Clone, Copy, Debug)]
pub struct RowId<'a> {
    pub name: &'a [u8],
    pub key: &'a [u8],
    pub shard: i32,
}

/// A row as stored. A value of infinity marks a row that was reset: it stands for no state at all
/// and is kept for its index entry, so that a limit that is reset all day doesn't churn the index.
pub type Row = State;

/// Whether a row counts as none; see [`Row`].
pub fn is_reset(row: &Row) -> bool {
    row.value == f64::INFINITY
}

/// How often a row may vanish under our hands before the call gives up: each time is a row that
/// another session deleted or inserted between two of our statements.
pub const TRIES: u32 = 1000;

/// Where a limit is spread over several rows, row 0 holds no tokens and has this for its time
/// (-infinity). Everybody locks it who changes into how many rows.
pub const SPREAD: Micros = Micros(i64::MIN);

/// Where a version of a row is, for the store that can use it. Good to the end of the statement that
/// found it: whoever replaces the version since is later than the oldest snapshot of this statement,
/// which so keeps it from being pruned, and its place from being given to another row. A version that
/// is locked stays where it is to the end of the transaction.
#[derive(Clone, Copy)]
pub struct Place {
    pub tid: Option<pg_sys::ItemPointerData>,
    /// Whether no other transaction had it locked, as far as can be told.
    pub free: bool,
}

impl Place {
    /// Of a store that has no use for it.
    pub const NONE: Place = Place { tid: None, free: false };
}

/// A row that was found.
#[derive(Clone)]
pub struct Found {
    pub row: Row,
    pub at: Place,
}

/// A row that was found and its shard number.
pub type Numbered = (i32, Found);

/// A row with its name and key.
pub struct Keyed {
    pub name: Vec<u8>,
    pub key: Vec<u8>,
    pub row: Numbered,
}

/// Access to the rows, inside the caller's transaction and under the latest committed state,
/// whatever the isolation level. What this transaction itself wrote counts as committed.
pub trait Store {
    /// The row as it is: takes no lock, writes nothing, waits for nobody.
    fn read(&self, id: RowId) -> Result<Option<Found>>;

    /// The row, locked to the end of the transaction as by SELECT ... FOR UPDATE; `None` if it is
    /// gone.
    fn lock(&self, id: RowId) -> Result<Option<Found>>;

    /// The row locked as by [`lock`](Store::lock), without waiting; `None` too if another
    /// transaction has it.
    fn try_lock(&self, id: RowId) -> Result<Option<Found>>;

    /// Overwrites a row that was only read, in one step, if nobody else has changed it since; false if
    /// somebody has, or where the store can't: then it is to be locked. Who has just locked it is waited
    /// for, or without `wait` makes it false as well.
    fn replace(&self, id: RowId, seen: &Found, row: &Row, wait: bool) -> Result<bool>;

    /// Those rows of a key that have one of these shard numbers, as [`read`](Store::read) does.
    fn read_some(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<Numbered>>;

    /// All rows of a key at one moment, as [`read`](Store::read) does; in ascending order.
    fn read_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>>;

    /// All rows of a key, locked one after the other in ascending order.
    fn lock_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>>;

    /// A new row; false if another session's row came first (this waits for one that is not yet
    /// committed).
    fn insert(&self, id: RowId, row: &Row) -> Result<bool>;

    /// Overwrites a row that this transaction has locked.
    fn update(&self, id: RowId, locked: Place, row: &Row) -> Result<()>;

    /// At most so many rows whose (name, key) comes after this one, in the order of name, key and
    /// shard, as [`read`](Store::read) does; of one name where `within` it.
    fn read_after(&self, after: (&[u8], &[u8]), within: bool, rows: i64) -> Result<Vec<Keyed>>;

    /// The (name, key) of some row or other, picked at random; none where that is not to be had.
    fn somewhere(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Deletes a row that this transaction has locked.
    fn delete(&self, id: RowId, locked: Place) -> Result<()>;

    /// Deletes a row that was only read, as [`replace`](Store::replace) overwrites one without `wait`.
    fn remove(&self, seen: &Found) -> Result<bool>;

    /// The error of a row that could not be written or read although nothing failed.
    fn not_written(&self) -> Error {
        Error::NotWritten { table: "rateLimits" }
    }
}
