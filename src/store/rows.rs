//! The rows of `rateLimits`, and the interface of a store.

use pgrx::pg_sys;
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

/// The `ts` (-infinity) of the marker: where a limit has shards, row 0 holds no tokens and marks that
/// there are others. It is locked first to change the number of shards.
pub const MARKER: Micros = Micros(i64::MIN);

/// Whether a row is the marker of a limit with shards.
pub fn is_marker(state: Option<&State>) -> bool {
    state.is_some_and(|state| state.ts == MARKER)
}

/// Returns the state of a reset row: a value of infinity, which counts as no state. The row is kept for
/// its index entry, so that frequent resets don't churn the index.
pub fn reset_state(ts: Micros) -> State {
    State { value: f64::INFINITY, ts, prior: None, log: None }
}

/// Whether a state is that of a reset row.
pub fn is_reset(state: &State) -> bool {
    state.value == f64::INFINITY
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
    /// The state in its columns.
    pub state: State,
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
    fn insert(&self, id: RowId, state: &State) -> Result<bool>;

    /// Updates a row that this transaction has locked.
    ///
    /// # Errors
    /// Those of a [`Store`]; [`Error::NotWritten`] (55000).
    fn update(&self, id: RowId, locked: TupleId, state: &State) -> Result<()>;

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
    fn replace(&self, _: RowId, _seen: &Row, _: &State, _wait: bool) -> Result<bool> {
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
            && !is_marker(Some(&seen.state))
            && (is_reset(&seen.state)
                || self.replace(id, &seen, &reset_state(seen.state.ts), true)?)
        {
            return Ok(!is_reset(&seen.state));
        }
        let mut was = false;
        for (shard, row) in self.lock_key(name, key, true)? {
            if !is_reset(&row.state) {
                let id = RowId { name, key, shard };
                self.update(id, row.tuple, &reset_state(row.state.ts))?;
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
        Ok(rows.iter().any(|(_, row)| !is_reset(&row.state)))
    }

    /// Returns the error for a row that could not be written although no statement failed (55000).
    fn not_written(&self) -> Error {
        Error::NotWritten { table: "rateLimits" }
    }
}
