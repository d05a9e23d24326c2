//! Access to the rows through SQL, which works on any table: with triggers, policies, or constraints, or distributed by
//! Citus.

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{
    CHAROID, FLOAT8OID, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, TIDOID,
    TIMESTAMPTZARRAYOID, TIMESTAMPTZOID,
};
use ratelimit_core::Micros;
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{
    KeyRef, KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
};

use crate::schema::error::{Error, Result};
use crate::schema::spi::{Connection, Statement};
use crate::store::codec::{decode, encode, int_array};
use crate::store::distributed::{KEYED_VERSION, VERSION, version};
use crate::store::own_locks::{note, note_keys, noted};
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::subtransaction::attempt_within;
use ratelimit_pg::values::text_datum;

/// Selects these columns of the rows that meet all conditions.
macro_rules! select {
    ($columns:expr; $($condition:expr),+) => {
        concat!("SELECT ", $columns, " FROM ONLY @schema@.ratelimits WHERE ", $($condition),+)
    };
}

/// Matches the primary key: the first three parameters.
macro_rules! by_id {
    () => {
        "name @=@ $1 AND key @=@ $2 AND shard @=@ $3"
    };
}

/// The columns of [`SHARD_ROW`].
macro_rules! shard_row {
    () => {
        "shard, kind, value, ts, added, prior, log, leases, holds_due"
    };
}

/// Inserts a row of [`KEYED_ROW`].
macro_rules! insert {
    () => {
        concat!(
            "INSERT INTO @schema@.ratelimits (name, key, ",
            shard_row!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        )
    };
}

/// Sets the columns after the primary key to those of [`KEYED_ROW`].
macro_rules! set_row {
    () => {
        "kind = $4, value = $5, ts = $6, added = $7, prior = $8, log = $9, leases = $10, holds_due = $11"
    };
}

pub(super) use {by_id, set_row, shard_row};

/// The statements that read rows, all with the same columns.
struct Reads {
    row: Statement,
    /// The rows of a key with some numbers, and all of them.
    shards: Statement,
    key: Statement,
    after: Statement,
    after_in_name: Statement,
}

/// Makes the statements for the columns of a macro, of these types; after name and key they have the others.
macro_rules! reads {
    ($columns:ident, $types:expr, $keyed_types:expr) => {{
        const ROW: Statement = Statement::reads(
            select!($columns!(); by_id!()),
            &[TEXTOID, TEXTOID, INT4OID],
            &$types,
        );
        const AFTER: Statement = Statement::reads(
            select!(
                concat!("name, key, ", $columns!());
                "ROW(name, key) @>@ ROW($1, $2) ORDER BY name, key, shard LIMIT $3"
            ),
            &[TEXTOID, TEXTOID, INT8OID],
            &$keyed_types,
        );
        Reads {
            row: ROW,
            shards: Statement {
                sql: select!($columns!(); "name @=@ $1 AND key @=@ $2 AND shard @=@ ANY ($3)"),
                parameters: &[TEXTOID, TEXTOID, INT4ARRAYOID],
                ..ROW
            },
            key: Statement {
                sql: select!($columns!(); "name @=@ $1 AND key @=@ $2 ORDER BY shard"),
                parameters: &[TEXTOID, TEXTOID],
                ..ROW
            },
            after: AFTER,
            after_in_name: Statement {
                sql: select!(
                    concat!("name, key, ", $columns!());
                    "name @=@ $1 AND key @>@ $2 ORDER BY name, key, shard LIMIT $3"
                ),
                ..AFTER
            },
        }
    }};
}

static READS: Reads = reads!(shard_row, SHARD_ROW, KEYED_ROW);
static VERSION_READS: Reads = reads!(version, VERSION, KEYED_VERSION);

