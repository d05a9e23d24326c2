//! The states of saved limits, in a segment of their own, which the first call of such a limit creates; and the state
//! that sessions share with the writers of databases.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{Absent, Id, RowId};
use ratelimit_memory::saved::{NewKey, Outcome, SavedCopy, Unsaved};
use ratelimit_memory::{Guarded, SavedGuard, SavedPartitions};

use super::SessionLock;
use super::id::Scope;
use super::locked::Locked;
use crate::schema::error::Result;
use crate::schema::settings;
use ratelimit_pg::clock;
use ratelimit_pg::error::PgError;
use ratelimit_pg::shared_memory::{self, Need};
use ratelimit_pg::transaction::is_in_recovery;

/// The number of partitions. A session may lock all of them together with all others.
pub(super) const PARTITIONS: usize = 32;
/// The number of databases that can have unsaved keys at a time.
const WRITERS: usize = 1024;
/// The number of cells to copy under a lock at a time.
const AT_ONCE: usize = 64;

/// The beginning of the segment. The partitions follow.
#[repr(C, align(128))]
pub struct Header {
    /// The value of `ratelimit.memory_keys` when the segment was created.
    keys: u64,
    lock_group: i32,
    /// The process that waits for a place for refused writers, plus 1; 0: none.
    pub waits_for_place: AtomicU32,
    writers: [Writer; WRITERS],
}

/// The writer of a database and extension, as sessions see it. Times are of the monotonic clock, except `since`.
#[repr(C, align(128))]
pub struct Writer {
    /// Database and extension; 0: the place is free.
    pub scope: AtomicU64,
    /// The table of its rows, set once a writer was requested.
    pub table: AtomicU32,
    /// The number of its process in the server's list, plus 1; 0: there is no writer.
    pub process: AtomicU32,
    /// The process id.
    pub pid: AtomicU32,
    /// The time when it started.
    pub since: AtomicI64,
    /// The time when the next key is due; the latest instant: no key is unsaved.
    pub due: AtomicI64,
    /// The time of a request for a writer that hasn't started yet, and whether the server refused it.
    pub asked_at: AtomicI64,
    pub is_refused: AtomicBool,
    /// Whether it should write everything and exit, because another database needs its place.
    pub is_to_go: AtomicBool,
    /// The number of requests to write everything at once, and the last one that was served.
    pub wanted: AtomicU64,
    pub served: AtomicU64,
    /// The number of keys written.
    pub written: AtomicU64,
    /// The time when the refusal was last logged.
    pub told_at: AtomicI64,
    problem: Guarded<SessionLock, Problem>,
}

/// The last problem.
#[repr(C)]
struct Problem {
    length: u32,
    text: [u8; 240],
}

/// The segment as this session sees it.
pub struct SavedMemory {
    /// The beginning of it.
    pub header: &'static Header,
    partitions: SavedPartitions<'static, SessionLock>,
}

/// How much of the memory is used, and the writer of a database.
#[derive(Default)]
pub struct SavedUsage {
    /// Keys in memory.
    pub keys: u64,
    /// The number of keys that fit at least.
    pub capacity: u64,
    /// The size of the segment.
    pub bytes: u64,
    /// Unsaved keys.
    pub unsaved: usize,
    /// The time since which the oldest of them is unsaved.
    pub oldest: Option<Micros>,
    /// The number of keys evicted on a standby after they had changed there.
    pub lost: u64,
    /// The last problem of the writer, in the encoding of its database; empty: none.
    pub problem: Vec<u8>,
    /// The writer's process, and the time when it started.
    pub writer: Option<(u32, Micros)>,
}

thread_local! {
    static MEMORY: Cell<Option<&'static SavedMemory>> = const { Cell::new(None) };
    static WRITER: Cell<Option<&'static Writer>> = const { Cell::new(None) };
}

