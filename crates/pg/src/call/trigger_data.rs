//! The firing of a trigger: its event, arguments and rows.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{self, *};

use crate::error::{PgError, Result};
use crate::interrupts::check_for_interrupts;
use crate::memory_context::Scratch;
use crate::values::{Jsonb, jsonb, string, varlena_bytes};

/// The firing of a trigger. A column must have the declared type under which it is read: the table's owner can alter
/// it, or create the trigger on another table ([`PgError::AlteredColumn`], 42804).
pub struct Trigger<'a>(&'a pg_sys::TriggerData);

/// The event that fires a trigger.
#[derive(Clone, Copy, PartialEq)]
pub enum Event {
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// TRUNCATE.
    Truncate,
}

/// The time and level of the firing.
#[derive(Clone, Copy, PartialEq)]
pub enum Timing {
    /// BEFORE the event FOR EACH ROW.
    BeforeRow,
    /// AFTER the event FOR EACH ROW.
    AfterRow,
    /// INSTEAD OF the event.
    InsteadOf,
    /// BEFORE the event FOR EACH STATEMENT.
    BeforeStatement,
    /// AFTER the event FOR EACH STATEMENT.
    AfterStatement,
}

/// A version of the row of a trigger FOR EACH ROW.
#[derive(Clone, Copy)]
pub enum Version {
    /// Before an UPDATE or DELETE.
    Old,
    /// After an INSERT or UPDATE.
    New,
}

impl<'a> Trigger<'a> {
    pub(super) fn new(data: &'a pg_sys::TriggerData) -> Trigger<'a> {
        Trigger(data)
    }

    /// The event that fires it.
    pub fn event(&self) -> Event {
        match self.0.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => Event::Insert,
            pg_sys::TRIGGER_EVENT_UPDATE => Event::Update,
            pg_sys::TRIGGER_EVENT_DELETE => Event::Delete,
            _ => Event::Truncate,
        }
    }

    /// The time and level of the firing.
    pub fn timing(&self) -> Timing {
        let row = self.0.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0;
        match (self.0.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK, row) {
            (pg_sys::TRIGGER_EVENT_INSTEAD, _) => Timing::InsteadOf,
            (pg_sys::TRIGGER_EVENT_BEFORE, true) => Timing::BeforeRow,
            (pg_sys::TRIGGER_EVENT_BEFORE, false) => Timing::BeforeStatement,
            (_, true) => Timing::AfterRow,
            (_, false) => Timing::AfterStatement,
        }
    }

