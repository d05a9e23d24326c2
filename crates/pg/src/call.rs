//! One call of an SQL function: its entry from Postgres, its arguments, its result, its error. How a function is
//! declared is another matter. It does its work inside the guard of pgrx, hands plain data out, and raises its error
//! from the outermost frame (`raise` says why).

use std::cell::Cell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{BOOLOID, FLOAT8OID, TIMESTAMPTZOID};

use crate::error::{PgError, Raised, Result};
use crate::oom_reserve;
use crate::raise::{Below, Raising, caught_below, out_of_memory, plain, remember};
use crate::values::utf8;

use sql_types::{Argument, SqlRow};
use trigger_data::Trigger;

pub mod composite;
pub mod row_template;
pub(crate) mod row_type;
pub mod sql_types;
pub mod trigger_data;
mod window;

/// Runs an SQL function's body inside pgrx's guard and raises its error outside.
///
/// # Safety
/// `fcinfo` is the one that Postgres passed, and the caller's frame has nothing to drop.
pub unsafe fn enter<E: Raised>(
    fcinfo: pg_sys::FunctionCallInfo,
    body: fn(&Call) -> Result<pg_sys::Datum, E>,
) -> pg_sys::Datum {
    // SAFETY: as the caller says.
    unsafe {
        if !oom_reserve::hold() {
            out_of_memory().raise();
        }
        guarded(|below| run(fcinfo, body, below))
    }
}

/// Calls Rust from C: runs `work` inside pgrx's guard, and raises its error outside.
///
/// # Safety
/// Neither the caller's frame nor `work` has anything to drop.
pub(crate) unsafe fn guarded<T: Copy>(
    work: impl FnOnce(*mut Below) -> Result<T, Raising> + Copy,
) -> T {
    // SAFETY: this frame and the caller's hold plain data only, so a long jump out of the guard or
    // out of `raise` skips no destructor. The callback is linked in while this frame is there, as is
    // what it points to; both are reached through raw pointers only.
    unsafe {
        let mut below = Below::new(pg_sys::CurrentMemoryContext);
        let below = &raw mut below;
        let mut context = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(remember),
            arg: below.cast(),
        };
        pg_sys::error_context_stack = &raw mut context;
        let outcome = pg_sys::panic::pgrx_extern_c_guard(|| work(below));
        pg_sys::error_context_stack = context.previous;
        match outcome {
            Ok(result) => {
                if !(*below).copies.is_null() {
                    pg_sys::MemoryContextDelete((*below).copies);
                }
                result
            }
            Err(raising) => raising.raise(),
        }
    }
}

/// Runs the body.
///
/// # Errors
/// What is to be raised: the body's error, or one from below.
fn run<E: Raised>(
    fcinfo: pg_sys::FunctionCallInfo,
    body: fn(&Call) -> Result<pg_sys::Datum, E>,
    below: *mut Below,
) -> Result<pg_sys::Datum, Raising> {
    let answer = || {
        body(&Call { fcinfo, row_type: Cell::new(None) })
            .map_err(|error| Raising::Report(plain(&error.report(&|| qualifier(fcinfo)))))
    };
    // Only after an error, since a PgTryBuilder allocates.
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|caught| Err(caught_below(caught, below)))
}

/// The schema of the function that is called and a dot, where `search_path` does not find it; or nothing.
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
    /// [`PgError::Declaration`] where the function is declared to return something else.
    pub fn row_type(&self, columns: &[pg_sys::BuiltinOid]) -> Result<()> {
        // SAFETY: fcinfo is that of the call.
        self.row_type.set(Some(unsafe { row_type::row_type(self.fcinfo, columns)? }));
        Ok(())
    }

    /// Shapes a composite result of the columns that [`row_type`](Call::row_type) was told.
    ///
    /// # Errors
    /// [`PgError::Declaration`] where it was not, or for another number of them.
    pub fn row<R: SqlRow>(&self, row: R) -> Result<pg_sys::Datum> {
        let Some(description) = self.row_type.get() else { return Err(PgError::Declaration) };
        let by_value =
            |oid: &pg_sys::BuiltinOid| matches!(oid, BOOLOID | FLOAT8OID | TIMESTAMPTZOID);
        // SAFETY: the description has as many attributes as there are values, of the types of the row's columns.
        row.with_columns(|values, nulls| unsafe {
            if (*description).natts as usize != values.len() {
                return Err(PgError::Declaration);
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
    /// [`PgError::Declaration`] where the rows are declared with another number of columns.
    pub fn rows<R: SqlRow>(&self) -> Result<Rows<R>> {
        // SAFETY: InitMaterializedSRF raises where the caller can't take a set, and leaves a store
        // and a description in resultinfo, which live longer than the call.
        unsafe {
            pg_sys::InitMaterializedSRF(self.fcinfo, 0);
            let info = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let (store, description) = ((*info).setResult, (*info).setDesc);
            if (*description).natts as usize != R::COLUMNS.len() {
                return Err(PgError::Declaration);
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