/// The capacity of a partition: more than its share, because keys are distributed at random.
fn each(keys: usize) -> usize {
    let mean = keys.div_ceil(PARTITIONS);
    mean + mean / 8 + 5 * (mean.isqrt() + 1)
}

/// The size of a segment for this number of keys.
fn size(keys: usize) -> usize {
    let partitions = SavedPartitions::<SessionLock>::size(PARTITIONS, each(keys));
    size_of::<Header>().next_multiple_of(128) + partitions
}

/// The number of a key's partition.
pub(super) fn partition_of(hash: [u64; 2]) -> usize {
    (hash[0] % PARTITIONS as u64) as usize
}

impl SavedMemory {
    /// Returns the server's segment; creates it if there is none.
    #[inline]
    pub fn get() -> Result<&'static SavedMemory> {
        match MEMORY.get() {
            Some(memory) => Ok(memory),
            None => SavedMemory::open(Need::Must)?.ok_or(PgError::NotMapped.into()),
        }
    }

    /// Maps the server's segment into this session; creates it if `need` says so.
    #[cold]
    pub fn open(need: Need) -> Result<Option<&'static SavedMemory>> {
        if let Some(memory) = MEMORY.get() {
            return Ok(Some(memory));
        }
        thread_local! {
            static NAME: &'static CStr = {
                let name = format!("ratelimit saved {} {:x}", super::LAYOUT, size(100_000));
                // Once per session. The name has no zero byte.
                CString::new(name).map_or(c"ratelimit saved", |name| Box::leak(name.into()))
            };
        }
        let keys = settings::memory_keys();
        let segment = NAME.with(|name| {
            shared_memory::segment(name, need, size(keys), |address| fill(address, keys))
        })?;
        let Some(address) = segment else { return Ok(None) };
        // SAFETY: a segment of this name is laid out so, and stays as long as the process.
        let memory = unsafe { view(address) };
        shared_memory::name_lock_group(memory.header.lock_group, c"ratelimit");
        let memory: &'static SavedMemory = Box::leak(Box::new(memory));
        MEMORY.set(Some(memory));
        Ok(Some(memory))
    }

    /// Returns the segment if this session has seen it.
    #[inline]
    pub fn seen() -> Option<&'static SavedMemory> {
        MEMORY.get()
    }

    /// Locks the partitions of keys.
    #[inline]
    pub(super) fn lock(
        &self,
        ids: impl Iterator<Item = Id>,
    ) -> Locked<SavedGuard<'static, SessionLock>> {
        Locked::new(ids.map(|id| partition_of(id.key)), |number| self.partitions.write(number))
    }

    /// Locks the partitions, one at a time.
    fn each(&self) -> impl Iterator<Item = SavedGuard<'static, SessionLock>> {
        (0..PARTITIONS).map(|number| self.partitions.write(number))
    }

    /// Returns the writer of a scope, in the place of an idle one; `None` if none is idle.
    #[inline]
    pub fn writer(&self, scope: Scope) -> Option<&'static Writer> {
        let is_own = |writer: &&Writer| writer.scope.load(SeqCst) == scope.number();
        match WRITER.get().filter(is_own) {
            Some(writer) => Some(writer),
            None => self.find_writer(scope.number()),
        }
    }

    /// Finds the writer of a scope, or a place for one.
    #[cold]
    fn find_writer(&self, number: u64) -> Option<&'static Writer> {
        let claim = |writer: &&Writer| {
            let of = writer.scope.load(SeqCst);
            let is_idle = writer.process.load(SeqCst) == 0 && writer.due.load(SeqCst) == i64::MAX;
            of == number
                || (of == 0 || is_idle)
                    && writer.scope.compare_exchange(of, number, SeqCst, SeqCst).is_ok()
        };
        let own = || self.writers().find(|writer| writer.scope.load(SeqCst) == number);
        let free = || self.writers().find(|writer| writer.scope.load(SeqCst) == 0 && claim(writer));
        let found = own().or_else(free).or_else(|| self.writers().find(claim))?;
        WRITER.set(Some(found));
        Some(found)
    }

    /// The places of all writers.
    pub fn writers(&self) -> impl Iterator<Item = &'static Writer> {
        self.header.writers.iter()
    }

    /// The refused writers with keys that are due.
    pub fn refused_writers(&self) -> impl Iterator<Item = &'static Writer> {
        let is_refused = |writer: &&Writer| {
            writer.is_refused.load(SeqCst)
                && writer.process.load(SeqCst) == 0
                && writer.due.load(SeqCst) != i64::MAX
        };
        self.writers().filter(is_refused)
    }

    /// Loads a key; see [`Entries::load`](ratelimit_limiter::ports::Entries::load).
    pub(super) fn load(
        &self,
        scope: Scope,
        id: Id,
        RowId { name, key, .. }: RowId,
        state: Option<&State>,
        absent: Absent,
    ) -> bool {
        let mut guard = self.partitions.write(partition_of(id.key));
        let mut partition = guard.partition();
        if partition.head().evictions != absent.evictions {
            return true;
        }
        let (scope, on_standby) = (scope.numbers(), absent.on_standby);
        partition.load(NewKey { hash: id.key, scope, name, key, on_standby }, state).is_ok()
    }

    /// The unsaved keys of a scope, or of all.
    pub fn unsaved(&self, scope: Option<Scope>) -> Unsaved {
        let mut all = Unsaved::default();
        for mut guard in self.each() {
            let Unsaved { keys, since, due } = guard.partition().unsaved(scope.map(Scope::numbers));
            all.keys += keys;
            all.since = all.since.into_iter().chain(since).min();
            all.due = all.due.into_iter().chain(due).min();
        }
        all
    }

    /// Copies the unsaved keys of a scope, either those due by an instant or all, in the order of name and key; keys
    /// with a failed last write come last.
    pub fn copy(&self, scope: Scope, due: Option<Micros>) -> Vec<SavedCopy> {
        let mut copies = Vec::new();
        for number in 0..PARTITIONS {
            let mut from = Some(0);
            while let Some(place) = from {
                let mut guard = self.partitions.write(number);
                from = guard.partition().copy(place, AT_ONCE, scope.numbers(), due, &mut copies);
            }
        }
        let place = |copy: &SavedCopy| (copy.tries > 0, copy.name.clone(), copy.key.clone());
        copies.sort_by_cached_key(place);
        copies
    }

    /// Notes the outcome of writing a copy that was made at `copied`.
    pub fn finish(&self, copy: &SavedCopy, outcome: Outcome, copied: Micros) {
        let now = clock::monotonic();
        let mut guard = self.partitions.write(partition_of(copy.hash));
        guard.partition().finish(copy, outcome, copied, now);
    }

    /// Removes those keys of a name, or of the scope, that a test selects; the others become due at once.
    pub fn remove(&self, scope: Scope, name: Option<&[u8]>, test: impl Fn(&SavedCopy) -> bool) {
        for mut guard in self.each() {
            guard.partition().remove(scope.numbers(), name, &test);
        }
    }

    /// Whether there are keys of a name, or of all names; `Some(true)`: some are unsaved.
    pub fn has_keys(&self, scope: Scope, name: Option<&[u8]>) -> Option<bool> {
        let has = |mut guard: SavedGuard<'static, SessionLock>| {
            guard.partition().has_keys(scope.numbers(), name)
        };
        self.each().filter_map(has).reduce(|one, other| one || other)
    }

    /// Copies the keys of a name, or of the scope.
    pub fn keys(&self, scope: Scope, name: Option<&[u8]>) -> Vec<SavedCopy> {
        let on_standby = is_in_recovery();
        let keys = |mut guard: SavedGuard<'static, SessionLock>| {
            guard.partition().keys(scope.numbers(), name, on_standby)
        };
        self.each().flat_map(keys).collect()
    }

    /// How much of the memory is used, and the writer of a scope.
    pub fn usage(&self, scope: Scope) -> SavedUsage {
        self.forget_dropped(scope);
        let Unsaved { keys: unsaved, since, .. } = self.unsaved(None);
        let now = clock::monotonic();
        let oldest = since.map(|since| clock::system_time().minus(now.minus(since)));
        let (capacity, bytes) = (self.header.keys, size(self.header.keys as usize) as u64);
        let mut usage = SavedUsage { capacity, bytes, unsaved, oldest, ..SavedUsage::default() };
        if let Some(writer) = self.writer(scope) {
            usage.problem = writer.problem();
            let is_there = writer.process.load(SeqCst) != 0;
            usage.writer =
                is_there.then(|| (writer.pid.load(SeqCst), Micros(writer.since.load(SeqCst))));
        }
        for mut guard in self.each() {
            let partition = guard.partition();
            usage.keys += u64::from(partition.head().keys);
            usage.lost += u64::from(partition.head().lost);
        }
        usage
    }

    /// Removes the keys of [dropped](Scope::dropped) databases and extensions.
    pub fn forget_dropped(&self, own: Scope) {
        let mut scopes = BTreeSet::new();
        for mut guard in self.each() {
            scopes.extend(guard.partition().scopes().map(Scope::from_numbers));
        }
        let dropped = own.dropped(scopes);
        dropped.iter().for_each(|&scope| self.remove(scope, None, |_| true));
        for writer in self.writers() {
            if dropped.contains(&Scope::from_number(writer.scope.load(SeqCst))) {
                // First, because others may take the place afterwards.
                writer.is_refused.store(false, SeqCst);
                writer.due.store(i64::MAX, SeqCst);
                crate::store::memory::writer::dismiss(writer);
            }
        }
    }
}

