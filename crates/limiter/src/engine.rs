//! Makes several asks together: all or nothing.
//!
//! First all are read and decided without locks: if a limit refuses, that is the answer. Otherwise the rows are locked
//! in the order of name, key and shard, whatever the order of the requests, so that two such calls never deadlock. Then
//! expired holds are applied, the calls' own holds are read, and all asks are decided again, at one instant. If a limit
//! refuses now, the locks are released.
//!
//! Limits in memory come last, after all waits for rows: they are decided, then their entries are locked and, if they
//! are unchanged, written together, all or none. Only then are rows written; if that fails, tokens taken from memory
//! stay taken.

mod commit;
mod memory;
mod row;

use std::slice::from_ref;

use ratelimit_core::{Micros, Shards, State};

use crate::change::{Ask, Change, Decided, Mode};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Row, RowAccess, Rows, tries};
use crate::request::Answer;
use crate::stores;
use crate::stores::expiry;
use crate::stores::shards::{self, Contents, Extent};
use crate::target::{Store, Target};
use commit::Commit;
use row::OneRow;

/// The decisions on asks, in their order.
pub(crate) struct Outcome {
    pub(crate) decided: Vec<Decided>,
    /// Whether they were made.
    pub(crate) ok: bool,
}

/// A part of a call: an ask, decided on the contents of its limit.
struct Part<'a> {
    ask: &'a Ask<'a>,
    contents: Contents<'a>,
    decided: Decided,
}

/// The parts of a call, in the order of name and key.
type Parts<'a> = Vec<Part<'a>>;

impl<'a> Part<'a> {
    /// Decides an ask at an instant after the contents were read.
    #[inline(always)]
    fn decide(host: &impl Host, ask: &'a Ask<'a>, seen: Contents<'a>, now: Micros) -> Result<Self> {
        let decided = ask.decide(host, &seen.found.shards, seen.own.as_ref(), now)?;
        Ok(Part { ask, contents: seen, decided })
    }

    /// Whether it is denied while holds of its key will give back.
    fn waits(&self) -> bool {
        self.contents.found.has_holds() && !self.decided.passes()
    }

    /// Sets the level of its answers to that of the contents.
    fn set_level(&mut self) {
        self.decided.set_level(self.contents.found.shards.level(self.decided.answer.now));
    }

    /// Has a denial's wait count the holds that will expire: the time until the call passes, if no other call takes,
    /// settles or extends.
    #[cold]
    fn count_expiries(&mut self, host: &impl Host) -> Result<()> {
        let Part { ask, contents: Contents { found, own, .. }, decided } = self;
        let (target, limit) = (&ask.target, ask.target.limit());
        if limit.concurrency().is_some() {
            return Ok(());
        }
        let always = decided.answer.blocked.is_some() && !target.definition.enforce;
        let refused = |decided: &Decided| {
            decided.answers().find(|answer| !answer.ok).map(|answer| answer.retry_after)
        };
        let decide = |state: &State, at: Micros| {
            let (shards, own) = (Shards::new(limit, from_ref(state)), own.as_ref());
            let decided = ask.decide_unblocked(host, &shards, own.map(|own| &own.hold), at);
            match decided.map(|decided| refused(&decided)) {
                Ok(None) => (true, None),
                Ok(Some(wait)) => (always, wait),
                Err(_) => (false, None),
            }
        };
        let denied = refused(decided).flatten();
        let wait = expiry::wait(host, target, found, decided.answer.now, denied, decide)?;
        for answer in decided.answers_mut().filter(|answer| !answer.ok) {
            answer.retry_after = wait;
        }
        Ok(())
    }
}

impl Ask<'_> {
    /// Reads the hold with the call's id. A random id has none yet.
    #[inline]
    fn own(&self, host: &impl Host) -> Result<Option<HoldRow>> {
        let Target { name, key, store, .. } = self.target;
        match &self.change {
            Change::Hold(hold) if hold.terms.id.is_some() && store != Store::Nowhere => {
                host.with_holds(|holds| holds.one(hold.id, name, key))
            }
            _ => Ok(None),
        }
    }

    /// Reads the hold with the call's id, unless the state of its row begins again: it is of another kind, or ignored.
    fn own_of_state(&self, host: &impl Host, rows: &dyn Rows) -> Result<Option<HoldRow>> {
        let Some(own) = self.own(host)? else { return Ok(None) };
        let row = rows.read(self.target.row(0))?;
        let is_gone = row.is_some_and(|row| self.target.begins_anew(&row.stored, host.now()));
        Ok(Some(own).filter(|_| !is_gone))
    }

    /// Writes the hold; `own` is the hold before. False if `own` is gone, or if another hold has appeared in its place.
    #[inline]
    fn put(&self, host: &impl Host, own: Option<&HoldRow>, decided: &Decided) -> Result<bool> {
        let (Some(hold), Change::Hold(asked)) = (decided.hold_after(), &self.change) else {
            return Ok(true);
        };
        let Target { name, key, .. } = self.target;
        host.with_holds(|holds| match own {
            Some(own) => {
                // It may have changed since it was read without a lock.
                let now = holds.one(&own.id, name, key)?;
                Ok(now.is_some_and(|now| now.hold == own.hold)
                    && holds.update(&HoldRow { hold, ..own.clone() })?)
            }
            None => {
                let (id, config) = (asked.id.to_vec(), asked.config.clone());
                let (name, key) = (name.to_vec(), key.to_vec());
                holds.insert(&HoldRow { id, name, key, hold, config })
            }
        })
    }
}

