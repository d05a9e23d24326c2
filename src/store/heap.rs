//! The store that reaches the rows through the table itself, without the executor: the row is found
//! by the primary key's index under the latest state, and updated in one step.
//!
//! It owes what the executor did: locks on table and index, a command of its own for every write,
//! index entries where an update is not HOT, predicate locks where they are due (none: like a
//! sequence, a limit is judged by the latest state at every isolation level). For the ordinary
//! table only; see `usual`.

use std::cell::Cell;
use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use crate::catalog::{self, Catalog};
use crate::error::{Error, Result};
use crate::guc;
use crate::postgres::{Scratch, check_for_interrupts, local_transaction, subtransaction};
use crate::spi::TableLock;
use crate::store::{Found, Keyed, Numbered, Place, Row, RowId, SPREAD, Store};

mod index;
mod own;
mod raw;
mod row;
mod usual;

use index::Leads;
pub use own::forget;
use row::{Plain, Text, columns, is_text, texts_of};
use usual::COLUMNS;
pub use usual::{index_of, usual_key};

/// The open table and its index.
pub struct Heap {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
}

/// Opens the table while `work` runs. Its locks last to the end of the transaction.
///
/// # Errors
/// [`Error::Moved`]: it has changed since the catalog was read.
pub fn opened<T>(
    catalog: &Catalog,
    index_oid: pg_sys::Oid,
    work: impl FnOnce(&Heap) -> Result<T>,
) -> Result<T> {
    let oid = catalog.rate_limits.oid;
    let none = pg_sys::NoLock as pg_sys::LOCKMODE;
    let locks = Locks::here(oid, index_oid);
    // SAFETY: opened and closed in pairs; an error leaves closing them to the resource owner.
    unsafe {
        let opened = guarded(|| {
            if READING.get() != Some(locks) {
                // First, since what is announced by then may have moved the table.
                raw::LockRelationOid(oid, TableLock::Read as pg_sys::LOCKMODE);
            }
            if !catalog::is_current() {
                return None;
            }
            if READING.get() != Some(locks) {
                raw::LockRelationOid(index_oid, TableLock::Read as pg_sys::LOCKMODE);
                READING.set(Some(locks));
            }
            Some((raw::table_open(oid, none), raw::index_open(index_oid, none)))
        });
        let Some((table, index)) = opened else { return Err(Error::Moved) };
        let heap = Heap { table, index };
        let result = work(&heap);
        guarded(|| {
            raw::index_close(index, none);
            raw::table_close(table, none);
        });
        result
    }
}

/// Locks on the table and its index, which are held as long as the subtransaction lasts.
#[derive(Clone, Copy, PartialEq)]
struct Locks {
    transaction: pg_sys::LocalTransactionId,
    subtransaction: pg_sys::SubTransactionId,
    table: pg_sys::Oid,
    index: pg_sys::Oid,
}

thread_local! {
    /// Those to read that were taken last, and those to write: a look here is cheaper than asking
    /// for them again.
    static READING: Cell<Option<Locks>> = const { Cell::new(None) };
    static WRITING: Cell<Option<Locks>> = const { Cell::new(None) };
}

impl Locks {
    /// Those of the current subtransaction.
    fn here(table: pg_sys::Oid, index: pg_sys::Oid) -> Locks {
        let transaction = local_transaction();
        Locks { transaction, subtransaction: subtransaction(), table, index }
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
    let mut n = 0;
    arguments.map(|argument| {
        n += 1;
        let (strategy, function) = match (n == N && above, n < 3) {
            (true, true) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT),
            (true, false) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_INT4GT),
            (false, true) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ),
            (false, false) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT4EQ),
        };
        let collation = if n < 3 { pg_sys::C_COLLATION_OID } else { pg_sys::InvalidOid };
        let mut key = pg_sys::ScanKeyData::default();
        let entry = &raw mut key;
        // SAFETY: initializes the key; the functions are built in.
        unsafe {
            guarded(|| {
                raw::ScanKeyEntryInitialize(
                    entry,
                    0,
                    n as pg_sys::AttrNumber,
                    strategy as pg_sys::StrategyNumber,
                    pg_sys::InvalidOid,
                    collation,
                    function.into(),
                    argument,
                );
            });
        }
        key
    })
}

