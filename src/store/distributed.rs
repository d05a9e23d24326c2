//! Access to the rows of a table that Citus distributes. Each statement is a message to the node that has the key. So a
//! row is read without a lock, and written in one statement if its version has not changed since. One statement per
//! shard deletes many rows.
//!
//! A shard may move to another node. A transaction that has read it keeps its connection to the old node, unless it has
//! locked the shard's metadata, as Citus does for a write: under that lock no shard moves or is split. So it is locked
//! before the first read. "Shard" means Citus's here, except for the number of a row.

use std::collections::BTreeMap;
use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{
    BOOLOID, INT4ARRAYOID, INT4OID, INT8OID, REGCLASSOID, TEXTARRAYOID, TEXTOID, XIDARRAYOID,
    XIDOID,
};
use ratelimit_core::Micros;
use ratelimit_limiter::ports::{KeyRows, KeyedRow, Row, RowFacts, RowId, TRIES, TupleId, Version};

use crate::schema::catalog::TableLock;
use crate::schema::error::Result;
use crate::schema::spi::{Connection, Statement};
use crate::store::codec::{array_datum, int_array, text_array};
use crate::store::sql::{KEYED_ROW, SHARD_ROW, by_id, joined, row_parameters, set_row, shard_row};
use ratelimit_pg::transaction::beyond_savepoints;
use ratelimit_pg::values::text_datum;

/// The rows of a page: each shard sends at most this number.
const PAGE: usize = 2000;

/// The maximum number of rows that one statement deletes per shard.
const BATCH: i64 = 10_000;

/// The longest time of a message to another node that waits for no lock.
const PATIENCE: Micros = Micros(100_000);

/// The columns of [`VERSION`]: the columns of a row, the transaction that wrote it, and whether it is unlocked. A
/// version also locked by its writer, as by `lock` without a wait, keeps the mark of that lock.
macro_rules! version {
    () => {
        concat!(shard_row!(), ", xmin, xmax @=@ ANY (ARRAY['0'::pg_catalog.xid, xmin])")
    };
}

/// The columns of [`SHARD_ROW`], then those of a version.
pub(super) const VERSION: [pg_sys::BuiltinOid; 11] = joined(SHARD_ROW, [XIDOID, BOOLOID]);

/// The columns of [`KEYED_ROW`], then those of a version.
pub(super) const KEYED_VERSION: [pg_sys::BuiltinOid; 13] = joined(KEYED_ROW, [XIDOID, BOOLOID]);

pub(super) use version;

