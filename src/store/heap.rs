//! The store that reaches the rows through the table itself, without the executor: a row is found
//! where it was last time, or by the primary key's index, under the latest state, and updated in one
//! step. For the ordinary table only; see `usual_table`.
//!
//! # What the executor does, and where that is here
//!
//! Whatever the executor does around a read, a lock or a write is owed. Its steps are those of
//! nodeIndexscan.c, nodeLockRows.c, nodeModifyTable.c (ExecInsert with ON CONFLICT DO NOTHING,
//! ExecUpdate, ExecDelete), execIndexing.c and, nearest to what is done here, execReplication.c
//! (RelationFindReplTupleByIndex, ExecSimpleRelationUpdate).
//!
//! Before any of them:
//!
//! | the executor | here |
//! |---|---|
//! | refuses to write in a read-only transaction, in recovery and in parallel (ExecCheckXactReadOnly) | `transaction::refuse_read_only`, first of all in each SQL function |
//! | checks the privileges of the user, and row security | not needed: calls need none on the tables; a table with row security is not the usual one |
//! | refuses to read an unlogged table on a standby (get_relation_info) | `usual_table::index_of` |
//! | locks the table, as strongly as the whole statement needs, before it touches an index (parse_relation.c, ExecGetRangeTableRelation) | [`opened`], at each call: a lock is never taken to be there still, since one can go with a cursor that fails in a savepoint (AtSubAbort_Portals) |
//! | locks the index (ExecOpenIndices, index_open of a scan) | [`opened`], after the table, as REINDEX does |
//! | processes invalidations with a lock that is new, and plans anew | [`opened`]: `LockRelationOid` processes them, and what was known of the table is then looked up again ([`Error::Moved`]) |
//! | sees what earlier commands of the transaction wrote, and what this one did before (SPI begins a command of its own) | `catalog::with` begins a new command |
//! | has an active snapshot, which keeps what it sees from being pruned, and TOAST readable | `catalog::with` pushes one where there is none; `usual_table::index_of` refuses where that would not be enough (`old_snapshot_threshold`) |
//! | checks that the publications allow updates and deletes (CheckCmdReplicaIdentity) | `usual_table::index_of` |
//!
//! To find a row:
//!
//! | the executor | here |
//! |---|---|
//! | scans the index with index_beginscan, index_getnext_tid and index_fetch_heap | [`Heap::scan`], through the same functions; [`Heap::at_root`] begins where the scan led before, and then compares the row |
//! | sees the snapshot of the statement, or of the transaction | the latest, by design: like a sequence, a limit is judged by the latest state at every isolation level |
//! | leaves predicate locks in a SERIALIZABLE transaction | not wanted, by the same design: there [`Heap::scan_latest`] scans all versions, and asks itself which one is seen |
//! | checks for interrupts at each row | [`Heap::scan`] |
//!
//! To lock one (ExecLockRows):
//!
//! | the executor | here |
//! |---|---|
//! | table_tuple_lock, which follows updates to the last version | [`Heap::lock_found`] |
//! | TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS | not needed, as in execReplication.c: a lock FOR UPDATE is never granted beside an update that is in progress, and the last version is locked in the end |
//! | compares the row again if an update was followed (`tmfd.traversed`, EvalPlanQual) | [`Heap::lock_found`] compares name, key and shard; if they differ the row counts as gone, and is looked for anew |
//! | 40001 above READ COMMITTED | not wanted: the latest state |
//! | passes over TM_Deleted, TM_SelfModified and TM_WouldBlock | as no row; the caller looks again |
//!
//! To update one (ExecUpdate):
//!
//! | the executor | here |
//! |---|---|
//! | BEFORE, INSTEAD OF and AFTER triggers, transition tables | not needed: no trigger (`usual_table::index_of`) |
//! | computes generated columns (ExecComputeStoredGenerated) | not needed: none |
//! | checks NOT NULL and CHECK, partition bounds, views' and policies' conditions (ExecConstraints) | not needed: the columns that are NOT NULL are those that a call always fills, and there is nothing else to check (`usual_table`) |
//! | table_tuple_update with `wait` | [`Heap::put`] |
//! | TM_Updated: locks the last version and evaluates the statement again (EvalPlanQual) | `false`; the limiter locks the row and decides again |
//! | TM_SelfModified: 27000 where a trigger did it | can't be: the version was read in this command, and nothing that writes runs since |
//! | inserts index entries unless the update was HOT (ExecInsertIndexTuples), as unique ones | [`Heap::insert_index`]; not as unique, since the key is the one that the row had before |
//! | aminsertcleanup (17) | not needed: nbtree has none |
//! | a new command for what comes next (CommandCounterIncrement) | [`Heap::put`], [`Heap::take_out`], `insert` |
//! | es_processed, RETURNING | not needed |
//!
//! To delete one (ExecDelete): as an update, by table_tuple_delete, in [`Heap::take_out`].
//!
//! To insert one (ExecInsert with ON CONFLICT DO NOTHING):
//!
//! | the executor | here |
//! |---|---|
//! | looks for a row like it, and waits for who is inserting one (ExecCheckIndexConstraints) | the limiter has just looked; who is inserting one is found by the index entry, and waited for in [`Heap::wait_for_rival`] |
//! | table_tuple_insert_speculative under a speculative insertion lock | `insert` |
//! | index entries with UNIQUE_CHECK_PARTIAL, which tell of a conflict and raise nothing | [`Heap::insert_index`] |
//! | table_tuple_complete_speculative, and the lock given back | `insert` |
//! | 40001 above READ COMMITTED where the other row is not in the snapshot (ExecCheckTIDVisible) | not wanted: the latest state |

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;
use xxhash_rust::xxh64::xxh64;

