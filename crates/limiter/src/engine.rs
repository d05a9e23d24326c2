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
use crate::ports::{HoldRow, Host, Row, RowAccess, Rows, TRIES};
use crate::request::Answer;
use crate::stores;
use crate::stores::expiry::{self, Found};
use crate::stores::shards::{self, Extent};
use crate::target::{FOREVER, Store, Target};

/// The decisions on asks, in their order.
pub(crate) struct Outcome {
    pub(crate) decided: Vec<Decided>,
    /// Whether they were made.
    pub(crate) ok: bool,
}

/// The contents of a limit, read without locks.
struct View<'a> {
    found: Found<'a>,
    /// The hold with the call's id.
    own: Option<HoldRow>,
    /// The instant of the read, if it left out expired holds because they don't matter: the key is blocked, or even a
    /// full limit denies the call.
    left_out_at: Option<Micros>,
}

impl View<'_> {
    /// Whether a hold has expired since the read, or the block has ended for which expired holds were left out.
    fn is_over(&self, ask: &Ask, now: Micros) -> bool {
        let block = |at| ask.target.block(at);
        self.found.is_due(now) || self.left_out_at.is_some_and(|at| block(at) != block(now))
    }
}

impl Ask<'_> {
    /// Reads the hold with the call's id. A random id has none yet.
    #[inline]
    pub(crate) fn own<H: Host>(&self, host: &H) -> Result<Option<HoldRow>> {
        let Target { name, key, store, .. } = self.target;
        match &self.change {
            Change::Hold(hold) if hold.terms.id.is_some() && store != Store::Nowhere => {
                host.with_holds(|holds| holds.one(hold.id, name, key))
            }
            _ => Ok(None),
        }
    }

    /// Reads the hold with the call's id, unless the state of its row begins again: it is of another kind, or ignored.
    fn own_of_state<H: Host>(&self, host: &H, rows: &dyn Rows) -> Result<Option<HoldRow>> {
        let Some(own) = self.own(host)? else { return Ok(None) };
        let row = rows.read(self.target.row(0))?;
        let is_gone = row.is_some_and(|row| self.target.begins_anew(&row.stored, host.now()));
        Ok(Some(own).filter(|_| !is_gone))
    }

    /// Writes the hold; `own` is the hold before. False if `own` is gone, or if another hold has appeared in its place.
    #[inline]
    pub(crate) fn put<H: Host>(
        &self,
        host: &H,
        own: Option<&HoldRow>,
        decided: &Decided,
    ) -> Result<bool> {
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
pub(crate) fn is_final(ask: &Ask, decided: &Decided, now: Micros) -> bool {
    match ask.block(now) {
        Some(FOREVER) => true,
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

/// Has a denial's wait count the holds that will expire: the time until the call passes, if no other call takes,
/// settles or extends. `own`: the hold with the call's id.
#[cold]
pub(crate) fn count_expiries<H: Host>(
    host: &H,
    ask: &Ask,
    found: &Found,
    own: Option<&HoldRow>,
    decided: &mut Decided,
) -> Result<()> {
    let target = &ask.target;
    let limit = target.limit();
    if limit.concurrency().is_some() {
        return Ok(());
    }
    let always = decided.answer.blocked.is_some() && !target.definition.enforce;
    let refused = |decided: &Decided| decided.answers().find(|answer| !answer.ok).cloned();
    let decide = |state: &State, at: Micros| {
        let shards = Shards::new(limit, from_ref(state));
        match ask.decide_unblocked(host, &shards, own.map(|own| &own.hold), at) {
            Ok(decided) => match refused(&decided) {
                None => (true, None),
                Some(refused) => (always, refused.retry_after),
            },
            Err(_) => (false, None),
        }
    };
    let denied = refused(decided).and_then(|refused| refused.retry_after);
    let wait = expiry::wait(host, target, found, decided.answer.now, denied, decide)?;
    for answer in decided.answers_mut().filter(|answer| !answer.ok) {
        answer.retry_after = wait;
    }
    Ok(())
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
pub(crate) fn would_pass<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask) -> Result<bool> {
    let peek = read(host, Some(rows), from_ref(ask))?;
    Ok(peek.iter().flat_map(|(_, decided)| decided.answers()).all(|answer| answer.ok))
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
        _ => row::apply(host, rows, ask),
    }
}

/// Makes all of the asks, of which some are in the table, or none.
fn make<H: Host>(host: &H, rows: &dyn Rows, asks: &[Ask]) -> Result<Outcome> {
    let mut extent = Extent::Few;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let peek = peek(host, Some(rows), asks)?;
        let ok = peek.iter().all(|(_, decided)| decided.passes());
        if !ok || !peek.iter().any(|(_, decided)| decided.changes()) {
            return Ok(Outcome { decided: unchanged(peek), ok });
        }
        let mut refused = None;
        let made =
            host.attempt(|| commit::commit(host, rows, asks, Some(peek), extent, &mut refused));
        extent = extent.max(Extent::All);
        match (made, asks) {
            // No token of a credit may be lost.
            (Err(LimiterError::Busy), [credit @ Ask { change: Change::Credit { .. }, .. }]) => {
                if let Some(decided) = shards::credit_own(host, rows, credit)? {
                    return Ok(Outcome { decided: vec![decided], ok: true });
                }
                extent = Extent::AllWaiting;
            }
            (Err(LimiterError::Busy), _) => return at_once(host, rows, asks),
            (Err(error), _) => return Err(error),
            (Ok(Some(decided)), _) => return Ok(Outcome { decided, ok: true }),
            (Ok(None), _) => {}
        }
        if let Some(decided) = refused {
            return Ok(Outcome { decided, ok: false });
        }
    }
    Err(LimiterError::not_written())
}

/// Settles holds; the asks are in the order of name and key. Decides only under the locks, since the holds' contents
/// count.
pub(crate) fn settle<H: Host>(host: &H, asks: &[Ask]) -> Result<Vec<Decided>> {
    host.with_rows(RowAccess::Write, |rows| {
        for _ in 0..TRIES {
            host.check_for_interrupts();
            if let Some(decided) = commit::commit(host, rows, asks, None, Extent::All, &mut None)? {
                return Ok(decided);
            }
        }
        Err(LimiterError::not_written())
    })
}

/// Asks that were read and decided without locks.
type Peek<'a> = Vec<(View<'a>, Decided)>;