impl Connection<'_> {
    /// Locks by an update that changes nothing: Citus treats SELECT ... FOR UPDATE as a read. The next version has no
    /// mark of this lock.
    pub(super) fn touch(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        const TOUCH: Statement = Statement::writes(
            concat!(
                "UPDATE @schema@.ratelimits SET value = value WHERE ",
                by_id!(),
                " RETURNING ",
                shard_row!()
            ),
            &[TEXTOID, TEXTOID, INT4OID],
            &SHARD_ROW,
        );
        const TRY_TOUCH: Statement = Statement::writes(
            concat!(
                "UPDATE @schema@.ratelimits SET value = value WHERE ",
                by_id!(),
                " AND ctid @=@ (SELECT ctid FROM @schema@.ratelimits WHERE ",
                by_id!(),
                " FOR UPDATE SKIP LOCKED) RETURNING ",
                shard_row!()
            ),
            &[TEXTOID, TEXTOID, INT4OID],
            &SHARD_ROW,
        );
        self.row(if wait { &TOUCH } else { &TRY_TOUCH }, id)
    }

    /// Replaces a version. Waits only with `wait`, and if the row was unlocked when it was read. A statement that waits
    /// locks the version that it finds afterwards, even if that is not the version to replace: if another transaction
    /// intervenes, the row may stay locked to the end of a transaction that took nothing from it.
    pub(super) fn replace_version(
        &self,
        id: RowId,
        seen: &Row,
        version: &Version,
        wait: bool,
    ) -> Result<bool> {
        const REPLACE: Statement = Statement {
            sql: concat!(
                "UPDATE @schema@.ratelimits SET ",
                set_row!(),
                " WHERE ",
                by_id!(),
                " AND xmin @=@ $12"
            ),
            parameters: &joined::<11, 1, 12>(KEYED_ROW, [XIDOID]),
            results: &[],
            lock: TableLock::Write,
        };
        const REPLACE_UNLOCKED: Statement = Statement {
            sql: concat!(
                "UPDATE @schema@.ratelimits SET ",
                set_row!(),
                " WHERE ",
                by_id!(),
                " AND xmin @=@ $12 \
                 AND ctid @=@ (SELECT ctid FROM @schema@.ratelimits WHERE ",
                by_id!(),
                " AND xmin @=@ $12 FOR UPDATE SKIP LOCKED)"
            ),
            ..REPLACE
        };
        let TupleId { writer: Some(writer), unlocked, .. } = seen.tuple else { return Ok(false) };
        let mut row = row_parameters(id, version).to_vec();
        row.push(Some(pg_sys::Datum::from(writer)));
        let statement = if wait && unlocked { &REPLACE } else { &REPLACE_UNLOCKED };
        Ok(self.execute(statement, &row)? > 0)
    }

    /// Removes the rows of keys, except keys with a row that has changed or is locked; returns the number of rows.
    pub(super) fn remove_unlocked(&self, keys: &[KeyRows]) -> Result<u64> {
        if !self.is_usual() {
            // The rows of a key may be on several nodes.
            let single = keys.iter().filter(|of| of.rows.len() == 1);
            return single.map(|of| self.delete_unlocked(&[of])).sum();
        }
        let texts = keys.iter().map(|of| &of.key.1[..]);
        let mut by_shard: BTreeMap<i64, Vec<&KeyRows>> = BTreeMap::new();
        for (shard, of) in self.shards_of(texts)?.into_iter().zip(keys) {
            by_shard.entry(shard).or_default().push(of);
        }
        by_shard.values().map(|keys| self.delete_unlocked(keys)).sum()
    }

    /// Deletes the rows of a name.
    pub(super) fn delete_all(&self, name: &[u8]) -> Result<Vec<KeyedRow>> {
        const DELETE_NAME: Statement = Statement::writes(
            // Leaves out the columns that can be large: the others say which row it is, and whether it has a state. A
            // state without them decodes as an invalid one, which counts as one.
            "DELETE FROM @schema@.ratelimits WHERE name @=@ $1 \
                  RETURNING name, key, shard, kind, value, ts, \
                            NULL::pg_catalog.float8, NULL::pg_catalog.float8, \
                            NULL::pg_catalog.timestamptz[], NULL::pg_catalog.int8[], \
                            NULL::pg_catalog.timestamptz",
            &[TEXTOID],
            &KEYED_ROW,
        );
        // Without the lock, Citus raises 40001 for a statement on all shards if one of them was split.
        self.keep_all()?;
        let count = self.execute(&DELETE_NAME, &[Some(text_datum(name))])?;
        (0..count).map(|row| self.keyed_row(row)).collect()
    }

    /// Facts about the rows.
    pub(super) fn distributed_facts(&self) -> RowFacts {
        let batch = if self.is_usual() { BATCH } else { 1 };
        RowFacts { page: PAGE, batch, patience: PATIENCE, locks_first: true }
    }

    /// Whether Citus distributes the table.
    pub(super) fn is_distributed(&self) -> bool {
        self.catalog.rate_limits.distributed
    }

    /// Whether the table is distributed by the key, with one copy of each shard. Otherwise a key doesn't identify a
    /// shard, or each copy has its own versions: rows are locked one by one, and written by their primary key.
    pub(super) fn is_usual(&self) -> bool {
        self.catalog.rate_limits.by_key
    }

    /// The version of a row of the last result; column `first` has its writer, if the result has it.
    pub(super) fn version(&self, row: u64, first: c_int) -> TupleId {
        if !self.is_usual() {
            return TupleId::NONE;
        }
        let writer = self.field(row, first).map(|writer| writer.value() as u32);
        let unlocked = self.field(row, first + 1).is_some_and(|unlocked| unlocked.value() != 0);
        TupleId { tid: None, unlocked, writer }
    }

    /// Keeps the shard of a key in place to the end of the transaction. Waits while the shard is being moved.
    pub(super) fn keep_key(&self, key: &[u8]) -> Result<()> {
        // One statement does both: a separate look-up costs a large part of a call.
        const KEEP_KEY: Statement = Statement::reads(
            "SELECT id, pg_catalog.lock_shard_metadata(5, ARRAY[id]) FROM ( SELECT \
             pg_catalog.get_shard_id_for_distribution_column($1, $2) OFFSET 0 ) AS shard (id)",
            &[REGCLASSOID, TEXTOID],
            &[INT8OID],
        );
        const SHARD_OF: Statement = Statement {
            sql: "SELECT pg_catalog.get_shard_id_for_distribution_column($1, $2)",
            ..KEEP_KEY
        };
        if !self.is_distributed() {
            return Ok(());
        }
        if !self.is_usual() {
            return self.keep_all();
        }
        let of =
            |statement| self.shard_list(statement, &[Some(self.table()), Some(text_datum(key))]);
        self.keep(|| of(&KEEP_KEY), || of(&SHARD_OF))
    }

    /// Keeps all shards in place, as [`keep_key`](Connection::keep_key).
    pub(super) fn keep_all(&self) -> Result<()> {
        const KEEP_ALL: Statement = Statement::reads(
            "SELECT shardid, pg_catalog.lock_shard_metadata(5, ARRAY[shardid]) FROM ( \
                      SELECT shardid FROM pg_catalog.pg_dist_shard \
                      WHERE logicalrelid @=@ $1 ORDER BY shardid OFFSET 0 \
                  ) AS shard",
            &[REGCLASSOID],
            &[INT8OID],
        );
        const ALL: Statement = Statement {
            sql: "SELECT shardid FROM pg_catalog.pg_dist_shard \
                  WHERE logicalrelid @=@ $1 ORDER BY shardid",
            ..KEEP_ALL
        };
        if !self.is_distributed() {
            return Ok(());
        }
        let all = |statement| self.shard_list(statement, &[Some(self.table())]);
        self.keep(|| all(&KEEP_ALL), || all(&ALL))
    }

    /// Locks the metadata of shards with `lock`, in ShareLock, as Citus does for a write. Repeats if other shards have
    /// replaced them: a shard may be split while the lock waits. Citus keeps a connection after the savepoint in which
    /// it was used, so the locks last as long. Fails if the shards keep changing.
    fn keep(
        &self,
        lock: impl Fn() -> Result<Vec<i64>>,
        shards: impl Fn() -> Result<Vec<i64>>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let locked = lock()?;
            // SAFETY: inside a transaction.
            unsafe { pg_sys::AcceptInvalidationMessages() };
            if locked == shards()? {
                return beyond_savepoints(|| lock().map(drop));
            }
        }
        Err(self.not_written())
    }

    /// Returns the shard of each key.
    fn shards_of<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<Vec<i64>> {
        const SHARDS_OF: Statement = Statement::reads(
            "SELECT pg_catalog.get_shard_id_for_distribution_column($1, key) FROM \
             pg_catalog.unnest($2) WITH ORDINALITY AS keys (key, number) ORDER BY number",
            &[REGCLASSOID, TEXTARRAYOID],
            &[INT8OID],
        );
        self.shard_list(&SHARDS_OF, &[Some(self.table()), Some(text_array(keys))])
    }

    /// Selects numbers of shards.
    fn shard_list(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<Vec<i64>> {
        let count = self.execute(statement, parameters)?;
        Ok((0..count).filter_map(|row| self.field(row, 1)).map(|id| id.value() as i64).collect())
    }

    /// The table, as a parameter.
    fn table(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.catalog.rate_limits.oid)
    }

    /// Deletes the rows of keys of one shard, except keys with a row that has changed since it was read or is locked;
    /// returns the number of rows. The rows of such keys that it has locked stay locked.
    fn delete_unlocked(&self, keys: &[&KeyRows]) -> Result<u64> {
        // Locks row by row, then deletes the keys with all rows locked.
        const DELETE_UNLOCKED: Statement = Statement::writes(
            "DELETE FROM @schema@.ratelimits WHERE key @=@ ANY ($2) \
                  AND ctid @=@ ANY (ARRAY( \
                      SELECT ctid FROM ( \
                          SELECT ctid, there, \
                                 pg_catalog.count(*) OVER (PARTITION BY name, key) AS locked \
                          FROM (SELECT found.ctid, found.name, found.key, seen.there \
                                FROM @schema@.ratelimits AS found \
                                JOIN ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), \
                                                pg_catalog.unnest($3), pg_catalog.unnest($4), \
                                                pg_catalog.unnest($5)) \
                                  AS seen (name, key, shard, writer, there) \
                                  ON found.name @=@ seen.name \
                                 AND found.key @=@ seen.key \
                                 AND found.shard @=@ seen.shard \
                                 AND found.xmin @=@ seen.writer \
                                WHERE found.key @=@ ANY ($2) \
                                FOR UPDATE OF found SKIP LOCKED) AS unlocked) AS counted \
                      WHERE locked @=@ there))",
            &[TEXTARRAYOID, TEXTARRAYOID, INT4ARRAYOID, XIDARRAYOID, INT4ARRAYOID],
            &[],
        );
        let rows = || keys.iter().flat_map(|of| of.rows.iter().map(move |row| (of, row)));
        let shards: Vec<i32> = rows().map(|(_, (shard, _))| *shard).collect();
        let there: Vec<i32> = rows().map(|(of, _)| of.rows.len() as i32).collect();
        // No transaction has number 0: rows read without a version are not deleted.
        let writers = rows().map(|(_, (_, row))| row.tuple.writer.unwrap_or(0).into()).collect();
        self.execute(
            &DELETE_UNLOCKED,
            &[
                Some(text_array(rows().map(|(of, _)| &of.key.0[..]))),
                Some(text_array(rows().map(|(of, _)| &of.key.1[..]))),
                Some(int_array(&shards)),
                Some(array_datum(writers, XIDOID, 4, b'i')),
                Some(int_array(&there)),
            ],
        )
    }
}