impl Writer {
    /// Whether everything is to be written now, due or not.
    pub fn writes_all(&self) -> bool {
        self.is_to_go.load(SeqCst) || self.served.load(SeqCst) < self.wanted.load(SeqCst)
    }

    /// Notes a problem, in the encoding of its database; empty: none.
    pub fn set_problem(&self, text: &[u8]) {
        let mut problem = self.problem.write();
        let end = text.len().min(problem.text.len());
        problem.text[..end].copy_from_slice(&text[..end]);
        problem.length = end as u32;
    }

    /// The last problem; empty: none.
    fn problem(&self) -> Vec<u8> {
        let problem = self.problem.read();
        problem.text[..problem.length as usize].to_vec()
    }
}

/// Views a segment.
///
/// # Safety
/// It stays as long as the process, and was [filled](fill).
unsafe fn view(address: *mut u8) -> SavedMemory {
    // SAFETY: as the caller says; the segment begins with a header. Its numbers never change, and the rest of it is
    // atomic or guarded. The partitions after it are for the number of keys in it.
    unsafe {
        let header = &*address.cast::<Header>();
        let keys = header.keys as usize;
        let begin = address.add(size_of::<Header>().next_multiple_of(128));
        let partitions = SavedPartitions::at(begin, PARTITIONS, each(keys));
        SavedMemory { header, partitions }
    }
}

/// Fills a new segment, which is zeroed.
fn fill(address: *mut u8, keys: usize) {
    let lock_group = shared_memory::new_lock_group();
    // SAFETY: no other session sees the segment yet, which is as large as `open` asked for.
    unsafe {
        let header = address.cast::<Header>();
        (&raw mut (*header).keys).write(keys as u64);
        (&raw mut (*header).lock_group).write(lock_group);
        let memory = view(address);
        for writer in memory.writers() {
            writer.due.store(i64::MAX, SeqCst);
            writer.problem.lock().0.init(lock_group);
        }
        memory.partitions.locks().for_each(|lock| lock.0.init(lock_group));
    }
}
