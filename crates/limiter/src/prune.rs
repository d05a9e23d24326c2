//! Deletes holds that expired long ago, expired blocks and idle rows, which no answer depends on.
//!
//! A batch continues where the session's last one ended. A session's first batch begins at a random key, so that not
//! every batch scans the same busy rows again. Locked rows are skipped; a row is checked again once it is locked here.

use std::ops::ControlFlow;

use ratelimit_core::Micros;

use crate::error::{LimiterError, Result};
use crate::holds;
use crate::keys::each_key;
use crate::ports::{Host, KeyRows, RowAccess, Rows, ShardRow};
use crate::stores::{self, Batch};
use crate::target::Store;

/// The end of a batch: the last key that it scanned.
#[derive(Clone)]
pub struct Position {
    name: Vec<u8>,
    key: Vec<u8>,
}

/// Gives back the tokens of expired holds, which counts as one a key, and deletes holds that expired a day ago, then
/// expired blocks, then idle rows, all rows of a key together. Stops at `max_rows`, or at most a key's rows beyond.
/// Adds the number to `deleted`, also if it ends with an error, so that the caller can go on. 0 means that no unlocked
/// row is idle, and nothing has expired. Rows of undefined names, and of exempt keys, which may be limited again, are
/// deleted if their last call is longer than `undefined_idle` ago. `position`: the end of the session's last batch in
/// this table.
pub fn prune<H: Host>(
    host: &H,
    max_rows: i64,
    undefined_idle: Option<Micros>,
    position: &mut Option<Position>,
    deleted: &mut i64,
) -> Result<()> {
    *deleted += holds::prune::prune(host, max_rows - *deleted)?;
    if *deleted >= max_rows {
        return Ok(());
    }
    *deleted += host.prune_blocks(max_rows - *deleted)?;
    if *deleted >= max_rows {
        return Ok(());
    }
    host.with_rows(RowAccess::Write, |rows| {
        let start = match position.take() {
            Some(last) => (last.name, last.key),
            None => rows.random_key()?.unwrap_or_default(),
        };
        let mut reached = start.clone();
        let most = rows.facts().batch;
        let mut batch = (most > 1).then(Batch::default);
        let mut visit = |mut key: KeyRows| {
            // `holds_due` is a lower bound: the hold may have been settled since, or be about to expire.
            let is_past = |(_, row): &ShardRow| row.is_due(host.now());
            if key.rows.first().is_some_and(is_past) {
                holds::prune::give_back_if_valid(host, rows, &key.name, &key.key)?;
                key.rows = rows.read_key(&key.name, &key.key, None)?;
            }
            *deleted += prune_key(host, rows, &key, undefined_idle, batch.as_mut())?;
            reached = (key.name, key.key);
            let waiting = batch.as_ref().map_or(0, |batch| batch.rows);
            if waiting >= most.min(max_rows - *deleted) {
                *deleted += remove_batch(rows, batch.as_mut())?;
            }
            let more = *deleted < max_rows;
            Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        if each_key(host, rows, (&start.0, &start.1), false, &mut visit)?.is_continue() {
            // Wraps around, up to the start.
            let _ = each_key(host, rows, (b"", b""), false, |key| {
                let past = (&key.name, &key.key) > (&start.0, &start.1);
                if past { Ok(ControlFlow::Break(())) } else { visit(key) }
            })?;
        }
        *deleted += remove_batch(rows, batch.as_mut())?;
        let (name, key) = reached;
        *position = Some(Position { name, key });
        Ok(())
    })
}

/// Deletes the rows of a batch, if there is one, and empties it; returns how many it deleted.
fn remove_batch(rows: &dyn Rows, batch: Option<&mut Batch>) -> Result<i64> {
    let Some(batch) = batch.filter(|batch| batch.rows > 0) else { return Ok(0) };
    Ok(rows.remove(&std::mem::take(batch).keys)? as i64)
}

/// Deletes the rows of a key if they are idle; returns their number. `batch` as in [`stores::prune_key`].
fn prune_key<H: Host>(
    host: &H,
    rows: &dyn Rows,
    found: &KeyRows,
    undefined_idle: Option<Micros>,
    batch: Option<&mut Batch>,
) -> Result<i64> {
    let definition = match host.look_up(&found.name, &found.key) {
        Err(LimiterError::StoredConfig { .. }) => return Ok(0), // unknown whether they are idle
        known => known?.definition,
    };
    if let Some(definition) = definition.as_ref().filter(|definition| definition.save.is_some())
        && host.in_force(&found.name, definition.clone()).save.is_none()
    {
        return Ok(0); // not this clock's
    }
    let definition =
        definition.filter(|definition| Store::from_definition(definition) != Store::Nowhere);
    stores::prune_key(host, rows, found, definition.as_ref(), undefined_idle, batch)
}
