//! Where the newest versions are that the current transaction has written: from where an entry of the
//! index leads, one walks through all versions of the transaction, which made n calls on one key cost
//! n * n.
//!
//! Such a place stays good: the lock on the table lasts as long as what was written under it, and
//! what the transaction itself does to give the table other pages is announced as a change of it.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::pg::invalidation;
use crate::pg::transaction::{subtransaction, unguarded};

/// How many of them are remembered.
const ROWS: usize = 64;

struct Own {
    transaction: pg_sys::TransactionId,
    changes: u64,
    /// By their hash.
    rows: [Option<OwnRow>; ROWS],
}

#[derive(Clone, Copy)]
struct OwnRow {
    hash: u64,
    tid: pg_sys::ItemPointerData,
    /// Rolled back with this, the version is dead, and its page may be cut off the table.
    written_in: pg_sys::SubTransactionId,
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own::new()) };
}

/// Forgets what was written in a subtransaction that is rolled back, or in one within it: their
/// numbers ascend.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    OWN.with(|own| {
        // Borrowed for a moment only, never while Postgres ends anything.
        let Ok(mut own) = own.try_borrow_mut() else { return };
        for row in &mut own.rows {
            *row = row.filter(|row| row.written_in < rolled_back);
        }
    });
}

impl Own {
    const fn new() -> Own {
        Own { transaction: pg_sys::InvalidTransactionId, changes: 0, rows: [None; ROWS] }
    }

    /// Forgets what another transaction wrote, or what was before the table changed.
    fn now(&mut self) -> &mut Own {
        // SAFETY: reads the state of the transaction.
        let transaction = unsafe { unguarded::GetTopTransactionIdIfAny() };
        let changes = invalidation::changes();
        if self.transaction != transaction || self.changes != changes {
            *self = Own { transaction, changes, ..Own::new() };
        }
        self
    }
}

/// Where the newest version of the row with this hash is, if this transaction wrote one and the table
/// has not changed since.
pub fn place(hash: u64) -> Option<pg_sys::ItemPointerData> {
    let known = OWN.with_borrow_mut(|own| own.now().rows[hash as usize % ROWS]);
    known.filter(|known| known.hash == hash).map(|known| known.tid)
}

/// Remembers the version that this transaction has just written.
pub fn remember(hash: u64, tid: pg_sys::ItemPointerData) {
    let row = OwnRow { hash, tid, written_in: subtransaction() };
    OWN.with_borrow_mut(|own| own.now().rows[hash as usize % ROWS] = Some(row));
}
