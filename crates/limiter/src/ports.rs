//! What the limiter asks of where it runs: rows, entries of memory, definitions, a clock, and a transaction.
//!
//! The extension implements them in a session of PostgreSQL, and `crates/model` in steps of a model of one.

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
pub use holds::{HoldRow, Holds};
pub use rows::{KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, Stored, TupleId};
pub use session::{Clock, Interrupts, Random, Subtransaction};
pub use tally::{Counted, Tally, Verdict};

use crate::error::Result;

/// The tries of a call before it gives up: another try follows when a concurrent session has inserted
/// or deleted the row between two statements.
pub const TRIES: u32 = 1000;

/// What the rows are asked for, from which follows the lock on their table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowAccess {
    /// To be read only, once: nothing stays locked afterwards.
    Glance,
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
    fn with_rows<T>(
        &self,
        access: RowAccess,
        work: impl FnOnce(&dyn Rows) -> Result<T>,
    ) -> Result<T>;

    /// Returns the entries of memory, which are made where there are none.
    ///
    /// # Errors
    /// Those of the host, which has no room for them (53100, 53200).
    fn entries(&self) -> Result<&Self::Entries>;

    /// Returns the entries of memory, with room for keys that are saved.
    fn saved_entries(&self) -> Result<&Self::Entries>;

    /// Returns the entries of memory if there are any.
    ///
    /// # Errors
    /// A cancel.
    fn entries_if_any(&self) -> Result<Option<&Self::Entries>>;

    /// Returns the address of the entry of a request, which is going to be read: the processor may fetch it meanwhile.
    fn entry_of(&self, counter: Self::Counter) -> Id;

    /// Waits until saved keys that were unsaved are written, and so can be evicted; false if no writer can.
    ///
    /// # Errors
    /// A cancel.
    fn wait_for_save(&self) -> Result<bool>;

    /// Runs `work` on the holds, also inside [`with_rows`](Host::with_rows).
    ///
    /// # Errors
    /// Those of the host (0A000): there is no table of them, or it is distributed.
    fn with_holds<T>(&self, work: impl FnOnce(&dyn Holds) -> Result<T>) -> Result<T>;

    /// Whether there is a table of holds: where there is none, there are no holds.
    fn has_holds(&self) -> bool;

    /// Refuses to write rows in a read-only transaction.
    ///
    /// # Errors
    /// Those of the host (25006).
    fn refuse_read_only(&self) -> Result<()>;

    /// Checks that the definitions that the call has looked up are still those of now.
    ///
    /// # Errors
    /// That with which the host begins the call again: they have changed.
    fn check_definitions(&self) -> Result<()> {
        Ok(())
    }
}
