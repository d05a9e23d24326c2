//! Access to the holds. A hold and its settlement access an unaltered table directly in the heap; everything
//! else uses SQL.

use std::collections::BTreeSet;
use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{
    BOOLOID, FLOAT8ARRAYOID, FLOAT8OID, INT8OID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID,
};
use ratelimit_core::Micros;
use ratelimit_core::hold::{Hold, SETTLED_LATE};
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{Deleted, HoldRow, Holds, Key, KeyHolds, KeyRef, Listing};

use crate::schema::catalog::{Catalog, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::spi::{self, Connection, Statement};
use crate::store::codec::{bad_hold, decode_hold, encode_hold, float_array, text_array};
use ratelimit_pg::clock::to_nearest_timestamptz;
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::values::text_datum;

/// The maximum number of holds that one statement expires: the plan for more would be compiled (JIT).
const TOGETHER: usize = 1000;

/// The columns of [`ROW`].
macro_rules! row {
    () => {
        "id, name, key, count, spent, returned, taken_at, expires_at, charge, lease, \
         config::pg_catalog.text"
    };
}

/// Selects rows that meet the conditions.
macro_rules! select {
    ($($condition:expr),+) => {
        concat!("SELECT ", row!(), " FROM ONLY @schema@.rl_holds WHERE ", $($condition),+)
    };
}

/// Selects the names and keys with holds, of the key $2, unless that is NULL, and of the names that meet a condition.
/// If $3 is not NULL, only those with tokens held at that time; a charged hold counts if it has expired since $4.
macro_rules! keys {
    ($name:expr) => {
        concat!(
            "SELECT DISTINCT name, key FROM ONLY @schema@.rl_holds WHERE ",
            $name,
            " AND key @=@ COALESCE($2, key) \
              AND ($3 IS NULL OR count @>@ spent AND ",
            is_held!("$3", "$4"),
            ")"
        )
    };
}

/// Whether tokens are held at a time. A charged hold keeps its tokens until a late settlement counts no more.
macro_rules! is_held {
    ($now:literal, $charged_since:literal) => {
        concat!("(expires_at @>@ ", $now, " OR charge AND expires_at @>=@ ", $charged_since, ")")
    };
}

/// The first columns of [`WRITTEN`].
macro_rules! written {
    () => {
        "count, spent, returned, taken_at, expires_at, charge, lease, "
    };
}

/// Matches the primary key: the first three parameters.
macro_rules! by_id {
    () => {
        "id @=@ $1 AND name @=@ $2 AND key @=@ $3"
    };
}

/// The types of a [`HoldRow`], as it is read and written.
const ROW: [pg_sys::BuiltinOid; 11] = {
    let [count, spent, returned, taken_at, expires_at, charge, lease, _] = WRITTEN;
    let (text, config) = (TEXTOID, TEXTOID);
    [text, text, text, count, spent, returned, taken_at, expires_at, charge, lease, config]
};

/// The types of the columns from `count` to `lease`, passed by value, and of a check of the id.
const WRITTEN: [pg_sys::BuiltinOid; 8] =
    [FLOAT8OID, FLOAT8OID, FLOAT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, BOOLOID, INT8OID, BOOLOID];

/// Locks a hold of a limit.
const LOCK: Statement =
    Statement::locks(select!(by_id!(), " FOR UPDATE"), &[TEXTOID, TEXTOID, TEXTOID], &ROW);

/// Runs `work` on the rows of rl_holds through SQL.
pub fn by_sql<T>(
    catalog: &Catalog,
    lock: TableLock,
    work: impl FnOnce(&Connection) -> PortResult<T>,
) -> PortResult<T> {
    Ok(spi::with_owner(catalog, catalog.rl_holds, lock, |sql| Ok(work(sql)?))?)
}

/// The rows of rl_holds, through SQL, by a connection to that table.
impl Holds for Connection<'_> {
    fn of_id(&self, id: &[u8]) -> PortResult<Vec<HoldRow>> {
        const OF_ID: Statement =
            Statement::reads(select!("id @=@ $1 ORDER BY name, key"), &[TEXTOID], &ROW);
        Ok(self.holds(&OF_ID, &[text(id)])?)
    }

    fn one(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<Option<HoldRow>> {
        const ONE: Statement =
            Statement::reads(select!(by_id!()), &[TEXTOID, TEXTOID, TEXTOID], &ROW);
        Ok(self.holds(&ONE, &[text(id), text(name), text(key)])?.pop())
    }

    fn insert(&self, row: &HoldRow) -> PortResult<bool> {
        // A conflict would raise an error with the id in it.
        const INSERT: Statement = Statement::writes(
            concat!(
                "INSERT INTO @schema@.rl_holds \
                 (id, name, key, count, spent, returned, taken_at, expires_at, charge, lease, config) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::pg_catalog.jsonb) \
                 ON CONFLICT DO NOTHING RETURNING ",
                written!(),
                by_id!()
            ),
            &ROW,
            &WRITTEN,
        );
        for _ in 0..2 {
            if self.write_hold(&INSERT, row)? {
                return Ok(true);
            }
            if self.one(&row.id, &row.name, &row.key)?.is_some() {
                return Ok(false);
            }
            // The row is gone by now, or a rule of the time when the plan was made drops it.
            spi::forget_plans();
        }
        Err(self.not_written().into())
    }

    fn update(&self, row: &HoldRow) -> PortResult<bool> {
        const UPDATE: Statement = Statement::writes(
            concat!(
                "UPDATE ONLY @schema@.rl_holds SET count = $4, spent = $5, returned = $6, \
                 taken_at = $7, expires_at = $8, charge = $9, lease = $10, \
                 config = $11::pg_catalog.jsonb WHERE ",
                by_id!(),
                " RETURNING ",
                written!(),
                by_id!()
            ),
            &ROW,
            &WRITTEN,
        );
        let written = self.write_hold(&UPDATE, row)?;
        if !written && self.one(&row.id, &row.name, &row.key)?.is_some() {
            return Err(self.not_written().into());
        }
        Ok(written)
    }

    fn lock(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<()> {
        self.execute(&LOCK, &[text(id), text(name), text(key)])?;
        Ok(())
    }

    fn delete(&self, id: &[u8], name: &[u8], key: &[u8]) -> PortResult<Deleted> {
        const LOCK_UNLOCKED: Statement =
            Statement { sql: select!(by_id!(), " FOR UPDATE SKIP LOCKED"), ..LOCK };
        const DELETE: Statement = Statement::writes(
            concat!("DELETE FROM ONLY @schema@.rl_holds WHERE ", by_id!(), " RETURNING ", row!()),
            &[TEXTOID, TEXTOID, TEXTOID],
            &ROW,
        );
        let of_id = [text(id), text(name), text(key)];
        if self.execute(&LOCK_UNLOCKED, &of_id)? == 0 {
            if self.execute(&LOCK, &of_id)? > 0 {
                return Ok(Deleted::Waited);
            }
            // If it is there, a policy of the owner's hides it from the lock alone.
            if self.one(id, name, key)?.is_none() {
                return Ok(Deleted::Gone);
            }
        }
        match self.holds(&DELETE, &of_id)?.pop() {
            Some(deleted) => Ok(Deleted::Row(deleted)),
            // A trigger or rule keeps it.
            None => Err(self.not_written().into()),
        }
    }
}

impl KeyHolds for Connection<'_> {
    fn returning(
        &self,
        (name, key): KeyRef,
        from: Micros,
        until: Micros,
        most: i64,
    ) -> PortResult<Vec<HoldRow>> {
        const RETURNING: Statement = Statement::reads(
            select!(
                "name @=@ $1 AND key @=@ $2 AND NOT charge AND expires_at @>=@ $3 \
                 AND expires_at @<=@ $4 AND count @>@ spent ORDER BY expires_at, id LIMIT $5"
            ),
            &[TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID],
            &ROW,
        );
        let times = [from, until].map(at);
        let given = [text(name), text(key), times[0], times[1], Some(most.into())];
        Ok(self.holds(&RETURNING, &given)?)
    }

    fn expire(&self, (name, key): KeyRef, rows: &[HoldRow]) -> PortResult<()> {
        const EXPIRE: Statement = Statement::writes(
            "UPDATE ONLY @schema@.rl_holds AS hold \
             SET count = now.count, spent = now.spent, returned = now.returned \
                  FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4), \
                                  pg_catalog.unnest($5), pg_catalog.unnest($6)) \
                    AS now (id, count, spent, returned) \
             WHERE hold.id @=@ now.id AND hold.name @=@ $1 AND hold.key @=@ $2 \
             RETURNING hold.count @=@ now.count AND hold.spent @=@ now.spent \
               AND hold.returned @=@ now.returned",
            &[TEXTOID, TEXTOID, TEXTARRAYOID, FLOAT8ARRAYOID, FLOAT8ARRAYOID, FLOAT8ARRAYOID],
            &[BOOLOID],
        );
        for rows in rows.chunks(TOGETHER) {
            let floats =
                |of: fn(&Hold) -> f64| Some(float_array(rows.iter().map(move |row| of(&row.hold))));
            let ids = Some(text_array(rows.iter().map(|row| &row.id[..])));
            let written = self.execute(
                &EXPIRE,
                &[
                    text(name),
                    text(key),
                    ids,
                    floats(|hold| hold.count),
                    floats(|hold| hold.spent),
                    floats(|hold| hold.returned),
                ],
            )?;
            // A trigger may keep or change them.
            let as_meant = |n| self.field(n, 1).is_some_and(|datum| datum.value() as u8 != 0);
            if written < rows.len() as u64 || !(0..written).all(as_meant) {
                return Err(self.not_written().into());
            }
        }
        Ok(())
    }

    fn delete_of_key(&self, (name, key): KeyRef) -> PortResult<u64> {
        const DELETE_OF_KEY: Statement = Statement::writes(
            "DELETE FROM ONLY @schema@.rl_holds WHERE name @=@ $1 AND key @=@ $2",
            &[TEXTOID, TEXTOID],
            &[],
        );
        const ANY: Statement = Statement::reads(
            select!("name @=@ $1 AND key @=@ $2 LIMIT 1"),
            &[TEXTOID, TEXTOID],
            &ROW,
        );
        let of_key = [text(name), text(key)];
        let deleted = self.execute(&DELETE_OF_KEY, &of_key)?;
        if self.execute(&ANY, &of_key)? > 0 {
            return Err(self.not_written().into());
        }
        Ok(deleted)
    }

    fn keys(&self, listing: Listing, held_at: Option<Micros>) -> PortResult<BTreeSet<Key>> {
        const OF_NAME: Statement = Statement::reads(
            keys!("name @=@ $1"),
            &[TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID],
            &[TEXTOID, TEXTOID],
        );
        const OF_KEY: Statement = Statement { sql: keys!("name @=@ $1 AND key @=@ $2"), ..OF_NAME };
        const OF_ALL: Statement = Statement { sql: keys!("name @>@ '' AND $1 IS NULL"), ..OF_NAME };
        let Listing { name, key, .. } = listing;
        let statement = match (name, key) {
            (Some(_), Some(_)) => &OF_KEY,
            (Some(_), None) => &OF_NAME,
            (None, _) => &OF_ALL,
        };
        let charged_since = held_at.map(|now| now.minus(SETTLED_LATE));
        let times = [held_at, charged_since].map(|time| time.and_then(at));
        let given = [name.and_then(text), key.and_then(text), times[0], times[1]];
        Ok(self.key_list(statement, &given)?.into_iter().collect())
    }

    fn held(&self, (name, key): KeyRef, since: Micros, now: Micros) -> PortResult<f64> {
        const HELD: Statement = Statement::reads(
            concat!(
                "SELECT pg_catalog.sum(count @-@ spent) FROM ONLY @schema@.rl_holds \
                 WHERE name @=@ $1 AND key @=@ $2 AND count @>@ spent AND taken_at @>=@ $4 AND ",
                is_held!("$3", "$5")
            ),
            &[TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID],
            &[FLOAT8OID],
        );
        let charged_since = now.minus(SETTLED_LATE);
        let given = [text(name), text(key), at(now), at(since), at(charged_since)];
        self.execute(&HELD, &given)?;
        // NULL: there is none.
        let sum = self.field(0, 1).map_or(0.0, |sum| f64::from_bits(sum.value() as u64));
        match sum.is_finite() {
            true => Ok(sum),
            false => Err(bad_hold(name, "count", sum)),
        }
    }

    fn due_keys(&self, after: KeyRef, now: Micros, most: i64) -> PortResult<Vec<Key>> {
        const DUE_KEYS: Statement = Statement::reads(
            "SELECT DISTINCT name, key FROM ONLY @schema@.rl_holds \
             WHERE ROW(name, key) @>@ ROW($1, $2) AND NOT charge \
               AND expires_at @<=@ $3 AND count @>@ spent ORDER BY name, key LIMIT $4",
            &[TEXTOID, TEXTOID, TIMESTAMPTZOID, INT8OID],
            &[TEXTOID, TEXTOID],
        );
        let given = [text(after.0), text(after.1), at(now), Some(most.into())];
        Ok(self.key_list(&DUE_KEYS, &given)?)
    }

    fn prune(&self, before: Micros, most: i64) -> PortResult<i64> {
        const PRUNE: Statement = Statement::writes(
            "DELETE FROM ONLY @schema@.rl_holds WHERE ctid @=@ ANY \
             (ARRAY(SELECT ctid FROM ONLY @schema@.rl_holds WHERE name @>@ '' \
                    AND expires_at @<@ $1 AND (charge OR count @<=@ spent) \
                    LIMIT $2 FOR UPDATE SKIP LOCKED))",
            &[TIMESTAMPTZOID, INT8OID],
            &[],
        );
        Ok(self.execute(&PRUNE, &[at(before), Some(most.into())])? as i64)
    }
}

impl Connection<'_> {
    /// Runs a statement that returns rows of holds.
    fn holds(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<Vec<HoldRow>> {
        let count = self.execute(statement, parameters)?;
        (0..count).map(|row| self.hold(row)).collect()
    }

    /// Runs a statement that returns names and keys.
    fn key_list(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let count = self.execute(statement, parameters)?;
        let key = |row| {
            check_for_interrupts();
            let found = self.text(row, 1).zip(self.text(row, 2));
            found.ok_or_else(|| self.not_written())
        };
        (0..count).map(key).collect()
    }

    /// Decodes row number `row` of the last result, from 0.
    fn hold(&self, row: u64) -> Result<HoldRow> {
        check_for_interrupts();
        let text =
            |n, column| self.text(row, n).ok_or(Error::NullState { table: "rl_holds", column });
        let (id, name, key) = (text(1, "id")?, text(2, "name")?, text(3, "key")?);
        let hold = decode_hold(&name, [4, 5, 6, 7, 8, 9, 10].map(|n| self.field(row, n)))?;
        Ok(HoldRow { id, name, key, hold, config: self.text(row, 11) })
    }

    /// Runs a statement that writes one row, with the columns as its parameters; false if it wrote none. Fails if a
    /// trigger has changed the row.
    fn write_hold(&self, statement: &Statement, row: &HoldRow) -> Result<bool> {
        let HoldRow { id, name, key, hold, config } = row;
        let numbers = encode_hold(hold);
        let mut columns = vec![text(id), text(name), text(key)];
        columns.extend(numbers);
        columns.push(config.as_deref().and_then(text));
        if self.execute(statement, &columns)? == 0 {
            return Ok(false);
        }
        let is_of_id = Some(true.into());
        let is_same = |(n, column): (c_int, &Option<pg_sys::Datum>)| {
            let written = self.field(0, n).map(pg_sys::Datum::value);
            written == column.map(pg_sys::Datum::value)
        };
        match (1..).zip(numbers.iter().chain([&is_of_id])).all(is_same) {
            true => Ok(true),
            false => Err(self.not_written()),
        }
    }
}

/// A text as a parameter.
#[expect(clippy::unnecessary_wraps, reason = "a parameter may be NULL")]
fn text(bytes: &[u8]) -> Option<pg_sys::Datum> {
    Some(text_datum(bytes))
}

/// An instant as a parameter.
#[expect(clippy::unnecessary_wraps, reason = "a parameter may be NULL")]
fn at(at: Micros) -> Option<pg_sys::Datum> {
    Some(to_nearest_timestamptz(at).into())
}
