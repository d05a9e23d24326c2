//! The takes of holds, of one limit or of several: all or nothing, decided under the locks of their rows.
//!
//! First all are decided without locks: a denial needs none. Then the rows are locked, in the order of name and key, what
//! the id holds is read again, and all are decided again at one instant.

use std::borrow::Cow;

use ratelimit_core::hold::{Hold, Took};
use ratelimit_core::kinds::Lease;
use ratelimit_core::{AsMany, Decision, Level, Micros, Shards, State, decide};

use ratelimit_faults::Fault;

use super::Terms;
use super::expiry::{self, Expiries};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Holds, Host, Row, RowAccess, Rows, Stored, TRIES, TupleId};
use crate::request::{Answer, LimitedBy};
use crate::stores::shards::{self, LockedRows};
use crate::stores::{self, Peeked, row};
use crate::target::{FOREVER, Store, Target, after_block};

/// What a hold is to have of a limit.
pub(super) struct Wanted<'a> {
    pub(super) target: Target<'a>,
    /// Tokens, or slots.
    pub(super) count: f64,
    /// As in [`Request`](crate::request::Request).
    pub(super) reserve: bool,
    /// Takes as many as there are, if these are at least this number.
    pub(super) at_least: Option<f64>,
    /// The config to store, as in [`HoldRow`].
    pub(super) config: Option<Vec<u8>>,
}

/// What was decided of it.
pub(super) struct Verdict {
    /// The decision on what is missing.
    pub(super) decision: Decision,
    pub(super) answer: Answer,
    /// What the hold had.
    pub(super) before: Option<HoldRow>,
    /// What it had that still counts: tokens, or live slots.
    pub(super) had: f64,
    /// Tokens that it takes now.
    pub(super) took: f64,
    /// Whether it asks for any: a repeat takes nothing.
    pub(super) asks: bool,
    /// Whether it passes: a dry run does that has not the tokens.
    pub(super) passes: bool,
    /// What is held after it; `None`: it has no hold.
    pub(super) after: Option<Hold>,
    /// The level before it.
    pub(super) level: Level,
}

impl Verdict {
    /// The tokens that are held if all pass; where there is no hold, those that would be.
    pub(super) fn held(&self, wanted: &Wanted) -> f64 {
        match (self.passes, self.decision.ok, &self.after) {
            (false, ..) => self.had,
            // Slots that it had may have been free since.
            (true, true, Some(_)) if wanted.target.limit().concurrency().is_some() => {
                if self.answer.enforced { self.had + self.took } else { wanted.count.max(self.had) }
            }
            // A dry run lets all pass, whatever the limit has.
            (true, true, Some(after)) if self.answer.enforced => after.count,
            _ => wanted.count.max(self.had),
        }
    }
}

/// What is known of it when it is decided.
struct Seen<'w> {
    shards: Cow<'w, Shards<'w>>,
    holds_due: Option<Micros>,
    hold: Option<HoldRow>,
    /// Whether holds that have expired are left out, since they don't matter while the key is blocked.
    is_unexpired: bool,
}

