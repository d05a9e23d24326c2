//! One call of an SQL function: its entry from Postgres, its arguments, its result, its error. How a
//! function is declared is another matter (`declaration`).
//!
//! pgrx rebuilds an error that passes through its guard from a closed list of SQLSTATEs, and turns
//! one that it doesn't know, such as PT429, into XX000; and it drops what an error says of where it
//! comes from. So an SQL function here does its work inside the guard, hands plain data out, and
//! raises from the outermost frame; and an error from below us, of a trigger on our tables say, is
//! copied before pgrx sees it.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use pgrx::pg_sys::BuiltinOid::{BOOLOID, FLOAT8OID, TIMESTAMPTZOID};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use pgrx::{PgTryBuilder, pg_sys};

use crate::pg::error::{Error, Report, Result};
use crate::pg::oom_reserve;
use crate::pg::settings::{self, ErrorStyle};
use crate::pg::values::{server_text, utf8};

use sql_types::{Argument, SqlRow};
use trigger_data::Trigger;

pub mod composite;
pub mod row_template;
mod row_type;
pub mod sql_types;
pub mod trigger_data;
mod window;

// Declared here because pgrx hides them: they are called from a frame with nothing to drop only.
unsafe extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg(fmt: *const c_char, ...) -> c_int;
    fn errdetail(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
    fn ThrowErrorData(error: *mut pg_sys::ErrorData);
    fn MemoryContextStrdup(context: pg_sys::MemoryContext, text: *const c_char) -> *mut c_char;
}

// Declared here because a guard of pgrx's has no place in an error context callback: an error in one
// goes on to where the first was going.
unsafe extern "C-unwind" {
    fn geterrcode() -> c_int;
    fn AllocSetContextCreateInternal(
        parent: pg_sys::MemoryContext,
        name: *const c_char,
        min: pg_sys::Size,
        init: pg_sys::Size,
        max: pg_sys::Size,
    ) -> pg_sys::MemoryContext;
    fn MemoryContextReset(context: pg_sys::MemoryContext);
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
}

/// A [`Report`] whose strings live in Postgres memory: plain data that a long jump may drop.
#[derive(Clone, Copy)]
struct PlainReport {
    sqlstate: c_int,
    message: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
}

/// 53200, made of what is there already.
const OUT_OF_MEMORY: PlainReport = PlainReport {
    sqlstate: PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int,
    message: c"out of memory".as_ptr(),
    detail: oom_reserve::NO_RESERVE.as_ptr(),
    hint: std::ptr::null(),
};

#[derive(Clone, Copy)]
enum Outcome {
    Value(pg_sys::Datum),
    Raise(PlainReport),
    /// An error from below us, as it was.
    Throw(*mut pg_sys::ErrorData),
}

/// The last error that was raised below a call, whether it reaches us or somebody there catches it.
struct Below {
    /// The memory context of the call.
    context: pg_sys::MemoryContext,
    sqlstate: c_int,
    /// A context below that one, for the copy alone; null until there is an error.
    copies: pg_sys::MemoryContext,
    /// With the error contexts that are below us; null if there is no copy.
    error: *mut pg_sys::ErrorData,
}

/// Runs an SQL function's body inside pgrx's guard and raises its error outside.
///
/// # Safety
/// `fcinfo` is the one that Postgres passed, and the caller's frame has nothing to drop.
pub unsafe fn enter(
    fcinfo: pg_sys::FunctionCallInfo,
    body: fn(&Call) -> Result<pg_sys::Datum>,
) -> pg_sys::Datum {
    // SAFETY: this frame and the caller's hold plain data only, so a long jump out of the guard or
    // out of `raise` skips no destructor. The callback is linked in while this frame is there, as is
    // what it points to; both are reached through raw pointers only.
    unsafe {
        if !oom_reserve::hold() {
            raise(PgLogLevel::ERROR, OUT_OF_MEMORY);
        }
        let mut below = Below {
            context: pg_sys::CurrentMemoryContext,
            sqlstate: 0,
            copies: null_mut(),
            error: null_mut(),
        };
        let below = &raw mut below;
        let mut context = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(remember),
            arg: below.cast(),
        };
        pg_sys::error_context_stack = &raw mut context;
        let outcome = pg_sys::panic::pgrx_extern_c_guard(|| run(fcinfo, body, below));
        pg_sys::error_context_stack = context.previous;
        match outcome {
            Outcome::Value(datum) => {
                if !(*below).copies.is_null() {
                    pg_sys::MemoryContextDelete((*below).copies);
                }
                datum
            }
            Outcome::Raise(report) => raise(PgLogLevel::ERROR, report),
            Outcome::Throw(error) => throw(error),
        }
    }
}

