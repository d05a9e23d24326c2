//! What sessions do at the same time, in every order that there is, by loom: it also fails where one writes a value
//! that another looks at.

use std::sync::atomic::Ordering::Relaxed;

use loom::model;
use loom::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use loom::thread::{self, JoinHandle};
use ratelimit_core::Micros;

use crate::sync::AtomicU64;
use crate::{Count, Guarded, ReadWriteLock, SharedRankings, SharedTallies, Totals};

/// A lock of loom's.
struct Lock(RwLock<()>);

/// What holds it.
#[expect(dead_code, reason = "held until it is dropped")]
enum Held<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

// SAFETY: loom's lock is one, and its guards hold it.
unsafe impl ReadWriteLock for Lock {
    type Hold<'a> = Held<'a>;

    fn shared(&self) -> Held<'_> {
        Held::Shared(self.0.read().unwrap())
    }

    fn exclusive(&self) -> Held<'_> {
        Held::Exclusive(self.0.write().unwrap())
    }
}

fn lock() -> Lock {
    Lock(RwLock::new(()))
}

/// Runs a session beside the others.
fn session<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    work: impl Fn(&T) + 'static,
) -> JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || work(&shared))
}

/// Counts a call as a session does, with the hash of a name that is one letter.
fn count(tallies: &SharedTallies<Lock, u32>, session: usize, name: u8, count: Count) {
    let id = [name.into(), 0];
    if !tallies.count(id, session, count) {
        tallies.enter(id, (7, &[name]), (session, Micros(5)), count);
    }
}

fn calls(totals: &[Totals]) -> u64 {
    totals.iter().map(|of| of.allowed + of.denied + of.denied_in_dry_run).sum()
}

#[test]
fn a_guard_keeps_others_from_what_it_gives() {
    model(|| {
        // Beside the lock there is a number that all of them change, so that loom tries each order of it, too.
        let shared = Arc::new((Guarded::new(lock(), [0, 0]), AtomicU64::new(0)));
        let add = |(value, beside): &(Guarded<Lock, [u64; 2]>, AtomicU64)| {
            let mut value = value.write();
            value[0] += 1;
            beside.fetch_add(1, Relaxed);
            value[1] += 1;
        };
        let others = [session(&shared, add), session(&shared, add)];
        let value = shared.0.read();
        shared.1.fetch_add(1, Relaxed);
        assert_eq!(value[0], value[1]);
        drop(value);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*shared.0.read(), [2, 2]);
    });
}

#[test]
fn two_sessions_whose_first_calls_meet_share_one_tally() {
    model(|| {
        let tallies = Arc::new(SharedTallies::new(lock(), 0));
        let other = session(&tallies, |tallies| count(tallies, 1, b'a', Count::Allowed(0.5)));
        count(&tallies, 0, b'a', Count::Denied);
        other.join().unwrap();
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
fn no_call_is_lost_or_counted_twice_while_a_name_makes_room_for_another() {
    model(|| {
        let tallies = Arc::new(SharedTallies::new(lock(), 0));
        count(&tallies, 0, b'a', Count::Denied);
        for _ in 0..3 {
            count(&tallies, 0, b'b', Count::Denied);
        }
        // Another name takes the place of `a`, which is called at the same time, and then takes one itself.
        let other = session(&tallies, |tallies| count(tallies, 1, b'c', Count::Denied));
        count(&tallies, 0, b'a', Count::Denied);
        let seen = tallies.totals(7);
        assert!(seen.len() <= 2 && calls(&seen) <= 6, "{seen:?}");
        other.join().unwrap();
        let totals = tallies.totals(7);
        assert_eq!(calls(&totals) + tallies.dropped_calls(), 6, "{totals:?}");
        let b = totals.iter().find(|of| of.name == b"b");
        assert_eq!(b.map(|of| of.denied), Some(3), "a name that stayed: {totals:?}");
    });
}

#[test]
fn a_call_counts_before_a_reset_or_after_it() {
    model(|| {
        let tallies = Arc::new(SharedTallies::new(lock(), 0));
        count(&tallies, 0, b'a', Count::Allowed(1.0));
        let other = session(&tallies, |tallies| count(tallies, 1, b'a', Count::Denied));
        assert_eq!(tallies.reset(7, Some(b"a"), Micros(9)), 1);
        other.join().unwrap();
        let totals = &tallies.totals(7)[0];
        assert_eq!((totals.allowed, totals.since), (0, Micros(9)));
        assert!(totals.denied <= 1 && tallies.dropped_calls() == 0, "{totals:?}");
    });
}

#[test]
fn a_name_that_is_freed_while_it_is_called_has_no_tally_or_a_new_one() {
    model(|| {
        let tallies = Arc::new(SharedTallies::new(lock(), 0));
        count(&tallies, 0, b'a', Count::Denied);
        let other = session(&tallies, |tallies| tallies.free(7));
        count(&tallies, 0, b'a', Count::Denied);
        other.join().unwrap();
        let totals = tallies.totals(7);
        assert!(totals.len() <= 1 && totals.iter().all(|of| of.denied == 1), "{totals:?}");
        assert_eq!(tallies.dropped_calls(), 0, "what is freed made no room");
        assert!(tallies.crowd([1, 0]).is_empty());
    });
}

/// Counts a denial of a key that is one letter.
fn deny(rankings: &SharedRankings<Lock, u32>, key: u8, last: Option<usize>) -> usize {
    rankings.count([0, key.into()], last, 7, b"name", &[key])
}

#[test]
fn denials_that_are_added_beside_each_other_are_all_counted() {
    model(|| {
        let rankings = Arc::new(SharedRankings::new(lock, 0));
        let last = deny(&rankings, b'a', None);
        let again =
            move |rankings: &SharedRankings<Lock, u32>| _ = deny(rankings, b'a', Some(last));
        let others = [session(&rankings, again), session(&rankings, again)];
        let seen = rankings.most_denied(7, None, 9);
        assert!(seen.len() == 1 && (1..=3).contains(&seen[0].denied), "{seen:?}");
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(rankings.most_denied(7, Some(b"name"), 9)[0].denied, 3);
    });
}

#[test]
fn a_counter_that_becomes_another_keys_is_not_added_to_for_the_first() {
    model(|| {
        let rankings = Arc::new(SharedRankings::new(lock, 0));
        let last = deny(&rankings, b'a', None);
        (0..3).for_each(|_| _ = deny(&rankings, b'b', None));
        // `c` takes the counter of `a`, which adds to it at the same time, and may then take one itself.
        let other = session(&rankings, |rankings| _ = deny(rankings, b'c', None));
        deny(&rankings, b'a', Some(last));
        other.join().unwrap();
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
