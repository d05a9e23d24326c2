//! The rows of the table.

use ratelimit_core::Micros;
use ratelimit_core::{Limit, State};

use crate::error::Result;

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

/// What the columns of a row say.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// The state of a limit, or of one of its shards.
    State(State),
    /// A row that was reset, which counts as none. It is kept for its index entry, so that frequent resets don't churn
    /// the index.
    Reset {
        /// The `ts` of the state that it had.
        ts: Micros,
    },
    /// Row 0 of a limit with shards: it holds no tokens and marks that there are others. It is locked first to change
    /// their number.
    Marker {
        /// Whether the limit was reset since.
        reset: bool,
    },
    /// A value that no call writes. It fails the calls of every kind of limit.
    Invalid {
        /// The row's `ts`, or 1970 where that is infinite.
        ts: Micros,
        /// The column, or what is wrong of it.
        column: &'static str,
        /// What it has.
        value: String,
    },
}

impl From<State> for Stored {
    fn from(state: State) -> Stored {
        Stored::State(state)
    }
}

impl Stored {
    /// What is left of it in a reset; `None` where it holds nothing to forget.
    pub fn reset(&self) -> Option<Stored> {
        match self {
            Stored::State(state) => Some(Stored::Reset { ts: state.ts() }),
            &Stored::Invalid { ts, .. } => Some(Stored::Reset { ts }),
            Stored::Marker { reset: false } => Some(Stored::Marker { reset: true }),
            Stored::Reset { .. } | Stored::Marker { reset: true } => None,
        }
    }

    /// Whether a limit uses it: a state of its kind, or a value that fails its calls; `None` where there is nothing to use.
    pub fn suits(&self, limit: &Limit) -> Option<bool> {
        match self {
            Stored::State(state) => Some(limit.accepts(state.shape())),
            Stored::Invalid { .. } => Some(true),
            Stored::Reset { .. } | Stored::Marker { .. } => None,
        }
    }

    /// Whether it marks that there are other rows.
    pub fn is_marker(&self) -> bool {
        matches!(self, Stored::Marker { .. })
    }
}

/// The tuple id of a row's version, for direct access. Valid to the end of the statement that found it:
/// a transaction that replaces the version since is later than the oldest snapshot of this statement,
/// which so keeps it from being pruned, and its tuple id from being reused. A locked version keeps its
/// tuple id to the end of the transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TupleId {
    /// Block number and offset; `None` where rows are found by their primary key.
    pub tid: Option<(u32, u16)>,
    /// Whether no other transaction had it locked when it was read.
    pub unlocked: bool,
    /// The transaction that wrote the version, where rows are found by their primary key and can be replaced all the
    /// same.
    pub writer: Option<u32>,
}

impl TupleId {
    /// The tuple id of a row that is found by its primary key.
    pub const NONE: TupleId = TupleId { tid: None, unlocked: false, writer: None };
}

/// A row, without its primary key.
#[derive(Clone, Debug)]
pub struct Row {
    /// What its columns say.
    pub stored: Stored,
    /// No later than the first expiry of a hold of the key that gives tokens back; `None`: there is none.
    pub holds_due: Option<Micros>,
    /// The version that was read.
    pub tuple: TupleId,
}

impl Row {
    /// Whether it is the version that was read before. Contents don't show it: they are the
    /// same after a hold is settled and taken again, which expires at another time.
    pub fn is_version(&self, seen: &Row) -> bool {
        let version = |row: &Row| (row.tuple.tid, row.tuple.writer);
        version(self) == version(seen)
            && self.stored == seen.stored
            && self.holds_due == seen.holds_due
    }
}

/// A row with its shard number.
pub type ShardRow = (i32, Row);

/// A row with its whole primary key.
pub struct KeyedRow {
    /// As in [`RowId`].
    pub name: Vec<u8>,
    /// As in [`RowId`].
    pub key: Vec<u8>,
    /// The row with its shard number.
    pub row: ShardRow,
}

/// A key and its rows.
#[derive(Clone, Debug)]
pub struct KeyRows {
    /// As in [`RowId`].
    pub name: Vec<u8>,
    /// As in [`RowId`].
    pub key: Vec<u8>,
    /// All its rows, in ascending order of their shard numbers.
    pub rows: Vec<ShardRow>,
}

