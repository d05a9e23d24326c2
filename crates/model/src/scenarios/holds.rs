//! Holds: taken, extended, settled, expired, pruned and reset.

use super::{bucket, of_bucket};
use crate::world::Scenario;

/// A bucket of three tokens that refills one a second.
const A_SECOND: &str =
    r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 3}"#;
/// A window of three tokens a second.
const WINDOW: &str = r#"{"kind": "fixed window", "rate": 3, "period": "1 second", "start": 0}"#;
/// One slot.
const SLOT: &str = r#"{"kind": "concurrency", "slots": 1, "ttl": "1 hour"}"#;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400_000_000;

fn fresh(text: &str) -> Scenario {
    of_bucket(3, text)
}

fn full(text: &str) -> Scenario {
    of_bucket(3, text).row(0, 3.0)
}

fn both(text: &str) -> Scenario {
    full(text).row(1, 3.0)
}

fn refilled(text: &str) -> Scenario {
    let scenario = Scenario::new(text, &[A_SECOND]).row(0, 3.0);
    Scenario { name: format!("{text} (bucket)"), ..scenario }
}

/// A scenario in which a key is blocked.
fn blocked(text: &str) -> Scenario {
    Scenario::new(text, &[&bucket(3, 1)]).row(0, 3.0)
}

/// The scenario with a clock, which is added to its name.
fn clock(scenario: Scenario, moves: &[i64]) -> Scenario {
    let name = format!("{} (clock)", scenario.name);
    Scenario { name, ..scenario }.clock(moves)
}

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let mut all = taken();
    all.extend(expired());
    all.extend(several());
    all.extend(through_sql());
    if long {
        all.extend(longer());
    }
    all
}

/// Holds that don't expire.
fn taken() -> Vec<Scenario> {
    vec![
        fresh("hold a 2 | hold a 2"),
        full("hold a 2; commit; settle 1 | take a 2; commit; take a 1"),
        full("hold a 2 :x; commit; settle :x 1 | settle :x 0"),
        full("hold a 2 :x; commit; settle :x 1; rollback; settle :x 0 | settle :x; rollback"),
        full("hold a 1 :x | hold a 2 :x"),
        full("hold a 1 :x; commit; hold a 2 :x | settle :x 0"),
        fresh("hold a 1 :x; commit; hold a 3 :x | hold a 2 :x; rollback; take a 1"),
        full("hold a 2; rollback; take a 1 | hold a 3 >1; commit; settle 0"),
        full("savepoint; hold a 2 :x; rollback_to; hold a 1 :x | hold a 2 :y; commit; settle :y 0"),
        // A repeat, or there is room: at no instant is it denied.
        full("savepoint; hold a 2 :x; rollback_to; hold a 1 :x | hold a 2 :x; commit; settle :x 0"),
        full("hold a 1 :x; commit; settle :x 3 | take a 1; commit; take a 1"),
        full("hold a 2 :x; commit; reset a | settle :x 0; commit; take a 2"),
        full("hold a 2 :x; commit; reset_all | settle :x 1"),
        full("hold a 2 :x; commit | reset_all"),
        full("hold a 2 :x; commit; settle :x 0 | reset a"),
        full("hold a 3 :x; commit; settle :x 2 | hold a 1; commit; take a 1").crashing(),
        full("hold a 2 :x; commit; settle :x 0 | hold a 2; commit; settle 1").dying(),
        blocked("block a; commit; take a 1 | hold a 1 :x @defined; commit; settle :x 0 @defined"),
    ]
}

