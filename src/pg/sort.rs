//! Counts by key, more of them than should be in memory: PostgreSQL's own sort, which takes `work_mem`
//! and after that temporary files.

use std::ffi::c_int;
use std::ptr::null_mut;

use pgrx::pg_sys;

use crate::pg::values::{float_datum, text_datum, varlena_bytes};

/// Of a row: its key, its number, which keeps the rows of a key in their order, and its count.
const COLUMNS: [pg_sys::BuiltinOid; 3] =
    [pg_sys::BuiltinOid::BYTEAOID, pg_sys::BuiltinOid::INT8OID, pg_sys::BuiltinOid::FLOAT8OID];

/// A sort of keys and counts, by the bytes of the key, in the order of a key's rows. After an error
/// Postgres clears it up.
pub struct Sort {
    /// Where it lives.
    context: pg_sys::MemoryContext,
    /// Null until there is a row.
    state: *mut pg_sys::Tuplesortstate,
    /// For a row on its way in, and for one on its way out.
    given: *mut pg_sys::TupleTableSlot,
    found: *mut pg_sys::TupleTableSlot,
    rows: i64,
    sorted: bool,
}

impl Sort {
    /// Of no rows yet; those to come live in the memory context that is current now.
    pub fn new() -> Sort {
        Sort {
            // SAFETY: reads a variable of this backend.
            context: unsafe { pg_sys::CurrentMemoryContext },
            state: null_mut(),
            given: null_mut(),
            found: null_mut(),
            rows: 0,
            sorted: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn begin(&mut self) {
        // SAFETY: a description of the columns above, two of which are sorted by. The virtual row has
        // all of its values from now on, and none is read before it is put there.
        unsafe {
            let caller = pg_sys::MemoryContextSwitchTo(self.context);
            let description = pg_sys::CreateTemplateTupleDesc(COLUMNS.len() as c_int);
            for (n, column) in COLUMNS.iter().enumerate() {
                pg_sys::TupleDescInitEntry(
                    description,
                    n as pg_sys::AttrNumber + 1,
                    std::ptr::null(),
                    column.value(),
                    -1,
                    0,
                );
            }
            self.given =
                pg_sys::MakeSingleTupleTableSlot(description, &raw const pg_sys::TTSOpsVirtual);
            for n in 0..COLUMNS.len() {
                *(*self.given).tts_isnull.add(n) = false;
            }
            pg_sys::ExecStoreVirtualTuple(self.given);
            self.found = pg_sys::MakeSingleTupleTableSlot(
                description,
                &raw const pg_sys::TTSOpsMinimalTuple,
            );
            self.state = pg_sys::tuplesort_begin_heap(
                description,
                2,
                [1, 2].as_mut_ptr(),
                [pg_sys::ByteaLessOperator.into(), pg_sys::Int8LessOperator.into()].as_mut_ptr(),
                [pg_sys::InvalidOid; 2].as_mut_ptr(),
                [false; 2].as_mut_ptr(),
                pg_sys::work_mem,
                null_mut(),
                pg_sys::TUPLESORT_NONE as c_int,
            );
            pg_sys::MemoryContextSwitchTo(caller);
        }
    }

    /// Adds a row; not after [`next`](Sort::next).
    pub fn put(&mut self, key: &[u8], count: f64) {
        if self.state.is_null() {
            self.begin();
        }
        // A bytea is stored as a text is.
        let values = [text_datum(key), pg_sys::Datum::from(self.rows), float_datum(count)];
        // SAFETY: the slot has as many columns, of these types; the sort copies the row.
        unsafe {
            for (n, value) in values.into_iter().enumerate() {
                *(*self.given).tts_values.add(n) = value;
            }
            pg_sys::tuplesort_puttupleslot(self.state, self.given);
        }
        self.rows += 1;
    }

    /// The next row: its key, which is good until the one after it is asked for, and its count.
    pub fn next(&mut self) -> Option<(&[u8], f64)> {
        if self.state.is_null() {
            return None;
        }
        // SAFETY: the slot has the columns that were put, none of them NULL.
        unsafe {
            if !self.sorted {
                pg_sys::tuplesort_performsort(self.state);
                self.sorted = true;
            }
            let (forward, copy) = (true, false);
            if !pg_sys::tuplesort_gettupleslot(self.state, forward, copy, self.found, null_mut()) {
                return None;
            }
            pg_sys::slot_getsomeattrs_int(self.found, COLUMNS.len() as c_int);
            let values = (*self.found).tts_values;
            let key = varlena_bytes(*values);
            Some((key, f64::from_bits((*values.add(2)).value() as u64)))
        }
    }

    /// Frees it, its files too.
    pub fn end(self) {
        if self.state.is_null() {
            return;
        }
        // SAFETY: nothing refers to its rows any more.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.found);
            pg_sys::ExecDropSingleTupleTableSlot(self.given);
            pg_sys::tuplesort_end(self.state);
        }
    }
}
