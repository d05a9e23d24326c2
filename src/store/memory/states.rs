//! The states of limits in memory, in partitions: a state is read, decided and written under its partition's lock. Each
//! pool has partitions of its own.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{Id, Pool, Retention};
use ratelimit_memory::PartitionWriteGuard;
use ratelimit_memory::states::{self, Evictions, Owner, Partition, places};

use super::SessionLock;
use super::locked::Locked;
use ratelimit_pg::clock;
use ratelimit_pg::interrupts::check_for_interrupts;

/// The number of partitions for defined limits.
const DEFINED: usize = 128;
/// The number of partitions for configs in calls. A session may lock all partitions of all pools at once; PostgreSQL
/// allows it 200 locks (MAX_SIMUL_LWLOCKS).
const INLINE: usize = 32;
/// The number of both: the partitions for states of the server's clock.
const PARTITIONS: usize = DEFINED + INLINE;
/// The number of the partition for states under a fixed clock, so that a test leaves the states of others alone.
const FIXED_CLOCK: usize = PARTITIONS;
/// The capacity of that partition.
const FIXED_CLOCK_KEYS: usize = 4096;
/// The interval between two log lines about evictions.
const LOG_EVERY: Micros = Micros(60_000_000);

type Partitions = ratelimit_memory::Partitions<'static, SessionLock>;

/// The numbers of evicted states.
#[repr(C, align(128))]
struct Losses {
    idle: AtomicU64,
    /// States that were not idle: their keys became full again too early.
    live: AtomicU64,
    /// The number of these already logged, and the time of that, in epoch microseconds.
    logged: AtomicU64,
    logged_at: AtomicI64,
}

/// The states, in shared memory.
pub struct States {
    losses: &'static Losses,
    /// The partitions for defined limits, for configs in calls, and for a fixed clock, numbered consecutively.
    defined: Partitions,
    inline: Partitions,
    fixed: Partitions,
    /// The capacity for keys of defined limits.
    keys: usize,
}

/// The layout of the states in memory.
struct Layout {
    /// The number of places in each partition for defined limits, for configs in calls and for a fixed clock.
    places: [usize; 3],
    /// The offsets of those places, after [`Losses`], and the end of all, in bytes.
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

/// The capacity for keys of configs in calls, in addition to a number of keys of defined limits.
fn inline_keys(keys: usize) -> usize {
    keys.div_ceil(2)
}

/// The capacity of each partition for a total number of keys. Keys are distributed at random: five standard deviations
/// are added for a partition that gets more. At least two keys fit with all their slots.
fn each(keys: usize, partitions: usize) -> usize {
    let mean = keys.div_ceil(partitions);
    (mean + 5 * (mean.isqrt() + 1)).max(2 * MAX_SLOTS_IN_MEMORY as usize)
}

/// The number of a key's partition.
fn partition_of(id: Id) -> usize {
    match id.pool {
        _ if clock::is_fixed() => FIXED_CLOCK,
        Pool::Defined => (id.key[0] % DEFINED as u64) as usize,
        Pool::Inline => DEFINED + (id.key[0] % INLINE as u64) as usize,
        // Has partitions in a segment of its own.
        Pool::Saved => usize::MAX,
    }
}

/// The address of a state in its partition.
#[inline]
fn address(id: Id) -> states::Id {
    states::Id { key: id.key, slots: id.slots }
}

/// How much of the memory is used, without the states under a fixed clock.
pub struct Usage {
    /// Keys of defined limits.
    pub keys: u64,
    /// The number of them that fit at least.
    pub capacity: u64,
    /// Keys of configs in calls.
    pub inline_keys: u64,
    /// The number of them that fit at least.
    pub inline_capacity: u64,
    /// Evicted states that were idle.
    pub dropped_idle: u64,
    /// Evicted states that were not idle: their keys became full again too early.
    pub dropped_live: u64,
}

impl States {
    /// The bytes for a number of keys.
    pub fn size(keys: usize) -> usize {
        Layout::new(keys).offsets[3]
    }

    /// Views states.
    ///
    /// # Safety
    /// That many bytes are at the address for as long as the process: zeros, soon to be [initialized](States::init), or
    /// what other sessions have made of that.
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
    /// No other session sees them yet.
    pub unsafe fn init(&self, lock_group: i32) {
        for partitions in [&self.defined, &self.inline, &self.fixed] {
            // SAFETY: as the caller says.
            partitions.locks().for_each(|lock| unsafe { lock.0.init(lock_group) });
        }
    }

    /// Makes the processor fetch the first data that a lookup reads.
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

    /// Reads a state without marking it as used.
    pub fn read(&self, id: Id) -> Option<State> {
        let (partitions, number) = self.partition(partition_of(id));
        partitions.read(number).view().read(address(id))
    }

