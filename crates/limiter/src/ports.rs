//! Interfaces to the limiter's environment: rows, entries of memory, definitions, a clock, and a transaction.
//!
//! The extension implements them in a session of PostgreSQL, `crates/model` in steps of a model of one.

mod definitions;
mod entries;
mod holds;
mod rows;
mod session;
mod tally;

pub use definitions::{BlockInForce, Defined, Definitions, Encoding, ExemptKey, InlineConfig};
pub use entries::{
    Absent, Entries, Id, Loaded, LockedEntries, NewKey, Pool, Retention, SavedKey, Seen,
};
pub use holds::{Deleted, HoldRow, Holds, KeyHolds};
pub use rows::{KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, Stored, TupleId, Version};
pub use session::{Clock, Interrupts, Random, Subtransaction};
pub use tally::{Counted, Tally, Verdict};

use crate::error::Result;

/// The most tries of a call: it tries again if a concurrent session has inserted or deleted the row between two
/// statements.
pub const TRIES: u32 = 1000;

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

/// The limiter's environment: a transaction of a session.
pub trait Host: Clock + Interrupts + Random + Subtransaction + Definitions + Tally {
    /// The entries of memory.
    type Entries: Entries;

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

    /// Refuses to write rows in a read-only transaction.
    ///
    /// # Errors
    /// An error of the host (25006).
    fn refuse_read_only(&self) -> Result<()>;

    /// Checks that the definitions that the call has looked up are still current.
    ///
    /// # Errors
    /// They have changed: an error with which the host begins the call again.
    fn check_definitions(&self) -> Result<()> {
        Ok(())
    }
}