/// Whether the scan of a snapshot would leave predicate locks.
fn is_serializable() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}

impl Heap {
    /// Hands over each row that a scan for these keys finds under the latest state, until told to
    /// stop. In a SERIALIZABLE transaction the scan of a snapshot would leave predicate locks: there
    /// all versions are scanned, and which of them the snapshot sees is asked here.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn scan_latest(
        &self,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(&pg_sys::TupleTableSlot) -> bool,
    ) {
        // SAFETY: the snapshot is good until the next is taken; that of the statement keeps what it
        // sees from being pruned. The slot of a scan of the heap is one of a pinned tuple.
        unsafe {
            let latest = raw::GetLatestSnapshot();
            if !is_serializable() {
                return self.scan(latest, keys, visit);
            }
            self.scan(&raw mut pg_sys::SnapshotAnyData, keys, |slot| {
                let pinned = &*(&raw const *slot).cast::<pg_sys::BufferHeapTupleTableSlot>();
                raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
                let tuple = pinned.base.tuple;
                let seen = raw::HeapTupleSatisfiesVisibility(tuple, latest, pinned.buffer);
                raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
                !seen || visit(slot)
            });
        }
    }

    /// Hands over each row that a scan for these keys finds, until told to stop.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn scan(
        &self,
        snapshot: pg_sys::Snapshot,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(&pg_sys::TupleTableSlot) -> bool,
    ) {
        // SAFETY: the relations are open; the keys outlive the scan.
        unsafe {
            let slot = raw::table_slot_create(self.table, std::ptr::null_mut());
            let nkeys = keys.len() as c_int;
            #[cfg(not(feature = "pg18"))]
            let scan = raw::index_beginscan(self.table, self.index, snapshot, nkeys, 0);
            #[cfg(feature = "pg18")]
            let scan = raw::index_beginscan(
                self.table,
                self.index,
                snapshot,
                std::ptr::null_mut(),
                nkeys,
                0,
            );
            raw::index_rescan(scan, keys.as_mut_ptr(), nkeys, std::ptr::null_mut(), 0);
            while raw::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
                raw::slot_getsomeattrs_int(slot, COLUMNS.len() as c_int);
                if !visit(&*slot) {
                    break;
                }
            }
            raw::index_endscan(scan);
            raw::ExecDropSingleTupleTableSlot(slot);
        }
    }

    /// The row.
    fn find(&self, id: RowId) -> Option<Plain> {
        if let Some(own) = self.find_own(id) {
            return Some(own);
        }
        // SAFETY: in a guard, of plain data.
        unsafe {
            guarded(|| {
                let latest = raw::GetLatestSnapshot();
                let (mut tuple, mut buffer) = Default::default();
                index::search(self.table, self.index, id, |tid| {
                    self.follow(tid, latest, &mut tuple, &mut buffer)
                });
                (buffer != 0).then(|| self.taken_from(&mut tuple, buffer))
            })
        }
    }

    /// Finds the version of a row that a snapshot sees, where an entry of the index leads. If there
    /// is one, its buffer is pinned.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn follow(
        &self,
        mut tid: pg_sys::ItemPointerData,
        snapshot: pg_sys::Snapshot,
        tuple: *mut pg_sys::HeapTupleData,
        buffer: &mut pg_sys::Buffer,
    ) -> Leads {
        // SAFETY: as the fetch of an index scan goes about it.
        unsafe {
            let page = raw::ReadBuffer(self.table, index::block(&tid));
            raw::heap_page_prune_opt(self.table, page);
            raw::LockBuffer(page, pg_sys::BUFFER_LOCK_SHARE as c_int);
            let mut all_dead = false;
            let mut next = |snapshot, first| {
                raw::heap_hot_search_buffer(
                    &mut tid,
                    self.table,
                    page,
                    snapshot,
                    tuple,
                    &mut all_dead,
                    first,
                )
            };
            let found = if is_serializable() {
                let every = &raw mut pg_sys::SnapshotAnyData;
                let mut found = next(every, true);
                while found && !raw::HeapTupleSatisfiesVisibility(tuple, snapshot, page) {
                    found = next(every, false);
                }
                found
            } else {
                next(snapshot, true)
            };
            raw::LockBuffer(page, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
            if found {
                *buffer = page;
                return Leads::ToIt;
            }
            raw::ReleaseBuffer(page);
            if all_dead { Leads::ToDead } else { Leads::Astray }
        }
    }

    /// What is in a tuple whose buffer is pinned, and then no more.
    ///
    /// # Safety
    /// Inside a guard.
    unsafe fn taken_from(
        &self,
        tuple: &mut pg_sys::HeapTupleData,
        buffer: pg_sys::Buffer,
    ) -> Plain {
        // SAFETY: as the caller says.
        unsafe {
            let (values, nulls) = self.deformed(tuple);
            let row = Plain::new(tuple.t_self, values.as_ptr(), nulls.as_ptr());
            raw::ReleaseBuffer(buffer);
            row
        }
    }

    /// The columns of a tuple.
    ///
    /// # Safety
    /// Inside a guard; the tuple is one of the table, and good as long as the columns are used.
    unsafe fn deformed(
        &self,
        tuple: &mut pg_sys::HeapTupleData,
    ) -> ([pg_sys::Datum; 7], [bool; 7]) {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 7], [false; 7]);
        // SAFETY: the table has so many columns.
        unsafe {
            let columns = (*self.table).rd_att;
            raw::heap_deform_tuple(tuple, columns, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        (values, nulls)
    }

    /// The row where this transaction wrote it last, if it did: nobody else can have changed it.
    fn find_own(&self, id: RowId) -> Option<Plain> {
        let tid = own::place(id)?;
        // SAFETY: the page is there, since this transaction wrote to it, has kept the table locked
        // since, and the table has not changed. The hash may be that of another row; so all of it is
        // looked at.
        unsafe {
            guarded(|| {
                let mut tuple = pg_sys::HeapTupleData { t_self: tid, ..Default::default() };
                let mut buffer: pg_sys::Buffer = 0;
                let current = &raw mut pg_sys::SnapshotSelfData;
                if !raw::heap_fetch(self.table, current, &mut tuple, &mut buffer, false) {
                    return None;
                }
                let (values, nulls) = self.deformed(&mut tuple);
                let same = is_text(values[0], id.name)
                    && is_text(values[1], id.key)
                    && values[2].value() as i32 == id.shard;
                let row = same.then(|| Plain::new(tid, values.as_ptr(), nulls.as_ptr()));
                raw::ReleaseBuffer(buffer);
                row
            })
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
        take: impl Fn(&pg_sys::TupleTableSlot) -> T,
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
                self.scan_latest(keys, |slot| {
                    found.push(take(slot));
                    found.len() < most
                });
            });
        }
        rows
    }

    /// Locks table and index as a write needs them, to the end of the (sub)transaction.
    ///
    /// # Errors
    /// [`Error::Moved`]: while it waited the table changed.
    fn lock_for_writing(&self) -> Result<()> {
        // SAFETY: reads the descriptions of the open relations; locks in a guard.
        unsafe {
            let (table, index) = ((*self.table).rd_id, (*self.index).rd_id);
            let locks = Locks::here(table, index);
            if WRITING.get() == Some(locks) {
                return Ok(());
            }
            guarded(|| {
                raw::LockRelationOid(table, TableLock::Write as pg_sys::LOCKMODE);
                raw::LockRelationOid(index, TableLock::Write as pg_sys::LOCKMODE);
            });
            if !catalog::is_current() {
                return Err(Error::Moved);
            }
            WRITING.set(Some(locks));
        }
        Ok(())
    }

    /// Locks the newest version of a row; `None` if the row is gone or has moved on in this moment, or
    /// with `wait` false if another transaction has it.
    fn lock_found(&self, found: Plain, wait: bool) -> Option<Found> {
        let mut tid = found.tid;
        let tid = &raw mut tid;
        let policy = if wait {
            pg_sys::LockWaitPolicy::LockWaitBlock
        } else {
            pg_sys::LockWaitPolicy::LockWaitSkip
        };
        // SAFETY: the row was found in this table, and its place is still good (see Place); the access
        // method is the heap, which has a function to lock with.
        let row = unsafe {
            let lock_tuple = (*(*self.table).rd_tableam).tuple_lock;
            guarded(|| {
                let lock_tuple = lock_tuple?;
                let slot = raw::table_slot_create(self.table, std::ptr::null_mut());
                let mut failure = pg_sys::TM_FailureData::default();
                let result = lock_tuple(
                    self.table,
                    tid,
                    raw::GetLatestSnapshot(),
                    slot,
                    raw::GetCurrentCommandId(false),
                    pg_sys::LockTupleMode::LockTupleExclusive,
                    policy,
                    pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8,
                    &mut failure,
                );
                let row = (result == pg_sys::TM_Result::TM_Ok).then(|| {
                    raw::slot_getsomeattrs_int(slot, COLUMNS.len() as c_int);
                    Plain::of(&*slot)
                });
                raw::ExecDropSingleTupleTableSlot(slot);
                row
            })
        };
        row.map(|row| row.found().1)
    }

    fn locked(&self, id: RowId, wait: bool) -> Result<Option<Found>> {
        self.lock_for_writing()?;
        Ok(self.find(id).and_then(|found| self.lock_found(found, wait)))
    }

    /// Puts a new version of a row in the place of one, unless another transaction has that row. One
    /// that this transaction has `locked` is in use as well, by itself.
    fn put(&self, id: RowId, at: Place, row: &Row, locked: bool) -> Result<bool> {
        let Place(Some(mut old)) = at else { return Ok(false) };
        self.lock_for_writing()?;
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, row);
        let (old, values, nulls) = (&raw mut old, values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: the row was found in this table, and its place is still good (see Place). The tuple is
        // formed of the table's columns; an index entry is made where the new version is not in a chain
        // from the old.
        let new = unsafe {
            guarded(|| {
                let tuple = raw::heap_form_tuple((*self.table).rd_att, values, nulls);
                let mut failure = pg_sys::TM_FailureData::default();
                let mut mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
                let cid = raw::GetCurrentCommandId(true);
                let none = std::ptr::null_mut();
                #[cfg(feature = "pg15")]
                let result = raw::heap_update(
                    self.table,
                    old,
                    tuple,
                    cid,
                    none,
                    locked,
                    &mut failure,
                    &mut mode,
                );
                #[cfg(not(feature = "pg15"))]
                let result = {
                    let mut indexes = pg_sys::TU_UpdateIndexes::TU_None;
                    raw::heap_update(
                        self.table,
                        old,
                        tuple,
                        cid,
                        none,
                        locked,
                        &mut failure,
                        &mut mode,
                        &mut indexes,
                    )
                };
                let done = result == pg_sys::TM_Result::TM_Ok;
                if done {
                    let header = (*tuple).t_data;
                    if u32::from((*header).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE == 0 {
                        self.insert_index(values, nulls, &mut (*tuple).t_self, true);
                    }
                    raw::CommandCounterIncrement();
                }
                let new = (*tuple).t_self;
                raw::heap_freetuple(tuple);
                done.then_some(new)
            })
        };
        if let Some(new) = new {
            own::remember(id, new);
        }
        Ok(new.is_some())
    }

    /// Deletes a row, unless another transaction has it; see [`put`](Heap::put).
    fn take_out(&self, at: Place, locked: bool) -> Result<bool> {
        let Place(Some(mut tid)) = at else { return Ok(false) };
        let tid = &raw mut tid;
        self.lock_for_writing()?;
        // SAFETY: the row was found in this table, and its place is still good (see Place).
        let result = unsafe {
            guarded(|| {
                let mut failure = pg_sys::TM_FailureData::default();
                let cid = raw::GetCurrentCommandId(true);
                let none = std::ptr::null_mut();
                let result =
                    raw::heap_delete(self.table, tid, cid, none, locked, &mut failure, false);
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
        // SAFETY: as a unique index is checked: a dirty snapshot tells who has the row; all pins are
        // dropped before the wait.
        unsafe {
            guarded(|| {
                let mut dirty = pg_sys::SnapshotData {
                    snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
                    ..Default::default()
                };
                let dirty = &raw mut dirty;
                let mut rival = None;
                self.scan(dirty, keys, |slot| {
                    let found = &*dirty;
                    let valid = |xid: pg_sys::TransactionId| {
                        (xid != pg_sys::InvalidTransactionId).then_some(xid)
                    };
                    rival = valid(found.xmin)
                        .map(|xid| (xid, found.speculativeToken, slot.tts_tid))
                        .or(valid(found.xmax).map(|xid| (xid, 0, slot.tts_tid)));
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

impl Store for Heap {
    fn read(&self, id: RowId) -> Result<Option<Found>> {
        Ok(self.find(id).map(|row| row.found().1))
    }

    fn lock(&self, id: RowId) -> Result<Option<Found>> {
        self.locked(id, true)
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Found>> {
        self.locked(id, false)
    }

    fn replace(&self, id: RowId, seen: &Found, row: &Row) -> Result<bool> {
        // heap_update answers "being modified" to who doesn't wait, but an assertion says that
        // nobody does so.
        if guc::has_assertions() {
            return Ok(false);
        }
        self.put(id, seen.at, row, false)
    }

    fn read_some(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<Numbered>> {
        let rows = shards.iter().filter_map(|&shard| self.find(RowId { name, key, shard }));
        Ok(rows.map(Plain::found).collect())
    }

    fn read_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        let (name_text, key_text) = (Text::new(name), Text::new(key));
        let arguments = [name_text.datum(), key_text.datum()];
        // SAFETY: the slot holds a row of the table.
        let rows = unsafe { self.rows(arguments, false, usize::MAX, |slot| Plain::of(slot)) };
        Ok(rows.into_iter().map(Plain::found).collect())
    }

    fn lock_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        self.lock_for_writing()?;
        let mut rows = Vec::new();
        for (shard, _) in self.read_all(name, key)? {
            let id = RowId { name, key, shard };
            rows.extend(self.lock(id)?.map(|found| (shard, found)));
        }
        Ok(rows)
    }

    fn insert(&self, id: RowId, row: &Row) -> Result<bool> {
        self.lock_for_writing()?;
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, row);
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: as INSERT ... ON CONFLICT DO NOTHING does it: the row is marked as speculative
        // until the index has found no other like it, and else deleted again at once.
        let new = unsafe {
            guarded(|| {
                let xid = raw::GetCurrentTransactionId();
                let tuple = raw::heap_form_tuple((*self.table).rd_att, values, nulls);
                let token = raw::SpeculativeInsertionLockAcquire(xid);
                let ctid = &raw mut (*(*tuple).t_data).t_ctid;
                (*ctid).ip_blkid.bi_hi = (token >> 16) as u16;
                (*ctid).ip_blkid.bi_lo = token as u16;
                (*ctid).ip_posid = pg_sys::SpecTokenOffsetNumber as u16;
                let cid = raw::GetCurrentCommandId(true);
                let options = pg_sys::HEAP_INSERT_SPECULATIVE as c_int;
                raw::heap_insert(self.table, tuple, cid, options, std::ptr::null_mut());
                let mut tid = (*tuple).t_self;
                let alone = self.insert_index(values, nulls, &mut tid, false);
                if alone {
                    raw::heap_finish_speculative(self.table, &mut tid);
                } else {
                    raw::heap_abort_speculative(self.table, &mut tid);
                }
                raw::SpeculativeInsertionLockRelease(xid);
                raw::CommandCounterIncrement();
                raw::heap_freetuple(tuple);
                alone.then_some(tid)
            })
        };
        match new {
            Some(tid) => own::remember(id, tid),
            None => self.wait_for_rival(id),
        }
        Ok(new.is_some())
    }

    fn update(&self, id: RowId, locked: Place, row: &Row) -> Result<()> {
        if self.put(id, locked, row, true)? { Ok(()) } else { Err(self.not_written()) }
    }

    fn delete(&self, _: RowId, locked: Place) -> Result<()> {
        if self.take_out(locked, true)? { Ok(()) } else { Err(self.not_written()) }
    }

    fn remove(&self, seen: &Found) -> Result<bool> {
        self.take_out(seen.at, false)
    }

    fn reset(&self, name: &[u8], key: &[u8]) -> Result<bool> {
        let id = RowId { name, key, shard: 0 };
        let reset = |row: &Row| Row { value: f64::INFINITY, ts: row.ts, prior: None, log: None };
        if let Some(seen) = self.read(id)?
            && seen.row.ts != SPREAD
            && (seen.row.value == f64::INFINITY || self.replace(id, &seen, &reset(&seen.row))?)
        {
            return Ok(seen.row.value != f64::INFINITY);
        }
        self.lock(id)?;
        let mut was = false;
        for (shard, found) in self.lock_all(name, key)? {
            if found.row.value != f64::INFINITY {
                self.update(RowId { name, key, shard }, found.at, &reset(&found.row))?;
                was = true;
            }
        }
        Ok(was)
    }

    fn reset_all(&self, name: &[u8]) -> Result<i64> {
        self.lock_for_writing()?;
        let mut keys = std::collections::BTreeSet::new();
        let mut scratch = Scratch::new();
        // Again, since a row that was waited for may have become several.
        for _ in 0..3 {
            let name_text = Text::new(name);
            // SAFETY: the second and the third column are the key and the shard.
            let rows = unsafe {
                self.rows([name_text.datum()], false, usize::MAX, |slot| {
                    let [key] = texts_of([*slot.tts_values.add(1)]);
                    (key, (*slot.tts_values.add(2)).value() as i32)
                })
            };
            if rows.is_empty() {
                break;
            }
            for (key, shard) in rows {
                check_for_interrupts();
                let id = RowId { name, key: &key, shard };
                let held = scratch.run(|| -> Result<bool> {
                    let Some(found) = self.lock(id)? else { return Ok(false) };
                    self.delete(id, found.at)?;
                    Ok(found.row.value != f64::INFINITY)
                })?;
                if held {
                    keys.insert(key);
                }
            }
        }
        Ok(keys.len() as i64)
    }

    fn read_after(&self, after: (&[u8], &[u8]), within: bool, rows: i64) -> Result<Vec<Keyed>> {
        let (name, key) = (Text::new(after.0), Text::new(after.1));
        let most = usize::try_from(rows).unwrap_or(0);
        let take = |slot: &pg_sys::TupleTableSlot| {
            // SAFETY: the first two columns are the name and the key.
            unsafe {
                let row = Plain::of(slot);
                (texts_of([*slot.tts_values, *slot.tts_values.add(1)]), row)
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
        let keyed =
            |([name, key], row): ([Vec<u8>; 2], Plain)| Keyed { name, key, row: row.found() };
        Ok(found.into_iter().map(keyed).collect())
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
                    let mut tuple = pg_sys::HeapTupleData::default();
                    tuple.t_self.ip_blkid.bi_hi = (page >> 16) as u16;
                    tuple.t_self.ip_blkid.bi_lo = page as u16;
                    tuple.t_self.ip_posid = n;
                    let mut buffer = 0;
                    let any = &raw mut pg_sys::SnapshotSelfData;
                    if raw::heap_fetch(self.table, any, &mut tuple, &mut buffer, false) {
                        let (values, _) = self.deformed(&mut tuple);
                        *found = Some(texts_of([values[0], values[1]]));
                        raw::ReleaseBuffer(buffer);
                        return;
                    }
                }
            });
        }
        Ok(found.take().map(|[name, key]| (name, key)))
    }
}
