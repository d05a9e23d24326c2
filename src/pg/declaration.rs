//! SQL functions, each declared beside its body: `sql_function!` makes the SQL declaration and the
//! code that reads the arguments of one list, so that they can't disagree.

#![allow(
    clippy::panic,
    reason = "at compile time only: a declaration that is wrong does not build"
)]

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::section;
use ratelimit_pg::error::Result;

use crate::pg::call::sql_types::{self, Json, ResultColumn, SqlRow, SqlValue, Timestamptz};
use crate::pg::call::{Call, Rows};
use crate::pg::transaction::{refuse_parallel, refuse_read_only};

/// What CREATE FUNCTION is told of a function.
pub struct Declaration {
    pub name: &'static str,
    pub parameters: &'static [Parameter],
    pub returns: Returned,
    pub effect: Effect,
    /// How many rows a planner should expect of a set; `None`: PostgreSQL's own guess.
    pub rows: Option<&'static str>,
    pub comment: &'static str,
}

/// One of the arguments that a function is declared with.
pub struct Parameter {
    pub name: &'static str,
    /// Its SQL type.
    pub sql: &'static str,
    pub nullable: bool,
    /// An SQL expression.
    pub default: Option<&'static str>,
}

/// What a function is declared to return.
#[derive(Clone, Copy)]
pub enum Returned {
    Value(&'static str),
    /// One row of these columns: OUT arguments.
    Row(&'static [ResultColumn]),
    /// A set of rows of these columns.
    Table(&'static [ResultColumn]),
}

/// What a function does beside computing its result: how it is declared, and where it is refused.
pub struct Effect {
    pub sql: &'static str,
    /// Refuses the call of a function, given with its parentheses, where it can't be made.
    pub allow: fn(&'static CStr) -> Result<()>,
}

impl Effect {
    /// Writes to the tables. The cost is about what a call takes, and more than that of a function in PL/pgSQL
    /// (100), so that a planner evaluates it after plain conditions. A cost of thousands would turn JIT on where
    /// a statement calls for each of some thousand rows.
    pub const WRITES: Effect =
        Effect { sql: " VOLATILE PARALLEL UNSAFE COST 200", allow: refuse_read_only };
    /// Changes the state of limits: writes to the tables where these are kept there, and refuses itself
    /// where it can't.
    pub const TAKES: Effect = Effect { sql: Effect::WRITES.sql, allow: refuse_parallel };
    /// Reads the latest state and definitions, and the clock.
    pub const READS: Effect = Effect { sql: Effect::WRITES.sql, allow: refuse_parallel };
    /// Has none.
    pub const NONE: Effect = Effect { sql: " IMMUTABLE PARALLEL SAFE", allow: |_| Ok(()) };
    /// Is a window function's, and has no other than what that keeps of a partition.
    pub const WINDOW: Effect = Effect { sql: " WINDOW IMMUTABLE PARALLEL SAFE", ..Effect::NONE };
    /// Is a trigger's, and looks itself at what fires it.
    pub const TRIGGER: Effect = Effect { sql: "", allow: |_| Ok(()) };
}

/// Text that is put together by the compiler; of no room, only its length.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    const fn push(&mut self, text: &str) {
        let mut n = 0;
        while n < text.len() {
            if self.length < N {
                self.bytes[self.length] = text.as_bytes()[n];
            }
            self.length += 1;
            n += 1;
        }
    }

    const fn push_columns(&mut self, before: &str, columns: &[ResultColumn]) {
        let mut n = 0;
        while n < columns.len() {
            self.push(if n > 0 { ", " } else { "" });
            self.push(before);
            self.push(columns[n].name);
            self.push(" ");
            self.push(columns[n].sql);
            n += 1;
        }
    }

    const fn push_parameters(&mut self, parameters: &[Parameter]) {
        let mut n = 0;
        while n < parameters.len() {
            let Parameter { name, sql, nullable, default } = &parameters[n];
            self.push(if n > 0 { ", " } else { "" });
            self.push(name);
            self.push(" ");
            self.push(sql);
            if let Some(default) = default {
                let is_null = matches!(default.as_bytes(), b"NULL");
                assert!(!is_null || *nullable, "an argument that may not be NULL is so by default");
                self.push(" DEFAULT ");
                self.push(default);
            }
            n += 1;
        }
    }

    pub const fn as_str(&self) -> &str {
        match str::from_utf8(&self.bytes) {
            Ok(text) => text,
            Err(_) => panic!("text that was cut off"),
        }
    }
}

impl Declaration {
    /// CREATE FUNCTION and COMMENT ON FUNCTION.
    pub const fn sql<const N: usize>(&self) -> Text<N> {
        let mut sql = Text { bytes: [0; N], length: 0 };
        sql.push("CREATE FUNCTION @extschema@.");
        sql.push(self.name);
        sql.push("(");
        sql.push_parameters(self.parameters);
        match self.returns {
            Returned::Value(of) => {
                sql.push(")\nRETURNS ");
                sql.push(of);
            }
            Returned::Row(columns) => {
                sql.push(if self.parameters.is_empty() { "" } else { ", " });
                sql.push_columns("OUT ", columns);
                sql.push(")\nRETURNS record");
            }
            Returned::Table(columns) => {
                sql.push(")\nRETURNS TABLE (");
                sql.push_columns("", columns);
                sql.push(")");
            }
        }
        sql.push("\nLANGUAGE c");
        sql.push(self.effect.sql);
        if let Some(rows) = self.rows {
            sql.push(" ROWS ");
            sql.push(rows);
        }
        sql.push("\nAS 'MODULE_PATHNAME', '");
        sql.push(self.name);
        sql.push("';\nCOMMENT ON FUNCTION @extschema@.");
        sql.push(self.name);
        sql.push(" IS $$");
        sql.push(self.comment);
        sql.push("$$;\n");
        sql
    }

    /// How long that is, in bytes.
    pub const fn sql_length(&self) -> usize {
        self.sql::<0>().length
    }
}

/// What a trigger function returns.
pub struct Proceed(pub pg_sys::Datum);

/// The result of an SQL function.
pub trait SqlResult: Sized {
    const DECLARED: Returned;

    /// Runs before the arguments are read.
    ///
    /// # Errors
    /// [`PgError::Declaration`](ratelimit_pg::error::PgError::Declaration) where the function is declared to return something else.
    fn begin(_: &Call) -> Result<()> {
        Ok(())
    }

    /// As Postgres takes it.
    ///
    /// # Errors
    /// As [`begin`](SqlResult::begin).
    fn end(self, call: &Call) -> Result<pg_sys::Datum>;
}

macro_rules! value {
    ($($type:ty),*) => {$(
        impl SqlResult for $type {
            const DECLARED: Returned = Returned::Value(<$type as SqlValue>::SQL);

            fn end(self, call: &Call) -> Result<pg_sys::Datum> {
                Some(self).end(call)
            }
        }
    )*};
}
value!(bool, i32, i64, f64, sql_types::Text, Json, Timestamptz);

impl<T: SqlValue> SqlResult for Option<T> {
    const DECLARED: Returned = Returned::Value(T::SQL);

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        Ok(self.datum().unwrap_or_else(|| call.null()))
    }
}

impl SqlResult for Proceed {
    const DECLARED: Returned = Returned::Value("trigger");

