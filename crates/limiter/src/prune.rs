//! Deletes holds that expired long ago, expired blocks and idle rows, which no answer depends on.
//!
//! A batch continues where the session's last one ended. A session's first batch begins at a random key, so that not
//! every batch scans the same busy rows again. Locked rows are skipped; a row is checked again once it is locked here.

use std::ops::ControlFlow;

use ratelimit_core::Micros;
use ratelimit_core::hold::SETTLED_LATE;

use crate::error::Result;
use crate::keys::each_key;
use crate::ports::{Host, Key, KeyRows, Listing, RowAccess, RowId, ShardRow};
use crate::stores::{self, expiry};

/// The number of keys to list at a time.
const PAGE: i64 = 100;

/// Gives back the tokens of expired holds, which counts as one a key, and deletes holds that expired a day ago, then
/// expired blocks, then idle rows, all rows of a key together. Stops at `max_rows`, or at most a key's rows beyond.
/// Adds the number to `deleted`, also if it ends with an error, so that the caller can go on. 0 means that no unlocked
/// row is idle, and nothing has expired. Rows of undefined names, and of exempt keys, which may be limited again, are
/// deleted if their last call is longer than `undefined_idle` ago. `position`: the key that the session's last batch in
/// this table ended with.
pub fn prune<H: Host>(
    host: &H,
    max_rows: i64,
    undefined_idle: Option<Micros>,
    position: &mut Option<Key>,
    deleted: &mut i64,
) -> Result<()> {
    *deleted += prune_holds(host, max_rows - *deleted)?;
    if *deleted < max_rows {
        *deleted += host.prune_blocks(max_rows - *deleted)?;
    }
    if *deleted >= max_rows {
        return Ok(());
    }
    host.with_rows(RowAccess::Write, |rows| {
        let start = match position.take() {
            Some(last) => last,
            None => rows.random_key()?.unwrap_or_default(),
        };
        let mut reached = start.clone();
        let most = rows.facts().batch;
        let mut waiting = Vec::new();
        let mut visit = |mut found: KeyRows| {
            // `holds_due` is a lower bound: the hold may have been settled since, or be about to expire.
            let is_past = |(_, row): &ShardRow| row.is_due(host.now());
            if found.rows.first().is_some_and(is_past) {
                let id = RowId::first(&found.key);
                expiry::give_back_if_valid(host, rows, id)?;
                found.rows = rows.read_key(id.name, id.key, None)?;
            }
            *deleted += stores::prune_key(host, rows, &found, undefined_idle, &mut waiting)?;
            reached = found.key;
            let row_count: usize = waiting.iter().map(|found| found.rows.len()).sum();
            if row_count as i64 >= most.min(max_rows - *deleted) {
                *deleted += rows.remove(&std::mem::take(&mut waiting))? as i64;
            }
            let more = *deleted < max_rows;
            Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        let rest = Listing { after: Some((&start.0, &start.1)), ..Listing::default() };
        if each_key(host, rows, rest, &mut visit)?.is_continue() {
            // Wraps around, up to the start.
            let _ = each_key(host, rows, Listing::default(), |found| match found.key > start {
                true => Ok(ControlFlow::Break(())),
                false => visit(found),
            })?;
        }
        if !waiting.is_empty() {
            *deleted += rows.remove(&waiting)? as i64;
        }
        *position = Some(reached);
        Ok(())
    })
}

/// Gives back expired holds, then deletes holds that expired more than a day ago, at most `most` keys and holds;
/// returns how many. Skips keys that others have locked, and keys with rows that have a value that no call writes.
fn prune_holds<H: Host>(host: &H, most: i64) -> Result<i64> {
    if !host.has_holds() {
        return Ok(0);
    }
    let mut after = Key::default();
    let mut given = 0;
    while given < most {
        host.check_for_interrupts();
        let (name, key) = &after;
        let page = PAGE.min(most - given);
        let due = host.with_key_holds(|holds| holds.due_keys((name, key), host.now(), page))?;
        let Some(last) = due.last().cloned() else { break };
        given += host.with_rows(RowAccess::Write, |rows| {
            let give_back = |own| expiry::give_back_if_valid(host, rows, RowId::first(own));
            due.iter().try_fold(0, |sum, own| Ok(sum + i64::from(give_back(own)?)))
        })?;
        after = last;
    }
    if given >= most {
        return Ok(given);
    }
    let long_ago = host.now().minus(SETTLED_LATE);
    Ok(given + host.with_key_holds(|holds| holds.prune(long_ago, most - given))?)
}
