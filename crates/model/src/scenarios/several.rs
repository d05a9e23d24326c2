//! Several limits in one call.

use super::{bucket, of_bucket};
use crate::world::Scenario;

/// A bucket of two tokens in memory.
const MEMORY: &str = r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 2, "store": "memory"}"#;

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let fresh = |text: &str| of_bucket(2, text);
    let rows = |text: &str| of_bucket(2, text).row(0, 2.0).row(1, 2.0);
    let shards = |text: &str| of_bucket(2, text).shards(0, &[1.0, 1.0]).row(1, 2.0);
    let mut all = vec![
        rows("all a 1, b 1; commit; all a 1, b 1 | all b 1, a 1; commit; all b 2, a 2"),
        fresh("all a 1, b 1 | all b 1, a 1"),
        rows("all b 2, a 2 | take b 1 | take a 1"),
        fresh("all b 2, a 2 | take b 1"),
        rows("all a 2, b 2; rollback | all b 1, a 1 | take a 2"),
        rows("all a 1, b 1; all b 1, a 1 | all b 1, a 1; all a 1, b 1"),
        rows("take a 1; all a 1, b 1 | all a 1, b 1; savepoint; all a 1, b 1; rollback_to"),
        rows("all a 2, b 1 | reset a; commit; take b 2"),
        rows("all a 1, b 1 | all b 1, a 1; rollback").crashing(),
        shards("all a 1 @1, b 1 @0 | all b 1 @0, a 2 @1"),
    ];
    let sql = rows("all a 1, b 1; commit; all a 1, b 1 | all b 1, a 1; commit; all b 2, a 2");
    all.push(sql.through_sql());
    all.push(rows("all b 2, a 2 | take b 1 | take a 1").through_sql());
    all.push(shards("all a 1 @1, b 1 @0 | all b 1 @0, a 2 @1").through_sql());
    all.extend(stores());
    if long {
        all.extend([
            shards("all a 1 @0, b 1 @0 | all b 1 @0, a 1 @1"),
            shards("take a 1 @1; all a 1 @1, b 1 @0 | take a 1 @1; all b 1 @0, a 1 @1"),
            shards("all a 2 @1, b 1 @0 | reset a @1 | take b 2 @0"),
            of_bucket(2, "all a 1 @1, b 1 @1 | all b 2 @1, a 2 @1")
                .shards(0, &[1.0, 1.0])
                .shards(1, &[1.0, 1.0]),
        ]);
    }
    all
}

/// Limits in rows and in memory: a of definitions 0 and 2, b of 1.
fn stores() -> Vec<Scenario> {
    let limits = [bucket(2, 1), MEMORY.into(), bucket(2, 2)];
    let of = |text: &str| {
        let count = if text.contains("@2") { 3 } else { 2 };
        let limits: Vec<&str> = limits[..count].iter().map(String::as_str).collect();
        let name = format!("{text} (rows and memory)");
        Scenario { name, ..Scenario::new(text, &limits) }
    };
    vec![
        of("all a 1 @0, b 1 @1; rollback; take b 1 @1 | all b 2 @1, a 1 @0").row(0, 2.0),
        of("all a 1 @0, b 1 @1 | all a 1 @0, b 2 @1"),
        of("all a 2 @0, b 1 @1 | take a 1 @0; rollback | take b 2 @1").row(0, 2.0),
        of("all a 1 @0, b 2 @1; commit; all a 1 @0, b 1 @1 | take b 1 @1").row(0, 2.0).crashing(),
        of("reset_all; commit; all a 2 @0, b 2 @1 | all a 1 @0, b 1 @1"),
        of("reset b @1; commit; all a 2 @0, b 2 @1 | all a 1 @0, b 1 @1").row(0, 2.0),
        of("all a 1 @2, b 1 @1 | all b 2 @1, a 1 @2").shards(0, &[1.0, 1.0]),
        of("all a 1 @0, b 1 @1; rollback | all b 2 @1, a 1 @0").row(0, 2.0).through_sql(),
    ]
}
