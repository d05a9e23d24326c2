//! A hash table of states with bounded room: when it is full, what is full again first goes.
//!
//! Owns how entries are found, made and dropped. A [`Partition`] borrows its memory from the caller, who
//! may share it between processes: it has no pointers, memory of zeros is an empty one, and every content
//! is valid. The caller locks a partition for as long as it holds one, and spreads keys over several.
//!
//! An entry stands at the place that its key gives it, or at the first free one after that (linear
//! probing, [Knuth, The Art of Computer Programming 3, 6.4]): a look-up is most often one miss of the
//! processor's cache. A third of the places stays empty, so that the way is short.
//!
//! Dropping a state that is not idle gives its key back what it had taken, so the one that is
//! [idle](crate::Limit::idle_at) first is dropped, out of [`SAMPLE`] that are drawn at random, as Redis
//! does with `volatile-ttl`. A key that is used much is idle late, and survives a flood of others.
//!
//! ```
//! use ratelimit_core::table::{Entry, Head, Partition, places};
//! use ratelimit_core::{Micros, config, decide};
//!
//! let limit = config::parse(r#"{"kind": "token bucket", "rate": 5, "period": "1 minute"}"#)?;
//! let (mut head, mut entries) = (Head::default(), vec![Entry::default(); places(50)]);
//! let mut partition = Partition::new(&mut head, &mut entries);
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
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

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
    /// 0: the place is free.
    taken: u64,
}

/// What a partition knows of itself.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Head {
    random: u64,
    /// How many places are taken.
    taken: u64,
}

/// How many places there must be for so many entries.
pub const fn places(entries: usize) -> usize {
    entries + entries.div_ceil(2)
}

/// The place at which the search for a key begins, of so many: at least one.
pub fn place(key: [u64; 2], places: usize) -> usize {
    at_random(key[1], places)
}

/// Spreads a random number over so many places: its product's high half, as [Lemire, 2019] shows.
///
/// [Lemire, 2019]: https://doi.org/10.1145/3230636
fn at_random(random: u64, places: usize) -> usize {
    ((u128::from(random) * places as u128) >> 64) as usize
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
    entries: &'a mut [Entry],
}

impl<'a> Partition<'a> {
    /// Looks at memory that is zeroed, or what an earlier partition of the same length left there. There
    /// is at least one place; two thirds of them can be taken.
    pub fn new(head: &'a mut Head, entries: &'a mut [Entry]) -> Partition<'a> {
        Partition { head, entries }
    }

    /// Finds an entry by its key: 128 bits of a hash that nobody who chooses keys can foresee.
    #[inline]
    pub fn find(&self, key: [u64; 2]) -> Option<&Entry> {
        let at = self.search(key)?;
        Some(&self.entries[at]).filter(|entry| entry.taken != 0)
    }

    /// Finds an entry, or makes one, with no state yet, where there is none: it takes the place of
    /// another if there is no room.
    #[inline]
    pub fn entry(&mut self, key: [u64; 2], now: Micros) -> (&mut Entry, Dropped) {
        let found = self.search(key).filter(|&at| self.entries[at].taken != 0);
        let (at, dropped) = match found {
            Some(at) => (at, Dropped::None),
            None => self.insert(key, now),
        };
        (&mut self.entries[at], dropped)
    }

    /// Removes an entry; false if there was none.
    pub fn remove(&mut self, key: [u64; 2]) -> bool {
        let found = self.search(key).filter(|&at| self.entries[at].taken != 0);
        found.inspect(|&at| self.release(at)).is_some()
    }

    /// Removes the entries that a test picks, and counts them.
    pub fn remove_if(&mut self, mut test: impl FnMut(&Entry) -> bool) -> u64 {
        let mut removed = 0;
        for at in 0..self.entries.len() {
            // What comes to the place of a removed entry is tested in turn.
            while self.entries[at].taken != 0 && test(&self.entries[at]) {
                self.release(at);
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
        self.entries.iter().filter(|entry| entry.taken != 0)
    }

    /// The places from one on, each once.
    fn from(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        (at..self.entries.len()).chain(0..at)
    }

    /// Finds the place of a key, or the free one where it would stand; `None` if there is neither.
    #[inline]
    fn search(&self, key: [u64; 2]) -> Option<usize> {
        self.from(place(key, self.entries.len())).find(|&at| {
            let entry = &self.entries[at];
            entry.taken == 0 || entry.key == key
        })
    }

    /// Makes an entry for a key that has none.
    #[cold]
    fn insert(&mut self, key: [u64; 2], now: Micros) -> (usize, Dropped) {
        let room = (self.entries.len() * 2 / 3).max(1) as u64;
        let dropped = if self.head.taken < room { Dropped::None } else { self.drop_one(now) };
        let at = self.search(key).unwrap_or_else(|| place(key, self.entries.len()));
        self.head.taken = self.head.taken.saturating_add(1);
        self.entries[at] = Entry { key, taken: 1, ..Entry::default() };
        (at, dropped)
    }

    /// Drops the entry that is idle first of a sample.
    fn drop_one(&mut self, now: Micros) -> Dropped {
        let mut first: Option<usize> = None;
        let mut seen = 0;
        // Most draws meet an entry: two of three places are taken.
        for _ in 0..8 * SAMPLE {
            let at = self.draw();
            let Entry { idle_at, taken, .. } = self.entries[at];
            if taken == 0 {
                continue;
            }
            if first.is_none_or(|first| idle_at < self.entries[first].idle_at) {
                first = Some(at);
            }
            seen += 1;
            if seen == SAMPLE || idle_at <= now.0 {
                break;
            }
        }
        let first = first.unwrap_or(0);
        let idle = self.entries[first].idle_at <= now.0;
        self.release(first);
        if idle { Dropped::Idle } else { Dropped::Live }
    }

    /// Frees a place. Entries after it that would no longer be found, since their search ends at a free
    /// place, move up.
    fn release(&mut self, at: usize) {
        self.head.taken = self.head.taken.saturating_sub(1);
        let places = self.entries.len();
        let mut free = at;
        for next in self.from(at).skip(1) {
            let entry = self.entries[next];
            if entry.taken == 0 {
                break;
            }
            // How far it is from where its search begins, and from the free place.
            let distance = |from: usize| (next + places - from) % places;
            if distance(place(entry.key, places)) >= distance(free) {
                self.entries[free] = entry;
                free = next;
            }
        }
        self.entries[free] = Entry::default();
    }

    /// Draws a place: SplitMix64, whose state may be zero ([Steele et al., 2014]).
    ///
    /// [Steele et al., 2014]: https://doi.org/10.1145/2714064.2660195
    fn draw(&mut self) -> usize {
        self.head.random = self.head.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = self.head.random;
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^= random >> 31;
        at_random(random, self.entries.len())
    }
}
