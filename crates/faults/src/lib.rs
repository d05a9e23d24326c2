//! Named faults, as PostgreSQL's injection points: crates/model switches on one at a time, and a property must notice
//! it. `crates/model/src/faults.rs` lists which, and in which scenario. Elsewhere [`Fault::is_on`] is a constant.

#![forbid(unsafe_code)]

#[cfg(feature = "switches")]
use std::sync::atomic::{AtomicU8, Ordering};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A shard is changed though it has too few tokens, or too little room for a credit.
    ShardNotCompared,
    /// The better of two shards likewise.
    BetterNotCompared,
    /// A part is taken from some shards as if it were a count.
    PartOfSomeShards,
    /// The number of rows changes without locks on all of them.
    ReshardWithoutLocks,
    /// A marker is taken for a row without a state.
    MarkerOverlooked,
    /// A reset of shards locks none of them.
    ResetWithoutLocks,
    /// A reset does not look again for rows that came while it locked.
    RowsListedOnce,
    /// A transaction that has a shard waits for another.
    OwnRowsOverlooked,
    /// A credit to a row that was one of shards is not written.
    CreditDropped,
    /// Several limits are locked in the order of their requests.
    RequestsUnsorted,
    /// Some of several limits are taken from though another one denies.
    PartOfSeveral,
    /// Locked rows of several limits are changed though they have too little.
    TooFewRowsSuffice,
    /// Rows are changed though memory denies.
    MemoryOverlooked,
    /// Several entries change though one of them has changed since it was read.
    ChangedEntryOverlooked,
    /// The same where a key that has no entry came and went.
    GoneEntryOverlooked,
    /// A change in memory is not written.
    EntryNotWritten,
    /// A list of saved keys that never fit is denied.
    AbsentDenied,
    /// Rows of a name stay that came while the others were deleted.
    NameDeletedOnce,
    /// A row is not reset.
    ResetSkipped,
    /// A key is pruned though its rows have changed.
    PrunedUnseen,
    /// A key is pruned though it is not idle.
    BusyRowsPruned,
    /// Blocks are ignored.
    BlockOverlooked,
    /// The id of a lease is the time.
    IdOfClock,
    /// The extension of a lease is not written.
    ExtensionNotWritten,
    /// A lock stays where nothing changes.
    DeniedRowKept,
    /// Shards are locked in any order.
    ShardsUnordered,
    /// Tokens are refilled that were refilled before.
    RefilledTwice,
    /// A loop over rows ends after its first page.
    SecondPageOverlooked,
    /// A shard that has changed is not written.
    ShardForgotten,
    /// A copy counts as written though the entry has changed since.
    ChangedCopyWritten,
    /// A copy counts as written though the transaction failed.
    FailedCopyWritten,
    /// An entry is evicted that is not written.
    UnsavedEvicted,
    /// An eviction is not counted.
    EvictionNotCounted,
    /// The evictions are counted after the row of a key is read.
    EvictionsCountedLate,
    /// A key that was evicted counts as full.
    EvictedIsFull,
    /// The reset of a key that is in memory removes it there.
    ResetLeavesNoEntry,
    /// A state that is full is not written.
    FullNotWritten,
    /// A row counts as written though another session has it locked.
    LockedRowSkipped,
    /// What has expired is not applied before a call.
    ExpiryNotApplied,
    /// What has expired is not written to the holds, so that it comes back again.
    ExpiredTwice,
    /// A hold is deleted before the row of its limit is locked.
    HoldDeletedFirst,
    /// A hold is settled as it was before the row of its limit was locked.
    HoldReadFirst,
    /// Tokens come back to any window.
    RefundedToAnyWindow,
    /// A row doesn't say when its first hold expires.
    ExpiresForgotten,
}

#[cfg(feature = "switches")]
static ON: AtomicU8 = AtomicU8::new(u8::MAX);

impl Fault {
    /// Whether it is on.
    #[cfg(feature = "switches")]
    pub fn is_on(self) -> bool {
        ON.load(Ordering::Relaxed) == self as u8
    }

    /// Whether it is on: it never is.
    #[cfg(not(feature = "switches"))]
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }

    /// Turns it on, and every other one off; `None`: all of them.
    #[cfg(feature = "switches")]
    pub fn turn_on(fault: Option<Fault>) {
        ON.store(fault.map_or(u8::MAX, |fault| fault as u8), Ordering::Relaxed);
    }
}
