//! The short way of a call for one limit in one row. Reads, decides and writes in one step if the rows can: this waits
//! for another transaction without a lock, and then begins again. Otherwise locks the row and decides again. If nothing
//! changes, answers from a plain read of the latest committed state. That is right because transactions in progress
//! either take more or roll back to this state.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::Ask;
use crate::change::{Change, Contents, Decided, Wait};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Row, Rows, Stored, TRIES, Version};
use crate::stores::expiry::{self, Found};
use crate::stores::with_locked;

/// Makes a change of a limit in one row. `None`: nothing is changed, since the rows are still those of a limit with
/// shards, a hold needs [more steps](super::run), or several takes need a step each. `MORE`: whether it is a hold or
/// several takes, known to the compiler so that a single take pays nothing for it.
pub(crate) fn apply<H: Host, const MORE: bool>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
) -> Result<Option<Decided>> {
    let Ask { target, change, .. } = ask;
    let (id, waits) = (target.row(0), change.wait() == Wait::Write);
    let mut tries = TRIES;
    while tries > 0 {
        host.check_for_interrupts();
        tries -= 1;
        let seen = rows.read(id)?;
        let stored = seen.as_ref().map(|seen| &seen.stored);
        if stored.is_some_and(Stored::is_marker) && !Fault::MarkerOverlooked.is_on() {
            return Ok(None);
        }
        if MORE && has_holds_due(ask, seen.as_ref()) {
            return Ok(None);
        }
        let own = if MORE { ask.own(host)? } else { None };
        let now = host.now();
        if seen.as_ref().is_some_and(|seen| expiry::is_due(target, seen, now)) {
            if MORE {
                // A denial writes nothing.
                if !super::would_pass(host, rows, ask)? {
                    return Ok(None);
                }
            } else if change.never_passes(target, now) || change.block(target, now).is_some() {
                // A denial that no expiry can change reads no holds, either.
                let decided = decide::<H, false>(host, ask, stored, None, now)?;
                if super::is_final(ask, &decided, now) {
                    return Ok(Some(decided));
                }
            }
            expiry::apply(host, rows, target)?;
            continue;
        }
        let mut decided = decide::<H, MORE>(host, ask, stored, own.as_ref(), now)?;
        if MORE && !is_done(ask, &decided) {
            return Ok(None);
        }
        let Some(after) = next::<MORE>(&mut decided, seen.as_ref(), now) else {
            match seen.filter(|seen| seen.holds_due.is_some()) {
                None => return Ok(Some(decided)),
                Some(seen) => match unchanged(host, rows, ask, &seen, decided)? {
                    None => continue,
                    decided => return Ok(decided),
                },
            }
        };
        if stored.is_some_and(|stored| target.begins_anew(stored, now)) && host.has_holds() {
            if MORE {
                return Ok(None);
            }
            match change_locked::<H, MORE>(host, rows, ask)? {
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
            if is_new && (!MORE || ask.put(host, own.as_ref(), &decided)?) {
                return Ok(Some(decided));
            }
            match decide_again::<H, MORE>(host, rows, ask, seen)? {
                None if !MORE => continue,
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
        if let Some(decided) = change_locked::<H, MORE>(host, rows, ask)? {
            return Ok(Some(decided));
        }
    }
    Err(LimiterError::not_written())
}

/// Decides a change on the row's contents.
#[inline(always)]
fn decide<H: Host, const MORE: bool>(
    host: &H,
    Ask { target, change, .. }: &Ask,
    stored: Option<&Stored>,
    own: Option<&HoldRow>,
    now: Micros,
) -> Result<Decided> {
    let (limit, state) = (target.limit(), target.state(target.limit(), stored, now)?);
    if MORE {
        let shards = Shards::new(limit, vec![state.into_owned()]);
        let own = own.map(|own| &own.hold);
        return change.decide(host, target, Contents::All(&shards, own), now);
    }
    change.decide(host, target, Contents::One(limit, &state), now)
}

/// Whether the short way makes the change: of a hold, only if it is taken.
fn is_done(ask: &Ask, decided: &Decided) -> bool {
    !matches!(ask.change, Change::Hold(_)) || decided.hold_after().is_some()
}

/// Whether each of several takes has a wait of its own, which counts the holds that will expire.
fn has_holds_due(ask: &Ask, row: Option<&Row>) -> bool {
    matches!(ask.change, Change::Each(_)) && row.is_some_and(|row| row.holds_due.is_some())
}

/// Returns the row to write, which may differ only in the first expiry of the key's holds; `None`: nothing to write.
#[inline(always)]
fn next<const MORE: bool>(
    decided: &mut Decided,
    seen: Option<&Row>,
    now: Micros,
) -> Option<Version> {
    let with = |stored| match seen {
        Some(seen) => seen.with(stored),
        None => Version::from(stored),
    };
    let after = decided.after.take().map(|after| with(Stored::State(after)));
    let Some(hold) = decided.hold_after().filter(|_| MORE) else { return after };
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
fn decide_again<H: Host, const MORE: bool>(
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
            decided = Some(decide::<H, MORE>(host, ask, stored, own.as_ref(), now)?);
        }
        let Some(mut decided) = decided.filter(|decided| !MORE || is_done(ask, decided)) else {
            rows.update(id, locked, &as_seen(seen.as_ref(), now))?;
            return Ok(None);
        };
        if !ask.put(host, own.as_ref(), &decided)? {
            continue;
        }
        match (next::<MORE>(&mut decided, seen.as_ref(), now), &seen) {
            (Some(after), _) => rows.update(id, locked, &after)?,
            (None, Some(seen)) => rows.update(id, locked, &seen.version)?,
            (None, None) => {}
        }
        return Ok(Some(decided));
    }
    Err(LimiterError::not_written())
}

/// Locks the row and decides again; releases it if nothing changes. `None`: the row must be read again.
fn change_locked<H: Host, const MORE: bool>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
) -> Result<Option<Decided>> {
    let Ask { target, .. } = ask;
    let (id, mut unchanged) = (target.row(0), None);
    let changed = with_locked(host, rows, id, |row| {
        let own = ask.own(host)?;
        let now = host.now();
        if row.stored.is_marker() || expiry::is_due(target, &row, now) {
            return Ok(None);
        }
        let mut decided = decide::<H, MORE>(host, ask, Some(&row.stored), own.as_ref(), now)?;
        let begins_anew = target.begins_anew(&row.stored, now);
        if MORE && (begins_anew || !is_done(ask, &decided) || has_holds_due(ask, Some(&row))) {
            return Ok(None);
        }
        let Some(mut after) = next::<MORE>(&mut decided, Some(&row), now) else {
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
    match (changed, unchanged) {
        (None, Some((decided, row))) if row.holds_due.is_some() => {
            self::unchanged(host, rows, ask, &row, decided)
        }
        (changed, unchanged) => Ok(changed.or(unchanged.map(|(decided, _)| decided))),
    }
}

/// The answer if nothing changes and the key has holds: a denial counts the holds that will expire. `None`: the row has
/// changed since it was `seen`, after which the holds are read.
#[cold]
fn unchanged<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
    seen: &Row,
    mut decided: Decided,
) -> Result<Option<Decided>> {
    let target = &ask.target;
    if !ask.change.is_take() || decided.answer.ok {
        return Ok(Some(decided));
    }
    let state = target.state(target.limit(), Some(&seen.stored), decided.answer.now)?.into_owned();
    let found = Found { shards: Shards::new(target.limit(), vec![state]), due: seen.holds_due };
    super::count_expiries(host, ask, &found, None, &mut decided)?;
    Ok(rows.read(target.row(0))?.filter(|row| row.is_version(seen)).map(|_| decided))
}
