//! Models PostgreSQL's rows: version chains, transactions and subtransactions, row locks, inserts that are not yet
//! confirmed, and reads of the latest committed state. Sessions also share entries of memory, their writer, the
//! definition, blocks and the clock.
//!
//! Each rule has a step, names the functions of PostgreSQL that it stands for, and a spec of `tests/isolation/specs`
//! that shows it:
//!
//! - A read sees the latest committed versions and its own transaction's ([`Primitive::Read`]; GetLatestSnapshot,
//!   HeapTupleSatisfiesMVCC; `model_read`)
//! - A lock waits for the holder, and follows updates ([`Primitive::Lock`]; heap_lock_tuple, heapam_tuple_lock;
//!   `model_lock`)
//! - A chain that ends in a row with another key is another row ([`Primitive::Lock`]; EvalPlanQual; `traversed` of
//!   TM_FailureData; `model_renamed`)
//! - A lock without waiting gets no row that another session has locked ([`Primitive::TryLock`]; heap_lock_tuple with
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
//! - A lock waits for all of several holders ([`Primitive::Lock`]; MultiXactIdWait; `model_multixact`)
//! - Waiters go on in any order, and a new call can come first ([`Database::is_enabled`]; heap_acquire_tuplock;
//!   `model_wait`)
//! - Two sessions that wait for each other end in 40P01 (DeadLockCheck; `model_deadlock`)
//! - A crash leaves what has committed (`soak/crash.rs`)
//!
//! The model has more orders than PostgreSQL, never fewer. Any waiter may get a row next: PostgreSQL's queue (the
//! tuple's heavyweight lock) allows fewer orders, and adds no wait that the row's holder doesn't have as well. Every
//! lock is FOR UPDATE, so at most one of several holders is another session; heap_update takes FOR NO KEY UPDATE, which
//! differs for holders of FOR KEY SHARE only.

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
    /// Its number there, the least free one.
    pub number: u8,
}

/// Any committed transaction: its writes are visible to all.
pub const FROZEN: Xid = Xid { session: u8::MAX, number: 0 };

/// The status of a transaction.
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
    /// The shard number; negative: of a hold.
    pub shard: i32,
}

impl RowKey {
    /// The row of a hold of a key, in a table of its own.
    pub fn of_hold(key: u8, id: &[u8]) -> RowKey {
        RowKey { key, shard: -1 - id_number(id) }
    }

    /// Whether it is a row of a hold.
    pub fn is_hold(self) -> bool {
        self.shard < 0
    }
}

/// The number of a hold's id: fixed for a letter, a hash for a random text.
fn id_number(id: &[u8]) -> i32 {
    match id {
        [letter] => i32::from(*letter),
        _ => 1000 + id.iter().fold(0, |sum, byte| (31 * sum + i32::from(*byte)) % 1_000_003),
    }
}

/// The rows of holds to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhichHolds {
    /// The hold with this id, by the number of its rows.
    OfId(i32),
    /// All holds of a key.
    OfKey(u8),
    /// All.
    All,
}

impl WhichHolds {
    /// The rows of an id.
    pub fn of_id(id: &[u8]) -> WhichHolds {
        WhichHolds::OfId(RowKey::of_hold(0, id).shard)
    }

    /// Whether a row is one of them.
    pub fn has(self, place: &RowKey) -> bool {
        place.is_hold()
            && match self {
                WhichHolds::OfId(number) => place.shard == number,
                WhichHolds::OfKey(key) => place.key == key,
                WhichHolds::All => true,
            }
    }
}

/// A version of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The row's primary key.
    pub place: RowKey,
    /// Its contents.
    pub content: Content,
    /// The transaction that wrote it.
    pub xmin: Xid,
    /// Whether its insert is not yet confirmed.
    pub is_speculative: bool,
    /// The transactions that have it locked.
    pub lockers: Vec<Xid>,
    /// The transaction that updated or deleted it, and the next version.
    pub xmax: Option<(Xid, Option<Tid>)>,
}

/// An entry of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryEntry {
    /// Its contents.
    pub content: Total,
    /// The time from which it may be evicted.
    pub idle_at: i64,
}

/// A row as a session finds it: the version, whether no other session has it locked, its contents.
pub type Found = (Tid, bool, Content);

