//! Limits in one row.

use super::{bucket, of_bucket};
use crate::world::Scenario;

/// A bucket of three tokens that refills one a second.
const A_SECOND: &str =
    r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 3}"#;
/// A window of three tokens a second.
const WINDOW: &str = r#"{"kind": "fixed window", "rate": 3, "period": "1 second"}"#;
/// Three tokens in the second before a call.
const LOG: &str = r#"{"kind": "sliding log", "rate": 3, "period": "1 second"}"#;
/// Two windows, of which the earlier counts in part.
const SLIDING: &str = r#"{"kind": "sliding window", "rate": 3, "period": "1 second"}"#;
/// A bucket with reservations.
const RESERVED: &str = r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 3, "maxReserved": 2}"#;

const SECOND: i64 = 1_000_000;
const SAVEPOINT: &str = "take a 1; savepoint; take a 2; rollback_to; take a 1";

fn fresh(text: &str) -> Scenario {
    of_bucket(3, text)
}

fn full(text: &str) -> Scenario {
    of_bucket(3, text).row(0, 3.0)
}

/// Definitions of other capacities, and of another kind.
fn capacities() -> Vec<Scenario> {
    let (small, large) = (bucket(2, 1), bucket(4, 1));
    let of = |text: &str| Scenario::new(text, &[&small, &large, WINDOW]);
    vec![
        of("define 1; commit; take a 3 @defined | take a 2 @defined; commit; take a 2 @defined"),
        of("define 1; rollback; take a 1 @defined | take a 2 @defined").row(0, 2.0),
        of("take a 3 @1; rollback; take a 2 @0 | take a 2 @0").row(0, 4.0),
        of("take a 2 @0; take a 2 @1 | check a 2 @0; take a 1 @1").row(0, 4.0),
        of("credit a 2 @1; commit; take a 4 @1 | take a 1 @0").row(0, 2.0),
        of("reset a @0; commit; take a 4 @1 | take a 3 @1; commit; check a 2 @0"),
        of("take a 2 @0; commit; take a 3 @2 | take a 2 @2; rollback; take a 1 @0"),
        of("define 1; commit; all b 1 @defined, a 2 @defined | all a 2 @defined, b 2 @defined"),
        of("take a 3 @1 | take a 2 @0; commit; take a 2 @1").row(0, 4.0).through_sql(),
    ]
}

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let mut all = takes();
    all.extend(reservations());
    all.extend(clocks());
    all.extend(capacities());
    all.extend(through_sql());
    if long {
        let bucket = bucket(3, 1);
        let four = |text: &str| Scenario::new(text, &[&bucket]);
        all.extend([
            four("take a 2 | take a 2 | take a 1 | take a 1; rollback").row(0, 3.0),
            four("take a 1 | take a 2; rollback | take a 1 | reset a"),
            Scenario::new("take a 2 | take a 2 | take a 1", &[A_SECOND])
                .row(0, 3.0)
                .clock(&[SECOND]),
        ]);
    }
    all
}

/// Calls of every kind, savepoints, blocks and crashes.
fn takes() -> Vec<Scenario> {
    let both = |text: &str| full(text).row(1, 3.0);
    vec![
        fresh("take a 2 | take a 2"),
        full("take a 2; commit; take a 1 | take a 1; commit; take a 2"),
        fresh(&format!("{SAVEPOINT} | take a 2; rollback; take a 1")),
        fresh(&format!("{SAVEPOINT} | {SAVEPOINT}")),
        full(&format!("{SAVEPOINT} | {SAVEPOINT}")),
        fresh("reset a; commit; take a 2 | take a 2; commit; take a 1"),
        fresh("take a 2; reset a; take a 3; rollback; take a 1 | take a 2; commit; take a 1"),
        fresh("take a 2 | take a 2 | take a 1"),
        full("take a 2; commit; take a 1 | take a 2; rollback; take a 1 | take a 2"),
        full("take a 2 | credit a 1; commit; take a 2 | take a 2"),
        full("take a 3; commit; check a 1 | credit a 2; rollback | take a 1"),
        of_bucket(3, "take a 2; take a 2 | reset a").row(0, 1.0),
        full("check a 1; check a 3 | take a 3; rollback; take a 1"),
        fresh("take a 2; take b 2 | take a 2; take b 2"),
        Scenario { may_deadlock: true, ..both("take a 1; take b 1 | take b 1; take a 1") },
        full("take a 1 | rename a; commit; take a 1"),
        full("reset_all | take a 2; commit; take a 2"),
        full("reset_all | take a 2; rollback | take a 2"),
        full("reset_all | take a 2; commit; take b 1").row(1, 1.0),
        both("reset_all; commit; take b 3 | take a 1; take b 2"),
        both("prune | take a 1; commit; take b 3 | take b 1"),
        full("take a 2 | prune; commit; take a 3 | take a 2"),
        full("prune | take a 1; commit; prune | take a 2; rollback"),
        fresh("take a 2 | take a 2; rollback | take a 1").crashing(),
        full("take a 2; commit; take a 1 | take a 2; rollback; take a 1").crashing(),
        full("block a; commit; take a 1 @defined | take a 1 @defined; take a 1 @defined"),
        full("block a; rollback | take a 1; check a 1"),
        fresh("part a 2 | part a 2"),
        full("part a 2; rollback; part a 2 | part a 2; commit; part a 3"),
        full("part a 2; commit; credit a 2 | part a 9 | take a 1; rollback"),
    ]
}

