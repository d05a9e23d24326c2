//! The states of limits in memory: in partitions, each with a lock, under which a state is read,
//! decided and written. Each room has partitions of its own.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use ratelimit_core::Micros;
use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::table::{Dropped, Entry, Head, Kept, Partition, Whose, place, places};
use ratelimit_limiter::ports::{Id, Room};

use crate::pg::clock;
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::shared_memory::{Held, Lock};

/// How many partitions the states of defined limits have.
const DEFINED: usize = 128;
/// How many those of configs in calls: with all others, a session may hold their locks at once.
const INLINE: usize = 64;
/// How many the states of the server's clock have.
const PARTITIONS: usize = DEFINED + INLINE;
/// The partition of states under a fixed clock, so that a test does not touch what others hold.
const FIXED_CLOCK: usize = PARTITIONS;
/// How many keys it has room for.
const FIXED_CLOCK_KEYS: usize = 4096;
/// How often at most the loss of states that were not idle is told.
const TELL_EVERY: Micros = Micros(60_000_000);

#[repr(C, align(128))]
struct Shared {
    lock: Lock,
    head: Head,
}

/// States that made room for others.
#[repr(C, align(128))]
struct Losses {
    idle: AtomicU64,
    /// Those that were not idle: their keys were full again too early.
    live: AtomicU64,
    /// How many of these were told, and when, in epoch microseconds.
    told: AtomicU64,
    told_at: AtomicI64,
}

/// The states, in shared memory: [`Losses`], then the partitions, then the places of all of them.
pub struct States {
    address: *mut u8,
    /// How many keys of defined limits there is room for.
    keys: usize,
    layout: Layout,
}

/// Offsets in bytes.
#[derive(Clone, Copy)]
struct Layout {
    /// The keys of each partition of defined limits.
    defined: usize,
    /// The keys of each of configs in calls.
    inline: usize,
    partitions: usize,
    places: usize,
    end: usize,
}

impl Layout {
    fn new(keys: usize) -> Layout {
        let (defined, inline) = (each(keys, DEFINED), each(inline_keys(keys), INLINE));
        let all = places(defined) * DEFINED + places(inline) * INLINE + places(FIXED_CLOCK_KEYS);
        let after = |end: usize, size: usize| (end + size).next_multiple_of(128);
        let partitions = after(0, size_of::<Losses>());
        let places = after(partitions, size_of::<Shared>() * (PARTITIONS + 1));
        let end = after(places, size_of::<Entry>() * all);
        Layout { defined, inline, partitions, places, end }
    }

    /// The first place of a partition, and how many it has.
    fn places_of(&self, partition: usize) -> (usize, usize) {
        let (defined, inline) = (places(self.defined), places(self.inline));
        match partition {
            ..DEFINED => (partition * defined, defined),
            DEFINED..PARTITIONS => (DEFINED * defined + (partition - DEFINED) * inline, inline),
            _ => (DEFINED * defined + INLINE * inline, places(FIXED_CLOCK_KEYS)),
        }
    }
}

/// How many keys of configs in calls there is room for, beside so many of defined limits.
fn inline_keys(keys: usize) -> usize {
    keys.div_ceil(2)
}

/// How many keys each of some partitions has room for, so that all have room for so many. Keys are spread by chance:
/// five standard deviations are for a partition that gets more. And two keys have room with all their slots.
fn each(keys: usize, partitions: usize) -> usize {
    let mean = keys.div_ceil(partitions);
    (mean + 5 * (mean.isqrt() + 1)).max(2 * MAX_SLOTS_IN_MEMORY as usize)
}

/// The partition of a state, and of all slots of a key.
fn partition_of(id: Id) -> usize {
    match id.room {
        _ if clock::is_fixed() => FIXED_CLOCK,
        Room::Defined => (id.key[0] % DEFINED as u64) as usize,
        Room::Inline => DEFINED + (id.key[0] % INLINE as u64) as usize,
    }
}

