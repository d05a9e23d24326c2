//! The store that uses SQL as any session could write it, so that it works on whatever stands
//! behind the table's name: triggers, policies, constraints, a distributed table.

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{
    FLOAT8OID, INT4ARRAYOID, INT4OID, INT8OID, TEXTOID, TIDOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID,
};

use crate::algorithm::Micros;
use crate::error::{Error, Result};
use crate::postgres::{
    check_for_interrupts, float_datum, from_timestamptz, text_datum, to_nearest_timestamptz,
    varlena_bytes,
};
use crate::spi::{Connection, Statement, TableLock};
use crate::store::{Found, Keyed, Numbered, Place, Row, RowId, SPREAD, Store};

impl Store for Connection<'_> {
    fn read(&self, id: RowId) -> Result<Option<Found>> {
        const READ: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  AND shard OPERATOR(pg_catalog.=) $3",
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &STATE,
            lock: TableLock::Read,
        };
        self.row(&READ, id)
    }

    fn lock(&self, id: RowId) -> Result<Option<Found>> {
        const LOCK: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  AND shard OPERATOR(pg_catalog.=) $3 FOR UPDATE",
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &STATE,
            lock: TableLock::LockRows,
        };
        self.row(&LOCK, id)
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Found>> {
        const TRY_LOCK: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  AND shard OPERATOR(pg_catalog.=) $3 FOR UPDATE SKIP LOCKED",
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &STATE,
            lock: TableLock::LockRows,
        };
        self.row(&TRY_LOCK, id)
    }

    fn read_some(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<Numbered>> {
        const READ_SOME: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  AND shard OPERATOR(pg_catalog.=) ANY ($3)",
            parameters: &[TEXTOID, TEXTOID, INT4ARRAYOID],
            results: &STATE,
            lock: TableLock::Read,
        };
        let shards: Vec<pg_sys::Datum> = shards.iter().map(|&shard| shard.into()).collect();
        let shards = array(shards, INT4OID, size_of::<i32>(), b'i');
        self.rows(&READ_SOME, &[Some(text_datum(name)), Some(text_datum(key)), Some(shards)])
    }

    fn read_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        const READ_ALL: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  ORDER BY shard",
            parameters: &[TEXTOID, TEXTOID],
            results: &STATE,
            lock: TableLock::Read,
        };
        self.rows(&READ_ALL, &[Some(text_datum(name)), Some(text_datum(key))])
    }

    fn lock_all(&self, name: &[u8], key: &[u8]) -> Result<Vec<Numbered>> {
        const LOCK_ALL: Statement = Statement {
            sql: "SELECT shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  ORDER BY shard FOR UPDATE",
            parameters: &[TEXTOID, TEXTOID],
            results: &STATE,
            lock: TableLock::LockRows,
        };
        self.rows(&LOCK_ALL, &[Some(text_datum(name)), Some(text_datum(key))])
    }

    fn insert(&self, id: RowId, row: &Row) -> Result<bool> {
        // Any conflict: named columns mean the valid index alone, and the one that REINDEX
        // CONCURRENTLY builds beside it would raise 23505.
        const INSERT: Statement = Statement {
            sql: "INSERT INTO @schema@.ratelimits (name, key, shard, value, ts, prior, log) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            parameters: &WHOLE_ROW,
            results: &[],
            lock: TableLock::Write,
        };
        // 42P10 where nothing would keep two rows of a key apart.
        const INSERT_BY_COLUMNS: Statement = Statement {
            sql: "INSERT INTO @schema@.ratelimits (name, key, shard, value, ts, prior, log) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name, key, shard) DO NOTHING",
            ..INSERT
        };
        let insert = if self.catalog.usual_key { &INSERT } else { &INSERT_BY_COLUMNS };
        Ok(self.execute(insert, &whole_row(id, row))? > 0)
    }

    /// The row must be locked first: what a statement sees may be old by the time it writes.
    fn replace(&self, _: RowId, _: &Found, _: &Row, _: bool) -> Result<bool> {
        Ok(false)
    }

    fn update(&self, id: RowId, _: Place, row: &Row) -> Result<()> {
        const UPDATE: Statement = Statement {
            sql: "UPDATE @schema@.ratelimits SET value = $4, ts = $5, prior = $6, log = $7 \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.=) $2 \
                  AND shard OPERATOR(pg_catalog.=) $3",
            parameters: &WHOLE_ROW,
            results: &[],
            lock: TableLock::Write,
        };
        match self.execute(&UPDATE, &whole_row(id, row))? {
            0 => Err(Connection::not_written(self)),
            _ => Ok(()),
        }
    }

    fn read_after(&self, after: (&[u8], &[u8]), within: bool, rows: i64) -> Result<Vec<Keyed>> {
        const OF_ALL: Statement = Statement {
            sql: "SELECT name, key, shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE ROW(name, key) OPERATOR(pg_catalog.>) ROW($1, $2) \
                  ORDER BY name, key, shard LIMIT $3",
            parameters: &[TEXTOID, TEXTOID, INT8OID],
            results: &KEYED,
            lock: TableLock::Read,
        };
        const OF_ONE: Statement = Statement {
            sql: "SELECT name, key, shard, value, ts, prior, log FROM @schema@.ratelimits \
                  WHERE name OPERATOR(pg_catalog.=) $1 AND key OPERATOR(pg_catalog.>) $2 \
                  ORDER BY name, key, shard LIMIT $3",
            parameters: &[TEXTOID, TEXTOID, INT8OID],
            results: &KEYED,
            lock: TableLock::Read,
        };
        let (name, key) = after;
        let count = self.execute(
            if within { &OF_ONE } else { &OF_ALL },
            &[Some(text_datum(name)), Some(text_datum(key)), Some(rows.into())],
        )?;
        let text = |row, column| {
            // SAFETY: the columns are the texts that the statement says they are.
            let bytes = self.field(row, column).map(|datum| unsafe { varlena_bytes(datum) });
            bytes.map(<[u8]>::to_vec).ok_or_else(|| Connection::not_written(self))
        };
        (0..count)
            .map(|row| {
                let (name, key) = (text(row, 1)?, text(row, 2)?);
                let row = self.selected(row, 3)?;
                Ok(Keyed { name, key, row })
            })
            .collect()
    }

    fn somewhere(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        const SOMEWHERE: Statement = Statement {
            sql: "SELECT name, key FROM @schema@.ratelimits \
                  WHERE ctid OPERATOR(pg_catalog.>=) $1 LIMIT 1",
            parameters: &[TIDOID],
            results: &[TEXTOID, TEXTOID],
            lock: TableLock::Read,
        };
        let Some(page) = self.some_page() else { return Ok(None) };
        if self.execute(&SOMEWHERE, &[Some(page)])? == 0 {
            return Ok(None);
        }
        // SAFETY: the columns are the texts that the statement says they are.
        let text =
            |column| self.field(0, column).map(|datum| unsafe { varlena_bytes(datum).to_vec() });
        Ok(text(1).zip(text(2)))
    }

    fn delete(&self, id: RowId, _: Place) -> Result<()> {
        const DELETE: Statement = Statement {
            sql: "DELETE FROM @schema@.ratelimits WHERE name OPERATOR(pg_catalog.=) $1 \
                  AND key OPERATOR(pg_catalog.=) $2 AND shard OPERATOR(pg_catalog.=) $3",
            parameters: &[TEXTOID, TEXTOID, INT4OID],
            results: &[],
            lock: TableLock::Write,
        };
        match self.execute(&DELETE, &row_id(id))? {
            0 => Err(Connection::not_written(self)),
            _ => Ok(()),
        }
    }

    /// As for [`replace`](Store::replace).
    fn remove(&self, _: &Found) -> Result<bool> {
        Ok(false)
    }
}

