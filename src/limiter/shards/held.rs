//! The shards whose rows the current transaction has locked: it takes from those again, and waits for
//! no other, since that could be a deadlock.

use std::cell::RefCell;

use lru::LruCache;
use pgrx::pg_sys;
use xxhash_rust::xxh64::xxh64;

use crate::limiter::request::Target;
use crate::pg::transaction::{local_transaction, subtransaction};

/// The limits that are remembered, those last used.
const LIMITS: usize = 1000;

struct Held {
    transaction: pg_sys::LocalTransactionId,
    /// By the limit's hash; the row last taken from at the end.
    rows: LruCache<u64, Vec<HeldRow>>,
}

struct HeldRow {
    shard: usize,
    /// The subtransaction that locked it, whose rollback releases the lock.
    locked_in: pg_sys::SubTransactionId,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Hashes a limit, with its number of shards.
fn hash(target: &Target) -> u64 {
    xxh64(target.key, xxh64(target.name, u64::from(target.limit.shards())))
}

/// Returns the shard that this transaction last took from, counted from 0.
pub fn held_shard(target: &Target) -> Option<usize> {
    HELD.with_borrow_mut(|held| {
        let held = held.as_mut().filter(|held| held.transaction == local_transaction())?;
        let shard = held.rows.get(&hash(target))?.last()?.shard;
        (shard < target.limit.shards() as usize).then_some(shard)
    })
}

/// Remembers that this transaction has locked the row of a shard, counted from 0.
pub fn hold_shard(target: &Target, shard: usize) {
    let transaction = local_transaction();
    let locked_in = subtransaction();
    HELD.with_borrow_mut(|held| {
        let held = match held {
            Some(held) if held.transaction == transaction => held,
            _ => held.insert(Held { transaction, rows: LruCache::unbounded() }),
        };
        let rows = held.rows.get_or_insert_mut(hash(target), Vec::new);
        let row = match rows.iter().position(|row| row.shard == shard) {
            Some(at) => rows.remove(at),
            None => HeldRow { shard, locked_in },
        };
        rows.push(row);
        if held.rows.len() > LIMITS {
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
