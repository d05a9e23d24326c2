//! The states of limits in memory: a hash map of fixed size, which evicts a key that is no longer called for a new one.
//!
//! A [`Partition`] borrows its memory from the caller, which may share it between processes: it has no pointers,
//! zeroed memory is an empty partition, and any content is valid. The caller spreads keys over several partitions and
//! locks a partition while it uses one. Readers have a [`PartitionView`], of which there may be several at once.
//!
//! An entry is at the place given by its key, or at the first free one after it (linear probing, [Knuth, The Art of
//! Computer Programming 3, 6.4]): a lookup is mostly one cache miss. A third of the places stays empty, to keep the
//! probes short.
//!
//! Evicting a state that is not [idle](ratelimit_core::Limit::idle_at) gives its key back what it had taken. So of
//! [`SAMPLE`] entries the first idle one is evicted, or else the least recently called, as by Redis's `allkeys-lru`.
//! Age is the number of keys inserted since the last call. It doubles for a key called only once, and again for one
//! with less than half used. So a key stays if it is called at least once while new keys fill half of the entries,
//! however often the new ones are called; and an empty one outlives at least twice as many keys called once that take
//! little.
//!
//! An owner that fills the partition evicts its own entries: the owner with the most entries loses one, and among its
//! names, if it tells them apart, the name with the most. A partition counts the entries of its first [`SHARES`] names;
//! further names of an owner share a count with others of that owner.
//!
//! ```
//! use ratelimit_core::{Micros, config, decide};
//! use ratelimit_memory::states::{Entry, Head, Id, Owner, Partition, Retention, places};
//!
//! let limit = config::parse(r#"{"kind": "token bucket", "rate": 5, "period": "1 minute"}"#)?;
//! let (mut head, mut entries) = (Head::default(), vec![Entry::default(); places(50)]);
//! let mut partition = Partition::new(&mut head, &mut entries);
//!
//! let id = Id { key: [0x1f83, 0xd9ab], slots: 0 }; // a hash that nobody can foresee
//! let (now, phase) = (Micros(0), Micros(0));
//! let state = partition.read(id).unwrap_or_else(|| limit.initial_state(now, phase));
//! if let Some(state) = decide(&limit, &state, now, 2.0, false).state {
//!     let owner = Owner { id: 1, name: 0x77, fair_by_name: true };
//!     let (idle_at, half_used) = (limit.idle_at(&state, now, phase), limit.is_half_used(&state));
//!     partition.write(id, owner, &state, Retention { idle_at, half_used, now });
//! }
//! assert_eq!(partition.view().read(id).map(|state| state.value()), Some(3.0));
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```
//!
//! [Knuth, The Art of Computer Programming 3, 6.4]: https://www-cs-faculty.stanford.edu/~knuth/taocp.html

#![forbid(unsafe_code)]

use ratelimit_core::Micros;

pub(crate) mod content;
mod slots;

pub use content::Content;
pub use slots::{Evictions, Id, Retention};

/// The number of entries from which one is chosen for eviction.
pub const SAMPLE: usize = 16;
/// The number of names with entry counts in a partition; half of them for one owner.
pub const SHARES: usize = 64;

/// A state or a lease with its key, in 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    key: [u64; 2],
    /// See [`Content`].
    words: [u64; 3],
    idle_at: i64,
    /// [`Owner::name`].
    name: u64,
    /// [`Head::born`] at the last call of its key.
    called: u32,
    /// The number of its share.
    share: u8,
    /// Whether its key was called again: 0 or 1.
    again: u8,
    /// Whether half of the limit or more is used: 0 or 1.
    used: u8,
    /// 0: the place is free; otherwise the tag of the content.
    taken: u8,
}

/// The owner of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// A hash is sufficient.
    pub id: u32,
    /// A hash of the limit's name.
    pub name: u64,
    /// Whether the owner's names have fair shares, too. False if callers choose their names freely.
    pub fair_by_name: bool,
}

/// The entries of one owner and name.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Share {
    owner: u32,
    /// A part of the name's hash; 0 if the owner's names are not distinguished.
    name: u32,
    /// Their number; 0: this share is free.
    entries: u32,
}

/// The head of a partition.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    /// The place at which the search for the next eviction begins.
    hand: u64,
    /// The number of places taken.
    taken: u64,
    /// The number of entries inserted, modulo 2^32.
    born: u32,
    shares: [Share; SHARES],
}

impl Default for Head {
    fn default() -> Head {
        Head { hand: 0, taken: 0, born: 0, shares: [Share::default(); SHARES] }
    }
}

/// The number of places for a number of entries.
pub const fn places(entries: usize) -> usize {
    entries + entries.div_ceil(2)
}

/// The place, out of `places`, at which the search for a key begins. The high half of a product distributes a random
/// number over them, as [Lemire, 2019] shows.
///
/// [Lemire, 2019]: https://doi.org/10.1145/3230636
pub fn place(key: [u64; 2], places: usize) -> usize {
    ((u128::from(key[1]) * places as u128) >> 64) as usize
}

impl Entry {
    /// The state or lease in it.
    pub fn content(&self) -> Content {
        Content::decode(self.taken, self.words)
    }

    /// Stores a state or a lease, the time when it becomes idle (`None`: never), and whether half of the limit or more
    /// [is used](ratelimit_core::Limit::is_half_used).
    pub fn set(&mut self, content: Content, idle_at: Option<Micros>, half_used: bool) {
        (self.taken, self.words) = content.encode();
        self.used = half_used.into();
        self.idle_at = idle_at.map_or(i64::MAX, |at| at.0);
    }
}

impl Head {
    /// Finds the share of an owner and name, or a free one. If the owner has half of all shares, or none is free: one
    /// of the owner's, or else the last, which owners share.
    fn share(&self, owner: Owner) -> usize {
        let name = owner.name_part();
        let (mut count, mut free) = (0, None);
        for (number, share) in self.shares.iter().enumerate() {
            if share.entries == 0 {
                free = free.or(Some(number));
            } else if share.owner == owner.id {
                if share.name == name {
                    return number;
                }
                count += 1;
            }
        }
        if let Some(free) = free.filter(|_| count < SHARES / 2) {
            return free;
        }
        let is_own = |&(_, share): &(usize, &Share)| share.entries > 0 && share.owner == owner.id;
        let mut own = self.shares.iter().enumerate().filter(is_own);
        own.nth(name as usize % count.max(1)).map_or(SHARES - 1, |(number, _)| number)
    }

    /// Counts a new entry.
    fn count(&mut self, number: usize, owner: Owner) {
        let share = &mut self.shares[number];
        if share.entries == 0 {
            (share.owner, share.name) = (owner.id, owner.name_part());
        }
        share.entries = share.entries.saturating_add(1);
    }

    /// Finds the share that loses an entry: the largest share of the owner with the most entries; the new entry's if
    /// none is larger.
    fn loser(&self, newcomer: usize, owner: Owner) -> usize {
        let shares = || self.shares.iter().zip(0..).filter(|(share, _)| share.entries > 0);
        let (mut owners, mut count) = ([(0, 0); SHARES], 0);
        for (share, _) in shares() {
            let known = owners[..count].iter().position(|&(owner, _)| owner == share.owner);
            let at = known.unwrap_or(count);
            count = count.max(at + 1);
            owners[at] = (share.owner, owners[at].1 + u64::from(share.entries));
        }
        let most = owners[..count].iter().max_by_key(|(id, has)| (has, *id == owner.id));
        let largest = most.map_or(owner.id, |(owner, _)| *owner);
        let names = shares().filter(|(share, _)| share.owner == largest);
        let most = names.max_by_key(|(share, number)| (share.entries, *number == newcomer));
        most.map_or(newcomer, |(_, number)| number)
    }
}

impl Owner {
    /// The part of the name's hash that distinguishes the owner's names.
    fn name_part(self) -> u32 {
        if self.fair_by_name { self.name as u32 } else { 0 }
    }
}

/// A partition to read.
#[derive(Clone, Copy, Debug)]
pub struct PartitionView<'a> {
    head: &'a Head,
    entries: &'a [Entry],
}

impl<'a> PartitionView<'a> {
    /// Views memory, as [`Partition::new`].
    pub fn new(head: &'a Head, entries: &'a [Entry]) -> PartitionView<'a> {
        PartitionView { head, entries }
    }

    /// Finds an entry by its key: 128 bits of a hash that callers can't predict.
    #[inline]
    pub fn find(self, key: [u64; 2]) -> Option<&'a Entry> {
        find(self.entries, key).map(|at| &self.entries[at])
    }

    /// The number of entries.
    pub fn count(self) -> u64 {
        self.head.taken
    }

    /// The number of entries removed or evicted so far, modulo 2^32.
    pub fn gone(self) -> u32 {
        self.head.born.wrapping_sub(self.head.taken as u32)
    }

    /// All entries.
    pub fn iter(self) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(|entry| entry.taken != 0)
    }
}

/// The places of a partition, starting at one, each once.
fn from(at: usize, places: usize) -> impl Iterator<Item = usize> + Clone {
    (at..places).chain(0..at)
}

/// Finds the place of a key, or the free one where it would be inserted; `None` if there is neither.
#[inline]
fn search(entries: &[Entry], key: [u64; 2]) -> Option<usize> {
    from(place(key, entries.len()), entries.len()).find(|&at| {
        let entry = &entries[at];
        entry.taken == 0 || entry.key == key
    })
}

/// Finds the place of a key.
#[inline]
fn find(entries: &[Entry], key: [u64; 2]) -> Option<usize> {
    search(entries, key).filter(|&at| entries[at].taken != 0)
}

/// A partition to read and write.
#[derive(Debug)]
pub struct Partition<'a> {
    head: &'a mut Head,
    entries: &'a mut [Entry],
}

impl<'a> Partition<'a> {
    /// Views memory that is zeroed, or left by an earlier partition of the same length. There is at least one place;
    /// two thirds of the places can be taken.
    pub fn new(head: &'a mut Head, entries: &'a mut [Entry]) -> Partition<'a> {
        Partition { head, entries }
    }

    /// A view of the partition, to read it.
    #[inline]
    pub fn view(&self) -> PartitionView<'_> {
        PartitionView { head: self.head, entries: self.entries }
    }

    /// Finds the entry of a key that is called, and marks it as used.
    #[inline]
    pub fn touch(&mut self, key: [u64; 2]) -> Option<&Entry> {
        let at = find(self.entries, key)?;
        let entry = &mut self.entries[at];
        // Usually nothing changes, and nothing is written.
        if entry.again == 0 || entry.called != self.head.born {
            (entry.again, entry.called) = (1, self.head.born);
        }
        Some(entry)
    }

    /// Finds an entry or inserts one, without a state yet, and evicts another if there is no capacity left.
    #[inline]
    pub fn entry(&mut self, key: [u64; 2], owner: Owner, now: Micros) -> (&mut Entry, Evictions) {
        let (at, evictions) = match find(self.entries, key) {
            Some(at) => (at, Evictions::default()),
            None => self.insert(key, owner, now),
        };
        (&mut self.entries[at], evictions)
    }

    /// Removes an entry; false if there was none.
    pub fn remove_entry(&mut self, key: [u64; 2]) -> bool {
        find(self.entries, key).map(|at| self.release(at)).is_some()
    }

    /// Removes the entries of a name; returns the number of keys that had any.
    pub fn remove_name(&mut self, name: u64) -> u64 {
        let mut keys = 0;
        for at in 0..self.entries.len() {
            // The entry that moves to the place of a removed one is checked next.
            while let entry = &self.entries[at]
                && entry.taken != 0
                && entry.name == name
            {
                keys +=
                    u64::from(!matches!(entry.content(), Content::Slot { is_first: false, .. }));
                self.release(at);
            }
        }
        keys
    }

    /// Inserts an entry for a key without one.
    #[cold]
    fn insert(&mut self, key: [u64; 2], owner: Owner, now: Micros) -> (usize, Evictions) {
        let capacity = (self.entries.len() * 2 / 3).max(1) as u64;
        let mut share = self.head.share(owner);
        let mut evictions = Evictions::default();
        if self.head.taken >= capacity {
            evictions = self.evict(self.head.loser(share, owner), now);
            if self.head.shares[share].entries == 0 {
                share = self.head.share(owner); // the last entry of its name is gone
            }
        }
        let at = search(self.entries, key).unwrap_or_else(|| place(key, self.entries.len()));
        self.head.taken = self.head.taken.saturating_add(1);
        self.head.born = self.head.born.wrapping_add(1);
        self.head.count(share, owner);
        self.entries[at] = Entry {
            key,
            name: owner.name,
            called: self.head.born,
            share: share as u8,
            taken: content::TOKENS,
            ..Entry::default()
        };
        (at, evictions)
    }

    /// Evicts an entry of a share, or an idle one. The entries after the hand are a random sample, because keys are at
    /// random places.
    fn evict(&mut self, share: usize, now: Micros) -> Evictions {
        let places = self.entries.len();
        let hand = (self.head.hand % places as u64) as usize;
        let mut oldest = None;
        let mut seen = 0;
        for at in from(hand, places) {
            let entry = &self.entries[at];
            if entry.taken == 0 {
                continue;
            }
            if entry.idle_at <= now.0 {
                self.release(at);
                return Evictions { idle: 1, live: 0 };
            }
            if usize::from(entry.share) != share {
                continue;
            }
            // Among equally old ones any: all may have been called since the last insertion.
            let age = u64::from(self.head.born.wrapping_sub(entry.called));
            let doublings = u64::from(entry.again == 0) + u64::from(entry.used == 0);
            oldest = oldest.max(Some((age << doublings, at)));
            seen += 1;
            if seen == SAMPLE {
                self.head.hand = at as u64 + 1;
                break;
            }
        }
        // Unless the memory is corrupt, a share that loses an entry has one.
        let any = || from(hand, places).find(|&at| self.entries[at].taken != 0);
        if let Some(at) = oldest.map(|(_, at)| at).or_else(any) {
            self.release(at);
        }
        Evictions { idle: 0, live: 1 }
    }

    /// Frees a place, and moves up entries after it that would no longer be found, because a search ends at a
    /// free place.
    fn release(&mut self, at: usize) {
        let share = usize::from(self.entries[at].share) % SHARES;
        let count = &mut self.head.shares[share].entries;
        *count = count.saturating_sub(1);
        self.head.taken = self.head.taken.saturating_sub(1);
        let places = self.entries.len();
        let mut free = at;
        for next in from(at, places).skip(1) {
            let entry = self.entries[next];
            if entry.taken == 0 {
                break;
            }
            // The distance from the start of its search, and from the free place.
            let distance = |from: usize| (next + places - from) % places;
            if distance(place(entry.key, places)) >= distance(free) {
                self.entries[free] = entry;
                free = next;
            }
        }
        self.entries[free] = Entry::default();
    }
}