/// The decisions, with the levels of the unchanged limits.
fn unchanged(peek: Peek) -> Vec<Decided> {
    let unchanged = |(seen, mut decided): (View, Decided)| {
        decided.set_level(seen.found.shards.level(decided.answer.now));
        decided
    };
    peek.into_iter().map(unchanged).collect()
}

/// Reads and decides asks on the latest state, without locks. `rows` is `None` if no limit is in the table. Denials
/// count the holds that will expire.
fn peek<'a, H: Host>(host: &H, rows: Option<&dyn Rows>, asks: &'a [Ask<'a>]) -> Result<Peek<'a>> {
    let first = read(host, rows, asks)?;
    let Some(rows) = rows else { return Ok(first) };
    let waits = |(seen, decided): &(View, Decided)| seen.found.has_holds() && !decided.passes();
    // A hold may have been settled between the reads of its row and of the limit's.
    let has_id = |ask: &Ask| matches!(&ask.change, Change::Hold(hold) if hold.terms.id.is_some());
    let is_denied = first.iter().any(|(_, decided)| !decided.passes());
    let counts = first.iter().any(waits) || asks.iter().any(has_id);
    if !(is_denied && counts) {
        return Ok(first);
    }
    // Reads again while a row changes: a wait would then be of a state that never was. A settlement, say, gives tokens
    // to the row and takes the hold away.
    let mut before = versions(rows, asks)?;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let mut peek = read(host, Some(rows), asks)?;
        for (ask, peek) in asks.iter().zip(&mut peek).filter(|(_, peek)| waits(peek)) {
            let (seen, decided) = peek;
            count_expiries(host, ask, &seen.found, seen.own.as_ref(), decided)?;
        }
        let after = versions(rows, asks)?;
        let is_same = |(one, other): (&Option<Row>, &Option<Row>)| match (one, other) {
            (Some(one), Some(other)) => one.is_version(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        if after.iter().zip(&before).all(is_same) {
            return Ok(peek);
        }
        before = after;
    }
    Err(LimiterError::not_written())
}

/// Reads row 0 of each limit in the table.
fn versions(rows: &dyn Rows, asks: &[Ask]) -> Result<Vec<Option<Row>>> {
    let read = |ask: &Ask| match ask.target.store.is_in_table() {
        false => Ok(None),
        true => rows.read(ask.target.row(0)),
    };
    asks.iter().map(read).collect()
}

/// Reads and decides asks at one instant, on the latest state, without locks.
fn read<'a, H: Host>(host: &H, rows: Option<&dyn Rows>, asks: &'a [Ask<'a>]) -> Result<Peek<'a>> {
    for _ in 0..TRIES {
        let mut seen = Vec::with_capacity(asks.len());
        for ask in asks {
            host.check_for_interrupts();
            seen.push(read_one(host, rows, ask)?);
        }
        let now = host.now();
        if asks.iter().zip(&seen).any(|(ask, seen)| seen.is_over(ask, now)) {
            continue;
        }
        let decide = |(ask, seen): (&Ask, View<'a>)| {
            host.check_for_interrupts();
            let decided = ask.decide(host, &seen.found.shards, seen.own.as_ref(), now)?;
            Ok((seen, decided))
        };
        return asks.iter().zip(seen).map(decide).collect();
    }
    Err(LimiterError::not_written())
}

/// Reads a limit's contents and the hold with the call's id, as if expired holds were applied.
fn read_one<'a, H: Host>(host: &H, rows: Option<&dyn Rows>, ask: &'a Ask<'a>) -> Result<View<'a>> {
    let target = &ask.target;
    if let Some(rows) = rows
        && let Some(seen) = read_unexpired(host, rows, ask)?
    {
        return Ok(seen);
    }
    let entry = ask.entry.filter(|_| target.store.is_in_memory());
    let (found, _) = stores::peek(host, rows, target, entry)?;
    let mut own = None;
    if let Some(rows) = rows {
        own = ask.own_of_state(host, rows)?;
        let now = host.now();
        if let Some(past) = own.take_if(|own| is_past(own, now)) {
            own = Some(expiry::own_on_copy(host, rows, target, past)?);
        }
    }
    Ok(View { found, own, left_out_at: None })
}

/// Reads a limit's contents without applying expired holds; `None`: there are none, or they matter.
fn read_unexpired<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &'a Ask<'a>,
) -> Result<Option<View<'a>>> {
    let (target, now) = (&ask.target, host.now());
    if ask.block(now).is_none() && !ask.never_passes(now) {
        return Ok(None);
    }
    let Some(found) = stores::peek_unexpired(host, rows, target)? else { return Ok(None) };
    let own = ask.own_of_state(host, rows)?;
    let now = host.now();
    if own.as_ref().is_some_and(|own| is_past(own, now)) {
        return Ok(None);
    }
    let seen = View { found, own, left_out_at: Some(now) };
    let decided = ask.decide(host, &seen.found.shards, seen.own.as_ref(), now)?;
    Ok(Some(seen).filter(|_| is_final(ask, &decided, now)))
}

/// Whether a hold that gives tokens back has expired.
fn is_past(row: &HoldRow, now: Micros) -> bool {
    row.hold.returns() && row.hold.expires_at <= now
}

/// The outcome if rows of shards are locked and can't be waited for: a denial that can be retried at once.
fn at_once<H: Host>(host: &H, rows: &dyn Rows, asks: &[Ask]) -> Result<Outcome> {
    let mut peek = read(host, Some(rows), asks)?;
    for (ask, (seen, decided)) in asks.iter().zip(&mut peek) {
        let is_divided = seen.found.shards.undivided().is_none();
        let may_be = is_divided || asks.len() == 1 || matches!(ask.change, Change::Hold(_));
        decided.give_up(&ask.change, ask.target.limit(), may_be);
    }
    Ok(Outcome { decided: unchanged(peek), ok: false })
}
