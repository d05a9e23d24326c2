//! A sketch compared with an exact count of the same stream.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ratelimit_memory::sketch::{Counter, Sketch};

use crate::cases;

/// A stream of keys in which some are frequent; some are forgotten on the way, and counted again.
fn stream() -> impl Strategy<Value = Vec<(u8, bool)>> {
    let key = prop_oneof![3 => 0..4u8, 2 => 0..60u8, 1 => any::<u8>()];
    prop::collection::vec((key, prop::bool::weighted(0.02)), 0..400)
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn a_count_is_between_what_it_says_and_that_less_its_error(
        stream in stream(),
        forgets in any::<bool>(),
        room in 1..20usize,
    ) {
        let mut names = vec![0; room];
        let mut sketch = Sketch::new((0..room).map(|_| Counter::new()).collect::<Vec<_>>());
        let mut exact: BTreeMap<u8, u64> = BTreeMap::new();
        for &(n, forget) in &stream {
            let (number, is_new) = sketch.count([u64::from(n), 7]);
            if is_new {
                names[number] = n;
            }
            prop_assert_eq!(names[number], n);
            *exact.entry(n).or_default() += 1;
            if forget && forgets {
                sketch.remove_if(|number, _| names[number] == n);
                exact.remove(&n);
            }
        }
        let kept: BTreeMap<u8, &Counter> =
            sketch.counted().map(|(number, counter)| (names[number], counter)).collect();
        prop_assert_eq!(sketch.counted().count(), kept.len(), "a key has one counter");
        for (n, counter) in &kept {
            let seen = exact[n];
            let most = counter.count();
            prop_assert!(most - counter.error() <= seen && seen <= most, "{n}: {seen}, {counter:?}");
        }
        if forgets {
            return Ok(());
        }
        prop_assert_eq!(kept.len(), exact.len().min(room));
        let total = stream.len() as u64;
        prop_assert_eq!(kept.values().map(|counter| counter.count()).sum::<u64>(), total);
        for (n, &seen) in &exact {
            prop_assert!(seen * room as u64 <= total || kept.contains_key(n), "{n} is missing");
        }
    }
}