    fn end(self, _: &Call) -> Result<pg_sys::Datum> {
        Ok(self.0)
    }
}

impl<R: SqlRow> SqlResult for Rows<R> {
    const DECLARED: Returned = Returned::Table(R::COLUMNS);

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        Ok(call.null())
    }
}

/// One row.
pub struct One<R>(pub R);

impl<R: SqlRow> SqlResult for One<R> {
    const DECLARED: Returned = match R::TYPE {
        Some(of) => Returned::Value(of),
        None => Returned::Row(R::COLUMNS),
    };

    /// Before anything waits: afterwards the function may be gone.
    fn begin(call: &Call) -> Result<()> {
        call.row_type(R::OIDS)
    }

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        call.row(self.0)
    }
}

/// One row, of a window function for the current one.
pub struct OneInWindow<R>(pub R);

impl<R: SqlRow> SqlResult for OneInWindow<R> {
    const DECLARED: Returned = <One<R> as SqlResult>::DECLARED;

    fn begin(call: &Call) -> Result<()> {
        call.row_type(R::OIDS)?;
        call.evaluate_arguments()
    }

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        call.row(self.0)
    }
}

/// Where a declaration stands in the source.
pub struct Place {
    pub module: &'static str,
    pub location: &'static str,
    pub file: &'static str,
    pub line: u32,
}

/// The tables, and the type rl_result.
const REQUIRED: &str = "bootstrap";

/// How long an [`entry`] is, in bytes.
pub const fn entry_length(name: &str, sql: &str, place: &Place) -> usize {
    let texts = [sql, place.module, place.location, place.file, name, REQUIRED];
    let mut length = 4 * section::u32_len() + 2 * section::u8_len() + 2 * section::bool_len();
    let mut n = 0;
    while n < texts.len() {
        length += section::str_len(texts[n]);
        n += 1;
    }
    length
}

