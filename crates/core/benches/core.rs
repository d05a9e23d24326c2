//! What the core costs alone, without a database: `cargo bench -p ratelimit-core`, with `-- decide` only what is
//! called so. It is no test: `make bench` has the bars, and shows what a whole call costs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ratelimit_core::table::{Entry, Head, Kept, Partition, Whose, places};
use ratelimit_core::{Micros, config, decide};

/// 2027-01-01T12:00:00Z.
const NOW: Micros = Micros(1_798_804_800_000_000);

/// A config of each kind and of each way to give a window, under the name that the figures have.
const CONFIGS: [(&str, &str); 6] = [
    ("token bucket", r#"{"kind": "token bucket", "rate": 100, "period": "1 minute"}"#),
    ("fixed window", r#"{"kind": "fixed window", "rate": 100, "period": "1 minute"}"#),
    (
        "calendar",
        r#"{"kind": "fixed window", "rate": 100, "period": "1 day", "timezone": "Europe/Berlin"}"#,
    ),
    ("sliding window", r#"{"kind": "sliding window", "rate": 100, "period": "1 minute"}"#),
    ("sliding log", r#"{"kind": "sliding log", "rate": 100, "period": "1 minute"}"#),
    ("concurrency", r#"{"kind": "concurrency", "slots": 100, "ttl": "1 minute"}"#),
];

/// A take from a limit of 100 of which half is used, and a denial where nothing is left, a second later each.
fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for (name, config) in CONFIGS {
        let limit = config::parse(config).unwrap();
        let later = NOW.plus(Micros::from_millis(1000.0));
        for (outcome, used) in [("allowed", 50), ("denied", 100)] {
            let mut state = limit.initial_state(NOW, NOW);
            for _ in 0..used {
                state = decide(&limit, &state, NOW, 1.0, false).state.unwrap();
            }
            let count = if outcome == "allowed" { 1.0 } else { 3.0 }; // a token bucket has 1.67 again
            assert_eq!(decide(&limit, &state, later, count, false).ok, outcome == "allowed");
            group.bench_function(format!("{name}, {outcome}"), |b| {
                b.iter(|| decide(&limit, black_box(&state), black_box(later), count, false));
            });
        }
    }
}

fn parsing(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (name, config) in CONFIGS {
        group.bench_function(name, |b| b.iter(|| config::parse(black_box(config)).unwrap()));
    }
}

/// A partition of 65,536 entries, 6 MB, all of one name and none of them idle.
fn table(c: &mut Criterion) {
    const ENTRIES: u64 = 1 << 16;
    let limit = config::parse(CONFIGS[0].1).unwrap();
    let state = decide(&limit, &limit.initial_state(NOW, NOW), NOW, 1.0, false).state.unwrap();
    let (idle_at, used) = (limit.idle_at(&state, NOW, NOW), limit.is_half_used(&state));
    let kept = Kept::of(&state).unwrap();
    let whose = Whose { owner: 1, name: 0x77, fair_by_name: true };
    let (mut head, mut entries) =
        (Head::default(), vec![Entry::default(); places(ENTRIES as usize)]);
    let mut partition = Partition::new(&mut head, &mut entries);
    // As a hash spreads them: the odd number is 2^64 by the golden ratio.
    let key = |n: u64| [n, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
    let insert = |partition: &mut Partition, n| {
        partition.entry(key(n), whose, NOW).0.set(kept, idle_at, used)
    };
    (0..ENTRIES).for_each(|n| insert(&mut partition, n));
    assert_eq!(partition.view().len(), ENTRIES);

    let mut group = c.benchmark_group("table");
    let mut n = 0;
    let mut next = || {
        n += 1;
        n
    };
    group.bench_function("hit", |b| {
        b.iter(|| partition.call(key(next() % ENTRIES)).map(|entry| entry.state()).unwrap());
    });
    group.bench_function("miss", |b| {
        b.iter(|| partition.view().find(key(ENTRIES + next())).is_none())
    });
    let mut new = ENTRIES;
    group.bench_function("insert where it is full", |b| {
        b.iter(|| {
            new += 1;
            insert(&mut partition, new);
        });
    });
    assert_eq!(partition.view().len(), ENTRIES);
}

criterion_group!(benches, decisions, parsing, table);
criterion_main!(benches);
