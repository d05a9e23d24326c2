//! The short way of a call for one limit in one row. Reads, decides and writes in one step if the rows can: this waits
//! for another transaction without a lock, and then begins again. Otherwise locks the row and decides again. If nothing
//! changes, answers from a plain read of the latest committed state. That is right because transactions in progress
//! either take more or roll back to this state.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::Part;
use crate::change::{Ask, Change, Decided, Mode};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Row, Rows, Stored, TRIES, Version, tries};
use crate::stores::expiry::{self, Found};
use crate::stores::shards::Contents;
use crate::stores::with_locked;

/// A change of a limit in one row.
pub(super) struct OneRow<'c, H> {
    pub(super) host: &'c H,
    pub(super) rows: &'c dyn Rows,
    pub(super) ask: &'c Ask<'c>,
}

impl<H: Host> OneRow<'_, H> {
    /// Makes it. `None`: nothing is changed, since the rows are still those of a limit with shards, a hold needs
    /// [more steps](super::run), or several takes need a step each.
    pub(super) fn apply(&self) -> Result<Option<Decided>> {
        let &OneRow { host, rows, ask: ask @ Ask { target, change, .. } } = self;
        let (id, waits) = (target.row(0), change.waits_to_write());
        let mut left = TRIES;
        while left > 0 {
            host.check_for_interrupts();
            left -= 1;
            let row = rows.read(id)?;
            let row = row.as_ref();
            let is_marker = row.is_some_and(|row| row.stored.is_marker());
            if is_marker && !Fault::MarkerOverlooked.is_on() {
                return Ok(None);
            }
            let (own, now) = (ask.own(host)?, host.now());
            if self.is_due(row, now) {
                if self.is_more() {
                    // A denial writes nothing.
                    if !super::would_pass(host, rows, ask)? {
                        return Ok(None);
                    }
                } else if ask.never_passes(now) || ask.block(now).is_some() {
                    // A denial that no expiry can change reads no holds, either.
                    let decided = self.decide(row, None, now)?;
                    if super::is_final(ask, &decided, now) {
                        return Ok(Some(decided));
                    }
                }
                expiry::apply(host, rows, target)?;
                continue;
            }
            let Some((decided, after)) = self.decide_version(row, own.as_ref(), now)? else {
                return Ok(None);
            };
            let Some(after) = after else {
                match self.unchanged(row, decided)? {
                    None => continue,
                    decided => return Ok(decided),
                }
            };
            if row.is_some_and(|row| target.begins_anew(&row.stored, now)) && host.has_holds() {
                if self.is_more() {
                    return Ok(None);
                }
                match self.change_locked()? {
                    None => continue,
                    decided => return Ok(decided),
                }
            }
            let written = match row {
                None => rows.insert(id, &after, true)?,
                Some(row) => rows.replace(id, row, &after, waits)?,
            };
            if written {
                // An older decision waited for a transaction, or a row has come, become idle and been pruned since.
                let is_new = !waits || host.now().minus(now) < rows.facts().patience;
                if is_new && ask.put(host, own.as_ref(), &decided)? {
                    return Ok(Some(decided));
                }
                match self.decide_again(row)? {
                    None if !self.is_more() => continue,
                    decided => return Ok(decided),
                }
            }
            if row.is_none() {
                continue;
            }
            if waits && !rows.facts().locks_first {
                // Another call came first, after a wait or without one: this doesn't count as a try.
                left = TRIES;
                continue;
            }
            if let Some(decided) = self.change_locked()? {
                return Ok(Some(decided));
            }
        }
        Err(LimiterError::not_written())
    }

    /// Whether it is a hold or several takes, which may need more steps.
    fn is_more(&self) -> bool {
        matches!(self.ask.change, Change::Hold(_) | Change::Takes(..))
    }

    /// Whether expired holds come first.
    #[inline]
    fn is_due(&self, row: Option<&Row>, now: Micros) -> bool {
        row.is_some_and(|row| expiry::is_due(&self.ask.target, row, now))
    }

    /// Decides it on the row's contents. `own`: the hold with the call's id.
    #[inline(always)]
    fn decide(&self, row: Option<&Row>, own: Option<&HoldRow>, now: Micros) -> Result<Decided> {
        let target = &self.ask.target;
        let state = target.state(target.limit(), row.map(|row| &row.stored), now)?;
        self.ask.decide(self.host, &self.ask.on(&state), own, now)
    }

    /// Decides it, and returns the row to write, too, which may differ only in the first expiry of the key's holds;
    /// without one, there is nothing to write. `None`: expired holds come first, or the short way doesn't make it: of a
    /// hold, if it is not taken; of several takes, if one may have a wait that counts the holds that will expire.
    #[inline(always)]
    fn decide_version(
        &self,
        row: Option<&Row>,
        own: Option<&HoldRow>,
        now: Micros,
    ) -> Result<Option<(Decided, Option<Version>)>> {
        if self.is_due(row, now) {
            return Ok(None);
        }
        let mut decided = self.decide(row, own, now)?;
        let is_done = match self.ask.change {
            Change::Hold(_) => decided.hold_after().is_some(),
            Change::Takes(_, Mode::Each) => row.is_none_or(|row| row.holds_due.is_none()),
            _ => true,
        };
        if !is_done {
            return Ok(None);
        }
        let holds_due = row.and_then(|row| row.holds_due);
        let version = |after| Version { stored: Stored::State(after), holds_due };
        let mut after = decided.after.take().map(version);
        if let Some(hold) = decided.hold_after() {
            let row = after.unwrap_or_else(|| as_seen(row, now));
            after = Some(Version { holds_due: hold.first_expiry(row.holds_due), ..row });
        }
        Ok(Some((decided, after)))
    }

    /// Decides a written change again, at the time of the lock, as if the row were still as it was seen: the write
    /// waited for a transaction that changed nothing in the end, or the hold has changed meanwhile. `None`: the row is
    /// as it was, or gone.
    fn decide_again(&self, row: Option<&Row>) -> Result<Option<Decided>> {
        let &OneRow { host, rows, ask } = self;
        let id = ask.target.row(0);
        let Some(Row { tuple: locked, .. }) = rows.lock(id, true)? else { return Ok(None) };
        tries(host, || {
            let (own, now) = (ask.own(host)?, host.now());
            let decided = self.decide_version(row, own.as_ref(), now)?;
            let Some((decided, after)) = decided else {
                rows.update(id, locked, &as_seen(row, now))?;
                return Ok(Some(None));
            };
            if !ask.put(host, own.as_ref(), &decided)? {
                return Ok(None);
            }
            if let Some(after) = after.or_else(|| row.map(|row| row.version.clone())) {
                rows.update(id, locked, &after)?;
            }
            Ok(Some(Some(decided)))
        })
    }

    /// Locks the row and decides again; releases it if nothing changes. `None`: the row must be read again.
    fn change_locked(&self) -> Result<Option<Decided>> {
        let &OneRow { host, rows, ask: ask @ Ask { target, .. } } = self;
        let (id, mut unchanged) = (target.row(0), None);
        let changed = with_locked(host, rows, id, |row| {
            let (own, now) = (ask.own(host)?, host.now());
            let begins_anew = target.begins_anew(&row.stored, now);
            if row.stored.is_marker() || begins_anew && self.is_more() {
                return Ok(None);
            }
            let decided = self.decide_version(Some(&row), own.as_ref(), now)?;
            let Some((decided, after)) = decided else { return Ok(None) };
            let Some(mut after) = after else {
                unchanged = Some((decided, row));
                return Ok(None);
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
            Some((decided, row)) => self.unchanged(Some(&row), decided),
            None => Ok(changed),
        }
    }

    /// The answer if nothing changes: a denial counts the holds that will expire. `None`: the row has changed since it
    /// was read, after which the holds are read.
    fn unchanged(&self, row: Option<&Row>, decided: Decided) -> Result<Option<Decided>> {
        let &OneRow { host, rows, ask: ask @ Ask { target, .. } } = self;
        let waits = row.filter(|row| row.holds_due.is_some() && !decided.answer.ok);
        let Some(row) = waits.filter(|_| ask.change.is_take()) else { return Ok(Some(decided)) };
        let limit = target.limit();
        let state = target.state(limit, Some(&row.stored), decided.answer.now)?.into_owned();
        let found = Found { shards: Shards::new(limit, vec![state]), due: row.holds_due };
        let mut part = Part { ask, contents: Contents::read(found), decided };
        part.count_expiries(host)?;
        Ok(rows.read(target.row(0))?.filter(|again| again == row).map(|_| part.decided))
    }
}

/// A row as it was seen, or full.
fn as_seen(row: Option<&Row>, now: Micros) -> Version {
    row.map_or_else(|| Stored::Reset { ts: now }.into(), |row| row.version.clone())
}