use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::usual_table::COLUMNS;
use crate::store::{Found, Keyed, Numbered, Place, Row, RowId, Store};

use row::{Plain, Text, columns, is_row, texts_of};

mod own;
mod raw;
mod roots;
mod row;

pub use own::forget;

/// The open table and its index.
#[derive(Clone, Copy)]
pub struct Heap {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    /// Where a row is fetched to: empty between two operations, so that no page stays pinned when a
    /// subtransaction ends.
    fetched: *mut pg_sys::TupleTableSlot,
    /// What a row is written from.
    written: *mut pg_sys::TupleTableSlot,
}

/// Opens the table while `work` runs. Its locks, and those of its index, last to the end of the
/// transaction.
///
/// # Errors
/// [`Error::Moved`]: it has changed since the catalog was read.
pub fn opened<T>(
    catalog: &Catalog,
    index_oid: pg_sys::Oid,
    lock: TableLock,
    work: impl FnOnce(&Heap) -> Result<T>,
) -> Result<T> {
    let oid = catalog.rate_limits.oid;
    let (lock, none) = (lock as pg_sys::LOCKMODE, pg_sys::NoLock as pg_sys::LOCKMODE);
    // SAFETY: opened and closed in pairs; an error leaves closing them to the resource owner.
    unsafe {
        let opened = guarded(|| {
            // First, since what is announced by then may have moved the table.
            raw::LockRelationOid(oid, lock);
            raw::LockRelationOid(index_oid, lock);
            if !catalog::is_current() {
                return None;
            }
            let table = raw::table_open(oid, none);
            let index = raw::index_open(index_oid, none);
            let fetched = raw::table_slot_create(table, std::ptr::null_mut());
            let kind = &raw const pg_sys::TTSOpsHeapTuple;
            let written = raw::MakeSingleTupleTableSlot((*table).rd_att, kind);
            Some(Heap { table, index, fetched, written })
        });
        let Some(heap) = opened else { return Err(Error::Moved) };
        let result = work(&heap);
        let Heap { table, index, fetched, written } = heap;
        guarded(|| {
            raw::ExecDropSingleTupleTableSlot(written);
            raw::ExecDropSingleTupleTableSlot(fetched);
            raw::index_close(index, none);
            raw::table_close(table, none);
        });
        result
    }
}

/// Runs calls of [`raw`]; an error of theirs unwinds from here.
///
/// # Safety
/// `calls` and what it calls hold nothing with a destructor, call nothing of `pg_sys` that is
/// guarded, and don't panic.
unsafe fn guarded<T: Copy>(calls: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller says.
    unsafe { pg_guard_ffi_boundary(calls) }
}

