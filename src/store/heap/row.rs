//! A row of the table in a slot: decodes it, and makes the values to form one.

use std::mem::MaybeUninit;

use pgrx::pg_sys;
use ratelimit_core::requests::MAX_KEY;
use ratelimit_limiter::ports::{Row, RowId, ShardRow, TupleId, Version};

use super::raw;
use crate::schema::error::Result;
use crate::schema::unaltered_table::COLUMNS;
use crate::store::codec::{Values, decode, encode};
use ratelimit_pg::values::{is_plain, text_datum};

/// A fetched version, with its log in Postgres memory: plain data, for a guard.
#[derive(Clone, Copy)]
pub struct RawRow {
    /// The tuple id of the version.
    pub tid: pg_sys::ItemPointerData,
    /// Whether no other transaction had locked or replaced it.
    pub unlocked: bool,
    shard: i32,
    /// The columns after the primary key, arrays as detoasted copies.
    columns: Values,
}

impl RawRow {
    /// Copies the row of a slot.
    ///
    /// # Safety
    /// Inside a guard; the slot holds a row of the table, [deformed](raw::deform).
    pub unsafe fn from_slot(slot: *mut pg_sys::TupleTableSlot, unlocked: bool) -> RawRow {
        // SAFETY: the columns are those of the unaltered table, as many as are deformed.
        unsafe {
            let value = |n: usize| {
                let null = n >= (*slot).tts_nvalid as usize || *(*slot).tts_isnull.add(n);
                (!null).then(|| *(*slot).tts_values.add(n))
            };
            let array = |n| {
                let array = raw::pg_detoast_datum_copy(value(n)?.cast_mut_ptr());
                Some(pg_sys::Datum::from(array))
            };
            RawRow {
                tid: (*slot).tts_tid,
                unlocked,
                shard: value(2).map_or(0, |shard| shard.value() as i32),
                columns: [
                    value(3),
                    value(4),
                    value(5),
                    value(6),
                    value(7),
                    array(8),
                    array(9),
                    value(10),
                ],
            }
        }
    }

    /// Decodes the row. Calls Postgres: not inside a guard.
    pub fn decode(self) -> Result<ShardRow> {
        // SAFETY: the columns of the unaltered table.
        let version = unsafe { decode(self.shard, self.columns)? };
        let tid = (block(&self.tid), self.tid.ip_posid);
        let tuple = TupleId { tid: Some(tid), unlocked: self.unlocked, writer: None };
        Ok((self.shard, Row { version, tuple }))
    }
}

/// The block number of a tuple id.
pub fn block(tid: &pg_sys::ItemPointerData) -> pg_sys::BlockNumber {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

/// The tuple id of a block number and an offset.
pub fn tuple_id((block, offset): (pg_sys::BlockNumber, u16)) -> pg_sys::ItemPointerData {
    let ip_blkid = pg_sys::BlockIdData { bi_hi: (block >> 16) as u16, bi_lo: block as u16 };
    pg_sys::ItemPointerData { ip_blkid, ip_posid: offset }
}

/// A text as a datum. Up to [`MAX_KEY`] bytes, the maximum of a call, are on the stack; a longer one, which the table's
/// owner may have written, is in Postgres memory.
pub struct TextDatum {
    short: Short,
    /// The size of [`short`](TextDatum::short), with its header.
    size: usize,
    long: Option<pg_sys::Datum>,
}

#[repr(C, align(8))]
struct Short {
    header: u32,
    bytes: MaybeUninit<[u8; MAX_KEY]>,
}

impl TextDatum {
    /// Encodes a text. Calls Postgres: not inside a guard.
    pub fn new(text: &[u8]) -> TextDatum {
        let mut bytes = MaybeUninit::<[u8; MAX_KEY]>::uninit();
        let long = (text.len() > size_of_val(&bytes)).then(|| text_datum(text));
        let length = if long.is_some() { 0 } else { text.len() };
        // SAFETY: at most as many bytes as there is room for.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), bytes.as_mut_ptr().cast(), length);
        }
        // SET_VARSIZE.
        let size = length + 4;
        let bits = size as u32;
        let header = if cfg!(target_endian = "big") { bits & 0x3fff_ffff } else { bits << 2 };
        TextDatum { short: Short { header, bytes }, size, long }
    }

    /// Whether this text may be stored in another form. TOAST neither compresses nor moves a value that is no longer
    /// than a TOAST pointer (toast_tuple_find_biggest_attribute).
    pub fn may_be_toasted(&self) -> bool {
        const POINTER: usize = 24; // MAXALIGN(TOAST_POINTER_SIZE)
        self.long.is_some() || self.size > POINTER
    }

    /// Returns the datum, valid as long as the text stays where it is.
    pub fn datum(&self) -> pg_sys::Datum {
        self.long.unwrap_or_else(|| pg_sys::Datum::from(&raw const self.short))
    }
}

/// Whether the row in a deformed slot has this primary key.
///
/// # Safety
/// Inside a guard.
pub unsafe fn has_id(slot: *mut pg_sys::TupleTableSlot, id: RowId) -> bool {
    // SAFETY: the first three columns are name, key and shard, and never NULL.
    unsafe {
        let values = (*slot).tts_values;
        (*values.add(2)).value() as i32 == id.shard
            && text_bytes(*values) == id.name
            && text_bytes(*values.add(1)) == id.key
    }
}

/// The bytes of a text, valid as long as its row is pinned.
///
/// # Safety
/// Inside a guard; the value is a text of a pinned row.
unsafe fn text_bytes<'t>(value: pg_sys::Datum) -> &'t [u8] {
    // SAFETY: as the caller says; a compressed text is copied in Postgres memory.
    unsafe {
        let mut varlena = value.cast_mut_ptr::<pg_sys::varlena>();
        if !is_plain(varlena) {
            varlena = raw::pg_detoast_datum_packed(varlena);
        }
        std::slice::from_raw_parts(
            pgrx::vardata_any(varlena).cast::<u8>(),
            pgrx::varsize_any_exhdr(varlena),
        )
    }
}

/// Copies texts.
///
/// # Safety
/// Inside a guard; the values are texts of a pinned row.
pub unsafe fn copy_texts<const N: usize>(values: [pg_sys::Datum; N]) -> [Vec<u8>; N] {
    // SAFETY: as the caller says. All before any copy, since an error would jump over the copies.
    values.map(|value| unsafe { text_bytes(value) }).map(<[u8]>::to_vec)
}

/// Encodes a row as the values and NULL flags of its columns. Calls Postgres: not inside a guard.
pub fn row_values(
    name: &TextDatum,
    key: &TextDatum,
    shard: i32,
    version: &Version,
) -> ([pg_sys::Datum; COLUMNS], [bool; COLUMNS]) {
    let [kind, value, ts, added, prior, log, leases, holds_due] = encode(version);
    let [name, key, shard] = [Some(name.datum()), Some(key.datum()), Some(shard.into())];
    let columns = [name, key, shard, kind, value, ts, added, prior, log, leases, holds_due];
    let null = pg_sys::Datum::from(0);
    (columns.map(|column| column.unwrap_or(null)), columns.map(|column| column.is_none()))
}