impl Wanted<'_> {
    /// Decides it at `now`; `lease` is the id of a lease of slots that the hold doesn't have yet.
    fn decide(&self, seen: &Seen, now: Micros, terms: &Terms, lease: Micros) -> Verdict {
        let (target, limit, state) = (&self.target, self.target.limit(), seen.shards.total(now));
        // One of tokens means nothing to slots, nor one of slots to tokens.
        let has_slots = limit.concurrency().is_some();
        let before = seen.hold.as_ref().map(|row| row.hold);
        let before = before.filter(|before| before.lease.is_some() == has_slots);
        let lease = before.and_then(|hold| hold.lease).unwrap_or(lease);
        let had = match (&state, before) {
            (State::Leases(leases), _) => {
                let own = leases.leases.iter().filter(|own| own.id == lease && own.is_live(now));
                own.count() as f64
            }
            (_, before) => before.map_or(0.0, |before| before.count),
        };
        let missing = (self.count - had).max(0.0);
        let asks = missing > 0.0 || before.is_none();
        let blocked = target.block(now);
        let (mut decision, took) = self.on_state(&state, now, before.as_ref(), terms, lease);
        if let Some(until) = blocked {
            // A state that is too far in the future now need not be so then.
            let at = if until == FOREVER { now } else { until };
            let later = seen.shards.total(at);
            let then = self.on_state(&later, at, before.as_ref(), terms, lease).0;
            let rest = if then.ok || !target.definition.enforce {
                Some(Micros(0))
            } else {
                then.retry_after
            };
            let retry_after = after_block(until, now, |_| rest);
            decision =
                Decision { ok: false, retry_after, level: seen.shards.level(now), state: None };
        }
        let answer = target.answer(&decision, decision.level, now).of_block(blocked);
        let passes = decision.ok || !answer.enforced;
        let is_held = passes && target.store != Store::Nowhere && (decision.ok || before.is_some());
        let wait = decision.retry_after.filter(|_| decision.ok);
        let expires_at = now.plus(wait.unwrap_or(Micros(0))).plus(terms.ttl);
        let took = if decision.ok { took } else { 0.0 };
        let after = is_held.then(|| match limit.concurrency() {
            Some(_) if had + took > 0.0 => {
                let until = before.map_or(expires_at, |before| before.expires_at.max(expires_at));
                let taken_at = before.map_or(now, |before| before.taken_at);
                Hold::of_slots(had + took, lease, taken_at, until)
            }
            _ => {
                let after = decision.state.as_ref().unwrap_or(&state);
                let before = before.as_ref();
                let taken = Took { tokens: took, wait };
                let hold = Hold::of(before, limit, after, now, taken, expires_at, terms.charge);
                // A sum may miss it by its last bit.
                if took == missing {
                    Hold { count: hold.count.max(self.count), ..hold }
                } else {
                    hold
                }
            }
        });
        let (level, before) = (seen.shards.level(now), seen.hold.clone());
        Verdict { decision, answer, before, had, took, asks, passes, after, level }
    }

    /// Decides what is missing on a state, and the tokens that it takes; whether the key is blocked or not.
    fn on_state(
        &self,
        state: &State,
        now: Micros,
        before: Option<&Hold>,
        terms: &Terms,
        lease: Micros,
    ) -> (Decision, f64) {
        let limit = self.target.limit();
        let lease = Lease { id: lease, expires_at: now.plus(terms.ttl) };
        if let Some(decision) = limit.hold_slots(state, now, self.count, lease) {
            let own = |state: &State| match state {
                State::Leases(leases) => leases
                    .leases
                    .iter()
                    .filter(|own| own.id == lease.id && own.is_live(now))
                    .count(),
                _ => 0,
            };
            let took = decision.state.as_ref().map_or(0, |after| own(after) - own(state));
            return (decision, took as f64);
        }
        let had = before.map_or(0.0, |before| before.count);
        let missing = (self.count - had).max(0.0);
        if let Some(before) = before.filter(|_| missing == 0.0) {
            // The start of a reservation stays.
            let (retry_after, level) = (before.wait(limit, state, now), limit.level(state, now));
            return (Decision { ok: true, retry_after, level, state: None }, 0.0);
        }
        let take = |count| decide(limit, state, now, count, self.reserve);
        match self.at_least {
            // In a top-up it means the total.
            Some(at_least) => {
                let at_least = (at_least - had).max(0.0);
                AsMany { count: missing, at_least }.decide(limit.capacity(), take)
            }
            None => (take(missing), missing),
        }
    }

    /// Has a refusal know what expires.
    #[cold]
    fn wait<H: Host>(
        &self,
        host: &H,
        verdict: &mut Verdict,
        seen: &Seen,
        terms: &Terms,
    ) -> Result<()> {
        let now = verdict.answer.now;
        let ([state], None) = (seen.shards.states(), self.target.limit().concurrency()) else {
            return Ok(());
        };
        let before = verdict.before.as_ref().map(|row| row.hold);
        let always = verdict.answer.blocked.is_some() && !self.target.definition.enforce;
        let decide = |state: &State, at: Micros| {
            let decision = self.on_state(state, at, before.as_ref(), terms, Micros(0)).0;
            (decision.ok || always, decision.retry_after)
        };
        let (row, denied) = ((state, seen.holds_due), verdict.answer.retry_after);
        let wait = Expiries::wait(host, &self.target, row, now, denied, decide)?;
        (verdict.answer.retry_after, verdict.decision.retry_after) = (wait, wait);
        Ok(())
    }
}

