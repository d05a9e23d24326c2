//! A model of PostgreSQL's rows: version chains, transactions and subtransactions, row locks, inserts that are not yet
//! confirmed, and reads of the latest committed state. It also has what sessions share besides: entries of memory, with
//! who saves some of them, the definition, blocks and the clock.
//!
//! Each rule has a step, functions of PostgreSQL that it stands for, and a spec of `tests/isolation/specs` in which
//! PostgreSQL shows it:
//!
//! - A read sees the latest committed versions and its own transaction's ([`Primitive::Read`]; GetLatestSnapshot,
//!   HeapTupleSatisfiesMVCC; `model_read`)
//! - A lock waits for the holder, and follows updates ([`Primitive::Lock`]; heap_lock_tuple, heapam_tuple_lock;
//!   `model_lock`)
//! - A chain that ends in a row with another key is another row ([`Primitive::Lock`]; EvalPlanQual; `traversed` of
//!   TM_FailureData; `model_renamed`)
//! - A lock without waiting gets no row that another session holds ([`Primitive::TryLock`]; heap_lock_tuple with
//!   LockWaitSkip; `model_try_lock`). Through SQL it waits for the second of two updates if the first one ends just
//!   then ([`Primitive::TryLockUpdated`]; heap_lock_updated_tuple_rec; no spec can stop it there)
//! - An update of a version waits for its holder, and fails without a lock if it was replaced
//!   ([`Primitive::Update`]; heap_update; `model_replace`)
//! - An insert waits for another of the same key, and for a delete ([`Primitive::Insert`],
//!   [`Primitive::WaitForEnd`]; _bt_check_unique, XactLockTableWait; `model_insert`)
//! - Of two inserts at once at most one is confirmed ([`Primitive::Confirm`]; heap_abort_speculative;
//!   `model_speculative`)
//! - A savepoint's rollback ends its locks and versions ([`Primitive::RollbackSub`]; AbortSubTransaction;
//!   `model_savepoint`)
//! - Several holders of a row are all waited for ([`Primitive::Lock`]; MultiXactIdWait; `model_multixact`)
//! - Waiters go on in any order, and a new call can come first ([`Database::is_enabled`]; heap_acquire_tuplock;
//!   `model_wait`)
//! - Two sessions that wait for each other end in 40P01 (DeadLockCheck; `model_deadlock`)
//! - A crash leaves what has committed (`soak/crash.rs`)
//!
//! The model has more orders than PostgreSQL, never fewer. Whoever waits for a row may get it next: the queue that
//! PostgreSQL makes (the tuple's heavyweight lock) lets through fewer orders, and waits for nobody for whom the row's
//! holder does not wait as well. Every lock is FOR UPDATE, so that of several holders at most one is another session's;
//! heap_update itself takes FOR NO KEY UPDATE, which only holders of FOR KEY SHARE can tell.

mod end;
mod execute;
mod saved;
mod versions;

use std::collections::BTreeMap;

use crate::content::{Content, Total};

pub use saved::{LoadedKey, SavedPlaces};

/// A transaction or subtransaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid {
    /// The session.
    pub session: u8,
    /// Its number there, the least that is free.
    pub number: u8,
}

/// A transaction that has committed, whichever: what it wrote is visible to all.
pub const FROZEN: Xid = Xid { session: u8::MAX, number: 0 };

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionStatus {
    /// It is in progress.
    Running,
    /// It has committed; a subtransaction, into its parent.
    Committed,
    /// It was rolled back.
    Aborted,
}

/// The tuple id of a version: the session that wrote it, and a number.
pub type Tid = (u32, u16);

/// The primary key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The key: 0 for a, 1 for b.
    pub key: u8,
    /// The shard number.
    pub shard: i32,
}

/// A version of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The row's primary key.
    pub place: RowKey,
    /// What it holds.
    pub content: Content,
    /// Who wrote it.
    pub xmin: Xid,
    /// Whether its insert is not yet confirmed.
    pub is_speculative: bool,
    /// Who has it locked.
    pub lockers: Vec<Xid>,
    /// Who updated or deleted it, and the next version.
    pub xmax: Option<(Xid, Option<Tid>)>,
}

/// An entry of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryEntry {
    /// What it holds.
    pub content: Total,
    /// When nobody misses it any more.
    pub idle_at: i64,
}

/// What a session finds of a row: the version, whether nobody else has it locked, what it holds.
pub type Found = (Tid, bool, Content);

