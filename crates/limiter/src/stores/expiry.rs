//! Expires holds, as a step of its own before a call is decided, and computes the waits of denied calls, which count
//! that.
//!
//! A row names the first expiry of a hold of its key, so that a call without holds compares one number. Expired holds
//! are applied under the lock of the row; calls that only look compute that on a copy. While the limit is undefined,
//! exempt, or of a kind or store without holds, expired holds wait. Holds of keys without calls, and of limits
//! that have got shards since, give back when they are pruned.

use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::config::{Definition, StoreKind};
use ratelimit_core::hold::{Expiry, Hold, MAX_EXPIRIES, after_expiries, retry_after};
use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::{lock_or_busy, shards};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, KeyRef, Listing, Row, RowId, Rows, Stored, TRIES, Version};
use crate::target::{Store, Target, if_valid};

/// The contents of a limit as they were read, and when holds of its key are due.
pub struct Found<'a> {
    /// Its shards.
    pub shards: Shards<'a>,
    /// As in [`Version`], of the row of a limit without shards.
    pub(crate) due: Option<Micros>,
}

/// Contents without holds of the key.
impl<'a> From<Shards<'a>> for Found<'a> {
    fn from(shards: Shards<'a>) -> Found<'a> {
        Found { shards, due: None }
    }
}

impl Found<'_> {
    /// Whether holds of the key will give back.
    #[inline]
    pub(crate) fn has_holds(&self) -> bool {
        self.due.is_some()
    }

    /// Whether a hold may have expired.
    pub(crate) fn is_due(&self, now: Micros) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

/// The most expiries that are written in one step.
const MOST: i64 = 100_000;

/// The most holds of a key to give back at a time, if its limit has shards.
const MOST_OF_SHARDS: i64 = 10_000;

/// The earliest time of a clock: 4714 BC.
const EARLIEST: Micros = Micros(-210_866_803_200_000_000);

/// Whether a hold of the row's key that gives back to the target's limit may have expired.
#[inline]
pub(crate) fn is_due(target: &Target, row: &Row, now: Micros) -> bool {
    row.is_due(now) && may_return(target, &row.stored)
}

/// Whether tokens can come back to a target's limit in a row with these contents: not if the state is of another kind.
#[cold]
pub(crate) fn may_return(target: &Target, stored: &Stored) -> bool {
    returns(&target.definition) && stored.suits(target.limit()) != Some(false)
}

/// Whether a limit has holds that give tokens back.
pub(crate) fn returns(definition: &Definition) -> bool {
    let is_in_table = Store::from_definition(definition).is_in_table();
    is_in_table && definition.limit.can_be_credited()
}

/// The definitions of holds of one key: the one of name and key, or else the config of each hold.
pub(crate) struct Limits<'h, H> {
    host: &'h H,
    own: Option<Rc<Definition>>,
    /// The definition of the call, if there is one.
    called: Option<Rc<Definition>>,
    last: Option<(Vec<u8>, Option<Rc<Definition>>)>,
}

