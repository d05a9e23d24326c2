//! The codec of a row's columns, for every way to the rows, of limits and of holds: no other code gives them a meaning.
//!
//! `holds_due`, the last column, is about the key's holds, whatever the kind; the others are:
//!
//! | kind | | value | ts | besides |
//! |---|---|---|---|---|
//! | t | token bucket | tokens left | | |
//! | t | fixed window | tokens left | start of the window | added: tokens that the window added, NULL: unknown |
//! | s | sliding window | used | start of the window | prior: used in the window before |
//! | l | sliding log | entries | | log: entries |
//! | c | concurrency | slots taken | | leases: pairs of a lease's id and when it expires, in the order of expiry |
//! | - | reset | 0 | | |
//! | # | marker, in row 0 | 0 | 1970 | |
//! | = | marker that was reset | 0 | 1970 | |
//!
//! The columns that a kind doesn't name are NULL, and not read.

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{FLOAT8OID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID};
use ratelimit_core::hold::Hold;
use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Tokens};
use ratelimit_core::text::float_text;
use ratelimit_core::{Micros, State};
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::{Stored, Version};

use crate::schema::error::{Error, Result};
use ratelimit_pg::clock::{INFINITE, from_timestamptz, to_nearest_timestamptz};
use ratelimit_pg::values::{float_datum, text_datum, utf8};

/// The columns after the primary key, in the table's order; `None` for a NULL.
pub type Values = [Option<pg_sys::Datum>; 8];

/// The letters of `kind`.
mod kind {
    pub const TOKENS: u8 = b't';
    pub const COUNTERS: u8 = b's';
    pub const LOG: u8 = b'l';
    pub const LEASES: u8 = b'c';
    pub const RESET: u8 = b'-';
    pub const MARKER: u8 = b'#';
    pub const RESET_MARKER: u8 = b'=';
    pub const ALL: [u8; 7] = [TOKENS, COUNTERS, LOG, LEASES, RESET, MARKER, RESET_MARKER];
}

/// Decodes a row.
///
/// # Errors
/// [`Error::NullState`] (55000): a NULL that no call writes.
///
/// # Safety
/// The columns have the types of the table's.
pub unsafe fn decode(shard: i32, columns: Values) -> Result<Version> {
    let [kind, value, ts, others @ .., holds_due] = columns;
    let bits = |column, datum: Option<pg_sys::Datum>| {
        let null = || Error::NullState { table: "rateLimits", column };
        datum.map(pg_sys::Datum::value).ok_or_else(null)
    };
    let kind = bits("kind", kind)? as u8;
    let value = f64::from_bits(bits("value", value)? as u64);
    let ts = from_timestamptz(bits("ts", ts)? as i64);
    // SAFETY: as the caller says.
    let stored = unsafe { decode_valid(shard, kind, value, ts, others) };
    let stored = stored.unwrap_or_else(|(column, value)| {
        let ts = if infinite(&ts).is_some() { Micros(0) } else { ts };
        Stored::Invalid { ts, column, value }
    });
    let holds_due = holds_due.map(|holds_due| from_timestamptz(holds_due.value() as i64));
    Ok(Version { stored, holds_due })
}

