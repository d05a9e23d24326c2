//! Iterates over all keys, by pages of rows.

use std::ops::ControlFlow;

use crate::error::Result;
use ratelimit_core::State;
use ratelimit_faults::Fault;

use crate::ports::{Host, KeyRows, KeyedRow, Rows, Stored};

/// The most rows of the first page, and of each page after one with a log, which is large.
const PAGE: usize = 128;
/// The rows of a page if a key fills a usual one: more than a key can have.
const LARGE_PAGE: usize = 2048;

/// Visits each key after (name, key), in order, until `visit` breaks; with `same_name`, only keys of that name. Each
/// page is read on the latest state, and has all rows of its keys.
pub fn each_key(
    host: &impl Host,
    rows: &dyn Rows,
    (name, key): (&[u8], &[u8]),
    same_name: bool,
    mut visit: impl FnMut(KeyRows) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let mut after = (name.to_vec(), key.to_vec());
    let mut usual = PAGE.min(rows.facts().page);
    let mut page = usual;
    let mut visit_page = || -> Result<Option<ControlFlow<()>>> {
        host.check_for_interrupts();
        let found = rows.read_after((&after.0, &after.1), same_name, page as i64)?;
        let more = found.len() == page;
        let is_large = |row: &KeyedRow| matches!(row.row.1.stored, Stored::State(State::Log(_)));
        let most = if found.iter().any(is_large) { PAGE } else { 16 * usual };
        usual = most.min(rows.facts().page);
        let mut keys = by_key(found);
        if more {
            if keys.len() > 1 || page < LARGE_PAGE {
                keys.pop(); // some of its rows may be on the next page
            }
            page = if keys.is_empty() { LARGE_PAGE } else { usual };
        }
        for key in keys {
            after = (key.name.clone(), key.key.clone());
            if visit(key)?.is_break() {
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
    for KeyedRow { name, key, row } in rows {
        match keys.last_mut() {
            Some(last) if last.name == name && last.key == key => last.rows.push(row),
            _ => keys.push(KeyRows { name, key, rows: vec![row] }),
        }
    }
    keys
}