/// Takes what is wanted, which is in the order of name and key, for a hold of this id, or nothing; whether it did.
///
/// # Errors
/// [`LimiterError::BadState`], [`LimiterError::NotWritten`] (55000).
pub(super) fn take<'w, H: Host>(
    host: &H,
    wanted: &'w [Wanted<'w>],
    id: &[u8],
    terms: &Terms,
) -> Result<(Vec<Verdict>, bool)> {
    let leases = leases(host, wanted)?;
    if wanted.iter().all(|wanted| wanted.target.store == Store::Nowhere) {
        let seen = peek(host, None, wanted, id, terms)?;
        return Ok(decide_all(host, wanted, &seen, terms, &leases));
    }
    host.refuse_read_only()?;
    host.with_rows(RowAccess::Write, |rows| {
        if let [only] = wanted
            && let Some(verdict) = take_at_once(host, rows, only, id, terms)?
        {
            return Ok((vec![verdict], true));
        }
        let targets: Vec<&Target> = wanted.iter().map(|wanted| &wanted.target).collect();
        let mut before = None;
        for _ in 0..TRIES {
            host.check_for_interrupts();
            let mut seen = peek(host, Some(rows), wanted, id, terms)?;
            expire_own(host, rows, wanted, &mut seen)?;
            let (mut verdicts, ok) = decide_all(host, wanted, &seen, terms, &leases);
            let is_over = |(seen, verdict): (&Seen, &Verdict)| {
                is_past(seen.holds_due, &verdicts)
                    || seen.is_unexpired && verdict.answer.blocked.is_none()
            };
            if seen.iter().zip(&verdicts).any(is_over) {
                continue; // it has expired since it was read, or the block has ended
            }
            if !ok {
                refuse(host, wanted, &mut verdicts, &seen, terms)?;
                // A hold may have been settled between the reads of its row and of the limit's.
                if terms.id.is_some() || seen.iter().any(|seen| seen.holds_due.is_some()) {
                    let now = expiry::contents(rows, &targets)?;
                    if !before.as_ref().is_some_and(|seen| expiry::are_versions(&now, seen)) {
                        before = Some(now);
                        continue;
                    }
                }
                return Ok((verdicts, false));
            }
            let mut refused = None;
            // A dry run that has not the tokens holds none, and needs no row.
            let holds: Vec<bool> = verdicts.iter().map(|verdict| verdict.after.is_some()).collect();
            let taken = host.attempt(|| {
                let seen = seen.into_iter().zip(holds).collect();
                take_locked(host, rows, wanted, seen, id, terms, &leases, &mut refused)
            });
            match taken {
                Err(LimiterError::Busy) => return Ok((at_once(wanted, verdicts), false)),
                Ok(Some(verdicts)) => return Ok((verdicts, true)),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            if let Some(refused) = refused {
                return Ok((refused, false));
            }
        }
        Err(LimiterError::not_written())
    })
}

/// A hold of a limit in one row, decided on what the row has.
struct Step {
    verdict: Verdict,
    hold: Hold,
    /// What the row has after it.
    after: Stored,
    holds_due: Option<Micros>,
}

impl Step {
    /// Decides; `None`: it doesn't pass, or needs more steps.
    fn decide<H: Host>(
        host: &H,
        wanted: &Wanted,
        row: Option<&Row>,
        id: &[u8],
        terms: &Terms,
    ) -> Result<Option<Step>> {
        let (target, limit) = (&wanted.target, wanted.target.limit());
        let stored = row.map(|row| &row.stored);
        if stored.is_some_and(|stored| {
            stored.is_marker() || row::begins_anew(target, stored, host.now())
        }) {
            return Ok(None);
        }
        // A random id has no hold yet.
        let own = match terms.id {
            Some(_) => host.with_holds(|holds| holds.one(id, target.name, target.key))?,
            None => None,
        };
        let now = host.now();
        if row.is_some_and(|row| expiry::is_due(target, row, now)) {
            return Ok(None);
        }
        let state = target.state(limit, stored, now)?.into_owned();
        let holds_due = row.and_then(|row| row.holds_due);
        let shards = Cow::Owned(Shards::new(limit, vec![state]));
        let seen = Seen { shards, holds_due, hold: own, is_unexpired: false };
        let verdict = wanted.decide(&seen, now, terms, Micros(0));
        let Some(hold) = verdict.after else { return Ok(None) };
        let after = match (&verdict.decision.state, stored) {
            (Some(after), _) => Stored::State(after.clone()),
            (None, Some(stored)) => stored.clone(),
            (None, None) => Stored::Reset { ts: now },
        };
        let holds_due = match Fault::ExpiresForgotten.is_on() {
            true => holds_due,
            false => hold.first_expiry(holds_due),
        };
        Ok(Some(Step { verdict, hold, after, holds_due }))
    }

    /// Writes the hold, once the row is locked; false if it is not as it was when this was decided.
    fn put<H: Host>(&self, host: &H, wanted: &Wanted, id: &[u8]) -> Result<bool> {
        let Target { name, key, .. } = wanted.target;
        host.with_holds(|holds| {
            if let Some(before) = &self.verdict.before {
                let own = holds.one(id, name, key)?;
                if own.is_none_or(|own| own.hold != before.hold) {
                    return Ok(false);
                }
            }
            put(holds, wanted, &self.verdict, id, self.hold)
        })
    }
}

/// Takes what is wanted of a limit in one row: decided and written in one step where the rows can, as a take without a
/// hold. `None`: nothing was taken, or it needs more steps.
fn take_at_once<H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &Wanted,
    id: &[u8],
    terms: &Terms,
) -> Result<Option<Verdict>> {
    let (target, row) = (&wanted.target, wanted.target.row(0));
    if target.store != Store::Row || target.limit().concurrency().is_some() {
        return Ok(None);
    }
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let seen = rows.read(row)?;
        if seen.as_ref().is_some_and(|seen| expiry::is_due(target, seen, host.now())) {
            if !passes_after_expiry(host, rows, wanted, id, terms)? {
                return Ok(None); // a denial writes nothing
            }
            expiry::apply(host, rows, target)?;
            continue;
        }
        // What is decided on a hold of this id that changes meanwhile is decided again under the lock.
        let step = Step::decide(host, wanted, seen.as_ref(), id, terms)?;
        let Some(step) = step else { return Ok(None) };
        let written = match &seen {
            None => rows.insert(row, &step.after, step.holds_due, true)?,
            Some(_) if rows.facts().locks_first => {
                return match rows.lock(row, false)? {
                    Some(own) => {
                        let tuple = own.tuple;
                        decide_locked(host, rows, wanted, Some(own), Some(tuple), id, terms)
                    }
                    None => Ok(None),
                };
            }
            Some(seen) => rows.replace(row, seen, &step.after, step.holds_due, true)?,
        };
        if !written {
            continue;
        }
        let has_waited = host.now().minus(step.verdict.answer.now) >= rows.facts().patience;
        if !has_waited && step.put(host, wanted, id)? {
            return Ok(Some(step.verdict));
        }
        return decide_locked(host, rows, wanted, seen, None, id, terms);
    }
    Ok(None)
}