    /// The arguments in CREATE TRIGGER, in the server's encoding.
    pub fn arguments(&self) -> impl Iterator<Item = &'a CStr> {
        // SAFETY: the trigger lives while it runs.
        let trigger = unsafe { &*self.0.tg_trigger };
        (0..trigger.tgnargs as usize).map(|n| {
            // SAFETY: it has this number of arguments, C strings that live as long as the call.
            unsafe { CStr::from_ptr(*trigger.tgargs.add(n)) }
        })
    }

    /// The table that the trigger is on.
    pub fn relation(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open while the trigger runs.
        unsafe { (*self.0.tg_relation).rd_id }
    }

    /// The name of that table, without its schema.
    pub fn table(&self) -> String {
        // SAFETY: as above; the name is a palloc'd C string.
        unsafe { string(pg_sys::SPI_getrelname(self.0.tg_relation)).unwrap_or_default() }
    }

    /// Finds a column of the table by its name in the catalog, unless it is a system column.
    pub fn column(&self, name: &CStr) -> Option<Column> {
        // SAFETY: look-ups in the open relation and the catalogs.
        unsafe {
            let descriptor = (*self.0.tg_relation).rd_att;
            let number = pg_sys::SPI_fnumber(descriptor, name.as_ptr());
            if number <= 0 {
                return None;
            }
            let declared = pg_sys::SPI_gettypeid(descriptor, number);
            let number = number as pg_sys::AttrNumber;
            Some(Column {
                number,
                declared,
                base: pg_sys::getBaseType(declared),
                generated: pg_sys::get_attgenerated(self.relation(), number),
            })
        }
    }

    /// Whether the column has a value yet: a stored generated one only after the event, a virtual one never.
    pub fn has_computed(&self, column: &Column) -> bool {
        let before = self.timing() == Timing::BeforeRow && self.event() != Event::Delete;
        match column.generated as u8 {
            0 => true,
            pg_sys::ATTRIBUTE_GENERATED_STORED => !before,
            _ => false,
        }
    }

    /// FOR EACH ROW: the row that an INSERT or UPDATE writes, or that a DELETE deletes.
    fn row(&self) -> Option<TriggerRow<'_>> {
        if self.0.tg_event & pg_sys::TRIGGER_EVENT_ROW == 0 {
            return None;
        }
        let slot = match self.event() {
            Event::Update => self.0.tg_newslot,
            _ => self.0.tg_trigslot,
        };
        Some(TriggerRow { slot, trigger: PhantomData })
    }

    /// FOR EACH STATEMENT: the transition table of the new rows, or for DELETE of the old ones; or null.
    fn transition_table(&self) -> *mut pg_sys::Tuplestorestate {
        match self.event() {
            Event::Delete => self.0.tg_oldtable,
            _ => self.0.tg_newtable,
        }
    }

    /// Whether the trigger can see the rows of the event.
    pub fn has_rows(&self) -> bool {
        self.row().is_some() || !self.transition_table().is_null()
    }

    /// Visits the rows of the event: the one row, or all of the transition table.
    pub fn each_row<E: 'static>(
        &self,
        mut visit: impl FnMut(&TriggerRow) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(row) = self.row() {
            return visit(&row);
        }
        let table = self.transition_table();
        if table.is_null() {
            return Ok(());
        }
        // SAFETY: the rows of a transition table are of the relation's type. Triggers share the table, and each reads
        // it from its start. Its tuples are not in `scratch`.
        unsafe {
            let slot = pg_sys::MakeSingleTupleTableSlot(
                (*self.0.tg_relation).rd_att,
                &raw const pg_sys::TTSOpsMinimalTuple,
            );
            let mut scratch = Scratch::new();
            pg_sys::tuplestore_select_read_pointer(table, 0);
            pg_sys::tuplestore_rescan(table);
            let mut visited = Ok(());
            while visited.is_ok() && pg_sys::tuplestore_gettupleslot(table, true, false, slot) {
                check_for_interrupts();
                visited = scratch.run(|| visit(&TriggerRow { slot, trigger: PhantomData }));
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            visited
        }
    }

    /// Returns the value that lets the event proceed unchanged.
    pub fn proceed(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(match self.event() {
            Event::Update => self.0.tg_newtuple,
            _ => self.0.tg_trigtuple,
        })
    }

    /// FOR EACH ROW: the row after an INSERT or UPDATE, or before an UPDATE or DELETE.
    fn version(&self, version: Version) -> Option<TriggerRow<'_>> {
        let row = self.row()?;
        match (version, self.event()) {
            (Version::New, Event::Insert | Event::Update) => Some(row),
            (Version::Old, Event::Update | Event::Delete) => {
                Some(TriggerRow { slot: self.0.tg_trigslot, ..row })
            }
            _ => None,
        }
    }

    /// Reads a column of a version; `None` if it is NULL or there is no such row.
    fn field(
        &self,
        version: Version,
        column: &CStr,
        of: BuiltinOid,
    ) -> Result<Option<pg_sys::Datum>> {
        let Some(row) = self.version(version) else { return Ok(None) };
        let declared = self.column(column).filter(|column| column.declared == of.value());
        let altered = || PgError::AlteredColumn { column: column.to_string_lossy().into() };
        Ok(row.value(&declared.ok_or_else(altered)?))
    }

    /// Reads a text column of a version of the row; `None` if it is NULL or there is no such version.
    pub fn text(&self, version: Version, column: &CStr) -> Result<Option<&[u8]>> {
        let datum = self.field(version, column, TEXTOID)?;
        // SAFETY: the type was checked.
        Ok(datum.map(|datum| unsafe { varlena_bytes(datum) }))
    }

    /// Reads a jsonb column, as [`text`](Trigger::text).
    pub fn jsonb(&self, version: Version, column: &CStr) -> Result<Option<Jsonb<'_>>> {
        let datum = self.field(version, column, JSONBOID)?;
        // SAFETY: the type was checked.
        Ok(datum.map(|datum| unsafe { jsonb(datum) }))
    }
}

/// A column of the trigger's table.
pub struct Column {
    number: pg_sys::AttrNumber,
    /// Its type; `base` is the type under its domain.
    declared: pg_sys::Oid,
    base: pg_sys::Oid,
    generated: c_char,
}

/// Every setting that the text of a value can depend on. Clients can change them, and so a key made of the text.
const TEXT_SETTINGS: [(&CStr, &CStr); 8] = [
    (c"DateStyle", c"ISO, MDY"),
    (c"IntervalStyle", c"postgres"),
    (c"TimeZone", c"GMT"),
    (c"bytea_output", c"hex"),
    (c"extra_float_digits", c"1"),
    (c"lc_monetary", c"C"),
    // regclass and similar types.
    (c"quote_all_identifiers", c"off"),
    (c"search_path", c"pg_catalog, pg_temp"),
];

