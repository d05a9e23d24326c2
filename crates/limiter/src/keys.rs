//! Iterates over all keys, by pages of rows.

use std::ops::ControlFlow;

use crate::error::Result;
use ratelimit_core::State;
use ratelimit_faults::Fault;

use crate::ports::{Host, KeyRows, KeyedRow, Listing, Rows, Stored};

/// The most rows of the first page, and of each page after one with a log, which is large.
const PAGE: usize = 128;
/// The rows of a page if a key fills a usual one: more than a key can have.
const LARGE_PAGE: usize = 2048;

impl Listing<'_> {
    /// Whether it has a key of its name.
    pub(crate) fn has(&self, name: &[u8], key: &[u8]) -> bool {
        self.key.is_none_or(|own| own == key) && self.after.is_none_or(|after| (name, key) > after)
    }
}

/// Visits each key of a listing that has rows, in order, until `visit` breaks. Each page is read on the latest state,
/// and has all rows of its keys.
pub(crate) fn each_key(
    host: &impl Host,
    rows: &dyn Rows,
    listing: Listing,
    mut visit: impl FnMut(KeyRows) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let mut start = listing.after.unwrap_or_default();
    if let Some(name) = listing.name {
        // The empty key is the first of a name, and comes after no other.
        let key = listing.key.unwrap_or_default();
        if listing.has(name, key) {
            let found = rows.read_key(name, key, None)?;
            let first = KeyRows { key: (name.to_vec(), key.to_vec()), rows: found };
            if !first.rows.is_empty() && visit(first)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if listing.key.is_some() || start.0 > name {
            return Ok(ControlFlow::Continue(()));
        }
        start = start.max((name, b""));
    }
    let mut after = (start.0.to_vec(), start.1.to_vec());
    let mut usual = PAGE.min(rows.facts().page);
    let mut page = usual;
    let mut visit_page = || -> Result<Option<ControlFlow<()>>> {
        host.check_for_interrupts();
        let found = rows.read_after((&after.0, &after.1), listing.name.is_some(), page as i64)?;
        let more = found.len() == page;
        let is_large = |row: &KeyedRow| matches!(row.1.1.stored, Stored::State(State::Log(_)));
        let most = if found.iter().any(is_large) { PAGE } else { 16 * usual };
        usual = most.min(rows.facts().page);
        let mut keys = by_key(found);
        if more {
            if keys.len() > 1 || page < LARGE_PAGE {
                keys.pop(); // some of its rows may be on the next page
            }
            page = if keys.is_empty() { LARGE_PAGE } else { usual };
        }
        for found in keys {
            after = found.key.clone();
            if listing.has(&after.0, &after.1) && visit(found)?.is_break() {
                return Ok(Some(ControlFlow::Break(())));
            }
        }
        let ends = !more || Fault::SecondPageOverlooked.is_on();
        Ok(ends.then_some(ControlFlow::Continue(())))
    };
    host.each_page(|| visit_page().transpose())
}

/// Groups ordered rows by key.
fn by_key(rows: Vec<KeyedRow>) -> Vec<KeyRows> {
    let mut keys: Vec<KeyRows> = Vec::new();
    for (key, row) in rows {
        match keys.last_mut() {
            Some(last) if last.key == key => last.rows.push(row),
            _ => keys.push(KeyRows { key, rows: vec![row] }),
        }
    }
    keys
}
