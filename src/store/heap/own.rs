//! Remembers the tuple ids of the newest versions that the current transaction has written. A scan from an index entry
//! visits all versions of the transaction, so n calls on one key would cost n * n.
//!
//! A tuple id stays valid: the table's lock lasts as long as the version, and a rewrite by the transaction itself is
//! announced as a change of the table.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::schema::invalidation;
use ratelimit_pg::transaction::{subtransaction, unguarded};

/// The number of versions.
const CAPACITY: usize = 64;

struct OwnVersions {
    transaction: pg_sys::TransactionId,
    changes: u64,
    /// By the row's hash.
    rows: [Option<OwnVersion>; CAPACITY],
}

#[derive(Clone, Copy)]
struct OwnVersion {
    hash: u64,
    tid: pg_sys::ItemPointerData,
    /// The subtransaction that wrote it. Its rollback makes the version dead, and its page may be truncated.
    written_in: pg_sys::SubTransactionId,
}

thread_local! {
    static OWN: RefCell<OwnVersions> = const { RefCell::new(OwnVersions::new()) };
}

/// Forgets the versions of a subtransaction that is rolled back, and of those within it, which have greater numbers.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    OWN.with(|own| {
        // Never borrowed while Postgres ends a subtransaction.
        let Ok(mut own) = own.try_borrow_mut() else { return };
        for row in &mut own.rows {
            *row = row.filter(|row| row.written_in < rolled_back);
        }
    });
}

impl OwnVersions {
    const fn new() -> OwnVersions {
        OwnVersions {
            transaction: pg_sys::InvalidTransactionId,
            changes: 0,
            rows: [None; CAPACITY],
        }
    }

    /// Clears the versions of another transaction and those older than a change of the table.
    fn current(&mut self) -> &mut OwnVersions {
        // SAFETY: reads the state of the transaction.
        let transaction = unsafe { unguarded::GetTopTransactionIdIfAny() };
        let changes = invalidation::changes();
        if self.transaction != transaction || self.changes != changes {
            *self = OwnVersions { transaction, changes, ..OwnVersions::new() };
        }
        self
    }
}

/// Returns the tuple id of the newest version of the row with this hash, if this transaction wrote one and the table
/// has not changed since.
pub fn lookup(hash: u64) -> Option<pg_sys::ItemPointerData> {
    let known = OWN.with_borrow_mut(|own| own.current().rows[hash as usize % CAPACITY]);
    known.filter(|known| known.hash == hash).map(|known| known.tid)
}

/// Remembers a version that this transaction has just written.
pub fn remember(hash: u64, tid: pg_sys::ItemPointerData) {
    let row = OwnVersion { hash, tid, written_in: subtransaction() };
    OWN.with_borrow_mut(|own| own.current().rows[hash as usize % CAPACITY] = Some(row));
}
