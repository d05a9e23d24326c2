//! The most frequent keys of a stream, counted in bounded memory.
//!
//! [`Sketch`] is the space-saving algorithm of [Metwally, Agrawal and El Abbadi, 2005]. Zeroed memory is an empty one.
//! The caller locks it, and stores the names of the keys, by the numbers of their counters. Several sessions may
//! [add](Sketch::add) to a key's [`Counter`] at once, and others read it: neither needs `&mut`.
//!
//! ```
//! use ratelimit_memory::sketch::{Counter, Sketch};
//!
//! let (mut sketch, mut names) = (Sketch::new([const { Counter::new() }; 2]), [' '; 2]);
//! for letter in "abacaba".chars() {
//!     // Any hash will do here.
//!     let (number, is_new) = sketch.count([letter as u64, 0]);
//!     if is_new {
//!         names[number] = letter;
//!     }
//! }
//! let most = sketch.counted().map(|(number, counter)| (counter.count(), names[number])).max();
//! assert_eq!(most, Some((4, 'a')));
//! ```
//!
//! [Metwally, Agrawal and El Abbadi, 2005]: https://doi.org/10.1007/978-3-540-30570-5_27

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The counter of a key.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counter {
    key: [u64; 2],
    /// 0: a counter that is free.
    count: AtomicU64,
    error: u64,
}

impl Counter {
    /// A free counter, the same as zeroed memory.
    pub const fn new() -> Counter {
        Counter { key: [0; 2], count: AtomicU64::new(0), error: 0 }
    }

    /// Whether it counts a key.
    pub fn counts(&self, key: [u64; 2]) -> bool {
        self.key == key && self.count() > 0
    }

    /// The maximum number of times that its key was seen.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// The maximum error of the count: the key was seen at least `count - error` times.
    pub fn error(&self) -> u64 {
        self.error
    }
}

/// A sketch: a key that was seen more than `total / counters` times has a counter.
#[derive(Debug)]
#[repr(C)]
pub struct Sketch<C> {
    /// The maximum number of times that a key without a counter may have been seen.
    floor: u64,
    counters: C,
}

impl<C: AsRef<[Counter]> + AsMut<[Counter]>> Sketch<C> {
    /// A sketch of counters that are free, at least one.
    pub fn new(counters: C) -> Sketch<C> {
        Sketch { floor: 0, counters }
    }

    /// The counters in use, in no order, with their numbers.
    pub fn counted(&self) -> impl Iterator<Item = (usize, &Counter)> {
        let all = self.counters.as_ref().iter().enumerate();
        all.filter(|(_, counter)| counter.count() > 0)
    }

    /// Counts a key, given by a hash that callers can't predict. Returns the number of its counter, and whether the key
    /// has just got it: a free one, or the counter of the key seen least.
    pub fn count(&mut self, key: [u64; 2]) -> (usize, bool) {
        let counters = self.counters.as_mut();
        let (mut least, mut fewest) = (0, u64::MAX);
        for (n, counter) in counters.iter_mut().enumerate() {
            let is_found = counter.counts(key);
            let count = counter.count.get_mut();
            if is_found {
                *count = count.saturating_add(1);
                return (n, false);
            }
            if *count < fewest {
                (least, fewest) = (n, *count);
            }
        }
        let error = fewest.max(self.floor);
        self.floor = error;
        let count = AtomicU64::new(error.saturating_add(1));
        counters[least] = Counter { key, count, error };
        (least, true)
    }

    /// Counts a key once more if the counter of this number is the key's; false if it isn't.
    pub fn add(&self, number: usize, key: [u64; 2]) -> bool {
        let counter = self.counters.as_ref().get(number).filter(|counter| counter.counts(key));
        counter.map(|counter| counter.count.fetch_add(1, Relaxed)).is_some()
    }

    /// Frees the counters that a test selects, by number.
    pub fn remove_if(&mut self, test: impl Fn(usize, &Counter) -> bool) {
        for (number, counter) in self.counters.as_mut().iter_mut().enumerate() {
            if test(number, counter) {
                *counter = Counter::default();
            }
        }
    }
}
