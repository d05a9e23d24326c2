//! Random programs, each of which is explored as a scenario. The number of one makes it again.

use std::sync::Arc;

use crate::scenarios::of_bucket;
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

/// The program of this number: two sessions, or three without shards, each with one or two transactions of a few
/// statements. A session takes from the second key only after the first, so that no deadlock is to be expected.
pub fn scenario(number: u64) -> Arc<Scenario> {
    let numbers = &mut Numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
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
    Arc::new(if numbers.below(5) == 0 { scenario.through_sql() } else { scenario })
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
