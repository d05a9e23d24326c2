//! Random programs, each explored as a scenario. The same number makes the same program.

use std::sync::Arc;

use crate::scenarios::{SAVED_A_SECOND, of_bucket};
use crate::world::Scenario;

/// Random numbers from a seed: xorshift64, G. Marsaglia, "Xorshift RNGs", 2003.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

const SECOND: i64 = 1_000_000;

/// The program of a number.
pub fn scenario(number: u64) -> Arc<Scenario> {
    let numbers = &mut Numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let scenario = match numbers.below(10) {
        0 => leases(numbers),
        1 => memory(numbers),
        2 => timed(numbers),
        3 => timed_shards(numbers),
        4 => reserved(numbers),
        5 => saved(numbers),
        6 | 7 => holds(numbers),
        _ => bucket(numbers),
    };
    Arc::new(Scenario { name: format!("{number}: {}", scenario.name), ..scenario })
}

/// Two sessions, or three without shards, each with one or two transactions of a few statements. A session takes from
/// the second key only after the first, so that there is no deadlock.
fn bucket(numbers: &mut Numbers) -> Scenario {
    let capacity = 2 + 2 * numbers.below(2);
    let is_sharded = numbers.below(3) > 0;
    let sessions = 2 + u64::from(!is_sharded && numbers.below(2) == 0);
    let session = |_| session(numbers, capacity, is_sharded);
    let programs: Vec<String> = (0..sessions).map(session).collect();
    let text = programs.join(" | ");
    let scenario = of_bucket(capacity as u32, &text);
    let capacity = capacity as f64;
    let half = [capacity / 2.0; 2];
    let scenario = match numbers.below(4) {
        0 => scenario,
        1 => scenario.row(0, capacity),
        2 if is_sharded => scenario.shards(0, &half),
        _ => scenario.row(0, capacity / 2.0),
    };
    match numbers.below(8) {
        0 | 1 => scenario.through_sql(),
        2 => scenario.crashing(),
        _ => scenario,
    }
}

/// A program of sessions with one or two transactions of up to `most` of the statements; `#` becomes 1 or 2.
fn program(numbers: &mut Numbers, sessions: u64, most: u64, statements: &[&str]) -> String {
    let mut transaction = || {
        let mut all = Vec::new();
        for _ in 0..1 + numbers.below(most) {
            let statement = statements[numbers.below(statements.len() as u64) as usize];
            all.push(statement.replace('#', &(1 + numbers.below(2)).to_string()));
        }
        all.push(if numbers.below(4) == 0 { "rollback" } else { "commit" }.into());
        (all.join("; "), numbers.below(2) == 0)
    };
    let mut session = || match transaction() {
        (first, true) => format!("{first}; {}", transaction().0),
        (first, false) => first,
    };
    (0..sessions).map(|_| session()).collect::<Vec<String>>().join(" | ")
}

/// The scenario with a crash, with one of the clocks, or with neither.
fn disturbed(numbers: &mut Numbers, scenario: Scenario, clocks: &[&[i64]]) -> Scenario {
    match numbers.below(4) {
        0 => scenario.crashing(),
        1 | 2 if !clocks.is_empty() => {
            let clock = clocks[numbers.below(clocks.len() as u64) as usize];
            Scenario {
                name: format!("{} (clock {clock:?})", scenario.name),
                ..scenario.clock(clock)
            }
        }
        _ => scenario,
    }
}

/// Leases of one or two slots, in a row or in memory.
fn leases(numbers: &mut Numbers) -> Scenario {
    let statements = ["acquire a", "acquire a", "extend a", "release a", "release a", "reset a"];
    let text = program(numbers, 2, 3, &statements);
    let slots = 1 + numbers.below(2);
    let store = ["table", "memory"][numbers.below(2) as usize];
    let limit = format!(
        r#"{{"kind": "concurrency", "slots": {slots}, "ttl": "1 second", "store": "{store}"}}"#
    );
    let scenario = Scenario::new(&text, &[&limit]);
    let name = format!("{text} ({slots} slots in {store})");
    let clocks: [&[i64]; 3] = [&[SECOND], &[SECOND / 2, SECOND / 2], &[SECOND, -2 * SECOND]];
    disturbed(numbers, Scenario { name, ..scenario }, &clocks)
}

