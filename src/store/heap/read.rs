//! Finding rows: where they were last time, or by the index, under the latest state.

use std::ffi::c_int;

use pgrx::pg_sys;
use xxhash_rust::xxh64::xxh64;

use super::open::{Heap, guarded};
use super::row::{RawRow, Text, is_row, texts_of};
use super::{own, raw, roots};
use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::usual_table::COLUMNS;
use crate::store::rows::{KeyedRow, RowId, ShardRow};

/// The keys of a scan for a name, a key and a shard number, or for the first of them; `above` the
/// last that is given, or for it.
pub fn scan_keys<const N: usize>(
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
pub unsafe fn under_latest<T: Copy>(calls: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
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
pub fn is_serializable() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}

/// By which a row is remembered.
pub fn hash(id: RowId) -> u64 {
    xxh64(id.key, xxh64(id.name, id.shard as u64))
}

/// The block of a place.
fn block(tid: &pg_sys::ItemPointerData) -> pg_sys::BlockNumber {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

/// One of several rows, each of which can be large.
pub fn found(row: RawRow) -> Result<ShardRow> {
    check_for_interrupts();
    row.found()
}

impl Heap {
    /// Hands over each row that a scan for these keys finds under the latest state, and where its
    /// index entry leads, until told to stop. In a SERIALIZABLE transaction the scan of a snapshot
    /// would leave predicate locks: there all versions are scanned, and which of them the snapshot
    /// sees is asked here.
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
                self.scan(every, keys, |root| !self.is_seen_by(latest) || visit(root));
            });
        }
    }

    /// Hands over each row that a scan for these keys finds, in `fetched`, and where its index entry
    /// leads, until told to stop.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn scan(
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
    pub unsafe fn is_seen_by(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: the slot pins the page of the version.
        unsafe { raw::table_tuple_satisfies_snapshot(self.table, self.fetched, snapshot) }
    }

    /// The row.
    pub fn find(&self, id: RowId) -> Option<RawRow> {
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
    pub unsafe fn fetched_row(&self) -> RawRow {
        // SAFETY: the slot has been deformed.
        unsafe { RawRow::of(self.fetched, self.is_unlocked()) }
    }

    /// Whether no other transaction has the version locked that is fetched, or has replaced it. It may
    /// have by the time that it matters.
    ///
    /// # Safety
    /// Inside a guard.
    pub unsafe fn is_unlocked(&self) -> bool {
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
    pub unsafe fn at_own(&self, mut tid: pg_sys::ItemPointerData, id: RowId) -> Option<RawRow> {
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
    pub unsafe fn at_root(&self, root: pg_sys::ItemPointerData, id: RowId) -> Option<RawRow> {
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
    pub unsafe fn fetched_if(&self, id: RowId) -> Option<RawRow> {
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
    pub unsafe fn rows<const N: usize, T>(
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

    /// See [`Store::read_key`](crate::store::rows::Store::read_key).
    pub fn rows_of(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        let (name_text, key_text) = (Text::new(name), Text::new(key));
        let arguments = [name_text.datum(), key_text.datum()];
        // SAFETY: a row of the table is fetched.
        let rows = unsafe { self.rows(arguments, false, usize::MAX, || self.fetched_row()) };
        rows.into_iter().map(found).collect()
    }

    /// See [`Store::read_after`](crate::store::rows::Store::read_after).
    pub fn rows_after(
        &self,
        after: (&[u8], &[u8]),
        within: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>> {
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
        let keyed = |([name, key], row): ([Vec<u8>; 2], RawRow)| {
            Ok(KeyedRow { name, key, row: self::found(row)? })
        };
        found.into_iter().map(keyed).collect()
    }

    /// See [`Store::random_key`](crate::store::rows::Store::random_key).
    pub fn key_on_random_page(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
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