/// What a row is selected as: shard, value, ts, prior, log.
const STATE: [pg_sys::BuiltinOid; 5] =
    [INT4OID, FLOAT8OID, TIMESTAMPTZOID, FLOAT8OID, TIMESTAMPTZARRAYOID];

/// name and key before those of [`STATE`].
const KEYED: [pg_sys::BuiltinOid; 7] =
    [TEXTOID, TEXTOID, INT4OID, FLOAT8OID, TIMESTAMPTZOID, FLOAT8OID, TIMESTAMPTZARRAYOID];

const WHOLE_ROW: [pg_sys::BuiltinOid; 7] =
    [TEXTOID, TEXTOID, INT4OID, FLOAT8OID, TIMESTAMPTZOID, FLOAT8OID, TIMESTAMPTZARRAYOID];

impl Connection<'_> {
    fn row(&self, statement: &Statement, id: RowId) -> Result<Option<Found>> {
        match self.execute(statement, &row_id(id))? {
            0 => Ok(None),
            _ => Ok(Some(self.selected(0, 1)?.1)),
        }
    }

    fn rows(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<Vec<Numbered>> {
        let count = self.execute(statement, parameters)?;
        (0..count).map(|row| self.selected(row, 1)).collect()
    }

    /// A row of the last result, whose columns are those of [`STATE`] from number `first` on.
    fn selected(&self, row: u64, first: c_int) -> Result<Numbered> {
        check_for_interrupts();
        let field = |column| self.field(row, first + column);
        let not_null = |column, name| field(column).ok_or(Error::NullState { column: name });
        let (shard, value, ts) = (not_null(0, "shard")?, not_null(1, "value")?, not_null(2, "ts")?);
        let float = |datum: pg_sys::Datum| f64::from_bits(datum.value() as u64);
        let shard = shard.value() as i32;
        // SAFETY: the column is the timestamptz[] that the statement says it is.
        let log = field(4).map(|log| unsafe { log_entries(log) });
        let prior = field(3).map(float);
        let row = row_of(shard, float(value), ts.value() as i64, prior, log);
        Ok((shard, Found { row, at: Place::NONE }))
    }
}

