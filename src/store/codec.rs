//! The codec of a row's columns, for both stores: what may stand in them is parsed here and nowhere else.
//!
//! | | value | ts | prior | log |
//! |---|---|---|---|---|
//! | token bucket | tokens | | NULL | NULL |
//! | fixed window | tokens | the window's start | what it brought, negated: -0 or less | NULL |
//! | sliding window | used | the window's start | used of the one before: 0 or more | NULL |
//! | sliding log | entries | | NULL | entries |
//! | concurrency | slots taken | | 0 | pairs: the id of a lease, which is no time, and when it expires |
//! | reset | infinity | | | |
//! | marker, in row 0 | 0, or infinity | -infinity | | |

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{INT4OID, TEXTOID, TIMESTAMPTZOID};
use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Shape, Tokens};
use ratelimit_core::{Micros, State};
use ratelimit_limiter::ports::Stored;

use ratelimit_pg::clock::{INFINITE, from_timestamptz, to_nearest_timestamptz};
use ratelimit_pg::values::{float_datum, text_datum};

/// Decodes a row, whose times are timestamptz values.
pub fn decode(
    shard: i32,
    value: f64,
    ts: i64,
    prior: Option<f64>,
    mut log: Option<Vec<i64>>,
) -> Stored {
    if shard == 0 && ts == i64::MIN && (value == 0.0 || value == f64::INFINITY) {
        return Stored::Marker { reset: value != 0.0 };
    }
    let ts = from_timestamptz(ts);
    if value == f64::INFINITY {
        return Stored::Reset { ts };
    }
    // In order, since the table's owner may write another; of leases they are pairs, in no order.
    if let (None, Some(log)) = (prior, &mut log) {
        log.sort_unstable();
    }
    let log: Option<Vec<Micros>> = log.map(|log| log.into_iter().map(from_timestamptz).collect());
    let brought = prior.filter(|prior| prior.is_sign_negative() && prior.is_finite());
    let shape = match (prior, &log) {
        (None, None) => Shape::Tokens,
        (Some(_), None) if brought.is_some() => Shape::Tokens,
        (Some(_), None) => Shape::Counters,
        (None, Some(_)) => Shape::Log,
        (Some(_), Some(_)) => Shape::Leases,
    };
    if let Some((column, value)) = invalid_column(value, ts, prior, log.as_deref()) {
        return Stored::Invalid { shape, ts, column, value };
    }
    Stored::State(match (prior, log) {
        (None, Some(entries)) => State::Log(Log { entries, ts }),
        (Some(_), Some(log)) => {
            let lease = |pair: &[Micros; 2]| Lease { id: pair[0], expires_at: pair[1] };
            State::Leases(Leases { leases: log.as_chunks().0.iter().map(lease).collect(), ts })
        }
        (Some(prior), None) if brought.is_none() => State::Counters(Counters { value, prior, ts }),
        (_, None) => State::Tokens(Tokens { value, ts, brought: brought.map(|prior| -prior) }),
    })
}

/// Returns the first column with a value that no call writes, and that value, for a time ±infinity.
fn invalid_column(
    value: f64,
    ts: Micros,
    prior: Option<f64>,
    log: Option<&[Micros]>,
) -> Option<(&'static str, f64)> {
    let infinite = |at: &Micros| INFINITE.contains(at).then(|| f64::INFINITY.copysign(at.0 as f64));
    let number = |value: f64| (!value.is_finite()).then_some(value);
    let log = log.unwrap_or_default();
    let in_log = || {
        let ends = || log.first().and_then(infinite).or(log.last().and_then(infinite));
        // Leases are in no order.
        ends().or_else(|| prior.and_then(|_| log.iter().find_map(infinite)))
    };
    let of = |column, value: Option<f64>| value.map(|value| (column, value));
    of("value", number(value))
        .or(of("prior", prior.and_then(number)))
        .or(of("ts", infinite(&ts)))
        .or_else(|| of("log", in_log()))
}

/// The columns `value`, `ts`, `prior` and `log`; `None` for a NULL.
pub type Columns = [Option<pg_sys::Datum>; 4];

/// Encodes a row; one that is invalid, which nobody writes, as if it were reset.
pub fn encode(stored: &Stored) -> Columns {
    let at = |ts: Micros| Some(pg_sys::Datum::from(to_nearest_timestamptz(ts)));
    let float = |value: f64| Some(float_datum(value));
    match stored {
        Stored::State(state) => {
            let (prior, log) = match state {
                State::Tokens(tokens) => (tokens.brought.map(|brought| -brought), None),
                State::Counters(counters) => (Some(counters.prior), None),
                State::Log(log) => (None, Some(log_datum(log.entries.iter().copied()))),
                State::Leases(Leases { leases, .. }) => {
                    let log = leases.iter().flat_map(|lease| [lease.id, lease.expires_at]);
                    (Some(0.0), Some(log_datum(log)))
                }
            };
            [float(state.value()), at(state.ts()), prior.and_then(float), log]
        }
        Stored::Reset { ts } | Stored::Invalid { ts, .. } => {
            [float(f64::INFINITY), at(*ts), None, None]
        }
        Stored::Marker { reset } => {
            let value = if *reset { f64::INFINITY } else { 0.0 };
            [float(value), Some(pg_sys::Datum::from(i64::MIN)), None, None]
        }
    }
}

/// Encodes the `log` column: a timestamptz\[] in Postgres memory.
fn log_datum(log: impl Iterator<Item = Micros>) -> pg_sys::Datum {
    let log = log.map(|at| to_nearest_timestamptz(at).into()).collect();
    array_datum(log, TIMESTAMPTZOID, size_of::<i64>(), b'd')
}

/// Encodes an integer\[] in Postgres memory.
pub fn int_array(values: &[i32]) -> pg_sys::Datum {
    let values = values.iter().map(|&value| value.into()).collect();
    array_datum(values, INT4OID, size_of::<i32>(), b'i')
}

/// Encodes a text\[] in Postgres memory, of texts in the server's encoding.
pub fn text_array<'t>(values: impl Iterator<Item = &'t [u8]>) -> pg_sys::Datum {
    let mut values: Vec<pg_sys::Datum> = values.map(text_datum).collect();
    // SAFETY: copies the texts; size, passing and alignment are those of text.
    unsafe {
        pg_sys::Datum::from(pg_sys::construct_array(
            values.as_mut_ptr(),
            values.len() as c_int,
            TEXTOID.value(),
            -1,
            false,
            b'i' as c_char,
        ))
    }
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
