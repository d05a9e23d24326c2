//! What the limiter asks of where it runs: rows, entries of memory, definitions, a clock, and a transaction.
//!
//! The extension makes them of PostgreSQL; the crate's own tests of ordinary memory.

use std::borrow::Cow;
use std::rc::Rc;

use ratelimit_core::algorithm::Shape;
use ratelimit_core::config::Definition;
pub use ratelimit_core::table::Kept;
use ratelimit_core::{Micros, State};

use crate::error::{Error, Result};

/// The tries of a call before it gives up: another try follows when a concurrent session has inserted
/// or deleted the row between two statements.
pub const TRIES: u32 = 1000;

/// The clock.
pub trait Clock {
    /// Returns the time.
    fn now(&self) -> Micros;
}

/// Interrupts in long loops.
pub trait Interrupts {
    /// Ends the work with an error of the host where somebody has asked for that, or memory is short.
    fn check_for_interrupts(&self);

    /// Runs `work`, and frees what the host allocated for it.
    fn in_scratch<T: 'static>(&self, work: impl FnOnce() -> T) -> T;
}

/// Random numbers.
pub trait Random {
    /// Draws 64 bits that nobody can guess.
    ///
    /// # Errors
    /// Those of the host, which has none to give (58000).
    fn unguessable(&self) -> Result<u64>;

    /// Draws a number below `end`, which is not 0, so that calls spread.
    fn below(&self, end: usize) -> usize;
}

/// Subtransactions, so that a call that is refused in the end leaves no row locked.
pub trait Subtransaction {
    /// Runs `work` in a subtransaction, which is committed if it returns `Some`, and otherwise, also after an error,
    /// rolled back, which releases its locks.
    ///
    /// # Errors
    /// Those of the work.
    fn attempt<T>(&self, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>>;
}

/// The encoding of names and keys.
pub trait Encoding {
    /// Converts text from the server's encoding to UTF-8.
    fn utf8(bytes: &[u8]) -> Cow<'_, str>;
}

/// What is known of a name and key.
#[derive(Clone, Default)]
pub struct Known {
    /// The definition.
    pub limit: Option<Rc<Definition>>,
    /// Until when it is blocked, if it ever was.
    pub blocked_until: Option<Micros>,
}

/// A config that a call brings.
pub trait InlineConfig {
    /// Parses it.
    ///
    /// # Errors
    /// [`Error::Config`] (22023).
    fn definition(&self) -> Result<Rc<Definition>>;
}

/// The definitions of limits, and the blocks of their keys.
pub trait Definitions: Encoding {
    /// Looks up the definition of (name, key), or else that of the name, and until when the key is blocked.
    ///
    /// # Errors
    /// [`Error::StoredConfig`] (22023); those of the host.
    fn known(&self, name: &[u8], key: &[u8]) -> Result<Known>;

    /// Looks up the definition alone.
    ///
    /// # Errors
    /// As [`known`](Definitions::known).
    fn defined(&self, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>>;

    /// Whether states of a name may be in the table: unless every definition of it says that they are in memory, or
    /// exempts a key.
    ///
    /// # Errors
    /// As [`known`](Definitions::known).
    fn may_be_in_table(&self, name: &[u8]) -> Result<bool>;

    /// Whether the caller may define limits, and so bring a config for a defined one.
    fn may_define(&self) -> bool;

    /// Reads the blocks that are not over, of one name or one key where they are given, in the order of name and key.
    ///
    /// # Errors
    /// Those of the host.
    fn blocks_in_force(&self, name: Option<&[u8]>, key: Option<&[u8]>)
    -> Result<Vec<BlockInForce>>;

    /// Deletes blocks that are over, at most so many; returns how many. Those that others hold are left.
    ///
    /// # Errors
    /// Those of the host.
    fn prune_blocks(&self, max_rows: i64) -> Result<i64>;
}

/// A block that is not over.
pub struct BlockInForce {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// Until when, or [`FOR_GOOD`](crate::target::FOR_GOOD).
    pub until: Micros,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It passed.
    Allowed,
    /// It was denied.
    Denied {
        /// `false`: in a dry run, so it passed.
        enforced: bool,
    },
}

/// The counters of requests.
pub trait Tally {
    /// Where a request is counted.
    type Place: Copy;

    /// Returns where a request is counted; `None`: nowhere.
    ///
    /// # Errors
    /// A cancel. Where nothing can be counted, calls go on.
    fn place(&self, name: &[u8], key: &[u8]) -> Result<Option<Self::Place>>;

