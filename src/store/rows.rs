//! The rows of `rateLimits`, and the interface of a store.

use pgrx::pg_sys;
use ratelimit_core::algorithm::Shape;
use ratelimit_core::{Micros, State};

use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::subtransaction::attempt;

/// The tries of a call before it gives up: another try follows when a concurrent session has inserted
/// or deleted the row between two statements.
pub const TRIES: u32 = 1000;

/// The primary key of a row.
#[derive(Clone, Copy, Debug)]
pub struct RowId<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// The shard number; 0 without shards.
    pub shard: i32,
}

/// What the columns of a row hold, as the [codec](super::codec) reads and writes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// The state of a key, or of one of its shards.
    State(State),
    /// A row that was reset, which counts as no state. It is kept for its index entry, so that frequent resets don't
    /// churn the index.
    Reset {
        /// When its state was counted.
        ts: Micros,
    },
    /// Row 0 of a limit with shards: it holds no tokens and marks that there are others. It is locked first to change
    /// the number of shards.
    Marker,
    /// A value that no call writes. Where the limit takes a state of this shape it is an error
    /// ([`Error::BadState`], 55000), and otherwise no state.
    Invalid {
        /// That of the other columns.
        shape: Shape,
        /// When it was counted; infinite where that is the value.
        ts: Micros,
        /// The first such column.
        column: &'static str,
        /// Its value; of a time ±infinity.
        value: f64,
    },
}

impl From<State> for Stored {
    fn from(state: State) -> Stored {
        Stored::State(state)
    }
}

impl Stored {
    /// Returns what becomes of it in a reset; `None` where it has no state.
    pub fn reset(&self) -> Option<Stored> {
        match self {
            Stored::State(state) => Some(Stored::Reset { ts: state.ts() }),
            Stored::Invalid { ts, .. } => Some(Stored::Reset { ts: *ts }),
            Stored::Reset { .. } | Stored::Marker => None,
        }
    }

    /// Returns the shape of its state, also of one that is invalid; `None` where it has none.
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Stored::State(state) => Some(state.shape()),
            Stored::Invalid { shape, .. } => Some(*shape),
            Stored::Reset { .. } | Stored::Marker => None,
        }
    }
}

/// The tuple id of a row's version, for direct access. Valid to the end of the statement that found it:
/// a transaction that replaces the version since is later than the oldest snapshot of this statement,
/// which so keeps it from being pruned, and its tuple id from being reused. A locked version keeps its
/// tuple id to the end of the transaction.
#[derive(Clone, Copy)]
pub struct TupleId {
    /// `None` in the SQL store.
    pub tid: Option<pg_sys::ItemPointerData>,
    /// Whether no other transaction had it locked when it was read.
    pub unlocked: bool,
}

impl TupleId {
    /// The tuple id of a row of the SQL store.
    pub const NONE: TupleId = TupleId { tid: None, unlocked: false };
}

/// A row, without its primary key.
#[derive(Clone)]
pub struct Row {
    /// What is in its columns.
    pub stored: Stored,
    /// The version that was read.
    pub tuple: TupleId,
}

/// A row with its shard number.
pub type ShardRow = (i32, Row);

/// Runs `work` on a row after locking it: after a wait in a subtransaction, so that `None` releases the row.
/// `None` also if it is gone.
///
/// # Errors
/// Those of the store and of the work.
pub fn with_locked<T>(
    store: &dyn Store,
    id: RowId,
    work: impl FnOnce(Row) -> Result<Option<T>>,
) -> Result<Option<T>> {
    match store.try_lock(id)? {
        Some(row) => work(row),
        None => attempt(|| match store.lock(id)? {
            Some(row) => work(row),
            None => Ok(None),
        }),
    }
}

/// Whether two lists have rows of the same shard numbers.
pub fn same_rows(one: &[ShardRow], other: &[ShardRow]) -> bool {
    one.iter().map(|(shard, _)| shard).eq(other.iter().map(|(shard, _)| shard))
}

/// A row with its whole primary key.
pub struct KeyedRow {
    /// As in [`RowId`].
    pub name: Vec<u8>,
    /// As in [`RowId`].
    pub key: Vec<u8>,
    /// The row with its shard number.
    pub row: ShardRow,
}

/// Access to the rows, inside the caller's transaction and under the latest committed state, whatever
/// the isolation level. The transaction's own writes count as committed.
///
/// The required methods come first, then the provided ones. Each fails with the errors of Postgres, and
/// with [`Error::NullState`] (55000): a NULL that no call writes; through SQL also with
/// [`Error::AlteredColumn`] (42804).
pub trait Store {
    /// Reads a row, without locking, writing or waiting.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn read(&self, id: RowId) -> Result<Option<Row>>;

