//! The rows that the current transaction holds: it has locked or written them. A transaction that holds a
//! row of a key waits for no other row of that key, since that could be a deadlock.

use std::cell::RefCell;

use lru::LruCache;
use pgrx::pg_sys;
use ratelimit_core::Micros;
use ratelimit_limiter::error::Result;
use ratelimit_limiter::ports::{KeyRows, KeyedRow, Row, RowId, Rows, ShardRow, Stored, TupleId};
use xxhash_rust::xxh64::xxh64;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// The keys that are remembered, those last used.
const KEYS: usize = 1000;

struct Held {
    transaction: pg_sys::LocalTransactionId,
    /// By the key's hash, whatever the number of shards; the row last locked at the end.
    rows: LruCache<u64, Vec<HeldRow>>,
}

struct HeldRow {
    /// The shard number.
    number: i32,
    /// The subtransaction that locked it, whose rollback releases the lock.
    locked_in: pg_sys::SubTransactionId,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Hashes a key of a limit.
fn hash(name: &[u8], key: &[u8]) -> u64 {
    xxh64(key, xxh64(name, 0))
}

/// Returns the shard numbers of a key's rows that this transaction holds, the one last locked first.
pub fn held_rows(name: &[u8], key: &[u8]) -> Vec<i32> {
    HELD.with_borrow_mut(|held| {
        let held = held.as_mut().filter(|held| held.transaction == local_transaction());
        let rows = held.and_then(|held| held.rows.get(&hash(name, key)));
        rows.map_or(Vec::new(), |rows| rows.iter().rev().map(|row| row.number).collect())
    })
}

/// Remembers that this transaction holds a row.
fn hold(id: RowId) {
    let transaction = local_transaction();
    let locked_in = subtransaction();
    HELD.with_borrow_mut(|held| {
        let new = || Held { transaction, rows: LruCache::unbounded() };
        let held = held.get_or_insert_with(new);
        if held.transaction != transaction {
            held.transaction = transaction;
            held.rows.clear();
        }
        let rows = held.rows.get_or_insert_mut(hash(id.name, id.key), Vec::new);
        let row = match rows.iter().position(|row| row.number == id.shard) {
            Some(at) => rows.remove(at),
            None => HeldRow { number: id.shard, locked_in },
        };
        rows.push(row);
        if held.rows.len() > KEYS {
            held.rows.pop_lru();
        }
    });
}

/// Forgets the rows locked in a subtransaction that is rolled back, or in one within it, whose number
/// is greater.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    HELD.with(|held| {
        // Never borrowed while Postgres ends a subtransaction.
        if let Ok(mut held) = held.try_borrow_mut()
            && let Some(held) = held.as_mut()
        {
            for (_, rows) in held.rows.iter_mut() {
                rows.retain(|row| row.locked_in < rolled_back);
            }
        }
    });
}

/// A store, and the memory of the rows that are held through it.
pub struct Remembering<'a, S> {
    pub store: &'a S,
    /// The OID of the table.
    pub table: u32,
}

impl<S: Rows> Rows for Remembering<'_, S> {
    fn lock(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.store.lock(id)?.inspect(|_| hold(id)))
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.store.try_lock(id)?.inspect(|_| hold(id)))
    }

    fn insert(&self, id: RowId, stored: &Stored) -> Result<bool> {
        let inserted = self.store.insert(id, stored)?;
        if inserted {
            hold(id);
        }
        Ok(inserted)
    }

    fn try_insert(&self, id: RowId, stored: &Stored) -> Result<bool> {
        let inserted = self.store.try_insert(id, stored)?;
        if inserted {
            hold(id);
        }
        Ok(inserted)
    }

    fn replaces(&self) -> bool {
        self.store.replaces()
    }

    fn replace(&self, id: RowId, seen: &Row, stored: &Stored, wait: bool) -> Result<bool> {
        let replaced = self.store.replace(id, seen, stored, wait)?;
        if replaced {
            hold(id);
        }
        Ok(replaced)
    }

    fn remove(&self, id: RowId, seen: &Row) -> Result<bool> {
        let removed = self.store.remove(id, seen)?;
        if removed {
            hold(id);
        }
        Ok(removed)
    }

    fn remove_all(&self, keys: &[KeyRows]) -> Result<Option<u64>> {
        let deleted = self.store.remove_all(keys)?;
        if deleted.is_some() {
            // Also those that are only locked now.
            for KeyRows { name, key, rows } in keys {
                rows.iter().for_each(|&(shard, _)| hold(RowId { name, key, shard }));
            }
        }
        Ok(deleted)
    }

    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
        let deleted = self.store.delete_name(name)?;
        for row in deleted.iter().flatten() {
            hold(RowId { name: &row.name, key: &row.key, shard: row.row.0 });
        }
        Ok(deleted)
    }

    fn page(&self) -> usize {
        self.store.page()
    }

    fn patience(&self) -> Micros {
        self.store.patience()
    }

    fn update(&self, id: RowId, locked: TupleId, stored: &Stored) -> Result<()> {
        self.store.update(id, locked, stored)
    }

    fn delete(&self, id: RowId, locked: TupleId) -> Result<()> {
        self.store.delete(id, locked)
    }

    fn read(&self, id: RowId) -> Result<Option<Row>> {
        self.store.read(id)
    }

    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>> {
        self.store.read_shards(name, key, shards)
    }

    fn read_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        self.store.read_key(name, key)
    }

    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>> {
        self.store.read_after(after, same_name, rows)
    }

    fn held(&self, name: &[u8], key: &[u8]) -> Vec<i32> {
        held_rows(name, key)
    }

    fn table(&self) -> u32 {
        self.table
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.store.random_key()
    }
}