/// A step of a session, which others see as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Primitive {
    /// Reads a row under the latest state: an index scan under GetLatestSnapshot (`store::heap::read::find`), or a
    /// SELECT of the SQL store at READ COMMITTED.
    Read(RowKey),
    /// Reads all rows of a key under one snapshot (`read_key`).
    ReadKey(u8),
    /// Reads all rows (`read_after`).
    ReadAll,
    /// Reads rows of holds, likewise.
    ReadHolds(WhichHolds),
    /// Locks the newest version from this one on: table_tuple_lock with TUPLE_LOCK_FLAG_FIND_LAST_VERSION
    /// (`lock_version`), SELECT FOR UPDATE. Waits for its holder; a row with another key by then is none.
    Lock(Tid, RowKey),
    /// Locks this version, unless another session has locked or replaced it: table_tuple_lock with LockWaitSkip and no
    /// flag (`lock_version` without `wait`, `lock_seen`).
    TryLock(Tid),
    /// Locks the newest version from this one on unless another session has it locked: SELECT FOR UPDATE SKIP LOCKED of
    /// the SQL store.
    TryLockNewest(Tid, RowKey),
    /// The same for a version that another session was updating when it was found, and the next version. If that update
    /// has committed by now, it waits for the next version's holder: heap_lock_updated_tuple_rec has no SKIP LOCKED.
    TryLockUpdated(Tid, Tid, RowKey),
    /// Updates this version after a wait for its holder, unless it was replaced, to a row with this primary key:
    /// table_tuple_update (`update_version`).
    Update(Tid, RowKey, Content),
    /// Deletes it, likewise: table_tuple_delete (`delete_version`).
    Delete(Tid),
    /// The owner's UPDATE of the key of a row, likewise.
    Rename(Tid, u8),
    /// Inserts a row that is not yet confirmed, and checks the unique index for another: heap_insert with a speculative
    /// token, index_insert with UNIQUE_CHECK_PARTIAL (`insert_values`).
    Insert(RowKey, Content),
    /// Confirms or takes it back: heap_finish_speculative, heap_abort_speculative (`insert_values`).
    Confirm(Tid, bool),
    /// Finds a session that is inserting or deleting a row with this primary key, under a dirty snapshot
    /// (`wait_for_inserter`).
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
    /// ROLLBACK TO SAVEPOINT: this open transaction, counted from 1, which begins again.
    RollbackTo(u8),
    /// Commits.
    Commit,
    /// Rolls back.
    Rollback,
    /// Chooses one of this number: each choice is tried.
    Choose(u8),
    /// Reads the clock.
    Clock,
    /// Looks up the definition, and whether a key is blocked.
    Known(u8),
    /// Redefines the limit, in the transaction.
    Define(u8),
    /// Blocks a key, in the transaction.
    Block(u8),
    /// Draws the id of a lease, a new one.
    Draw,
    /// The shard numbers of a key's rows that this transaction holds (`store::own_locks`).
    OwnRows(u8),
    /// Locks a partition of the memory. The following steps up to the next of these are under the lock.
    LockPartition,
    /// Reads an entry, under the lock.
    ReadEntry([u64; 2]),
    /// Counts the removed and evicted entries, under the lock.
    CountGone,
    /// Writes it, under the lock, with the instant from which it may be evicted, and that of the call.
    WriteEntry([u64; 2], Total, i64, i64),
    /// Forgets it, under the lock.
    RemoveEntry([u64; 2]),
    /// Forgets all of a key, under the lock.
    RemoveEntries(u64),
    /// Counts the removed and evicted saved entries, under the lock, and checks whether this is a standby, before the
    /// row of a key is read.
    BeforeRead,
    /// Loads a saved key with the state of its row, which was read after this number of evictions, on a standby or not,
    /// under the lock.
    LoadSaved(u8, Option<Total>, (u8, bool)),
    /// Reads a saved entry, under the lock.
    ReadSaved(u8),
    /// Writes it, `None`: it is full, under the lock.
    WriteSaved(u8, Option<Total>),
    /// Lists the saved keys, under the lock.
    ListSaved,
    /// Begins to save, once no other session does: there is one worker.
    BeginTurn,
    /// Copies the unsaved state at a place, under the lock (`SavedMemory::copy`).
    CopySaved(u8),
    /// Ends the transaction in which copies were written, of these keys: commits or not (`background::transaction`).
    EndWrites(bool, Vec<u8>),
    /// Marks the copy of a key, with this state, as written or not, under the lock (`SavedMemory::finish`).
    FinishSaved(u8, Option<Total>, bool),
    /// Stops saving.
    EndTurn,
    /// A step of the writer for which the session waits (`writer::wait`).
    OfWriter(Box<Primitive>),
    /// Replays on this standby the primary's write of a key, with these tokens left.
    Replicate(u8, u8),
    /// Promotes this standby.
    Promote,
}

impl Primitive {
    /// The step itself if it is one of the worker.
    pub fn itself(&self) -> &Primitive {
        match self {
            Primitive::OfWriter(step) => step,
            step => step,
        }
    }
}

