//! All keys, one after the other, a page of rows at a time.

use std::ops::ControlFlow;

use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::memory_context::Scratch;
use crate::store::{KeyedRow, ShardRow, Store};

/// How many rows are read at once: not too many, since one with a log is large, unless a key has as
/// many, and then more than one key can have.
const PAGE: usize = 128;
const LARGE_PAGE: usize = 2048;

/// A key and its rows.
pub struct Key {
    pub name: Vec<u8>,
    pub key: Vec<u8>,
    pub rows: Vec<ShardRow>,
}

/// Hands over each key after this one, in order, until told to stop; those of one name where
/// `within` it. Each page is read under the latest state, and has all rows of its keys.
pub fn each_key(
    store: &dyn Store,
    (name, key): (&[u8], &[u8]),
    within: bool,
    mut visit: impl FnMut(Key) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let mut after = (name.to_vec(), key.to_vec());
    let mut scratch = Scratch::new();
    let mut page = PAGE;
    loop {
        check_for_interrupts();
        let outcome = scratch.run(|| -> Result<Option<ControlFlow<()>>> {
            let rows = store.read_after((&after.0, &after.1), within, page as i64)?;
            let more = rows.len() == page;
            let mut keys = by_key(rows);
            if more {
                if keys.len() > 1 || page < LARGE_PAGE {
                    keys.pop(); // some of its rows may be on the next page
                }
                page = if keys.is_empty() { LARGE_PAGE } else { PAGE };
            }
            for key in keys {
                after = (key.name.clone(), key.key.clone());
                if visit(key)?.is_break() {
                    return Ok(Some(ControlFlow::Break(())));
                }
            }
            Ok((!more).then_some(ControlFlow::Continue(())))
        })?;
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
    }
}

fn by_key(rows: Vec<KeyedRow>) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for KeyedRow { name, key, row } in rows {
        match keys.last_mut() {
            Some(last) if last.name == name && last.key == key => last.rows.push(row),
            _ => keys.push(Key { name, key, rows: vec![row] }),
        }
    }
    keys
}
