//! Finds rows by their last tuple id or by the index, under the latest state.

use std::ffi::c_int;

use pgrx::pg_sys;
use ratelimit_limiter::ports::{RowId, ShardRow};
use xxhash_rust::xxh64::xxh64;

use super::open::{Heap, guarded};
use super::raw::access_method;
use super::row::{RawRow, TextDatum, block, has_id};
use super::{own, raw, roots};
use crate::schema::error::Result;
use ratelimit_pg::interrupts::check_for_interrupts;

/// Returns the scan keys for the first columns of an index, of which the first `texts` are texts, and the others
/// integers. They match equal values; with `above` the last one matches greater values. Not inside a guard.
pub fn scan_keys<const N: usize>(
    arguments: [pg_sys::Datum; N],
    texts: usize,
    above: bool,
) -> [pg_sys::ScanKeyData; N] {
    let mut keys = [pg_sys::ScanKeyData::default(); N];
    let entries = keys.as_mut_ptr();
    // SAFETY: initializes each key; the functions are built in.
    unsafe {
        guarded(|| {
            for (at, &argument) in arguments.iter().enumerate() {
                let n = at + 1;
                let (strategy, function) = match (n == N && above, n <= texts) {
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
                    if n <= texts { pg_sys::C_COLLATION_OID } else { pg_sys::InvalidOid },
                    function.into(),
                    argument,
                );
            }
        });
    }
    keys
}

/// Runs calls with a snapshot of the latest state, which is active meanwhile: PostgreSQL asserts that a snapshot in use
/// is active or registered.
///
/// # Safety
/// As [`guarded`], inside it.
pub unsafe fn under_latest<T: Copy>(calls: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
    // SAFETY: pushed and popped in pairs; after an error the abort of the (sub)transaction pops it.
    unsafe {
        raw::PushActiveSnapshot(raw::GetLatestSnapshot());
        let result = calls(raw::GetActiveSnapshot());
        raw::PopActiveSnapshot();
        result
    }
}

/// Whether the transaction is SERIALIZABLE: scans under an MVCC snapshot would leave predicate locks.
pub fn is_serializable() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}

/// Hashes a primary key, for [`own`] and [`roots`].
pub fn hash(id: RowId) -> u64 {
    xxh64(id.key, xxh64(id.name, id.shard as u64))
}

/// Decodes one of several rows, and checks for interrupts, since each can be large.
pub fn decode(row: RawRow) -> Result<ShardRow> {
    check_for_interrupts();
    row.decode()
}

