//! Limits in memory that are saved to their rows.

use super::bucket;
use crate::world::Scenario;

/// A bucket of three tokens that hardly refills.
const BUCKET: &str = concat!(
    r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 3, "#,
    r#""store": "memory", "save": "1 second"}"#
);
/// A bucket of two that refills one a second.
pub const A_SECOND: &str = concat!(
    r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 2, "#,
    r#""store": "memory", "save": "1 second"}"#
);
const SLOTS: &str = r#"{"kind": "concurrency", "slots": 2, "ttl": "1 hour", "store": "memory", "save": "1 second"}"#;
const SECOND: i64 = 1_000_000;

fn of_limit(limit: &str, text: &str) -> Scenario {
    let name = format!("{text} (saved)");
    Scenario { name, ..Scenario::new(text, &[limit]) }
}

fn saved(text: &str) -> Scenario {
    of_limit(BUCKET, text)
}

/// With room for one key.
fn narrow(text: &str) -> Scenario {
    Scenario { room: 1, ..saved(text) }
}

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let mut all = turns();
    all.extend(rooms());
    all.extend(restarts());
    all.extend(others());
    if long {
        all.extend([
            saved("take a 2; commit; take a 1 | take a 1; commit; reset a | save; commit; save"),
            narrow("take a 1; commit; take a 1 | take b 1; commit; take b 1 | save; commit; save"),
            narrow("take a 1; commit; take a 1 | take b 1 | save | save"),
            saved("take a 1; commit; take b 1 | take a 2; commit; take b 2 | save; commit; save")
                .crashing(),
            saved("take a 1; commit; take b 1 | take a 2; commit; take b 2 | save; commit; save")
                .stopping(),
        ]);
    }
    all
}

/// Takes during turns of the writer, which may fail, or end before their commit.
fn turns() -> Vec<Scenario> {
    vec![
        saved("take a 1; commit; take a 2 | take a 1 | save"),
        saved("take a 1; commit; take a 1; commit; take a 1 | save; commit; save").row(0, 2.0),
        saved("take a 1; commit; take a 1 | save | save; commit; save"),
        saved("take a 1; take b 1; commit; take a 1 | save_fails; commit; save"),
        saved("take a 1; commit; take a 1 | save_dies; commit; save").row(0, 3.0),
        saved("take a 1; commit; save; commit; take a 1 | lock a; rollback").row(0, 3.0),
        saved("take a 1; commit; take a 1 | save; commit; save").through_sql(),
        saved("take a 1; commit; save | lock a; rollback").row(0, 3.0).through_sql(),
        saved("take a 1; rollback; take a 2 | credit a 1 | save"),
        saved("take a 1; commit; check a 1; check a 3 | take a 2 | save").row(0, 2.0),
    ]
}

/// Keys that are evicted for others.
fn rooms() -> Vec<Scenario> {
    let alone = |text: &str| narrow(text).without_worker();
    vec![
        narrow("take a 1; commit; take a 1 | take b 1"),
        narrow("take a 1; commit; take a 1 | take b 1 | save").without_worker(),
        narrow("take a 2; commit; save; commit; take b 1 | take a 1").without_worker(),
        alone("take a 1; commit; take a 1 | take b 1; commit; take b 1"),
        alone("take a 1; commit; save; commit; take b 1; commit; save | take b 1"),
        narrow("take a 1; commit; reset a; commit; take b 1 | check a 3"),
        // Two keys never fit: an error, and no denial.
        alone("take a 1; commit; all a 1, b 1 | all b 1, a 1"),
        alone("take a 1; commit; save; commit; all a 1, b 1"),
    ]
}

/// Crashes, stops and promotions.
fn restarts() -> Vec<Scenario> {
    vec![
        saved("take a 1; commit; take a 1 | save; commit; take a 1").crashing(),
        saved("take a 2; commit; reset a; commit; take a 1 | save; commit; save").crashing(),
        saved("take a 1; take b 1; commit; take a 1 | save_fails; commit; save").crashing(),
        saved("take a 1; commit; take a 1 | save; commit; take a 1").stopping(),
        saved("take a 1; commit; take a 1 | save_dies; commit; take b 1").stopping(),
        saved("reset a; commit; take a 1 | save; commit; take b 1").row(0, 1.0).stopping(),
        narrow("take a 1; commit; take a 1 | take b 1").stopping(),
        saved("take a 1; commit; take a 1 | replicate a 1; commit; promote")
            .row(0, 3.0)
            .on_standby(),
        saved("take a 1 | take a 2; commit; take a 1 | replicate a 2; commit; promote")
            .row(0, 3.0)
            .on_standby(),
        saved("take a 2; commit; take a 1; commit; save | promote; commit; save")
            .row(0, 3.0)
            .on_standby(),
        saved("take a 1; commit; reset a | replicate a 1; commit; promote")
            .row(0, 3.0)
            .on_standby(),
    ]
}

/// Resets, several limits in one call, leases, and clocks.
fn others() -> Vec<Scenario> {
    let limits = [bucket(2, 1), BUCKET.into()];
    let several = |text: &str| {
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        let name = format!("{text} (rows and saved)");
        Scenario { name, ..Scenario::new(text, &limits) }
    };
    vec![
        saved("reset a; commit; take a 1 | take a 1 | save").row(0, 1.0),
        narrow("reset a; commit; take b 1 | save").row(0, 1.0),
        saved("take a 1; commit; reset a | save; commit; save"),
        saved("reset_all | take a 2; take b 1 | save").row(0, 2.0),
        saved("take a 2; commit; reset_all | save; commit; take b 1").row(1, 1.0),
        saved("all a 1, b 1 | all b 2, a 1 | save"),
        narrow("all a 1 | take b 1 | save"),
        several("all a 1 @0, b 1 @1; rollback; take b 2 @1 | all a 2 @0, b 2 @1").row(0, 2.0),
        several("all a 1 @0, b 2 @1 | take b 1 @1").row(0, 2.0).crashing(),
        of_limit(SLOTS, "acquire a; commit; extend a; commit; release a | acquire a | save"),
        of_limit(SLOTS, "acquire a; commit; release a | save; commit; acquire a").crashing(),
        of_limit(A_SECOND, "take a 2; commit; take a 1 | save").clock(&[SECOND]),
        of_limit(A_SECOND, "take a 1; commit; save; commit; prune | take a 1").clock(&[2 * SECOND]),
    ]
}
