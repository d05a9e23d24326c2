//! The states of limits in memory, in partitions: a state is read, decided and written under its partition's lock. Each
//! pool has partitions of its own.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use ratelimit_core::config::MAX_SLOTS_IN_MEMORY;
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{Id, Pool};
use ratelimit_memory::PartitionWriteGuard;
use ratelimit_memory::states::{self, Evictions, places};

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
    /// The partitions of each pool, numbered consecutively.
    pools: [Partitions; 3],
    /// The capacity for keys of defined limits.
    keys: usize,
}

/// The states of some keys, with their partitions locked. Until this is dropped, nothing of PostgreSQL is called except
/// the clock.
pub type LockedStates<'a> = Locked<PartitionWriteGuard<'a, SessionLock>>;

/// The number of partitions for defined limits, for configs in calls and for a fixed clock, and of places in each.
fn pools(keys: usize) -> [(usize, usize); 3] {
    let inline = each(inline_keys(keys), INLINE);
    [(DEFINED, each(keys, DEFINED)), (INLINE, inline), (1, FIXED_CLOCK_KEYS)]
        .map(|(partitions, keys)| (partitions, places(keys)))
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
pub fn partition_of(id: Id) -> usize {
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
pub fn address(id: Id) -> states::Id {
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
        let sizes = pools(keys).map(|(count, places)| Partitions::size(count, places));
        size_of::<Losses>() + sizes.iter().sum::<usize>()
    }

    /// Views states.
    ///
    /// # Safety
    /// That many bytes are at the address for as long as the process: zeros, soon to be [initialized](States::init), or
    /// what other sessions have made of that.
    pub unsafe fn new(address: *mut u8, keys: usize) -> States {
        let mut end = size_of::<Losses>();
        // SAFETY: they are laid out so, each at a multiple of 128; the losses are atomic.
        unsafe {
            let pools = pools(keys).map(|(count, places)| {
                let begin = address.add(end);
                end += Partitions::size(count, places);
                Partitions::at(begin, count, places)
            });
            States { losses: &*address.cast(), pools, keys }
        }
    }

    /// Initializes the locks.
    ///
    /// # Safety
    /// No other session sees them yet.
    pub unsafe fn init(&self, lock_group: i32) {
        let locks = self.pools.iter().flat_map(Partitions::locks);
        // SAFETY: as the caller says.
        locks.for_each(|lock| unsafe { lock.0.init(lock_group) });
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
        Locked::new(ids.into_iter().map(partition_of), |number| self.write(number))
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
        let keys = |number| {
            let (partitions, number) = self.partition(number);
            partitions.read(number).view().count()
        };
        Usage {
            keys: (0..DEFINED).map(keys).sum(),
            capacity: self.keys as u64,
            inline_keys: (DEFINED..PARTITIONS).map(keys).sum(),
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
    pub fn count(&self, Evictions { idle, live }: Evictions) {
        if clock::is_fixed() {
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
        let [defined, inline, fixed] = &self.pools;
        match number {
            ..DEFINED => (defined, number),
            DEFINED..PARTITIONS => (inline, number - DEFINED),
            _ => (fixed, 0),
        }
    }
}
