//! Interfaces to the limiter's environment: rows, entries of memory, definitions, a clock, and a transaction.
//!
//! The extension implements them in a session of PostgreSQL, `crates/model` in steps of a model of one.

mod entries;
mod holds;
mod rows;

pub use entries::{Absent, Entries, Id, LockedEntries, Pool, Retention, Seen};
pub use holds::{Deleted, HoldRow, Holds, KeyHolds};
pub use rows::{KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, Stored, TupleId, Version};

use std::borrow::Cow;
use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;

use crate::error::{LimiterError, Result};

/// The most tries of a call: it tries again if a concurrent session has inserted or deleted the row between two
/// statements.
pub const TRIES: u32 = 1000;

/// Tries `work` until it returns something.
#[inline(always)]
pub(crate) fn tries<T>(
    host: &impl Transaction,
    mut work: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    for _ in 0..TRIES {
        host.check_for_interrupts();
        if let Some(done) = work()? {
            return Ok(done);
        }
    }
    Err(LimiterError::not_written())
}

/// A name and a key, in the server's encoding.
pub type Key = (Vec<u8>, Vec<u8>);

/// A [`Key`] of another owner.
pub type KeyRef<'a> = (&'a [u8], &'a [u8]);

/// The keys to list, in the server's encoding.
#[derive(Clone, Copy, Default)]
pub struct Listing<'a> {
    /// Only keys of this name.
    pub name: Option<&'a [u8]>,
    /// Only this key.
    pub key: Option<&'a [u8]>,
    /// Only keys with rows after this name and key; blocks, exempt keys and holds are listed without it.
    pub after: Option<KeyRef<'a>>,
}

/// The use of the rows, which determines the lock on their table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowAccess {
    /// Reads only, once: nothing stays locked afterwards.
    Glance,
    /// Reads only.
    Read,
    /// Locks and writes.
    Write,
}

/// The definition and the block of a name and key.
#[derive(Clone, Default)]
pub struct Defined {
    /// The definition.
    pub definition: Option<Rc<Definition>>,
    /// The key's plan, if that is not defined; the key then has no definition.
    pub missing_plan: Option<Rc<str>>,
    /// The end of its block, which may be past; `None`: there is none.
    pub blocked_until: Option<Micros>,
}

/// A config passed in a call.
pub trait InlineConfig {
    /// Parses it.
    ///
    /// # Errors
    /// [`LimiterError::Config`] (22023).
    fn definition(&self) -> Result<Rc<Definition>>;

    /// Returns it as JSON in the server's encoding, for storage.
    fn json(&self) -> Vec<u8>;
}

/// A block of a key.
pub struct Block {
    /// The end, or [`Micros::FOREVER`].
    pub until: Micros,
    /// The reason, in the server's encoding.
    pub reason: Option<Vec<u8>>,
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

/// A request to count.
#[derive(Clone, Copy)]
pub struct Counted<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// The answer.
    pub verdict: Verdict,
    /// The wait that it reports.
    pub retry_after: Option<Micros>,
}

/// A transaction of a session: its clock, its interrupts, its random numbers, its locks and subtransactions.
pub trait Transaction {
    /// Converts text from the server's encoding to UTF-8.
    fn utf8(bytes: &[u8]) -> Cow<'_, str>;

    /// Returns the time.
    fn now(&self) -> Micros;

    /// Ends the work with an error of the host if that was requested, or if memory is short.
    fn check_for_interrupts(&self);

    /// Runs `page` until it returns something, and after each run frees what the host allocated for it.
    fn each_page<T: 'static>(&self, page: impl FnMut() -> Option<T>) -> T;

    /// Draws 64 unpredictable bits.
    ///
    /// # Errors
    /// An error of the host: it has none to give (58000).
    fn unguessable(&self) -> Result<u64>;

    /// Draws a number below `end`, which is not 0, to spread calls.
    fn below(&self, end: usize) -> usize;