/// Whether a hold of tokens has them once what has expired is applied, without doing so.
fn passes_after_expiry<H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &Wanted,
    id: &[u8],
    terms: &Terms,
) -> Result<bool> {
    let wanted = std::slice::from_ref(wanted);
    let mut seen = peek(host, Some(rows), wanted, id, terms)?;
    expire_own(host, rows, wanted, &mut seen)?;
    let (verdicts, ok) = decide_all(host, wanted, &seen, terms, &[Micros(0)]);
    Ok(ok && verdicts.iter().all(|verdict| verdict.decision.ok))
}

/// Decides again under the lock of the row, as if it were still as it was `seen`, and writes. `None`: nothing was
/// taken.
fn decide_locked<H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &Wanted,
    seen: Option<Row>,
    mut locked: Option<TupleId>,
    id: &[u8],
    terms: &Terms,
) -> Result<Option<Verdict>> {
    let row = wanted.target.row(0);
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let own = match locked.take() {
            Some(tuple) => tuple,
            None => rows.lock(row, true)?.ok_or_else(LimiterError::not_written)?.tuple,
        };
        let Some(step) = Step::decide(host, wanted, seen.as_ref(), id, terms)? else {
            let full = Stored::Reset { ts: host.now() };
            let (stored, holds_due) =
                seen.map_or((full, None), |seen| (seen.stored, seen.holds_due));
            rows.update(row, own, &stored, holds_due)?;
            return Ok(None);
        };
        rows.update(row, own, &step.after, step.holds_due)?;
        if step.put(host, wanted, id)? {
            return Ok(Some(step.verdict));
        }
    }
    Err(LimiterError::not_written())
}

