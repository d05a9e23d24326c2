//! A limit in one row: read, decided and written in one step where the rows can, which waits for another transaction
//! and after it begins anew, without a lock; otherwise after locking the row and deciding again. What changes nothing
//! is answered from a plain read of the latest committed state. That is right because transactions in progress either
//! take more or roll back to this state.

use std::borrow::Cow;

use ratelimit_core::{Limit, Micros, State};

use super::{Changed, Contents, Decide, shards};
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Row, RowId, Rows, Stored, TRIES};
use crate::target::Target;

impl Target<'_> {
    /// Interprets a row at `now`, which is read after it. `limit` is that of the row: the whole one, or
    /// that of a shard.
    ///
    /// # Errors
    /// [`LimiterError::BadState`] (55000): a value that no call writes.
    pub(super) fn state<'s>(
        &self,
        limit: &Limit,
        stored: Option<&'s Stored>,
        now: Micros,
    ) -> Result<Cow<'s, State>> {
        match stored {
            Some(Stored::State(state)) if limit.accepts(state.shape()) => Ok(Cow::Borrowed(state)),
            Some(&Stored::Invalid { shape, column, value, .. }) if limit.accepts(shape) => {
                let name = self.name_text();
                Err(LimiterError::BadState { name, column, value })
            }
            // A row that was reset, or of a kind with nothing to carry over, counts as none.
            _ => Ok(Cow::Owned(limit.initial_state(now, self.phase()))),
        }
    }
}

/// What a row is decided to be; `None`: as it is.
pub(super) type Decided<T> = (T, Option<Stored>);

/// Decides what a row is to be, at an instant after it was read.
pub(super) type DecideRow<'d, T> = dyn Fn(Option<&Stored>, Micros) -> Result<Decided<T>> + 'd;

/// Changes a limit of one row.
///
/// # Errors
/// As [`change`](super::change).
pub(super) fn change<H: Host, T>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    (amount, wait): (f64, bool),
    decide: &impl Decide<T>,
) -> Result<Changed<T>> {
    let decide_row = |stored: Option<&Stored>, now: Micros| -> Result<Decided<T>> {
        let state = target.state(target.limit(), stored, now)?;
        let (result, after) = decide(Contents::One(&state), now)?;
        Ok((result, after.map(Stored::State)))
    };
    for _ in 0..TRIES {
        if let Some(result) = change_row(host, rows, target.row(0), wait, &decide_row)? {
            return Ok((result, None));
        }
        // The rows are still those of a limit with shards.
        if let Some(changed) = shards::change_to_one(host, rows, target, amount, decide)? {
            return Ok(changed);
        }
    }
    Err(rows.not_written())
}

/// Reads a row, decides, and writes what it is to be; `None` where it marks that there are others. `wait` as in
/// [`change`](super::change).
///
/// # Errors
/// Those of `decide` and of the rows.
pub(super) fn change_row<H: Host, T>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
    wait: bool,
    decide: &DecideRow<T>,
) -> Result<Option<T>> {
    let mut tries = TRIES;
    while tries > 0 {
        host.check_for_interrupts();
        tries -= 1;
        let seen = rows.read(id)?;
        let stored = seen.as_ref().map(|seen| &seen.stored);
        if stored.is_some_and(Stored::is_marker) {
            return Ok(None);
        }
        let now = host.now();
        let (result, after) = decide(stored, now)?;
        let Some(after) = after else { return Ok(Some(result)) };
        let written = match &seen {
            None => rows.insert(id, &after)?,
            Some(seen) => rows.replace(id, seen, &after, wait)?,
        };
        if written {
            if !wait || host.now().minus(now) < rows.patience() {
                return Ok(Some(result));
            }
            match change_after_wait(host, rows, id, stored, decide)? {
                Some(result) => return Ok(Some(result)),
                None => continue,
            }
        }
        if seen.is_none() {
            continue;
        }
        if wait && rows.replaces() {
            // Another call came first, after a wait or without one; it is no try that came to nothing.
            tries = TRIES;
            continue;
        }
        if let Some(result) = change_locked(host, rows, id, decide)? {
            return Ok(Some(result));
        }
    }
    Err(rows.not_written())
}

/// Decides again, at the time of the lock, where a write waited for a transaction that changed nothing in the end: the
/// row was as `seen` all the time. `None` if it is gone.
///
/// # Errors
/// As [`change_row`].
fn change_after_wait<T>(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    seen: Option<&Stored>,
    decide: &DecideRow<T>,
) -> Result<Option<T>> {
    let Some(own) = rows.lock(id)? else { return Ok(None) };
    let (result, after) = decide(seen, host.now())?;
    if let Some(after) = after.as_ref().or(seen) {
        rows.update(id, own.tuple, after)?;
    }
    Ok(Some(result))
}

/// Decides once the row is locked; what changes nothing releases it. `None` if the row must be read again.
///
/// # Errors
/// As [`change_row`].
fn change_locked<T>(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    decide: &DecideRow<T>,
) -> Result<Option<T>> {
    let mut unchanged = None;
    let changed = with_locked(host, rows, id, |Row { stored, tuple }| {
        if stored.is_marker() {
            return Ok(None);
        }
        let (result, after) = decide(Some(&stored), host.now())?;
        let Some(after) = after else {
            unchanged = Some(result);
            return Ok(None);
        };
        rows.update(id, tuple, &after)?;
        Ok(Some(result))
    })?;
    Ok(changed.or(unchanged))
}

/// Runs `work` on a row after locking it, in a subtransaction, so that `None` releases the row: where rows are locked
/// before each write, only after a wait, since many subtransactions are slow. `None` also if it is gone.
///
/// # Errors
/// Those of the rows and of the work.
fn with_locked<T>(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    work: impl FnOnce(Row) -> Result<Option<T>>,
) -> Result<Option<T>> {
    if !rows.replaces()
        && let Some(row) = rows.try_lock(id)?
    {
        return work(row);
    }
    host.attempt(|| match rows.lock(id)? {
        Some(row) => work(row),
        None => Ok(None),
    })
}
