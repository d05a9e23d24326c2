//! The caches of definitions are bounded.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use crate::cache::definitions::{CACHE_ENTRIES, cache};

    #[pg_test]
    fn a_full_cache_evicts_the_least_recently_used_entry() {
        let mut cache = cache();
        let name = |n: usize| n.to_string().into_bytes().into_boxed_slice();
        (0..CACHE_ENTRIES.get()).for_each(|n| _ = cache.put(name(n), n));
        assert_eq!(cache.get(&name(0)), Some(&0));
        cache.put(b"one more"[..].into(), 0);
        assert_eq!(cache.len(), CACHE_ENTRIES.get());
        assert_eq!(cache.get(&name(0)), Some(&0), "used since");
        assert_eq!(cache.get(&name(1)), None, "used longest ago");
    }
}