/// Has the holds of the id be as they are after their expiry, which is not written yet.
fn expire_own<H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &[Wanted],
    seen: &mut [Seen],
) -> Result<()> {
    for (wanted, seen) in wanted.iter().zip(seen) {
        let now = host.now();
        let is_due = |row: &mut HoldRow| row.hold.returns() && row.hold.expires_at <= now;
        if let Some(own) = seen.hold.take_if(is_due) {
            seen.hold = Some(expiry::own_on_copy(host, rows, &wanted.target, own)?);
        }
    }
    Ok(())
}

/// An id of a lease for each that wants slots.
fn leases<H: Host>(host: &H, wanted: &[Wanted]) -> Result<Vec<Micros>> {
    let lease = |wanted: &Wanted| match wanted.target.limit().concurrency() {
        Some(_) => Ok(Lease::random_id(host.unguessable()?)),
        None => Ok(Micros(0)),
    };
    wanted.iter().map(lease).collect()
}

/// Whether an expiry has passed at the instant of the verdicts.
fn is_past(holds_due: Option<Micros>, verdicts: &[Verdict]) -> bool {
    let now = verdicts.first().map(|verdict| verdict.answer.now);
    holds_due.zip(now).is_some_and(|(holds_due, now)| holds_due <= now)
}

/// Reads what is known of each, without locks.
fn peek<'w, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    wanted: &'w [Wanted<'w>],
    id: &[u8],
    terms: &Terms,
) -> Result<Vec<Seen<'w>>> {
    let peek = |wanted: &'w Wanted<'w>| {
        host.check_for_interrupts();
        if let Some(rows) = rows.filter(|_| wanted.target.block(host.now()).is_some())
            && let Some(seen) = blocked(host, rows, wanted, id, terms)?
        {
            return Ok(seen);
        }
        let Peeked { shards, holds_due, .. } = stores::peek_with(host, rows, &wanted.target, None)?;
        // A random id has no hold yet.
        let hold = match (terms.id, wanted.target.store) {
            (None, _) | (_, Store::Nowhere) => None,
            _ => host.with_holds(|holds| holds.one(id, wanted.target.name, wanted.target.key))?,
        };
        let hold = match (hold, rows) {
            (Some(hold), Some(rows)) => of_state(host, rows, &wanted.target, hold)?,
            (hold, _) => hold,
        };
        Ok(Seen { shards: Cow::Owned(shards), holds_due, hold, is_unexpired: false })
    };
    wanted.iter().map(peek).collect()
}