/// A row, its times as Postgres counts them.
pub fn row_of(shard: i32, value: f64, ts: i64, prior: Option<f64>, log: Option<Vec<i64>>) -> Row {
    let spread = shard == 0 && ts == i64::MIN && (value == 0.0 || value == f64::INFINITY);
    Row {
        value,
        ts: if spread { SPREAD } else { from_timestamptz(ts) },
        prior,
        log: log.map(|log| log.into_iter().map(from_timestamptz).collect()),
    }
}

/// A row's time.
pub fn ts_datum(at: Micros) -> pg_sys::Datum {
    pg_sys::Datum::from(if at == SPREAD { i64::MIN } else { to_nearest_timestamptz(at) })
}

/// A row's log.
pub fn log_datum(log: &[Micros]) -> pg_sys::Datum {
    let log = log.iter().map(|&at| to_nearest_timestamptz(at).into()).collect();
    array(log, TIMESTAMPTZOID, size_of::<i64>(), b'd')
}

fn row_id(id: RowId) -> [Option<pg_sys::Datum>; 3] {
    [Some(text_datum(id.name)), Some(text_datum(id.key)), Some(pg_sys::Datum::from(id.shard))]
}

fn whole_row(id: RowId, row: &Row) -> [Option<pg_sys::Datum>; 7] {
    let [name, key, shard] = row_id(id);
    [
        name,
        key,
        shard,
        Some(float_datum(row.value)),
        Some(ts_datum(row.ts)),
        row.prior.map(float_datum),
        row.log.as_deref().map(log_datum),
    ]
}

/// An array of values that are passed by value.
fn array(
    mut values: Vec<pg_sys::Datum>,
    of: pg_sys::BuiltinOid,
    size: usize,
    align: u8,
) -> pg_sys::Datum {
    // SAFETY: copies the values; the caller gives the type's own size and alignment.
    unsafe {
        pg_sys::Datum::from(pg_sys::construct_array(
            values.as_mut_ptr(),
            values.len() as c_int,
            of.value(),
            size as c_int,
            true,
            align as c_char,
        ))
    }
}

/// The entries of a log column, oldest first whoever wrote them.
///
/// # Safety
/// The datum is a timestamptz[].
pub unsafe fn log_entries(datum: pg_sys::Datum) -> Vec<i64> {
    let mut entries: Vec<i64> = Vec::new();
    // SAFETY: as the caller says; the values are copied out at once.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            TIMESTAMPTZOID.value(),
            8,
            true,
            b'd' as c_char,
            &mut values,
            &mut nulls,
            &mut count,
        );
        for n in 0..count as usize {
            if !*nulls.add(n) {
                entries.push((*values.add(n)).value() as i64);
            }
        }
    }
    entries.sort_unstable();
    entries
}
