//! Deletes holds that expired long ago, expired blocks and idle rows, which no answer depends on.
//!
//! A batch continues where the session's last one ended. A session's first batch begins at a random key, so that not
//! every batch scans the same busy rows again. Locked rows are skipped; a row is checked again once it is locked here.

use std::ops::ControlFlow;

use ratelimit_core::Micros;

use crate::error::Result;
use crate::holds;
use crate::keys::each_key;
use crate::ports::{Host, KeyRows, RowAccess, Rows, ShardRow};
use crate::stores::{self, Batch};

/// The end of a batch: the name and key that it scanned last.
pub type Position = (Vec<u8>, Vec<u8>);

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
            Some(last) => last,
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
            *deleted += stores::prune_key(host, rows, &key, undefined_idle, batch.as_mut())?;
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
        *position = Some(reached);
        Ok(())
    })
}

/// Deletes the rows of a batch, if there is one, and empties it; returns how many it deleted.
fn remove_batch(rows: &dyn Rows, batch: Option<&mut Batch>) -> Result<i64> {
    let Some(batch) = batch.filter(|batch| batch.rows > 0) else { return Ok(0) };
    Ok(rows.remove(&std::mem::take(batch).keys)? as i64)
}
