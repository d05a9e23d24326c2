//! Limits in memory: changes count at once.

use crate::world::Scenario;

const BUCKET: &str = r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 2, "store": "memory"}"#;
const A_SECOND: &str = r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 2, "store": "memory"}"#;
const SECOND: i64 = 1_000_000;

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let of = |text: &str| {
        let name = format!("{text} (memory)");
        Scenario { name, ..Scenario::new(text, &[BUCKET]) }
    };
    let moving = |text: &str| Scenario {
        name: format!("{text} (memory)"),
        ..Scenario::new(text, &[A_SECOND])
    };
    let mut all = vec![
        of("take a 1; rollback; take a 1 | take a 2 | take a 1"),
        of("all a 1, b 1 | all b 1, a 1 | take a 1"),
        of("all a 1, b 1; commit; all a 1, b 1 | all b 2, a 1; commit; take b 1"),
        of("take a 2; commit; credit a 1 | take a 1 | check a 1"),
        of("reset a; commit; take a 2 | take a 2; commit; take a 1"),
        of("reset_all | take a 2; commit; take b 1"),
        of("part a 3 | part a 1; commit; part a 3 | credit a 1"),
        of("take a 2; take b 2; reset_all; take a 1; take b 1 | take b 1; take a 1"),
        of("all a 2, b 2; reset_all | all a 1, b 1; take a 2"),
        of("take a 2 | take a 1 | take a 1").crashing(),
        Scenario { room: 1, ..of("take a 2; commit; take a 1 | take b 1") },
        Scenario { room: 1, ..of("all a 1, b 1 | take b 1; commit; take a 1") },
        Scenario { room: 1, ..of("take a 1; take b 1; credit a 1 | check a 1; reset b") },
        // An entry comes and goes between the read and the lock.
        Scenario { room: 1, ..moving("all b 1 | take b 1; take a 1").clock(&[SECOND]) },
        moving("take a 2; commit; take a 1 | take a 1").clock(&[SECOND, SECOND]),
        moving("take a 2 | take a 1; commit; take a 1").clock(&[SECOND, -2 * SECOND]),
        moving("all a 1, b 1 | all b 2, a 1").clock(&[SECOND]),
    ];
    if long {
        all.push(of("all a 1, b 1 | all b 1, a 1 | all a 1, b 1 | take a 1"));
    }
    all
}
