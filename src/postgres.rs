//! Values and small services of Postgres that the modules above share: jsonb, text, time,
//! interrupts, and what may not be done in a read-only or parallel query.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::prelude::*;
use pgrx::{PgMemoryContexts, direct_function_call_as_datum, pg_sys};

use crate::algorithm::Micros;
use crate::error::{Error, Result};
use crate::memory;

/// Functions of Postgres that raise no error, and so need none of pgrx's guard.
pub mod unguarded {
    use pgrx::pg_sys::{SubTransactionId, TimestampTz, TransactionId};

    unsafe extern "C-unwind" {
        pub fn ActiveSnapshotSet() -> bool;
        pub fn GetCurrentSubTransactionId() -> SubTransactionId;
        pub fn GetCurrentTimestamp() -> TimestampTz;
        pub fn GetTopTransactionIdIfAny() -> TransactionId;
        pub fn IsInParallelMode() -> bool;
    }
}

/// A jsonb value.
#[derive(Clone, Copy)]
pub struct Jsonb<'a> {
    /// The binary form, which is equal for equal values: a key for a cache.
    pub bytes: &'a [u8],
    pub datum: pg_sys::Datum,
}

impl Jsonb<'_> {
    /// As JSON text of so many bytes at most. The text is Postgres's memory, and lives as long as the
    /// current memory context.
    ///
    /// # Errors
    /// How many bytes it has, where that is more.
    pub fn to_json(self, most: usize) -> std::result::Result<Cow<'static, str>, usize> {
        Ok(utf8(self.to_server_json(most)?))
    }

    /// As [`to_json`](Jsonb::to_json), with no byte replaced: names and keys are in it.
    ///
    /// # Errors
    /// 22023: more bytes; in a database without an encoding, text that is not UTF-8.
    pub fn to_exact_json(self, argument: &'static str, most: usize) -> Result<Cow<'static, str>> {
        let invalid = |value, allowed| Err(Error::InvalidArgument { argument, value, allowed });
        match self.to_json(most) {
            Err(bytes) => invalid(format!("{bytes} bytes long"), format!("at most {most} bytes")),
            Ok(Cow::Owned(_)) if is_sql_ascii() => {
                invalid("text of another encoding".into(), "text in UTF-8".into())
            }
            Ok(json) => Ok(json),
        }
    }

    /// How many elements an array has; `None` of anything else.
    pub fn array_length(self) -> Option<usize> {
        // SAFETY: a detoasted jsonb begins with its header, its root container follows.
        let header = unsafe { (*self.datum.cast_mut_ptr::<pg_sys::Jsonb>()).root.header };
        let is_array = header & pg_sys::JB_FARRAY != 0 && header & pg_sys::JB_FSCALAR == 0;
        is_array.then_some((header & pg_sys::JB_CMASK) as usize)
    }

    fn to_server_json(self, most: usize) -> std::result::Result<&'static [u8], usize> {
        if self.bytes.len() > most {
            return Err(self.bytes.len());
        }
        // SAFETY: a detoasted jsonb begins with its header, its root container follows. The text
        // lives as long as the current memory context.
        let json = unsafe {
            let jsonb = self.datum.cast_mut_ptr::<pg_sys::Jsonb>();
            let json = pg_sys::JsonbToCString(
                std::ptr::null_mut(),
                &mut (*jsonb).root,
                self.bytes.len() as c_int,
            );
            CStr::from_ptr(json).to_bytes()
        };
        // A number of a few bytes can have thousands of digits.
        if json.len() > most { Err(json.len()) } else { Ok(json) }
    }
}

/// JSON text, which came from a jsonb, as a jsonb of its own.
pub fn jsonb_from_json(json: &str) -> Jsonb<'static> {
    let json = CString::new(server_text(json)).unwrap_or_default();
    // SAFETY: the input function of jsonb takes a C string and returns a new jsonb.
    unsafe {
        let input = [Some(pg_sys::Datum::from(json.as_ptr()))];
        jsonb(
            direct_function_call_as_datum(pg_sys::jsonb_in, &input)
                .unwrap_or(pg_sys::Datum::from(0)),
        )
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
        let mut varlena = datum.cast_mut_ptr();
        if !is_plain(varlena) {
            varlena = pg_sys::pg_detoast_datum_packed(varlena);
        }
        std::slice::from_raw_parts(
            pgrx::vardata_any(varlena).cast(),
            pgrx::varsize_any_exhdr(varlena),
        )
    }
}

