//! Which rows of limits with shards the current transaction holds: it takes from those again, and
//! waits for no other, since that could be a deadlock.

use std::cell::RefCell;

use pgrx::pg_sys;
use xxhash_rust::xxh64::xxh64;

use crate::limiter::request::Target;
use crate::pg::transaction::{local_transaction, subtransaction};

use lru::LruCache;

/// Of how many limits it is remembered: those that it took from last.
const REMEMBERED: usize = 1000;

struct Held {
    transaction: pg_sys::LocalTransactionId,
    /// By a limit's hash: its rows, the last one at the end.
    rows: LruCache<u64, Vec<HeldRow>>,
}

struct HeldRow {
    n: usize,
    /// Where it was locked: the lock is gone when that is rolled back.
    locked_in: pg_sys::SubTransactionId,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

fn hash(target: &Target) -> u64 {
    xxh64(target.key, xxh64(target.name, u64::from(target.limit.shards())))
}

/// The row of a limit that this transaction took from last, counted from 0.
pub fn held(target: &Target) -> Option<usize> {
    HELD.with_borrow_mut(|held| {
        let held = held.as_mut().filter(|held| held.transaction == local_transaction())?;
        let n = held.rows.get(&hash(target))?.last()?.n;
        (n < target.limit.shards() as usize).then_some(n)
    })
}

/// Remembers that this transaction holds the `n`th row of a limit.
pub fn hold(target: &Target, n: usize) {
    let transaction = local_transaction();
    let locked_in = subtransaction();
    HELD.with_borrow_mut(|held| {
        let held = match held {
            Some(held) if held.transaction == transaction => held,
            _ => held.insert(Held { transaction, rows: LruCache::unbounded() }),
        };
        let rows = held.rows.get_or_insert_mut(hash(target), Vec::new);
        let row = match rows.iter().position(|row| row.n == n) {
            Some(at) => rows.remove(at),
            None => HeldRow { n, locked_in },
        };
        rows.push(row);
        if held.rows.len() > REMEMBERED {
            held.rows.pop_lru();
        }
    });
}

/// Forgets what was locked in a subtransaction that is rolled back, or in one within it: their
/// numbers ascend.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    HELD.with(|held| {
        // Borrowed for a moment only, never while Postgres ends anything.
        if let Ok(mut held) = held.try_borrow_mut()
            && let Some(held) = held.as_mut()
        {
            for (_, rows) in held.rows.iter_mut() {
                rows.retain(|row| row.locked_in < rolled_back);
            }
        }
    });
}