    /// Reads the rows of a key with these shard numbers, as [`read`](Store::read).
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>>;

    /// Reads all rows of a key under one snapshot, in ascending order, as [`read`](Store::read).
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn read_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>>;

    /// Reads at most `rows` rows after (name, key), in the order of name, key and shard, as
    /// [`read`](Store::read); with `same_name`, only rows of that name.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>>;

    /// Returns the (name, key) of a random row; `None` where none is found.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Locks a row to the end of the transaction, as SELECT ... FOR UPDATE; `None` if it is gone.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn lock(&self, id: RowId) -> Result<Option<Row>>;

    /// Locks a row as [`lock`](Store::lock), without waiting; `None` also if it is locked.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn try_lock(&self, id: RowId) -> Result<Option<Row>>;

    /// Inserts a row, after waiting for a concurrent insert of the same; false if that commits.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn insert(&self, id: RowId, stored: &Stored) -> Result<bool>;

    /// Updates a row that this transaction has locked.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::NotWritten`] (55000).
    fn update(&self, id: RowId, locked: TupleId, stored: &Stored) -> Result<()>;

    /// Deletes a row that this transaction has locked.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::NotWritten`] (55000).
    fn delete(&self, id: RowId, locked: TupleId) -> Result<()>;

    /// Whether [`replace`](Store::replace) works here. Otherwise rows are locked first.
    fn replaces(&self) -> bool {
        false
    }

    /// Updates a row in one step without locking it before, if it is unchanged since it was read. False
    /// if it isn't, or if the store can't: the caller locks it then. Waits for a lock on the row, or
    /// without `wait` returns false then as well. Where it returns false it holds nothing.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn replace(&self, _: RowId, _seen: &Row, _: &Stored, _wait: bool) -> Result<bool> {
        Ok(false)
    }

    /// Deletes a row in one step, as [`replace`](Store::replace) updates one without `wait`.
    ///
    /// # Errors
    /// Those of a [`Store`].
    fn remove(&self, _: RowId, _seen: &Row) -> Result<bool> {
        Ok(false)
    }

    /// Locks a row; `None` if it is gone.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::Busy`]: without `wait`, and it is locked.
    fn lock_or_busy(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        if wait {
            return self.lock(id);
        }
        let row = self.try_lock(id)?;
        if row.is_none() && self.read(id)?.is_some() { Err(Error::Busy) } else { Ok(row) }
    }

    /// Locks all rows of a key, in ascending order. The number of shards may change between the list of
    /// the rows and the locks: they are listed again until all of them are locked. A change locks row 0
    /// first, so that there is none once it is locked here.
    ///
    /// # Errors
    /// As [`lock_or_busy`](Store::lock_or_busy); [`Error::NotWritten`] (55000): they keep changing.
    fn lock_key(&self, name: &[u8], key: &[u8], wait: bool) -> Result<Vec<ShardRow>> {
        let mut listed = self.read_key(name, key)?;
        for _ in 0..TRIES {
            check_for_interrupts();
            let mut locked = Vec::new();
            for (shard, _) in listed {
                let row = self.lock_or_busy(RowId { name, key, shard }, wait)?;
                locked.extend(row.map(|row| (shard, row)));
            }
            listed = self.read_key(name, key)?;
            if same_rows(&listed, &locked) {
                return Ok(locked);
            }
        }
        Err(self.not_written())
    }

    /// Resets the rows of a key; false if none had a state.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::NotWritten`] (55000).
    fn reset(&self, name: &[u8], key: &[u8]) -> Result<bool> {
        let id = RowId { name, key, shard: 0 };
        if let Some(seen) = self.read(id)?
            && !matches!(seen.stored, Stored::Marker)
        {
            let Some(reset) = seen.stored.reset() else { return Ok(false) };
            if self.replace(id, &seen, &reset, true)? {
                return Ok(true);
            }
        }
        let mut was = false;
        for (shard, row) in self.lock_key(name, key, true)? {
            if let Some(reset) = row.stored.reset() {
                self.update(RowId { name, key, shard }, row.tuple, &reset)?;
                was = true;
            }
        }
        Ok(was)
    }

    /// Deletes the rows of a key; false if none had a state.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::NotWritten`] (55000).
    fn delete_key(&self, name: &[u8], key: &[u8]) -> Result<bool> {
        let rows = self.lock_key(name, key, true)?;
        for &(shard, ref row) in &rows {
            self.delete(RowId { name, key, shard }, row.tuple)?;
        }
        Ok(rows.iter().any(|(_, row)| row.stored.reset().is_some()))
    }

    /// Returns the error for a row that could not be written although no statement failed (55000).
    fn not_written(&self) -> Error {
        Error::NotWritten { table: "rateLimits" }
    }
}
