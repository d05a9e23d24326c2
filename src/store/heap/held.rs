//! Holds directly in the heap: found by the index of the primary key, inserted and deleted, like the rows of limits.

use pgrx::pg_sys;
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{Deleted, HoldRow, Holds};

use super::open::{Heap, guarded};
use super::raw;
use super::read::scan_keys;
use super::row::copy_texts;
use super::shortened::HOLDS;
use crate::schema::catalog::{Catalog, TableLock};
use crate::schema::error::Result;
use crate::store::codec::{decode_hold, encode_hold};
use crate::store::holds::by_sql;
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::values::{json_text, jsonb, jsonb_from_json, text_datum, utf8};

/// The open table of holds and its indexes.
pub struct HeldHeap<'a> {
    /// The extension's objects.
    catalog: &'a Catalog,
    /// The lock with which the table is open.
    lock: TableLock,
    /// The table, with the indexes of its primary key and of the holds of a key.
    heap: Heap,
}

/// A fetched row: plain data except for its texts.
struct RawHold {
    tid: pg_sys::ItemPointerData,
    texts: [Vec<u8>; 3],
    /// From `count` to `lease`; `None`: NULL, which the owner may have written while the column allowed it.
    columns: [Option<pg_sys::Datum>; 7],
    /// A detoasted copy, or null.
    config: *mut pg_sys::varlena,
}

impl RawHold {
    /// Copies the row of a slot.
    ///
    /// # Safety
    /// Inside a guard; the slot holds a row of the unaltered table of holds, deformed.
    unsafe fn from_slot(slot: *mut pg_sys::TupleTableSlot) -> RawHold {
        // SAFETY: as the caller says: the columns are those of the table, and those of the primary key not NULL. The
        // copy that may raise an error comes before the copies that it would leak.
        unsafe {
            let value = |n: usize| *(*slot).tts_values.add(n);
            let given = |n: usize| (!*(*slot).tts_isnull.add(n)).then(|| value(n));
            let config = given(10).map_or(std::ptr::null_mut(), |config| {
                raw::pg_detoast_datum_copy(config.cast_mut_ptr())
            });
            let columns = [3, 4, 5, 6, 7, 8, 9].map(given);
            let texts = copy_texts([value(0), value(1), value(2)]);
            RawHold { tid: (*slot).tts_tid, texts, columns, config }
        }
    }

    /// Decodes the row. Calls Postgres: not inside a guard.
    fn decode(self) -> Result<HoldRow> {
        check_for_interrupts();
        let [id, name, key] = self.texts;
        let hold = decode_hold(&name, self.columns)?;
        // SAFETY: a detoasted jsonb, as the column is declared.
        let config = (!self.config.is_null()).then(|| unsafe { jsonb(self.config.into()) });
        Ok(HoldRow { id, name, key, hold, config: config.map(json_text) })
    }
}

impl<'a> HeldHeap<'a> {
    /// Opens the table, under locks that last until the transaction or a [read](crate::schema::catalog::reading) ends;
    /// `None` if it has changed since the catalog was read.
    pub fn open(
        catalog: &'a Catalog,
        indexes: [pg_sys::Oid; 2],
        lock: TableLock,
    ) -> Option<HeldHeap<'a>> {
        let heap = Heap::open_unchanged(catalog, catalog.rl_holds.oid, indexes, lock)?;
        Some(HeldHeap { catalog, lock, heap })
    }

    /// Reads the rows with these first columns of the primary key, in its order.
    fn find<const N: usize>(&self, columns: [&[u8]; N]) -> Result<Vec<HoldRow>> {
        self.scan(columns).into_iter().map(RawHold::decode).collect()
    }

    fn scan<const N: usize>(&self, columns: [&[u8]; N]) -> Vec<RawHold> {
        let mut keys = scan_keys(columns.map(text_datum), 3, false);
        let take = || {
            // SAFETY: called with a row fetched.
            unsafe { RawHold::from_slot(self.heap.fetched) }
        };
        // SAFETY: `take` copies, and an error of its own jumps over no copy.
        unsafe { self.heap.collect(&mut keys, usize::MAX, take) }
    }
}

