//! Values and small services of Postgres that the modules above share: jsonb, text, time,
//! interrupts, and what may not be done in a read-only or parallel query.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys;
use pgrx::prelude::*;

use crate::algorithm::Micros;
use crate::error::{Error, Result};

/// A jsonb value.
#[derive(Clone, Copy)]
pub struct Jsonb<'a> {
    /// The binary form, which is equal for equal values: a key for a cache.
    pub bytes: &'a [u8],
    pub datum: pg_sys::Datum,
}

impl Jsonb<'_> {
    /// As JSON text.
    pub fn to_json(self) -> String {
        // SAFETY: a detoasted jsonb begins with its header, its root container follows.
        unsafe {
            let jsonb = self.datum.cast_mut_ptr::<pg_sys::Jsonb>();
            let json = pg_sys::JsonbToCString(
                std::ptr::null_mut(),
                &mut (*jsonb).root,
                self.bytes.len() as c_int,
            );
            utf8(CStr::from_ptr(json).to_bytes()).into_owned()
        }
    }
}

/// A jsonb value, detoasted.
///
/// # Safety
/// `datum` is a jsonb; it lives as long as the datum, or as the current memory context.
pub unsafe fn jsonb<'a>(datum: pg_sys::Datum) -> Jsonb<'a> {
    // SAFETY: as the caller says; JsonbToCString wants it with a four-byte header.
    unsafe {
        let jsonb = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
        let bytes = std::slice::from_raw_parts(
            pgrx::vardata_any(jsonb).cast::<u8>(),
            pgrx::varsize_any_exhdr(jsonb),
        );
        Jsonb { bytes, datum: pg_sys::Datum::from(jsonb) }
    }
}

/// The bytes of a text or another varlena value.
///
/// # Safety
/// `datum` is a varlena; the bytes live as long as it, or as the current memory context.
pub unsafe fn varlena_bytes<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe {
        let varlena = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(
            pgrx::vardata_any(varlena).cast(),
            pgrx::varsize_any_exhdr(varlena),
        )
    }
}

/// Text of the server's encoding as UTF-8.
pub fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    // SAFETY: reads a setting.
    if unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_SQL_ASCII as c_int {
        return String::from_utf8_lossy(bytes); // could be anything, and a conversion would refuse it
    }
    // SAFETY: the conversion reads `bytes.len()` bytes, and returns its argument or a C string.
    let converted = unsafe {
        let source = bytes.as_ptr().cast::<c_char>();
        let target = pg_sys::pg_server_to_any(
            source,
            bytes.len() as c_int,
            pg_sys::pg_enc::PG_UTF8 as c_int,
        );
        if target.cast_const() == source { bytes } else { CStr::from_ptr(target).to_bytes() }
    };
    String::from_utf8_lossy(converted)
}

/// A text in Postgres memory.
pub fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: copies `bytes.len()` bytes.
    unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as c_int).into() }
}

/// A jsonb in Postgres memory.
pub fn jsonb_datum(value: serde_json::Value) -> Option<pg_sys::Datum> {
    pgrx::JsonB(value).into_datum()
}

/// A double precision.
pub fn float_datum(value: f64) -> pg_sys::Datum {
    pg_sys::Datum::from(value.to_bits() as usize)
}

/// Microseconds between the Unix epoch and Postgres's, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
/// The first timestamptz, in 4714 BC: MIN_TIMESTAMP of Postgres.
const MIN_TIMESTAMP: i64 = -211_813_488_000_000_000;
/// The last timestamptz, exclusive: END_TIMESTAMP of Postgres.
const END_TIMESTAMP: i64 = 9_223_371_331_200_000_000;

/// A timestamptz as an instant.
pub fn from_timestamptz(timestamp: i64) -> Micros {
    Micros(timestamp.saturating_add(POSTGRES_EPOCH))
}

/// An instant as a timestamptz; `None` where it is earlier or later than that type can tell.
pub fn to_timestamptz(at: Micros) -> Option<i64> {
    let timestamp = at.0.checked_sub(POSTGRES_EPOCH)?;
    (MIN_TIMESTAMP..END_TIMESTAMP).contains(&timestamp).then_some(timestamp)
}

/// An instant as the nearest timestamptz that there is.
pub fn to_nearest_timestamptz(at: Micros) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH).clamp(MIN_TIMESTAMP, END_TIMESTAMP - 1)
}

/// The server's clock.
pub fn system_time() -> Micros {
    // SAFETY: reads the clock.
    from_timestamptz(unsafe { pg_sys::GetCurrentTimestamp() })
}

/// Gives way to a cancel or a shutdown.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// Refuses a call of `function`, such as `rl_check()`, from a query that runs in parallel (25000).
pub fn refuse_parallel(function: &'static CStr) -> Result<()> {
    // SAFETY: reads a flag.
    if unsafe { pg_sys::IsInParallelMode() } { Err(Error::Parallel { function }) } else { Ok(()) }
}

/// Refuses a call that writes in a transaction that may not (25006), or in parallel (25000).
pub fn refuse_read_only(function: &'static CStr) -> Result<()> {
    refuse_parallel(function)?;
    // SAFETY: raises or returns.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) };
    Ok(())
}
