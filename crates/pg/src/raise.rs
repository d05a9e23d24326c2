//! Raises errors without pgrx, which rebuilds an error that passes through its guard: an SQLSTATE unknown to it, such
//! as PT429, becomes XX000, and the error's place in the source is lost. So an error of the extension leaves the guard
//! as plain data, and is raised from the outermost frame; an error from below, such as a trigger's, is copied before
//! pgrx sees it.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null, null_mut};

use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::prelude::*;
use pgrx::{PgTryBuilder, pg_sys};

use crate::error::Report;
use crate::oom_reserve;
use crate::unguarded::{
    AllocSetContextCreateInternal, CopyErrorData, MemoryContextReset, MemoryContextStrdup,
    ThrowErrorData, errcode, errdetail, errfinish, errhint, errmsg, errstart, geterrcode,
};
use crate::values::server_text;

/// A [`Report`] with palloc'd strings: plain data that a long jump may drop.
#[derive(Clone, Copy)]
pub(crate) struct PlainReport {
    sqlstate: c_int,
    message: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
}

/// 53200, without allocating: the reserve can't be allocated.
const OUT_OF_MEMORY: PlainReport = PlainReport {
    sqlstate: PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int,
    message: c"out of memory".as_ptr(),
    detail: oom_reserve::NO_RESERVE.as_ptr(),
    hint: null(),
};

/// The error of a failed call.
#[derive(Clone, Copy)]
pub(crate) enum Raising {
    /// An error of its own.
    Report(PlainReport),
    /// An error from below it, unchanged.
    Below(*mut pg_sys::ErrorData),
}

impl Raising {
    /// A call's own error.
    pub(crate) fn own(report: Report) -> Raising {
        let Report { sqlstate, message, detail, hint } = report;
        // MAKE_SQLSTATE of Postgres: six bits a character, the first one lowest.
        let pack = |packed, &c: &u8| (packed << 6) | c_int::from(c.wrapping_sub(b'0') & 0x3f);
        Raising::Report(PlainReport {
            sqlstate: sqlstate.iter().rev().fold(0, pack),
            message: palloc_str(&message),
            detail: detail.as_deref().map_or(null(), palloc_str),
            hint: hint.as_deref().map_or(null(), palloc_str),
        })
    }
}

/// Runs `work` inside pgrx's guard, and raises its error, or one from below, outside.
///
/// # Safety
/// Neither the caller's frame nor `work` has anything to drop.
pub(crate) unsafe fn guarded<T: Copy>(work: impl FnOnce() -> Result<T, Raising> + Copy) -> T {
    // SAFETY: this frame and the caller's hold plain data only, so a long jump out of the guard or out of `raise` skips
    // no destructor. The callback and what it points to are linked in while this frame lives, and used through raw
    // pointers only.
    unsafe {
        if !oom_reserve::refill() {
            raise(PgLogLevel::ERROR, OUT_OF_MEMORY);
        }
        let mut below = Below {
            context: pg_sys::CurrentMemoryContext,
            sqlstate: 0,
            copies: null_mut(),
            error: null_mut(),
            hides_rows: false,
        };
        let below = &raw mut below;
        let mut context = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(remember),
            arg: below.cast(),
        };
        pg_sys::error_context_stack = &raw mut context;
        let outcome = pg_sys::panic::pgrx_extern_c_guard(|| {
            // A PgTryBuilder allocates: use one only after an error.
            catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|caught| Err(caught_below(caught, below)))
        });
        pg_sys::error_context_stack = context.previous;
        match outcome {
            Ok(result) => {
                if !(*below).copies.is_null() {
                    pg_sys::MemoryContextDelete((*below).copies);
                }
                result
            }
            Err(Raising::Report(report)) => raise(PgLogLevel::ERROR, report),
            Err(Raising::Below(error)) => throw(error),
        }
    }
}

