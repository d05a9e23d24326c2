//! Sorts counts by key with PostgreSQL's own sort, within `work_mem` and beyond that in temporary files.

use std::ffi::c_int;
use std::ptr::null_mut;

use pgrx::pg_sys;

use crate::values::{float_datum, text_datum, varlena_bytes};

/// The columns of a row: key, number (keeps the order of a key's rows), count.
const COLUMNS: [pg_sys::BuiltinOid; 3] =
    [pg_sys::BuiltinOid::BYTEAOID, pg_sys::BuiltinOid::INT8OID, pg_sys::BuiltinOid::FLOAT8OID];

/// A stable sort by the bytes of the key. After an error Postgres frees it.
pub struct Sort {
    /// The memory context of the sort.
    context: pg_sys::MemoryContext,
    /// Null until the first row.
    state: *mut pg_sys::Tuplesortstate,
    input: *mut pg_sys::TupleTableSlot,
    output: *mut pg_sys::TupleTableSlot,
    rows: i64,
    sorted: bool,
}

impl Sort {
    /// Creates an empty sort in the current memory context.
    #[allow(clippy::new_without_default, reason = "it depends on where it is created")]
    pub fn new() -> Sort {
        Sort {
            // SAFETY: reads a variable of this backend.
            context: unsafe { pg_sys::CurrentMemoryContext },
            state: null_mut(),
            input: null_mut(),
            output: null_mut(),
            rows: 0,
            sorted: false,
        }
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Begins the sort.
    fn begin(&mut self) {
        // SAFETY: describes the columns above, and sorts by the first two. A value of the virtual row is set before it
        // is read.
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
            self.input =
                pg_sys::MakeSingleTupleTableSlot(description, &raw const pg_sys::TTSOpsVirtual);
            for n in 0..COLUMNS.len() {
                *(*self.input).tts_isnull.add(n) = false;
            }
            pg_sys::ExecStoreVirtualTuple(self.input);
            self.output = pg_sys::MakeSingleTupleTableSlot(
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

    /// Adds a row, before the first [`next`](Sort::next).
    pub fn put(&mut self, key: &[u8], count: f64) {
        if self.state.is_null() {
            self.begin();
        }
        // A bytea is stored like a text.
        let values = [text_datum(key), pg_sys::Datum::from(self.rows), float_datum(count)];
        // SAFETY: the slot has as many columns, of these types; the sort copies the row.
        unsafe {
            for (n, value) in values.into_iter().enumerate() {
                *(*self.input).tts_values.add(n) = value;
            }
            pg_sys::tuplesort_puttupleslot(self.state, self.input);
        }
        self.rows += 1;
    }

    /// Returns the next row's key and count, valid until the next call; `None` after the last.
    #[allow(clippy::should_implement_trait, reason = "an iterator can't lend what it returns")]
    pub fn next(&mut self) -> Option<(&[u8], f64)> {
        if self.state.is_null() {
            return None;
        }
        // SAFETY: the slot has the columns above, none of them NULL.
        unsafe {
            if !self.sorted {
                pg_sys::tuplesort_performsort(self.state);
                self.sorted = true;
            }
            let (forward, copy) = (true, false);
            if !pg_sys::tuplesort_gettupleslot(self.state, forward, copy, self.output, null_mut()) {
                return None;
            }
            pg_sys::slot_getsomeattrs_int(self.output, COLUMNS.len() as c_int);
            let values = (*self.output).tts_values;
            let key = varlena_bytes(*values);
            Some((key, f64::from_bits((*values.add(2)).value() as u64)))
        }
    }

    /// Frees the sort and its files.
    pub fn end(self) {
        if self.state.is_null() {
            return;
        }
        // SAFETY: nothing refers to its rows any more.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.output);
            pg_sys::ExecDropSingleTupleTableSlot(self.input);
            pg_sys::tuplesort_end(self.state);
        }
    }
}
