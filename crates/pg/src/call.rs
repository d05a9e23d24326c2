//! One call of an SQL function: entry, arguments, result, error. Runs inside pgrx's guard, hands out plain data, and
//! raises its error from the outermost frame ([`raise`](crate::raise) says why).

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;

use pgrx::pg_sys;

use crate::error::{PgError, Raised, Report, Result, SCHEMA};
use crate::raise::{Raising, guarded};
use crate::values::string;

use row_type::{Order, RowType};
use sql_types::{Argument, ResultColumn, SqlRow};
use trigger_data::Trigger;

pub mod composite;
pub mod result;
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
    let run = || {
        let call = Call { fcinfo, row_type: Cell::new(None) };
        body(&call).map_err(|error| Raising::own(call.report(&error)))
    };
    // SAFETY: as the caller says; the closure has plain data only.
    unsafe { guarded(run) }
}

/// One call of an SQL function.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
    /// The result's row type, and the count of changes of such types before it was looked up.
    row_type: Cell<Option<(&'static RowType, u64)>>,
}

/// The arguments of a call, in their order.
pub struct Arguments<'call> {
    call: &'call Call,
    next: usize,
}

impl<'call> Arguments<'call> {
    /// Reads the next argument, called `name`; a missing one is NULL.
    pub fn next<T: Argument<'call>>(&mut self, name: &'static str) -> Result<T> {
        // SAFETY: fcinfo is valid for the call, and a function is declared with the types that its arguments are read
        // as. The number that the caller passes is checked.
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
    /// Reports an error, with the function's [`SCHEMA`].
    pub fn report(&self, error: &impl Raised) -> Report {
        let report = error.report();
        match report.hint {
            Some(hint) if hint.contains(SCHEMA) => {
                Report { hint: Some(hint.replace(SCHEMA, &self.qualifier())), ..report }
            }
            hint => Report { hint, ..report },
        }
    }

    /// Returns the function's schema and a dot, or nothing if `search_path` finds it.
    fn qualifier(&self) -> String {
        // SAFETY: a dropped function has no schema; otherwise the first look-up's result is valid until its visibility
        // is looked up.
        let quoted = unsafe {
            let schema = pg_sys::get_func_namespace(self.function());
            if schema == pg_sys::InvalidOid || pg_sys::FunctionIsVisible(self.function()) {
                return String::new();
            }
            let name = pg_sys::get_namespace_name(schema);
            if name.is_null() { None } else { string(pg_sys::quote_identifier(name)) }
        };
        quoted.map_or(String::new(), |name| name + ".")
    }

    /// The arguments.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { call: self, next: 0 }
    }

    /// The OID of the function that is called.
    pub fn function(&self) -> pg_sys::Oid {
        // SAFETY: flinfo is set for every call through the function manager.
        unsafe { (*(*self.fcinfo).flinfo).fn_oid }
    }

    /// The trigger that makes the call, if any.
    pub fn trigger(&self) -> Option<Trigger<'_>> {
        // SAFETY: a context node of this type is a TriggerData, valid during the call.
        unsafe {
            let context = (*self.fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
                .then(|| Trigger::new(&*context.cast()))
        }
    }

    /// Looks up the row type for [`row`](Call::row), which must fit these columns. Call it before any wait: afterwards
    /// the function may have been dropped.
    pub fn row_type(&self, columns: &[ResultColumn]) -> Result<()> {
        let known = row_type::row_type(self, columns)?;
        self.row_type.set(Some((known, row_type::changes())));
        Ok(())
    }

    /// The description of the rows that the query expects, if the function is called in FROM.
    fn expected(&self) -> Option<pg_sys::TupleDesc> {
        // SAFETY: fcinfo is valid for the call; a node of this type is a ReturnSetInfo.
        unsafe {
            let info = (*self.fcinfo).resultinfo;
            if info.is_null() || (*info).type_ != pg_sys::NodeTag::T_ReturnSetInfo {
                return None;
            }
            let expected = (*info.cast::<pg_sys::ReturnSetInfo>()).expectedDesc;
            (!expected.is_null()).then_some(expected)
        }
    }

    /// Forms the composite result of a call during which the extension was updated. PostgreSQL would look up the row's
    /// type, which has got an attribute since the query began, and refuse the row (42804); for a record it looks at the
    /// row's own attributes.
    ///
    /// # Safety
    /// The description is valid.
    unsafe fn row_as_expected<R: SqlRow>(
        &self,
        row: R,
        expected: pg_sys::TupleDesc,
    ) -> Result<pg_sys::Datum> {
        // SAFETY: the copy is of this call, and has an attribute for each value in its order, of its type.
        unsafe {
            let order = Order::of(expected, R::COLUMNS)?;
            let description = pg_sys::CreateTupleDescCopy(expected);
            (*description).tdtypeid = pg_sys::RECORDOID;
            (*description).tdtypmod = -1;
            pg_sys::BlessTupleDesc(description);
            Ok(row.with_columns(|values, nulls| {
                order.arrange(values, nulls, |values, nulls| form(description, values, nulls))
            }))
        }
    }

    /// Forms the composite result, of the columns given to [`row_type`](Call::row_type).
    pub fn row<R: SqlRow>(&self, row: R) -> Result<pg_sys::Datum> {
        let Some((RowType { description, order, .. }, changes)) = self.row_type.get() else {
            return Err(PgError::Declaration);
        };
        if let Some(expected) = self.expected()
            // SAFETY: both descriptions are valid.
            && (row_type::changes() != changes || unsafe { (*expected).natts != (**description).natts })
        {
            // SAFETY: both descriptions are valid.
            return unsafe { self.row_as_expected(row, expected) };
        }
        // SAFETY: the description has an attribute for each value, of its column's type.
        row.with_columns(|values, nulls| unsafe {
            if let Order::Same = order {
                if (**description).natts as usize != values.len() {
                    return Err(PgError::Declaration);
                }
                if const { row_template::fits(R::COLUMNS) }
                    && let Some(row) =
                        row_template::row::<R>(*description, R::COLUMNS, values, nulls)
                {
                    return Ok(row);
                }
            }
            Ok(order.arrange(values, nulls, |values, nulls| form(*description, values, nulls)))
        })
    }
}