impl Heap {
    /// Visits each row with these scan keys under the latest state, in `fetched`, with the tuple id in its index entry,
    /// until `visit` returns false. A SERIALIZABLE transaction scans all versions and checks their visibility here,
    /// because the scan of an MVCC snapshot would leave predicate locks.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn scan_latest(
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
                self.scan(every, keys, |root| !self.is_visible(latest) || visit(root));
            });
        }
    }

    /// Visits each row with these scan keys under a snapshot, in `fetched`, with the tuple id in its index entry, until
    /// `visit` returns false.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn scan(
        &self,
        snapshot: pg_sys::Snapshot,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(pg_sys::ItemPointerData) -> bool,
    ) {
        // SAFETY: the relations are open; the keys outlive the scan, the tuple id is copied before the scan moves on. A
        // non-MVCC snapshot can see several versions of one entry.
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
                    raw::deform(self.fetched);
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

    /// Whether the fetched version is visible to a snapshot.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn is_visible(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: the slot pins the page of the version.
        unsafe {
            access_method!(self.table, tuple_satisfies_snapshot(self.table, self.fetched, snapshot))
        }
    }

    /// Finds a row: by this transaction's own version, by the remembered index entry, or by the index.
    pub fn find(&self, id: RowId) -> Option<RawRow> {
        let hash = hash(id);
        // SAFETY: guarded; plain data.
        unsafe {
            if let Some(tid) = own::lookup(hash)
                && let Some(row) = guarded(|| self.fetch_own(tid, id))
            {
                return Some(row);
            }
            if let Some(root) = roots::lookup(hash)
                && let Some(row) = guarded(|| self.fetch_at_root(root, id))
            {
                return Some(row);
            }
        }
        let (name, key) = (TextDatum::new(id.name), TextDatum::new(id.key));
        let mut keys = scan_keys([name.datum(), key.datum(), id.shard.into()], 2, false);
        let keys = &mut keys[..];
        // SAFETY: guarded; plain data, and the texts of the keys outlive the scan.
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

    /// Copies the fetched row.
    ///
    /// # Safety
    /// Inside a guard; the slot holds a row, deformed.
    pub unsafe fn fetched_row(&self) -> RawRow {
        // SAFETY: as the caller says.
        unsafe { RawRow::from_slot(self.fetched, self.is_unlocked()) }
    }

    /// Whether no other transaction has locked or replaced the fetched version. Only a hint: one may do so at any time.
    /// `replace` checks again, and then waits like any update: heap_update without `wait` has no caller in PostgreSQL,
    /// and an assertion against it.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn is_unlocked(&self) -> bool {
        // SAFETY: the slot has a pinned tuple of the heap. Its header can be read without a lock: a bit that is set
        // meanwhile makes the hint no worse.
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
            // As in pgrowlocks. It may set hint bits, so the page is locked.
            raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
            let cid = raw::GetCurrentCommandId(false);
            let result = raw::HeapTupleSatisfiesUpdate(tuple, cid, pinned.buffer);
            raw::LockBuffer(pinned.buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
            result == pg_sys::TM_Result::TM_Ok
        }
    }

    /// Fetches the version that this transaction wrote last, which no other can have changed.
    ///
    /// # Safety
    /// Inside a guard; the tuple id is from [`own`].
    pub unsafe fn fetch_own(&self, mut tid: pg_sys::ItemPointerData, id: RowId) -> Option<RawRow> {
        // SAFETY: the page exists (see `own`). Another row may have the same hash.
        unsafe {
            let current = &raw mut pg_sys::SnapshotSelfData;
            if !raw::table_tuple_fetch_row_version(self.table, &mut tid, current, self.fetched) {
                return None;
            }
            self.matching_row(id)
        }
    }

    /// Fetches the visible version from the tuple id of an index entry, `root`.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn fetch_at_root(&self, root: pg_sys::ItemPointerData, id: RowId) -> Option<RawRow> {
        // SAFETY: the page exists, and can't be truncated while the table is locked; nothing else about the tuple id is
        // assumed.
        unsafe {
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            if block(&root) >= raw::RelationGetNumberOfBlocksInFork(self.table, main) {
                return None;
            }
            let fetch = access_method!(self.table, index_fetch_begin(self.table));
            // Fetches the visible version from a tuple id, or with `again` the next one, and sets it to that one's.
            let next = |tid: &mut _, again: &mut _, snapshot| {
                let (slot, mut all_dead) = (self.fetched, false);
                access_method!(
                    self.table,
                    index_fetch_tuple(fetch, tid, snapshot, slot, again, &mut all_dead)
                )
            };
            let row = under_latest(|latest| {
                let serializable = is_serializable(); // see `scan_latest`
                let snapshot = if serializable { &raw mut pg_sys::SnapshotAnyData } else { latest };
                let (mut tid, mut again) = (root, false);
                while next(&mut tid, &mut again, snapshot) {
                    if !serializable || self.is_visible(latest) {
                        return self.matching_row(id);
                    }
                    if !again {
                        break;
                    }
                }
                None
            });
            raw::clear(self.fetched);
            access_method!(self.table, index_fetch_end(fetch));
            row
        }
    }

    /// Copies the fetched row if it has this primary key, and clears the slot.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn matching_row(&self, id: RowId) -> Option<RawRow> {
        // SAFETY: the slot holds a row of the table.
        unsafe {
            raw::deform(self.fetched);
            let row = has_id(self.fetched, id).then(|| self.fetched_row());
            raw::clear(self.fetched);
            row
        }
    }

    /// Collects the results of `take` for at most `most` rows that match these [`scan_keys`] under the latest state, in
    /// ascending order.
    ///
    /// # Safety
    /// `take` can run inside a guard.
    pub unsafe fn collect<T>(
        &self,
        keys: &mut [pg_sys::ScanKeyData],
        most: usize,
        take: impl Fn() -> T,
    ) -> Vec<T> {
        let mut rows = Vec::new();
        if most == 0 {
            return rows;
        }
        let found = &mut rows;
        // SAFETY: guarded; an error jumps over no value with a destructor: the list is outside.
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
}
