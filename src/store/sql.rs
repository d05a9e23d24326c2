//! Access to the rows through SQL, which works on any table: with triggers, policies, or constraints.

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{
    CHAROID, FLOAT8OID, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, TIDOID,
    TIMESTAMPTZARRAYOID, TIMESTAMPTZOID,
};
use ratelimit_core::Micros;
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{
    KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
};

use crate::schema::catalog::TableLock;
use crate::schema::error::{Error, Result};
use crate::schema::spi::{Connection, Statement};
use crate::store::codec::{Columns, decode, decode_array, encode, int_array};
use ratelimit_pg::clock::from_timestamptz;
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::subtransaction::attempt_within;
use ratelimit_pg::values::{text_datum, varlena_bytes};

/// Selects these columns of the rows that meet all conditions.
macro_rules! select {
    ($columns:expr; $($condition:expr),+) => {
        concat!("SELECT ", $columns, " FROM ONLY @schema@.ratelimits WHERE ", $($condition),+)
    };
}

/// Matches name and key: the first two parameters.
macro_rules! by_key {
    () => {
        "name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2"
    };
}

/// Matches the primary key: the first three parameters.
macro_rules! by_id {
    () => {
        "name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
         AND shard OPERATOR(pg_catalog.=) $3"
    };
}

/// The first $3 rows after a name and key.
macro_rules! after {
    () => {
        "ROW(name, key) OPERATOR(pg_catalog.>) ROW($1, $2) ORDER BY name, key, shard LIMIT $3"
    };
}

/// The first $3 rows of a name after a key.
macro_rules! after_in_name {
    () => {
        "name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.>) $2 \
         ORDER BY name, key, shard LIMIT $3"
    };
}

/// The columns of [`SHARD_ROW`].
macro_rules! shard_row {
    () => {
        "shard, kind, value, ts, added, prior, log, leases, holds_due"
    };
}

/// The columns of [`KEYED_ROW`].
macro_rules! keyed_row {
    () => {
        "name, key, shard, kind, value, ts, added, prior, log, leases, holds_due"
    };
}

/// Inserts a row of [`ROW_PARAMETERS`].
macro_rules! insert {
    () => {
        concat!(
            "INSERT INTO @schema@.ratelimits (",
            keyed_row!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        )
    };
}

/// Sets the columns after the primary key to [`ROW_PARAMETERS`].
macro_rules! set_row {
    () => {
        "kind = $4, value = $5, ts = $6, added = $7, prior = $8, log = $9, leases = $10, holds_due = $11"
    };
}

pub(super) use {after, after_in_name, by_id, by_key, select, set_row, shard_row};