/// The keys of a scan for a name, a key and a shard number, or for the first of them; `above` the
/// last that is given, or for it.
fn scan_keys<const N: usize>(
    arguments: [pg_sys::Datum; N],
    above: bool,
) -> [pg_sys::ScanKeyData; N] {
    let mut keys = [pg_sys::ScanKeyData::default(); N];
    let entries = keys.as_mut_ptr();
    // SAFETY: initializes each of the keys; the functions are built in.
    unsafe {
        guarded(|| {
            for (at, &argument) in arguments.iter().enumerate() {
                let n = at + 1;
                let (strategy, function) = match (n == N && above, n < 3) {
                    (true, true) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT),
                    (true, false) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_INT4GT),
                    (false, true) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ),
                    (false, false) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT4EQ),
                };
                raw::ScanKeyEntryInitialize(
                    entries.add(at),
                    0,
                    n as pg_sys::AttrNumber,
                    strategy as pg_sys::StrategyNumber,
                    pg_sys::InvalidOid,
                    if n < 3 { pg_sys::C_COLLATION_OID } else { pg_sys::InvalidOid },
                    function.into(),
                    argument,
                );
            }
        });
    }
    keys
}

/// Runs calls with a snapshot of the latest state, which is active meanwhile: PostgreSQL wants to know
/// of each that is in use.
///
/// # Safety
/// As [`guarded`], inside it.
unsafe fn under_latest<T: Copy>(calls: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
    // SAFETY: pushed and popped in pairs; an error leaves popping it to the abort of the
    // (sub)transaction.
    unsafe {
        raw::PushActiveSnapshot(raw::GetLatestSnapshot());
        let result = calls(raw::GetActiveSnapshot());
        raw::PopActiveSnapshot();
        result
    }
}

/// Whether the scan of a snapshot would leave predicate locks.
fn is_serializable() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}

/// By which a row is remembered.
fn hash(id: RowId) -> u64 {
    xxh64(id.key, xxh64(id.name, id.shard as u64))
}

