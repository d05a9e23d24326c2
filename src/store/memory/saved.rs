//! The states of limits in memory that are saved to the table, in a segment of their own, which the first call of such
//! a limit makes; and who saves them.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use ratelimit_core::saved::{NewKey, NoRoom, Unsaved};
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::{BeforeRead, Id, Loaded, SavedKey, SavedState};
use ratelimit_memory::{Guarded, SavedGuard, SavedPartitions};

use super::SessionLock;
use super::id::Scope;
use super::writer;
use crate::schema::error::{Error, Result};
use crate::schema::settings;
use ratelimit_pg::clock;
use ratelimit_pg::shared_memory::{self, Need};
use ratelimit_pg::transaction::{self, is_in_recovery};

/// How many partitions there are: with all others, a session may hold their locks at once.
pub(super) const PARTITIONS: usize = 32;
/// How many databases and extensions can have a writer.
const WRITERS: usize = 64;
/// How many limits can leave memory at once; and how many of one transaction, before all of its database do.
const LEAVING: usize = 64;
const LEAVING_OF_ONE: usize = 8;
/// How many cells are looked at under one hold of a partition's lock, while the session may be preempted.
const AT_ONCE: usize = 64;

/// The beginning of the segment. After it come the partitions.
#[repr(C, align(128))]
struct Header {
    /// `ratelimit.memory_keys` as it was.
    keys: u64,
    lock_group: i32,
    writers: [Writer; WRITERS],
    /// How many of the following there are.
    leaving: AtomicU32,
    limits: Guarded<SessionLock, [Leaving; LEAVING]>,
}

/// A limit that a transaction takes out of memory.
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(C)]
struct Leaving {
    /// Whose it is.
    scope: u64,
    /// The hash of its name; 0: all of them.
    name: u64,
    /// The transaction; 0: nothing.
    xid: u32,
}

/// Nobody saves.
pub const NONE: u32 = 0;
/// A worker was asked for, or waits until something is due.
pub const WAITS: u32 = 1;
/// Somebody saves.
pub const SAVES: u32 = 2;

/// Who saves the keys of a database and extension.
#[repr(C, align(128))]
pub struct Writer {
    /// Database and extension; 0: it is free.
    scope: AtomicU64,
    /// [`NONE`], [`WAITS`] or [`SAVES`].
    pub state: AtomicU32,
    /// The number of the worker's process in the server's list, plus 1.
    pub process: AtomicU32,
    /// When the state was changed, in epoch microseconds.
    pub at: AtomicI64,
    /// When the next key is to be saved.
    pub due: AtomicI64,
    /// Whether all is to be saved next, whenever it is due: 0 or 1.
    pub all: AtomicU32,
    /// How many times somebody has saved.
    pub turns: AtomicU64,
    /// How many keys were saved.
    pub saved: AtomicU64,
    /// How many sessions that changed keys have ended.
    pub ended: AtomicU64,
    /// When no worker could be had.
    pub refused_at: AtomicI64,
    /// When it was last told that there is none.
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
    /// How many of the keys are not saved.
    pub unsaved: u64,
    /// Since when the first of them is not.
    pub oldest: Option<Micros>,
}