impl<'h, H: Host> Limits<'h, H> {
    pub(crate) fn new(host: &'h H, of: KeyRef, called: Option<&Target>) -> Result<Limits<'h, H>> {
        let own = if_valid(host.defined(of.0, of.1))?;
        let called = called.map(|target| target.definition.clone());
        Ok(Limits { host, own, called, last: None })
    }

    /// The definition to which a hold gives back when it expires: its own, or else the call's; `None`: neither has
    /// holds now.
    pub(crate) fn of_expiry(&mut self, hold: &HoldRow) -> Result<Option<Rc<Definition>>> {
        let own = self.of(hold)?.filter(|own| returns(own));
        Ok(own.or_else(|| self.called.clone().filter(|called| returns(called))))
    }

    /// The definition of a hold; `None`: it no longer has one, or no valid one.
    pub(crate) fn of(&mut self, hold: &HoldRow) -> Result<Option<Rc<Definition>>> {
        let (None, Some(config)) = (&self.own, &hold.config) else { return Ok(self.own.clone()) };
        if self.last.as_ref().is_none_or(|(last, _)| last != config) {
            let definition = match self.host.of_hold(config) {
                Err(LimiterError::Config(_)) => None,
                definition => Some(definition?),
            };
            self.last = Some((config.clone(), definition));
        }
        Ok(self.last.as_ref().and_then(|(_, definition)| definition.clone()))
    }
}

/// Computes a row after the expiries by `now`, of at most `most` holds, and these holds as they are afterwards. The row
/// is still due if there are more, or if one can't give back yet. `called` is the target of the call.
fn expired<H: Host>(
    host: &H,
    id: RowId,
    called: Option<&Target>,
    row: &Row,
    now: Micros,
    most: i64,
) -> Result<(Version, Vec<HoldRow>)> {
    let of = (id.name, id.key);
    if let Stored::Invalid { column, value, .. } = &row.stored {
        return Err(LimiterError::bad_state(H::utf8(id.name).into_owned(), column, value));
    }
    let from = row.holds_due.unwrap_or(now);
    host.with_key_holds(|holds| {
        let mut due = holds.returning(of, from, now, most)?;
        let (mut stored, mut limits) = (row.stored.clone(), Limits::new(host, of, called)?);
        for n in 0..due.len() {
            host.check_for_interrupts();
            let definition = limits.of_expiry(&due[n])?;
            let hold = &mut due[n].hold;
            let expired = match (&stored, &definition) {
                (Stored::State(state), Some(own)) if own.limit.accepts(state.shape()) => {
                    Some(hold.expired(&own.limit, state))
                }
                (Stored::State(_), _) => None, // it can't give back yet
                _ => Some((hold.lost(), None)), // otherwise full, and so without room
            };
            let Some((after, state)) = expired else {
                let version = Version { stored, holds_due: Some(hold.expires_at) };
                due.truncate(n);
                return Ok((version, due));
            };
            *hold = after;
            stored = state.map_or(stored, Stored::State);
        }
        let holds_due = match due.last().filter(|_| due.len() as i64 == most) {
            Some(last) => Some(last.hold.expires_at),
            None => holds.first_expiry(of, now.plus(Micros(1)))?,
        };
        Ok((Version { stored, holds_due }, due))
    })
}

/// Applies expired holds to the row of a key, as a step of its own. Doesn't lock a row that no longer needs that.
#[cold]
pub(crate) fn apply<H: Host>(host: &H, rows: &dyn Rows, target: &Target) -> Result<()> {
    let (id, called) = (target.row(0), Some(target));
    if let Some(row) = rows.lock(id, false)? {
        return apply_locked(host, rows, id, called, row).map(drop);
    }
    let applied = host.attempt(|| match rows.lock(id, true)? {
        Some(row) if is_due(target, &row, host.now()) => {
            apply_locked(host, rows, id, called, row).map(Some)
        }
        _ => Ok(None),
    });
    applied.map(drop)
}

/// Applies expired holds to a row that this transaction has locked; returns the row afterwards. `called` as in
/// [`expired`].
#[cold]
pub(crate) fn apply_locked<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
    called: Option<&Target>,
    mut row: Row,
) -> Result<Row> {
    for _ in 0..TRIES {
        let now = host.now();
        if !row.is_due(now) || row.stored.is_marker() {
            return Ok(row);
        }
        let (version, holds) = expired(host, id, called, &row, now, MOST)?;
        if holds.is_empty() && version.is_due(now) {
            return Ok(row); // waits
        }
        rows.update(id, row.tuple, &version)?;
        if !holds.is_empty() && !Fault::ExpiredTwice.is_on() {
            host.with_key_holds(|table| table.expire((id.name, id.key), &holds))?;
        }
        // The write has made another version.
        row = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
    }
    Err(LimiterError::not_written())
}