/// The rows of the table, also of one that Citus distributes: then each read keeps its shard in place first, and reads
/// the version, too ([`distributed`](super::distributed)).
impl Rows for Connection<'_> {
    fn read(&self, id: RowId) -> PortResult<Option<Row>> {
        self.keep_key(id.key)?;
        Ok(self.row(&self.reads().row, id)?)
    }

    fn lock(&self, id: RowId, wait: bool) -> PortResult<Option<Row>> {
        const LOCK: Statement = Statement::locks(
            select!(shard_row!(); by_id!(), " FOR UPDATE"),
            &[TEXTOID, TEXTOID, INT4OID],
            &SHARD_ROW,
        );
        const TRY_LOCK: Statement =
            Statement { sql: select!(shard_row!(); by_id!(), " FOR UPDATE SKIP LOCKED"), ..LOCK };
        let row = match (self.is_distributed(), wait) {
            (true, _) => self.touch(id, wait)?,
            (false, true) => self.row(&LOCK, id)?,
            (false, false) => self.row(&TRY_LOCK, id)?,
        };
        Ok(row.inspect(|_| note(id)))
    }

    fn read_key(
        &self,
        name: &[u8],
        key: &[u8],
        shards: Option<&[i32]>,
    ) -> PortResult<Vec<ShardRow>> {
        self.keep_key(key)?;
        let (reads, name, key) = (self.reads(), Some(text_datum(name)), Some(text_datum(key)));
        let count = match shards {
            Some(shards) => self.execute(&reads.shards, &[name, key, Some(int_array(shards))])?,
            None => self.execute(&reads.key, &[name, key])?,
        };
        (0..count).map(|row| Ok(self.decode_row(row, 1)?)).collect()
    }

    fn facts(&self) -> RowFacts {
        match self.is_distributed() {
            true => self.distributed_facts(),
            false => RowFacts { locks_first: true, ..RowFacts::LOCAL },
        }
    }

    fn replace(&self, id: RowId, seen: &Row, version: &Version, wait: bool) -> PortResult<bool> {
        let replaced = self.is_distributed() && self.replace_version(id, seen, version, wait)?;
        Ok(noted(id, replaced))
    }

    fn remove(&self, keys: &[KeyRows]) -> PortResult<u64> {
        if !self.is_distributed() {
            return Ok(0);
        }
        let removed = self.remove_unlocked(keys)?;
        // With several keys, also the rows that are only locked now.
        if removed > 0 || self.facts().batch > 1 {
            note_keys(keys);
        }
        Ok(removed)
    }

    fn delete_name(&self, name: &[u8]) -> PortResult<Option<Vec<KeyedRow>>> {
        let deleted = if self.is_usual() { Some(self.delete_all(name)?) } else { None };
        for (key, (shard, _)) in deleted.iter().flatten() {
            note(RowId { shard: *shard, ..RowId::first(key) });
        }
        Ok(deleted)
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> PortResult<bool> {
        // Names no columns in ON CONFLICT: that would choose only the valid index, and the one that REINDEX
        // CONCURRENTLY is building would raise 23505.
        const INSERT: Statement =
            Statement::writes(concat!(insert!(), " ON CONFLICT DO NOTHING"), &KEYED_ROW, &[]);
        // Raises 42P10 if no unique index covers the key.
        const INSERT_BY_COLUMNS: Statement = Statement {
            sql: concat!(insert!(), " ON CONFLICT (name, key, shard) DO NOTHING"),
            ..INSERT
        };
        let statement = if self.catalog.usual_key { &INSERT } else { &INSERT_BY_COLUMNS };
        let insert = || self.execute(statement, &row_parameters(id, version));
        let rows = match wait {
            true => Some(insert()?),
            false => attempt_within(Micros::MILLISECOND, || insert().map(Some))?,
        };
        Ok(noted(id, rows.is_some_and(|rows| rows > 0)))
    }

    fn update(&self, id: RowId, _: TupleId, version: &Version) -> PortResult<()> {
        const UPDATE: Statement = Statement::writes(
            concat!("UPDATE ONLY @schema@.ratelimits SET ", set_row!(), " WHERE ", by_id!()),
            &KEYED_ROW,
            &[],
        );
        match self.execute(&UPDATE, &row_parameters(id, version))? {
            0 => Err(self.not_written().into()),
            _ => Ok(()),
        }
    }

    fn read_after(&self, after: KeyRef, same_name: bool, rows: i64) -> PortResult<Vec<KeyedRow>> {
        self.keep_all()?;
        let statement = if same_name { &self.reads().after_in_name } else { &self.reads().after };
        let (name, key) = after;
        let after = [Some(text_datum(name)), Some(text_datum(key)), Some(rows.into())];
        let count = self.execute(statement, &after)?;
        (0..count).map(|row| Ok(self.keyed_row(row)?)).collect()
    }

    fn random_key(&self) -> PortResult<Option<(Vec<u8>, Vec<u8>)>> {
        const RANDOM_KEY: Statement = Statement::reads(
            "SELECT name, key FROM ONLY @schema@.ratelimits WHERE ctid @>=@ $1 LIMIT 1",
            &[TIDOID],
            &[TEXTOID, TEXTOID],
        );
        // A table that Citus distributes has no pages on this node.
        let page = if self.is_distributed() { None } else { self.random_page() };
        let Some(page) = page else { return Ok(None) };
        if self.execute(&RANDOM_KEY, &[Some(page)])? == 0 {
            return Ok(None);
        }
        Ok(self.text(0, 1).zip(self.text(0, 2)))
    }

    fn delete(&self, id: RowId, _: TupleId) -> PortResult<()> {
        const DELETE: Statement = Statement::writes(
            concat!("DELETE FROM ONLY @schema@.ratelimits WHERE ", by_id!()),
            &[TEXTOID, TEXTOID, INT4OID],
            &[],
        );
        match self.execute(&DELETE, &key_parameters(id))? {
            0 => Err(self.not_written().into()),
            _ => Ok(()),
        }
    }
}