/// A step of a session: what others see at once or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Primitive {
    /// Reads a row under the latest state: an index scan under GetLatestSnapshot (`store::heap::read::find`), or a
    /// SELECT of the SQL store at READ COMMITTED.
    Read(RowKey),
    /// Reads all rows of a key under one snapshot (`read_key`).
    ReadKey(u8),
    /// Reads all rows (`read_after`).
    ReadAll,
    /// Locks the newest version from this one on: table_tuple_lock with TUPLE_LOCK_FLAG_FIND_LAST_VERSION
    /// (`lock_version`), SELECT FOR UPDATE. Waits for whoever has it; a row that has another key by then is none.
    Lock(Tid, RowKey),
    /// Locks this version, if nobody has it or has replaced it: table_tuple_lock with LockWaitSkip and no flag
    /// (`lock_version` without `wait`, `lock_seen`).
    TryLock(Tid),
    /// Locks the newest version from this one on if nobody has it: SELECT FOR UPDATE SKIP LOCKED of the SQL store.
    TryLockNewest(Tid, RowKey),
    /// The same of a version that another was updating when it was found, and the version that follows. If that update
    /// has committed by now it waits for whoever has the next: heap_lock_updated_tuple_rec, which knows of no SKIP
    /// LOCKED.
    TryLockUpdated(Tid, Tid, RowKey),
    /// Updates this version after a wait for whoever has it, unless it was replaced: table_tuple_update
    /// (`update_version`).
    Update(Tid, Content),
    /// Deletes it likewise: table_tuple_delete (`delete_version`).
    Delete(Tid),
    /// The owner's UPDATE of the key of a row, likewise.
    Rename(Tid, u8),
    /// Inserts a row that is not yet confirmed, and checks the unique index for another: heap_insert with a speculative
    /// token, index_insert with UNIQUE_CHECK_PARTIAL (`insert_row`).
    Insert(RowKey, Content),
    /// Confirms or takes it back: heap_finish_speculative, heap_abort_speculative (`insert_row`).
    Confirm(Tid, bool),
    /// Finds who is inserting or deleting a row with this primary key, under a dirty snapshot (`wait_for_inserter`).
    FindInserter(RowKey),
    /// Waits until an insert is confirmed or taken back: SpeculativeInsertionWait (`wait_for_inserter`).
    WaitForInsert(Tid),
    /// Waits for the end of a transaction: XactLockTableWait (`wait_for_inserter`).
    WaitForEnd(Xid),
    /// Begins a subtransaction.
    BeginSub,
    /// Commits it into its parent.
    ReleaseSub,
    /// Rolls it back, which frees its locks.
    RollbackSub,
    /// ROLLBACK TO SAVEPOINT: of so many open transactions and subtransactions the last, which begins anew.
    RollbackTo(u8),
    /// Commits.
    Commit,
    /// Rolls back.
    Rollback,
    /// Chooses one of so many: each choice is tried.
    Choose(u8),
    /// Reads the clock.
    Clock,
    /// Looks up the definition, and whether a key is blocked.
    Known(u8),
    /// Defines the limit anew, in the transaction.
    Define(u8),
    /// Blocks a key, in the transaction.
    Block(u8),
    /// Draws the id of a lease, which nobody has drawn.
    Draw,
    /// The shard numbers of a key's rows that this transaction holds (`store::own_locks`).
    Held(u8),
    /// Locks a partition of the memory: what follows up to the next such step is under the lock.
    LockPartition,
    /// Reads an entry, under the lock.
    ReadEntry([u64; 2]),
    /// Counts the entries that were removed or evicted, under the lock.
    CountGone,
    /// Writes it, under the lock: with when nobody misses it, and the instant.
    WriteEntry([u64; 2], Total, i64, i64),
    /// Forgets it, under the lock.
    RemoveEntry([u64; 2]),
    /// Forgets all of a key, under the lock.
    RemoveEntries(u64),
    /// Counts the saved entries that were removed or evicted, under the lock, and looks whether this is a standby,
    /// before the row of a key is read.
    BeforeRead,
    /// Puts in a saved key with what its row has, read since so many evictions, on a standby or not, under the lock.
    LoadSaved(u8, Option<Total>, (u8, bool)),
    /// Reads a saved entry, under the lock.
    ReadSaved(u8),
    /// Writes it, `None`: it is full, under the lock.
    WriteSaved(u8, Option<Total>),
    /// Lists the saved keys, under the lock.
    ListSaved,
    /// Begins to save, once nobody else does: there is one worker.
    BeginTurn,
    /// Copies what is unsaved at a place, under the lock (`SavedMemory::copy`).
    CopySaved(u8),
    /// Ends the transaction in which copies were written, of these keys: commits or not (`background::transaction`).
    EndWrites(bool, Vec<u8>),
    /// Notes under the lock whether the copy of a key was written, which had this state (`SavedMemory::settle`).
    SettleSaved(u8, Option<Total>, bool),
    /// Ceases to save.
    EndTurn,
    /// A step of the worker for which the session waits (`writer::wait`).
    OfWorker(Box<Primitive>),
    /// What the primary has written of a key arrives on this standby: so many tokens are left.
    Replicate(u8, u8),
    /// This standby becomes a primary.
    Promote,
}

impl Primitive {
    /// The step itself, where it is one of the worker.
    pub fn itself(&self) -> &Primitive {
        match self {
            Primitive::OfWorker(step) => step,
            step => step,
        }
    }
}

