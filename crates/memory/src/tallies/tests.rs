//! Sessions that count calls, in every order.

use super::*;
use crate::lock::tests::{Lock, lock, two};

impl<L, S: Copy> SharedTallies<L, S> {
    /// The value of zeroed memory.
    pub fn new(lock: L, scope: S) -> SharedTallies<L, S> {
        let counter = || AtomicU64::new(0);
        let stripe = || Stripe { calls: std::array::from_fn(|_| counter()), tokens: counter() };
        let tally = || Tally {
            id: [counter(), counter()],
            since: AtomicI64::new(0),
            stripes: std::array::from_fn(|_| stripe()),
        };
        SharedTallies {
            dropped: counter(),
            names: Guarded::new(lock, [Name::new(scope, b""); TALLIES]),
            tallies: std::array::from_fn(|_| tally()),
        }
    }
}

/// Counts a call as a session does, with the hash of a one-letter name.
fn count(tallies: &SharedTallies<Lock, u32>, session: usize, name: u8, count: Count) {
    let id = [name.into(), 0];
    if !tallies.count(id, session, count) {
        tallies.enter(id, 7, &[name], session, Micros(5), count);
    }
}

fn calls(totals: &[Totals]) -> u64 {
    totals.iter().map(|of| of.allowed + of.denied + of.denied_in_dry_run).sum()
}

fn tallies() -> SharedTallies<Lock, u32> {
    SharedTallies::new(lock(), 0)
}

#[test]
fn two_sessions_whose_first_calls_meet_share_one_tally() {
    let sessions: [fn(&_); 2] = [
        |tallies| count(tallies, 0, b'a', Count::Denied),
        |tallies| count(tallies, 1, b'a', Count::Allowed(0.5)),
    ];
    two(tallies, sessions, |tallies| {
        let totals = Totals {
            name: b"a".to_vec(),
            allowed: 1,
            denied: 1,
            denied_in_dry_run: 0,
            tokens: 0.5,
            since: Micros(5),
        };
        assert_eq!((tallies.totals(7), tallies.dropped_calls()), (vec![totals], 0));
    });
}

#[test]
fn no_call_is_lost_or_counted_twice_while_a_name_is_replaced() {
    let make = || {
        let tallies = tallies();
        count(&tallies, 0, b'a', Count::Denied);
        (0..3).for_each(|_| count(&tallies, 0, b'b', Count::Denied));
        tallies
    };
    // Another name replaces `a`, which is called at the same time, and may then replace one itself.
    let sessions: [fn(&_); 2] = [
        |tallies| {
            count(tallies, 0, b'a', Count::Denied);
            let seen = tallies.totals(7);
            assert!(seen.len() <= 2 && calls(&seen) <= 6, "{seen:?}");
        },
        |tallies| count(tallies, 1, b'c', Count::Denied),
    ];
    two(make, sessions, |tallies| {
        let totals = tallies.totals(7);
        assert_eq!(calls(&totals) + tallies.dropped_calls(), 6, "{totals:?}");
        let b = totals.iter().find(|of| of.name == b"b");
        assert_eq!(b.map(|of| of.denied), Some(3), "a name that stayed: {totals:?}");
    });
}

#[test]
fn a_call_counts_before_a_reset_or_after_it() {
    let make = || {
        let tallies = tallies();
        count(&tallies, 0, b'a', Count::Allowed(1.0));
        tallies
    };
    let sessions: [fn(&_); 2] = [
        |tallies| count(tallies, 1, b'a', Count::Denied),
        |tallies| assert_eq!(tallies.reset(7, Some(b"a"), Micros(9)), 1),
    ];
    two(make, sessions, |tallies| {
        let totals = &tallies.totals(7)[0];
        assert_eq!((totals.allowed, totals.since), (0, Micros(9)));
        assert!(totals.denied <= 1 && tallies.dropped_calls() == 0, "{totals:?}");
    });
}

#[test]
fn a_name_that_is_freed_while_it_is_called_has_no_tally_or_a_new_one() {
    let make = || {
        let tallies = tallies();
        count(&tallies, 0, b'a', Count::Denied);
        tallies
    };
    let sessions: [fn(&_); 2] =
        [|tallies| count(tallies, 0, b'a', Count::Denied), |tallies| tallies.free(7)];
    two(make, sessions, |tallies| {
        let totals = tallies.totals(7);
        assert!(totals.len() <= 1 && totals.iter().all(|of| of.denied == 1), "{totals:?}");
        assert_eq!(tallies.dropped_calls(), 0, "a name that is removed is not replaced");
        assert!(tallies.crowd([1, 0]).is_empty());
    });
}