fn run(
    fcinfo: pg_sys::FunctionCallInfo,
    body: fn(&Call) -> Result<pg_sys::Datum>,
    below: *mut Below,
) -> Outcome {
    let answer = || match body(&Call { fcinfo, row_type: Cell::new(None) }) {
        Ok(datum) => Outcome::Value(datum),
        Err(error) => {
            let qualifier = || qualifier(fcinfo);
            Outcome::Raise(plain(match settings::error_style() {
                ErrorStyle::Pt429 => error.report(&qualifier),
                ErrorStyle::Pgrst => error.report_for_postgrest(&qualifier),
            }))
        }
    };
    // Only after an error, since a PgTryBuilder allocates.
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|caught| caught_below(caught, below))
}

/// Returns what is to be raised for an error that came from below a call.
#[cold]
fn caught_below(caught: Box<dyn Any + Send>, below: *mut Below) -> Outcome {
    PgTryBuilder::new(AssertUnwindSafe(|| resume_unwind(caught)))
        .catch_others(|caught| match caught {
            // Raised by Postgres or by user code below us, a trigger say.
            CaughtError::PostgresError(error) => {
                // SAFETY: it is that of the call, whose frame is there.
                let below = unsafe { &*below };
                // XX000 is also what pgrx makes of an SQLSTATE that it doesn't know.
                let same_state = |sqlstate: c_int| match error.sql_error_code() {
                    PgSqlErrorCode::ERRCODE_INTERNAL_ERROR => true,
                    known => known as c_int == sqlstate,
                };
                // SAFETY: a copy has a message, or null; it is there until the call ends.
                let same_message = |copy: &pg_sys::ErrorData| unsafe {
                    !copy.message.is_null()
                        && CStr::from_ptr(copy.message).to_string_lossy() == error.message()
                };
                // SAFETY: as above; nothing else refers to it.
                match unsafe { below.error.as_mut() } {
                    Some(copy) if same_state(copy.sqlerrcode) && same_message(copy) => {
                        if shows_a_row(copy.sqlerrcode, !copy.table_name.is_null()) {
                            copy.detail = null_mut();
                            copy.detail_log = null_mut();
                        }
                        Outcome::Throw(copy)
                    }
                    // Short of memory, say.
                    _ => {
                        let sqlstate = match error.sql_error_code() {
                            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR if below.sqlstate != 0 => {
                                below.sqlstate
                            }
                            known => known as c_int,
                        };
                        let detail = error.detail().filter(|_| !shows_a_row(sqlstate, true));
                        Outcome::Raise(PlainReport {
                            sqlstate,
                            message: palloc_str(error.message()),
                            detail: detail.map_or(std::ptr::null(), palloc_str),
                            hint: error.hint().map_or(std::ptr::null(), palloc_str),
                        })
                    }
                }
            }
            caught => caught.rethrow(),
        })
        .execute()
}

/// What qualifies the names of the extension's functions and tables in a hint: the schema of the
/// function that is called and a dot, where `search_path` does not find it; or nothing.
fn qualifier(fcinfo: pg_sys::FunctionCallInfo) -> String {
    // SAFETY: fcinfo is that of the call, and flinfo is set for every call through the function
    // manager. The function may be gone, and then has no schema; what is found of it before anything
    // else is looked up is still there when its visibility is asked for.
    unsafe {
        let function = (*(*fcinfo).flinfo).fn_oid;
        let schema = pg_sys::get_func_namespace(function);
        if schema == pg_sys::InvalidOid || pg_sys::FunctionIsVisible(function) {
            return String::new();
        }
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() {
            return String::new();
        }
        format!("{}.", utf8(CStr::from_ptr(pg_sys::quote_identifier(name)).to_bytes()))
    }
}

/// Whether an SQLSTATE is of a class, given by its two characters: as Postgres packs it, six bits a
/// character, the first one lowest.
fn is_of(class: &[u8; 2], sqlstate: c_int) -> bool {
    let [first, second] = class.map(|c| c_int::from(c - b'0'));
    sqlstate & 0xfff == first | second << 6
}