/// Whether the bytes of a value stand where it points to: neither compressed nor elsewhere.
///
/// # Safety
/// There is a varlena.
pub unsafe fn is_plain(varlena: *const pg_sys::varlena) -> bool {
    // SAFETY: as the caller says.
    unsafe { !pgrx::varatt_is_1b_e(varlena) && !pgrx::varatt_is_4b_c(varlena) }
}

/// Whether the database has no encoding of its own.
fn is_sql_ascii() -> bool {
    // SAFETY: reads a setting.
    unsafe { pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_SQL_ASCII as c_int }
}

/// UTF-8 text in the server's encoding; an error of Postgres where that has no such character.
pub fn server_text(text: &str) -> Vec<u8> {
    // SAFETY: the conversion reads the text's bytes, and returns them or a C string.
    unsafe {
        let source = text.as_ptr().cast::<c_char>();
        let length = text.len() as c_int;
        let target = pg_sys::pg_any_to_server(source, length, pg_sys::pg_enc::PG_UTF8 as c_int);
        if target.cast_const() == source {
            text.as_bytes().to_vec()
        } else {
            CStr::from_ptr(target).to_bytes().to_vec()
        }
    }
}

/// Text of the server's encoding as UTF-8.
pub fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(utf8_bytes(bytes))
}

/// The bytes of a text of the server's encoding in UTF-8; those of SQL_ASCII as they are.
pub fn utf8_bytes(bytes: &[u8]) -> &[u8] {
    if is_sql_ascii() {
        return bytes; // could be anything, and a conversion would refuse it
    }
    // SAFETY: the conversion reads `bytes.len()` bytes, and returns its argument or a C string,
    // which lives as long as the current memory context.
    unsafe {
        let source = bytes.as_ptr().cast::<c_char>();
        let target = pg_sys::pg_server_to_any(
            source,
            bytes.len() as c_int,
            pg_sys::pg_enc::PG_UTF8 as c_int,
        );
        if target.cast_const() == source { bytes } else { CStr::from_ptr(target).to_bytes() }
    }
}

/// Postgres memory for work that repeats, so that it needs no more for a million rows than for one.
pub struct Scratch(PgMemoryContexts);

impl Scratch {
    /// Lives in the current memory context.
    pub fn new() -> Scratch {
        Scratch(PgMemoryContexts::new("ratelimit scratch"))
    }

    /// Runs `work` and frees what it allocated in Postgres memory; its result owns what it holds.
    pub fn run<T: 'static>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: a result that lives as long as it likes borrows nothing from the context.
        unsafe {
            let result = self.0.switch_to(|_| work());
            self.0.reset();
            result
        }
    }
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

/// What -infinity and infinity are as instants; the latter is also what is later than instants can tell.
pub const INFINITE: [Micros; 2] = [Micros(i64::MIN + POSTGRES_EPOCH), Micros(i64::MAX)];

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
    from_timestamptz(unsafe { unguarded::GetCurrentTimestamp() })
}

/// The number of the current subtransaction; one that begins later has a greater one.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads the state of the transaction.
    unsafe { unguarded::GetCurrentSubTransactionId() }
}

/// The number of the current transaction in this session, whether or not it has written. Its start
/// is no substitute: transactions of one message of the simple protocol share that.
pub fn local_transaction() -> pg_sys::LocalTransactionId {
    // SAFETY: reads the state of this backend.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// Gives way to a cancel or a shutdown, and to an error where memory is short (53200).
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if !memory::hold() {
        let detail = memory::NO_RESERVE.to_str().unwrap_or_default();
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory", detail);
    }
}

/// Runs `work` with a snapshot active, as an SQL statement has one. Where none is, as in the check of a
/// domain that PL/pgSQL assigns to after a COMMIT, nothing would keep a version that was found from being
/// pruned, and TOAST can't be read. An error on the way leaves popping it to the abort of the
/// (sub)transaction.
pub fn with_snapshot<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: pushed and popped in pairs.
    unsafe {
        if unguarded::ActiveSnapshotSet() {
            return work();
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// Refuses a call of `function`, such as `rl_check()`, from a query that runs in parallel (25000).
pub fn refuse_parallel(function: &'static CStr) -> Result<()> {
    // SAFETY: reads a flag.
    if unsafe { unguarded::IsInParallelMode() } {
        Err(Error::Parallel { function })
    } else {
        Ok(())
    }
}

/// Refuses a call that writes in a transaction that may not (25006), or in parallel (25000).
pub fn refuse_read_only(function: &'static CStr) -> Result<()> {
    refuse_parallel(function)?;
    // SAFETY: reads a flag; raises or returns.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(function.as_ptr());
        }
    }
    Ok(())
}