/// The block of a place.
fn block(tid: &pg_sys::ItemPointerData) -> pg_sys::BlockNumber {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

impl Heap {
    /// Hands over each row that a scan for these keys finds under the latest state, and where its
    /// index entry leads, until told to stop. In a SERIALIZABLE transaction the scan of a snapshot
    /// would leave predicate locks: there all versions are scanned, and which of them the snapshot
    /// sees is asked here.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn scan_latest(
        &self,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(pg_sys::ItemPointerData) -> bool,
    ) {
        // SAFETY: as the caller says; the snapshot lasts as long as the scan.
        unsafe {
            under_latest(|latest| {
                if !is_serializable() {
                    return self.scan(latest, keys, visit);
                }
                let every = &raw mut pg_sys::SnapshotAnyData;
                self.scan(every, keys, |root| !self.is_seen_by(latest) || visit(root));
            });
        }
    }

    /// Hands over each row that a scan for these keys finds, in `fetched`, and where its index entry
    /// leads, until told to stop.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn scan(
        &self,
        snapshot: pg_sys::Snapshot,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(pg_sys::ItemPointerData) -> bool,
    ) {
        // SAFETY: the relations are open; the keys outlive the scan, the place is read before the
        // scan moves on. Of one entry a snapshot that is no MVCC one can see several versions.
        unsafe {
            let scan = raw::begin_scan(self.table, self.index, snapshot, keys);
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            'rows: loop {
                raw::check_for_interrupts();
                let root = raw::index_getnext_tid(scan, forward);
                if root.is_null() {
                    break;
                }
                let root = *root;
                while raw::index_fetch_heap(scan, self.fetched) {
                    raw::slot_getsomeattrs_int(self.fetched, COLUMNS as c_int);
                    if !visit(root) {
                        break 'rows;
                    }
                    if !(*scan).xs_heap_continue {
                        break;
                    }
                }
            }
            raw::clear(self.fetched);
            raw::index_endscan(scan);
        }
    }

    /// Whether a snapshot sees the version that is fetched.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn is_seen_by(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: the slot pins the page of the version.
        unsafe { raw::table_tuple_satisfies_snapshot(self.table, self.fetched, snapshot) }
    }

    /// The row.
    fn find(&self, id: RowId) -> Option<Plain> {
        let hash = hash(id);
        // SAFETY: in a guard, of plain data.
        unsafe {
            if let Some(tid) = own::place(hash)
                && let Some(row) = guarded(|| self.at_own(tid, id))
            {
                return Some(row);
            }
            if let Some(root) = roots::place(hash)
                && let Some(row) = guarded(|| self.at_root(root, id))
            {
                return Some(row);
            }
        }
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let mut keys = scan_keys([name.datum(), key.datum(), id.shard.into()], false);
        let keys = &mut keys[..];
        // SAFETY: as above.
        let found = unsafe {
            guarded(|| {
                let mut found = None;
                self.scan_latest(keys, |root| {
                    found = Some((self.fetched_row(), root));
                    false
                });
                found
            })
        };
        found.map(|(row, root)| {
            roots::remember(hash, root);
            row
        })
    }

    /// The row that is fetched.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn fetched_row(&self) -> Plain {
        // SAFETY: the slot has been deformed.
        unsafe { Plain::of(self.fetched, self.is_free()) }
    }

    /// Whether no other transaction has the version locked that is fetched, or has replaced it. It may
    /// have by the time that it matters.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn is_free(&self) -> bool {
        // SAFETY: a slot that was fetched to is one of a pinned tuple of the heap, whose header can be
        // read as it is: bits that others set meanwhile make the answer no worse.
        unsafe {
            let pinned = &*self.fetched.cast::<pg_sys::BufferHeapTupleTableSlot>();
            let tuple = pinned.base.tuple;
            let header = &*(*tuple).t_data;
            if u32::from(header.t_infomask) & pg_sys::HEAP_XMAX_INVALID != 0 {
                return true;
            }
            if u32::from(header.t_infomask) & pg_sys::HEAP_XMAX_IS_MULTI == 0
                && raw::TransactionIdIsCurrentTransactionId(header.t_choice.t_heap.t_xmax)
            {
                return true;
            }
            // As pgrowlocks asks. This may set bits, so it wants the page locked.
            raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
            let cid = raw::GetCurrentCommandId(false);
            let result = raw::HeapTupleSatisfiesUpdate(tuple, cid, pinned.buffer);
            raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
            result == pg_sys::TM_Result::TM_Ok
        }
    }

    /// The row where this transaction wrote it last, if it did: nobody else can have changed it.
    ///
    /// # Safety
    /// Inside a guard; the place is from [`own`].
    unsafe fn at_own(&self, mut tid: pg_sys::ItemPointerData, id: RowId) -> Option<Plain> {
        // SAFETY: the page is there (see `own`). The hash may be that of another row.
        unsafe {
            let current = &raw mut pg_sys::SnapshotSelfData;
            if !raw::table_tuple_fetch_row_version(self.table, &mut tid, current, self.fetched) {
                return None;
            }
            self.fetched_if(id)
        }
    }

    /// The row where the index entry led before.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn at_root(&self, root: pg_sys::ItemPointerData, id: RowId) -> Option<Plain> {
        // SAFETY: nothing of the place is taken for granted but that its page is there, and nobody
        // can cut that off while the table is locked.
        unsafe {
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            if block(&root) >= raw::RelationGetNumberOfBlocksInFork(self.table, main) {
                return None;
            }
            let fetch = raw::table_index_fetch_begin(self.table);
            let row = under_latest(|latest| {
                let serializable = is_serializable(); // see `scan_latest`
                let snapshot = if serializable { &raw mut pg_sys::SnapshotAnyData } else { latest };
                let (mut tid, mut again, slot) = (root, false, self.fetched);
                while raw::table_index_fetch_tuple(fetch, &mut tid, snapshot, slot, &mut again) {
                    if !serializable || self.is_seen_by(latest) {
                        return self.fetched_if(id);
                    }
                    if !again {
                        break;
                    }
                }
                None
            });
            raw::clear(self.fetched);
            raw::table_index_fetch_end(fetch);
            row
        }
    }

    /// The row that is fetched, if it is this one; and lets go of its page.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn fetched_if(&self, id: RowId) -> Option<Plain> {
        // SAFETY: the slot holds a row of the table.
        unsafe {
            raw::slot_getsomeattrs_int(self.fetched, COLUMNS as c_int);
            let row = is_row(self.fetched, id).then(|| self.fetched_row());
            raw::clear(self.fetched);
            row
        }
    }

    /// What `take` makes of the rows that a scan for these finds, in ascending order; of at most so
    /// many.
    ///
    /// # Safety
    /// `take` runs inside a guard.
    unsafe fn rows<const N: usize, T>(
        &self,
        arguments: [pg_sys::Datum; N],
        above: bool,
        most: usize,
        take: impl Fn() -> T,
    ) -> Vec<T> {
        let mut keys = scan_keys(arguments, above);
        let keys = &mut keys[..];
        let mut rows = Vec::new();
        if most == 0 {
            return rows;
        }
        let found = &mut rows;
        // SAFETY: a scan in a guard. An error jumps over no temporary of ours, and the list is out
        // here.
        unsafe {
            guarded(|| {
                self.scan_latest(keys, |_| {
                    found.push(take());
                    found.len() < most
                });
            });
        }
        rows
    }

    /// Locks the newest version of a row; `None` if the row is gone, is no longer this one, or has
    /// moved on in this moment, or with `wait` false if another transaction has it.
    fn lock_found(&self, id: RowId, found: Plain, wait: bool) -> Result<Option<Found>> {
        let mut tid = found.tid;
        let tid = &mut tid;
        let (policy, flags) = match wait {
            true => {
                (pg_sys::LockWaitPolicy::LockWaitBlock, pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION)
            }
            // Following an update can wait whatever the policy says.
            false => (pg_sys::LockWaitPolicy::LockWaitSkip, 0),
        };
        // SAFETY: the row was found in this table, and its place is still good (see Place).
        let row = unsafe {
            guarded(|| {
                let (result, traversed) =
                    raw::table_tuple_lock(self.table, tid, self.fetched, policy, flags);
                let mut row = None;
                if result == pg_sys::TM_Result::TM_Ok {
                    raw::slot_getsomeattrs_int(self.fetched, COLUMNS as c_int);
                    if !traversed || is_row(self.fetched, id) {
                        row = Some(Plain::of(self.fetched, true));
                    }
                }
                raw::clear(self.fetched);
                row
            })
        };
        row.map(|row| Ok(row.found()?.1)).transpose()
    }

    fn locked(&self, id: RowId, wait: bool) -> Result<Option<Found>> {
        match self.find(id) {
            Some(found) => self.lock_found(id, found, wait),
            None => Ok(None),
        }
    }

    /// Locks a version that was only read; false if another transaction has it, or has replaced it.
    /// Waits for nobody.
    fn lock_seen(&self, seen: &Found) -> bool {
        let Place { tid: Some(mut tid), free: true } = seen.at else { return false };
        let tid = &mut tid;
        // SAFETY: the row was found in this table, and its place is still good (see Place).
        unsafe {
            guarded(|| {
                let policy = pg_sys::LockWaitPolicy::LockWaitSkip;
                let (result, _) = raw::table_tuple_lock(self.table, tid, self.fetched, policy, 0);
                raw::clear(self.fetched);
                result == pg_sys::TM_Result::TM_Ok
            })
        }
    }

    /// Puts a new version of a row in the place of one, if that is the newest when nobody has it
    /// locked any more.
    fn put(&self, id: RowId, at: Place, row: &Row) -> Result<bool> {
        let Some(mut old) = at.tid else { return Ok(false) };
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, row);
        let (old, values, nulls) = (&mut old, values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: the row was found in this table, and its place is still good (see Place). The tuple is
        // formed of the table's columns; an index entry is made where the new version is not in a chain
        // from the old.
        let (done, new, entered) = unsafe {
            guarded(|| {
                let tuple = raw::heap_form_tuple((*self.table).rd_att, values, nulls);
                raw::ExecStoreHeapTuple(tuple, self.written, true);
                let (result, enter) = raw::table_tuple_update(self.table, old, self.written);
                let mut new = (*self.written).tts_tid;
                let done = result == pg_sys::TM_Result::TM_Ok;
                if done && enter {
                    self.insert_index(values, nulls, &mut new, true);
                }
                raw::clear(self.written);
                raw::CommandCounterIncrement();
                (done, new, enter)
            })
        };
        if done {
            let hash = hash(id);
            own::remember(hash, new);
            if entered {
                roots::remember(hash, new);
            }
        }
        Ok(done)
    }

    /// Deletes a row, if this is its newest version when nobody has it locked any more.
    fn take_out(&self, at: Place) -> Result<bool> {
        let Some(mut tid) = at.tid else { return Ok(false) };
        let tid = &mut tid;
        // SAFETY: the row was found in this table, and its place is still good (see Place).
        let result = unsafe {
            guarded(|| {
                let result = raw::table_tuple_delete(self.table, tid);
                raw::CommandCounterIncrement();
                result
            })
        };
        Ok(result == pg_sys::TM_Result::TM_Ok)
    }

    /// Enters a row into the index. Of a new row says whether it is the only one of its key; a new
    /// version needs no such look, which would go through all versions of this transaction.
    ///
    /// # Safety
    /// Inside a guard; the values are those of the row.
    unsafe fn insert_index(
        &self,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
        tid: *mut pg_sys::ItemPointerData,
        new_version: bool,
    ) -> bool {
        // SAFETY: the first three columns are those of the index, in order.
        unsafe {
            let check = if new_version {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
            } else {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL
            };
            let info = raw::BuildIndexInfo(self.index);
            raw::index_insert(self.index, values, nulls, tid, self.table, check, new_version, info)
        }
    }

    /// Waits for the transaction that is inserting, or deleting, a row like this.
    fn wait_for_rival(&self, id: RowId) {
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let mut keys = scan_keys([name.datum(), key.datum(), id.shard.into()], false);
        let keys = &mut keys[..];
        // SAFETY: as a unique index is checked (check_exclusion_or_unique_constraint): a dirty snapshot
        // tells who has the row; all pins are dropped before the wait.
        unsafe {
            guarded(|| {
                let mut dirty = pg_sys::SnapshotData {
                    snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
                    ..Default::default()
                };
                let dirty = &raw mut dirty;
                let mut rival = None;
                self.scan(dirty, keys, |_| {
                    let found = &*dirty;
                    let valid = |xid: pg_sys::TransactionId| {
                        (xid != pg_sys::InvalidTransactionId).then_some(xid)
                    };
                    let tid = (*self.fetched).tts_tid;
                    rival = valid(found.xmin)
                        .map(|xid| (xid, found.speculativeToken, tid))
                        .or(valid(found.xmax).map(|xid| (xid, 0, tid)));
                    rival.is_none()
                });
                if let Some((xid, token, mut tid)) = rival {
                    if token != 0 {
                        raw::SpeculativeInsertionWait(xid, token);
                    } else {
                        let operation = pg_sys::XLTW_Oper::XLTW_InsertIndex;
                        raw::XactLockTableWait(xid, self.table, &mut tid, operation);
                    }
                }
            });
        }
    }
}

