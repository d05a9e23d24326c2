//! Where the rows are that were found last, over many transactions: a call for one of them needs no
//! look at the index. What is remembered is where the entry of the index leads, which stays so while
//! the row's new versions go to the same page; it is a guess all the same, and whoever goes by it
//! compares the row.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::pg::invalidation;

/// How many of them are remembered: 64 kB.
const ROWS: usize = 4096;

#[derive(Default)]
struct Roots {
    changes: u64,
    /// By their hash; empty until the first is remembered.
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

/// Where the row with this hash was, unless the table has changed since. The place may be past its
/// end: VACUUM cuts off empty pages.
pub fn place(hash: u64) -> Option<pg_sys::ItemPointerData> {
    ROOTS.with_borrow(|roots| {
        let root = roots.rows.get(hash as usize % ROWS)?;
        (root.hash == hash && roots.changes == invalidation::changes()).then_some(root.tid)
    })
}

/// Remembers where an entry of the index leads.
pub fn remember(hash: u64, tid: pg_sys::ItemPointerData) {
    ROOTS.with_borrow_mut(|roots| {
        let changes = invalidation::changes();
        if roots.changes != changes || roots.rows.is_empty() {
            roots.changes = changes;
            roots.rows.clear();
            roots.rows.resize(ROWS, Root::default());
        }
        roots.rows[hash as usize % ROWS] = Root { hash, tid };
    });
}