impl Rows for Connection<'_> {
    fn read(&self, id: RowId) -> PortResult<Option<Row>> {
        const READ: Statement = Statement {
            sql: select!(shard_row!(); by_id!()),
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &SHARD_ROW,
            lock: TableLock::Read,
        };
        Ok(self.row(&READ, id)?)
    }

    fn lock(&self, id: RowId, wait: bool) -> PortResult<Option<Row>> {
        const LOCK: Statement = Statement {
            sql: select!(shard_row!(); by_id!(), " FOR UPDATE"),
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &SHARD_ROW,
            lock: TableLock::LockRows,
        };
        const TRY_LOCK: Statement = Statement {
            sql: select!(shard_row!(); by_id!(), " FOR UPDATE SKIP LOCKED"),
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &SHARD_ROW,
            lock: TableLock::LockRows,
        };
        Ok(self.row(if wait { &LOCK } else { &TRY_LOCK }, id)?)
    }

    fn read_key(
        &self,
        name: &[u8],
        key: &[u8],
        shards: Option<&[i32]>,
    ) -> PortResult<Vec<ShardRow>> {
        const READ_SHARDS: Statement = Statement {
            sql: select!(shard_row!(); by_key!(), " AND shard OPERATOR(pg_catalog.=) ANY ($3)"),
            parameters: &[TEXTOID, TEXTOID, INT4ARRAYOID],
            results: &SHARD_ROW,
            lock: TableLock::Read,
        };
        const READ_KEY: Statement = Statement {
            sql: select!(shard_row!(); by_key!(), " ORDER BY shard"),
            parameters: &[TEXTOID, TEXTOID],
            results: &SHARD_ROW,
            lock: TableLock::Read,
        };
        let (name, key) = (Some(text_datum(name)), Some(text_datum(key)));
        Ok(match shards {
            Some(shards) => self.rows(&READ_SHARDS, &[name, key, Some(int_array(shards))])?,
            None => self.rows(&READ_KEY, &[name, key])?,
        })
    }

    fn facts(&self) -> RowFacts {
        RowFacts { locks_first: true, ..RowFacts::LOCAL }
    }

    fn replace(&self, _: RowId, _seen: &Row, _: &Version, _wait: bool) -> PortResult<bool> {
        Ok(false)
    }

    fn remove(&self, _: &[KeyRows]) -> PortResult<u64> {
        Ok(0)
    }

    fn delete_name(&self, _: &[u8]) -> PortResult<Option<Vec<KeyedRow>>> {
        Ok(None)
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> PortResult<bool> {
        // Names no columns in ON CONFLICT: that would choose only the valid index, and the one that REINDEX
        // CONCURRENTLY is building would raise 23505.
        const INSERT: Statement = Statement {
            sql: concat!(insert!(), " ON CONFLICT DO NOTHING"),
            parameters: &ROW_PARAMETERS,
            results: &[],
            lock: TableLock::Write,
        };
        // Raises 42P10 if no unique index covers the key.
        const INSERT_BY_COLUMNS: Statement = Statement {
            sql: concat!(insert!(), " ON CONFLICT (name, key, shard) DO NOTHING"),
            ..INSERT
        };
        let statement = if self.catalog.usual_key { &INSERT } else { &INSERT_BY_COLUMNS };
        let insert = || self.execute(statement, &row_parameters(id, version));
        Ok(match wait {
            true => insert()? > 0,
            false => attempt_within(Micros::MILLISECOND, || insert().map(Some))?
                .is_some_and(|rows| rows > 0),
        })
    }

    fn update(&self, id: RowId, _: TupleId, version: &Version) -> PortResult<()> {
        const UPDATE: Statement = Statement {
            sql: concat!("UPDATE ONLY @schema@.ratelimits SET ", set_row!(), " WHERE ", by_id!()),
            parameters: &ROW_PARAMETERS,
            results: &[],
            lock: TableLock::Write,
        };
        match self.execute(&UPDATE, &row_parameters(id, version))? {
            0 => Err(Connection::not_written(self).into()),
            _ => Ok(()),
        }
    }

    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> PortResult<Vec<KeyedRow>> {
        const READ_AFTER: Statement = Statement {
            sql: select!(keyed_row!(); after!()),
            parameters: &[TEXTOID, TEXTOID, INT8OID],
            results: &KEYED_ROW,
            lock: TableLock::Read,
        };
        const READ_AFTER_IN_NAME: Statement = Statement {
            sql: select!(keyed_row!(); after_in_name!()),
            parameters: &[TEXTOID, TEXTOID, INT8OID],
            results: &KEYED_ROW,
            lock: TableLock::Read,
        };
        let (name, key) = after;
        let count = self.execute(
            if same_name { &READ_AFTER_IN_NAME } else { &READ_AFTER },
            &[Some(text_datum(name)), Some(text_datum(key)), Some(rows.into())],
        )?;
        let row = |row| Ok(self.keyed_row(row)?);
        (0..count).map(row).collect()
    }

    fn random_key(&self) -> PortResult<Option<(Vec<u8>, Vec<u8>)>> {
        const RANDOM_KEY: Statement = Statement {
            sql: "SELECT name, key FROM ONLY @schema@.ratelimits \
                  WHERE ctid OPERATOR(pg_catalog.>=) $1 LIMIT 1",
            parameters: &[TIDOID],
            results: &[TEXTOID, TEXTOID],
            lock: TableLock::Read,
        };
        let Some(page) = self.random_page() else { return Ok(None) };
        if self.execute(&RANDOM_KEY, &[Some(page)])? == 0 {
            return Ok(None);
        }
        // SAFETY: `execute` has checked that the columns are texts.
        let text =
            |column| self.field(0, column).map(|datum| unsafe { varlena_bytes(datum).to_vec() });
        Ok(text(1).zip(text(2)))
    }

    fn delete(&self, id: RowId, _: TupleId) -> PortResult<()> {
        const DELETE: Statement = Statement {
            sql: concat!("DELETE FROM ONLY @schema@.ratelimits WHERE ", by_id!()),
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &[],
            lock: TableLock::Write,
        };
        match self.execute(&DELETE, &key_parameters(id))? {
            0 => Err(Connection::not_written(self).into()),
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

/// The types of a [`KeyedRow`]: name, key, and those of [`SHARD_ROW`].
pub(super) const KEYED_ROW: [pg_sys::BuiltinOid; 11] = joined([TEXTOID, TEXTOID], SHARD_ROW);

/// The parameters of a statement that writes a row: all columns.
pub(super) const ROW_PARAMETERS: [pg_sys::BuiltinOid; 11] = KEYED_ROW;

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
        let text = |column| {
            // SAFETY: `execute` has checked that the columns are texts.
            let bytes = self.field(row, column).map(|datum| unsafe { varlena_bytes(datum) });
            bytes.map(<[u8]>::to_vec).ok_or_else(|| Connection::not_written(self))
        };
        Ok(KeyedRow { name: text(1)?, key: text(2)?, row: self.decode_row(row, 3)? })
    }

    /// Selects rows.
    fn rows(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<Vec<ShardRow>> {
        let count = self.execute(statement, parameters)?;
        (0..count).map(|row| self.decode_row(row, 1)).collect()
    }

    /// Decodes row number `row` of the last result, from 0. From column number `first` on, its columns are those of
    /// [`SHARD_ROW`].
    ///
    /// # Errors
    /// [`Error::NullState`] (55000): a NULL that no call writes.
    pub(super) fn decode_row(&self, row: u64, first: c_int) -> Result<ShardRow> {
        check_for_interrupts();
        let field = |column| self.field(row, first + column);
        let null = |column| Error::NullState { table: "rateLimits", column };
        let not_null = |column, name| field(column).ok_or_else(|| null(name));
        let (shard, kind) = (not_null(0, "shard")?, not_null(1, "kind")?);
        let (value, ts) = (not_null(2, "value")?, not_null(3, "ts")?);
        let float = |datum: pg_sys::Datum| f64::from_bits(datum.value() as u64);
        let shard = shard.value() as i32;
        let columns = Columns {
            kind: kind.value() as u8,
            value: float(value),
            ts: ts.value() as i64,
            added: field(4).map(float),
            prior: field(5).map(float),
            // SAFETY: `execute` has checked that the column is a timestamptz[].
            log: field(6).map(|log| unsafe { decode_array(log, TIMESTAMPTZOID) }),
            // SAFETY: `execute` has checked that the column is a bigint[].
            leases: field(7).map(|leases| unsafe { decode_array(leases, INT8OID) }),
        };
        // No holds exist if Citus distributes the table; there may have been some before.
        let holds_due = field(8).filter(|_| !self.catalog.rate_limits.distributed);
        let holds_due = holds_due.map(|holds_due| from_timestamptz(holds_due.value() as i64));
        let version = Version { stored: decode(shard, columns), holds_due };
        Ok((shard, Row { version, tuple: TupleId::NONE }))
    }
}

/// Encodes a primary key as parameters.
pub(super) fn key_parameters(id: RowId) -> [Option<pg_sys::Datum>; 3] {
    [Some(text_datum(id.name)), Some(text_datum(id.key)), Some(pg_sys::Datum::from(id.shard))]
}

/// Encodes a row as [`ROW_PARAMETERS`].
pub(super) fn row_parameters(id: RowId, version: &Version) -> [Option<pg_sys::Datum>; 11] {
    let [name, key, shard] = key_parameters(id);
    let [kind, value, ts, added, prior, log, leases, holds_due] = encode(version);
    [name, key, shard, kind, value, ts, added, prior, log, leases, holds_due]
}
