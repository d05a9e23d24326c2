//! Locks rows and writes them.

use std::ffi::c_int;

use pgrx::pg_sys;
use ratelimit_limiter::ports::{Row, RowId, TupleId, Version};

use super::open::{Heap, guarded};
use super::raw::access_method;
use super::read::{hash, scan_keys};
use super::row::{RawRow, TextDatum, has_id, row_values, tuple_id};
use super::shortened::LIMITS;
use super::{own, raw, roots};
use crate::schema::error::Result;

/// The number of columns of name and key, which come first.
const KEY_COLUMNS: usize = 2;

impl Heap {
    /// Locks the newest version of a row; `found` is any of its versions. `None`: it is gone, or has another primary
    /// key now, or, without `wait`, it is locked or was updated meanwhile.
    pub fn lock_version(&self, id: RowId, found: RawRow, wait: bool) -> Result<Option<Row>> {
        let mut tid = found.tid;
        let tid = &mut tid;
        let (policy, flags) = match wait {
            true => {
                (pg_sys::LockWaitPolicy::LockWaitBlock, pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION)
            }
            // Following an update can wait under any policy.
            false => (pg_sys::LockWaitPolicy::LockWaitSkip, 0),
        };
        // SAFETY: the row was found in this table, and its tuple id is still valid (see TupleId).
        let row = unsafe {
            guarded(|| {
                let (result, traversed) =
                    raw::table_tuple_lock(self.table, tid, self.fetched, policy, flags);
                let mut row = None;
                if result == pg_sys::TM_Result::TM_Ok {
                    raw::deform(self.fetched);
                    if !traversed || has_id(self.fetched, id) {
                        row = Some(RawRow::from_slot(self.fetched, true));
                    }
                }
                raw::clear(self.fetched);
                row
            })
        };
        row.map(|row| Ok(row.decode()?.1)).transpose()
    }

    /// Locks a version that was read without a lock. Doesn't wait: false if another transaction has locked or
    /// replaced it.
    pub fn lock_seen(&self, seen: &Row) -> bool {
        let TupleId { tid: Some(tid), unlocked: true, .. } = seen.tuple else { return false };
        let tid = &mut tuple_id(tid);
        // SAFETY: the row was found in this table, and its tuple id is still valid (see TupleId).
        unsafe {
            guarded(|| {
                let policy = pg_sys::LockWaitPolicy::LockWaitSkip;
                let (result, _) = raw::table_tuple_lock(self.table, tid, self.fetched, policy, 0);
                raw::clear(self.fetched);
                result == pg_sys::TM_Result::TM_Ok
            })
        }
    }

