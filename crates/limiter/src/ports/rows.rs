//! The rows of the table.

use std::ops::Deref;

use ratelimit_core::{Limit, Micros, State};
use ratelimit_faults::Fault;

use super::{Key, KeyRef};
use crate::error::Result;

/// The primary key of a row.
#[derive(Clone, Copy, Debug)]
pub struct RowId<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// The shard number; 0 without shards.
    pub shard: i32,
}

impl<'a> RowId<'a> {
    /// The primary key of a key's row 0.
    pub fn first((name, key): &'a Key) -> RowId<'a> {
        RowId { name, key, shard: 0 }
    }
}

/// The contents of a row's columns.
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
    /// Row 0 of a limit with shards: it holds no tokens, and marks that there are other rows. It is locked first to
    /// change their number.
    Marker {
        /// Whether the limit was reset since.
        reset: bool,
    },
    /// A value that no call writes. It fails the calls of every kind of limit.
    Invalid {
        /// The row's `ts`, or 1970 if that is infinite.
        ts: Micros,
        /// The column, or what is wrong with it.
        column: &'static str,
        /// The value.
        value: String,
    },
}

impl Stored {
    /// Returns it as a reset leaves it; `None`: it holds nothing to forget.
    pub fn reset(&self) -> Option<Stored> {
        match self {
            Stored::State(state) => Some(Stored::Reset { ts: state.ts() }),
            &Stored::Invalid { ts, .. } => Some(Stored::Reset { ts }),
            Stored::Marker { reset: false } => Some(Stored::Marker { reset: true }),
            Stored::Reset { .. } | Stored::Marker { reset: true } => None,
        }
    }

    /// Whether a limit uses it: a state of its kind, or a value that fails its calls; `None`: there is nothing to use.
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

/// The tuple id of a row's version, for direct access. Valid to the end of the statement that found it: a transaction
/// that replaces the version since is later than the oldest snapshot of this statement, which keeps the version from
/// being pruned, and its tuple id from being reused. A locked version keeps its tuple id to the end of the transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TupleId {
    /// Block number and offset; `None` if rows are found by their primary key.
    pub tid: Option<(u32, u16)>,
    /// Whether no other transaction had it locked when it was read.
    pub unlocked: bool,
    /// The transaction that wrote the version, if rows are found by their primary key and can still be replaced.
    pub writer: Option<u32>,
}

impl TupleId {
    /// The tuple id of a row that is found by its primary key.
    pub const NONE: TupleId = TupleId { tid: None, unlocked: false, writer: None };
}

/// A version of a row, as it is read and written.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The contents of its columns.
    pub stored: Stored,
    /// An instant no later than the first expiry of a hold of the key that gives tokens back; `None`: there is none.
    pub holds_due: Option<Micros>,
}

impl Version {
    /// Returns the next version: with other contents, and the same holds of the key.
    pub fn with(&self, stored: Stored) -> Version {
        Version { stored, holds_due: self.holds_due }
    }

    /// Whether a hold of the key may have expired.
    #[inline]
    pub fn is_due(&self, now: Micros) -> bool {
        let is_due = self.holds_due.is_some_and(|holds_due| holds_due <= now);
        is_due && !Fault::ExpiryNotApplied.is_on()
    }
}

/// The version of a row of a key without holds.
impl From<Stored> for Version {
    fn from(stored: Stored) -> Version {
        Version { stored, holds_due: None }
    }
}

/// A row, without its primary key.
#[derive(Clone, Debug)]
pub struct Row {
    /// The version that was read.
    pub version: Version,
    /// Its tuple id.
    pub tuple: TupleId,
}

impl Deref for Row {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.version
    }
}

/// Rows are equal if they are the same version. Equal contents don't show that: a hold that is settled and taken again
/// leaves the same contents, but expires at another time.
impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        let tuple = |row: &Row| (row.tuple.tid, row.tuple.writer);
        tuple(self) == tuple(other) && self.version == other.version
    }
}

/// A row with its shard number.
pub type ShardRow = (i32, Row);

/// A row with its whole primary key.
pub type KeyedRow = (Key, ShardRow);

/// A key and its rows.
#[derive(Clone, Debug)]
pub struct KeyRows {
    /// Its name and key.
    pub key: Key,
    /// All its rows, in ascending order of their shard numbers.
    pub rows: Vec<ShardRow>,
}

