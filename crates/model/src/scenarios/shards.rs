//! Limits with shards, and changes of their number.

use super::{bucket, of_bucket};
use crate::world::Scenario;

const SECOND: i64 = 1_000_000;

/// The config of a bucket that refills one token a second.
fn a_second(capacity: u32, shards: u32) -> String {
    bucket(capacity, shards).replace("1000 days", "1 second")
}

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
    all.extend(capacities());
    all.extend(clocks(long));
    all.extend(reservations());
    all.extend(through_sql());
    if long {
        all.extend([
            six("take a 1 @1; take a 1 @2 | take a 3 @2"),
            six("take a 1 @1; take a 1 @2 | take a 1 @1; take a 1 @2"),
            six("take a 1 @1; take a 1 @0 | take a 1 @1; take a 1 @1"),
            six("take a 1 @1; take a 5 @1 | take a 1 @1; take a 4 @1"),
            two("take a 1 @1; rollback; take a 2 @1 | take a 1 @1; commit; take a 1 @1")
                .through_sql(),
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
        // Rows come and go after they are listed and before they are locked.
        two("reset a @1 | reset_all @1; commit; take a 1 @1; commit; reset_all @1"),
        two("take a 1 @0 | take a 1 @1").crashing(),
        two("prune @1 | take a 1 @1; commit; take a 1 @1"),
        two("define 0; commit; take a 1 @defined | take a 1 @defined; commit; take a 1 @defined"),
        two("take a 2 @1 | take a 1 @1; rollback; take a 1 @1").crashing(),
        two("take a 1 @1 | take a 1 @1 | take a 1 @1"),
        two("part a 3 @1 | part a 3 @1"),
        two("take a 1 @1; part a 3 @1 | part a 1 @1"),
        two("part a 3 @1 | take a 1 @1; rollback; take a 1 @1"),
        one("part a 3 @1 | part a 1 @0"),
        of_bucket(4, "part a 3 @1 | credit a 1 @1; commit; part a 9 @1").shards(0, &[1.0, 0.0]),
        of_bucket(4, "part a 3 @1 | credit a 1 @1; commit; take a 1 @1").shards(0, &[2.0, 0.0]),
    ]
}

/// Reservations, which go into the debt of all shards.
fn reservations() -> Vec<Scenario> {
    let limits = [1, 2].map(|shards| bucket(2, shards).replace('}', r#", "maxReserved": 2}"#));
    let limits = limits.each_ref().map(String::as_str);
    let of = |text: &str| {
        let name = format!("{text} (reserved)");
        Scenario { name, debt: 2.0, ..Scenario::new(text, &limits) }.shards(0, &[1.0, 1.0])
    };
    vec![
        of("reserve a 3 @1 | take a 1 @1"),
        of("reserve a 4 @1; rollback | reserve a 3 @1"),
        of("reserve a 3 @1; commit; take a 1 @1 | reserve a 1 @1"),
        of("reserve a 3 @0 | take a 1 @1"),
        of("reserve a 3 @1 | take a 1 @1").through_sql(),
    ]
}

/// Buckets that refill one token a second, while the clock moves.
fn clocks(long: bool) -> Vec<Scenario> {
    let of = |text: &str| {
        let limits = [1, 2, 3].map(|shards| a_second(2, shards));
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        let name = format!("{text} (clock)");
        Scenario { name, ..Scenario::new(text, &limits) }
    };
    let uneven = |text: &str| of(text).shards(0, &[0.0, 1.0]);
    let mut all = vec![
        uneven("take a 2 @1 | take a 1 @1").clock(&[SECOND]),
        uneven("take a 1 @1; rollback | take a 1 @1").clock(&[SECOND]),
        uneven("take a 1 @0 | take a 1 @1").clock(&[SECOND]),
        uneven("take a 1 @1 | credit a 1 @1").clock(&[SECOND]),
        uneven("part a 3 @1 | part a 1 @1").clock(&[2 * SECOND]),
        uneven("reset a @1 | take a 1 @1").clock(&[SECOND]),
        uneven("prune @1 | take a 1 @1").clock(&[2 * SECOND]),
        of("take a 2 @1 | take a 1 @1; rollback").shards(0, &[1.0, 1.0]).clock(&[SECOND]),
    ];
    if long {
        all.push(of("take a 2 @1 | take a 1 @1").clock(&[SECOND]));
    }
    all
}

/// Definitions of other capacities, with two shards and with one.
fn capacities() -> Vec<Scenario> {
    let limits = [bucket(2, 2), bucket(4, 2), bucket(4, 1)];
    let limits = limits.each_ref().map(String::as_str);
    let of = |text: &str| Scenario::new(text, &limits);
    vec![
        of("take a 2 @0 | take a 1 @1; commit; take a 1 @0").shards(0, &[2.0, 2.0]),
        of("take a 3 @1 | take a 1 @0; rollback; take a 1 @0").shards(0, &[2.0, 2.0]),
        of("take a 1 @0 | take a 3 @2").shards(0, &[2.0, 2.0]),
        of("reset a @0; commit; take a 4 @1 | take a 1 @0").shards(0, &[1.0, 1.0]),
        of("define 1; commit; take a 3 @defined | take a 2 @defined").shards(0, &[1.0, 1.0]),
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
        two("take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1"),
        of_bucket(4, "take a 3 @1 | take a 1 @1; commit; reset a @1").shards(0, &[2.0, 2.0]),
    ];
    let mut all: Vec<Scenario> = all.into_iter().map(Scenario::through_sql).collect();
    let together = [
        two("reset_all @1 | take a 1 @1; commit; take a 1 @1"),
        six("reset_all @1 | take a 1 @2"),
        two("prune @1 | take a 1 @1; commit; take a 1 @1"),
    ];
    all.extend(together.map(Scenario::distributed));
    all
}