/// Whether PostgreSQL words the detail of such an error as a row that was to be written, and so with
/// its key: that of a constraint, which names its table, or of a view WITH CHECK OPTION. What a
/// trigger raises by itself is left alone, unless it says the same.
fn shows_a_row(sqlstate: c_int, names_table: bool) -> bool {
    is_of(b"23", sqlstate) && names_table || is_of(b"44", sqlstate)
}

/// An error context callback that adds no context: it is the one place from which an error can be
/// seen before pgrx rebuilds it. It is called for the innermost call first, when the contexts below
/// that have been added and those above have not.
///
/// # Safety
/// Called by Postgres; `below` is that of the innermost call.
unsafe extern "C-unwind" fn remember(below: *mut c_void) {
    // SAFETY: Postgres calls this while it builds a message, which is when geterrcode may be asked;
    // `below` is that of the call that it is linked in for.
    unsafe {
        let below = below.cast::<Below>();
        let sqlstate = geterrcode();
        // No errors, but notices and warnings.
        if [b"00", b"01", b"02"].iter().any(|class| is_of(class, sqlstate)) {
            return;
        }
        (*below).sqlstate = sqlstate;
        (*below).error = null_mut();
        // Nothing is allocated where there is no memory, or where that would be a crash by itself.
        // What pgrx allocates, while it can't bear an error, is had from the reserve.
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

fn plain(report: Report) -> PlainReport {
    // MAKE_SQLSTATE of Postgres: six bits a character, the first one lowest.
    let sqlstate = report
        .sqlstate
        .iter()
        .rev()
        .fold(0, |packed, &c| (packed << 6) | c_int::from((c.wrapping_sub(b'0')) & 0x3f));
    PlainReport {
        sqlstate,
        message: palloc_str(&report.message),
        detail: report.detail.as_deref().map_or(std::ptr::null(), palloc_str),
        hint: report.hint.as_deref().map_or(std::ptr::null(), palloc_str),
    }
}

/// A copy in Postgres memory, in the server's encoding.
fn palloc_str(text: &str) -> *const c_char {
    // pgrx reads a message of another encoding as UTF-8, and what it can't read can't be converted
    // back: an error on the way would hide the one that is being reported.
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
        errstart(level as c_int, std::ptr::null());
        errcode(report.sqlstate);
        errmsg(TEXT, report.message);
        if !report.detail.is_null() {
            errdetail(TEXT, report.detail);
        }
        if !report.hint.is_null() {
            errhint(TEXT, report.hint);
        }
        errfinish(c"call.rs".as_ptr(), line!() as c_int, c"raise".as_ptr());
    }
    unreachable!("errfinish returned from an error")
}

/// Ends the session, and no other: for where memory is so short that no error can be raised.
pub fn end_session() {
    // SAFETY: FATAL leaves the process by its exit, past all frames.
    unsafe { raise(PgLogLevel::FATAL, OUT_OF_MEMORY) }
}

/// Raises an error from below us as it was: the contexts that it has are kept, and those above us are
/// added to them.
///
/// # Safety
/// No frame between this one and Postgres has anything to drop.
unsafe fn throw(error: *mut pg_sys::ErrorData) -> ! {
    // SAFETY: the copy is there until its context goes, with that of the call. Of what is kept by
    // address and not copied again, the names of its place in the source are put where errors are;
    // the domain is for messages that are yet to be translated.
    unsafe {
        pg_sys::submodules::thread_check::active_thread::clear();
        let kept = |text: *const c_char| match text.is_null() {
            true => text,
            false => MemoryContextStrdup(pg_sys::ErrorContext, text).cast_const(),
        };
        (*error).filename = kept((*error).filename);
        (*error).funcname = kept((*error).funcname);
        (*error).domain = std::ptr::null();
        ThrowErrorData(error);
    }
    unreachable!("ThrowErrorData returned from an error")
}

/// One call of an SQL function: its arguments, and its result.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
    row_type: Cell<Option<pg_sys::TupleDesc>>,
}

/// The arguments of a call, one after the other.
pub struct Arguments<'call> {
    call: &'call Call,
    next: usize,
}

