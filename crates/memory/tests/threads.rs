//! Threads on ordinary memory of zeros, as sessions on a segment. With fewer calls Miri runs it, too.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use ratelimit_core::kinds::{Lease, Leases, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_memory::saved::{NewKey, Outcome};
use ratelimit_memory::states::{Content, Owner, places};
use ratelimit_memory::{
    Count, PartitionReadGuard, Partitions, ReadWriteLock, SavedPartitions, SharedRankings,
    SharedTallies,
};

const THREADS: usize = 4;
/// How many calls a thread makes.
const CALLS: usize = if cfg!(miri) { 20 } else { 20_000 };
const NOW: Micros = Micros(5);

/// A lock that is free where its memory is zero: how many share it, or -1.
struct Lock(AtomicI32);

struct LockGuard<'a>(&'a Lock);

// SAFETY: a number that is not 0 keeps an exclusive hold from coming, and -1 all others; it is 0 again, or one less,
// when the hold is dropped. Acquire and Release make what was written under it seen.
unsafe impl ReadWriteLock for Lock {
    type Guard<'a> = LockGuard<'a>;

    fn shared(&self) -> LockGuard<'_> {
        self.add(1, |held| held >= 0)
    }

    fn exclusive(&self) -> LockGuard<'_> {
        self.add(-1, |held| held == 0)
    }
}

impl Lock {
    fn add(&self, number: i32, allowed: impl Fn(i32) -> bool) -> LockGuard<'_> {
        loop {
            let held = self.0.load(Relaxed);
            let (done, failed) = (Acquire, Relaxed);
            if allowed(held)
                && self.0.compare_exchange_weak(held, held + number, done, failed).is_ok()
            {
                return LockGuard(self);
            }
            spin_loop();
            thread::yield_now();
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        let lock = &self.0.0;
        let _ =
            lock.fetch_update(Release, Relaxed, |held| Some(if held < 0 { 0 } else { held - 1 }));
    }
}

/// Memory of zeros, as a new segment is.
struct Segment {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: an address; what is there is shared by the types that look at it.
unsafe impl Sync for Segment {}

impl Segment {
    fn new(size: usize) -> Segment {
        let layout = Layout::from_size_align(size, 128).unwrap();
        // SAFETY: the size is not 0.
        let address = unsafe { alloc_zeroed(layout) };
        if address.is_null() {
            handle_alloc_error(layout);
        }
        Segment { address, layout }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: allocated so; each test drops it last.
        unsafe { dealloc(self.address, self.layout) }
    }
}

/// Runs threads with their numbers, and waits for them.
fn threads(work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        let work = &work;
        (0..THREADS).for_each(|number| _ = scope.spawn(move || work(number)));
    });
}

fn key(n: usize) -> [u64; 2] {
    let n = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [n, (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)]
}

const OWNER: Owner = Owner { id: 1, name: 2, fair_by_name: true };

/// The tokens that an entry keeps.
fn value(content: Content) -> f64 {
    content.state().map_or(0.0, |state| state.value())
}

/// Each thread maps the memory again, as each process does.
fn partitions(segment: &Segment, count: usize, each: usize) -> Partitions<'_, Lock> {
    // SAFETY: the segment has these bytes, with locks that are free, and the same numbers each time.
    unsafe { Partitions::at(segment.address, count, each) }
}

