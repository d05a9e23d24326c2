//! Faults that a property must notice: of the model's rows and memory ([`Flaw`]), and of the limiter and the memory
//! themselves ([`Fault`]).

use ratelimit_faults::Fault;

use crate::explore::{Findings, explore};
use crate::postgres::Flaw;
use crate::scenarios::{self, Group};
use crate::world::Wrong;

/// The approximate maximum number of states visited with a fault: there may be infinitely many.
const MOST: usize = 100_000;

/// The faults of rows and memory, each with the property that it breaks, and a scenario.
const FLAWS: [(Flaw, Wrong, &str); 26] = [
    (Flaw::ChainNotCompared, Wrong::Unexplained, "take a 1 | rename a; commit; take a 1 (SQL)"),
    (Flaw::LockGivenUp, Wrong::Failed, "reset_all | take a 2; commit; take a 2"),
    (Flaw::DecidedBeforeWait, Wrong::OverAdmitted, "take a 2 @1 | take a 1 @1"),
    (Flaw::OldSnapshot, Wrong::BadDenial, "take a 2; take a 2 | reset a"),
    (Flaw::InsertNotChecked, Wrong::Unexplained, "take a 2 | take a 2"),
    (
        Flaw::LostUpdate,
        Wrong::Unexplained,
        "take a 2; commit; take a 1 | take a 1; commit; take a 2",
    ),
    (Flaw::LocksKept, Wrong::LockKept, "all b 2, a 2 | take b 1 | take a 1"),
    (
        Flaw::WritesKept,
        Wrong::BadDenial,
        "take a 1; savepoint; take a 2; rollback_to; take a 1 | take a 2; rollback; take a 1",
    ),
    (
        Flaw::RollbackKept,
        Wrong::TokensLost,
        "take a 2; commit; take a 1 | take a 2; rollback; take a 1 | take a 2",
    ),
    (Flaw::CommitLost, Wrong::TakeLost, "take a 2; commit; take a 1 | take a 1; commit; take a 2"),
    (
        Flaw::OwnRowsForgotten,
        Wrong::Deadlock,
        "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1",
    ),
    (Flaw::DirtyRead, Wrong::Unexplained, "check a 1; check a 3 | take a 3; rollback; take a 1"),
    (Flaw::DirtyRead, Wrong::OverAdmitted, "take a 2 @1 | credit a 1 @1"),
    (Flaw::TryLockWaits, Wrong::Deadlock, "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1"),
    (
        Flaw::PartitionGivenUp,
        Wrong::Unexplained,
        "take a 1; rollback; take a 1 | take a 2 | take a 1 (memory)",
    ),
    (
        Flaw::IdDrawnTwice,
        Wrong::LeaseTwice,
        "acquire a; commit; extend a; commit; release a | acquire a; commit; acquire a (memory)",
    ),
    (
        Flaw::IdOfClock,
        Wrong::LeaseTwice,
        "acquire a; rollback; acquire a | acquire a; commit; release a",
    ),
    (
        Flaw::DeniedRowKept,
        Wrong::LockKept,
        "acquire a; commit; extend a; release a | reset a; commit; acquire a",
    ),
    (Flaw::GoneEntryOverlooked, Wrong::Unexplained, "all b 1 | take b 1; take a 1 (memory)"),
    (
        Flaw::DefinitionKept,
        Wrong::Unexplained,
        "define 1; commit; take a 3 @defined | take a 2 @defined; commit; take a 2 @defined",
    ),
    (
        Flaw::EvictionsOverlooked,
        Wrong::TakeLost,
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
    ),
    (
        Flaw::TwoWriters,
        Wrong::NotSaved,
        "take a 1; commit; take a 1 | save | save; commit; save (saved)",
    ),
    (
        Flaw::FinishedBeforeCommit,
        Wrong::NotSaved,
        "take a 1; commit; take a 2 | take a 1 | save (saved)",
    ),
    (
        Flaw::StoppedUnsaved,
        Wrong::TakeLost,
        "take a 1; commit; take a 1 | save; commit; take a 1 (saved) (stop)",
    ),
    (
        Flaw::StandbyTrusted,
        Wrong::BadDenial,
        "take a 1; commit; take a 1 | replicate a 1; commit; promote (saved) (standby)",
    ),
    (
        Flaw::StandbyReadTrusted,
        Wrong::TakeLost,
        "take a 1; commit; take a 1 | replicate a 1; commit; promote (saved) (standby)",
    ),
];

