//! Named faults, like PostgreSQL's injection points: crates/model switches on one at a time, and a property must notice
//! it. `crates/model/src/faults.rs` lists the faults, each with its scenario. Elsewhere [`Fault::is_on`] is a constant.

#![forbid(unsafe_code)]

#[cfg(feature = "switches")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A shard is changed though it has too few tokens, or too little room for a credit.
    ShardNotCompared,
    /// The better of two shards is changed likewise.
    BetterNotCompared,
    /// A part is taken from some shards as if it were a count.
    PartOfSomeShards,
    /// The number of rows changes without locks on all of them.
    ReshardWithoutLocks,
    /// A marker counts as a row without a state.
    MarkerOverlooked,
    /// A reset of shards locks none of them.
    ResetWithoutLocks,
    /// A reset does not look again for rows that came while it locked.
    RowsListedOnce,
    /// A transaction that has locked a shard waits for another.
    OwnRowsOverlooked,
    /// A credit to a row that was one of several shards is not written.
    CreditDropped,
    /// Several limits are locked in the order of their requests.
    RequestsUnsorted,
    /// Tokens are taken from some of several limits although another one denies.
    PartOfSeveral,
    /// Locked rows of several limits are changed although they have too few tokens.
    TooFewRowsSuffice,
    /// Rows are changed although memory denies.
    MemoryOverlooked,
    /// Several entries are changed although one of them has changed since it was read.
    ChangedEntryOverlooked,
    /// A change in memory is not written.
    EntryNotWritten,
    /// A list of saved keys that can never fit is denied.
    AbsentDenied,
    /// Rows of a name that came while others were deleted stay.
    NameDeletedOnce,
    /// A row is not reset.
    ResetSkipped,
    /// A key is pruned although its rows have changed.
    PrunedUnseen,
    /// A key is pruned although it is not idle.
    BusyRowsPruned,
    /// Blocks are ignored.
    BlockOverlooked,
    /// The extension of a lease is not written.
    ExtensionNotWritten,
    /// Shards are locked in any order.
    ShardsUnordered,
    /// Tokens that were refilled before are refilled again.
    RefilledTwice,
    /// A loop over rows ends after its first page.
    SecondPageOverlooked,
    /// A changed shard is not written.
    ShardForgotten,
    /// A copy counts as written although the entry has changed since.
    ChangedCopyWritten,
    /// A copy counts as written although the transaction failed.
    FailedCopyWritten,
    /// An unwritten entry is evicted.
    UnsavedEvicted,
    /// An eviction is not counted.
    EvictionNotCounted,
    /// The evictions are counted after the row of a key is read.
    EvictionsCountedLate,
    /// An evicted key counts as full.
    EvictedIsFull,
    /// The reset of a key in memory removes its entry.
    ResetLeavesNoEntry,
    /// A full state is not written.
    FullNotWritten,
    /// A row counts as written although another session has locked it.
    LockedRowSkipped,
    /// Expired holds are not applied before a call.
    ExpiryNotApplied,
    /// The expiry is not written to the holds, so their tokens come back again.
    ExpiredTwice,
    /// A hold that is gone is settled as it was found.
    GoneHoldSettled,
    /// A hold is settled as it was before the row of its limit was locked.
    HoldReadFirst,
    /// Tokens come back to any window.
    RefundedToAnyWindow,
    /// A row doesn't record when its first hold expires.
    ExpiresForgotten,
}

#[cfg(feature = "switches")]
static ON: AtomicU8 = AtomicU8::new(u8::MAX);

impl Fault {
    /// Whether the fault is on.
    #[cfg(feature = "switches")]
    pub fn is_on(self) -> bool {
        ON.load(Ordering::Relaxed) == self as u8
    }

    /// Whether the fault is on: never.
    #[cfg(not(feature = "switches"))]
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }

    /// Turns this fault on, and every other one off; `None`: all off.
    #[cfg(feature = "switches")]
    pub fn turn_on(fault: Option<Fault>) {
        ON.store(fault.map_or(u8::MAX, |fault| fault as u8), Ordering::Relaxed);
    }
}