#[test]
fn states_of_several_partitions_are_changed_at_once_and_read_by_others() {
    const COUNT: usize = 3;
    let each = places(8);
    let segment = Segment::new(Partitions::<Lock>::size(COUNT, each));
    // The states of partitions 0 and 1 are moved between them, so that their sum stays; 2 is counted in by all.
    threads(|thread| {
        let partitions = partitions(&segment, COUNT, each);
        for n in 0..CALLS {
            let by = if thread % 2 == 0 { 1.0 } else { -1.0 };
            let mut both = [partitions.write(0), partitions.write(1)];
            for (guard, by) in both.iter_mut().zip([by, -by]) {
                let mut partition = guard.partition();
                let before =
                    partition.touch(key(n % 8)).map_or(0.0, |entry| value(entry.content()));
                let content = Content::Tokens(Tokens { value: before + by, ts: NOW, added: None });
                partition.entry(key(n % 8), OWNER, NOW).0.set(content, None, true);
            }
            drop(both);
            let [first, second] = [partitions.read(0), partitions.read(1)];
            let sum = |guard: &PartitionReadGuard<'_, Lock>| {
                guard.view().iter().map(|entry| value(entry.content())).sum::<f64>()
            };
            assert_eq!(sum(&first) + sum(&second), 0.0);
            drop((first, second));
            let mut third = partitions.write(2);
            third.partition().entry(key(n + thread * CALLS), OWNER, NOW);
            if n % 5 == 0 {
                assert!(third.partition().remove_entry(key(n + thread * CALLS)));
            }
        }
    });
    let all = partitions(&segment, COUNT, each);
    let whole: Vec<u64> = (0..COUNT).map(|number| all.read(number).view().count()).collect();
    assert_eq!(whole[..2], [8, 8]);
    assert!((1..=8).contains(&whole[2]), "{whole:?}");
    assert_eq!(all.read(2).view().iter().count() as u64, whole[2]);
    assert_eq!(all.locks().count(), COUNT);
}

#[test]
fn every_call_is_counted_for_its_name_or_as_dropped() {
    type Counted = SharedTallies<Lock, u32>;
    let segment = Segment::new(size_of::<Counted>());
    // SAFETY: the segment has these bytes, with a lock that is free.
    let tallies = unsafe { &*segment.address.cast::<Counted>() };
    // More names than have a place, since all of them begin their search at one.
    let names: Vec<String> = (0..20).map(|n| format!("name {n}")).collect();
    threads(|thread| {
        for n in 0..CALLS {
            let name = n % names.len();
            let id = [name as u64 + 1, 3];
            let count = match n % 3 {
                0 => Count::Allowed(0.5),
                1 => Count::Denied,
                _ => Count::DeniedInDryRun,
            };
            if !tallies.count(id, thread, count) {
                tallies.enter(id, 7, names[name].as_bytes(), thread, NOW, count);
            }
            if n % 100 == 0 {
                let totals = tallies.totals(7);
                assert!(
                    totals.iter().all(|of| names.iter().any(|name| name.as_bytes() == of.name))
                );
            }
        }
    });
    let totals = tallies.totals(7);
    let calls: u64 = totals.iter().map(|of| of.allowed + of.denied + of.denied_in_dry_run).sum();
    assert_eq!(calls + tallies.dropped_calls(), (THREADS * CALLS) as u64);
    assert_eq!(
        (totals.len(), tallies.crowd([99, 3]).len(), tallies.crowd([99, 40]).len()),
        (16, 16, 0)
    );
    assert_eq!((tallies.reset(7, None, NOW), tallies.scopes()), (16, vec![7; 16]));
    // Each new name replaces one without calls since, and none that is new.
    let new = 100..116;
    new.clone().for_each(|n| tallies.enter([n, 3], 7, b"new", 0, NOW, Count::Denied));
    assert!(new.clone().all(|n| tallies.count([n, 3], 0, Count::Denied)));
    tallies.free(7);
    assert_eq!(tallies.totals(7), []);
}

#[test]
fn denials_are_counted_for_their_keys() {
    type Ranked = SharedRankings<Lock, u32>;
    let segment = Segment::new(size_of::<Ranked>());
    // SAFETY: the segment has these bytes, with locks that are free.
    let rankings = unsafe { &*segment.address.cast::<Ranked>() };
    threads(|thread| {
        let mut last = None;
        for n in 0..CALLS {
            // Half of the time the same key as all others, so that they add under a shared lock.
            let n = if n % 4 < 2 { 0 } else { thread * CALLS + n };
            let id = key(n);
            let hint = last.filter(|&(key, _)| key == id).map(|(_, number)| number);
            let number = rankings.count(id, hint, 7, b"name", n.to_string().as_bytes());
            last = Some((id, number));
            if n % 100 == 1 {
                let first = &rankings.most_denied(7, None, 1)[0];
                assert!(first.denied > first.error, "{first:?}");
            }
        }
    });
    let first = &rankings.most_denied(7, Some(b"name"), 1)[0];
    let (seen, most) = ((THREADS * CALLS / 2) as u64, first.denied);
    assert_eq!(first.key, b"0");
    assert!(most - first.error <= seen && seen <= most, "{first:?}");
    assert!(rankings.scopes().iter().all(|&scope| scope == 7));
    rankings.forget(7, None);
    assert_eq!((rankings.most_denied(7, None, 9), rankings.scopes()), (vec![], vec![]));
}

