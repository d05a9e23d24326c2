//! Rust types for SQL types, as arguments and as results.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::null_mut;

use pgrx::pg_sys::BuiltinOid;
use pgrx::{IntoDatum, JsonB, pg_sys};
use ratelimit_core::config::Interval;
use ratelimit_core::{ArgumentError, Micros};

use crate::clock::instant;
use crate::error::Result;
use crate::values::{Jsonb, float_datum, jsonb, text_datum, varlena_bytes};

/// A type of arguments of SQL functions.
pub trait Argument<'call>: Sized {
    /// Its SQL type.
    const SQL: &'static str;
    /// Whether it takes NULL.
    const NULLABLE: bool = false;

    /// Reads an argument that is not NULL.
    ///
    /// # Safety
    /// `datum` is of the SQL type, and lives as long as the call.
    unsafe fn read(datum: pg_sys::Datum, name: &'static str) -> Result<Self>;

    /// Reads a NULL; refuses it by default.
    fn null(name: &'static str) -> Result<Self> {
        Err(ArgumentError::Null(name).into())
    }
}

/// An argument that allows only some values of its SQL type.
pub trait Checked<'call>: Sized {
    /// The type to read and check.
    type Base: Argument<'call>;

    /// Checks a value of the argument `name`.
    fn check(value: Self::Base, name: &'static str) -> Result<Self, ArgumentError>;
}

impl<'call, T: Checked<'call>> Argument<'call> for T {
    const SQL: &'static str = T::Base::SQL;

    unsafe fn read(datum: pg_sys::Datum, name: &'static str) -> Result<T> {
        // SAFETY: as the caller says.
        Ok(T::check(unsafe { T::Base::read(datum, name)? }, name)?)
    }
}

impl<'call, T: Argument<'call>> Argument<'call> for Option<T> {
    const SQL: &'static str = T::SQL;
    const NULLABLE: bool = true;

    unsafe fn read(datum: pg_sys::Datum, name: &'static str) -> Result<Option<T>> {
        // SAFETY: as the caller says.
        unsafe { T::read(datum, name) }.map(Some)
    }

    fn null(_: &'static str) -> Result<Option<T>> {
        Ok(None)
    }
}

macro_rules! by_value {
    ($type:ty, $sql:literal, $read:expr) => {
        impl Argument<'_> for $type {
            const SQL: &'static str = $sql;

            unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<$type> {
                const READ: fn(usize) -> $type = $read;
                Ok(READ(datum.value()))
            }
        }
    };
}
by_value!(bool, "boolean", |value| value as u8 != 0);
by_value!(i32, "integer", |value| value as i32);
by_value!(f64, "double precision", |value| f64::from_bits(value as u64));
by_value!(Timestamptz, "timestamptz", |value| Timestamptz(value as i64));

/// The bytes of a text, in the server's encoding.
impl<'call> Argument<'call> for &'call [u8] {
    const SQL: &'static str = "text";

    unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<&'call [u8]> {
        // SAFETY: as the caller says; detoasted, it lives in the call's memory context.
        Ok(unsafe { varlena_bytes(datum) })
    }
}

/// An array of texts.
pub struct TextArray<'call> {
    array: *mut pg_sys::ArrayType,
    call: PhantomData<&'call ()>,
}

impl<'call> Argument<'call> for TextArray<'call> {
    const SQL: &'static str = "text[]";

    unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<TextArray<'call>> {
        // SAFETY: as the caller says; detoasted, it lives in the call's memory context.
        let array = unsafe { pg_sys::pg_detoast_datum(datum.cast_mut_ptr()) };
        Ok(TextArray { array: array.cast(), call: PhantomData })
    }
}

impl<'call> TextArray<'call> {
    /// The number of its dimensions; 0 if it is empty.
    pub fn dimensions(&self) -> usize {
        // SAFETY: a detoasted array begins with its header.
        unsafe { (*self.array).ndim as usize }
    }

    /// The number of its elements.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks")]
    pub fn len(&self) -> usize {
        // SAFETY: the lengths of the dimensions follow the header.
        unsafe {
            let lengths = self.array.add(1).cast();
            pg_sys::ArrayGetNItems((*self.array).ndim, lengths) as usize
        }
    }

    /// Its elements, in the server's encoding; `None` for NULL.
    pub fn texts(&self) -> Vec<Option<&'call [u8]>> {
        let (mut values, mut nulls, mut count) = (null_mut(), null_mut(), 0);
        // SAFETY: the array is of texts, which it has as many of as it says. They live as long as the array.
        unsafe {
            pg_sys::deconstruct_array(
                self.array,
                BuiltinOid::TEXTOID.value(),
                -1,
                false,
                b'i' as c_char,
                &mut values,
                &mut nulls,
                &mut count,
            );
            let text = |n| (!*nulls.add(n)).then(|| varlena_bytes(*values.add(n)));
            (0..count as usize).map(text).collect()
        }
    }
}

/// The binary form.
impl<'call> Argument<'call> for Jsonb<'call> {
    const SQL: &'static str = "jsonb";

    unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<Jsonb<'call>> {
        // SAFETY: as the caller says.
        Ok(unsafe { jsonb(datum) })
    }
}