/// One of several rows, each of which can be large.
fn found(row: Plain) -> Result<Numbered> {
    check_for_interrupts();
    row.found()
}

impl Store for Heap {
    fn read(&self, id: RowId) -> Result<Option<Found>> {
        self.find(id).map(|row| Ok(row.found()?.1)).transpose()
    }

    fn lock(&self, id: RowId) -> Result<Option<Found>> {
        self.locked(id, true)
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Found>> {
        self.locked(id, false)
    }

    fn replace(&self, id: RowId, seen: &Found, row: &Row, wait: bool) -> Result<bool> {
        // A row that somebody has is locked by the caller, if that is to be waited for: after the
        // wait it mostly has another version.
        if !seen.at.free || !(wait || self.lock_seen(seen)) {
            return Ok(false);
        }
        self.put(id, seen.at, row)
    }

    fn read_some(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<Numbered>> {
        let rows = shards.iter().filter_map(|&shard| self.find(RowId { name, key, shard }));
        rows.map(found).collect()
    }

    fn read_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        let (name_text, key_text) = (Text::new(name), Text::new(key));
        let arguments = [name_text.datum(), key_text.datum()];
        // SAFETY: a row of the table is fetched.
        let rows = unsafe { self.rows(arguments, false, usize::MAX, || self.fetched_row()) };
        rows.into_iter().map(found).collect()
    }

    fn lock_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        let mut rows = Vec::new();
        for (shard, _) in self.read_all(name, key)? {
            let id = RowId { name, key, shard };
            rows.extend(self.lock(id)?.map(|found| (shard, found)));
        }
        Ok(rows)
    }