/// Gives back the expired holds of a key, unless its row can't be read, or another session has it locked. Returns
/// whether it did.
pub(crate) fn give_back_if_valid<H: Host>(host: &H, rows: &dyn Rows, id: RowId) -> Result<bool> {
    host.check_for_interrupts();
    match give_back(host, rows, id) {
        Err(LimiterError::BadState { .. } | LimiterError::Busy) => Ok(false),
        given => given,
    }
}

/// Gives back the expired holds of the keys of a name that are saved by now. Memory takes over their states, and
/// nothing comes back to them there.
pub fn give_back_to_saved<H: Host>(host: &H, rows: &dyn Rows, name: &[u8]) -> Result<()> {
    if !host.has_holds() {
        return Ok(());
    }
    let listing = Listing { name: Some(name), ..Listing::default() };
    for (name, key) in host.with_key_holds(|holds| holds.keys(listing, None))? {
        host.check_for_interrupts();
        let definition = if_valid(host.defined(&name, &key))?;
        let Some(definition) = definition.filter(|own| own.save.is_some()) else { continue };
        let in_table = Definition { store: StoreKind::Table, save: None, ..(*definition).clone() };
        let target = Target::defined::<H>(&name, &key, Rc::new(in_table), None);
        if let Some(row) = rows.lock(target.row(0), true)? {
            apply_locked(host, rows, target.row(0), Some(&target), row)?;
        }
    }
    Ok(())
}

/// Gives back the expired holds of a key. Returns whether it could.
///
/// # Errors
/// [`LimiterError::Busy`].
fn give_back<H: Host>(host: &H, rows: &dyn Rows, id: RowId) -> Result<bool> {
    // A session that has it locked gives back.
    let mut locked = lock_or_busy(rows, id, false)?;
    if locked.is_none() && rows.insert(id, &Stored::Reset { ts: host.now() }.into(), false)? {
        locked = rows.lock(id, true)?;
    }
    let Some(mut row) = locked else { return Ok(false) };
    if row.stored.is_marker() {
        match give_back_to_shards(host, rows, id)? {
            ControlFlow::Break(done) => return Ok(done),
            ControlFlow::Continue(joined) => row = joined,
        }
    }
    // The row that named the first expiry may have been deleted since the hold.
    row.version.holds_due = Some(EARLIEST);
    let after = apply_locked(host, rows, id, None, row)?;
    // Expired holds may wait for a limit that has holds.
    Ok(after.holds_due != Some(EARLIEST))
}

/// Gives back the expired holds of a key with shards, under the locks of all its rows; breaks with whether all that can
/// come back has come back: not if the limit has no holds now. Goes on with the rows if they are one by now, locked.
///
/// # Errors
/// [`LimiterError::Busy`]: another session has locked one.
fn give_back_to_shards<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
) -> Result<ControlFlow<bool, Row>> {
    let (of @ (name, key), now) = ((id.name, id.key), host.now());
    let mut due =
        host.with_key_holds(|holds| holds.returning(of, EARLIEST, now, MOST_OF_SHARDS))?;
    let mut limits = Limits::new(host, of, None)?;
    let Some(first) = due.first() else { return Ok(ControlFlow::Break(true)) };
    let Some(definition) = limits.of_expiry(first)? else { return Ok(ControlFlow::Break(false)) };
    let target = Target::defined::<H>(name, key, definition, None);
    let locked = host.attempt(|| shards::lock_all(host, rows, &target, false))?;
    let Some(mut locked) = locked else { return Ok(ControlFlow::Break(false)) };
    if target.store == Store::Row {
        let joined = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
        return Ok(ControlFlow::Continue(joined));
    }
    let before = locked.found.shards.total(now).into_owned();
    let mut after = before.clone();
    for row in &mut due {
        host.check_for_interrupts();
        // The rows show the state of now.
        let at_once = Hold { expires_at: now, ..row.hold };
        let (hold, state) = at_once.expired(target.limit(), &after);
        row.hold = Hold { expires_at: row.hold.expires_at, ..hold };
        after = state.unwrap_or(after);
    }
    if after != before {
        locked.write(rows, &target, now, &after)?;
    }
    let root = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
    let holds_due = host.with_key_holds(|holds| {
        holds.expire(of, &due)?;
        holds.first_expiry(of, EARLIEST)
    })?;
    let version = Version { holds_due, ..root.version };
    rows.update(id, root.tuple, &version)?;
    Ok(ControlFlow::Break(true))
}