/// Reservations, which go into debt.
fn reservations() -> Vec<Scenario> {
    let debt = |text: &str| Scenario { debt: 2.0, ..Scenario::new(text, &[RESERVED]).row(0, 3.0) };
    vec![
        debt("reserve a 4 | take a 2; commit; reserve a 2"),
        debt("reserve a 3; reserve a 2; rollback | reserve a 4 | take a 1"),
    ]
}

/// Every kind of limit while the clock moves and steps back.
fn clocks() -> Vec<Scenario> {
    let mut all = Vec::new();
    let kinds = [("bucket", A_SECOND), ("window", WINDOW), ("log", LOG), ("two windows", SLIDING)];
    for (kind, limit) in kinds {
        let of = |text: &str| {
            let name = format!("{text} ({kind}, clock)");
            Scenario { name, ..Scenario::new(text, &[limit]) }
        };
        all.extend([
            of("take a 2 | take a 2; commit; take a 1").clock(&[SECOND, SECOND]),
            of("take a 2; rollback; take a 1 | take a 2").clock(&[SECOND, -2 * SECOND]),
            of("take a 3; commit; check a 1 | take a 1").clock(&[-SECOND, 2 * SECOND]),
        ]);
    }
    all.push(
        Scenario::new("take a 2; commit; prune | take a 2 | prune", &[A_SECOND])
            .clock(&[3 * SECOND]),
    );
    all
}

/// Rows that are locked first.
fn through_sql() -> Vec<Scenario> {
    let all = [
        fresh("take a 2 | take a 2"),
        full("take a 2; commit; take a 1 | take a 1; commit; take a 2"),
        full(&format!("{SAVEPOINT} | {SAVEPOINT}")),
        fresh("take a 2 | take a 2 | take a 1"),
        full("take a 2 | take a 2 | take a 1"),
        full("part a 2; rollback; part a 2 | part a 2; commit; part a 3"),
        full("take a 2 | credit a 1; commit; take a 2 | take a 2"),
        full("take a 1 | rename a; commit; take a 1"),
        full("reset_all | take a 2; commit; take a 2"),
        full("prune | take a 1; commit; prune | take a 2; rollback"),
        full("block a; commit; take a 1 @defined | take a 1 @defined; take a 1 @defined"),
        Scenario {
            debt: 2.0,
            ..Scenario::new("reserve a 4 | take a 2; commit; reserve a 2", &[RESERVED])
        },
        Scenario::new("take a 2; rollback; take a 1 | take a 2", &[A_SECOND])
            .clock(&[SECOND, -2 * SECOND]),
    ];
    let mut all: Vec<Scenario> = all.into_iter().map(Scenario::through_sql).collect();
    let both = |text: &str| full(text).row(1, 3.0);
    let together = [
        both("reset_all; commit; take b 3 | take a 1; take b 2"),
        full("reset_all | take a 2; commit; take b 1").row(1, 1.0),
        both("prune | take a 1; commit; take b 3 | take b 1"),
        both("prune; commit; prune | take a 2; rollback; take b 1"),
    ];
    all.extend(together.map(Scenario::distributed));
    all
}
