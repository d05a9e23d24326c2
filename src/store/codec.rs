//! The codec of a row's columns, for both stores.

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::TIMESTAMPTZOID;
use ratelimit_core::{Micros, State};

use crate::pg::clock::{from_timestamptz, to_nearest_timestamptz};
use crate::store::rows::MARKER;

/// Decodes a row, whose times are timestamptz values.
pub fn decode_state(
    shard: i32,
    value: f64,
    ts: i64,
    prior: Option<f64>,
    mut log: Option<Vec<i64>>,
) -> State {
    // In order, since the table's owner may write another; beside `prior` they are pairs, in no order.
    if let (None, Some(log)) = (prior, &mut log) {
        log.sort_unstable();
    }
    let marker = shard == 0 && ts == i64::MIN && (value == 0.0 || value == f64::INFINITY);
    State {
        value,
        ts: if marker { MARKER } else { from_timestamptz(ts) },
        prior,
        log: log.map(|log| log.into_iter().map(from_timestamptz).collect()),
    }
}

/// Encodes the `ts` column.
pub fn ts_datum(at: Micros) -> pg_sys::Datum {
    pg_sys::Datum::from(if at == MARKER { i64::MIN } else { to_nearest_timestamptz(at) })
}

/// Encodes the `log` column: a timestamptz\[] in Postgres memory.
pub fn log_datum(log: &[Micros]) -> pg_sys::Datum {
    let log = log.iter().map(|&at| to_nearest_timestamptz(at).into()).collect();
    array_datum(log, TIMESTAMPTZOID, size_of::<i64>(), b'd')
}

/// Encodes an array of values passed by value, of `size` bytes each, in Postgres memory.
pub fn array_datum(
    mut values: Vec<pg_sys::Datum>,
    element_type: pg_sys::BuiltinOid,
    size: usize,
    align: u8,
) -> pg_sys::Datum {
    // SAFETY: copies the values; the caller gives the type's own size and alignment.
    unsafe {
        pg_sys::Datum::from(pg_sys::construct_array(
            values.as_mut_ptr(),
            values.len() as c_int,
            element_type.value(),
            size as c_int,
            true,
            align as c_char,
        ))
    }
}

/// Decodes the `log` column to timestamptz values.
///
/// # Safety
/// The datum is a timestamptz\[].
pub unsafe fn decode_log(datum: pg_sys::Datum) -> Vec<i64> {
    let mut entries: Vec<i64> = Vec::new();
    // SAFETY: as the caller says; the values are copied out at once.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            TIMESTAMPTZOID.value(),
            8,
            true,
            b'd' as c_char,
            &mut values,
            &mut nulls,
            &mut count,
        );
        for n in 0..count as usize {
            if !*nulls.add(n) {
                entries.push((*values.add(n)).value() as i64);
            }
        }
    }
    entries
}