/// A bucket in memory, of two keys.
fn memory(numbers: &mut Numbers) -> Scenario {
    let statements = [
        "take a #",
        "take a #",
        "take b #",
        "all a 1, b #",
        "all b #, a 1",
        "check a #",
        "credit a #",
        "reset a",
        "reset_all",
    ];
    let sessions = 2 + numbers.below(2);
    let text = program(numbers, sessions, 3, &statements);
    let limit = r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 2, "store": "memory"}"#;
    let scenario = Scenario::new(&text, &[limit]);
    let room = u8::from(numbers.below(3) == 0);
    let name = format!("{text} (memory, room {room})");
    // An evicted idle entry would be in use again after the clock steps back, and for a call that has read the
    // clock before.
    let clocks: &[&[i64]] = &[&[SECOND], &[SECOND, -2 * SECOND]];
    let clocks = if room > 0 { &[] } else { clocks };
    disturbed(numbers, Scenario { name, room, ..scenario }, clocks)
}

/// A limit in a row, of any kind, while the clock moves.
fn timed(numbers: &mut Numbers) -> Scenario {
    // Nothing is pruned: it would not be idle after the clock steps back.
    let statements = ["take a #", "take a #", "take a #", "check a #", "reset a", "savepoint"];
    let text = program(numbers, 2, 3, &statements);
    let kind = ["token bucket", "fixed window", "sliding log", "sliding window"]
        [numbers.below(4) as usize];
    let limit = format!(r#"{{"kind": "{kind}", "rate": 2, "period": "1 second"}}"#);
    let scenario = Scenario::new(&text, &[&limit]);
    let name = format!("{text} ({kind})");
    let clocks: [&[i64]; 3] = [&[SECOND], &[SECOND / 2, SECOND], &[SECOND, -2 * SECOND]];
    let scenario = disturbed(numbers, Scenario { name, ..scenario }, &clocks);
    if numbers.below(5) == 0 { scenario.through_sql() } else { scenario }
}

/// A bucket with one, two or three shards, while the clock runs.
fn timed_shards(numbers: &mut Numbers) -> Scenario {
    let statements = ["take a #", "take a #", "take a #", "check a #", "reset a", "prune"];
    let limits = [1, 2, 3].map(|shards| {
        format!(
            r#"{{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 2, "shards": {shards}}}"#
        )
    });
    let program = |numbers: &mut Numbers| {
        let at = ["@1", "@1", "@0", "@2"][numbers.below(4) as usize];
        let statements = statements.map(|statement| format!("{statement} {at}"));
        let statements = statements.each_ref().map(String::as_str);
        program(numbers, 1, 2, &statements)
    };
    let text = format!("{} | {}", program(numbers), program(numbers));
    let limits = limits.each_ref().map(String::as_str);
    let scenario = Scenario::new(&text, &limits);
    let scenario = match numbers.below(3) {
        0 => scenario,
        1 => scenario.shards(0, &[0.0, 1.0]),
        _ => scenario.shards(0, &[1.0, 1.0]),
    };
    let name = format!("{text} (clock)");
    Scenario { name, ..scenario }.clock(&[SECOND])
}

/// A bucket with reservations, in one row or with shards.
fn reserved(numbers: &mut Numbers) -> Scenario {
    let statements = ["take a #", "reserve a #", "reserve a 3", "check a #", "reset a"];
    let shards = 1 + numbers.below(2);
    let most = r#""capacity": 2, "maxReserved": 2"#;
    let limit = format!(
        r#"{{"kind": "token bucket", "rate": 1, "period": "1000 days", {most}, "shards": {shards}}}"#
    );
    let text = program(numbers, 2, 2, &statements);
    let scenario = Scenario::new(&text, &[&limit]);
    let name = format!("{text} (reserved, {shards} shards)");
    let scenario = disturbed(numbers, Scenario { name, debt: 2.0, ..scenario }, &[]);
    if numbers.below(5) == 0 { scenario.through_sql() } else { scenario }
}

/// A bucket in memory that is saved, of two keys.
fn saved(numbers: &mut Numbers) -> Scenario {
    let room = 1 + u8::from(numbers.below(3) > 0);
    let statements = [
        "take a #",
        "take a #",
        "take b #",
        "check a #",
        "credit a #",
        "reset a",
        "reset_all",
        "all a 1, b #",
        "all b #, a 1",
    ];
    // Two keys at once don't fit if there is room for one.
    let statements = if room == 1 { &statements[..7] } else { &statements[..] };
    let turns =
        ["save", "save; commit; save", "save_fails; commit; save", "save_dies; commit; save"];
    let saver = turns[numbers.below(4) as usize];
    let text = format!("{} | {saver}", program(numbers, 2, 2, statements));
    let scenario = Scenario::new(&text, &[SAVED_A_SECOND]);
    let name = format!("{text} (saved, room {room})");
    let scenario = match numbers.below(4) {
        0 => scenario.stopping(),
        _ => disturbed(numbers, scenario, &[&[SECOND]]),
    };
    Scenario { name, room, ..scenario }
}

/// Holds of a bucket or a window, which expire.
fn holds(numbers: &mut Numbers) -> Scenario {
    let statements = [
        "hold a #",
        "hold a # :x ~1",
        "hold a # :x ~2",
        "hold a 3 :y ~1 >1",
        "hold a # :z ~1 charge",
        "settle :x #",
        "settle :x 0",
        "settle :y",
        "settle :z 1",
        "settle 0",
        "take a #",
        "check a #",
        "prune",
        "reset a",
    ];
    let text = program(numbers, 2, 2, &statements);
    let kind = numbers.below(3) as usize;
    let limit = [
        r#"{"kind": "token bucket", "rate": 1, "period": "1000 days", "capacity": 3}"#,
        r#"{"kind": "token bucket", "rate": 1, "period": "1 second", "capacity": 3}"#,
        r#"{"kind": "fixed window", "rate": 3, "period": "1 second", "start": 0}"#,
    ][kind];
    let scenario = Scenario::new(&text, &[limit]);
    let name = format!("{text} ({})", ["bucket", "bucket of seconds", "window"][kind]);
    let clocks: [&[i64]; 3] = [&[SECOND], &[SECOND / 2, SECOND], &[SECOND, SECOND]];
    let scenario = disturbed(numbers, Scenario { name, ..scenario }, &clocks);
    match numbers.below(5) {
        0 => scenario.through_sql(),
        1 => scenario.dying(),
        _ => scenario,
    }
}

fn session(numbers: &mut Numbers, capacity: u64, is_sharded: bool) -> String {
    let transactions =
        (0..1 + numbers.below(2)).map(|_| transaction(numbers, capacity, is_sharded));
    transactions.collect::<Vec<String>>().join("; ")
}

fn transaction(numbers: &mut Numbers, capacity: u64, is_sharded: bool) -> String {
    let definition = if is_sharded { numbers.below(3) } else { 0 };
    let at = if is_sharded { format!(" @{definition}") } else { String::new() };
    let (mut statements, mut has_savepoint, mut has_rows) = (Vec::new(), false, false);
    for _ in 0..1 + numbers.below(3) {
        let count = 1 + numbers.below(2);
        statements.push(match numbers.below(12) {
            0..=4 => format!("take a {}{at}", 1 + numbers.below(capacity)),
            5 if !has_rows => format!("reset a{at}"),
            6 if !has_savepoint => "savepoint".into(),
            6 | 7 if has_savepoint => "rollback_to".into(),
            7 if !has_rows => format!("all b 1{at}, a {count}{at}"),
            8 => format!("check a {count}{at}"),
            9 if !has_rows => format!("credit a {count}{at}"),
            10 if !has_rows => format!("prune{at}"),
            _ => format!("take a 1{at}"),
        });
        has_savepoint |= statements.last().is_some_and(|last| last == "savepoint");
        has_rows |= statements.last().is_some_and(|last| last != "savepoint");
    }
    if numbers.below(6) == 0 {
        statements.push(format!("take b {}{at}", 1 + numbers.below(2)));
    }
    statements.push(if numbers.below(4) == 0 { "rollback" } else { "commit" }.into());
    statements.join("; ")
}
