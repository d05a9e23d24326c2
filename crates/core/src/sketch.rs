//! The most frequent keys of a stream, counted in bounded memory.
//!
//! Owns the counters of [`Sketch`], the space-saving algorithm of [Metwally, Agrawal and El Abbadi, 2005].
//! As a [`Partition`](crate::table::Partition), it borrows its memory, empty where that is zero, from a
//! caller who locks it. What a key is called is the caller's to keep, beside the counter of that number.
//!
//! ```
//! use ratelimit_core::sketch::{Counter, Sketch};
//!
//! let (mut floor, mut counters, mut names) = (0, [Counter::default(); 2], [' '; 2]);
//! for letter in "abacaba".chars() {
//!     // Any hash will do here.
//!     let (number, is_new) = Sketch::new(&mut floor, &mut counters).count([letter as u64, 0]);
//!     if is_new {
//!         names[number] = letter;
//!     }
//! }
//! let sketch = Sketch::new(&mut floor, &mut counters);
//! let most = sketch.iter().map(|(number, counter)| (counter.count, names[number])).max();
//! assert_eq!(most, Some((4, 'a')));
//! ```
//!
//! [Metwally, Agrawal and El Abbadi, 2005]: https://doi.org/10.1007/978-3-540-30570-5_27

/// A key that is counted.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Counter {
    key: [u64; 2],
    /// How often it was seen, at most; 0: a counter that is free.
    pub count: u64,
    /// By how much that may be too many: it was seen at least `count - error` times.
    pub error: u64,
}

impl Counter {
    /// Whether it counts this key: a caller may then raise `count` by himself.
    pub fn is_of(&self, key: [u64; 2]) -> bool {
        self.key == key && self.count > 0
    }
}

/// As many counters as keys are wanted, or some more. A key that was seen more often than once in
/// `total / counters` is among them.
#[derive(Debug)]
pub struct Sketch<'a> {
    /// How often a key without a counter may have been seen, at most.
    floor: &'a mut u64,
    counters: &'a mut [Counter],
}

impl<'a> Sketch<'a> {
    /// Looks at memory that is zeroed, or what an earlier sketch of the same length left there. There is
    /// at least one counter.
    pub fn new(floor: &'a mut u64, counters: &'a mut [Counter]) -> Sketch<'a> {
        Sketch { floor, counters }
    }

    /// Counts a key, given by a hash that nobody who chooses keys can foresee. Returns the number of its
    /// counter, and whether that is new: it was free, or that of the key seen least.
    pub fn count(&mut self, key: [u64; 2]) -> (usize, bool) {
        let mut least = 0;
        for n in 0..self.counters.len() {
            let counter = &mut self.counters[n];
            if counter.is_of(key) {
                counter.count = counter.count.saturating_add(1);
                return (n, false);
            }
            if counter.count < self.counters[least].count {
                least = n;
            }
        }
        let counter = &mut self.counters[least];
        *self.floor = counter.count.max(*self.floor);
        *counter = Counter { key, count: self.floor.saturating_add(1), error: *self.floor };
        (least, true)
    }

    /// The keys that have a counter, in no order: the counter's number, and the counter.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Counter)> {
        self.counters.iter().enumerate().filter(|(_, counter)| counter.count > 0)
    }

    /// Forgets the keys whose counters a test picks by their numbers.
    pub fn remove_if(&mut self, test: impl Fn(usize) -> bool) {
        for (number, counter) in self.counters.iter_mut().enumerate() {
            if test(number) {
                *counter = Counter::default();
            }
        }
    }
}
