//! Sessions that count denials, in every order.

use super::*;
use crate::lock::tests::{Lock, lock, two};

impl<L, S: Copy> SharedRankings<L, S> {
    /// The value of zeroed memory.
    pub fn new(lock: impl Fn() -> L, scope: S) -> SharedRankings<L, S> {
        let denied = DeniedKey { scope, name: 0, key: 0, text: [0; TEXT] };
        let ranking = || Ranking {
            sketch: Sketch::new([const { Counter::new() }; KEYS]),
            denied: [denied; KEYS],
        };
        SharedRankings { rankings: std::array::from_fn(|_| Guarded::new(lock(), ranking())) }
    }
}

/// Counts a denial of a one-letter key.
fn deny(rankings: &SharedRankings<Lock, u32>, key: u8, last: Option<usize>) -> usize {
    rankings.count([0, key.into()], last, 7, b"name", &[key])
}

/// Rankings in which `a` was denied once, and has the first counter.
fn with_a() -> SharedRankings<Lock, u32> {
    let rankings = SharedRankings::new(lock, 0);
    assert_eq!(deny(&rankings, b'a', None), 0);
    rankings
}

#[test]
fn denials_that_are_added_at_once_are_all_counted() {
    let again: fn(&_) = |rankings| _ = deny(rankings, b'a', Some(0));
    let again_and_read: fn(&_) = |rankings| {
        deny(rankings, b'a', Some(0));
        let seen = rankings.most_denied(7, None, 9);
        assert!(seen.len() == 1 && (2..=3).contains(&seen[0].denied), "{seen:?}");
    };
    two(with_a, [again, again_and_read], |rankings| {
        assert_eq!(rankings.most_denied(7, Some(b"name"), 9)[0].denied, 3);
    });
}

#[test]
fn a_counter_that_becomes_another_keys_is_not_added_to_for_the_first() {
    let make = || {
        let rankings = with_a();
        (0..3).for_each(|_| _ = deny(&rankings, b'b', None));
        rankings
    };
    // `c` takes over the counter of `a`, which is added to at the same time, and may then take over one itself.
    let sessions: [fn(&_); 2] =
        [|rankings| _ = deny(rankings, b'a', Some(0)), |rankings| _ = deny(rankings, b'c', None)];
    two(make, sessions, |rankings| {
        for denied in rankings.most_denied(7, None, 9) {
            let exact = match denied.key[0] {
                b'a' => 2,
                b'b' => 3,
                _ => 1,
            };
            assert!(denied.denied - denied.error <= exact && exact <= denied.denied, "{denied:?}");
        }
    });
}
