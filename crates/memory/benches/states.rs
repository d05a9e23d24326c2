//! What an entry in memory costs: `cargo bench -p ratelimit-memory`.

use criterion::{Criterion, criterion_group, criterion_main};
use ratelimit_core::{Micros, config, decide};
use ratelimit_memory::states::{Entry, Head, Id, Owner, Partition, Retention, places};

/// 2027-01-01T12:00:00Z.
const NOW: Micros = Micros(1_798_804_800_000_000);
const CONFIG: &str = r#"{"kind": "token bucket", "rate": 100, "period": "1 minute"}"#;

/// A partition of 65,536 entries, 6 MB, all of one name and none of them idle.
fn states(c: &mut Criterion) {
    const ENTRIES: u64 = 1 << 16;
    let limit = config::parse(CONFIG).unwrap();
    let state = decide(&limit, &limit.initial_state(NOW, NOW), NOW, 1.0, false).state.unwrap();
    let (idle_at, half_used) = (limit.idle_at(&state, NOW, NOW), limit.is_half_used(&state));
    let retention = Retention { idle_at, half_used, now: NOW };
    let owner = Owner { id: 1, name: 0x77, fair_by_name: true };
    let (mut head, mut entries) =
        (Head::default(), vec![Entry::default(); places(ENTRIES as usize)]);
    let mut partition = Partition::new(&mut head, &mut entries);
    // As a hash spreads them: the odd number is 2^64 by the golden ratio.
    let id = |n: u64| Id { key: [n, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)], slots: 0 };
    let insert = |partition: &mut Partition, n| {
        partition.write(id(n), owner, &state, retention);
    };
    (0..ENTRIES).for_each(|n| insert(&mut partition, n));
    assert_eq!(partition.view().count(), ENTRIES);

    let mut group = c.benchmark_group("states");
    let mut n = 0;
    let mut next = || {
        n += 1;
        n
    };
    group.bench_function("hit", |b| {
        b.iter(|| partition.read(id(next() % ENTRIES)).unwrap());
    });
    group.bench_function("miss", |b| {
        b.iter(|| partition.view().read(id(ENTRIES + next())).is_none())
    });
    let mut new = ENTRIES;
    group.bench_function("insert where it is full", |b| {
        b.iter(|| {
            new += 1;
            insert(&mut partition, new);
        });
    });
    assert_eq!(partition.view().count(), ENTRIES);
}

criterion_group!(benches, states);
criterion_main!(benches);