/// Deletes the holds of a key: its state begins again.
#[cold]
pub(crate) fn forget<H: Host>(host: &H, id: RowId) -> Result<()> {
    if host.has_holds() {
        host.with_key_holds(|holds| holds.delete_of_key((id.name, id.key)))?;
    }
    Ok(())
}

/// A row as if expired holds were applied. The holds are read after the row, which may have changed meanwhile.
#[cold]
pub(crate) fn on_copy<H: Host>(host: &H, target: &Target, row: &Row, now: Micros) -> Result<Row> {
    // Without a bound, since nothing is written.
    let id = target.row(0);
    let (version, _) = expired(host, id, Some(target), row, now, i64::MAX)?;
    Ok(Row { version, tuple: row.tuple })
}

/// A hold as if the expired holds of its key were applied.
#[cold]
pub(crate) fn own_on_copy<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    own: HoldRow,
) -> Result<HoldRow> {
    let (id, now) = (target.row(0), host.now());
    let due = rows.read(id)?.filter(|row| is_due(target, row, now) && !row.stored.is_marker());
    let Some(row) = due else { return Ok(own) };
    let (_, holds) = expired(host, id, Some(target), &row, now, i64::MAX)?;
    Ok(holds.into_iter().find(|hold| hold.id == own.id).unwrap_or(own))
}

/// How long from `now` until a call passes that is denied on these contents, or by a block. `denied`: its wait without
/// expiries, which is the answer for several rows, too. `decide` returns whether the call passes on a state at an
/// instant, and its wait if not. Reads no holds for a call that even a full limit denies.
pub(crate) fn wait<H: Host>(
    host: &H,
    target: &Target,
    found: &Found,
    now: Micros,
    denied: Option<Micros>,
    mut decide: impl FnMut(&State, Micros) -> (bool, Option<Micros>),
) -> Result<Option<Micros>> {
    let [state] = found.shards.states() else { return Ok(denied) };
    let blocked = target.block(now);
    let full = || target.limit().initial_state(now, target.phase());
    let never = match blocked {
        Some(until) => until == Micros::FOREVER,
        None => denied.is_none() && !decide(&full(), now).0,
    };
    if never {
        return Ok(None);
    }
    // The next expiries that may let the call pass, from the first that the row names.
    let (of, mut next) = ((target.name, target.key), Vec::new());
    if let Some(due) = found.due {
        next = host.with_key_holds(|holds| {
            let from = due.max(now.plus(Micros(1)));
            let found = holds.returning(of, from, Micros::FOREVER, MAX_EXPIRIES as i64)?;
            let mut limits = Limits::new(host, of, Some(target))?;
            let of_hold = |hold: HoldRow| Ok(limits.of_expiry(&hold)?.zip(Some(hold.hold)));
            found.into_iter().map(of_hold).collect::<Result<Vec<_>>>()
        })?;
    }
    let accepts = |of: &&(Rc<Definition>, Hold)| of.0.limit.accepts(state.shape());
    let next = next.iter().flatten().filter(accepts);
    let holds = next.map(|(definition, hold)| (&definition.limit, *hold));
    let mut holds: &[Expiry] = &holds.collect::<Vec<_>>();
    let Some(until) = blocked else {
        return Ok(retry_after(state, now, holds, denied, decide));
    };
    Ok(until.then(now, |then| {
        let (after, applied) = after_expiries(state, holds, then);
        holds = &holds[applied.min(holds.len())..];
        let state = after.as_ref().unwrap_or(state);
        match decide(state, then) {
            (true, _) => Some(Micros(0)),
            (false, later) => retry_after(state, then, holds, later, decide),
        }
    }))
}