/// Joins two lists of types.
pub(super) const fn joined<const A: usize, const B: usize, const N: usize>(
    first: [pg_sys::BuiltinOid; A],
    second: [pg_sys::BuiltinOid; B],
) -> [pg_sys::BuiltinOid; N] {
    let mut all = [TEXTOID; N];
    let mut n = 0;
    while n < N {
        all[n] = if n < A { first[n] } else { second[n - A] };
        n += 1;
    }
    all
}

/// The types of a [`ShardRow`]: shard, kind, value, ts, added, prior, log, leases, holds_due.
pub(super) const SHARD_ROW: [pg_sys::BuiltinOid; 9] = [
    INT4OID,
    CHAROID,
    FLOAT8OID,
    TIMESTAMPTZOID,
    FLOAT8OID,
    FLOAT8OID,
    TIMESTAMPTZARRAYOID,
    INT8ARRAYOID,
    TIMESTAMPTZOID,
];

/// The types of a [`KeyedRow`], of all columns: name, key, and those of [`SHARD_ROW`].
pub(super) const KEYED_ROW: [pg_sys::BuiltinOid; 11] = joined([TEXTOID, TEXTOID], SHARD_ROW);

impl Connection<'_> {
    /// Selects at most one row, by its primary key.
    pub(super) fn row(&self, statement: &Statement, id: RowId) -> Result<Option<Row>> {
        match self.execute(statement, &key_parameters(id))? {
            0 => Ok(None),
            _ => Ok(Some(self.decode_row(0, 1)?.1)),
        }
    }

    /// Decodes row number `row` of the last result, from 0. The columns begin with those of [`KEYED_ROW`].
    pub(super) fn keyed_row(&self, row: u64) -> Result<KeyedRow> {
        let text = |column| self.text(row, column).ok_or_else(|| self.not_written());
        Ok(((text(1)?, text(2)?), self.decode_row(row, 3)?))
    }

    /// The statements that read rows.
    fn reads(&self) -> &'static Reads {
        if self.is_distributed() { &VERSION_READS } else { &READS }
    }

    /// Decodes row number `row` of the last result, from 0. From column number `first` on, its columns are those of
    /// [`SHARD_ROW`], and those of a version, if the result has them.
    fn decode_row(&self, row: u64, first: c_int) -> Result<ShardRow> {
        check_for_interrupts();
        let shard = self.field(row, first);
        let shard = shard.ok_or(Error::NullState { table: "rateLimits", column: "shard" })?;
        let shard = shard.value() as i32;
        let mut columns = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| self.field(row, first + n));
        // No holds exist if Citus distributes the table; there may have been some before.
        if self.is_distributed() {
            columns[7] = None;
        }
        // SAFETY: `execute` has checked their types.
        let version = unsafe { decode(shard, columns)? };
        Ok((shard, Row { version, tuple: self.version(row, first + 9) }))
    }
}

/// Encodes a primary key as parameters.
pub(super) fn key_parameters(id: RowId) -> [Option<pg_sys::Datum>; 3] {
    [Some(text_datum(id.name)), Some(text_datum(id.key)), Some(pg_sys::Datum::from(id.shard))]
}

/// Encodes a row as parameters: all columns.
pub(super) fn row_parameters(id: RowId, version: &Version) -> [Option<pg_sys::Datum>; 11] {
    let [name, key, shard] = key_parameters(id);
    let [kind, value, ts, added, prior, log, leases, holds_due] = encode(version);
    [name, key, shard, kind, value, ts, added, prior, log, leases, holds_due]
}
