//! Mutants: a fault in the model's rows or memory, or in the limiter, that a property must notice. Those of the limiter
//! are the patches of `mutants.py` beside this crate, which switches them on by number in a copy of `crates/limiter`.

use crate::explore::{Findings, explore};
use crate::postgres::Flaw;
use crate::scenarios::{self, Group};

/// At most about so many states are visited of a mutant, which may have no end of them.
const MOST: usize = 100_000;

/// The faults of rows and memory, each with the scenario that shows it.
const FLAWS: [(Flaw, &str); 15] = [
    (Flaw::ChainNotCompared, "take a 1 | rename a; commit; take a 1 (SQL)"),
    (Flaw::LockGivenUp, "reset_all | take a 2; commit; take a 2"),
    (Flaw::DecidedBeforeWait, "take a 2 @1 | take a 1 @1"),
    (Flaw::OldSnapshot, "take a 2; take a 2 | reset a"),
    (Flaw::InsertNotChecked, "take a 2 | take a 2"),
    (Flaw::LostUpdate, "take a 2; commit; take a 1 | take a 1; commit; take a 2"),
    (Flaw::LocksKept, "all b 2, a 2 | take b 1 | take a 1"),
    (
        Flaw::WritesKept,
        "take a 1; savepoint; take a 2; rollback_to; take a 1 | take a 2; rollback; take a 1",
    ),
    (Flaw::RollbackKept, "take a 2; commit; take a 1 | take a 2; rollback; take a 1 | take a 2"),
    (Flaw::CommitLost, "take a 2; commit; take a 1 | take a 1; commit; take a 2"),
    (Flaw::HeldForgotten, "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1"),
    (Flaw::DirtyRead, "check a 1; check a 3 | take a 3; rollback; take a 1"),
    (Flaw::TryLockWaits, "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1"),
    (Flaw::PartitionGivenUp, "take a 1; rollback; take a 1 | take a 2 | take a 1 (memory)"),
    (
        Flaw::IdDrawnTwice,
        "acquire a; commit; extend a; commit; release a | acquire a; commit; acquire a (memory)",
    ),
];

/// Explores each mutant where it shows; returns how many no property noticed.
pub fn run() -> usize {
    let groups = scenarios::groups(false);
    let mut missed = 0;
    for (flaw, name) in FLAWS {
        missed += usize::from(!is_noticed(&groups, &format!("{flaw:?}"), name, Some(flaw)));
    }
    for (number, (mutant, name)) in (1..).zip(switches::NAMES) {
        switches::turn_on(number);
        missed += usize::from(!is_noticed(&groups, mutant, name, None));
        switches::turn_on(0);
    }
    missed
}

fn is_noticed(groups: &[Group], mutant: &str, name: &str, flaw: Option<Flaw>) -> bool {
    let mut scenarios = groups.iter().flat_map(|(_, scenarios)| scenarios);
    let Some(scenario) = scenarios.find(|scenario| scenario.name == name) else {
        println!("{mutant:<30} has no scenario {name}");
        return false;
    };
    let Findings { states, wrong, .. } = explore(scenario, flaw, MOST, 2);
    match &wrong {
        Some((wrong, _)) => println!("{mutant:<30} {wrong:?} after {states} states of: {name}"),
        None => println!("{mutant:<30} NOT NOTICED in {states} states of: {name}"),
    }
    wrong.is_some()
}

/// The mutants of the limiter, which it has in its copy only.
mod switches {
    #[cfg(feature = "mutants")]
    pub use ratelimit_limiter::mutants::{NAMES, turn_on};

    /// None here.
    #[cfg(not(feature = "mutants"))]
    pub const NAMES: [(&str, &str); 0] = [];

    /// Does nothing here.
    #[cfg(not(feature = "mutants"))]
    pub fn turn_on(_: u32) {}
}
