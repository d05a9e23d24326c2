//! The codec of a row's columns, for every way to the rows, of limits and of holds: no other code gives them a meaning.
//!
//! `expires`, the last column, is about the key's holds, whatever the state; the others are:
//!
//! | | value | ts | prior | log | added |
//! |---|---|---|---|---|---|
//! | token bucket | tokens left | | NULL | NULL | NULL |
//! | fixed window | tokens left | start of the window | NULL | NULL | tokens that the window added, NULL: unknown |
//! | sliding window | used | start of the window | used in the window before | NULL | NULL |
//! | sliding log | entries | | NULL | entries | NULL |
//! | concurrency | slots taken | | 0 | pairs: a lease's id, stored as a time, and when it expires | NULL |
//! | reset | infinity | | NULL | NULL | NULL |
//! | marker, in row 0 | 0, or infinity if reset | -infinity | NULL | NULL | NULL |
//!
//! `prior` and `log` decide which kinds a state can be of; `added` is read only where both are NULL.

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{FLOAT8OID, INT4OID, TEXTOID, TIMESTAMPTZOID};
use ratelimit_core::hold::Hold;
use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Shape, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::Stored;

use crate::schema::error::{Error, Result};
use ratelimit_pg::clock::{INFINITE, from_timestamptz, to_nearest_timestamptz};
use ratelimit_pg::values::{float_datum, text_datum, utf8};

/// The columns of a row after its primary key, as they are read. Times are timestamptz values.
pub struct Columns {
    pub value: f64,
    pub ts: i64,
    pub prior: Option<f64>,
    pub log: Option<Vec<i64>>,
    pub added: Option<f64>,
}

/// Decodes a row.
pub fn decode(shard: i32, columns: Columns) -> Stored {
    let Columns { value, ts, prior, mut log, added } = columns;
    if shard == 0 && ts == i64::MIN && (value == 0.0 || value == f64::INFINITY) {
        return Stored::Marker { reset: value != 0.0 };
    }
    let ts = from_timestamptz(ts);
    if value == f64::INFINITY {
        return Stored::Reset { ts };
    }
    // The table's owner may have written a log in another order.
    if let (None, Some(log)) = (prior, &mut log) {
        log.sort_unstable();
    }
    let log: Option<Vec<Micros>> = log.map(|log| log.into_iter().map(from_timestamptz).collect());
    let shape = match (prior, &log) {
        (None, None) => Shape::Tokens,
        (Some(_), None) => Shape::Counters,
        (None, Some(_)) => Shape::Log,
        (Some(_), Some(_)) => Shape::Leases,
    };
    let added = added.filter(|_| shape == Shape::Tokens);
    let numbers = [("value", Some(value)), ("prior", prior), ("added", added)];
    if let Some((column, value)) = invalid_column(numbers, ts, shape, log.as_deref()) {
        return Stored::Invalid { shape, ts, column, value };
    }
    Stored::State(match (prior, log) {
        (None, None) => State::Tokens(Tokens { value, ts, added }),
        (Some(prior), None) => State::Counters(Counters { value, prior, ts }),
        (None, Some(entries)) => State::Log(Log { entries, ts }),
        (Some(_), Some(log)) => {
            let lease = |pair: &[Micros; 2]| Lease { id: pair[0], expires_at: pair[1] };
            State::Leases(Leases { leases: log.as_chunks().0.iter().map(lease).collect(), ts })
        }
    })
}