    /// Locks the partitions of states.
    #[inline]
    pub fn lock(&self, ids: impl IntoIterator<Item = Id>) -> LockedStates<'_> {
        let numbers = ids.into_iter().map(partition_of);
        LockedStates { states: self, partitions: Locked::new(numbers, |number| self.write(number)) }
    }

    /// Removes the states of a name, partition by partition; returns the number of keys with a state.
    pub fn forget_name(&self, name: [u64; 2]) -> u64 {
        let numbers = if clock::is_fixed() { FIXED_CLOCK..FIXED_CLOCK + 1 } else { 0..PARTITIONS };
        let forget = |number| {
            check_for_interrupts();
            self.write(number).partition().remove_name(name[0])
        };
        numbers.map(forget).sum()
    }

    /// How much of the memory is used.
    pub fn usage(&self) -> Usage {
        let count = |partitions: &Partitions, number| partitions.read(number).view().count();
        Usage {
            keys: (0..DEFINED).map(|number| count(&self.defined, number)).sum(),
            capacity: self.keys as u64,
            inline_keys: (0..INLINE).map(|number| count(&self.inline, number)).sum(),
            inline_capacity: inline_keys(self.keys) as u64,
            dropped_idle: self.losses.idle.load(Relaxed),
            dropped_live: self.losses.live.load(Relaxed),
        }
    }

    /// The number of evicted states that were not idle and should be logged now: at most once a minute.
    pub fn losses_to_log(&self) -> Option<u64> {
        let losses = self.losses;
        let (live, logged) = (losses.live.load(Relaxed), losses.logged.load(Relaxed));
        if live <= logged {
            return None;
        }
        let (now, logged_at) = (clock::system_time(), losses.logged_at.load(Relaxed));
        let due = now.minus(Micros(logged_at)) >= LOG_EVERY;
        if !due || losses.logged_at.compare_exchange(logged_at, now.0, Relaxed, Relaxed).is_err() {
            return None;
        }
        losses.logged.store(live, Relaxed);
        Some(live - logged)
    }

    /// Counts evictions, except under a fixed clock.
    #[inline]
    fn count(&self, partition: usize, Evictions { idle, live }: Evictions) {
        if partition == FIXED_CLOCK {
            return;
        }
        if idle > 0 {
            self.losses.idle.fetch_add(idle, Relaxed);
        }
        if live > 0 {
            self.losses.live.fetch_add(live, Relaxed);
        }
    }

    /// Locks a partition exclusively.
    fn write(&self, number: usize) -> PartitionWriteGuard<'_, SessionLock> {
        let (partitions, number) = self.partition(number);
        partitions.write(number)
    }

    /// Maps a number to a pool's partitions and the index in them.
    #[inline]
    fn partition(&self, number: usize) -> (&Partitions, usize) {
        match number {
            ..DEFINED => (&self.defined, number),
            DEFINED..PARTITIONS => (&self.inline, number - DEFINED),
            _ => (&self.fixed, 0),
        }
    }
}

/// The states of some keys, with their partitions locked. Until this is dropped, nothing of PostgreSQL is called
/// except the clock.
pub struct LockedStates<'a> {
    states: &'a States,
    partitions: Locked<PartitionWriteGuard<'a, SessionLock>>,
}

impl LockedStates<'_> {
    /// Whether no partition is locked.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Reads a state for a call, and marks it as used.
    #[inline]
    pub fn read(&mut self, id: Id) -> Option<State> {
        self.partition(id)?.read(address(id))
    }

    /// The number of entries evicted or removed from the partition of a state.
    pub fn gone(&mut self, id: Id) -> u32 {
        self.partition(id).map_or(0, |partition| partition.view().gone())
    }

    /// Removes a state; false if there was none.
    pub fn remove(&mut self, id: Id) -> bool {
        self.partition(id).is_some_and(|mut partition| partition.remove(address(id)))
    }

    /// Stores a state.
    #[inline]
    pub fn write(&mut self, id: Id, owner: u32, state: &State, retention: Retention) {
        let Some(mut partition) = self.partition(id) else { return };
        let Retention { idle_at, half_used, now, .. } = retention;
        let owner = Owner { id: owner, name: id.name[0], fair_by_name: id.pool == Pool::Defined };
        let retention = states::Retention { idle_at, half_used, now };
        let evictions = partition.write(address(id), owner, state, retention);
        self.states.count(partition_of(id), evictions);
    }

    #[inline]
    fn partition(&mut self, id: Id) -> Option<Partition<'_>> {
        self.partitions.get(partition_of(id)).map(PartitionWriteGuard::partition)
    }
}