/// Whether expired holds can't change a denial: the block never ends, or all pass after it, or even a full limit denies
/// the call.
fn is_final(ask: &Ask, decided: &Decided, now: Micros) -> bool {
    match ask.block(now) {
        Some(Micros::FOREVER) => true,
        Some(until) => {
            let wait = Some(until.minus(now));
            decided.answers().all(|answer| answer.retry_after == wait)
        }
        None => {
            // In a list, a dry run is no denial.
            let is_denied = match ask.change {
                Change::Take(_) => !decided.answer.ok,
                _ => !decided.passes(),
            };
            is_denied && ask.never_passes(now)
        }
    }
}

/// Decides asks as [`run`] does, without locking or writing anything.
pub(crate) fn check<H: Host>(host: &H, asks: &[Ask]) -> Result<Outcome> {
    let check = |rows: Option<&dyn Rows>| {
        let decided = unchanged(peek(host, rows, asks)?);
        Ok(Outcome { ok: decided.iter().all(Decided::passes), decided })
    };
    match asks.iter().any(|ask| ask.target.store.is_in_table()) {
        true => host.with_rows(RowAccess::Read, |rows| check(Some(rows))),
        false => check(None), // no row is read, and no table locked
    }
}

/// Whether a limit has the tokens for an ask, as if expired holds were applied.
#[cold]
fn would_pass(host: &impl Host, rows: &dyn Rows, ask: &Ask) -> Result<bool> {
    let parts = read(host, Some(rows), from_ref(ask))?;
    Ok(parts.iter().flat_map(|part| part.decided.answers()).all(|answer| answer.ok))
}

/// Makes all of the asks, given in the order of name and key, or none.
pub(crate) fn run<H: Host>(host: &H, asks: &[Ask]) -> Result<Outcome> {
    if !asks.iter().any(|ask| ask.target.store.is_in_table()) {
        return memory::take(host, asks.iter());
    }
    host.refuse_read_only()?;
    host.with_rows(RowAccess::Write, |rows| {
        if let [ask] = asks
            && let Some(decided) = short(host, rows, ask)?
        {
            return Ok(Outcome { ok: true, decided: vec![decided] });
        }
        make(host, rows, asks)
    })
}

/// Makes the change of one ask in the table.
#[inline]
pub(crate) fn run_one<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask) -> Result<Answer> {
    if let Some(decided) = short(host, rows, ask)? {
        return Ok(decided.answer);
    }
    let decided = make(host, rows, from_ref(ask))?.decided.pop();
    decided.map(|decided| decided.answer).ok_or_else(LimiterError::not_written)
}

/// Makes the change of one ask in one row of the table; `None`: nothing is changed, since that doesn't suffice.
#[inline]
pub(crate) fn short<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask) -> Result<Option<Decided>> {
    let Ask { target, change, .. } = ask;
    match (target.store, change) {
        (Store::Shards(_), _) => shards::apply_to_one_shard(host, rows, ask),
        (_, Change::Takes(_, Mode::Together)) => Ok(None),
        (_, Change::Hold(_)) if target.limit().concurrency().is_some() => Ok(None),
        _ => OneRow { host, rows, ask }.apply(),
    }
}

/// Makes all of the asks, of which some are in the table, or none.
fn make<H: Host>(host: &H, rows: &dyn Rows, asks: &[Ask]) -> Result<Outcome> {
    let mut extent = Extent::Few;
    tries(host, || {
        let parts = peek(host, Some(rows), asks)?;
        let ok = parts.iter().all(|part| part.decided.passes());
        if !ok || !parts.iter().any(|part| part.decided.changes()) {
            return Ok(Some(Outcome { decided: unchanged(parts), ok }));
        }
        let mut commit = Commit { host, rows, asks, extent, refused: None };
        let made = host.attempt(|| commit.run(parts));
        extent = extent.max(Extent::All);
        match (made, asks) {
            // No token of a credit may be lost.
            (Err(LimiterError::Busy), [credit @ Ask { change: Change::Credit { .. }, .. }]) => {
                extent = Extent::AllWaiting;
                let decided = shards::credit_own(host, rows, credit)?;
                Ok(decided.map(|decided| Outcome { decided: vec![decided], ok: true }))
            }
            (Err(LimiterError::Busy), _) => at_once(host, rows, asks).map(Some),
            (made, _) => {
                let made = made?;
                let ok = made.is_some();
                Ok(made.or(commit.refused).map(|decided| Outcome { decided, ok }))
            }
        }
    })
}