    fn insert(&self, id: RowId, row: &Row) -> Result<bool> {
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, row);
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: as INSERT ... ON CONFLICT DO NOTHING does it: the row is marked as speculative
        // until the index has found no other like it, and else deleted again at once.
        let new = unsafe {
            guarded(|| {
                let tuple = raw::heap_form_tuple((*self.table).rd_att, values, nulls);
                raw::ExecStoreHeapTuple(tuple, self.written, true);
                let xid = raw::GetCurrentTransactionId();
                let token = raw::SpeculativeInsertionLockAcquire(xid);
                raw::table_tuple_insert_speculative(self.table, self.written, token);
                let mut tid = (*self.written).tts_tid;
                let alone = self.insert_index(values, nulls, &mut tid, false);
                raw::table_tuple_complete_speculative(self.table, self.written, token, alone);
                raw::SpeculativeInsertionLockRelease(xid);
                raw::clear(self.written);
                raw::CommandCounterIncrement();
                alone.then_some(tid)
            })
        };
        match new {
            Some(tid) => {
                let hash = hash(id);
                own::remember(hash, tid);
                roots::remember(hash, tid);
            }
            None => self.wait_for_rival(id),
        }
        Ok(new.is_some())
    }

    fn update(&self, id: RowId, locked: Place, row: &Row) -> Result<()> {
        if self.put(id, locked, row)? { Ok(()) } else { Err(self.not_written()) }
    }

    fn delete(&self, _: RowId, locked: Place) -> Result<()> {
        if self.take_out(locked)? { Ok(()) } else { Err(self.not_written()) }
    }

    fn remove(&self, seen: &Found) -> Result<bool> {
        Ok(self.lock_seen(seen) && self.take_out(seen.at)?)
    }

    fn read_after(&self, after: (&[u8], &[u8]), within: bool, rows: i64) -> Result<Vec<Keyed>> {
        let (name, key) = (Text::new(after.0), Text::new(after.1));
        let most = usize::try_from(rows).unwrap_or(0);
        let take = || {
            // SAFETY: a row of the table is fetched, its first two columns are the name and the key.
            unsafe {
                let row = self.fetched_row();
                let values = (*self.fetched).tts_values;
                (texts_of([*values, *values.add(1)]), row)
            }
        };
        // SAFETY: as `take` says.
        let found = unsafe {
            let mut found = self.rows([name.datum(), key.datum()], true, most, take);
            if !within {
                found.extend(self.rows([name.datum()], true, most - found.len(), take));
            }
            found
        };
        let keyed = |([name, key], row): ([Vec<u8>; 2], Plain)| {
            Ok(Keyed { name, key, row: self::found(row)? })
        };
        found.into_iter().map(keyed).collect()
    }

    fn somewhere(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let found = &mut None;
        // SAFETY: a row is pinned while it is read.
        unsafe {
            guarded(|| {
                let main = pg_sys::ForkNumber::MAIN_FORKNUM;
                let pages = raw::RelationGetNumberOfBlocksInFork(self.table, main);
                if pages == 0 {
                    return;
                }
                let page = fastrand::u32(0..pages);
                for n in 1..=pg_sys::MaxOffsetNumber {
                    let mut tid = pg_sys::ItemPointerData::default();
                    tid.ip_blkid.bi_hi = (page >> 16) as u16;
                    tid.ip_blkid.bi_lo = page as u16;
                    tid.ip_posid = n;
                    let any = &raw mut pg_sys::SnapshotSelfData;
                    let table = self.table;
                    if raw::table_tuple_fetch_row_version(table, &mut tid, any, self.fetched) {
                        raw::slot_getsomeattrs_int(self.fetched, COLUMNS as c_int);
                        let values = (*self.fetched).tts_values;
                        *found = Some(texts_of([*values, *values.add(1)]));
                        raw::clear(self.fetched);
                        return;
                    }
                }
            });
        }
        Ok(found.take().map(|[name, key]| (name, key)))
    }
}
