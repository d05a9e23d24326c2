//! A hash table of states of fixed size: when it is full, a new key evicts one that is no longer called.
//!
//! A [`Partition`] borrows its memory from the caller, which may share it between processes: it has no pointers,
//! zeroed memory is an empty partition, and any content is valid. The caller spreads keys over several partitions, and
//! locks a partition while it has one. Readers have a [`PartitionView`], of which there may be several at once.
//!
//! An entry is at the place given by its key, or at the first free one after it (linear probing, [Knuth, The Art of
//! Computer Programming 3, 6.4]): a lookup is mostly one cache miss. A third of the places stays empty, to keep the
//! probes short.
//!
//! Dropping a state that is not [idle](ratelimit_core::Limit::idle_at) gives its key back what it had taken. So of [`SAMPLE`]
//! entries the first that is idle is dropped, or else the one that was called longest ago, as Redis does with
//! `allkeys-lru`. Time is counted in new keys, and goes twice as fast for what was called once only, and for that of
//! which less than half is used. Whatever new keys are called for, one that is called again while half as many of them
//! come as there are entries stays; one that is empty outlives at least twice as many that come once and take little.
//!
//! An owner that fills the table evicts its own entries: the owner with the most entries loses one, and among its
//! names, if it distinguishes them, the name with the most. A partition counts the entries of its first [`HOLDERS`]
//! names; further names of an owner share a count with others of that owner.
//!
//! ```
//! use ratelimit_memory::states::{Entry, Head, Kept, Partition, Whose, places};
//! use ratelimit_core::{Micros, config, decide};
//!
//! let limit = config::parse(r#"{"kind": "token bucket", "rate": 5, "period": "1 minute"}"#)?;
//! let (mut head, mut entries) = (Head::default(), vec![Entry::default(); places(50)]);
//! let mut partition = Partition::new(&mut head, &mut entries);
//!
//! let (key, now, phase) = ([0x1f83, 0xd9ab], Micros(0), Micros(0)); // a hash that nobody can foresee
//! let found = partition.call(key).and_then(|entry| entry.state().state());
//! let state = found.unwrap_or_else(|| limit.initial_state(now, phase));
//! if let Some(state) = decide(&limit, &state, now, 2.0, false).state
//!     && let Some(kept) = Kept::of(&state)
//! {
//!     let idle_at = limit.idle_at(&state, now, phase);
//!     let whose = Whose { owner: 1, name: 0x77, fair_by_name: true };
//!     partition.entry(key, whose, now).0.set(kept, idle_at, limit.is_half_used(&state));
//! }
//! let found = partition.view().find(key).and_then(|entry| entry.state().state());
//! assert_eq!(found.map(|state| state.value()), Some(3.0));
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

use ratelimit_core::Micros;

mod kept;

pub use kept::Kept;

/// Of how many entries one is dropped.
pub const SAMPLE: usize = 16;
/// How many names a partition tells apart; half of them, of one owner.
pub const HOLDERS: usize = 64;

/// A state with its key, in 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    key: [u64; 2],
    /// See [`Kept`].
    words: [u64; 3],
    idle_at: i64,
    /// [`Whose::name`].
    name: u64,
    /// [`Head::born`] when its key was called last.
    called: u32,
    /// The number of its holder.
    holder: u8,
    /// Whether its key was called again: 0 or 1.
    again: u8,
    /// Whether dropping it gives its key much back: 0 or 1.
    used: u8,
    /// 0: the place is free; otherwise the tag of what is kept.
    taken: u8,
}

/// Whose an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// Who fills the room; a hash will do.
    pub owner: u32,
    /// A hash of the limit's name.
    pub name: u64,
    /// Whether the names of the owner have their fair shares of his, too: not where who brings a key chooses its name.
    pub fair_by_name: bool,
}

/// Who holds how much of a partition.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Holder {
    owner: u32,
    /// A part of the name's hash; 0 where his names are not told apart.
    name: u32,
    /// How many entries he has; 0: nobody holds anything under this number.
    entries: u32,
}

/// What a partition knows of itself.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    /// The place that is looked at next for an entry to drop.
    hand: u64,
    /// How many places are taken.
    taken: u64,
    /// How many entries were made, modulo 2^32.
    born: u32,
    holders: [Holder; HOLDERS],
}

impl Default for Head {
    fn default() -> Head {
        Head { hand: 0, taken: 0, born: 0, holders: [Holder::default(); HOLDERS] }
    }
}

/// How many places there must be for so many entries.
pub const fn places(entries: usize) -> usize {
    entries + entries.div_ceil(2)
}

