//! The states of limits in memory that are saved to the table, in a segment of their own, which the first call of such
//! a limit makes; and what sessions and the writer of a database tell each other.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

use ratelimit_core::Micros;
use ratelimit_limiter::ports::{self, Id, Loaded};
use ratelimit_memory::saved::{NewKey, NoRoom, Outcome, SavedCopy};
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

/// How many partitions there are: with all others, a session may hold their locks at once.
pub(super) const PARTITIONS: usize = 32;
/// How many databases can have unsaved keys at a time.
const WRITERS: usize = 1024;
/// How many cells are looked at under one hold of a partition's lock, while the session may be preempted.
const AT_ONCE: usize = 64;

/// The beginning of the segment. After it come the partitions.
#[repr(C, align(128))]
struct Header {
    /// `ratelimit.memory_keys` as it was.
    keys: u64,
    lock_group: i32,
    writers: [Writer; WRITERS],
}

/// The writer of a database and extension. Its instants are of the monotonic clock, but for `since`.
#[repr(C, align(128))]
pub struct Writer {
    /// Database and extension; 0: the place is free.
    pub scope: AtomicU64,
    /// The number of its process in the server's list, plus 1; 0: it is not there.
    pub process: AtomicU32,
    /// The number of its process in the system.
    pub pid: AtomicU32,
    /// Since when it is there.
    pub since: AtomicI64,
    /// When the next key is to be written; the latest instant: none is unsaved.
    pub due: AtomicI64,
    /// When a worker was asked for that has not come yet, and whether there was no place for one.
    pub asked_at: AtomicI64,
    pub is_refused: AtomicBool,
    /// Whether another database needs its place.
    pub is_to_go: AtomicBool,
    /// How often all was to be written at once, and the last time that was done.
    pub wanted: AtomicU64,
    pub served: AtomicU64,
    /// How many keys were written.
    pub written: AtomicU64,
    /// When it was last told that there is no place for one.
    pub told_at: AtomicI64,
    problem: Guarded<SessionLock, Problem>,
}

/// What went wrong last.
#[repr(C)]
struct Problem {
    length: u32,
    text: [u8; 240],
}

/// The segment as this session sees it.
pub struct SavedMemory {
    header: &'static Header,
    partitions: SavedPartitions<'static, SessionLock>,
    size: usize,
}

/// How much of it is used.
#[derive(Default)]
pub struct SavedUsage {
    /// Keys that are there.
    pub keys: u64,
    /// How many there can be at least.
    pub room: u64,
    /// How many of the keys are unsaved.
    pub unsaved: u64,
    /// Since when the first of them is.
    pub oldest: Option<Micros>,
    /// How many were evicted on a standby that had changed there.
    pub lost: u64,
}

thread_local! {
    static MEMORY: Cell<Option<&'static SavedMemory>> = const { Cell::new(None) };
    static WRITER: Cell<Option<&'static Writer>> = const { Cell::new(None) };
}

/// How many keys a partition has room for: some more than its share, since keys are spread by chance.
fn each(keys: usize) -> usize {
    let mean = keys.div_ceil(PARTITIONS);
    mean + mean / 8 + 5 * (mean.isqrt() + 1)
}

/// The size of a segment for so many keys.
fn size(keys: usize) -> usize {
    let partitions = SavedPartitions::<SessionLock>::size(PARTITIONS, each(keys));
    size_of::<Header>().next_multiple_of(128) + partitions
}

/// The number of a key's partition.
pub(super) fn partition_of(hash: [u64; 2]) -> usize {
    (hash[0] % PARTITIONS as u64) as usize
}

