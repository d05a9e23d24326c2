//! A hash table of states with bounded room: when it is full, what is full again first goes.
//!
//! Owns how entries are found, made and dropped. A [`Partition`] borrows its memory from the caller, who
//! may share it between processes: it has no pointers, memory of zeros is an empty one, and every content
//! is valid. The caller locks a partition for as long as it holds one, and spreads keys over several.
//!
//! Dropping a state that is not idle gives its key back what it had taken, so the one that is
//! [idle](crate::Limit::idle_at) first is dropped, out of [`SAMPLE`] that are drawn at random, as Redis
//! does with `volatile-ttl`. A key that is used much is idle late, and survives a flood of others.
//!
//! ```
//! use ratelimit_core::table::{Entry, Head, Partition};
//! use ratelimit_core::{Micros, config, decide};
//!
//! let limit = config::parse(r#"{"kind": "token bucket", "rate": 5, "period": "1 minute"}"#)?;
//! let (mut head, mut buckets, mut entries) = (Head::default(), [0; 64], vec![Entry::default(); 50]);
//! let mut partition = Partition::new(&mut head, &mut buckets, &mut entries);
//!
//! let (key, now, phase) = ([0x1f83, 0xd9ab], Micros(0), Micros(0)); // a hash that nobody can foresee
//! let state = partition.find(key).map_or_else(|| limit.initial_state(now, phase), |entry| entry.state());
//! if let Some(state) = decide(&limit, &state, now, 2.0, false).state {
//!     let idle_at = limit.idle_at(&state, now, phase);
//!     partition.entry(key, now).0.set(&state, idle_at);
//! }
//! assert_eq!(partition.find(key).map(|entry| entry.state().value), Some(3.0));
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```

use crate::{Micros, State};

/// How many entries of a full partition are looked at for the one to drop.
pub const SAMPLE: u32 = 16;

/// A state with its key, in 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    key: [u64; 2],
    value: f64,
    ts: i64,
    /// NaN: none.
    prior: f64,
    idle_at: i64,
    /// The caller's own; 0 in a new entry.
    pub tag: u64,
    /// The number of the next entry of the bucket, or of the free ones.
    next: Link,
    /// 1: in a bucket; 0: free.
    taken: u32,
}

/// The number of an entry, counted from 1; 0: none.
type Link = u32;

/// What a partition knows of itself.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Head {
    /// How many entries were ever used.
    used: u32,
    /// The first of those that were removed.
    free: Link,
    random: u64,
    /// How many entries are in a bucket.
    taken: u64,
}

/// What a new entry cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Nothing: there was room.
    None,
    /// An idle state, which nobody misses.
    Idle,
    /// A state that was not idle: its key is full again too early.
    Live,
}

impl Entry {
    /// The state.
    pub fn state(&self) -> State {
        let prior = Some(self.prior).filter(|prior| !prior.is_nan());
        State { value: self.value, ts: Micros(self.ts), prior, log: None }
    }

    /// Puts a state in, and when it is idle (`None`: never). A log is not kept: a sliding log has no
    /// place here.
    pub fn set(&mut self, state: &State, idle_at: Option<Micros>) {
        self.value = state.value;
        self.ts = state.ts.0;
        self.prior = state.prior.unwrap_or(f64::NAN);
        self.idle_at = idle_at.map_or(i64::MAX, |at| at.0);
    }
}

/// A part of a table, in memory of the caller's.
#[derive(Debug)]
pub struct Partition<'a> {
    head: &'a mut Head,
    buckets: &'a mut [Link],
    entries: &'a mut [Entry],
}

impl<'a> Partition<'a> {
    /// Looks at memory that is zeroed, or what an earlier partition of the same lengths left there. There
    /// are at least one bucket and one entry, and fewer than 2^32 of them.
    pub fn new(
        head: &'a mut Head,
        buckets: &'a mut [Link],
        entries: &'a mut [Entry],
    ) -> Partition<'a> {
        Partition { head, buckets, entries }
    }

    /// Finds an entry by its key: 128 bits of a hash that nobody who chooses keys can foresee.
    pub fn find(&self, key: [u64; 2]) -> Option<&Entry> {
        self.number(key).and_then(|number| self.entries.get(number))
    }

    /// Finds an entry, or makes one, with no state yet, where there is none: it takes the place of
    /// another if all are taken.
    pub fn entry(&mut self, key: [u64; 2], now: Micros) -> (&mut Entry, Dropped) {
        let (number, dropped) = match self.number(key) {
            Some(number) => (number, Dropped::None),
            None => {
                let (number, dropped) = self.room(now);
                let bucket = self.bucket(key);
                let next = std::mem::replace(&mut self.buckets[bucket], number as Link + 1);
                self.head.taken = self.head.taken.saturating_add(1);
                self.entries[number] = Entry { key, next, taken: 1, ..Entry::default() };
                (number, dropped)
            }
        };
        (&mut self.entries[number], dropped)
    }

    /// Removes an entry; false if there was none.
    pub fn remove(&mut self, key: [u64; 2]) -> bool {
        let Some(number) = self.number(key) else { return false };
        self.release(number);
        true
    }

    /// Removes the entries that a test picks, and counts them.
    pub fn remove_if(&mut self, mut test: impl FnMut(&Entry) -> bool) -> u64 {
        let mut removed = 0;
        for number in 0..self.used() {
            let entry = &self.entries[number];
            if entry.taken == 1 && test(entry) {
                self.release(number);
                removed += 1;
            }
        }
        removed
    }

    /// How many entries there are.
    pub fn len(&self) -> u64 {
        self.head.taken
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries[..self.used()].iter().filter(|entry| entry.taken == 1)
    }

    fn used(&self) -> usize {
        self.entries.len().min(self.head.used as usize)
    }

    /// Takes an entry out of its bucket, to the free ones.
    fn release(&mut self, number: usize) {
        self.unlink(number);
        let next = std::mem::replace(&mut self.head.free, number as Link + 1);
        self.entries[number] = Entry { next, ..Entry::default() };
    }

    /// The numbers from a link on. It ends also in memory that holds a circle.
    fn chain(&self, first: Link) -> impl Iterator<Item = usize> {
        let number =
            |link: Link| (link as usize).checked_sub(1).filter(|&n| n < self.entries.len());
        std::iter::successors(number(first), move |&at| number(self.entries[at].next))
            .take(self.entries.len())
    }

    fn bucket(&self, key: [u64; 2]) -> usize {
        (key[1] % self.buckets.len() as u64) as usize
    }

    fn number(&self, key: [u64; 2]) -> Option<usize> {
        self.chain(self.buckets[self.bucket(key)]).find(|&number| self.entries[number].key == key)
    }

    /// Returns the number of an entry that is in no bucket.
    fn room(&mut self, now: Micros) -> (usize, Dropped) {
        let free = self.chain(self.head.free).next();
        if let Some(number) = free {
            self.head.free = self.entries[number].next;
            return (number, Dropped::None);
        }
        if (self.head.used as usize) < self.entries.len() {
            self.head.used += 1;
            return (self.head.used as usize - 1, Dropped::None);
        }
        let mut first = self.draw();
        for _ in 1..SAMPLE {
            if self.entries[first].idle_at <= now.0 {
                break;
            }
            let other = self.draw();
            if self.entries[other].idle_at < self.entries[first].idle_at {
                first = other;
            }
        }
        let idle = self.entries[first].idle_at <= now.0;
        self.unlink(first);
        (first, if idle { Dropped::Idle } else { Dropped::Live })
    }

    /// Takes an entry out of its bucket.
    fn unlink(&mut self, number: usize) {
        self.head.taken = self.head.taken.saturating_sub(1);
        let Entry { key, next, .. } = self.entries[number];
        let bucket = self.bucket(key);
        let link = number as Link + 1;
        if self.buckets[bucket] == link {
            self.buckets[bucket] = next;
            return;
        }
        let before = self.chain(self.buckets[bucket]).find(|&at| self.entries[at].next == link);
        if let Some(before) = before {
            self.entries[before].next = next;
        }
    }

    /// Draws the number of an entry: SplitMix64, whose state may be zero ([Steele et al., 2014]).
    ///
    /// [Steele et al., 2014]: https://doi.org/10.1145/2714064.2660195
    fn draw(&mut self) -> usize {
        self.head.random = self.head.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = self.head.random;
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^= random >> 31;
        ((u128::from(random) * self.entries.len() as u128) >> 64) as usize
    }
}