/// What `extension_sql!(sql, name = name, requires = ["bootstrap"])` leaves in the library for
/// `cargo pgrx schema`, which that macro only does for a literal.
pub const fn entry<const N: usize>(name: &str, sql: &str, place: &Place) -> [u8; N] {
    section::EntryWriter::<N>::new()
        .u32((N - section::u32_len()) as u32)
        .u8(section::ENTITY_CUSTOM_SQL)
        .str(sql)
        .str(place.module)
        .str(place.location)
        .str(place.file)
        .u32(place.line)
        .str(name)
        .bool(false)
        .bool(false)
        .u32(1)
        .u8(section::POSITIONING_REF_NAME)
        .str(REQUIRED)
        .u32(0)
        .finish()
}

/// Declares an SQL function, and defines it: its version-1 record, an entry point that reads the
/// arguments, runs the body and raises the error that it returns, and its part of the script that
/// CREATE EXTENSION runs. What stands after an argument's type is the SQL of its default; an argument
/// that may be NULL is an `Option`. Arguments are read, and refused, in their order.
///
/// It is not `#[pg_extern]`: behind the guard that this puts around a function, an error has lost an
/// SQLSTATE of our own and its context (see [`call`](crate::pg::call)); and a row that pgrx makes costs
/// more than the limiter.
macro_rules! sql_function {
    (
        $(#[doc = $doc:literal])*
        #[sql($effect:ident, $(rows = $rows:literal,)? comment = $comment:literal)]
        fn $name:ident(
            $call:ident: $given:ty $(, $parameter:ident: $type:ty $(= $default:literal)?)* $(,)?
        ) -> $result:ty $body:block
    ) => {
        $(#[doc = $doc])*
        #[allow(non_upper_case_globals)]
        pub const $name: $crate::pg::declaration::Declaration = {
            #[allow(unused_imports)] // of a function without arguments
            use $crate::pg::{
                call::sql_types::{Argument, optional},
                declaration::{Declaration, Effect, Parameter, SqlResult},
            };
            Declaration {
                name: stringify!($name),
                parameters: &[$(Parameter {
                    name: stringify!($parameter),
                    sql: <$type as Argument>::SQL,
                    nullable: <$type as Argument>::NULLABLE,
                    default: optional!($($default)?),
                }),*],
                returns: <$result as SqlResult>::DECLARED,
                effect: Effect::$effect,
                rows: optional!($($rows)?),
                comment: $comment,
            }
        };

        const _: () = {
            use $crate::pg::declaration::{self, Place};

            #[unsafe(export_name = concat!("pg_finfo_", stringify!($name)))]
            extern "C" fn record() -> &'static pgrx::pg_sys::Pg_finfo_record {
                const V1: pgrx::pg_sys::Pg_finfo_record =
                    pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &V1
            }

            /// # Safety
            /// Called by Postgres, as the function that it is declared as.
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C-unwind" fn enter(
                fcinfo: pgrx::pg_sys::FunctionCallInfo,
            ) -> pgrx::pg_sys::Datum {
                // SAFETY: Postgres passes a valid fcinfo, and this frame owns nothing with a
                // destructor.
                unsafe { $crate::pg::call::enter(fcinfo, run) }
            }

            /// Reads the arguments, runs the body, and returns its result as a datum.
            ///
            /// # Errors
            /// Those of the arguments and of the body.
            #[allow(clippy::redundant_closure_call, unused_mut, unused_variables)]
            fn run(
                $call: $given,
            ) -> $crate::pg::error::Result<pgrx::pg_sys::Datum> {
                use $crate::pg::declaration::SqlResult;
                const NAME: &std::ffi::CStr =
                    $crate::pg::declaration::c_str(concat!(stringify!($name), "()\0"));
                ($name.effect.allow)(NAME)?;
                <$result as SqlResult>::begin($call)?;
                let mut arguments = $call.arguments();
                $(let $parameter: $type = arguments.next(stringify!($parameter))?;)*
                let result: $crate::pg::error::Result<$result> = (|| $body)();
                Ok(result?.end($call)?)
            }

            const LENGTH: usize = $name.sql_length();
            const SQL: &str = $name.sql::<LENGTH>().as_str();
            const PLACE: Place = Place {
                module: module_path!(),
                location: concat!(file!(), ':', line!()),
                file: file!(),
                line: line!(),
            };
            const ENTRY: usize = declaration::entry_length($name.name, SQL, &PLACE);
            pgrx::pgrx_sql_entity_graph::__pgrx_schema_entry!(
                SCHEMA,
                ENTRY,
                declaration::entry($name.name, SQL, &PLACE)
            );
        };
    };
}
pub(crate) use sql_function;

/// A text that ends in a NUL as a C string.
pub const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name with a NUL in it, or none after it"),
    }
}