/// Settles holds; the asks are in the order of name and key. Decides only under the locks, since the holds' contents
/// count.
pub(crate) fn settle<H: Host>(host: &H, asks: &[Ask]) -> Result<Vec<Decided>> {
    host.with_rows(RowAccess::Write, |rows| {
        let mut commit = Commit { host, rows, asks, extent: Extent::All, refused: None };
        tries(host, || commit.run(Vec::new()))
    })
}

/// The decisions, with the levels of the unchanged limits.
fn unchanged(mut parts: Parts) -> Vec<Decided> {
    parts.iter_mut().for_each(Part::set_level);
    parts.into_iter().map(|part| part.decided).collect()
}

/// Reads and decides asks on the latest state, without locks. `rows` is `None` if no limit is in the table. Denials
/// count the holds that will expire.
fn peek<'a>(host: &impl Host, rows: Option<&dyn Rows>, asks: &'a [Ask<'a>]) -> Result<Parts<'a>> {
    let first = read(host, rows, asks)?;
    let Some(rows) = rows else { return Ok(first) };
    // A hold may have been settled between the reads of its row and of the limit's.
    let has_id = |ask: &Ask| matches!(&ask.change, Change::Hold(hold) if hold.terms.id.is_some());
    let is_denied = first.iter().any(|part| !part.decided.passes());
    if !is_denied || !first.iter().any(|part| part.waits() || has_id(part.ask)) {
        return Ok(first);
    }
    let versions = || -> Result<Vec<Option<Row>>> {
        let in_table = asks.iter().filter(|ask| ask.target.store.is_in_table());
        in_table.map(|ask| rows.read(ask.target.row(0))).collect()
    };
    // Reads again while a row changes: a wait would then be of a state that never was. A settlement, say, gives tokens
    // to the row and takes the hold away.
    let mut before = versions()?;
    tries(host, || {
        let mut parts = read(host, Some(rows), asks)?;
        for part in parts.iter_mut().filter(|part| part.waits()) {
            part.count_expiries(host)?;
        }
        let seen = std::mem::replace(&mut before, versions()?);
        Ok((seen == before).then_some(parts))
    })
}

/// Reads and decides asks at one instant, on the latest state, without locks.
fn read<'a>(host: &impl Host, rows: Option<&dyn Rows>, asks: &'a [Ask<'a>]) -> Result<Parts<'a>> {
    tries(host, || {
        let mut seen = Vec::with_capacity(asks.len());
        for ask in asks {
            host.check_for_interrupts();
            seen.push((ask, read_one(host, rows, ask)?));
        }
        let now = host.now();
        if seen.iter().any(|(ask, seen)| seen.is_over(&ask.target, now)) {
            return Ok(None);
        }
        let mut parts = Vec::with_capacity(asks.len());
        for (ask, seen) in seen {
            host.check_for_interrupts();
            parts.push(Part::decide(host, ask, seen, now)?);
        }
        Ok(Some(parts))
    })
}

/// Reads a limit's contents and the hold with the call's id, as if expired holds were applied, unless they don't
/// matter.
fn read_one<'a>(
    host: &impl Host,
    rows: Option<&dyn Rows>,
    ask: &'a Ask<'a>,
) -> Result<Contents<'a>> {
    let target = &ask.target;
    let is_past = |own: &HoldRow, now| own.hold.returns() && own.hold.expires_at <= now;
    let is_denied = |now| ask.block(now).is_some() || ask.never_passes(now);
    if let Some(rows) = rows
        && is_denied(host.now())
        && let Some(found) = stores::peek_unexpired(host, rows, target)?
    {
        let own = ask.own_of_state(host, rows)?;
        let now = host.now();
        if !own.as_ref().is_some_and(|own| is_past(own, now)) {
            let seen = Contents { own, left_out_at: Some(now), ..Contents::read(found) };
            let part = Part::decide(host, ask, seen, now)?;
            if is_final(ask, &part.decided, now) {
                return Ok(part.contents);
            }
        }
    }
    let entry = ask.entry.filter(|_| target.store.is_in_memory());
    let mut seen = Contents::read(stores::peek(host, rows, target, entry)?.0);
    if let Some(rows) = rows {
        seen.own = ask.own_of_state(host, rows)?;
        let now = host.now();
        if let Some(past) = seen.own.take_if(|own| is_past(own, now)) {
            seen.own = Some(expiry::own_on_copy(host, rows, target, past)?);
        }
    }
    Ok(seen)
}

/// The outcome if rows of shards are locked and can't be waited for: a denial that can be retried at once.
fn at_once<H: Host>(host: &H, rows: &dyn Rows, asks: &[Ask]) -> Result<Outcome> {
    let mut parts = read(host, Some(rows), asks)?;
    for Part { ask, contents, decided } in &mut parts {
        let is_divided = contents.found.shards.undivided().is_none();
        let may_be = is_divided || asks.len() == 1 || matches!(ask.change, Change::Hold(_));
        decided.give_up(&ask.change, ask.target.limit(), may_be);
    }
    Ok(Outcome { decided: unchanged(parts), ok: false })
}
