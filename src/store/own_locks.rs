//! The rows that the current transaction has locked or written, noted by each way to them. A transaction that has
//! locked one row of a key waits for no other row of that key: that could be a deadlock.

use std::cell::RefCell;
use std::num::NonZeroUsize;

use lru::LruCache;
use pgrx::pg_sys;
use ratelimit_limiter::ports::{KeyRows, RowId};
use xxhash_rust::xxh64::xxh64;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// The number of remembered keys: the ones used last.
const KEYS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

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
pub fn note(id: RowId) {
    let transaction = local_transaction();
    let locked_in = subtransaction();
    OWN.with_borrow_mut(|own| {
        let new = || OwnLocks { transaction, rows: LruCache::sparse(KEYS) };
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

/// Notes a row if it was written.
pub fn noted(id: RowId, is_written: bool) -> bool {
    if is_written {
        note(id);
    }
    is_written
}

/// Notes that this transaction has locked all rows of some keys.
pub fn note_keys(keys: &[KeyRows]) {
    for KeyRows { key, rows } in keys {
        rows.iter().for_each(|&(shard, _)| note(RowId { shard, ..RowId::first(key) }));
    }
}
