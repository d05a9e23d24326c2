//! The states of limits in memory: in partitions, each with a lock, under which a state is read,
//! decided and written. Each room has partitions of its own.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use ratelimit_core::Micros;
use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_limiter::ports::{Id, Room};
use ratelimit_memory::PartitionWriteGuard;
use ratelimit_memory::states::{Dropped, Entry, Kept, Partition, Whose, places};

use super::SessionLock;
use ratelimit_pg::clock;
use ratelimit_pg::interrupts::check_for_interrupts;

/// How many partitions the states of defined limits have.
const DEFINED: usize = 128;
/// How many those of configs in calls: with all others, a session may hold their locks at once, of which PostgreSQL
/// allows 200 (MAX_SIMUL_LWLOCKS).
const INLINE: usize = 32;
/// How many the states of the server's clock have.
const PARTITIONS: usize = DEFINED + INLINE;
/// The partition of states under a fixed clock, so that a test does not touch what others hold.
const FIXED_CLOCK: usize = PARTITIONS;
/// How many keys it has room for.
const FIXED_CLOCK_KEYS: usize = 4096;
/// How often at most the loss of states that were not idle is told.
const TELL_EVERY: Micros = Micros(60_000_000);

type Partitions = ratelimit_memory::Partitions<'static, SessionLock>;

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

/// The states, in shared memory.
pub struct States {
    losses: &'static Losses,
    /// Those of defined limits, of configs in calls, and of a fixed clock, numbered through in this order.
    defined: Partitions,
    inline: Partitions,
    fixed: Partitions,
    /// How many keys of defined limits there is room for.
    keys: usize,
}

/// How they are laid out.
struct Layout {
    /// How many places each partition has of defined limits, of configs in calls and of a fixed clock.
    places: [usize; 3],
    /// Where those begin, after [`Losses`], and all ends, in bytes.
    offsets: [usize; 4],
}

impl Layout {
    fn new(keys: usize) -> Layout {
        let counts = [DEFINED, INLINE, 1];
        let keys = [each(keys, DEFINED), each(inline_keys(keys), INLINE), FIXED_CLOCK_KEYS];
        let places = keys.map(places);
        let mut offsets = [size_of::<Losses>(); 4];
        for n in 0..3 {
            offsets[n + 1] = offsets[n] + Partitions::size(counts[n], places[n]);
        }
        Layout { places, offsets }
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
        // Which has others, in a segment of its own.
        Room::Saved => usize::MAX,
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
        Layout::new(keys).offsets[3]
    }

    /// Looks at states.
    ///
    /// # Safety
    /// There are so many bytes at the address, for as long as the process; all zeros, and soon to be
    /// [initialized](States::init), or what other sessions have made of that.
    pub unsafe fn new(address: *mut u8, keys: usize) -> States {
        let Layout { places, offsets } = Layout::new(keys);
        // SAFETY: they are laid out so, each at a multiple of 128; the losses are atomic.
        unsafe {
            let at = |n: usize, count| Partitions::at(address.add(offsets[n]), count, places[n]);
            let [defined, inline, fixed] = [at(0, DEFINED), at(1, INLINE), at(2, 1)];
            States { losses: &*address.cast(), defined, inline, fixed, keys }
        }
    }

    /// Initializes the locks.
    ///
    /// # Safety
    /// Nobody else sees them yet.
    pub unsafe fn init(&self, lock_group: i32) {
        for partitions in [&self.defined, &self.inline, &self.fixed] {
            // SAFETY: as the caller says.
            partitions.locks().for_each(|lock| unsafe { lock.0.init(lock_group) });
        }
    }

    /// Asks the processor for what a look-up reads first, while it has other work.
    #[inline]
    pub fn prefetch(&self, id: Id) {
        let (partitions, number) = self.partition(partition_of(id));
        let place = partitions.address(number, id.key);
        // SAFETY: nothing is read: a hint.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        }
    }

    /// Reads a state.
    pub fn read(&self, id: Id) -> Option<Kept> {
        let (partitions, number) = self.partition(partition_of(id));
        partitions.read(number).view().find(id.key).map(Entry::state)
    }

