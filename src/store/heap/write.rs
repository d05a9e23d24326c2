//! Locking rows and writing them.

use std::ffi::c_int;

use pgrx::pg_sys;
use ratelimit_core::State;

use super::open::{Heap, guarded};
use super::read::{hash, scan_keys};
use super::row::{RawRow, Text, columns, is_row};
use super::{own, raw, roots};
use crate::pg::error::Result;
use crate::pg::usual_table::COLUMNS;
use crate::store::rows::{Row, RowId, TupleId};

impl Heap {
    /// Locks the newest version of a row; `None` if the row is gone, is no longer this one, or has
    /// moved on in this moment, or with `wait` false if another transaction has it.
    pub fn lock_version(&self, id: RowId, found: RawRow, wait: bool) -> Result<Option<Row>> {
        let mut tid = found.tid;
        let tid = &mut tid;
        let (policy, flags) = match wait {
            true => {
                (pg_sys::LockWaitPolicy::LockWaitBlock, pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION)
            }
            // Following an update can wait whatever the policy says.
            false => (pg_sys::LockWaitPolicy::LockWaitSkip, 0),
        };
        // SAFETY: the row was found in this table, and its tuple id is still good (see TupleId).
        let row = unsafe {
            guarded(|| {
                let (result, traversed) =
                    raw::table_tuple_lock(self.table, tid, self.fetched, policy, flags);
                let mut row = None;
                if result == pg_sys::TM_Result::TM_Ok {
                    raw::slot_getsomeattrs_int(self.fetched, COLUMNS as c_int);
                    if !traversed || is_row(self.fetched, id) {
                        row = Some(RawRow::of(self.fetched, true));
                    }
                }
                raw::clear(self.fetched);
                row
            })
        };
        row.map(|row| Ok(row.found()?.1)).transpose()
    }

    pub fn lock_newest(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        match self.find(id) {
            Some(found) => self.lock_version(id, found, wait),
            None => Ok(None),
        }
    }

    /// Locks a version that was only read; false if another transaction has it, or has replaced it.
    /// Waits for nobody.
    pub fn lock_seen(&self, seen: &Row) -> bool {
        let TupleId { tid: Some(mut tid), unlocked: true } = seen.tuple else { return false };
        let tid = &mut tid;
        // SAFETY: the row was found in this table, and its tuple id is still good (see TupleId).
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
    pub fn update_version(&self, id: RowId, at: TupleId, state: &State) -> Result<bool> {
        let Some(mut old) = at.tid else { return Ok(false) };
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, state);
        let (old, values, nulls) = (&mut old, values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: the row was found in this table, and its tuple id is still good (see TupleId). The tuple is
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
    pub fn delete_version(&self, at: TupleId) -> Result<bool> {
        let Some(mut tid) = at.tid else { return Ok(false) };
        let tid = &mut tid;
        // SAFETY: the row was found in this table, and its tuple id is still good (see TupleId).
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
    pub unsafe fn insert_index(
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
    pub fn wait_for_inserter(&self, id: RowId) {
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
                let mut other = None;
                self.scan(dirty, keys, |_| {
                    let found = &*dirty;
                    let valid = |xid: pg_sys::TransactionId| {
                        (xid != pg_sys::InvalidTransactionId).then_some(xid)
                    };
                    let tid = (*self.fetched).tts_tid;
                    other = valid(found.xmin)
                        .map(|xid| (xid, found.speculativeToken, tid))
                        .or(valid(found.xmax).map(|xid| (xid, 0, tid)));
                    other.is_none()
                });
                if let Some((xid, token, mut tid)) = other {
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

    /// See [`Store::insert`](crate::store::rows::Store::insert).
    pub fn insert_row(&self, id: RowId, state: &State) -> Result<bool> {
        let (name, key) = (Text::new(id.name), Text::new(id.key));
        let (mut values, mut nulls) = columns(&name, &key, id.shard, state);
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
            None => self.wait_for_inserter(id),
        }
        Ok(new.is_some())
    }
}