impl Argument<'_> for Interval {
    const SQL: &'static str = "interval";

    unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<Interval> {
        // SAFETY: as the caller says; an interval is passed by reference.
        let interval = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
        Ok(Interval { months: interval.month, days: interval.day, micros: interval.time })
    }
}

/// A finite time.
impl Checked<'_> for Micros {
    type Base = Timestamptz;

    fn check(at: Timestamptz, argument: &'static str) -> Result<Micros, ArgumentError> {
        finite(instant(at.0), argument)
    }
}

/// Refuses an infinite time.
pub fn finite(at: Option<Micros>, argument: &'static str) -> Result<Micros, ArgumentError> {
    at.ok_or_else(|| ArgumentError::invalid(argument, "infinite", "a finite time"))
}

/// A timestamptz: microseconds since 2000, or ±infinity.
#[derive(Clone, Copy)]
pub struct Timestamptz(pub i64);

/// A text in Postgres memory.
pub struct Text(pg_sys::Datum);

impl Text {
    /// A copy of the bytes.
    pub fn new(bytes: &[u8]) -> Text {
        Text(text_datum(bytes))
    }
}

/// One of several constant texts.
#[derive(Clone, Copy)]
pub struct Constant(&'static [u8]);

impl Constant {
    /// The text made by [`constant_text`].
    pub const fn new(text: &'static [u8]) -> Constant {
        Constant(text)
    }
}

/// Makes a short text as Postgres stores it: `N` bytes, a header and the text, of at most 126 bytes.
#[allow(clippy::panic, reason = "at compile time only")]
pub const fn constant_text<const N: usize>(text: &str) -> [u8; N] {
    let (mut bytes, text) = ([0; N], text.as_bytes());
    if N > 127 || N != text.len() + 1 {
        panic!("another length");
    }
    bytes[0] = if cfg!(target_endian = "big") { 0x80 | N as u8 } else { (N as u8) << 1 | 1 };
    let mut n = 0;
    while n < text.len() {
        bytes[n + 1] = text[n];
        n += 1;
    }
    bytes
}

/// A jsonb in Postgres memory.
pub struct Json(pg_sys::Datum);

impl Json {
    /// A copy of the value.
    pub fn new(value: serde_json::Value) -> Json {
        Json(JsonB(value).into_datum().unwrap_or(pg_sys::Datum::from(0)))
    }
}

impl From<Jsonb<'_>> for Json {
    fn from(jsonb: Jsonb) -> Json {
        Json(jsonb.datum)
    }
}

/// The result of a trigger function.
pub struct Proceed(pub pg_sys::Datum);

/// A type of results and result columns of SQL functions.
pub trait SqlValue: Sized {
    /// Its SQL type.
    const SQL: &'static str;
    /// The SQL type's OID.
    const OID: BuiltinOid;
    /// Whether equal values have the same address.
    const IS_CONSTANT: bool = false;

    /// Converts to a datum; `None` is NULL.
    fn datum(self) -> Option<pg_sys::Datum>;
}

macro_rules! sql_value {
    ($type:ty, $sql:literal, $oid:ident, $datum:expr) => {
        impl SqlValue for $type {
            const SQL: &'static str = $sql;
            const OID: BuiltinOid = BuiltinOid::$oid;

            fn datum(self) -> Option<pg_sys::Datum> {
                const DATUM: fn($type) -> pg_sys::Datum = $datum;
                Some(DATUM(self))
            }
        }
    };
}
sql_value!(bool, "boolean", BOOLOID, pg_sys::Datum::from);
sql_value!(i32, "integer", INT4OID, pg_sys::Datum::from);
sql_value!(i64, "bigint", INT8OID, pg_sys::Datum::from);
sql_value!(f64, "double precision", FLOAT8OID, float_datum);
sql_value!(Text, "text", TEXTOID, |text| text.0);
sql_value!(Json, "jsonb", JSONBOID, |json| json.0);
sql_value!(Proceed, "trigger", TRIGGEROID, |proceed| proceed.0);
sql_value!(Timestamptz, "timestamptz", TIMESTAMPTZOID, |at| at.0.into());

impl SqlValue for Constant {
    const SQL: &'static str = Text::SQL;
    const OID: BuiltinOid = Text::OID;
    const IS_CONSTANT: bool = true;

    fn datum(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self.0.as_ptr()))
    }
}

impl<T: SqlValue> SqlValue for Option<T> {
    const SQL: &'static str = T::SQL;
    const OID: BuiltinOid = T::OID;
    const IS_CONSTANT: bool = T::IS_CONSTANT;

    fn datum(self) -> Option<pg_sys::Datum> {
        self.and_then(T::datum)
    }
}

/// Columns of a result.
pub trait SqlColumns: Sized {
    /// The columns in their order.
    const COLUMNS: &'static [ResultColumn];

    /// Passes the value of each to `column`, in their order; `None`: NULL.
    fn each_column(self, column: &mut impl FnMut(Option<pg_sys::Datum>));
}