thread_local! {
    static MEMORY: Cell<Option<&'static SavedMemory>> = const { Cell::new(None) };
    static WRITER: Cell<Option<(Scope, &'static Writer)>> = const { Cell::new(None) };
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
pub(super) fn partition_of(id: Id) -> usize {
    (id.key[0] % PARTITIONS as u64) as usize
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
            None => SavedMemory::open(Need::Must)?.ok_or(Error::NotMapped),
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

    /// Locks a partition.
    #[inline]
    pub(super) fn lock(&self, number: usize) -> SavedGuard<'static, SessionLock> {
        self.partitions.lock(number)
    }

    /// Returns who saves the keys of a scope; `None` where all places are taken.
    pub fn writer(&'static self, scope: Scope) -> Option<&'static Writer> {
        if let Some((_, writer)) = WRITER.get().filter(|(of, _)| *of == scope) {
            return Some(writer);
        }
        let found = self.find_writer(scope.number()).or_else(|| {
            // Those of dropped ones are free again.
            if transaction::is_in_transaction() {
                self.forget_dropped(scope);
            }
            self.find_writer(scope.number())
        })?;
        WRITER.set(Some((scope, found)));
        Some(found)
    }

    /// Finds the place of a scope by its number, or takes one.
    fn find_writer(&'static self, number: u64) -> Option<&'static Writer> {
        let all = || self.header.writers.iter();
        all().find(|writer| writer.scope.load(SeqCst) == number).or_else(|| {
            let claim = |writer: &&Writer| {
                let claimed = writer.scope.compare_exchange(0, number, SeqCst, SeqCst);
                claimed.is_ok() || claimed == Err(number)
            };
            all().find(claim)
        })
    }

    /// How many keys of a partition were evicted.
    pub(super) fn evictions(&self, id: Id) -> u32 {
        self.lock(partition_of(id)).partition().evictions()
    }

    /// Puts in a key; see [`Entries::load`](ratelimit_limiter::ports::Entries::load).
    pub(super) fn load(
        &self,
        scope: Scope,
        id: Id,
        (name, key): (&[u8], &[u8]),
        state: Option<&State>,
        (before, save): (BeforeRead, Micros),
    ) -> Loaded {
        let BeforeRead { evictions, on_standby } = before;
        let mut guard = self.lock(partition_of(id));
        let mut partition = guard.partition();
        if partition.evictions() != evictions {
            return Loaded::Moved;
        }
        let (hash, scope, save) = (id.key, scope.numbers(), millis(save));
        let new = NewKey { hash, scope, name, key, save, on_standby };
        match partition.load(new, state, clock::system_time()) {
            Ok(()) => Loaded::Yes,
            Err(NoRoom) => Loaded::NoRoom,
        }
    }

    /// How many keys of a scope are not saved.
    pub fn unsaved(&self, scope: Scope) -> usize {
        let unsaved = |number| self.lock(number).partition().unsaved_of(scope.numbers());
        (0..PARTITIONS).map(unsaved).sum()
    }

    /// When the next key of a scope is to be saved.
    pub fn due(&self, scope: Scope) -> Option<Micros> {
        let due = |number| {
            let mut guard = self.lock(number);
            let partition = guard.partition();
            if partition.unsaved() == 0 { None } else { partition.due(scope.numbers()) }
        };
        (0..PARTITIONS).filter_map(due).min()
    }

    /// Copies the keys of a scope that are to be saved by then, or all that are unsaved, in the order of name and key.
    pub fn copy(&self, scope: Scope, due: Option<Micros>) -> Vec<Unsaved> {
        let mut copies = Vec::new();
        for number in 0..PARTITIONS {
            if self.lock(number).partition().unsaved() == 0 {
                continue;
            }
            let mut from = Some(0);
            while let Some(place) = from {
                let mut guard = self.lock(number);
                from = guard.partition().copy((place, AT_ONCE), scope.numbers(), due, &mut copies);
            }
        }
        copies.sort_unstable_by(|one, other| (&one.name, &one.key).cmp(&(&other.name, &other.key)));
        copies
    }

    /// Notes of copies whether they were written.
    pub fn settle<'c>(&self, copies: impl Iterator<Item = (&'c Unsaved, bool)>) {
        for (copy, is_written) in copies {
            let number = (copy.hash[0] % PARTITIONS as u64) as usize;
            self.lock(number).partition().settle(copy.hash, is_written);
        }
    }

    /// Whether a key of a name is unsaved.
    pub fn has_unsaved(&self, scope: Scope, name: &[u8]) -> bool {
        let has = |number| self.lock(number).partition().has_unsaved(scope.numbers(), name);
        (0..PARTITIONS).any(has)
    }

    /// Evicts the keys of a name that are saved, so that their rows are read anew.
    pub fn forget_saved(&self, scope: Scope, name: &[u8]) {
        for number in 0..PARTITIONS {
            self.lock(number).partition().forget_clean(scope.numbers(), name);
        }
    }

    /// Notes that a transaction takes a limit out of memory, `None`: all of this scope. Whoever locks a key later sees
    /// it. False where too many do.
    pub fn leave(&self, scope: Scope, name: Option<Id>, xid: u32) -> bool {
        self.header.end_leaving(transaction::has_ended);
        let scope = scope.number();
        let new = Leaving { scope, name: name.map_or(0, |id| id.name[0]), xid };
        let is_noted = {
            let mut limits = self.header.limits.write();
            let is_same = |limit: &Leaving| limit.xid == xid && limit.scope == scope;
            if limits.iter().filter(|limit| is_same(limit)).count() >= LEAVING_OF_ONE {
                limits.iter_mut().filter(|limit| is_same(limit)).for_each(|limit| limit.name = 0);
                true
            } else if let Some(free) = limits.iter_mut().find(|limit| limit.xid == 0) {
                *free = new;
                self.header.leaving.fetch_add(1, SeqCst);
                true
            } else {
                false
            }
        };
        for number in 0..PARTITIONS {
            self.lock(number).partition().move_on();
        }
        is_noted
    }

    /// The transaction that takes a key's limit out of memory, unless it is this session's.
    #[inline]
    pub fn leaver(&self, scope: Scope, id: Id) -> Option<u32> {
        if self.header.leaving.load(SeqCst) == 0 { None } else { self.header.leaver(scope, id) }
    }

    /// Whether this transaction takes a name's limit out of memory.
    pub fn is_left_by(&self, scope: Scope, id: Id, xid: u32) -> bool {
        let limits = self.header.limits.read();
        limits.iter().any(|limit| limit.xid == xid && limit.is_of(scope, id))
    }

    /// Forgets what a transaction that has ended took out of memory.
    pub fn end_leaving(&self, xid: u32) {
        self.header.end_leaving(|of| of == xid);
    }

    /// Visits the keys of a name, or of all.
    pub(super) fn keys(&self, scope: Scope, name: Option<&[u8]>) -> Vec<SavedKey> {
        let mut keys = Vec::new();
        for number in 0..PARTITIONS {
            let found = self.lock(number).partition().keys(scope.numbers(), name);
            let key = |Unsaved { name, key, state, .. }| SavedKey { name, key, state };
            keys.extend(found.into_iter().map(key));
        }
        keys
    }

    /// Returns how much of it is used.
    pub fn usage(&self) -> SavedUsage {
        let mut usage = SavedUsage { room: self.header.keys, ..SavedUsage::default() };
        for number in 0..PARTITIONS {
            let mut guard = self.lock(number);
            let partition = guard.partition();
            usage.keys += u64::from(partition.len());
            usage.unsaved += u64::from(partition.unsaved());
            usage.oldest = usage.oldest.into_iter().chain(partition.oldest()).min();
        }
        usage
    }

    /// The size of the segment in bytes.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// Frees what is kept of dropped databases and extensions; see [`Scope::is_dropped`].
    pub fn forget_dropped(&self, own: Scope) {
        let of_writers = self.header.writers.iter().map(|writer| writer.scope.load(SeqCst));
        let of_writers = of_writers.filter(|&number| number != 0);
        let mut scopes: Vec<[u32; 2]> =
            of_writers.map(|number| Scope::of_number(number).numbers()).collect();
        for number in 0..PARTITIONS {
            scopes.extend(self.lock(number).partition().scopes());
            scopes.sort_unstable();
            scopes.dedup();
        }
        scopes.retain(|&scope| Scope::of(scope).is_dropped(own));
        if scopes.is_empty() {
            return;
        }
        for number in 0..PARTITIONS {
            self.lock(number).partition().remove_scopes(|scope| scopes.contains(&scope));
        }
        for writer in &self.header.writers {
            let scope = writer.scope.load(SeqCst);
            let is_dropped = scopes.iter().any(|&dropped| Scope::of(dropped).number() == scope);
            // Whoever saves, or will, looks at no other scope: the place is free once he has left it.
            match writer.state.load(SeqCst) {
                NONE if is_dropped => {
                    writer.set_problem("");
                    writer.scope.store(0, SeqCst);
                }
                WAITS if is_dropped => writer::send_away(writer),
                _ => {}
            }
        }
    }
}

impl Leaving {
    /// Whether a key's limit is meant.
    fn is_of(&self, scope: Scope, id: Id) -> bool {
        self.scope == scope.number() && (self.name == 0 || self.name == id.name[0])
    }
}

impl Header {
    /// The transaction that takes a key's limit out of memory, unless it is this session's.
    #[cold]
    fn leaver(&self, scope: Scope, id: Id) -> Option<u32> {
        let own = transaction::number_if_any();
        let limits = self.limits.read();
        let is_other =
            |limit: &&Leaving| limit.xid != 0 && limit.xid != own && limit.is_of(scope, id);
        limits.iter().find(is_other).map(|limit| limit.xid)
    }

    /// Forgets the limits of transactions that a test picks.
    fn end_leaving(&self, has_ended: impl Fn(u32) -> bool) {
        if self.leaving.load(SeqCst) == 0 {
            return;
        }
        // Asks Postgres, so not under the lock.
        let limits = *self.limits.read();
        let ended = limits.into_iter().filter(|limit| limit.xid != 0 && has_ended(limit.xid));
        for limit in ended {
            let mut limits = self.limits.write();
            if let Some(found) = limits.iter_mut().find(|found| **found == limit) {
                *found = Leaving::default();
                self.leaving.fetch_sub(1, SeqCst);
            }
        }
    }
}

impl Writer {
    /// Notes what went wrong, or that nothing did.
    pub fn set_problem(&self, text: &str) {
        let mut problem = self.problem.write();
        let end =
            (0..=text.len().min(problem.text.len())).rev().find(|&n| text.is_char_boundary(n));
        let text = &text[..end.unwrap_or(0)];
        problem.text[..text.len()].copy_from_slice(text.as_bytes());
        problem.length = text.len() as u32;
    }

    /// What went wrong last; empty: nothing.
    pub fn problem(&self) -> String {
        let problem = self.problem.read();
        String::from_utf8_lossy(&problem.text[..problem.length as usize]).into_owned()
    }

    /// Whether somebody saves, or is there who will: a worker that was asked for may never come, as where the server
    /// stops.
    pub fn will_save(&self) -> bool {
        match self.state.load(SeqCst) {
            NONE => false,
            WAITS => self.process.load(SeqCst) != 0,
            _ => true,
        }
    }

    /// Whether somebody saves, or a worker waits or was asked for not long ago.
    pub fn is_there(&self, now: Micros) -> bool {
        match self.state.load(SeqCst) {
            NONE => false,
            WAITS if self.process.load(SeqCst) == 0 => {
                now.minus(Micros(self.at.load(Relaxed))) < Micros(10_000_000)
            }
            _ => true,
        }
    }
}

/// Milliseconds.
pub(super) fn millis(duration: Micros) -> u32 {
    (duration.0 / 1000) as u32
}

/// What a partition has of a key.
pub(super) fn read(guard: &mut SavedGuard<'static, SessionLock>, id: Id) -> SavedState {
    let mut partition = guard.partition();
    match partition.call(id.key) {
        None => SavedState::Absent,
        Some(found) if partition.is_of_standby(id.key) && !is_in_recovery() => {
            SavedState::OfStandby(found)
        }
        Some(found) => SavedState::Here(found),
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
        memory.header.writers.iter().for_each(|writer| writer.problem.lock().0.init(lock_group));
        memory.header.limits.lock().0.init(lock_group);
        memory.partitions.locks().for_each(|lock| lock.0.init(lock_group));
    }
}
