//! The short way of a call for one limit in one row. Reads, decides and writes in one step if the rows can: this waits
//! for another transaction without a lock, and then begins again. Otherwise locks the row and decides again. If nothing
//! changes, answers from a plain read of the latest committed state. That is right because transactions in progress
//! either take more or roll back to this state.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use crate::change::{Ask, Change, Decided, Mode};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Row, Rows, Stored, TRIES, Version};
use crate::stores::expiry::{self, Found};
use crate::stores::with_locked;

/// Makes a change of a limit in one row. `None`: nothing is changed, since the rows are still those of a limit with
/// shards, a hold needs [more steps](super::run), or several takes need a step each.
pub(super) fn apply<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask) -> Result<Option<Decided>> {
    let Ask { target, change, .. } = ask;
    let is_more = is_more(change);
    let (id, waits) = (target.row(0), change.waits_to_write());
    let mut tries = TRIES;
    while tries > 0 {
        host.check_for_interrupts();
        tries -= 1;
        let seen = rows.read(id)?;
        let stored = seen.as_ref().map(|seen| &seen.stored);
        if stored.is_some_and(Stored::is_marker) && !Fault::MarkerOverlooked.is_on() {
            return Ok(None);
        }
        let own = ask.own(host)?;
        let now = host.now();
        if seen.as_ref().is_some_and(|seen| expiry::is_due(target, seen, now)) {
            if is_more {
                // A denial writes nothing.
                if !super::would_pass(host, rows, ask)? {
                    return Ok(None);
                }
            } else if ask.never_passes(now) || ask.block(now).is_some() {
                // A denial that no expiry can change reads no holds, either.
                let decided = decide(host, ask, stored, None, now)?;
                if super::is_final(ask, &decided, now) {
                    return Ok(Some(decided));
                }
            }
            expiry::apply(host, rows, target)?;
            continue;
        }
        let mut decided = decide(host, ask, stored, own.as_ref(), now)?;
        if !is_done(ask, &decided, seen.as_ref()) {
            return Ok(None);
        }
        let Some(after) = next(&mut decided, seen.as_ref(), now) else {
            match unchanged(host, rows, ask, seen.as_ref(), decided)? {
                None => continue,
                decided => return Ok(decided),
            }
        };
        if stored.is_some_and(|stored| target.begins_anew(stored, now)) && host.has_holds() {
            if is_more {
                return Ok(None);
            }
            match change_locked(host, rows, ask)? {
                Some(decided) => return Ok(Some(decided)),
                None => continue,
            }
        }
        let written = match &seen {
            None => rows.insert(id, &after, true)?,
            Some(seen) => rows.replace(id, seen, &after, waits)?,
        };
        if written {
            // An older decision waited for a transaction, or a row has come, become idle and been pruned since.
            let is_new = !waits || host.now().minus(now) < rows.facts().patience;
            if is_new && ask.put(host, own.as_ref(), &decided)? {
                return Ok(Some(decided));
            }
            match decide_again(host, rows, ask, seen)? {
                None if !is_more => continue,
                decided => return Ok(decided),
            }
        }
        if seen.is_none() {
            continue;
        }
        if waits && !rows.facts().locks_first {
            // Another call came first, after a wait or without one: this doesn't count as a try.
            tries = TRIES;
            continue;
        }
        if let Some(decided) = change_locked(host, rows, ask)? {
            return Ok(Some(decided));
        }
    }
    Err(LimiterError::not_written())
}

/// Decides a change on the row's contents.
#[inline(always)]
fn decide<H: Host>(
    host: &H,
    ask: &Ask,
    stored: Option<&Stored>,
    own: Option<&HoldRow>,
    now: Micros,
) -> Result<Decided> {
    let state = ask.target.state(ask.target.limit(), stored, now)?;
    ask.decide_on(host, &state, own, now)
}

/// Whether it is a hold or several takes, which may need more steps.
fn is_more(change: &Change) -> bool {
    matches!(change, Change::Hold(_) | Change::Takes(..))
}

/// Whether the short way makes the change: of a hold, if it is taken; of several takes, if none has a wait that counts
/// the holds that will expire.
fn is_done(ask: &Ask, decided: &Decided, row: Option<&Row>) -> bool {
    match ask.change {
        Change::Hold(_) => decided.hold_after().is_some(),
        Change::Takes(_, Mode::Each) => row.is_none_or(|row| row.holds_due.is_none()),
        _ => true,
    }
}

