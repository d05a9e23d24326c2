//! Remembers the tuple ids in the index entries of recently used rows, across transactions, to save the scan of the
//! index. An entry stays the same while the row's updates are HOT. Only a hint: the row found by it is compared.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::schema::invalidation;

/// The number of entries: 64 kB.
const CAPACITY: usize = 4096;

#[derive(Default)]
struct Roots {
    changes: u64,
    /// By the row's hash; allocated with the first entry.
    rows: Vec<Root>,
}

#[derive(Clone, Copy, Default)]
struct Root {
    hash: u64,
    tid: pg_sys::ItemPointerData,
}

thread_local! {
    static ROOTS: RefCell<Roots> = const { RefCell::new(Roots { changes: 0, rows: Vec::new() }) };
}

/// Returns the tuple id in the index entry of the row with this hash, unless the table has changed since. It may be
/// past the table's end: VACUUM truncates empty pages.
pub fn lookup(hash: u64) -> Option<pg_sys::ItemPointerData> {
    ROOTS.with_borrow(|roots| {
        let root = roots.rows.get(hash as usize % CAPACITY)?;
        (root.hash == hash && roots.changes == invalidation::changes()).then_some(root.tid)
    })
}

/// Remembers the tuple id in a row's index entry.
pub fn remember(hash: u64, tid: pg_sys::ItemPointerData) {
    ROOTS.with_borrow_mut(|roots| {
        let changes = invalidation::changes();
        if roots.changes != changes || roots.rows.is_empty() {
            roots.changes = changes;
            roots.rows.clear();
            roots.rows.resize(CAPACITY, Root::default());
        }
        roots.rows[hash as usize % CAPACITY] = Root { hash, tid };
    });
}