/// A hold, unless its state is of another kind, or ignored, and so begins again.
fn of_state<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    hold: HoldRow,
) -> Result<Option<HoldRow>> {
    let begins_anew = |row: Row| row::begins_anew(target, &row.stored, host.now());
    let is_gone = rows.read(target.row(0))?.is_some_and(begins_anew);
    Ok(Some(hold).filter(|_| !is_gone))
}

/// Reads what is known of a blocked key whose answer no other hold that has expired can change; `None`: none has, or it
/// matters.
#[cold]
fn blocked<'w, H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &'w Wanted<'w>,
    id: &[u8],
    terms: &Terms,
) -> Result<Option<Seen<'w>>> {
    let Target { name, key, .. } = wanted.target;
    let peeked = stores::peek_unexpired(host, rows, &wanted.target)?;
    let Some(Peeked { shards, .. }) = peeked else { return Ok(None) };
    let hold = match terms.id {
        None => None,
        Some(_) => match host.with_holds(|holds| holds.one(id, name, key))? {
            Some(hold) => of_state(host, rows, &wanted.target, hold)?,
            None => None,
        },
    };
    let now = host.now();
    let is_past = |row: &HoldRow| row.hold.returns() && row.hold.expires_at <= now;
    if hold.as_ref().is_some_and(is_past) {
        return Ok(None);
    }
    let seen = Seen { shards: Cow::Owned(shards), holds_due: None, hold, is_unexpired: true };
    let answer = wanted.decide(&seen, now, terms, Micros(0)).answer;
    let is_final = match answer.blocked {
        Some(FOREVER) => true,
        Some(until) => answer.retry_after == Some(until.minus(now)),
        None => false,
    };
    Ok(Some(seen).filter(|_| is_final))
}

/// Decides all at one instant, and whether all pass.
fn decide_all<H: Host>(
    host: &H,
    wanted: &[Wanted],
    seen: &[Seen],
    terms: &Terms,
    leases: &[Micros],
) -> (Vec<Verdict>, bool) {
    let now = host.now();
    let each = wanted.iter().zip(seen).zip(leases);
    let verdicts: Vec<Verdict> =
        each.map(|((wanted, seen), &lease)| wanted.decide(seen, now, terms, lease)).collect();
    let ok = verdicts.iter().all(|verdict| verdict.passes);
    (verdicts, ok)
}

/// Has the refusals among the verdicts know what expires.
fn refuse<H: Host>(
    host: &H,
    wanted: &[Wanted],
    verdicts: &mut [Verdict],
    seen: &[Seen],
    terms: &Terms,
) -> Result<()> {
    for ((wanted, verdict), seen) in wanted.iter().zip(verdicts).zip(seen) {
        if !verdict.passes && seen.holds_due.is_some() {
            wanted.wait(host, verdict, seen, terms)?;
        }
    }
    Ok(())
}

/// The verdicts where rows are locked that can't be waited for: to be retried at once.
fn at_once(wanted: &[Wanted], mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
    for (wanted, verdict) in wanted.iter().zip(&mut verdicts) {
        (verdict.decision.ok, verdict.passes, verdict.after) = (false, false, None);
        (verdict.answer.ok, verdict.answer.retry_after) = (false, Some(Micros(0)));
        verdict.answer.limited_by = Some(LimitedBy::of(wanted.target.limit()));
        verdict.decision.retry_after = Some(Micros(0));
    }
    verdicts
}

