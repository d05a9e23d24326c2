//! The rows of `rateLimits`: the small interface through which the limiter reaches them.

use pgrx::pg_sys;
use ratelimit_core::{Micros, State};

use crate::pg::error::{Error, Result};

/// How often a row may vanish under our hands before the call gives up: each time is a row that
/// another session deleted or inserted between two of our statements.
pub const TRIES: u32 = 1000;

/// The primary key of a row.
#[derive(Clone, Copy, Debug)]
pub struct RowId<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// The number of the shard; 0 without shards.
    pub shard: i32,
}

/// The `ts` (-infinity) of the marker: where a limit has shards, row 0 holds no tokens and marks that
/// there are others. Whoever changes the number of shards locks it first.
pub const MARKER: Micros = Micros(i64::MIN);

/// Whether a row marks that its limit has shards.
pub fn is_marker(state: Option<&State>) -> bool {
    state.is_some_and(|state| state.ts == MARKER)
}

/// The state of a row that was reset: a value of infinity. It counts as no state at all; the row is
/// kept for its index entry, so that a limit that is reset all day doesn't churn the index.
pub fn reset_state(ts: Micros) -> State {
    State { value: f64::INFINITY, ts, prior: None, log: None }
}

/// Whether a state is that of a row that was reset.
pub fn is_reset(state: &State) -> bool {
    state.value == f64::INFINITY
}

/// A version of a row, for the store that can use it. Good to the end of the statement that found it:
/// whoever replaces the version since is later than the oldest snapshot of this statement, which so
/// keeps it from being pruned, and its tuple id from being given to another row. A version that is
/// locked stays where it is to the end of the transaction.
#[derive(Clone, Copy)]
pub struct TupleId {
    /// `None` of a store that has no use for it.
    pub tid: Option<pg_sys::ItemPointerData>,
    /// Whether no other transaction had it locked, as far as can be told.
    pub unlocked: bool,
}

impl TupleId {
    /// Of a store that has no use for it.
    pub const NONE: TupleId = TupleId { tid: None, unlocked: false };
}

/// A row that was found.
#[derive(Clone)]
pub struct Row {
    /// Its columns.
    pub state: State,
    /// The version that they were read from.
    pub tuple: TupleId,
}

/// A row and its shard number.
pub type ShardRow = (i32, Row);

/// A row with its whole primary key.
pub struct KeyedRow {
    /// As in [`RowId`].
    pub name: Vec<u8>,
    /// As in [`RowId`].
    pub key: Vec<u8>,
    /// The row and its shard number.
    pub row: ShardRow,
}

/// Access to the rows, inside the caller's transaction and under the latest committed state,
/// whatever the isolation level. What this transaction itself wrote counts as committed.
///
/// What each store must do comes first; then what follows from that.
pub trait Store {
    /// The row as it is: takes no lock, writes nothing, waits for nobody.
    fn read(&self, id: RowId) -> Result<Option<Row>>;

    /// Those rows of a key that have one of these shard numbers, as [`read`](Store::read) does.
    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>>;

    /// All rows of a key at one moment, as [`read`](Store::read) does; in ascending order.
    fn read_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>>;

    /// At most so many rows whose (name, key) comes after this one, in the order of name, key and
    /// shard, as [`read`](Store::read) does; of one name where `within` it.
    fn read_after(&self, after: (&[u8], &[u8]), within: bool, rows: i64) -> Result<Vec<KeyedRow>>;

    /// The (name, key) of a random row; `None` where there is none to be had.
    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// The row, locked to the end of the transaction as by SELECT ... FOR UPDATE; `None` if it is
    /// gone.
    fn lock(&self, id: RowId) -> Result<Option<Row>>;

    /// The row locked as by [`lock`](Store::lock), without waiting; `None` too if another
    /// transaction has it.
    fn try_lock(&self, id: RowId) -> Result<Option<Row>>;

    /// Inserts a row; false if another session's came first (this waits for one that is not yet
    /// committed).
    fn insert(&self, id: RowId, state: &State) -> Result<bool>;

    /// Overwrites a row that this transaction has locked.
    fn update(&self, id: RowId, locked: TupleId, state: &State) -> Result<()>;

    /// Deletes a row that this transaction has locked.
    fn delete(&self, id: RowId, locked: TupleId) -> Result<()>;

    /// Overwrites a row that was only read, in one step, if nobody else has changed it since; false if
    /// somebody has, or where the store can't: then it is to be locked. Who has just locked it is waited
    /// for, or without `wait` makes it false as well.
    fn replace(&self, _: RowId, _seen: &Row, _: &State, _wait: bool) -> Result<bool> {
        Ok(false)
    }

    /// Deletes a row that was only read, as [`replace`](Store::replace) overwrites one without `wait`.
    fn remove(&self, _seen: &Row) -> Result<bool> {
        Ok(false)
    }

    /// All rows of a key, locked one after the other in ascending order.
    fn lock_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        let mut rows = Vec::new();
        for (shard, _) in self.read_key(name, key)? {
            let locked = self.lock(RowId { name, key, shard })?;
            rows.extend(locked.map(|row| (shard, row)));
        }
        Ok(rows)
    }

    /// As [`lock_key`](Store::lock_key), row 0 first even if it is not there, as whoever makes others
    /// of them: so these are the rows that there will be.
    fn lock_whole_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        self.lock(RowId { name, key, shard: 0 })?;
        self.lock_key(name, key)
    }

    /// Marks the rows of a key as reset; whether any held a state.
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
        for (shard, row) in self.lock_whole_key(name, key)? {
            if !is_reset(&row.state) {
                let id = RowId { name, key, shard };
                self.update(id, row.tuple, &reset_state(row.state.ts))?;
                was = true;
            }
        }
        Ok(was)
    }

    /// Deletes the rows of a key; whether any held a state.
    fn delete_key(&self, name: &[u8], key: &[u8]) -> Result<bool> {
        let rows = self.lock_whole_key(name, key)?;
        for &(shard, ref row) in &rows {
            self.delete(RowId { name, key, shard }, row.tuple)?;
        }
        Ok(rows.iter().any(|(_, row)| !is_reset(&row.state)))
    }

    /// The error of a row that could not be written or read although nothing failed.
    fn not_written(&self) -> Error {
        Error::NotWritten { table: "rateLimits" }
    }
}