    /// Counts an answer to a request of `count` tokens, and tells a share of the denials; `retry_after` as in
    /// [`Answer`](crate::request::Answer).
    fn count(&self, place: Option<Self::Place>, counted: Counted);
}

/// What is counted.
#[derive(Clone, Copy)]
pub struct Counted<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// The answer.
    pub verdict: Verdict,
    /// The wait that it tells.
    pub retry_after: Option<Micros>,
}

/// What the rows are asked for, from which follows the lock on their table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// To be read only.
    Read,
    /// To be locked and written.
    Write,
}

/// Where the limiter runs: in a transaction of a session.
pub trait Host: Clock + Interrupts + Random + Subtransaction + Definitions + Tally {
    /// The entries of memory.
    type Entries: Entries;

    /// Runs `work` on the rows of the table. The access is the strongest that the whole work needs.
    ///
    /// # Errors
    /// Those of the work and of the host.
    fn with_rows<T>(&self, access: Access, work: impl FnOnce(&dyn Rows) -> Result<T>) -> Result<T>;

    /// Returns the entries of memory, which are made where there are none.
    ///
    /// # Errors
    /// Those of the host, which has no room for them (53100, 53200).
    fn entries(&self) -> Result<&Self::Entries>;

    /// Returns the entries of memory if there are any.
    ///
    /// # Errors
    /// A cancel.
    fn entries_if_any(&self) -> Result<Option<&Self::Entries>>;

    /// Returns what identifies the entry of the request of this place.
    fn entry_of(&self, place: Self::Place) -> Id;

    /// Refuses to write rows in a read-only transaction.
    ///
    /// # Errors
    /// Those of the host (25006).
    fn refuse_read_only(&self) -> Result<()>;
}

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
    /// A value that no call writes, in a row of this shape.
    Invalid {
        /// What the row would be the state of.
        shape: Shape,
        /// The row's `ts`.
        ts: Micros,
        /// The column.
        column: &'static str,
        /// What it has; for a time, the infinity that it is.
        value: f64,
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

    /// The shape of its state, also of one that is invalid; `None` where it has none.
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Stored::State(state) => Some(state.shape()),
            Stored::Invalid { shape, .. } => Some(*shape),
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
#[derive(Clone, Copy, Debug)]
pub struct TupleId {
    /// Block number and offset; `None` where rows are found by their primary key.
    pub tid: Option<(u32, u16)>,
    /// Whether no other transaction had it locked when it was read.
    pub unlocked: bool,
}

impl TupleId {
    /// The tuple id of a row that is found by its primary key.
    pub const NONE: TupleId = TupleId { tid: None, unlocked: false };
}

/// A row, without its primary key.
#[derive(Clone, Debug)]
pub struct Row {
    /// What its columns say.
    pub stored: Stored,
    /// The version that was read.
    pub tuple: TupleId,
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

/// Access to the rows, inside the caller's transaction and under the latest committed state, whatever
/// the isolation level. The transaction's own writes count as committed.
///
/// The required methods come first, then the provided ones. Each fails with the errors of the host, and
/// with a NULL that no call writes (55000).
pub trait Rows {
    /// Reads a row, without locking, writing or waiting.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn read(&self, id: RowId) -> Result<Option<Row>>;

    /// Reads the rows of a key with these shard numbers, as [`read`](Rows::read).
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>>;

    /// Reads all rows of a key under one snapshot, in ascending order, as [`read`](Rows::read).
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn read_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>>;

    /// Reads at most `rows` rows after (name, key), in the order of name, key and shard, as
    /// [`read`](Rows::read); with `same_name`, only rows of that name.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>>;

    /// Returns the (name, key) of a random row; `None` where none is found.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Locks a row to the end of the transaction, as SELECT ... FOR UPDATE; `None` if it is gone.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn lock(&self, id: RowId) -> Result<Option<Row>>;

    /// Locks a row as [`lock`](Rows::lock), without waiting; `None` also if it is locked.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn try_lock(&self, id: RowId) -> Result<Option<Row>>;

    /// Inserts a row, after waiting for a concurrent insert of the same; false if that commits.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn insert(&self, id: RowId, stored: &Stored) -> Result<bool>;

    /// Updates a row that this transaction has locked.
    ///
    /// # Errors
    /// Those of [`Rows`]; [`Error::NotWritten`] (55000).
    fn update(&self, id: RowId, locked: TupleId, stored: &Stored) -> Result<()>;

    /// Deletes a row that this transaction has locked.
    ///
    /// # Errors
    /// Those of [`Rows`]; [`Error::NotWritten`] (55000).
    fn delete(&self, id: RowId, locked: TupleId) -> Result<()>;

    /// Returns the shard numbers of a key's rows that this transaction holds, the one last locked first; none where
    /// nobody remembers.
    fn held(&self, _name: &[u8], _key: &[u8]) -> Vec<i32> {
        Vec::new()
    }

    /// Identifies the table.
    fn table(&self) -> u32 {
        0
    }

    /// Whether [`replace`](Rows::replace) works here. Otherwise rows are locked first.
    fn replaces(&self) -> bool {
        false
    }

    /// Updates a row in one step without locking it before, if it is unchanged since it was read. False
    /// if it isn't, or if that can't be done here: the caller locks it then. Waits for a lock on the row, or
    /// without `wait` returns false then as well. Where it returns false it holds nothing.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn replace(&self, _: RowId, _seen: &Row, _: &Stored, _wait: bool) -> Result<bool> {
        Ok(false)
    }

    /// Deletes a row in one step, as [`replace`](Rows::replace) updates one without `wait`.
    ///
    /// # Errors
    /// Those of [`Rows`].
    fn remove(&self, _: RowId, _seen: &Row) -> Result<bool> {
        Ok(false)
    }

    /// Locks a row; `None` if it is gone.
    ///
    /// # Errors
    /// Those of [`Rows`]; [`Error::Busy`]: without `wait`, and it is locked.
    fn lock_or_busy(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        if wait {
            return self.lock(id);
        }
        let row = self.try_lock(id)?;
        if row.is_none() && self.read(id)?.is_some() { Err(Error::Busy) } else { Ok(row) }
    }

    /// Returns the error for a row that could not be written although nothing failed (55000).
    fn not_written(&self) -> Error {
        Error::NotWritten { table: "rateLimits" }
    }
}

/// What identifies an entry of memory: a keyed hash of name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// The hash of the name.
    pub name: [u64; 2],
    /// That of the name and key.
    pub key: [u64; 2],
    /// Whose room it takes.
    pub room: Room,
    /// Who fills the room with it: the database, and of configs in calls its role.
    pub owner: u32,
}

