//! The most frequent keys of a stream, counted in bounded memory.
//!
//! Owns the counters of [`Sketch`], the space-saving algorithm of [Metwally, Agrawal and El Abbadi, 2005].
//! As a [`Partition`](crate::table::Partition), it borrows its memory, empty where that is zero, from a
//! caller who locks it.
//!
//! ```
//! use ratelimit_core::sketch::{Counter, Sketch};
//!
//! let mut counters = [Counter::<char>::default(); 2];
//! for letter in "abacaba".chars() {
//!     // Any hash will do here.
//!     Sketch::new(&mut counters).count([letter as u64, 0], |item| *item = letter);
//! }
//! let most = Sketch::new(&mut counters).iter().map(|counter| (counter.count, counter.item)).max();
//! assert_eq!(most, Some((4, 'a')));
//! ```
//!
//! [Metwally, Agrawal and El Abbadi, 2005]: https://doi.org/10.1007/978-3-540-30570-5_27

/// A key that is counted, with what the caller wants to know of it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Counter<T> {
    key: [u64; 2],
    /// How often it was seen, at most.
    pub count: u64,
    /// By how much that may be too many: it was seen at least `count - error` times.
    pub error: u64,
    /// The caller's own.
    pub item: T,
}

/// As many counters as keys are wanted, or some more. A key that was seen more often than once in
/// `total / counters` is among them.
#[derive(Debug)]
pub struct Sketch<'a, T> {
    counters: &'a mut [Counter<T>],
}

impl<'a, T> Sketch<'a, T> {
    /// Looks at memory that is zeroed, or what an earlier sketch of the same length left there. There is
    /// at least one counter.
    pub fn new(counters: &'a mut [Counter<T>]) -> Sketch<'a, T> {
        Sketch { counters }
    }

    /// Counts a key, given by a hash that nobody who chooses keys can foresee. `name` is called where the
    /// key has no counter yet: it takes that of the key seen least, whose count becomes its error.
    pub fn count(&mut self, key: [u64; 2], name: impl FnOnce(&mut T)) {
        let mut least = 0;
        for n in 0..self.counters.len() {
            let counter = &mut self.counters[n];
            if counter.key == key && counter.count > 0 {
                counter.count = counter.count.saturating_add(1);
                return;
            }
            if counter.count < self.counters[least].count {
                least = n;
            }
        }
        let Some(counter) = self.counters.get_mut(least) else { return };
        counter.key = key;
        counter.error = counter.count;
        counter.count = counter.count.saturating_add(1);
        name(&mut counter.item);
    }

    /// The keys that have a counter, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Counter<T>> {
        self.counters.iter().filter(|counter| counter.count > 0)
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.counters.iter_mut().for_each(|counter| counter.count = 0);
    }
}