/// The partitions of states, in the order in which they are locked, so that no two sessions wait for each other.
fn numbers(ids: impl Iterator<Item = Id>) -> Vec<usize> {
    let mut numbers: Vec<usize> = ids.map(partition_of).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// How much room the states take, but for those under a fixed clock.
pub struct Usage {
    /// Keys of defined limits that are there.
    pub keys: u64,
    /// How many there can be at least.
    pub room: u64,
    /// Keys of configs in calls that are there.
    pub inline_keys: u64,
    /// How many of them there can be at least.
    pub inline_room: u64,
    /// States that made room for others when they were idle.
    pub dropped_idle: u64,
    /// The same of such that were not: their keys were full again too early.
    pub dropped_live: u64,
}

impl States {
    /// How many bytes they take, for so many keys.
    pub fn size(keys: usize) -> usize {
        Layout::new(keys).end
    }

    /// Looks at states.
    ///
    /// # Safety
    /// There are so many bytes at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](States::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8, keys: usize) -> States {
        States { address, keys, layout: Layout::new(keys) }
    }

    /// Initializes the locks, before anybody else sees them.
    pub fn init(&self, lock_group: i32) {
        (0..=FIXED_CLOCK).for_each(|number| self.shared(number).lock.init(lock_group));
    }

    /// Asks the processor for what a look-up reads first, while it has other work.
    #[inline]
    pub fn prefetch(&self, id: Id) {
        let (first, length) = self.layout.places_of(partition_of(id));
        let place = first + place(id.key, length);
        // SAFETY: nothing is read: a hint, of an address within the places.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let place = self.address.add(self.layout.places).cast::<Entry>().add(place);
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        }
    }

    /// Reads a state.
    pub fn read(&self, id: Id) -> Option<Kept> {
        let number = partition_of(id);
        let _held = self.shared(number).lock.shared();
        self.partition(number).find(id.key).map(Entry::state)
    }

    /// Locks a state, which may not be there, and the slots of its key.
    #[inline]
    pub fn lock(&self, id: Id) -> LockedStates<'_> {
        let held = Guards::One(self.shared(partition_of(id)).lock.exclusive());
        LockedStates { states: self, _held: held }
    }

    /// Locks several states at once.
    pub fn lock_all(&self, ids: impl Iterator<Item = Id>) -> LockedStates<'_> {
        let numbers = numbers(ids);
        let lock = |number| self.shared(number).lock.exclusive();
        LockedStates { states: self, _held: Guards::Many(numbers.into_iter().map(lock).collect()) }
    }

    /// Forgets the states of a name's keys, partition by partition, and counts those that `counts` picks.
    pub fn forget_name(&self, id: Id, counts: impl Fn(Kept) -> bool) -> u64 {
        let numbers = if clock::is_fixed() { FIXED_CLOCK..FIXED_CLOCK + 1 } else { 0..PARTITIONS };
        let mut counted = 0;
        for number in numbers {
            check_for_interrupts();
            let _held = self.shared(number).lock.exclusive();
            self.partition(number).remove_if(|entry| {
                let is_of_it = entry.is_of(id.name[0]);
                counted += u64::from(is_of_it && counts(entry.state()));
                is_of_it
            });
        }
        counted
    }

    /// Returns how much room is in use.
    pub fn usage(&self) -> Usage {
        let keys = |number| {
            let _held = self.shared(number).lock.shared();
            self.partition(number).len()
        };
        Usage {
            keys: (0..DEFINED).map(keys).sum(),
            room: self.keys as u64,
            inline_keys: (DEFINED..PARTITIONS).map(keys).sum(),
            inline_room: inline_keys(self.keys) as u64,
            dropped_idle: self.losses().idle.load(Relaxed),
            dropped_live: self.losses().live.load(Relaxed),
        }
    }

    /// Returns how many states that were not idle made room for others, and were not told to anybody, if
    /// the last ones were told more than a minute ago.
    pub fn losses_to_tell(&self) -> Option<u64> {
        let losses = self.losses();
        let (live, told) = (losses.live.load(Relaxed), losses.told.load(Relaxed));
        if live <= told {
            return None;
        }
        let (now, told_at) = (clock::system_time(), losses.told_at.load(Relaxed));
        let due = now.minus(Micros(told_at)) >= TELL_EVERY;
        if !due || losses.told_at.compare_exchange(told_at, now.0, Relaxed, Relaxed).is_err() {
            return None;
        }
        losses.told.store(live, Relaxed);
        Some(live - told)
    }

    /// Counts a state that made room for another, but for a fixed clock.
    fn count(&self, partition: usize, dropped: Dropped) {
        let counter = match dropped {
            _ if partition == FIXED_CLOCK => return,
            Dropped::None => return,
            Dropped::Idle => &self.losses().idle,
            Dropped::Live => &self.losses().live,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn losses(&self) -> &Losses {
        // SAFETY: it is the beginning of the memory, and all of it is atomic.
        unsafe { &*self.address.cast() }
    }

    fn shared(&self, number: usize) -> &Shared {
        // SAFETY: there are as many and one more; a lock is made to be shared, and nothing else is
        // looked at through this reference.
        unsafe { &*self.address.add(self.layout.partitions).cast::<Shared>().add(number) }
    }

    /// Looks at a partition whose lock is held. Under a shared one it is only read.
    fn partition(&self, number: usize) -> Partition<'_> {
        let (first, length) = self.layout.places_of(number);
        // SAFETY: the lock keeps others from writing, or away; there are so many places.
        unsafe {
            let shared = std::ptr::from_ref(self.shared(number)).cast_mut();
            let places = self.address.add(self.layout.places).cast::<Entry>().add(first);
            Partition::new(&mut (*shared).head, std::slice::from_raw_parts_mut(places, length))
        }
    }
}

/// The locks of one partition, or of several.
enum Guards<'a> {
    One(#[expect(dead_code, reason = "held")] Held<'a>),
    Many(#[expect(dead_code, reason = "held")] Vec<Held<'a>>),
}

/// The states of some keys, whose partitions are locked. While they are, nothing of Postgres is called but the clock.
pub struct LockedStates<'a> {
    states: &'a States,
    _held: Guards<'a>,
}

impl LockedStates<'_> {
    /// One of the states that were locked, for a call.
    pub fn state(&mut self, id: Id) -> Option<Kept> {
        self.states.partition(partition_of(id)).call(id.key).map(Entry::state)
    }

    /// Forgets one of them; false if there was none.
    pub fn remove(&mut self, id: Id) -> bool {
        self.states.partition(partition_of(id)).remove(id.key)
    }

    /// Stores one of them, from when on nobody misses it, and whether half of its limit or more is used.
    pub fn set(
        &mut self,
        id: Id,
        kept: Kept,
        idle_at: Option<Micros>,
        half_used: bool,
        now: Micros,
    ) {
        let number = partition_of(id);
        let Id { name, key, room, owner } = id;
        let whose = Whose { owner, name: name[0], fair_by_name: room == Room::Defined };
        let mut partition = self.states.partition(number);
        let (entry, dropped) = partition.entry(key, whose, now);
        entry.set(kept, idle_at, half_used);
        self.states.count(number, dropped);
    }
}