    /// Locks a state, which may not be there, and the slots of its key.
    #[inline]
    pub fn lock(&self, id: Id) -> LockedStates<'_> {
        let number = partition_of(id);
        LockedStates { states: self, first: Some((number, self.write(number))), others: Vec::new() }
    }

    /// Locks none.
    #[inline]
    pub fn lock_none(&self) -> LockedStates<'_> {
        LockedStates { states: self, first: None, others: Vec::new() }
    }

    /// Locks several states at once.
    pub fn lock_all(&self, ids: impl Iterator<Item = Id>) -> LockedStates<'_> {
        let lock = |number| (number, self.write(number));
        let mut locked = numbers(ids).into_iter().map(lock);
        LockedStates { states: self, first: locked.next(), others: locked.collect() }
    }

    /// Forgets the states of a name's keys, partition by partition, and counts those that `counts` picks.
    pub fn forget_name(&self, id: Id, counts: impl Fn(Kept) -> bool) -> u64 {
        let numbers = if clock::is_fixed() { FIXED_CLOCK..FIXED_CLOCK + 1 } else { 0..PARTITIONS };
        let mut counted = 0;
        for number in numbers {
            check_for_interrupts();
            self.write(number).partition().remove_if(|entry| {
                let is_of_it = entry.is_of(id.name[0]);
                counted += u64::from(is_of_it && counts(entry.state()));
                is_of_it
            });
        }
        counted
    }

    /// Returns how much room is in use.
    pub fn usage(&self) -> Usage {
        let count = |partitions: &Partitions, number| partitions.read(number).view().len();
        Usage {
            keys: (0..DEFINED).map(|number| count(&self.defined, number)).sum(),
            room: self.keys as u64,
            inline_keys: (0..INLINE).map(|number| count(&self.inline, number)).sum(),
            inline_room: inline_keys(self.keys) as u64,
            dropped_idle: self.losses.idle.load(Relaxed),
            dropped_live: self.losses.live.load(Relaxed),
        }
    }

    /// Returns how many states that were not idle made room for others, and were not told to anybody, if
    /// the last ones were told more than a minute ago.
    pub fn losses_to_tell(&self) -> Option<u64> {
        let losses = self.losses;
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
            Dropped::Idle => &self.losses.idle,
            Dropped::Live => &self.losses.live,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Locks a partition, for whoever is to change what is in it.
    fn write(&self, number: usize) -> PartitionWriteGuard<'_, SessionLock> {
        let (partitions, number) = self.partition(number);
        partitions.write(number)
    }

    /// Finds a partition: which of which ones it is.
    #[inline]
    fn partition(&self, number: usize) -> (&Partitions, usize) {
        match number {
            ..DEFINED => (&self.defined, number),
            DEFINED..PARTITIONS => (&self.inline, number - DEFINED),
            _ => (&self.fixed, 0),
        }
    }
}

/// A partition by its number, locked.
type Guard<'a> = (usize, PartitionWriteGuard<'a, SessionLock>);

/// The states of some keys, whose partitions are locked; of others it knows nothing, and keeps nothing. While it is
/// there, nothing of Postgres is called but the clock.
pub struct LockedStates<'a> {
    states: &'a States,
    /// In the order of their numbers.
    first: Option<Guard<'a>>,
    others: Vec<Guard<'a>>,
}

impl LockedStates<'_> {
    /// One of the states that were locked, for a call.
    #[inline]
    pub fn state(&mut self, id: Id) -> Option<Kept> {
        self.partition(partition_of(id))?.call(id.key).map(Entry::state)
    }

    /// How many are gone of the partition of one of them.
    pub fn gone(&mut self, id: Id) -> u32 {
        self.partition(partition_of(id)).map_or(0, |partition| partition.view().gone())
    }

    /// Forgets one of them; false if there was none.
    pub fn remove(&mut self, id: Id) -> bool {
        let partition = self.partition(partition_of(id));
        partition.is_some_and(|mut partition| partition.remove(id.key))
    }

    /// Stores one of them, from when on nobody misses it, and whether half of its limit or more is used.
    #[inline]
    pub fn set(
        &mut self,
        id: Id,
        kept: Kept,
        idle_at: Option<Micros>,
        half_used: bool,
        now: Micros,
    ) {
        let number = partition_of(id);
        let Some(mut partition) = self.partition(number) else { return };
        let Id { name, key, room, owner } = id;
        let whose = Whose { owner, name: name[0], fair_by_name: room == Room::Defined };
        let (entry, dropped) = partition.entry(key, whose, now);
        entry.set(kept, idle_at, half_used);
        self.states.count(number, dropped);
    }

    #[inline]
    fn partition(&mut self, number: usize) -> Option<Partition<'_>> {
        match &mut self.first {
            Some((first, guard)) if *first == number => Some(guard.partition()),
            _ => {
                let at = self.others.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                Some(self.others[at].1.partition())
            }
        }
    }
}
