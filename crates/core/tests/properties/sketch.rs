//! A sketch beside an exact count of the same stream.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_core::sketch::{Counter, Sketch};

use crate::cases;

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn a_count_is_between_what_it_says_and_that_less_its_error(
        stream in prop::collection::vec(prop_oneof![3 => 0..4u8, 2 => 0..60u8, 1 => any::<u8>()], 0..400),
        room in 1..20usize,
    ) {
        let mut counters = vec![Counter::<u8>::default(); room];
        let mut exact: BTreeMap<u8, u64> = BTreeMap::new();
        for &n in &stream {
            // Looked at anew, as by another process.
            Sketch::new(&mut counters).count([u64::from(n), 7], |item| *item = n);
            *exact.entry(n).or_default() += 1;
        }
        let sketch = Sketch::new(&mut counters);
        let kept: BTreeMap<u8, &Counter<u8>> =
            sketch.iter().map(|counter| (counter.item, counter)).collect();
        prop_assert_eq!(sketch.iter().count(), kept.len(), "a key has one counter");
        prop_assert_eq!(kept.len(), exact.len().min(room));
        for (n, counter) in &kept {
            let seen = exact[n];
            prop_assert!(counter.count - counter.error <= seen && seen <= counter.count, "{n}: {seen}, {counter:?}");
        }
        let total = stream.len() as u64;
        prop_assert_eq!(kept.values().map(|counter| counter.count).sum::<u64>(), total);
        for (n, &seen) in &exact {
            prop_assert!(seen * room as u64 <= total || kept.contains_key(n), "{n} is missing");
        }
    }
}

#[test]
fn a_cleared_sketch_counts_from_nothing() {
    let mut counters = vec![Counter::<u8>::default(); 2];
    let mut sketch = Sketch::new(&mut counters);
    (0..5).for_each(|n| sketch.count([n, 0], |item| *item = n as u8));
    sketch.clear();
    assert_eq!(sketch.iter().count(), 0);
    sketch.count([4, 0], |item| *item = 9);
    assert_eq!(
        sketch.iter().map(|counter| (counter.count, counter.error, counter.item)).last(),
        Some((1, 0, 9))
    );
}