/// The rooms of the memory, where keys make room for those of the same room only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Of limits that are defined.
    Defined,
    /// Of limits whose config is in the call, where whoever may call brings any name.
    Inline,
}

impl Id {
    /// What identifies one of the slots of a key, in the key's partition: found at a place of its own there, and told
    /// from the key and its other slots.
    pub fn slot(self, number: u32) -> Id {
        // An odd number whose multiples are far from each other: 2^64 divided by the golden ratio.
        let apart = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1);
        Id { key: [self.key[0], self.key[1].wrapping_add(apart)], ..self }
    }
}

/// What is stored with an entry, to choose which one makes room for another.
#[derive(Clone, Copy, Debug)]
pub struct Worth {
    /// When nobody misses it any more; `None`: never.
    pub idle_at: Option<Micros>,
    /// Whether half of its limit or more is used.
    pub half_used: bool,
    /// The instant of the call that stores it.
    pub now: Micros,
}

/// Entries of memory that sessions share, at once and in no transaction.
pub trait Entries {
    /// Entries that are locked.
    type Locked<'e>: LockedEntries
    where
        Self: 'e;

    /// Identifies the entry of a name and key in the room of defined limits.
    fn id(&self, name: &[u8], key: &[u8]) -> Id;

    /// The same in the room of configs in calls, where it is the current role's.
    fn inline(&self, id: Id) -> Id;

    /// Says that an entry will be read, for a processor that can fetch it while it has other work.
    fn prefetch(&self, _: Id) {}

    /// Reads an entry.
    fn read(&self, id: Id) -> Option<Kept>;

    /// Locks an entry, which may not be there, and changes or keeps it: what `work` does is short, and calls nothing of
    /// the host but its clock.
    fn locked<T>(&self, id: Id, work: impl FnOnce(&mut Self::Locked<'_>) -> T) -> T;

    /// Locks several entries at once, in an order that is the same for all sessions.
    fn lock_all(&self, ids: impl Iterator<Item = Id>) -> Self::Locked<'_>;

    /// Forgets the entries of a name's keys; returns how many keys had one.
    fn forget_name(&self, name: &[u8]) -> u64;

    /// Tells in the server's log, now and then, that entries in use made room for others.
    fn tell_losses(&self);
}

/// Entries that are locked.
pub trait LockedEntries {
    /// Reads an entry, for a call.
    fn read(&mut self, id: Id) -> Option<Kept>;

    /// Stores an entry.
    fn write(&mut self, id: Id, kept: Kept, worth: Worth);

    /// Forgets an entry; false if there was none.
    fn remove(&mut self, id: Id) -> bool;
}