/// The place at which the search for a key begins, of so many: at least one. The high half of a product spreads a
/// random number over them, as [Lemire, 2019] shows.
///
/// [Lemire, 2019]: https://doi.org/10.1145/3230636
pub fn place(key: [u64; 2], places: usize) -> usize {
    ((u128::from(key[1]) * places as u128) >> 64) as usize
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
    /// Whether it is of a limit's name.
    pub fn is_of(&self, name: u64) -> bool {
        self.name == name
    }

    /// What it keeps.
    pub fn state(&self) -> Kept {
        Kept::decode(self.taken, self.words)
    }

    /// Puts a state in, or a slot, with when it is idle (`None`: never), and whether half of the limit or more [is
    /// used](ratelimit_core::Limit::is_half_used).
    pub fn set(&mut self, kept: Kept, idle_at: Option<Micros>, half_used: bool) {
        (self.taken, self.words) = kept.encode();
        self.used = half_used.into();
        self.idle_at = idle_at.map_or(i64::MAX, |at| at.0);
    }
}

impl Head {
    /// Finds the number under which entries are held: that of the owner and name, or a free one; where the owner has
    /// half of all numbers, or none is free, one of his, or else the last, which strangers share.
    fn holder(&self, whose: Whose) -> usize {
        let name = whose.share();
        let (mut count, mut free) = (0, None);
        for (number, holder) in self.holders.iter().enumerate() {
            if holder.entries == 0 {
                free = free.or(Some(number));
            } else if holder.owner == whose.owner {
                if holder.name == name {
                    return number;
                }
                count += 1;
            }
        }
        if let Some(free) = free.filter(|_| count < HOLDERS / 2) {
            return free;
        }
        let his =
            |&(_, holder): &(usize, &Holder)| holder.entries > 0 && holder.owner == whose.owner;
        let mut his = self.holders.iter().enumerate().filter(his);
        his.nth(name as usize % count.max(1)).map_or(HOLDERS - 1, |(number, _)| number)
    }

    /// Counts a new entry.
    fn hold(&mut self, number: usize, whose: Whose) {
        let holder = &mut self.holders[number];
        if holder.entries == 0 {
            (holder.owner, holder.name) = (whose.owner, whose.share());
        }
        holder.entries = holder.entries.saturating_add(1);
    }

    /// Finds who loses an entry: who has most, of the owner who has most; the newcomer, if nobody has more.
    fn loser(&self, newcomer: usize, whose: Whose) -> usize {
        let held = || self.holders.iter().zip(0..).filter(|(holder, _)| holder.entries > 0);
        let (mut owners, mut count) = ([(0, 0); HOLDERS], 0);
        for (holder, _) in held() {
            let known = owners[..count].iter().position(|&(owner, _)| owner == holder.owner);
            let at = known.unwrap_or(count);
            count = count.max(at + 1);
            owners[at] = (holder.owner, owners[at].1 + u64::from(holder.entries));
        }
        let most = owners[..count].iter().max_by_key(|(owner, has)| (has, *owner == whose.owner));
        let owner = most.map_or(whose.owner, |(owner, _)| *owner);
        let names = held().filter(|(holder, _)| holder.owner == owner);
        let most = names.max_by_key(|(holder, number)| (holder.entries, *number == newcomer));
        most.map_or(newcomer, |(_, number)| number)
    }
}

impl Whose {
    /// The part of the name's hash by which his names are told apart.
    fn share(self) -> u32 {
        if self.fair_by_name { self.name as u32 } else { 0 }
    }
}

/// A part of a table to read, in memory of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct PartitionView<'a> {
    head: &'a Head,
    entries: &'a [Entry],
}

impl<'a> PartitionView<'a> {
    /// Looks at memory as [`Partition::new`] does, and changes nothing.
    pub fn new(head: &'a Head, entries: &'a [Entry]) -> PartitionView<'a> {
        PartitionView { head, entries }
    }

    /// Finds an entry by its key: 128 bits of a hash that nobody who chooses keys can foresee.
    #[inline]
    pub fn find(self, key: [u64; 2]) -> Option<&'a Entry> {
        search(self.entries, key).map(|at| &self.entries[at]).filter(|entry| entry.taken != 0)
    }

    /// How many entries there are.
    pub fn len(self) -> u64 {
        self.head.taken
    }

    /// How many were removed or dropped, modulo 2^32.
    pub fn gone(self) -> u32 {
        self.head.born.wrapping_sub(self.head.taken as u32)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All entries.
    pub fn iter(self) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(|entry| entry.taken != 0)
    }
}