/// The faults of the limiter and of the memory, each with the property that it breaks, and a scenario.
const FAULTS: [(Fault, Wrong, &str); 42] = [
    (Fault::ReshardWithoutLocks, Wrong::Failed, "take a 1 @0 | take a 1 @1"),
    (Fault::RequestsUnsorted, Wrong::Deadlock, "all a 1, b 1 | all b 1, a 1"),
    (Fault::PartOfSeveral, Wrong::Unexplained, "all b 2, a 2 | take b 1"),
    (Fault::TooFewRowsSuffice, Wrong::OverAdmitted, "all a 1 @1, b 1 @0 | all b 1 @0, a 2 @1"),
    (
        Fault::MemoryOverlooked,
        Wrong::Unexplained,
        "all a 1 @0, b 1 @1 | all a 1 @0, b 2 @1 (rows and memory)",
    ),
    (Fault::SecondPageOverlooked, Wrong::TokensLost, "reset_all | take a 2; commit; take b 1"),
    (
        Fault::ChangedCopyWritten,
        Wrong::NotSaved,
        "take a 1; commit; take a 2 | take a 1 | save (saved)",
    ),
    (
        Fault::FailedCopyWritten,
        Wrong::NotSaved,
        "take a 1; take b 1; commit; take a 1 | save_fails; commit; save (saved)",
    ),
    (Fault::UnsavedEvicted, Wrong::TakeLost, "take a 1; commit; take a 1 | take b 1 (saved)"),
    (
        Fault::EvictionNotCounted,
        Wrong::TakeLost,
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
    ),
    (
        Fault::ChangedEntryOverlooked,
        Wrong::Unexplained,
        "all a 1, b 1 | all b 1, a 1 | take a 1 (memory)",
    ),
    (
        Fault::AbsentDenied,
        Wrong::BadDenial,
        "take a 1; commit; save; commit; all a 1, b 1 (saved) (no worker)",
    ),
    (
        Fault::EvictionsCountedLate,
        Wrong::TakeLost,
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
    ),
    (
        Fault::EvictedIsFull,
        Wrong::TakeLost,
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
    ),
    (
        Fault::ResetLeavesNoEntry,
        Wrong::TokensLost,
        "take a 1; commit; reset a | save; commit; save (saved)",
    ),
    (Fault::FullNotWritten, Wrong::NotSaved, "reset a; commit; take a 1 | take a 1 | save (saved)"),
    (
        Fault::LockedRowSkipped,
        Wrong::NotSaved,
        "take a 1; commit; save; commit; take a 1 | lock a; rollback (saved)",
    ),
    (Fault::ShardNotCompared, Wrong::TokensLost, "credit a 2 @1 | credit a 1 @1"),
    (Fault::BetterNotCompared, Wrong::TokensLost, "credit a 2 @1 | take a 1 @1"),
    (
        Fault::PartOfSomeShards,
        Wrong::Unexplained,
        "part a 3 @1 | credit a 1 @1; commit; take a 1 @1",
    ),
    (Fault::MarkerOverlooked, Wrong::TakeLost, "take a 1 @1 | take a 1 @0"),
    (Fault::ResetWithoutLocks, Wrong::Failed, "reset a @1 | take a 1 @1; commit; take a 1 @1"),
    (Fault::NameDeletedOnce, Wrong::TokensLost, "reset_all @1 | take a 1 @2 (distributed)"),
    (
        Fault::ResetSkipped,
        Wrong::TokensLost,
        "reset a; commit; take a 2 | take a 2; commit; take a 1",
    ),
    (Fault::RefilledTwice, Wrong::TakeLost, "take a 2 @1 | take a 1 @1; rollback (clock)"),
    (Fault::RowsListedOnce, Wrong::TokensLost, "reset a @1 | take a 1 @2"),
    (
        Fault::OwnRowsOverlooked,
        Wrong::Deadlock,
        "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1",
    ),
    (Fault::CreditDropped, Wrong::TokensLost, "take a 1 @1; credit a 1 @2 | take a 1 @1"),
    (
        Fault::EntryNotWritten,
        Wrong::Unexplained,
        "take a 1; rollback; take a 1 | take a 2 | take a 1 (memory)",
    ),
    (Fault::PrunedUnseen, Wrong::TakeLost, "prune @1 | take a 1 @1; commit; take a 1 @1"),
    (Fault::BusyRowsPruned, Wrong::TakeLost, "take a 2 | prune; commit; take a 3 | take a 2"),
    (
        Fault::BusyRowsPruned,
        Wrong::TakeLost,
        "prune; commit; prune | take a 2; rollback; take b 1 (distributed)",
    ),
    (
        Fault::BlockOverlooked,
        Wrong::Unexplained,
        "block a; commit; take a 1 @defined | take a 1 @defined; take a 1 @defined",
    ),
    (
        Fault::ExtensionNotWritten,
        Wrong::TakeLost,
        "acquire a; commit; extend a | acquire a; commit; acquire a",
    ),
    (
        Fault::ShardsUnordered,
        Wrong::Deadlock,
        "take a 3 @1 | take a 1 @1; commit; reset a @1 (SQL)",
    ),
    (
        Fault::ExpiryNotApplied,
        Wrong::BadDenial,
        "hold a 2 :x ~1; commit; settle :x 1 | take a 3 (clock)",
    ),
    (
        Fault::ExpiredTwice,
        Wrong::ExpiryOverlooked,
        "hold a 2 :x ~1; commit; settle :x 1 | take a 3 (clock)",
    ),
    (Fault::GoneHoldSettled, Wrong::SettledTwice, "hold a 2 :x; commit; settle :x 1 | settle :x 0"),
    (Fault::HoldReadFirst, Wrong::Unexplained, "hold a 1 :x; commit; hold a 2 :x | settle :x 0"),
    (
        Fault::RefundedToAnyWindow,
        Wrong::Unexplained,
        "hold a 2 :x ~2; commit; settle :x 0 | take a 2; commit; take a 3 (window) (clock)",
    ),
    (Fault::ExpiresForgotten, Wrong::ExpiryOverlooked, "hold a 1 :x | hold a 2 :x"),
    (Fault::ShardForgotten, Wrong::TakeLost, "take a 2 @1 | credit a 1 @1"),
];