impl KeyRows {
    /// A copy that has the versions, and none of the logs, which are large.
    pub fn without_states(&self) -> KeyRows {
        let row = |(shard, row): &ShardRow| {
            let stored = Stored::Reset { ts: Micros(0) };
            (*shard, Row { stored, holds_due: row.holds_due, tuple: row.tuple })
        };
        let (name, key) = (self.name.clone(), self.key.clone());
        KeyRows { name, key, rows: self.rows.iter().map(row).collect() }
    }
}

/// What holds for all rows of a store.
#[derive(Clone, Copy, Debug)]
pub struct RowFacts {
    /// The most rows of a page of an iteration: more where a page takes many messages.
    pub page: usize,
    /// The most rows that are deleted together; 1: keys are deleted one by one.
    pub batch: i64,
    /// The time of a write that waited for no other transaction. After a longer one it is decided again.
    pub patience: Micros,
    /// Whether a row is locked before it is written, since a write may not say whether it is unchanged.
    pub locks_first: bool,
}

impl RowFacts {
    /// Those of rows on this node that are replaced in one step.
    pub const LOCAL: RowFacts =
        RowFacts { page: 128, batch: 1, patience: Micros::MILLISECOND, locks_first: false };
}

/// Access to the rows, inside the caller's transaction and under the latest committed state, whatever the isolation
/// level. The transaction's own writes count as committed.
///
/// What reads comes first, then what locks, then what writes. Each fails with the errors of the host, and with a NULL
/// that no call writes (55000).
pub trait Rows {
    /// Reads a row, without locking, writing or waiting.
    fn read(&self, id: RowId) -> Result<Option<Row>>;

    /// Reads all rows of a key under one snapshot, in ascending order, or those with these shard numbers, as
    /// [`read`](Rows::read).
    fn read_key(&self, name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>>;

    /// Reads at most `rows` rows after (name, key), in the order of name, key and shard, as [`read`](Rows::read); with
    /// `same_name`, only rows of that name.
    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>>;

    /// Returns the (name, key) of a random row; `None` where none is found.
    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Returns what holds for all rows.
    fn facts(&self) -> RowFacts;

    /// Locks a row to the end of the transaction, as SELECT ... FOR UPDATE; `None` if it is gone, or without `wait` if
    /// it is locked.
    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>>;

    /// Inserts a row; `holds_due` as in [`Row`]. Where another transaction is inserting or deleting the same, waits for its end; direct access does
    /// so only with `wait`. False if the row is there; with direct access also after any wait, even if the other was
    /// rolled back: the caller reads the row again.
    fn insert(
        &self,
        id: RowId,
        stored: &Stored,
        holds_due: Option<Micros>,
        wait: bool,
    ) -> Result<bool>;

    /// Updates a row that this transaction has locked.
    ///
    /// # Errors
    /// [`LimiterError::NotWritten`](crate::error::LimiterError::NotWritten) (55000).
    fn update(
        &self,
        id: RowId,
        locked: TupleId,
        stored: &Stored,
        holds_due: Option<Micros>,
    ) -> Result<()>;

    /// Deletes a row that this transaction has locked.
    ///
    /// # Errors
    /// [`LimiterError::NotWritten`](crate::error::LimiterError::NotWritten) (55000).
    fn delete(&self, id: RowId, locked: TupleId) -> Result<()>;

    /// Updates a row in one step if it is known to be unchanged since it was read; otherwise returns false, and has
    /// locked nothing. Waits for a lock on the row, or without `wait` returns false then as well.
    fn replace(
        &self,
        id: RowId,
        seen: &Row,
        stored: &Stored,
        holds_due: Option<Micros>,
        wait: bool,
    ) -> Result<bool>;

    /// Deletes those of these keys of which each row is known to be unchanged since it was read, and none is locked by
    /// another transaction, as far as each takes one step; returns the number of rows.
    fn remove(&self, keys: &[KeyRows]) -> Result<u64>;

    /// Deletes all rows of a name in one step after locking them, in any order, and returns them; `None` where that
    /// takes a step for each key. Where it can't end without others, one of them fails as in a deadlock.
    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>>;
}