    /// Runs `work` in a subtransaction: commits it if `work` returns `Some`; otherwise, also after an error, rolls it
    /// back, which releases its locks.
    fn attempt<T>(&self, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>>;

    /// Runs `work` as [`attempt`](Transaction::attempt), and waits for no lock in it for longer than `limit`, nor than
    /// the session does: `None` also after that. Returns the time that it took, too.
    fn attempt_within<T>(
        &self,
        limit: Micros,
        work: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<(Option<T>, Micros)>;

    /// Returns the shard numbers of a key's rows that the transaction has locked or written, the last locked one first.
    fn own_rows(&self, name: &[u8], key: &[u8]) -> Vec<i32>;

    /// Refuses to write rows in a read-only transaction.
    ///
    /// # Errors
    /// An error of the host (25006).
    fn refuse_read_only(&self) -> Result<()>;
}

/// The definitions of limits, and the blocks of keys.
pub trait Definitions {
    /// Looks up the definition of (name, key), or of its plan, or else of the name, as stored, and the end of the key's
    /// block.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`] (22023).
    fn look_up(&self, name: &[u8], key: &[u8]) -> Result<Defined>;

    /// Returns a definition or config of a name as it applies to this call: its state may be elsewhere for now.
    fn in_force(&self, name: &[u8], definition: Rc<Definition>) -> Rc<Definition>;

    /// Looks up the definition alone, as it is [in force](Definitions::in_force).
    fn defined(&self, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>>;

    /// Whether states of a name may be in the table: true unless each of its definitions exempts a key, or keeps states
    /// in memory without saving them.
    fn may_be_in_table(&self, name: &[u8]) -> Result<bool>;

    /// Whether the caller may define limits, and so pass a config for a defined one.
    fn may_define(&self) -> bool;

    /// Reads the blocks in force of a listing, in the order of name and key.
    fn blocks_in_force(&self, listing: Listing) -> Result<Vec<(Key, Block)>>;

    /// Reads the names and keys of a listing that an override or its plan exempts, with the definition that exempts
    /// them. If both name and key are given, the key counts also if its name exempts it.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`] (22023).
    fn exempt_keys(&self, listing: Listing) -> Result<Vec<(Key, Rc<Definition>)>>;

    /// Parses the config of a hold.
    ///
    /// # Errors
    /// [`LimiterError::Config`] (22023).
    fn of_hold(&self, config: &[u8]) -> Result<Rc<Definition>>;

    /// Deletes at most `max_rows` expired blocks; returns how many. Skips rows that others have locked.
    fn prune_blocks(&self, max_rows: i64) -> Result<i64>;

    /// Checks that the definitions that the call has looked up are still current.
    ///
    /// # Errors
    /// They have changed: an error with which the host begins the call again.
    fn check_definitions(&self) -> Result<()>;
}

/// The limiter's environment: a transaction with definitions, the rows, the holds, the entries of memory and the
/// counters of requests.
pub trait Host: Transaction + Definitions {
    /// The entries of memory.
    type Entries: Entries;

    /// The counter of a request.
    type Counter: Copy;

    /// Returns the counter of a request; `None`: it is not counted.
    ///
    /// # Errors
    /// A cancel. If nothing can be counted, calls go on.
    fn counter(&self, name: &[u8], key: &[u8]) -> Result<Option<Self::Counter>>;

    /// Counts an answer to a request of `count` tokens, and logs a share of the denials; `retry_after` as in
    /// [`Answer`](crate::request::Answer).
    fn count(&self, counter: Option<Self::Counter>, counted: Counted);

    /// Runs `work` on the rows of the table. The access is the strongest that the whole work needs.
    fn with_rows<T>(
        &self,
        access: RowAccess,
        work: impl FnOnce(&dyn Rows) -> Result<T>,
    ) -> Result<T>;

    /// Returns the entries of memory, and makes them if there are none.
    ///
    /// # Errors
    /// Errors of the host: no room for them (53100, 53200).
    fn entries(&self) -> Result<&Self::Entries>;

    /// Returns the entries of memory, with room for keys that are saved.
    fn saved_entries(&self) -> Result<&Self::Entries>;

    /// Returns the entries of memory if there are any.
    ///
    /// # Errors
    /// A cancel.
    fn entries_if_any(&self) -> Result<Option<&Self::Entries>>;

    /// Returns the address of a request's entry, which will be read: the processor may fetch it meanwhile.
    fn entry_of(&self, counter: Self::Counter) -> Id;

    /// Waits until unsaved keys are saved, and so can be evicted; false if no writer can save them.
    ///
    /// # Errors
    /// A cancel.
    fn wait_for_save(&self) -> Result<bool>;

    /// Runs `work` on the holds, also inside [`with_rows`](Host::with_rows).
    ///
    /// # Errors
    /// Errors of the host (0A000): there is no table of holds, or it is distributed.
    fn with_holds<T>(&self, work: impl FnOnce(&dyn Holds) -> Result<T>) -> Result<T>;

    /// Runs `work` on the holds of whole keys, also inside [`with_rows`](Host::with_rows).
    ///
    /// # Errors
    /// As [`with_holds`](Host::with_holds).
    fn with_key_holds<T>(&self, work: impl FnOnce(&dyn KeyHolds) -> Result<T>) -> Result<T>;

    /// Whether there is a table of holds; without one there are no holds.
    fn has_holds(&self) -> bool;
}
