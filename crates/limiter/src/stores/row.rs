//! A limit in one row: read, decided and written in one step where the rows can, which waits for another transaction
//! and after it begins again, without a lock; otherwise after locking the row and deciding again. What changes nothing
//! is answered from a plain read of the latest committed state. That is right because transactions in progress either
//! take more or roll back to this state.

use ratelimit_core::Micros;
use ratelimit_faults::Fault;

use super::shards;
use crate::change::{Change, Contents, Decided, Wait};
use crate::error::{LimiterError, Result};
use crate::holds::expiry;
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
            if seen.as_ref().is_some_and(|seen| expiry::is_due(target, seen, host.now()))
                && shards::join(host, rows, target)?
            {
                continue;
            }
            match shards::apply_to_one(host, rows, target, change)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        let now = host.now();
        if seen.as_ref().is_some_and(|seen| expiry::is_due(target, seen, now)) {
            // A denial that no expiry can change reads no holds, and writes nothing.
            if let Some(answer) = never(target, change, stored, now)? {
                return Ok(answer);
            }
            expiry::apply(host, rows, target)?;
            continue;
        }
        let Decided { answer, after } = change.decide(target, Contents::Row(stored), now)?;
        let Some(after) = after.map(Stored::State) else {
            match &seen {
                Some(row @ Row { holds_due: Some(_), .. }) => {
                    match unchanged(host, rows, target, change, row, answer)? {
                        Some(answer) => return Ok(answer),
                        None => continue,
                    }
                }
                _ => return Ok(answer),
            }
        };
        if stored.is_some_and(|stored| begins_anew(target, stored, now)) && host.has_holds() {
            match change_locked(host, rows, target, change)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        let written = match &seen {
            None => rows.insert(id, &after, None, true)?,
            Some(seen) => rows.replace(id, seen, &after, seen.holds_due, waits)?,
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
    let now = host.now();
    if let Some(seen) = seen.filter(|_| expiry::is_due(target, &own, now)) {
        // As if it had not been written yet: what has expired comes first.
        rows.update(id, own.tuple, seen, own.holds_due)?;
        return Ok(None);
    }
    let Decided { answer, after } = change.decide(target, Contents::Row(seen), now)?;
    if let Some(after) = after.map(Stored::State).as_ref().or(seen) {
        rows.update(id, own.tuple, after, own.holds_due)?;
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
    let changed = with_locked(host, rows, id, |row| {
        let now = host.now();
        if row.stored.is_marker() || expiry::is_due(target, &row, now) {
            return Ok(None);
        }
        let Row { stored, mut holds_due, tuple } = row;
        let contents = Contents::Row(Some(&stored));
        let Decided { answer, after } = change.decide(target, contents, now)?;
        let Some(after) = after.map(Stored::State) else {
            unchanged = Some((answer, Row { stored, holds_due, tuple }));
            let kept = unchanged.take_if(|_| Fault::DeniedRowKept.is_on());
            return Ok(kept.map(|(answer, _)| answer));
        };
        if begins_anew(target, &stored, now) {
            expiry::forget(host, id)?;
            holds_due = None;
        }
        rows.update(id, tuple, &after, holds_due)?;
        Ok(Some(answer))
    })?;
    match (changed, unchanged) {
        (None, Some((answer, row))) if row.holds_due.is_some() => {
            self::unchanged(host, rows, target, change, &row, answer)
        }
        (changed, unchanged) => Ok(changed.or(unchanged.map(|(answer, _)| answer))),
    }
}

/// The answer to what changes nothing of a key that has holds: a denial knows what expires. `None` if the row has changed
/// since it was `seen`: the holds are read after it.
#[cold]
fn unchanged<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
    seen: &Row,
    answer: Answer,
) -> Result<Option<Answer>> {
    let (Change::Take(take), false) = (change, answer.ok) else { return Ok(Some(answer)) };
    let state = target.state(target.limit(), Some(&seen.stored), answer.now)?;
    let answer = expiry::denial(host, target, *take, &state, seen.holds_due, answer, false)?;
    Ok(rows.read(target.row(0))?.filter(|row| row.is_version(seen)).map(|_| answer))
}

/// The answer to a take that is denied at `now` by a limit in full, too, on what its row has; `None`: it isn't.
#[cold]
fn never(
    target: &Target,
    change: &Change,
    stored: Option<&Stored>,
    now: Micros,
) -> Result<Option<Answer>> {
    match change {
        Change::Take(take) if take.never_passes(target, now) => {
            Ok(Some(change.decide(target, Contents::Row(stored), now)?.answer))
        }
        _ => Ok(None),
    }
}

/// Whether a row holds another kind's state, or one that is ignored, so that a change begins the state again, without the
/// holds of that one.
#[inline]
pub(crate) fn begins_anew(target: &Target, stored: &Stored, now: Micros) -> bool {
    let limit = target.limit();
    match stored {
        Stored::State(state) => !limit.accepts(state.shape()) || limit.ignores(state, now),
        stored => stored.suits(limit) == Some(false),
    }
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