impl<'call> Arguments<'call> {
    /// The next one, which is called `name`; one that is missing is NULL.
    ///
    /// # Errors
    /// Where it is refused.
    pub fn next<T: Argument<'call>>(&mut self, name: &'static str) -> Result<T> {
        // SAFETY: fcinfo is valid for the call; a function is declared with the types that its
        // arguments are read as, and how many the caller passes is checked all the same.
        unsafe {
            let fcinfo = &*self.call.fcinfo;
            if self.next < fcinfo.nargs as usize {
                let argument = &*fcinfo.args.as_ptr().add(self.next);
                self.next += 1;
                if !argument.isnull {
                    return T::read(argument.value, name);
                }
            }
        }
        T::null(name)
    }
}

impl Call {
    /// What the function was given.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { call: self, next: 0 }
    }

    /// The OID of the function that is called.
    pub fn function(&self) -> pg_sys::Oid {
        // SAFETY: fcinfo is valid, and flinfo is set for every call through the function manager.
        unsafe { (*(*self.fcinfo).flinfo).fn_oid }
    }

    /// The trigger that calls, if one does.
    pub fn trigger(&self) -> Option<Trigger<'_>> {
        // SAFETY: a context node of this type is a TriggerData, valid during the call.
        unsafe {
            let context = (*self.fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
                .then(|| Trigger::new(&*context.cast()))
        }
    }

    /// Says of which columns the row is that [`row`](Call::row) will return. To be called before
    /// anything waits: afterwards the function may be gone.
    ///
    /// # Errors
    /// [`Error::Declaration`] where the function is declared to return something else.
    pub fn row_type(&self, columns: &[pg_sys::BuiltinOid]) -> Result<()> {
        // SAFETY: fcinfo is that of the call.
        self.row_type.set(Some(unsafe { row_type::row_type(self.fcinfo, columns)? }));
        Ok(())
    }

    /// Shapes a composite result of the columns that [`row_type`](Call::row_type) was told.
    ///
    /// # Errors
    /// [`Error::Declaration`] where it was not, or for another number of them.
    pub fn row<R: SqlRow>(&self, row: R) -> Result<pg_sys::Datum> {
        let Some(description) = self.row_type.get() else { return Err(Error::Declaration) };
        let by_value =
            |oid: &pg_sys::BuiltinOid| matches!(oid, BOOLOID | FLOAT8OID | TIMESTAMPTZOID);
        // SAFETY: the description has as many attributes as there are values, of the types of the row's columns.
        row.with_columns(|values, nulls| unsafe {
            if (*description).natts as usize != values.len() {
                return Err(Error::Declaration);
            }
            if R::OIDS.iter().all(by_value)
                && let Some(row) = row_template::row(description, values, nulls)
            {
                return Ok(row);
            }
            let tuple =
                pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
            Ok(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
        })
    }
}

impl Call {
    /// Begins a set of rows as the result.
    ///
    /// # Errors
    /// [`Error::Declaration`] where the rows are declared with another number of columns.
    pub fn rows<R: SqlRow>(&self) -> Result<Rows<R>> {
        // SAFETY: InitMaterializedSRF raises where the caller can't take a set, and leaves a store
        // and a description in resultinfo, which live longer than the call.
        unsafe {
            pg_sys::InitMaterializedSRF(self.fcinfo, 0);
            let info = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let (store, description) = ((*info).setResult, (*info).setDesc);
            if (*description).natts as usize != R::COLUMNS.len() {
                return Err(Error::Declaration);
            }
            Ok(Rows { store, description, rows: PhantomData })
        }
    }

    /// Says that the function returns NULL, or a set: what it returns then.
    pub fn null(&self) -> pg_sys::Datum {
        // SAFETY: fcinfo is valid for the call.
        unsafe { (*self.fcinfo).isnull = true };
        pg_sys::Datum::from(0)
    }
}

/// A set of rows that a function returns.
pub struct Rows<R> {
    store: *mut pg_sys::Tuplestorestate,
    description: pg_sys::TupleDesc,
    rows: PhantomData<R>,
}

impl<R: SqlRow> Rows<R> {
    /// Appends a row; the values are copied.
    pub fn put(&self, row: R) {
        // SAFETY: the description has as many attributes as a row has columns.
        row.with_columns(|values, nulls| unsafe {
            pg_sys::tuplestore_putvalues(
                self.store,
                self.description,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        });
    }
}