/// A row that SQL functions return; see [`sql_row`].
pub trait SqlRow: SqlColumns {
    /// Its composite type.
    const TYPE: &'static str;

    /// Passes the columns to `work` in the form of heap_form_tuple: the values, and whether each is NULL.
    fn with_columns<T>(self, work: impl FnOnce(&mut [pg_sys::Datum], &mut [bool]) -> T) -> T;
}

/// A column of a function's result.
#[derive(Clone, Copy)]
pub struct ResultColumn {
    /// Its name.
    pub name: &'static CStr,
    /// Its SQL type.
    pub sql: &'static str,
    /// The type's OID.
    pub oid: BuiltinOid,
    /// Whether equal values have the same address.
    pub is_constant: bool,
}

impl ResultColumn {
    /// Describes a column by its name, with a NUL at the end, and its type.
    pub const fn new<T: SqlValue>(name: &'static str) -> ResultColumn {
        let name = c_str(name);
        ResultColumn { name, sql: T::SQL, oid: T::OID, is_constant: T::IS_CONSTANT }
    }
}

/// Converts a text that ends in a NUL to a C string.
#[allow(clippy::panic, reason = "at compile time only")]
pub const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name with a NUL in it, or none after it"),
    }
}

/// Joins lists of columns.
pub const fn joined<const N: usize>(lists: &[&[ResultColumn]]) -> [ResultColumn; N] {
    let none = ResultColumn { name: c"", sql: "", oid: BuiltinOid::BOOLOID, is_constant: false };
    let (mut all, mut list, mut n) = ([none; N], 0, 0);
    while list < lists.len() {
        let mut of_list = 0;
        while of_list < lists[list].len() {
            all[n] = lists[list][of_list];
            (of_list, n) = (of_list + 1, n + 1);
        }
        list += 1;
    }
    all
}

/// Declares a row that SQL functions return: after `as` its composite type, and its columns in their order; `..` before
/// a field stands for the columns of that field. Without a type, these are columns for such a field only.
#[macro_export]
macro_rules! sql_row {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident $(as $type:literal)? {
            $($(#[$about:meta])* $column:ident: $of:ty,)*
            $(..$inner:ident: $row:ty, $($(#[$about_last:meta])* $last:ident: $of_last:ty,)*)?
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$about])* pub $column: $of,)*
            $(
                /// Further columns.
                pub $inner: $row,
                $($(#[$about_last])* pub $last: $of_last,)*
            )?
        }

        impl $crate::call::sql_types::SqlColumns for $name {
            const COLUMNS: &'static [$crate::call::sql_types::ResultColumn] = {
                use $crate::call::sql_types::{ResultColumn, SqlColumns, joined};
                const LISTS: &[&[ResultColumn]] = &[
                    &[$(ResultColumn::new::<$of>(concat!(stringify!($column), "\0"))),*],
                    $(
                        <$row as SqlColumns>::COLUMNS,
                        &[$(ResultColumn::new::<$of_last>(concat!(stringify!($last), "\0"))),*],
                    )?
                ];
                const COUNT: usize = {
                    let (mut count, mut list) = (0, 0);
                    while list < LISTS.len() {
                        (count, list) = (count + LISTS[list].len(), list + 1);
                    }
                    count
                };
                const ALL: [ResultColumn; COUNT] = joined(LISTS);
                &ALL
            };

            #[inline]
            fn each_column(self, column: &mut impl FnMut(Option<pgrx::pg_sys::Datum>)) {
                use $crate::call::sql_types::SqlValue;
                $(column(SqlValue::datum(self.$column));)*
                $(
                    $crate::call::sql_types::SqlColumns::each_column(self.$inner, column);
                    $(column(SqlValue::datum(self.$last));)*
                )?
            }
        }

        $(impl $crate::call::sql_types::SqlRow for $name {
            const TYPE: &'static str = $type;

            #[inline]
            fn with_columns<T>(
                self,
                work: impl FnOnce(&mut [pgrx::pg_sys::Datum], &mut [bool]) -> T,
            ) -> T {
                use $crate::call::sql_types::SqlColumns;
                const COUNT: usize = <$name as SqlColumns>::COLUMNS.len();
                let (mut values, mut nulls) = ([pgrx::pg_sys::Datum::from(0); COUNT], [true; COUNT]);
                let mut n = 0;
                self.each_column(&mut |column| {
                    if let Some(value) = column {
                        (values[n], nulls[n]) = (value, false);
                    }
                    n += 1;
                });
                work(&mut values, &mut nulls)
            }
        }

        impl $crate::call::result::SqlResult for $name {
            const RETURNED: $crate::call::result::Returned =
                $crate::call::result::Returned::Row($type, <$name as $crate::call::sql_types::SqlColumns>::COLUMNS);

            /// Runs before any wait: afterwards the function may have been dropped.
            fn begin(call: &$crate::call::Call) -> $crate::error::Result<()> {
                call.row_type(<$name as $crate::call::sql_types::SqlColumns>::COLUMNS)
            }

            fn end(self, call: &$crate::call::Call) -> $crate::error::Result<pgrx::pg_sys::Datum> {
                call.row(self)
            }
        })?
    };
}
pub use sql_row;