/// The numbers of so many places from one on, each once.
fn from(at: usize, places: usize) -> impl Iterator<Item = usize> + Clone {
    (at..places).chain(0..at)
}

/// Finds the place of a key, or the free one where it would stand; `None` if there is neither.
#[inline]
fn search(entries: &[Entry], key: [u64; 2]) -> Option<usize> {
    from(place(key, entries.len()), entries.len()).find(|&at| {
        let entry = &entries[at];
        entry.taken == 0 || entry.key == key
    })
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

    /// The same to read.
    #[inline]
    pub fn view(&self) -> PartitionView<'_> {
        PartitionView { head: self.head, entries: self.entries }
    }

    /// Finds the entry of a key that is called.
    #[inline]
    pub fn call(&mut self, key: [u64; 2]) -> Option<&Entry> {
        let at = self.search(key)?;
        let entry = &mut self.entries[at];
        if entry.taken == 0 {
            return None;
        }
        // Most often nothing changes, and nothing is written.
        if entry.again == 0 || entry.called != self.head.born {
            (entry.again, entry.called) = (1, self.head.born);
        }
        Some(entry)
    }

    /// Finds an entry, or makes one, with no state yet, where there is none: it takes the place of
    /// another if there is no room.
    #[inline]
    pub fn entry(&mut self, key: [u64; 2], whose: Whose, now: Micros) -> (&mut Entry, Dropped) {
        let found = self.search(key).filter(|&at| self.entries[at].taken != 0);
        let (at, dropped) = match found {
            Some(at) => (at, Dropped::None),
            None => self.insert(key, whose, now),
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

    /// Finds the place of a key, or the free one where it would stand; `None` if there is neither.
    #[inline]
    fn search(&self, key: [u64; 2]) -> Option<usize> {
        search(self.entries, key)
    }

    /// The places from one on, each once.
    fn from(&self, at: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        from(at, self.entries.len())
    }

    /// Makes an entry for a key that has none.
    #[cold]
    fn insert(&mut self, key: [u64; 2], whose: Whose, now: Micros) -> (usize, Dropped) {
        let room = (self.entries.len() * 2 / 3).max(1) as u64;
        let mut holder = self.head.holder(whose);
        let mut dropped = Dropped::None;
        if self.head.taken >= room {
            dropped = self.drop_one(self.head.loser(holder, whose), now);
            if self.head.holders[holder].entries == 0 {
                holder = self.head.holder(whose); // it had the last entry of its name
            }
        }
        let at = self.search(key).unwrap_or_else(|| place(key, self.entries.len()));
        self.head.taken = self.head.taken.saturating_add(1);
        self.head.born = self.head.born.wrapping_add(1);
        self.head.hold(holder, whose);
        let (name, called) = (whose.name, self.head.born);
        self.entries[at] = Entry {
            key,
            name,
            called,
            holder: holder as u8,
            taken: kept::TOKENS,
            ..Entry::default()
        };
        (at, dropped)
    }

    /// Drops an entry of a holder, or one that is idle. Those next to the hand are a random sample, since keys stand at
    /// random places.
    fn drop_one(&mut self, holder: usize, now: Micros) -> Dropped {
        let hand = (self.head.hand % self.entries.len() as u64) as usize;
        let mut first = None;
        let mut seen = 0;
        for at in self.from(hand) {
            let entry = &self.entries[at];
            if entry.taken == 0 {
                continue;
            }
            if entry.idle_at <= now.0 {
                self.release(at);
                return Dropped::Idle;
            }
            if usize::from(entry.holder) != holder {
                continue;
            }
            // Of equally old ones any: all may have been called since the last new key.
            let age = u64::from(self.head.born.wrapping_sub(entry.called));
            let less = u64::from(entry.again == 0) + u64::from(entry.used == 0);
            first = first.max(Some((age << less, at)));
            seen += 1;
            if seen == SAMPLE {
                self.head.hand = at as u64 + 1;
                break;
            }
        }
        // Only a content that no partition has made has none of him.
        let any = || self.from(hand).find(|&at| self.entries[at].taken != 0);
        if let Some(at) = first.map(|(_, at)| at).or_else(any) {
            self.release(at);
        }
        Dropped::Live
    }

    /// Frees a place. Entries after it that would no longer be found, since their search ends at a free
    /// place, move up.
    fn release(&mut self, at: usize) {
        let holder = usize::from(self.entries[at].holder) % HOLDERS;
        let held = &mut self.head.holders[holder].entries;
        *held = held.saturating_sub(1);
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
}
