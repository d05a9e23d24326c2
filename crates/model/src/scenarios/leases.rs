//! Leases of concurrency limits, in the table and in memory.

use crate::world::Scenario;

/// A limit of two slots.
const TABLE: &str = r#"{"kind": "concurrency", "slots": 2, "ttl": "1 hour"}"#;
const MEMORY: &str = r#"{"kind": "concurrency", "slots": 2, "ttl": "1 hour", "store": "memory"}"#;
/// A limit of one.
const ONE: &str = r#"{"kind": "concurrency", "slots": 1, "ttl": "1 hour"}"#;

const HOUR: i64 = 3_600_000_000;
const LEASE: &str = "acquire a; commit; extend a; commit; release a";

/// All of them.
pub fn all(long: bool) -> Vec<Scenario> {
    let mut all = Vec::new();
    for limit in [TABLE, MEMORY] {
        let of = |text: &str| {
            let scenario = Scenario::new(text, &[limit]);
            let name = format!("{text}{}", if limit == MEMORY { " (memory)" } else { "" });
            Scenario { name, ..scenario }
        };
        all.extend([
            of(&format!("{LEASE} | {LEASE}")),
            of("acquire a; commit; extend a | acquire a | acquire a"),
            of("acquire a; commit; extend a; release a | reset a; commit; acquire a"),
            of("acquire a; commit; release a | acquire a; commit; reset_all; acquire a"),
            of("acquire a; commit; extend a; commit; release a | acquire a; commit; acquire a")
                .clock(&[HOUR]),
            of("acquire a; commit; release a | acquire a; commit; extend a")
                .clock(&[HOUR, -2 * HOUR]),
        ]);
    }
    all.push(
        Scenario::new("acquire a; commit; extend a | acquire a; commit; acquire a", &[TABLE])
            .clock(&[HOUR / 2, HOUR / 2]),
    );
    let one = |text: &str| Scenario::new(text, &[ONE]);
    all.extend([
        one("acquire a; release a; acquire a | acquire a; release a"),
        one("acquire a; rollback; acquire a | acquire a; commit; release a"),
        one("savepoint; acquire a; rollback_to; acquire a | acquire a"),
        one("acquire a; commit; release a; rollback; extend a | acquire a"),
        one("acquire a; commit; release a | acquire a").crashing(),
        one(&format!("{LEASE} | {LEASE}")).through_sql(),
        one("acquire a; commit; release a; rollback; extend a | acquire a").through_sql(),
        one("savepoint; acquire a; rollback_to; acquire a | acquire a").through_sql(),
    ]);
    if long {
        all.push(Scenario::new(&format!("{LEASE} | {LEASE} | acquire a"), &[TABLE]));
        all.push(Scenario::new(&format!("{LEASE} | {LEASE} | {LEASE}"), &[MEMORY]));
    }
    all
}