impl KeyRows {
    /// Returns a copy with the versions, but without the logs, which are large.
    pub fn without_states(&self) -> KeyRows {
        let row = |(shard, row): &ShardRow| {
            let version = row.with(Stored::Reset { ts: Micros(0) });
            (*shard, Row { version, tuple: row.tuple })
        };
        KeyRows { key: self.key.clone(), rows: self.rows.iter().map(row).collect() }
    }
}

/// Facts about all rows of a store.
#[derive(Clone, Copy, Debug)]
pub struct RowFacts {
    /// The most rows of a page of an iteration: more if a page takes many messages.
    pub page: usize,
    /// The most rows to delete together; 1: keys are deleted one by one.
    pub batch: i64,
    /// The time of a write that waits for no other transaction: no store can be asked to write without a wait. A
    /// decision that is older once it is written is made again.
    pub patience: Micros,
    /// Whether to lock a row before it is written, since a write may not show whether it is unchanged.
    pub locks_first: bool,
}

impl RowFacts {
    /// Facts about rows on this node, which are replaced in one step.
    pub const LOCAL: RowFacts =
        RowFacts { page: 128, batch: 1, patience: Micros::MILLISECOND, locks_first: false };
}

/// Writes methods of [`Rows`] that pass the call on to the rows in a field.
#[macro_export]
macro_rules! pass_on {
    ($rows:tt: $($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $method(&self, $($argument: $type),*) -> $result {
            self.$rows.$method($($argument),*)
        })*
    };
}

/// Access to the rows, inside the caller's transaction and on the latest committed state, at every isolation level. The
/// transaction's own writes count as committed.
///
/// Functions that read come first, then functions that lock, then functions that write. Each fails with errors of the
/// host, and on a NULL that no call writes (55000); an update and a deletion also with
/// [`LimiterError::NotWritten`](crate::error::LimiterError::NotWritten) (55000).
pub trait Rows {
    /// Reads a row, without locking, writing or waiting.
    fn read(&self, id: RowId) -> Result<Option<Row>>;

    /// Reads all rows of a key, in ascending order, or those with these shard numbers, in any order, under one snapshot,
    /// as [`read`](Rows::read).
    fn read_key(&self, name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>>;

    /// Reads at most `rows` rows after (name, key), in the order of name, key and shard, as [`read`](Rows::read); with
    /// `same_name`, only rows of that name.
    fn read_after(&self, after: KeyRef, same_name: bool, rows: i64) -> Result<Vec<KeyedRow>>;

    /// Returns the (name, key) of a random row; `None`: none was found.
    fn random_key(&self) -> Result<Option<Key>>;

    /// Returns facts about all rows.
    fn facts(&self) -> RowFacts;

    /// Locks a row to the end of the transaction, as SELECT ... FOR UPDATE; `None` if it is gone or, without `wait`,
    /// locked.
    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>>;

    /// Inserts a row. With `wait`, waits for another transaction that is inserting or
    /// deleting the same row. False if the row is there, or another transaction is inserting it; with direct access
    /// also after any wait, even if the other was rolled back: the caller reads the row again.
    fn insert(&self, id: RowId, version: &Version, wait: bool) -> Result<bool>;

    /// Updates a row that this transaction has locked.
    fn update(&self, id: RowId, locked: TupleId, version: &Version) -> Result<()>;

    /// Deletes a row that this transaction has locked.
    fn delete(&self, id: RowId, locked: TupleId) -> Result<()>;

    /// Updates a row in one step if it is known to be unchanged since it was read; otherwise writes and locks nothing.
    /// Waits for a lock on the row; without `wait`, writes nothing then either.
    fn replace(&self, id: RowId, seen: &Row, version: &Version, wait: bool) -> Result<bool>;

    /// Deletes in one step each key of which all rows are known to be unchanged since they were read and none is locked
    /// by another transaction; leaves keys that take more steps. Returns the number of rows.
    fn remove(&self, keys: &[KeyRows]) -> Result<u64>;

    /// Locks all rows of a name, in any order, deletes them in one step, and returns them; `None` if that takes a step
    /// for each key. If transactions wait for each other, one of them fails as in a deadlock.
    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>>;
}