    /// Updates a version of a row, after waiting for locks on it; false if it was replaced.
    pub fn update_version(&self, id: RowId, old: TupleId, version: &Version) -> bool {
        let Some(mut old) = old.tid.map(tuple_id) else { return false };
        let (name, key) = (TextDatum::new(id.name), TextDatum::new(id.key));
        let (mut values, mut nulls) = row_values(&name, &key, id.shard, version);
        // SAFETY: the description of the open table.
        let whole = unsafe { (*self.table).rd_att };
        let description = LIMITS.with(|short| short.description(whole, &nulls));
        let stored_otherwise = name.may_be_toasted() || key.may_be_toasted();
        let (old, values, nulls) = (&mut old, values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: the row was found in this table, and its tuple id is still valid (see TupleId), so the version can be
        // fetched. Its name and key, the first two columns, are never NULL. As stored values they lie on its page,
        // which is pinned until the slot is cleared after their last use. A TOAST pointer among them is that version's,
        // which this snapshot keeps, and then also the new version's: heap_update gets both, and keeps unchanged ones.
        // The tuple is formed of the table's columns; an index entry is inserted unless the update is HOT.
        let (done, new, entered) = unsafe {
            guarded(|| {
                if stored_otherwise {
                    let (table, slot) = (self.table, self.fetched);
                    // Visible or not.
                    let any = &raw mut pg_sys::SnapshotAnyData;
                    if !raw::table_tuple_fetch_row_version(table, old, any, slot) {
                        return (false, *old, false);
                    }
                    raw::slot_getsomeattrs_int(slot, KEY_COLUMNS as c_int);
                    std::ptr::copy_nonoverlapping((*slot).tts_values, values, KEY_COLUMNS);
                }
                let tuple = raw::heap_form_tuple(description, values, nulls);
                raw::ExecStoreHeapTuple(tuple, self.written, true);
                let (result, enter) = raw::table_tuple_update(self.table, old, self.written);
                let mut new = (*self.written).tts_tid;
                let done = result == pg_sys::TM_Result::TM_Ok;
                if done && enter {
                    let unchecked = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO;
                    self.insert_index(self.index, values, nulls, &mut new, unchecked, true);
                }
                raw::clear(self.written);
                raw::clear(self.fetched);
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
        done
    }

    /// Deletes a version of a row, after waiting for locks on it; false if it was replaced.
    pub fn delete_version(&self, version: TupleId) -> bool {
        let Some(mut tid) = version.tid.map(tuple_id) else { return false };
        let tid = &mut tid;
        // SAFETY: the row was found in this table, and its tuple id is still valid (see TupleId).
        let result = unsafe {
            guarded(|| {
                let result = raw::table_tuple_delete(self.table, tid, true);
                raw::CommandCounterIncrement();
                result
            })
        };
        result == pg_sys::TM_Result::TM_Ok
    }

    /// Inserts the entry of a version in an index, with the first of the values. Returns whether the key of a new row is
    /// unique. A new version of a row is not checked: the check would scan all versions of this transaction.
    ///
    /// # Safety
    /// Inside a guard; the index is one of the table, the values and the tuple id are the version's.
    pub unsafe fn insert_index(
        &self,
        index: pg_sys::Relation,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
        tid: *mut pg_sys::ItemPointerData,
        check: pg_sys::IndexUniqueCheck::Type,
        new_version: bool,
    ) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            let info = raw::BuildIndexInfo(index);
            raw::index_insert(index, values, nulls, tid, self.table, check, new_version, info)
        }
    }

    /// Waits for the transaction that is inserting or deleting a row with this primary key.
    pub fn wait_for_inserter(&self, id: RowId) {
        let (name, key) = (TextDatum::new(id.name), TextDatum::new(id.key));
        let mut keys = scan_keys([name.datum(), key.datum(), id.shard.into()], 2, false);
        let keys = &mut keys[..];
        // SAFETY: as in the check of a unique index (check_exclusion_or_unique_constraint): a dirty snapshot returns
        // the transaction in progress; all pins are dropped before the wait.
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

    /// Inserts a row like INSERT ... ON CONFLICT DO NOTHING, and returns its tuple id: it is speculative until its
    /// entry in the index has no conflict, and is deleted at once if it has. `other`: the values of the columns of the
    /// other index, none of them NULL.
    ///
    /// # Safety
    /// The description is that of the values, which are those of the table's columns, the first of them not NULL. With
    /// values of another index, that is open.
    pub unsafe fn insert_values(
        &self,
        description: pg_sys::TupleDesc,
        values: &mut [pg_sys::Datum],
        nulls: &mut [bool],
        other: Option<*mut pg_sys::Datum>,
    ) -> Option<pg_sys::ItemPointerData> {
        use pg_sys::IndexUniqueCheck::{UNIQUE_CHECK_NO, UNIQUE_CHECK_PARTIAL};
        let (table, slot) = (self.table, self.written);
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
        // SAFETY: as the caller says.
        unsafe {
            guarded(|| {
                let tuple = raw::heap_form_tuple(description, values, nulls);
                raw::ExecStoreHeapTuple(tuple, slot, true);
                let xid = raw::GetCurrentTransactionId();
                let token = raw::SpeculativeInsertionLockAcquire(xid);
                let (cid, none) = (raw::GetCurrentCommandId(true), std::ptr::null_mut());
                access_method!(table, tuple_insert_speculative(table, slot, cid, 0, none, token));
                let mut tid = (*slot).tts_tid;
                let check = UNIQUE_CHECK_PARTIAL;
                let alone = self.insert_index(self.index, values, nulls, &mut tid, check, false);
                if let Some(values) = other
                    && alone
                {
                    self.insert_index(self.other, values, nulls, &mut tid, UNIQUE_CHECK_NO, false);
                }
                access_method!(table, tuple_complete_speculative(table, slot, token, alone));
                raw::SpeculativeInsertionLockRelease(xid);
                raw::clear(slot);
                raw::CommandCounterIncrement();
                alone.then_some(tid)
            })
        }
    }
}