/// The last error raised below a call, whether it reaches the call or is caught before.
#[derive(Clone, Copy)]
struct Below {
    /// The memory context of the call.
    context: pg_sys::MemoryContext,
    sqlstate: c_int,
    /// A child of that context for the copy; null until there is an error.
    copies: pg_sys::MemoryContext,
    /// The copy, with the error contexts below the call; null if there is none.
    error: *mut pg_sys::ErrorData,
    /// Whether it was raised in [`hiding_rows`].
    hides_rows: bool,
}

thread_local! {
    static HIDES_ROWS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Its constraint errors lose their detail, which quotes a row, even if they name no table, as errors of
/// other nodes do.
pub fn hiding_rows<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            HIDES_ROWS.set(self.0);
        }
    }
    let _restore = Restore(HIDES_ROWS.replace(true));
    work()
}

/// Converts an error from below a call.
#[cold]
fn caught_below(caught: Box<dyn Any + Send>, below: *mut Below) -> Raising {
    PgTryBuilder::new(AssertUnwindSafe(|| resume_unwind(caught)))
        .catch_others(|caught| match caught {
            // Raised by Postgres or by user code below us, such as a trigger.
            // SAFETY: `below` belongs to the call, which still has its frame.
            CaughtError::PostgresError(error) => as_it_was(&error, unsafe { *below }),
            caught => caught.rethrow(),
        })
        .execute()
}

/// Finds the copy of an error that pgrx caught. Without a copy, for example when memory was low, builds the error from
/// pgrx's report.
fn as_it_was(error: &ErrorReportWithLevel, below: Below) -> Raising {
    let known = error.sql_error_code();
    // pgrx reports an unknown SQLSTATE as XX000.
    let is_unknown = known == PgSqlErrorCode::ERRCODE_INTERNAL_ERROR;
    let is_same = |copy: &pg_sys::ErrorData| {
        // SAFETY: a copy has a message, or null; it is there until the call ends.
        (is_unknown || known as c_int == copy.sqlerrcode)
            && unsafe {
                !copy.message.is_null()
                    && CStr::from_ptr(copy.message).to_string_lossy() == error.message()
            }
    };
    // SAFETY: as above; nothing else refers to it.
    if let Some(copy) = unsafe { below.error.as_mut() }.filter(|copy| is_same(copy)) {
        if shows_a_row(copy.sqlerrcode, below.hides_rows || !copy.table_name.is_null()) {
            copy.detail = null_mut();
            copy.detail_log = null_mut();
        }
        return Raising::Below(copy);
    }
    let sqlstate = if is_unknown && below.sqlstate != 0 { below.sqlstate } else { known as c_int };
    let detail = error.detail().filter(|_| !shows_a_row(sqlstate, true));
    Raising::Report(PlainReport {
        sqlstate,
        message: palloc_str(error.message()),
        detail: detail.map_or(null(), palloc_str),
        hint: error.hint().map_or(null(), palloc_str),
    })
}

/// Whether an SQLSTATE is of a class, given by its two characters. Postgres packs six bits per character, the first
/// one lowest.
fn is_of(class: &[u8; 2], sqlstate: c_int) -> bool {
    let [first, second] = class.map(|c| c_int::from(c - b'0'));
    sqlstate & 0xfff == first | second << 6
}

/// Whether PostgreSQL's detail of such an error quotes a row to be written, with its key: an error of a
/// constraint, which names its table, or of a view WITH CHECK OPTION. A trigger's own error is left unchanged
/// unless it looks the same.
fn shows_a_row(sqlstate: c_int, names_table: bool) -> bool {
    is_of(b"23", sqlstate) && names_table || is_of(b"44", sqlstate)
}