/// Returns the first column with a value that no call writes, and that value, for a time ±infinity.
fn invalid_column(
    numbers: [(&'static str, Option<f64>); 3],
    ts: Micros,
    shape: Shape,
    log: Option<&[Micros]>,
) -> Option<(&'static str, f64)> {
    let number = |(column, value): (_, Option<f64>)| {
        Some((column, value.filter(|value| !value.is_finite())?))
    };
    let in_log = || {
        let log = log?;
        // A sorted log has them at its ends, leases anywhere.
        let ends = || log.first().and_then(infinite).or(log.last().and_then(infinite));
        ends().or_else(|| (shape == Shape::Leases).then(|| log.iter().find_map(infinite))?)
    };
    let times = || infinite(&ts).map(|ts| ("ts", ts)).or_else(|| Some(("log", in_log()?)));
    numbers.into_iter().find_map(number).or_else(times)
}

/// An infinite time as a number.
fn infinite(at: &Micros) -> Option<f64> {
    INFINITE.contains(at).then(|| f64::INFINITY.copysign(at.0 as f64))
}

/// Decodes the row of a hold of limit `name`: its columns from `count` to `charge`, `None` for a NULL.
///
/// # Errors
/// [`Error::NullState`], [`LimiterError::BadState`] (55000): a value that no call writes.
pub fn decode_hold(name: &[u8], columns: [Option<pg_sys::Datum>; 6]) -> Result<Hold> {
    let table = "rl_holds";
    let [count, old, back, taken_at, expires_at, charge] = columns;
    let bits = |column, datum: Option<pg_sys::Datum>| {
        datum.map(pg_sys::Datum::value).ok_or(Error::NullState { table, column })
    };
    let float = |column, datum| bits(column, datum).map(|bits| f64::from_bits(bits as u64));
    let time = |column, datum| bits(column, datum).map(|bits| from_timestamptz(bits as i64));
    let hold = Hold {
        count: float("count", count)?,
        old: float("old", old)?,
        back: float("back", back)?,
        taken_at: time("taken_at", taken_at)?,
        expires_at: time("expires_at", expires_at)?,
        charge: bits("charge", charge)? as u8 != 0,
    };
    let tokens = |column, value, most| (!(0.0..=most).contains(&value)).then_some((column, value));
    let time = |column, at| infinite(at).map(|at| (column, at));
    let invalid = tokens("count", hold.count, f64::MAX)
        .or_else(|| tokens("old", hold.old, hold.count))
        .or_else(|| tokens("back", hold.back, f64::MAX))
        .or_else(|| time("taken_at", &hold.taken_at))
        .or_else(|| time("expires_at", &hold.expires_at));
    invalid.map_or(Ok(hold), |(column, value)| Err(bad_hold(name, column, value).into()))
}

/// The error of a hold with a value that no call writes.
pub fn bad_hold(name: &[u8], column: &'static str, value: f64) -> LimiterError {
    LimiterError::BadState { table: "rl_holds", name: utf8(name).into_owned(), column, value }
}

/// The columns after the primary key, in the table's order, as they are written; `None` for a NULL.
pub type Values = [Option<pg_sys::Datum>; 6];

/// Encodes a row, with the first expiry of its holds; an invalid one, which no call writes, as if it were reset.
pub fn encode(stored: &Stored, expires: Option<Micros>) -> Values {
    let at = |ts: Micros| Some(pg_sys::Datum::from(to_nearest_timestamptz(ts)));
    let float = |value: f64| Some(float_datum(value));
    let expires = expires.and_then(at);
    match stored {
        Stored::State(state) => {
            let (prior, log, added) = match state {
                State::Tokens(tokens) => (None, None, tokens.added),
                State::Counters(counters) => (Some(counters.prior), None, None),
                State::Log(log) => (None, Some(log_datum(log.entries.iter().copied())), None),
                State::Leases(Leases { leases, .. }) => {
                    let log = leases.iter().flat_map(|lease| [lease.id, lease.expires_at]);
                    (Some(0.0), Some(log_datum(log)), None)
                }
            };
            [
                float(state.value()),
                at(state.ts()),
                prior.and_then(float),
                log,
                added.and_then(float),
                expires,
            ]
        }
        Stored::Reset { ts } | Stored::Invalid { ts, .. } => {
            [float(f64::INFINITY), at(*ts), None, None, None, expires]
        }
        Stored::Marker { reset } => {
            let value = if *reset { f64::INFINITY } else { 0.0 };
            [float(value), Some(pg_sys::Datum::from(i64::MIN)), None, None, None, expires]
        }
    }
}

/// Encodes the `log` column: a timestamptz\[] in Postgres memory.
fn log_datum(log: impl Iterator<Item = Micros>) -> pg_sys::Datum {
    array_datum(log.map(|at| to_nearest_timestamptz(at).into()).collect(), TIMESTAMPTZOID, 8, b'd')
}

/// Encodes an integer\[] in Postgres memory.
pub fn int_array(values: &[i32]) -> pg_sys::Datum {
    array_datum(values.iter().map(|&value| value.into()).collect(), INT4OID, 4, b'i')
}

/// Encodes a double precision\[] in Postgres memory.
pub fn float_array(values: impl Iterator<Item = f64>) -> pg_sys::Datum {
    array_datum(values.map(float_datum).collect(), FLOAT8OID, 8, b'd')
}

/// Encodes a text\[] in Postgres memory, of texts in the server's encoding.
pub fn text_array<'t>(values: impl Iterator<Item = &'t [u8]>) -> pg_sys::Datum {
    array_datum(values.map(text_datum).collect(), TEXTOID, -1, b'i')
}

/// Encodes an array in Postgres memory. Size and alignment are the type's; a size of -1 means by reference.
pub fn array_datum(
    mut values: Vec<pg_sys::Datum>,
    element_type: pg_sys::BuiltinOid,
    size: c_int,
    align: u8,
) -> pg_sys::Datum {
    // SAFETY: copies the values; the caller gives the type's own size and alignment.
    unsafe {
        pg_sys::Datum::from(pg_sys::construct_array(
            values.as_mut_ptr(),
            values.len() as c_int,
            element_type.value(),
            size,
            size > 0,
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