/// Forms a composite datum.
///
/// # Safety
/// The description has an attribute for each value, of its type.
unsafe fn form(
    description: pg_sys::TupleDesc,
    values: &mut [pg_sys::Datum],
    nulls: &mut [bool],
) -> pg_sys::Datum {
    // SAFETY: as the caller says.
    unsafe {
        let tuple = pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
    }
}

impl Call {
    /// Begins a set of rows as the result. [`PgError::Declaration`]: the declared rows don't fit these columns.
    pub fn rows<R: SqlRow>(&self) -> Result<Rows<R>> {
        // SAFETY: InitMaterializedSRF raises if the caller can't take a set, and leaves a store and a description in
        // resultinfo, which outlive the call.
        unsafe {
            let class = pg_sys::get_call_result_type(self.fcinfo, null_mut(), null_mut());
            if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE {
                return Err(PgError::Declaration);
            }
            // As the query expects them: the type may have got an attribute since the query began.
            pg_sys::InitMaterializedSRF(self.fcinfo, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
            let info = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let (store, description) = ((*info).setResult, (*info).setDesc);
            let order = Order::of(description, R::COLUMNS)?;
            Ok(Rows { store, description, order, rows: PhantomData })
        }
    }

    /// Returns NULL, or the set that was begun.
    pub fn null(&self) -> pg_sys::Datum {
        // SAFETY: fcinfo is valid for the call.
        unsafe { (*self.fcinfo).isnull = true };
        pg_sys::Datum::from(0)
    }
}

/// The set of rows that a function returns.
pub struct Rows<R> {
    store: *mut pg_sys::Tuplestorestate,
    description: pg_sys::TupleDesc,
    order: Order,
    rows: PhantomData<R>,
}

impl<R: SqlRow> Rows<R> {
    /// Appends a row; the values are copied.
    pub fn put(&self, row: R) {
        row.with_columns(|values, nulls| {
            // SAFETY: there is a value for each attribute of the description, which says how many are read.
            self.order.arrange(values, nulls, |values, nulls| unsafe {
                let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
                pg_sys::tuplestore_putvalues(self.store, self.description, values, nulls);
            });
        });
    }
}