/// The rows of rl_holds, accessed directly in the heap.
impl Holds for HeldHeap<'_> {
    fn of_id(&self, id: &[u8]) -> PortResult<Vec<HoldRow>> {
        Ok(self.find([id])?)
    }

    fn one(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<Option<HoldRow>> {
        Ok(self.find([id, name, key])?.pop())
    }

    fn insert(&self, row: &HoldRow) -> PortResult<bool> {
        let HoldRow { id, name, key, hold, config } = row;
        let [id, name, key] = [id, name, key].map(|text| Some(text_datum(text)));
        let [count, spent, returned, taken_at, expires_at, charge, lease] = encode_hold(hold);
        let config = config.as_ref().map(|config| jsonb_from_json(&utf8(config)).datum);
        let columns =
            [id, name, key, count, spent, returned, taken_at, expires_at, charge, lease, config];
        let (value, is_null) =
            (|column: Option<_>| column.unwrap_or(0.into()), |column: Option<_>| column.is_none());
        let (mut values, mut nulls) = (columns.map(value), columns.map(is_null));
        let mut of_key = [name, key, charge, expires_at].map(value);
        // SAFETY: the description of the open table.
        let whole = unsafe { (*self.heap.table).rd_att };
        let description = HOLDS.with(|short| short.description(whole, &nulls));
        let other = Some(of_key.as_mut_ptr());
        // SAFETY: the values are those of the table's columns; the other index has these.
        let new = unsafe { self.heap.insert_values(description, &mut values, &mut nulls, other) };
        // SQL waits for a transaction that is deleting the row.
        Ok(new.is_some() || by_sql(self.catalog, self.lock, |sql| sql.insert(row))?)
    }

    fn update(&self, row: &HoldRow) -> PortResult<bool> {
        by_sql(self.catalog, self.lock, |sql| sql.update(row))
    }

    fn lock(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<()> {
        if let Some(mut found) = self.scan([id, name, key]).pop() {
            // SAFETY: the row was found in this table in this statement; its snapshot keeps the version.
            unsafe { guarded(|| lock_as_found(&self.heap, &mut found.tid)) };
        }
        Ok(())
    }

    /// A row that another transaction has is locked instead.
    fn delete(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<Deleted> {
        let Some(found) = self.scan([id, name, key]).pop() else { return Ok(Deleted::Gone) };
        let mut tid = found.tid;
        let (heap, tid) = (&self.heap, &mut tid);
        // SAFETY: the row was found in this table in this statement; its snapshot keeps the version.
        let result = unsafe {
            guarded(|| {
                let mut result = raw::table_tuple_delete(heap.table, tid, false);
                // It is locked, maybe by this transaction.
                let is_locked = result == pg_sys::TM_Result::TM_BeingModified;
                if is_locked && lock_as_found(heap, tid) {
                    result = raw::table_tuple_delete(heap.table, tid, true);
                }
                raw::CommandCounterIncrement();
                result
            })
        };
        Ok(match result == pg_sys::TM_Result::TM_Ok {
            true => Deleted::Row(found.decode()?),
            false => Deleted::Waited, // replaced, if it wasn't locked
        })
    }
}

/// Locks a row. If another transaction has locked or replaced it, waits for the last version, and locks that one.
/// Returns whether it is locked as it was found.
///
/// # Safety
/// Inside a guard; a version of a row of the open table, which the snapshot in force keeps.
unsafe fn lock_as_found(heap: &Heap, tid: &mut pg_sys::ItemPointerData) -> bool {
    let skip = pg_sys::LockWaitPolicy::LockWaitSkip;
    let wait = pg_sys::LockWaitPolicy::LockWaitBlock;
    let last = pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
    // SAFETY: as the caller says.
    unsafe {
        let (result, _) = raw::table_tuple_lock(heap.table, tid, heap.fetched, skip, 0);
        let is_as_found = result == pg_sys::TM_Result::TM_Ok;
        if !is_as_found {
            raw::table_tuple_lock(heap.table, tid, heap.fetched, wait, last);
        }
        raw::clear(heap.fetched);
        is_as_found
    }
}