/// Returns the row to write, which may differ only in the first expiry of the key's holds; `None`: nothing to write.
#[inline(always)]
fn next(decided: &mut Decided, seen: Option<&Row>, now: Micros) -> Option<Version> {
    let with = |stored| match seen {
        Some(seen) => seen.with(stored),
        None => Version::from(stored),
    };
    let after = decided.after.take().map(|after| with(Stored::State(after)));
    let Some(hold) = decided.hold_after() else { return after };
    let before = || as_seen(seen, now);
    Some(expiry::with_hold(after.unwrap_or_else(before), &hold))
}

/// Returns a row as it was seen, or full.
fn as_seen(seen: Option<&Row>, now: Micros) -> Version {
    seen.map_or_else(|| Stored::Reset { ts: now }.into(), |seen| seen.version.clone())
}

/// Decides a written change again, at the time of the lock, as if the row were still as `seen`: the write waited for a
/// transaction that changed nothing in the end, or the hold has changed meanwhile. `None`: the row is as it was, or
/// gone.
fn decide_again<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
    seen: Option<Row>,
) -> Result<Option<Decided>> {
    let id = ask.target.row(0);
    let Some(Row { tuple: locked, .. }) = rows.lock(id, true)? else { return Ok(None) };
    let stored = seen.as_ref().map(|seen| &seen.stored);
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let own = ask.own(host)?;
        let now = host.now();
        let mut decided = None;
        // Expired holds come first.
        if !seen.as_ref().is_some_and(|seen| expiry::is_due(&ask.target, seen, now)) {
            decided = Some(decide(host, ask, stored, own.as_ref(), now)?);
        }
        let Some(mut decided) = decided.filter(|decided| is_done(ask, decided, seen.as_ref()))
        else {
            rows.update(id, locked, &as_seen(seen.as_ref(), now))?;
            return Ok(None);
        };
        if !ask.put(host, own.as_ref(), &decided)? {
            continue;
        }
        match (next(&mut decided, seen.as_ref(), now), &seen) {
            (Some(after), _) => rows.update(id, locked, &after)?,
            (None, Some(seen)) => rows.update(id, locked, &seen.version)?,
            (None, None) => {}
        }
        return Ok(Some(decided));
    }
    Err(LimiterError::not_written())
}

/// Locks the row and decides again; releases it if nothing changes. `None`: the row must be read again.
fn change_locked<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask) -> Result<Option<Decided>> {
    let Ask { target, .. } = ask;
    let (id, mut unchanged) = (target.row(0), None);
    let changed = with_locked(host, rows, id, |row| {
        let own = ask.own(host)?;
        let now = host.now();
        if row.stored.is_marker() || expiry::is_due(target, &row, now) {
            return Ok(None);
        }
        let mut decided = decide(host, ask, Some(&row.stored), own.as_ref(), now)?;
        let begins_anew = target.begins_anew(&row.stored, now);
        if !is_done(ask, &decided, Some(&row)) || begins_anew && is_more(&ask.change) {
            return Ok(None);
        }
        let Some(mut after) = next(&mut decided, Some(&row), now) else {
            unchanged = Some((decided, row));
            let kept = unchanged.take_if(|_| Fault::DeniedRowKept.is_on());
            return Ok(kept.map(|(decided, _)| decided));
        };
        if begins_anew {
            expiry::forget(host, id)?;
            after.holds_due = None;
        }
        if !ask.put(host, own.as_ref(), &decided)? {
            return Ok(None);
        }
        rows.update(id, row.tuple, &after)?;
        Ok(Some(decided))
    })?;
    match unchanged {
        Some((decided, row)) => self::unchanged(host, rows, ask, Some(&row), decided),
        None => Ok(changed),
    }
}

/// The answer if nothing changes: a denial counts the holds that will expire. `None`: the row has changed since it was
/// `seen`, after which the holds are read.
fn unchanged<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
    seen: Option<&Row>,
    mut decided: Decided,
) -> Result<Option<Decided>> {
    let target = &ask.target;
    let seen = seen.filter(|seen| seen.holds_due.is_some() && !decided.answer.ok);
    let Some(seen) = seen.filter(|_| ask.change.is_take()) else { return Ok(Some(decided)) };
    let state = target.state(target.limit(), Some(&seen.stored), decided.answer.now)?.into_owned();
    let found = Found { shards: Shards::new(target.limit(), vec![state]), due: seen.holds_due };
    super::count_expiries(host, ask, &found, None, &mut decided)?;
    Ok(rows.read(target.row(0))?.filter(|row| row.is_version(seen)).map(|_| decided))
}