/// Locks the rows, decides again, and writes; `None` where they must be read again, or with `refused`.
#[allow(clippy::too_many_arguments)]
fn take_locked<'w, H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &'w [Wanted<'w>],
    seen: Vec<(Seen<'w>, bool)>,
    id: &[u8],
    terms: &Terms,
    leases: &[Micros],
    refused: &mut Option<Vec<Verdict>>,
) -> Result<Option<Vec<Verdict>>> {
    let mut locked = Vec::with_capacity(wanted.len());
    for (wanted, (seen, holds)) in wanted.iter().zip(seen) {
        host.check_for_interrupts();
        let shards = seen.shards.into_owned();
        locked.push(match wanted.target.store {
            _ if !holds => LockedRows::none(shards, None),
            _ => match shards::lock(host, rows, &wanted.target, shards, 0.0, false)? {
                Some(locked) => locked,
                None => return Ok(None),
            },
        });
    }
    loop {
        for (wanted, locked) in wanted.iter().zip(&mut locked) {
            if locked.holds_due.is_some_and(|holds_due| holds_due <= host.now())
                && !locked.apply_expired(host, rows, &wanted.target)?
            {
                return Ok(None);
            }
        }
        let mut seen = Vec::with_capacity(wanted.len());
        for (wanted, locked) in wanted.iter().zip(&mut locked) {
            locked.begin_anew(host, &wanted.target)?;
            let Target { name, key, store, .. } = wanted.target;
            let hold = match (terms.id, store) {
                (None, _) | (_, Store::Nowhere) => None,
                _ => host.with_holds(|holds| holds.one(id, name, key))?,
            };
            // A locked row has begun again by now.
            let hold = match hold {
                Some(hold) if locked.locked.is_empty() => {
                    of_state(host, rows, &wanted.target, hold)?
                }
                hold => hold,
            };
            let shards = Cow::Owned(locked.shards.clone());
            seen.push(Seen { shards, holds_due: locked.holds_due, hold, is_unexpired: false });
        }
        let (mut verdicts, ok) = decide_all(host, wanted, &seen, terms, leases);
        if seen.iter().any(|seen| is_past(seen.holds_due, &verdicts)) {
            continue;
        }
        if !ok {
            refuse(host, wanted, &mut verdicts, &seen, terms)?;
            *refused = Some(verdicts);
            return Ok(None);
        }
        let is_locked = |(verdict, locked): (&Verdict, &LockedRows)| {
            verdict.after.is_none() || !locked.locked.is_empty()
        };
        if !verdicts.iter().zip(&locked).all(is_locked) {
            return Ok(None); // it has the tokens by now
        }
        let written = write(host, rows, wanted, &mut locked, &verdicts, id)?;
        return Ok(written.then_some(verdicts));
    }
}

/// Writes the rows and the holds, which are locked; false if a hold is gone.
fn write<H: Host>(
    host: &H,
    rows: &dyn Rows,
    wanted: &[Wanted],
    locked: &mut [LockedRows],
    verdicts: &[Verdict],
    id: &[u8],
) -> Result<bool> {
    for ((wanted, verdict), locked) in wanted.iter().zip(verdicts).zip(locked) {
        let Some(hold) = verdict.after else { continue };
        if let Some(after) = &verdict.decision.state {
            locked.expires_by(&hold);
            let mut shards = locked.shards.clone();
            let (now, before) = (verdict.answer.now, locked.shards.total(verdict.answer.now));
            locked.write(host, rows, &wanted.target, &mut shards, now, (&before, after))?;
        }
        let written = host.with_holds(|holds| put(holds, wanted, verdict, id, hold))?;
        if !written {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes what a hold has of a limit; false if it is gone that was there, or there that was not.
fn put(
    holds: &dyn Holds,
    wanted: &Wanted,
    verdict: &Verdict,
    id: &[u8],
    hold: Hold,
) -> Result<bool> {
    let Target { name, key, .. } = wanted.target;
    match &verdict.before {
        Some(before) => holds.update(&HoldRow { hold, ..before.clone() }),
        None => {
            let config = wanted.config.clone();
            let (id, name, key) = (id.to_vec(), name.to_vec(), key.to_vec());
            holds.insert(&HoldRow { id, name, key, hold, config })
        }
    }
}
