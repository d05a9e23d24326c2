//! Tests concurrent sessions in every order, by loom, which also fails if one writes a value that another reads.

use std::sync::atomic::Ordering::Relaxed;

use loom::model;
use loom::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use loom::thread;
use ratelimit_core::Micros;

use crate::sync::AtomicU64;
use crate::{Count, Guarded, ReadWriteLock, SharedRankings, SharedTallies, Totals};

/// A lock made of loom's.
struct Lock(RwLock<()>);

/// The guard of a lock.
#[expect(dead_code, reason = "held until it is dropped")]
enum LockGuard<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

// SAFETY: loom's lock is one, and its guards hold it.
unsafe impl ReadWriteLock for Lock {
    type Guard<'a> = LockGuard<'a>;

    fn shared(&self) -> LockGuard<'_> {
        LockGuard::Shared(self.0.read().unwrap())
    }

    fn exclusive(&self) -> LockGuard<'_> {
        LockGuard::Exclusive(self.0.write().unwrap())
    }
}

fn lock() -> Lock {
    Lock(RwLock::new(()))
}

/// Runs two sessions at the same time on the result of `make`, and `check` after both.
///
/// Loom explores further orders from the last access to each number, and overlooks an order from an access before that.
/// So each session is the first once, and both change a number when they begin.
fn two<T: Send + Sync + 'static>(
    make: fn() -> T,
    sessions: [fn(&T); 2],
    check: impl Fn(&T) + Send + Sync + Copy + 'static,
) {
    for [one, other] in [sessions, [sessions[1], sessions[0]]] {
        model(move || {
            let shared = Arc::new((make(), AtomicU64::new(0)));
            let run = |(shared, begun): &(T, AtomicU64), session: fn(&T)| {
                begun.fetch_add(1, Relaxed);
                session(shared);
            };
            let second = shared.clone();
            let second = thread::spawn(move || run(&second, other));
            run(&shared, one);
            second.join().unwrap();
            check(&shared.0);
        });
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
fn a_guard_keeps_others_from_what_it_gives() {
    // Both also change a number without the lock, so that loom tries each order of that, too.
    type Value = (Guarded<Lock, [u64; 2]>, AtomicU64);
    let add: fn(&Value) = |(value, number)| {
        let mut value = value.write();
        value[0] += 1;
        number.fetch_add(1, Relaxed);
        value[1] += 1;
    };
    let read: fn(&Value) = |(value, number)| {
        let value = value.read();
        number.fetch_add(1, Relaxed);
        assert_eq!(value[0], value[1]);
    };
    let make = || (Guarded::new(lock(), [0, 0]), AtomicU64::new(0));
    two(make, [add, add], |(value, _)| assert_eq!(*value.read(), [2, 2]));
    two(make, [add, read], |(value, _)| assert_eq!(*value.read(), [1, 1]));
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