/// The reply to a step.
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
    /// The session that inserts or deletes, and the version that is not yet confirmed.
    Inserter(Option<(Xid, Option<Tid>)>),
    /// A number.
    Number(u8),
    /// An instant, in microseconds.
    Instant(i64),
    /// The number of the definition, and whether the key is blocked.
    Known(u8, bool),
    /// Shard numbers.
    OwnRows(Vec<i32>),
    /// An entry.
    Entry(Option<Total>),
    /// A saved entry; `Some(None)`: the key is full.
    Saved(Option<Option<Total>>),
    /// The number of evicted saved entries, and whether this is a standby.
    BeforeRead(u8, bool),
    /// The outcome of loading a saved key.
    Loaded(LoadedKey),
    /// Saved keys with their states, and the place at which to continue.
    Copies(Vec<(u8, Option<Total>)>, Option<u8>),
}

/// A fault of the rows or the memory, which a property must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A chain of versions is followed without comparing the key again.
    ChainNotCompared,
    /// A lock is given up before the transaction ends.
    LockGivenUp,
    /// A decision after a wait uses state that was read before it.
    DecidedBeforeWait,
    /// A read of a row is the transaction's first one.
    OldSnapshot,
    /// A row is inserted without checking for another.
    InsertNotChecked,
    /// An update replaces a version that another session has written meanwhile.
    LostUpdate,
    /// A subtransaction that is rolled back keeps its locks.
    LocksKept,
    /// A subtransaction that is rolled back keeps its writes.
    WritesKept,
    /// A transaction that is rolled back keeps its writes.
    RollbackKept,
    /// A commit loses the writes.
    CommitLost,
    /// A session doesn't know which rows it has locked.
    OwnRowsForgotten,
    /// A version that another is writing is read.
    DirtyRead,
    /// A lock without a wait waits.
    TryLockWaits,
    /// The partition's lock is given up between the decision and the write.
    PartitionGivenUp,
    /// An id is drawn twice.
    IdDrawnTwice,
    /// An id is the time.
    IdOfClock,
    /// A subtransaction in which nothing changed is committed, and so keeps its locks.
    DeniedRowKept,
    /// A key without an entry reads the same after one came and went.
    GoneEntryOverlooked,
    /// A definition is read once, and kept in spite of later ones.
    DefinitionKept,
    /// A row's state is loaded although keys were evicted since it was read.
    EvictionsOverlooked,
    /// Two workers save at once.
    TwoWriters,
    /// Copies are marked as written before the commit.
    FinishedBeforeCommit,
    /// A server that stops saves nothing.
    StoppedUnsaved,
    /// A standby's entries still count after its promotion.
    StandbyTrusted,
    /// Rows that a standby read before still count, too.
    StandbyReadTrusted,
}

/// The shared state of the sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Database {
    /// The versions of rows.
    pub versions: BTreeMap<Tid, Version>,
    /// Transactions and subtransactions, with their parents.
    pub transactions: BTreeMap<Xid, (Option<Xid>, TransactionStatus)>,
    /// By session, its transaction and the open subtransactions.
    pub open: Vec<Vec<Xid>>,
    /// By session, the rows that its transaction has locked or written, and in which subtransaction, in this order.
    pub own_rows: Vec<Vec<(RowKey, Xid)>>,
    /// By session, the number of ids that it has drawn.
    pub drawn: Vec<u8>,
    /// The clock, in microseconds.
    pub now: i64,
    /// Whether it moves no more.
    pub clock_stands: bool,
    /// The entries of memory.
    pub entries: BTreeMap<[u64; 2], MemoryEntry>,
    /// The number of entries ever made.
    pub born: u8,
    /// The number of entries that fit; 0: all.
    pub room: u8,
    /// The keys with entries that were removed, or evicted while in use, for the books.
    pub forgotten: Vec<u64>,
    /// The saved keys with a state that changed other than by a call: by a reset, or a read on a standby.
    pub noted: Vec<(u8, Option<Total>)>,
    /// Whether a key was refused although it fitted.
    pub refused: bool,
    /// The number of the definition.
    pub defined: u8,
    /// By session, the definition of its transaction.
    pub defining: Vec<Option<u8>>,
    /// The entries that are saved.
    pub saved: SavedPlaces,
    /// Whether this is a standby.
    pub in_recovery: bool,
    /// The keys that are blocked.
    pub blocked: Vec<u8>,
    /// By session, the key that its transaction blocks.
    pub blocking: Vec<Option<u8>>,
    /// Transactions that have ended while a session waits for their end.
    pub awaited: Vec<Xid>,
    /// Its fault.
    pub flaw: Option<Flaw>,
}

impl Database {
    /// A database with each session in a transaction.
    pub fn new(sessions: usize) -> Database {
        let mut database = Database {
            open: vec![Vec::new(); sessions],
            own_rows: vec![Vec::new(); sessions],
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