impl SavedMemory {
    /// Returns the server's segment; makes it where there is none.
    ///
    /// # Errors
    /// As [`Memory::get`](super::Memory::get).
    #[inline]
    pub fn get() -> Result<&'static SavedMemory> {
        match MEMORY.get() {
            Some(memory) => Ok(memory),
            None => SavedMemory::open(Need::Must)?.ok_or(PgError::NotMapped.into()),
        }
    }

    /// Maps the server's segment into this session, where there is one, or it is made as `need` says.
    ///
    /// # Errors
    /// As [`Memory::get`](super::Memory::get).
    #[cold]
    pub fn open(need: Need) -> Result<Option<&'static SavedMemory>> {
        if let Some(memory) = MEMORY.get() {
            return Ok(Some(memory));
        }
        thread_local! {
            static NAME: &'static CStr = {
                let name = format!("ratelimit saved {} {:x}", super::LAYOUT, size(100_000));
                // Once in the life of a session; it has no zero byte.
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
        Locked::new(ids.map(|id| partition_of(id.key)), |number| self.partitions.lock(number))
    }

    /// Locks one partition after the other.
    fn each(&self) -> impl Iterator<Item = SavedGuard<'static, SessionLock>> {
        (0..PARTITIONS).map(|number| self.partitions.lock(number))
    }

    /// Returns the writer of a scope, which takes the place of one that has nothing to write; `None` where all have.
    #[inline]
    pub fn writer(&self, scope: Scope) -> Option<&'static Writer> {
        let is_own = |writer: &&Writer| writer.scope.load(SeqCst) == scope.number();
        match WRITER.get().filter(is_own) {
            Some(writer) => Some(writer),
            None => self.find_writer(scope.number()),
        }
    }

    /// Finds the writer of a scope by its number, or a place for one.
    #[cold]
    fn find_writer(&self, number: u64) -> Option<&'static Writer> {
        let all = || self.header.writers.iter();
        let claim = |writer: &&Writer| {
            let of = writer.scope.load(SeqCst);
            let is_idle = writer.process.load(SeqCst) == 0 && writer.due.load(SeqCst) == i64::MAX;
            of == number
                || (of == 0 || is_idle)
                    && writer.scope.compare_exchange(of, number, SeqCst, SeqCst).is_ok()
        };
        let own = || all().find(|writer| writer.scope.load(SeqCst) == number);
        let free = || all().find(|writer| writer.scope.load(SeqCst) == 0 && claim(writer));
        let found = own().or_else(free).or_else(|| all().find(claim))?;
        WRITER.set(Some(found));
        Some(found)
    }

    /// The writers of other scopes.
    pub fn other_writers(&self, own: &Writer) -> impl Iterator<Item = &'static Writer> {
        self.header.writers.iter().filter(move |writer| !std::ptr::eq(*writer, own))
    }

    /// Loads a key; see [`Entries::load`](ports::Entries::load).
    pub(super) fn load(&self, scope: Scope, id: Id, new: ports::NewKey) -> Loaded {
        let ports::NewKey { name, key, state, absent } = new;
        let mut guard = self.partitions.lock(partition_of(id.key));
        let mut partition = guard.partition();
        if partition.evictions() != absent.evictions {
            return Loaded::Moved;
        }
        let (scope, on_standby) = (scope.numbers(), absent.on_standby);
        match partition.load(NewKey { hash: id.key, scope, name, key, on_standby }, state) {
            Ok(()) => Loaded::Yes,
            Err(NoRoom) => Loaded::Full,
        }
    }

    /// How many keys of a scope are unsaved, and when the next of them is to be written.
    pub fn waiting(&self, scope: Scope) -> (usize, Option<Micros>) {
        let waiting = self.each().map(|mut guard| guard.partition().waiting(Some(scope.numbers())));
        waiting.fold((0, None), |(sum, first), (count, _, due)| {
            (sum + count, first.into_iter().chain(due).min())
        })
    }

    /// Copies the unsaved keys of a scope that are to be written by then, or all, in the order of name and key, but
    /// first those that could be written so far.
    pub fn copy(&self, scope: Scope, due: Option<Micros>) -> Vec<SavedCopy> {
        let mut copies = Vec::new();
        for number in 0..PARTITIONS {
            let mut from = Some(0);
            while let Some(place) = from {
                let mut guard = self.partitions.lock(number);
                from = guard.partition().copy((place, AT_ONCE), scope.numbers(), due, &mut copies);
            }
        }
        let place = |copy: &SavedCopy| (copy.tries > 0, copy.name.clone(), copy.key.clone());
        copies.sort_by_cached_key(place);
        copies
    }

    /// Notes what came of writing a copy that was made at that time.
    pub fn settle(&self, copy: &SavedCopy, outcome: Outcome, copied: Micros) {
        let now = clock::monotonic();
        self.partitions.lock(partition_of(copy.hash)).partition().settle(
            copy,
            outcome,
            (copied, now),
        );
    }

    /// Removes the keys of a name, or of all, that a test picks, and has those that stay written as soon as can be.
    pub fn remove(
        &self,
        scope: Scope,
        name: Option<&[u8]>,
        test: impl Fn(&SavedCopy, bool) -> bool,
    ) {
        for mut guard in self.each() {
            guard.partition().remove(scope.numbers(), name, &test);
        }
    }

    /// Whether there are keys of a name, or of all, and whether some are unsaved.
    pub fn has_keys(&self, scope: Scope, name: Option<&[u8]>) -> [bool; 2] {
        let has = self.each().map(|mut guard| guard.partition().has_keys(scope.numbers(), name));
        has.fold([false; 2], |[any, unsaved], has| [any || has[0], unsaved || has[1]])
    }

    /// Copies the keys of a name, or of all.
    pub fn keys(&self, scope: Scope, name: Option<&[u8]>) -> Vec<SavedCopy> {
        let on_standby = is_in_recovery();
        let keys = |mut guard: SavedGuard<'static, SessionLock>| {
            guard.partition().keys(scope.numbers(), name, on_standby)
        };
        self.each().flat_map(keys).collect()
    }

    /// Returns how much of it is used.
    pub fn usage(&self) -> SavedUsage {
        let mut usage = SavedUsage { room: self.header.keys, ..SavedUsage::default() };
        let mut first = None;
        for mut guard in self.each() {
            let partition = guard.partition();
            let (unsaved, since, _) = partition.waiting(None);
            usage.keys += u64::from(partition.len());
            usage.unsaved += unsaved as u64;
            usage.lost += u64::from(partition.lost());
            first = first.into_iter().chain(since).min();
        }
        usage.oldest =
            first.map(|first| clock::system_time().minus(clock::monotonic().minus(first)));
        usage
    }

    /// The size of the segment in bytes.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// Frees what is kept of dropped databases and extensions; see [`Scope::is_dropped`].
    pub fn forget_dropped(&self, own: Scope) {
        let mut scopes = Vec::new();
        for mut guard in self.each() {
            scopes.extend(guard.partition().scopes());
            scopes.sort_unstable();
            scopes.dedup();
        }
        scopes.retain(|&scope| Scope::of(scope).is_dropped(own));
        if scopes.is_empty() {
            return;
        }
        for mut guard in self.each() {
            scopes.iter().for_each(|&scope| guard.partition().remove(scope, None, |_, _| true));
        }
        for writer in &self.header.writers {
            let is_of = |scope: &[u32; 2]| Scope::of(*scope).number() == writer.scope.load(SeqCst);
            if scopes.iter().any(is_of) {
                writer.due.store(i64::MAX, SeqCst);
                super::writer::send_away(writer);
            }
        }
    }
}

