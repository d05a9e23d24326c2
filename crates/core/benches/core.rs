//! What the core costs alone, without a database: `cargo bench -p ratelimit-core`, with `-- decide` only what is
//! called so. It is no test: `make bench` has the bars, and shows what a whole call costs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
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

criterion_group!(benches, decisions, parsing);
criterion_main!(benches);
