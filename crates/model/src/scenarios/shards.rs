//! Limits with shards, and changes of their number.

use super::of_bucket;
use crate::world::Scenario;

fn fresh(text: &str) -> Scenario {
    of_bucket(2, text)
}

fn one(text: &str) -> Scenario {
    of_bucket(2, text).row(0, 2.0)
}

fn two(text: &str) -> Scenario {
    of_bucket(2, text).shards(0, &[1.0, 1.0])
}

fn six(text: &str) -> Scenario {
    of_bucket(6, text).shards(0, &[3.0, 3.0])
}

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let mut all = calls();
    all.extend(through_sql());
    if long {
        all.extend([
            six("take a 1 @1; take a 1 @2 | take a 3 @2"),
            six("take a 1 @1; take a 1 @2 | take a 1 @1; take a 1 @2"),
            six("take a 1 @1; take a 1 @0 | take a 1 @1; take a 1 @1"),
            six("take a 1 @1; take a 5 @1 | take a 1 @1; take a 4 @1"),
            two("take a 1 @0 | take a 1 @1 | take a 1 @1"),
            two("take a 2 @1 | take a 2 @1 | take a 1 @1"),
            two("take a 1 @0; rollback | take a 1 @1 | take a 1 @1"),
            of_bucket(3, "take a 2 @2 | take a 1 @2; commit; take a 1 @2")
                .shards(0, &[1.0, 1.0, 1.0]),
        ]);
    }
    all
}

/// Calls of every kind, with the same number of shards and with others.
fn calls() -> Vec<Scenario> {
    vec![
        two("take a 1 @1 | take a 1 @1; commit; take a 1 @1"),
        two("take a 2 @1 | take a 1 @1"),
        two("take a 2 @1; rollback | take a 2 @1"),
        two("savepoint; take a 1 @1; rollback_to; take a 1 @1 | take a 1 @1"),
        fresh("take a 1 @1 | take a 2 @1"),
        two("take a 1 @0 | take a 1 @1"),
        two("take a 1 @0; rollback | take a 1 @1"),
        one("take a 1 @1 | take a 1 @0"),
        one("take a 1 @1; rollback | take a 2 @0"),
        six("take a 1 @2 | take a 1 @1"),
        two("reset a @1 | take a 1 @1; commit; take a 1 @1"),
        of_bucket(2, "reset a @1; commit; take a 1 @1 | take a 2 @1").shards(0, &[1.0, 0.0]),
        two("reset a @1 | take a 2 @0"),
        one("take a 1 @1 | reset a @1"),
        one("take a 1 @1 | reset a @0; commit; take a 2 @0"),
        two("take a 1 @0 | take a 1 @2"),
        of_bucket(4, "credit a 2 @1 | credit a 1 @1").shards(0, &[0.0, 0.0]),
        of_bucket(4, "credit a 2 @1 | take a 1 @1").shards(0, &[1.0, 1.0]),
        six("reset a @1 | take a 1 @2"),
        six("take a 1 @1; credit a 1 @2 | take a 1 @1"),
        of_bucket(2, "take a 2 @1 | credit a 1 @1").shards(0, &[0.0, 1.0]),
        of_bucket(2, "take a 2 @1 | credit a 1 @1; rollback").shards(0, &[0.0, 1.0]),
        of_bucket(2, "take a 2 @1 | credit a 1 @1; take a 1 @1; rollback").shards(0, &[0.0, 1.0]),
        of_bucket(2, "take a 1 @1; credit a 1 @1 | take a 1 @1; credit a 1 @1")
            .shards(0, &[0.0, 1.0]),
        of_bucket(4, "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1").shards(0, &[2.0, 2.0]),
        Scenario { may_deadlock: true, ..six("take a 1 @1; reset a @1 | take a 1 @1; reset a @1") },
        two("reset_all @1 | take a 1 @1; commit; take a 1 @1"),
        two("reset a @1; commit; reset a @1 | take a 1 @1"),
        // Rows that come and go between the list of them and their locks.
        two("reset a @1 | reset_all @1; commit; take a 1 @1; commit; reset_all @1"),
        two("take a 1 @0 | take a 1 @1").crashing(),
        two("prune @1 | take a 1 @1; commit; take a 1 @1"),
        two("define 0; commit; take a 1 @defined | take a 1 @defined; commit; take a 1 @defined"),
        two("take a 2 @1 | take a 1 @1; rollback; take a 1 @1").crashing(),
        two("take a 1 @1 | take a 1 @1 | take a 1 @1"),
    ]
}

/// Rows that are locked first.
fn through_sql() -> Vec<Scenario> {
    let all = [
        two("take a 2 @1 | take a 1 @1"),
        fresh("take a 1 @1 | take a 2 @1"),
        two("take a 1 @0 | take a 1 @1"),
        two("reset a @1 | take a 1 @1; commit; take a 1 @1"),
        two("reset a @1 | reset_all @1; commit; take a 1 @1; commit; reset_all @1"),
    ];
    all.into_iter().map(Scenario::through_sql).collect()
}