impl Writer {
    /// Whether all is to be written now, whenever it is due.
    pub fn is_for_all(&self) -> bool {
        self.is_to_go.load(SeqCst) || self.served.load(SeqCst) < self.wanted.load(SeqCst)
    }

    /// The worker, if it is there: its process, and since when.
    pub fn there(&self) -> Option<(u32, Micros)> {
        let is_there = self.process.load(SeqCst) != 0;
        is_there.then(|| (self.pid.load(SeqCst), Micros(self.since.load(SeqCst))))
    }

    /// Notes what went wrong, in the encoding of its database; nothing: nothing did.
    pub fn set_problem(&self, text: &[u8]) {
        let mut problem = self.problem.write();
        let end = text.len().min(problem.text.len());
        problem.text[..end].copy_from_slice(&text[..end]);
        problem.length = end as u32;
    }

    /// What went wrong last; empty: nothing.
    pub fn problem(&self) -> Vec<u8> {
        let problem = self.problem.read();
        problem.text[..problem.length as usize].to_vec()
    }
}

/// Looks at a segment.
///
/// # Safety
/// It is there as long as the process, and was [filled](fill).
unsafe fn view(address: *mut u8) -> SavedMemory {
    // SAFETY: as the caller says; the segment begins with a header, whose numbers nobody changes, and which is atomic
    // or guarded otherwise. The partitions after it are for as many keys as it says.
    unsafe {
        let header = &*address.cast::<Header>();
        let keys = header.keys as usize;
        let begin = address.add(size_of::<Header>().next_multiple_of(128));
        let partitions = SavedPartitions::at(begin, PARTITIONS, each(keys));
        SavedMemory { header, partitions, size: size(keys) }
    }
}

/// Fills a new segment, which is zeroed.
fn fill(address: *mut u8, keys: usize) {
    let lock_group = shared_memory::new_lock_group();
    // SAFETY: nobody else sees the segment yet, which is as large as `open` asked for.
    unsafe {
        let header = address.cast::<Header>();
        (&raw mut (*header).keys).write(keys as u64);
        (&raw mut (*header).lock_group).write(lock_group);
        let memory = view(address);
        for writer in &memory.header.writers {
            writer.due.store(i64::MAX, SeqCst);
            writer.problem.lock().0.init(lock_group);
        }
        memory.partitions.locks().for_each(|lock| lock.0.init(lock_group));
    }
}
