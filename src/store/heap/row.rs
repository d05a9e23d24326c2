//! A row of the table between Postgres and us: what is read of one, and what one is formed of.

use std::mem::MaybeUninit;

use pgrx::pg_sys;

use super::raw;
use crate::postgres::{float_datum, is_plain};
use crate::store::sql::{log_datum, log_entries, row_of, ts_datum};
use crate::store::{Found, Numbered, Place, Row};

/// A row as it was found, its log in Postgres memory: plain data.
#[derive(Clone, Copy)]
pub struct Plain {
    pub tid: pg_sys::ItemPointerData,
    shard: i32,
    value: f64,
    ts: i64,
    prior: Option<f64>,
    /// A detoasted copy, or null.
    log: *mut pg_sys::varlena,
}

impl Plain {
    /// # Safety
    /// Inside a guard; values and nulls are those of a row of the table.
    pub unsafe fn new(
        tid: pg_sys::ItemPointerData,
        values: *const pg_sys::Datum,
        nulls: *const bool,
    ) -> Plain {
        // SAFETY: the columns are those of COLUMNS.
        unsafe {
            let float = |n| f64::from_bits((*values.add(n)).value() as u64);
            Plain {
                tid,
                shard: (*values.add(2)).value() as i32,
                value: float(3),
                ts: (*values.add(4)).value() as i64,
                prior: if *nulls.add(5) { None } else { Some(float(5)) },
                log: if *nulls.add(6) {
                    std::ptr::null_mut()
                } else {
                    raw::pg_detoast_datum_copy((*values.add(6)).cast_mut_ptr())
                },
            }
        }
    }

    /// # Safety
    /// Inside a guard; the slot holds a row of the table, deformed.
    pub unsafe fn of(slot: &pg_sys::TupleTableSlot) -> Plain {
        // SAFETY: as the caller says.
        unsafe { Plain::new(slot.tts_tid, slot.tts_values, slot.tts_isnull) }
    }

    pub fn found(self) -> Numbered {
        // SAFETY: a detoasted timestamptz[], as the column is declared.
        let log = (!self.log.is_null()).then(|| unsafe { log_entries(self.log.into()) });
        let row = row_of(self.shard, self.value, self.ts, self.prior, log);
        (self.shard, Found { row, at: Place(Some(self.tid)) })
    }
}

/// A text of up to 1,024 bytes as Postgres passes it, on the stack.
#[repr(C, align(8))]
pub struct Text {
    header: u32,
    bytes: MaybeUninit<[u8; 1024]>,
}

impl Text {
    pub fn new(text: &[u8]) -> Text {
        let length = text.len().min(1024);
        let mut bytes = MaybeUninit::<[u8; 1024]>::uninit();
        // SAFETY: at most as many bytes as there is room for.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), bytes.as_mut_ptr().cast(), length);
        }
        // SET_VARSIZE of Postgres.
        let size = (length + 4) as u32;
        let header = if cfg!(target_endian = "big") { size & 0x3fff_ffff } else { size << 2 };
        Text { header, bytes }
    }

    pub fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(&raw const *self)
    }
}

/// Whether a value is this text; its bytes, where they are not compressed or elsewhere.
///
/// # Safety
/// The value is a text of a row that is pinned.
pub unsafe fn is_text(value: pg_sys::Datum, text: &[u8]) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let varlena = value.cast_mut_ptr::<pg_sys::varlena>();
        is_plain(varlena)
            && std::slice::from_raw_parts(
                pgrx::vardata_any(varlena).cast::<u8>(),
                pgrx::varsize_any_exhdr(varlena),
            ) == text
    }
}

/// The bytes of some texts of a row that is pinned.
///
/// # Safety
/// Inside a guard.
pub unsafe fn texts_of<const N: usize>(values: [pg_sys::Datum; N]) -> [Vec<u8>; N] {
    // SAFETY: detoasting returns the value itself, or a copy in Postgres memory. All of it first, since
    // its error would jump over what is copied already.
    unsafe {
        values.map(|value| raw::pg_detoast_datum_packed(value.cast_mut_ptr())).map(|varlena| {
            std::slice::from_raw_parts(
                pgrx::vardata_any(varlena).cast::<u8>(),
                pgrx::varsize_any_exhdr(varlena),
            )
            .to_vec()
        })
    }
}

/// A row's columns, and which of them are NULL.
pub fn columns(name: &Text, key: &Text, shard: i32, row: &Row) -> ([pg_sys::Datum; 7], [bool; 7]) {
    let null = pg_sys::Datum::from(0);
    let log = row.log.as_ref().map(|log| log_datum(log));
    let values = [
        name.datum(),
        key.datum(),
        shard.into(),
        float_datum(row.value),
        ts_datum(row.ts),
        row.prior.map_or(null, float_datum),
        log.unwrap_or(null),
    ];
    (values, [false, false, false, false, false, row.prior.is_none(), row.log.is_none()])
}