/// An invalid column and its value, which no call writes.
type Wrong = (&'static str, String);

/// Decodes a row, with its columns from `added` to `leases`.
///
/// # Safety
/// As [`decode`].
unsafe fn decode_valid(
    shard: i32,
    kind: u8,
    value: f64,
    ts: Micros,
    [added, prior, log, leases]: [Option<pg_sys::Datum>; 4],
) -> std::result::Result<Stored, Wrong> {
    let finite = |column, value: f64| match value.is_finite() {
        true => Ok(value),
        false => Err((column, float_text(value))),
    };
    let float = |column, datum: pg_sys::Datum| finite(column, f64::from_bits(datum.value() as u64));
    let in_time = |column, at: Micros| match infinite(&at) {
        None => Ok(at),
        Some(infinity) => Err((column, float_text(infinity))),
    };
    let missing = |column| (column, "NULL".to_owned());
    if !kind::ALL.contains(&kind) || shard != 0 && matches!(kind, kind::MARKER | kind::RESET_MARKER)
    {
        return Err(wrong_kind(kind));
    }
    let value = finite("value", value)?;
    Ok(Stored::State(match kind {
        kind::TOKENS => {
            let added = added.map(|added| float("added", added)).transpose()?;
            State::Tokens(Tokens { value, ts: in_time("ts", ts)?, added })
        }
        kind::COUNTERS => {
            let prior = float("prior", prior.ok_or_else(|| missing("prior"))?)?;
            State::Counters(Counters { value, prior, ts: in_time("ts", ts)? })
        }
        kind::LOG => {
            let ts = in_time("ts", ts)?;
            let log = log.ok_or_else(|| missing("log"))?;
            // SAFETY: a timestamptz[], as the caller says.
            let mut log = unsafe { decode_array(log, TIMESTAMPTZOID) };
            // The table's owner may have written the entries in another order.
            log.sort_unstable();
            let entries = log.into_iter().map(|at| in_time("log", from_timestamptz(at)));
            State::Log(Log { entries: entries.collect::<std::result::Result<_, _>>()?, ts })
        }
        kind::LEASES => {
            let ts = in_time("ts", ts)?;
            let leases = leases.ok_or_else(|| missing("leases"))?;
            // SAFETY: a bigint[], as the caller says.
            let leases = unsafe { decode_array(leases, INT8OID) };
            let (pairs, rest) = leases.as_chunks();
            if !rest.is_empty() {
                return Err(("cardinality(leases)", leases.len().to_string()));
            }
            let lease = |&[id, at]: &[i64; 2]| Lease { id: Micros(id), expires_at: Micros(at) };
            let mut leases: Vec<Lease> = pairs.iter().map(lease).collect();
            leases.sort_by_key(|lease| lease.expires_at);
            State::Leases(Leases { leases, ts })
        }
        other => {
            let ts = in_time("ts", ts)?;
            return Ok(match other {
                kind::MARKER | kind::RESET_MARKER => {
                    Stored::Marker { reset: other == kind::RESET_MARKER }
                }
                _ => Stored::Reset { ts },
            });
        }
    }))
}

/// A letter of no kind: as it is, or as a number if a text can't show the byte.
fn wrong_kind(letter: u8) -> Wrong {
    match letter {
        b'\'' | b'\\' => ("kind::integer", letter.to_string()),
        b' '..=b'~' => ("kind", char::from(letter).to_string()),
        // "char" is signed as a number.
        _ => ("kind::integer", letter.cast_signed().to_string()),
    }
}

/// An infinite time as a number.
fn infinite(at: &Micros) -> Option<f64> {
    INFINITE.contains(at).then(|| f64::INFINITY.copysign(at.0 as f64))
}

/// Decodes the row of a hold of limit `name`: its columns from `count` to `lease`, `None` for a NULL.
///
/// # Errors
/// [`Error::NullState`], [`LimiterError::BadState`] (55000): a value that no call writes.
pub fn decode_hold(name: &[u8], columns: [Option<pg_sys::Datum>; 7]) -> Result<Hold> {
    let table = "rl_holds";
    let [count, spent, returned, taken_at, expires_at, charge, lease] = columns;
    let bits = |column, datum: Option<pg_sys::Datum>| {
        datum.map(pg_sys::Datum::value).ok_or(Error::NullState { table, column })
    };
    let float = |column, datum| bits(column, datum).map(|bits| f64::from_bits(bits as u64));
    let time = |column, datum| bits(column, datum).map(|bits| from_timestamptz(bits as i64));
    let hold = Hold {
        count: float("count", count)?,
        spent: float("spent", spent)?,
        returned: float("returned", returned)?,
        taken_at: time("taken_at", taken_at)?,
        expires_at: time("expires_at", expires_at)?,
        charge: bits("charge", charge)? as u8 != 0,
        lease: lease.map(|id| Micros(id.value() as i64)),
    };
    let tokens = |column, value, most| (!(0.0..=most).contains(&value)).then_some((column, value));
    let time = |column, at| infinite(at).map(|at| (column, at));
    let invalid = tokens("count", hold.count, f64::MAX)
        .or_else(|| tokens("spent", hold.spent, hold.count))
        .or_else(|| tokens("returned", hold.returned, f64::MAX))
        .or_else(|| time("taken_at", &hold.taken_at))
        .or_else(|| time("expires_at", &hold.expires_at));
    invalid.map_or(Ok(hold), |(column, value)| Err(bad_hold(name, column, value).into()))
}

/// The error of a hold with a value that no call writes.
pub fn bad_hold(name: &[u8], column: &'static str, value: f64) -> LimiterError {
    let (name, value) = (utf8(name).into_owned(), float_text(value));
    LimiterError::BadState { table: "rl_holds", name, column, value }
}

/// Encodes the columns of a hold from `count` to `lease`, in the table's order; `None` for a NULL.
pub fn encode_hold(hold: &Hold) -> [Option<pg_sys::Datum>; 7] {
    let at = |at| Some(pg_sys::Datum::from(to_nearest_timestamptz(at)));
    let float = |value| Some(float_datum(value));
    let &Hold { count, spent, returned, taken_at, expires_at, charge, lease } = hold;
    let lease = lease.map(|Micros(id)| id.into());
    let [count, spent, returned] = [count, spent, returned].map(float);
    [count, spent, returned, at(taken_at), at(expires_at), Some(charge.into()), lease]
}

/// Encodes a row, with the first expiry of its holds; an invalid one, which no call writes, as if it were reset.
pub fn encode(Version { stored, holds_due }: &Version) -> Values {
    let (mut added, mut prior, mut log, mut leases) = (None, None, None, None);
    let (kind, value, ts) = match stored {
        Stored::State(state) => {
            let kind = match state {
                State::Tokens(tokens) => {
                    added = tokens.added.map(float_datum);
                    kind::TOKENS
                }
                State::Counters(counters) => {
                    prior = Some(float_datum(counters.prior));
                    kind::COUNTERS
                }
                State::Log(Log { entries, .. }) => {
                    log = Some(log_datum(entries));
                    kind::LOG
                }
                State::Leases(Leases { leases: taken, .. }) => {
                    leases = Some(leases_datum(taken));
                    kind::LEASES
                }
            };
            (kind, state.value(), state.ts())
        }
        Stored::Reset { ts } | Stored::Invalid { ts, .. } => (kind::RESET, 0.0, *ts),
        Stored::Marker { reset: false } => (kind::MARKER, 0.0, Micros(0)),
        Stored::Marker { reset: true } => (kind::RESET_MARKER, 0.0, Micros(0)),
    };
    let at = |ts: Micros| pg_sys::Datum::from(to_nearest_timestamptz(ts));
    let (kind, value, ts) = (pg_sys::Datum::from(kind.cast_signed()), float_datum(value), at(ts));
    [Some(kind), Some(value), Some(ts), added, prior, log, leases, holds_due.map(at)]
}

/// Encodes the `log` column: a timestamptz\[] in Postgres memory.
fn log_datum(log: &[Micros]) -> pg_sys::Datum {
    let entries = log.iter().map(|&at| to_nearest_timestamptz(at).into()).collect();
    array_datum(entries, TIMESTAMPTZOID, 8, b'd')
}

/// Encodes the `leases` column: a bigint\[] in Postgres memory.
fn leases_datum(leases: &[Lease]) -> pg_sys::Datum {
    let mut leases = leases.to_vec();
    leases.sort_by_key(|lease| lease.expires_at);
    let pairs = leases.iter().flat_map(|lease| [lease.id.0.into(), lease.expires_at.0.into()]);
    array_datum(pairs.collect(), INT8OID, 8, b'd')
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

/// Decodes the column `log` to timestamptz values, or `leases`; without NULLs, which no call writes.
///
/// # Safety
/// The datum is an array of this type: timestamptz or bigint.
unsafe fn decode_array(datum: pg_sys::Datum, element_type: pg_sys::BuiltinOid) -> Vec<i64> {
    let mut entries: Vec<i64> = Vec::new();
    // SAFETY: as the caller says; the values are copied out at once.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            element_type.value(),
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