/// What a step returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StepReply {
    /// Nothing.
    Done,
    /// Whether it was done.
    Was(bool),
    /// A row.
    Row(Option<Found>),
    /// A version that another session is updating, and the next one.
    Updated(Tid, Tid),
    /// Rows.
    Rows(Vec<(RowKey, Found)>),
    /// A version that is not yet confirmed, and whether there is no other.
    Inserted(Tid, bool),
    /// Who inserts or deletes, and which version is not yet confirmed.
    Inserter(Option<(Xid, Option<Tid>)>),
    /// A number.
    Number(u8),
    /// An instant, in microseconds.
    Instant(i64),
    /// The number of the definition, and whether the key is blocked.
    Known(u8, bool),
    /// Shard numbers.
    Held(Vec<i32>),
    /// An entry.
    Entry(Option<Total>),
    /// A saved entry; of a key that is full, `Some(None)`.
    Saved(Option<Option<Total>>),
    /// How many saved entries were evicted, and whether this is a standby.
    BeforeRead(u8, bool),
    /// What came of a saved key that was to be put in.
    Loaded(LoadedKey),
    /// Saved keys with their states, and the place to go on at.
    Copies(Vec<(u8, Option<Total>)>, Option<u8>),
}

/// What is wrong with the rows or the memory, to see that the properties notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A chain of versions is followed without comparing the key again.
    ChainNotCompared,
    /// A lock is given up before the transaction ends.
    LockGivenUp,
    /// What is decided after a wait is what was read before it.
    DecidedBeforeWait,
    /// A read of a row is the transaction's first one.
    OldSnapshot,
    /// A row is inserted without a look for another.
    InsertNotChecked,
    /// An update replaces what another has written meanwhile.
    LostUpdate,
    /// A subtransaction that is rolled back keeps its locks.
    LocksKept,
    /// A subtransaction that is rolled back keeps what it wrote.
    WritesKept,
    /// A transaction that is rolled back keeps what it wrote.
    RollbackKept,
    /// A commit keeps nothing of what was written.
    CommitLost,
    /// Nobody remembers which rows a transaction holds.
    HeldForgotten,
    /// A version that another is writing is read.
    DirtyRead,
    /// A lock without a wait waits.
    TryLockWaits,
    /// The partition's lock is given up between the decision and the write.
    PartitionGivenUp,
    /// An id is drawn twice.
    IdDrawnTwice,
    /// A definition is read once, and kept whatever is defined later.
    DefinitionKept,
    /// What was read of a row is put in though others were evicted meanwhile.
    EvictionsOverlooked,
    /// Two save at once.
    TwoWriters,
    /// Copies are noted as written before the commit.
    SettledBeforeCommit,
    /// A server that stops saves nothing more.
    StoppedUnsaved,
    /// What a standby counted is trusted once it is a primary.
    StandbyTrusted,
    /// Likewise what it read before, where it is put in after.
    StandbyReadTrusted,
}

/// What sessions share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Database {
    /// The versions of rows.
    pub versions: BTreeMap<Tid, Version>,
    /// Transactions and subtransactions, with their parents.
    pub transactions: BTreeMap<Xid, (Option<Xid>, TransactionStatus)>,
    /// By session, its transaction and the open subtransactions.
    pub open: Vec<Vec<Xid>>,
    /// By session, the rows that its transaction has locked or written, and in which subtransaction; the last at the
    /// end.
    pub held: Vec<Vec<(RowKey, Xid)>>,
    /// By session, how many ids it has drawn.
    pub drawn: Vec<u8>,
    /// The clock, in microseconds.
    pub now: i64,
    /// The entries of memory.
    pub entries: BTreeMap<[u64; 2], MemoryEntry>,
    /// How many were ever made.
    pub born: u8,
    /// For how many entries there is room; 0: for all.
    pub room: u8,
    /// The keys whose entries were forgotten or, while they were in use, evicted, for who keeps the books.
    pub forgotten: Vec<u64>,
    /// The saved keys that have another state than calls are told: they were reset, or read on a standby.
    pub noted: Vec<(u8, Option<Total>)>,
    /// Whether a key was refused though there was room.
    pub refused: bool,
    /// The number of the definition.
    pub defined: u8,
    /// By session, what its transaction defines.
    pub defining: Vec<Option<u8>>,
    /// The entries that are saved.
    pub saved: SavedPlaces,
    /// Whether this is a standby.
    pub in_recovery: bool,
    /// The keys that are blocked.
    pub blocked: Vec<u8>,
    /// By session, the key that its transaction blocks.
    pub blocking: Vec<Option<u8>>,
    /// Transactions that have ended, and for whose end somebody waits.
    pub awaited: Vec<Xid>,
    /// What is wrong, on purpose.
    pub flaw: Option<Flaw>,
}

impl Database {
    /// A database of so many sessions, each in a transaction.
    pub fn new(sessions: usize) -> Database {
        let mut database = Database {
            open: vec![Vec::new(); sessions],
            held: vec![Vec::new(); sessions],
            drawn: vec![0; sessions],
            defining: vec![None; sessions],
            blocking: vec![None; sessions],
            ..Database::default()
        };
        (0..sessions).for_each(|session| database.begin(session));
        database
    }

    /// Whether it has this flaw.
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}