impl Column {
    /// Whether [`TriggerRow::number`] can read its values.
    pub fn is_number(&self) -> bool {
        matches!(
            BuiltinOid::from_u32(self.base.to_u32()),
            Ok(INT2OID | INT4OID | INT8OID | FLOAT4OID | FLOAT8OID | NUMERICOID)
        )
    }

    /// The name of its type.
    pub fn type_name(&self) -> String {
        // SAFETY: a palloc'd C string.
        unsafe { string(pg_sys::format_type_be(self.declared)).unwrap_or_default() }
    }

    /// The settings under which [`TriggerRow::text`] does not depend on those of the session.
    pub fn text_settings(&self) -> &'static [(&'static CStr, &'static CStr)] {
        // SAFETY: a look-up in the system catalogs.
        let is_enum = unsafe { pg_sys::type_is_enum(self.base) };
        match BuiltinOid::from_u32(self.base.to_u32()) {
            Ok(
                TEXTOID | VARCHAROID | BPCHAROID | NAMEOID | INT2OID | INT4OID | INT8OID
                | NUMERICOID | UUIDOID | BOOLOID | INETOID | CIDROID,
            ) => &[],
            _ if is_enum => &[],
            _ => &TEXT_SETTINGS,
        }
    }
}

/// A row of the event. Its values live in the row or in the current memory context.
pub struct TriggerRow<'a> {
    slot: *mut pg_sys::TupleTableSlot,
    trigger: PhantomData<&'a ()>,
}

impl TriggerRow<'_> {
    /// Reads a value; `None` if it is NULL.
    fn value(&self, column: &Column) -> Option<pg_sys::Datum> {
        // SAFETY: the slot has a row of the column's relation.
        unsafe {
            if (*self.slot).tts_nvalid < column.number {
                pg_sys::slot_getsomeattrs_int(self.slot, column.number.into());
            }
            let n = column.number as usize - 1;
            (!*(*self.slot).tts_isnull.add(n)).then(|| *(*self.slot).tts_values.add(n))
        }
    }

    /// Reads a value as a cast to text does, but without the trailing zeros of a numeric, because numbers that differ
    /// only in them are equal. `None` if it is NULL.
    pub fn text(&self, column: &Column) -> Option<&[u8]> {
        let value = self.value(column)?;
        let convert = |function: u32, value| {
            // SAFETY: the function takes one argument, of the column's type, and is strict.
            unsafe { pg_sys::OidFunctionCall1Coll(function.into(), pg_sys::InvalidOid, value) }
        };
        // SAFETY: each conversion is for the type that it is matched with.
        unsafe {
            Some(match BuiltinOid::from_u32(column.base.to_u32()) {
                Ok(TEXTOID | VARCHAROID) => varlena_bytes(value),
                Ok(BPCHAROID) => {
                    let padded: &[u8] = varlena_bytes(value);
                    let blanks = padded.iter().rev().take_while(|&&byte| byte == b' ').count();
                    &padded[..padded.len() - blanks]
                }
                Ok(BOOLOID) if value.value() as u8 != 0 => b"true",
                Ok(BOOLOID) => b"false",
                Ok(INETOID | CIDROID) => varlena_bytes(convert(pg_sys::F_TEXT_INET, value)),
                Ok(NUMERICOID) => output(column.base, convert(pg_sys::F_TRIM_SCALE, value)),
                _ => output(column.base, value),
            })
        }
    }

    /// Reads a value as a number, infinite beyond a double's range; `None` if it is NULL.
    pub fn number(&self, column: &Column) -> Option<f64> {
        let value = self.value(column)?;
        let bits = value.value();
        Some(match BuiltinOid::from_u32(column.base.to_u32()) {
            Ok(INT2OID) => f64::from(bits as i16),
            Ok(INT4OID) => f64::from(bits as i32),
            Ok(INT8OID) => bits as i64 as f64,
            Ok(FLOAT4OID) => f64::from(f32::from_bits(bits as u32)),
            Ok(FLOAT8OID) => f64::from_bits(bits as u64),
            Ok(NUMERICOID) => {
                // SAFETY: the type was checked.
                let text = unsafe { output(column.base, value) };
                str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
            }
            _ => f64::NAN,
        })
    }
}

/// # Safety
/// `value` is of the type; the bytes live as long as the current memory context.
unsafe fn output<'a>(of: pg_sys::Oid, value: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: as the caller says; an output function returns a C string.
    unsafe {
        let (mut function, mut is_varlena) = (pg_sys::InvalidOid, false);
        pg_sys::getTypeOutputInfo(of, &mut function, &mut is_varlena);
        CStr::from_ptr(pg_sys::OidOutputFunctionCall(function, value)).to_bytes()
    }
}
