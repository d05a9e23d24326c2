//! Tests concurrent sessions in every order, by loom, which also fails if one writes a value that another reads.

use std::sync::atomic::Ordering::Relaxed;

use loom::model;
use loom::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use loom::thread;

use super::*;
use crate::sync::AtomicU64;

/// A lock made of loom's.
pub struct Lock(RwLock<()>);

/// The guard of a lock.
#[expect(dead_code, reason = "held until it is dropped")]
pub enum LockGuard<'a> {
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

pub fn lock() -> Lock {
    Lock(RwLock::new(()))
}

/// Runs two sessions at the same time on the result of `make`, and `check` after both.
///
/// Loom explores further orders from the last access to each number, and overlooks an order from an access before that.
/// So each session is the first once, and both change a number when they begin.
pub fn two<T: Send + Sync + 'static>(
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

impl<L, T> Guarded<L, T> {
    pub fn new(lock: L, value: T) -> Guarded<L, T> {
        Guarded { lock, value: UnsafeCell::new(value) }
    }
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