/// As [`partitions`].
fn saved_partitions(segment: &Segment, count: usize, each: usize) -> SavedPartitions<'_, Lock> {
    // SAFETY: as there.
    unsafe { SavedPartitions::at(segment.address, count, each) }
}

#[test]
fn saved_keys_are_changed_copied_and_evicted_at_once_and_each_change_is_written() {
    const COUNT: usize = 2;
    const KEYS: usize = 40;
    // No room for all of them at once, so that keys are evicted, and read again from what is written.
    let each = 24;
    let segment = Segment::new(SavedPartitions::<Lock>::size(COUNT, each));
    let partitions = || saved_partitions(&segment, COUNT, each);
    let states: Vec<Mutex<Option<State>>> = (0..KEYS).map(|_| Mutex::new(None)).collect();
    let count = |state: &Option<State>| match state {
        Some(State::Leases(leases)) => leases.ts.0,
        Some(state) => state.value() as i64,
        None => 0,
    };
    let (scope, done) = ([1, 2], AtomicI32::new(0));
    let write = || {
        for number in 0..COUNT {
            let (mut copies, mut from) = (Vec::new(), Some(0));
            while let Some(place) = from {
                let mut guard = partitions().write(number);
                from = guard.partition().copy(place, 5, scope, None, &mut copies);
            }
            for copy in copies {
                let n = (0..KEYS).find(|&n| copy.key == text(n)).unwrap();
                assert_eq!((&copy.name[..], copy.hash), (&b"name"[..], key(n)));
                *states[n].lock().unwrap() = copy.state.clone();
                partitions().write(number).partition().finish(&copy, Outcome::Written, NOW, NOW);
            }
        }
    };
    threads(|thread| {
        if thread == 0 {
            // The writer.
            while done.load(Relaxed) < THREADS as i32 - 1 {
                write();
                thread::yield_now();
            }
            return;
        }
        for call in 0..CALLS {
            let n = (call * 7 + thread) % KEYS;
            let hash = key(n);
            let number = n % COUNT;
            loop {
                let mut guard = partitions().write(number);
                let mut partition = guard.partition();
                let Some(found) = partition.read(hash, false) else {
                    let evictions = partition.head().evictions;
                    drop(guard);
                    let state = states[n].lock().unwrap().clone();
                    let mut guard = partitions().write(number);
                    let mut partition = guard.partition();
                    if partition.head().evictions == evictions {
                        let text = text(n);
                        let name = b"name";
                        let new = NewKey { hash, scope, name, key: &text, on_standby: false };
                        // Where there is no room, the writer makes some.
                        let _ = partition.load(new, state.as_ref());
                    }
                    drop(guard);
                    thread::yield_now();
                    continue;
                };
                let value = count(&found) + 1;
                let state = if n.is_multiple_of(3) {
                    let lease = Lease { id: Micros(value), expires_at: NOW };
                    State::Leases(Leases { leases: vec![lease; n % 5], ts: Micros(value) })
                } else {
                    State::Tokens(Tokens { value: value as f64, ts: NOW, added: None })
                };
                if partition.set(hash, Some(&state), 100, NOW).is_ok() {
                    break;
                }
            }
        }
        done.fetch_add(1, Relaxed);
    });
    write();
    let sum: i64 = states.iter().map(|state| count(&state.lock().unwrap())).sum();
    assert_eq!(sum, ((THREADS - 1) * CALLS) as i64);
    assert!((0..COUNT).all(|number| partitions().write(number).partition().head().unsaved == 0));
}

/// The text of a key, some of them longer than a cell.
fn text(n: usize) -> Vec<u8> {
    format!("{n} {}", "long ".repeat(n % 30)).into_bytes()
}