/// Holds that expire.
fn expired() -> Vec<Scenario> {
    let window = |text: &str| {
        let scenario = Scenario::new(text, &[WINDOW]);
        Scenario { name: format!("{text} (window)"), ..scenario }
    };
    vec![
        clock(full("hold a 2 :x ~1; commit; settle :x 1 | take a 3"), &[SECOND]),
        clock(full("hold a 2 :x ~1; commit; take a 3 | take a 3; rollback; take a 1"), &[SECOND]),
        clock(full("hold a 2 :x ~1; commit; hold a 2 :x ~1 | take a 2"), &[SECOND]),
        clock(full("hold a 2 :x ~1 charge; commit; settle :x 1 | take a 3"), &[SECOND]),
        clock(full("hold a 1 :x ~1; hold a 1 :y ~2; commit; take a 3 | settle :y 0"), &[SECOND; 2]),
        clock(full("hold a 2 :x ~1; commit; prune | settle :x 2; commit; take a 1"), &[SECOND]),
        clock(full("hold a 2 :x ~1; commit; check a 3 | take a 1; commit; check a 2"), &[SECOND]),
        clock(full("hold a 2 :x ~1; commit; credit a 1 | reset a"), &[SECOND]),
        clock(full("hold a 2 :x ~1 charge; commit; prune | settle :x 0"), &[DAY + SECOND]),
        clock(full("hold a 2 :x ~1; commit; prune; commit; prune | settle :x 1"), &[DAY + SECOND]),
        clock(full("hold a 3 :x ~1; commit; settle :x 1 | take a 1"), &[SECOND]).dying(),
        clock(
            refilled("hold a 3 :x ~1; commit; take a 3 | settle :x 0; commit; take a 1"),
            &[2 * SECOND],
        ),
        clock(
            window("hold a 2 :x ~2; commit; settle :x 0 | take a 2; commit; take a 3"),
            &[SECOND],
        ),
        clock(window("hold a 2 :x ~2; commit; hold a 3 :x ~2; settle :x 2 | take a 2"), &[SECOND]),
        clock(window("hold a 2 :x ~1; commit; take a 3 | take a 1"), &[SECOND]),
    ]
}

/// Holds of several limits.
fn several() -> Vec<Scenario> {
    vec![
        both("hold_all a 1, b 2 :x; commit; settle_all :x 1 | hold_all b 1, a 3"),
        both("hold_all a 1, b 1 :x | hold_all b 1, a 1 :x"),
        fresh("hold_all a 2, b 2 :x; commit; settle_all :x 0 | settle_all :x 1"),
        both("hold_all a 1, b 1 :x; commit; settle_all :x 0 | all b 3, a 3; commit; all a 1, b 1"),
        both("hold a 1 :x; commit; hold b 1 :x | settle_all :x 0"),
        both("hold_all a 1, b 1 :x; commit; reset b | settle_all :x 0"),
        clock(both("hold_all a 2, b 2 :x ~1; commit; take b 2 | settle_all :x 1"), &[SECOND]),
        slots(
            "hold_all a 1 @0, b 1 @1 :x; commit; settle_all :x 0 @defined | hold_all b 1 @1, a 1 @0",
        ),
        clock(
            slots("hold_all a 1 @0, b 1 @1 :x ~1; commit; hold_all b 1 @1, a 1 @0 | take a 1 @0"),
            &[SECOND],
        ),
    ]
}

/// Tokens of key a, and the slot of key b.
fn slots(text: &str) -> Scenario {
    let limits = [bucket(3, 1), SLOT.into()];
    let scenario = Scenario::new(text, &limits.each_ref().map(String::as_str));
    Scenario { name: format!("{text} (slots)"), ..scenario }.by_key()
}

/// Rows that are locked first.
fn through_sql() -> Vec<Scenario> {
    let all = [
        fresh("hold a 2 | hold a 2"),
        full("hold a 2 :x; commit; settle :x 1 | settle :x 0"),
        full("hold a 1 :x | hold a 2 :x"),
        clock(full("hold a 2 :x ~1; commit; settle :x 1 | take a 3"), &[SECOND]),
        both("hold_all a 1, b 1 :x | hold_all b 1, a 1 :x"),
    ];
    all.into_iter().map(Scenario::through_sql).collect()
}

fn longer() -> Vec<Scenario> {
    vec![
        full("hold a 2 :x; commit; settle :x 1 | settle :x 0 | take a 2"),
        full("hold a 1 :x | hold a 2 :x | hold a 3 :x"),
        clock(full("hold a 2 :x ~1; commit; settle :x 1 | take a 3 | take a 1"), &[SECOND]),
        clock(
            full("hold a 2 :x ~1; commit; hold a 3 :x ~1; settle :x 1 | prune; commit; take a 2"),
            &[SECOND; 2],
        ),
        both("hold_all a 1, b 1 :x; commit; settle_all :x 0 | hold_all b 2, a 2 :y | all a 1, b 1"),
        clock(full("hold a 1 :x ~1; commit; hold a 3 :x ~1 | hold a 2 ~1"), &[SECOND]),
        clock(
            refilled("hold a 2 :x ~1; take a 1; commit; hold a 1 :x ~1 | take a 2"),
            &[SECOND; 2],
        ),
        clock(both("hold_all a 2, b 2 :x ~1; commit; all a 2, b 2 | settle_all :x 1"), &[SECOND]),
    ]
}
