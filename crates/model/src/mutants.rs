//! Mutants: a fault in the model's rows or memory, or in the limiter, that a property must notice. Those of the limiter
//! are the patches of `mutants.py` beside this crate, which switches them on by number in a copy of the limiter and its
//! core.

use crate::explore::{Findings, explore};
use crate::postgres::Flaw;
use crate::scenarios::{self, Group};
use crate::world::Wrong;

/// At most about so many states are visited of a mutant, which may have no end of them.
const MOST: usize = 100_000;

/// The faults of rows and memory, each with what is wrong then, in which scenario.
const FLAWS: [(Flaw, Wrong, &str); 23] = [
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
    (Flaw::HeldForgotten, Wrong::Deadlock, "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1"),
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
        Flaw::SettledBeforeCommit,
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

/// Explores each mutant where it shows; returns how many no property noticed.
pub fn run() -> usize {
    let groups = scenarios::groups(false);
    let mut missed = 0;
    for (flaw, expected, name) in FLAWS {
        let (mutant, expected) = (format!("{flaw:?}"), format!("{expected:?}"));
        missed += usize::from(!is_noticed(&groups, (&mutant, &expected, name), Some(flaw)));
    }
    for (number, mutant) in (1..).zip(switches::MUTANTS) {
        switches::turn_on(number);
        missed += usize::from(!is_noticed(&groups, mutant, None));
        switches::turn_on(0);
    }
    missed
}

/// Whether the expected property notices a mutant: its name, that of what is wrong, and the scenario.
fn is_noticed(groups: &[Group], mutant: (&str, &str, &str), flaw: Option<Flaw>) -> bool {
    let (mutant, expected, name) = mutant;
    let mut scenarios = groups.iter().flat_map(|(_, scenarios)| scenarios);
    let Some(scenario) = scenarios.find(|scenario| scenario.name == name) else {
        println!("{mutant:<30} has no scenario {name}");
        return false;
    };
    // In one thread, so that it is always the same state that is found first.
    let Findings { states, wrong, .. } = explore(scenario, flaw, MOST, 1);
    let wrong: Vec<String> =
        wrong.iter().flat_map(|(all, _)| all).map(|one| format!("{one:?}")).collect();
    let is_noticed = wrong.iter().any(|wrong| wrong == expected);
    let verdict = if is_noticed { "noticed" } else { "NOT NOTICED" };
    println!("{mutant:<30} {verdict} as {expected}, {states} states, {wrong:?}: {name}");
    is_noticed
}

/// The mutants of the limiter and its core, which they have in their copies only.
mod switches {
    #[cfg(feature = "mutants")]
    pub use ratelimit_core::mutants::{MUTANTS, turn_on};

    /// None here.
    #[cfg(not(feature = "mutants"))]
    pub const MUTANTS: [(&str, &str, &str); 0] = [];

    /// Does nothing here.
    #[cfg(not(feature = "mutants"))]
    pub fn turn_on(_: u32) {}
}