/// Explores each fault in its scenario; returns the number of faults that no property noticed.
pub fn run() -> usize {
    let groups = scenarios::groups(false);
    let mut missed = 0;
    for (flaw, expected, scenario) in FLAWS {
        let name = format!("{flaw:?}");
        missed += usize::from(!is_noticed(&groups, &name, expected, scenario, Some(flaw)));
    }
    for (fault, expected, scenario) in FAULTS {
        Fault::turn_on(Some(fault));
        let name = format!("{fault:?}");
        missed += usize::from(!is_noticed(&groups, &name, expected, scenario, None));
        Fault::turn_on(None);
    }
    missed
}

/// Whether the expected property notices a fault in a scenario.
fn is_noticed(
    groups: &[Group],
    fault: &str,
    expected: Wrong,
    name: &str,
    flaw: Option<Flaw>,
) -> bool {
    let mut scenarios = groups.iter().flat_map(|(_, scenarios)| scenarios);
    let Some(scenario) = scenarios.find(|scenario| scenario.name == name) else {
        println!("{fault:<22} has no scenario {name}");
        return false;
    };
    // In one thread, so that the same state is always found first.
    let Findings { states, wrong, .. } = explore(scenario, flaw, MOST, 1);
    let wrong = wrong.map_or(Vec::new(), |(wrong, _)| wrong);
    let is_noticed = wrong.contains(&expected);
    let verdict = if is_noticed { "noticed" } else { "NOT NOTICED" };
    println!("{fault:<22} {verdict} as {expected:?}, {states} states, {wrong:?}: {name}");
    is_noticed
}
