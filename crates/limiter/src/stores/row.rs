//! A limit in one row: read, decided and written in one step where the rows can, which waits for another transaction
//! and after it begins again, without a lock; otherwise after locking the row and deciding again. What changes nothing
//! is answered from a plain read of the latest committed state. That is right because transactions in progress either
//! take more or roll back to this state.

use ratelimit_faults::Fault;

use super::shards;
use crate::change::{Change, Contents, Decided, Wait};
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Row, RowId, Rows, Stored, TRIES};
use crate::request::Answer;
use crate::target::Target;

/// Applies a change to a limit of one row: reads it, decides, and writes it.
pub(crate) fn apply<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
) -> Result<Answer> {
    let (id, waits) = (target.row(0), change.wait() == Wait::Write);
    let mut tries = TRIES;
    while tries > 0 {
        host.check_for_interrupts();
        tries -= 1;
        let seen = rows.read(id)?;
        let stored = seen.as_ref().map(|seen| &seen.stored);
        if stored.is_some_and(Stored::is_marker) && !Fault::MarkerOverlooked.is_on() {
            // The rows are still those of a limit with shards.
            match shards::apply_to_one(host, rows, target, change)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        let now = host.now();
        let Decided { answer, after } = change.decide(target, Contents::Row(stored), now)?;
        let Some(after) = after.map(Stored::State) else { return Ok(answer) };
        let written = match &seen {
            None => rows.insert(id, &after, None, true)?,
            Some(seen) => rows.replace(id, seen, &after, seen.expires, waits)?,
        };
        if written {
            if !waits || host.now().minus(now) < rows.facts().patience {
                return Ok(answer);
            }
            match change_after_wait(host, rows, target, change, stored)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        if seen.is_none() {
            continue;
        }
        if waits && !rows.facts().locks_first {
            // Another call came first, after a wait or without one; it is no try that came to nothing.
            tries = TRIES;
            continue;
        }
        if let Some(answer) = change_locked(host, rows, target, change)? {
            return Ok(answer);
        }
    }
    Err(LimiterError::not_written())
}

/// Decides again, at the time of the lock, where a write waited for a transaction that changed nothing in the end: the
/// row was as `seen` all the time. `None` if it is gone.
fn change_after_wait(
    host: &impl Host,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
    seen: Option<&Stored>,
) -> Result<Option<Answer>> {
    let id = target.row(0);
    let Some(own) = rows.lock(id, true)? else { return Ok(None) };
    let Decided { answer, after } = change.decide(target, Contents::Row(seen), host.now())?;
    if let Some(after) = after.map(Stored::State).as_ref().or(seen) {
        rows.update(id, own.tuple, after, own.expires)?;
    }
    Ok(Some(answer))
}

/// Decides once the row is locked; what changes nothing releases it. `None` if the row must be read again.
fn change_locked(
    host: &impl Host,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
) -> Result<Option<Answer>> {
    let (id, mut unchanged) = (target.row(0), None);
    let changed = with_locked(host, rows, id, |Row { stored, expires, tuple }| {
        if stored.is_marker() {
            return Ok(None);
        }
        let contents = Contents::Row(Some(&stored));
        let Decided { answer, after } = change.decide(target, contents, host.now())?;
        let Some(after) = after.map(Stored::State) else {
            unchanged = Some(answer);
            return Ok(unchanged.take_if(|_| Fault::DeniedRowKept.is_on()));
        };
        rows.update(id, tuple, &after, expires)?;
        Ok(Some(answer))
    })?;
    Ok(changed.or(unchanged))
}

/// Runs `work` on a row after locking it, in a subtransaction, so that `None` releases the row: where rows are locked
/// before each write, only after a wait, since many subtransactions are slow. `None` also if it is gone.
pub(super) fn with_locked<T>(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    work: impl FnOnce(Row) -> Result<Option<T>>,
) -> Result<Option<T>> {
    if rows.facts().locks_first
        && let Some(row) = rows.lock(id, false)?
    {
        return work(row);
    }
    host.attempt(|| match rows.lock(id, true)? {
        Some(row) => work(row),
        None => Ok(None),
    })
}