/// An error context callback that adds no context: the only place where an error can be seen before pgrx rebuilds it.
/// Postgres calls it for the innermost call first, when the contexts below it have been added and those above have not.
///
/// # Safety
/// Called by Postgres; `below` is that of the innermost call.
unsafe extern "C-unwind" fn remember(below: *mut c_void) {
    // SAFETY: Postgres calls this while it builds a message, when geterrcode may be called; `below` is that of the call
    // that it is linked in for.
    unsafe {
        let below = below.cast::<Below>();
        let sqlstate = geterrcode();
        // Notices and warnings.
        if [b"00", b"01", b"02"].iter().any(|class| is_of(class, sqlstate)) {
            return;
        }
        (*below).sqlstate = sqlstate;
        (*below).error = null_mut();
        (*below).hides_rows = HIDES_ROWS.get();
        // Don't allocate if there is no memory, or if an error would be a crash. pgrx's own allocations, which can't
        // fail, use the reserve.
        if is_of(b"53", sqlstate) {
            oom_reserve::release();
        }
        if is_of(b"53", sqlstate) || pg_sys::CritSectionCount > 0 {
            return;
        }
        if (*below).copies.is_null() {
            (*below).copies = AllocSetContextCreateInternal(
                (*below).context,
                c"ratelimit error".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as pg_sys::Size,
                pg_sys::ALLOCSET_SMALL_INITSIZE as pg_sys::Size,
                pg_sys::ALLOCSET_SMALL_MAXSIZE as pg_sys::Size,
            );
        } else {
            MemoryContextReset((*below).copies);
        }
        let context = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*below).copies;
        let error = CopyErrorData();
        pg_sys::CurrentMemoryContext = context;
        if (*error).elevel == PgLogLevel::ERROR as c_int {
            (*below).error = error;
        }
    }
}

/// Copies a text into Postgres memory, in the server's encoding.
fn palloc_str(text: &str) -> *const c_char {
    // pgrx reads a message in another encoding as UTF-8. Characters that it can't read can't be converted back, and the
    // error of that conversion would hide this one.
    // SAFETY: reads a setting.
    let utf8 = unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as c_int;
    let text = if utf8 { text.to_owned() } else { text.replace('\u{fffd}', "?") };
    let text = CString::new(server_text(&text.replace('\0', ""))).unwrap_or_default();
    // SAFETY: it copies a valid C string.
    unsafe { pg_sys::pstrdup(text.as_ptr()) }
}

/// # Safety
/// No frame between this one and Postgres has anything to drop.
unsafe fn raise(level: PgLogLevel, report: PlainReport) -> ! {
    const TEXT: *const c_char = c"%s".as_ptr();
    // SAFETY: the pointers are null or valid C strings; errfinish jumps away at level ERROR, and ends
    // the process at level FATAL.
    unsafe {
        pg_sys::submodules::thread_check::active_thread::clear();
        errstart(level as c_int, null());
        errcode(report.sqlstate);
        errmsg(TEXT, report.message);
        if !report.detail.is_null() {
            errdetail(TEXT, report.detail);
        }
        if !report.hint.is_null() {
            errhint(TEXT, report.hint);
        }
        errfinish(c"raise.rs".as_ptr(), line!() as c_int, c"raise".as_ptr());
    }
    unreachable!("errfinish returned from an error")
}

/// Ends only this session, when memory is too low to raise an error.
pub fn end_session() {
    // SAFETY: FATAL leaves the process by its exit, past all frames.
    unsafe { raise(PgLogLevel::FATAL, OUT_OF_MEMORY) }
}

/// Raises an error from below us unchanged: it keeps its contexts, and those above us are added.
///
/// # Safety
/// No frame between this one and Postgres has anything to drop.
unsafe fn throw(error: *mut pg_sys::ErrorData) -> ! {
    // SAFETY: the copy lives as long as the call's context. Postgres keeps the names of the place in the source by
    // address, so they move to ErrorContext; the domain is for messages that are yet to be translated.
    unsafe {
        pg_sys::submodules::thread_check::active_thread::clear();
        let kept = |text: *const c_char| match text.is_null() {
            true => text,
            false => MemoryContextStrdup(pg_sys::ErrorContext, text).cast_const(),
        };
        (*error).filename = kept((*error).filename);
        (*error).funcname = kept((*error).funcname);
        (*error).domain = null();
        ThrowErrorData(error);
    }
    unreachable!("ThrowErrorData returned from an error")
}
