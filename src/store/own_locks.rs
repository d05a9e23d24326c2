//! The rows that the current transaction has locked or written. A transaction that has locked one row of a key waits
//! for no other row of that key: that could be a deadlock.

use std::cell::RefCell;

use lru::LruCache;
use pgrx::pg_sys;
use ratelimit_limiter::error::Result;
use ratelimit_limiter::ports::{
    KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
};
use xxhash_rust::xxh64::xxh64;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// The number of remembered keys: the ones used last.
const KEYS: usize = 1000;

struct OwnLocks {
    transaction: pg_sys::LocalTransactionId,
    /// By the hash of the key, with any number of shards. The row locked last is at the end.
    rows: LruCache<u64, Vec<OwnRow>>,
}

struct OwnRow {
    /// The shard number.
    number: i32,
    /// The subtransaction that locked it. Its rollback releases the lock.
    locked_in: pg_sys::SubTransactionId,
}

thread_local! {
    static OWN: RefCell<Option<OwnLocks>> = const { RefCell::new(None) };
}

/// Hashes a key of a limit.
fn hash(name: &[u8], key: &[u8]) -> u64 {
    xxh64(key, xxh64(name, 0))
}

/// Returns the shard numbers of a key's rows that this transaction has locked, the one last locked first.
pub fn own_rows(name: &[u8], key: &[u8]) -> Vec<i32> {
    OWN.with_borrow_mut(|own| {
        let own = own.as_mut().filter(|own| own.transaction == local_transaction());
        let rows = own.and_then(|own| own.rows.get(&hash(name, key)));
        rows.map_or(Vec::new(), |rows| rows.iter().rev().map(|row| row.number).collect())
    })
}

/// Notes that this transaction has locked a row.
fn note(id: RowId) {
    let transaction = local_transaction();
    let locked_in = subtransaction();
    OWN.with_borrow_mut(|own| {
        let new = || OwnLocks { transaction, rows: LruCache::unbounded() };
        let own = own.get_or_insert_with(new);
        if own.transaction != transaction {
            own.transaction = transaction;
            own.rows.clear();
        }
        let rows = own.rows.get_or_insert_mut(hash(id.name, id.key), Vec::new);
        let row = match rows.iter().position(|row| row.number == id.shard) {
            Some(at) => rows.remove(at),
            None => OwnRow { number: id.shard, locked_in },
        };
        rows.push(row);
        if own.rows.len() > KEYS {
            own.rows.pop_lru();
        }
    });
}

/// Forgets the rows locked in a subtransaction that is rolled back, or in one within it, which has a greater number.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    OWN.with(|own| {
        // Never borrowed while Postgres ends a subtransaction.
        if let Ok(mut own) = own.try_borrow_mut()
            && let Some(own) = own.as_mut()
        {
            for (_, rows) in own.rows.iter_mut() {
                rows.retain(|row| row.locked_in < rolled_back);
            }
        }
    });
}

/// A store that notes the rows that the transaction has locked or written.
pub struct Noting<'a, S>(pub &'a S);

impl<S: Rows> Rows for Noting<'_, S> {
    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        Ok(self.0.lock(id, wait)?.inspect(|_| note(id)))
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> Result<bool> {
        Ok(noted(id, self.0.insert(id, version, wait)?))
    }

    fn replace(&self, id: RowId, seen: &Row, version: &Version, wait: bool) -> Result<bool> {
        Ok(noted(id, self.0.replace(id, seen, version, wait)?))
    }

    fn remove(&self, keys: &[KeyRows]) -> Result<u64> {
        let removed = self.0.remove(keys)?;
        // With several keys, also the rows that are only locked now.
        if removed > 0 || self.0.facts().batch > 1 {
            for KeyRows { name, key, rows } in keys {
                rows.iter().for_each(|&(shard, _)| note(RowId { name, key, shard }));
            }
        }
        Ok(removed)
    }

    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
        let deleted = self.0.delete_name(name)?;
        for row in deleted.iter().flatten() {
            note(RowId { name: &row.name, key: &row.key, shard: row.row.0 });
        }
        Ok(deleted)
    }

    fn update(&self, id: RowId, locked: TupleId, version: &Version) -> Result<()> {
        self.0.update(id, locked, version)
    }

    fn delete(&self, id: RowId, locked: TupleId) -> Result<()> {
        self.0.delete(id, locked)
    }

    fn read(&self, id: RowId) -> Result<Option<Row>> {
        self.0.read(id)
    }

    fn read_key(&self, name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>> {
        self.0.read_key(name, key, shards)
    }

    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>> {
        self.0.read_after(after, same_name, rows)
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.0.random_key()
    }

    fn facts(&self) -> RowFacts {
        self.0.facts()
    }
}

/// Notes a row if it was written.
fn noted(id: RowId, is_written: bool) -> bool {
    if is_written {
        note(id);
    }
    is_written
}
