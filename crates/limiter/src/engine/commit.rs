//! All or none: locks, decides again at one instant, and writes.

use ratelimit_core::hold::Hold;
use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::{Ask, Outcome, Peek, View, count_expiries, memory, of_state, put};
use crate::change::held::random_id;
use crate::change::{Change, Contents, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Deleted, HoldRow, Host, Rows, TRIES};
use crate::stores::shards::{self, Extent, LockedRows};
use crate::stores::{self, expiry};
use crate::target::Store;

/// Holders of the row locks that an ask needs.
#[derive(PartialEq)]
enum Locks {
    /// This transaction; or at first sight there was nothing to change.
    Own,
    /// Other transactions: a dry run takes nothing then, and a settlement credits some of the rows.
    Others,
    /// No transaction: the limit is in memory.
    None,
}

/// The contents of a limit, with the rows to change locked.
struct Locked<'a> {
    rows: LockedRows<'a>,
    locks: Locks,
    /// The ask's hold.
    own: Option<HoldRow>,
}

/// Locks the rows that were peeked at, decides, and writes. `None`: the rows must be read again, or the call is
/// `refused`. Locks rows of limits with shards to this `extent`. Settlements have no `peek`.
///
/// # Errors
/// [`LimiterError::Busy`]: rows are locked and can't be waited for.
pub(super) fn commit<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    asks: &'a [Ask<'a>],
    peek: Option<Peek<'a>>,
    extent: Extent,
    refused: &mut Option<Vec<Decided>>,
) -> Result<Option<Vec<Decided>>> {
    let Some(mut locked) = lock(host, rows, asks, peek, extent)? else { return Ok(None) };
    let Some(now) = apply_expired(host, rows, asks, &mut locked)? else { return Ok(None) };
    let (mut decided, suffice) = decide(host, asks, &locked, now)?;
    if !decided.iter().all(Decided::passes) && !Fault::PartOfSeveral.is_on() {
        // A limit with only some rows locked may have enough in the others.
        if locked.iter().all(|locked| locked.rows.is_whole()) {
            for ((ask, locked), decided) in asks.iter().zip(locked).zip(&mut decided) {
                decided.set_level(locked.rows.found.shards.level(now));
                let Locked { rows: LockedRows { found, .. }, own, .. } = locked;
                if found.has_holds() && !decided.passes() {
                    count_expiries(host, ask, &found, own.as_ref(), decided)?;
                }
            }
            *refused = Some(decided);
        }
        return Ok(None);
    }
    if !suffice && !Fault::TooFewRowsSuffice.is_on() {
        return Ok(None);
    }
    let Outcome { decided: in_memory, ok } = memory::take(host, asks)?;
    if !ok && !Fault::MemoryOverlooked.is_on() {
        for (decided, locked) in decided.iter_mut().zip(&locked) {
            decided.set_level(locked.rows.found.shards.level(now));
        }
        put(asks, &mut decided, in_memory);
        *refused = Some(decided);
        return Ok(None);
    }
    for ((ask, decided), locked) in asks.iter().zip(&mut decided).zip(&mut locked) {
        if locked.locks != Locks::None && !write(host, rows, ask, decided, locked, now)? {
            return Ok(None);
        }
    }
    put(asks, &mut decided, in_memory);
    Ok(Some(decided))
}

/// Locks the rows to change, limit by limit. `None`: they must be read again.
fn lock<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    asks: &'a [Ask<'a>],
    peek: Option<Peek<'a>>,
    extent: Extent,
) -> Result<Option<Vec<Locked<'a>>>> {
    let mut locked = Vec::with_capacity(asks.len());
    let Some(Peek { seen, decided }) = peek else {
        for ask in asks {
            host.check_for_interrupts();
            match lock_to_settle(host, rows, ask)? {
                Some(rows) => locked.push(rows),
                None => return Ok(None),
            }
        }
        return Ok(Some(locked));
    };
    for ((ask, View { found, .. }), decided) in asks.iter().zip(seen).zip(decided) {
        host.check_for_interrupts();
        let (rows, locks) = if ask.is_in_memory() {
            (LockedRows::none(found.shards.into()), Locks::None)
        } else if !decided.changes() {
            (LockedRows::none(found), Locks::Own)
        } else {
            let is_dry_take = ask.change.is_take() && !decided.answer.enforced;
            let shards = found.shards;
            let seen = is_dry_take.then(|| shards.clone());
            let few = amount(ask, &shards, &decided).map(|amount| (shards, amount));
            match (shards::lock(host, rows, &ask.target, few, extent, asks.len() == 1), seen) {
                (Err(LimiterError::Busy), Some(seen)) => {
                    (LockedRows::none(seen.into()), Locks::Others)
                }
                (rows, _) => match rows? {
                    Some(rows) => (rows, Locks::Own),
                    None => return Ok(None),
                },
            }
        };
        locked.push(Locked { rows, locks, own: None });
    }
    Ok(Some(locked))
}

/// The tokens by which a decision changes shards, to be made in some of their rows; `None`: it takes all of them.
fn amount(ask: &Ask, shards: &Shards, decided: &Decided) -> Option<f64> {
    let (Store::Shards(_), Some(after)) = (ask.target.store, &decided.after) else {
        return Some(0.0);
    };
    let now = decided.answer.now;
    let amount = after.value() - shards.total(now).value();
    // All rows share a debt, which is paid back first; so is use beyond a config that has changed.
    let is_owed = (0..shards.states().len()).any(|shard| shards.available(shard, now) < 0.0)
        || ask.change.tokens() > 0.0 && shards.are_overused(now);
    // The number of tokens left is decided on all rows.
    let needs_all = after.value() < 0.0 || is_owed || ask.change.takes_part(&decided.answer);
    Some(amount).filter(|_| !needs_all)
}

/// Locks the rows to which something may come back; none of a limit with shards if this transaction already holds one
/// of its rows and another session holds another.
fn lock_to_settle<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &'a Ask<'a>,
) -> Result<Option<Locked<'a>>> {
    let target = &ask.target;
    let Change::Settle(settlement) = &ask.change else { return Ok(None) };
    let counts = settlement.counts(target);
    if counts {
        match shards::lock(host, rows, target, None, Extent::All, true) {
            Err(LimiterError::Busy) if target.store != Store::Row => {}
            locked => {
                return Ok(locked?.map(|rows| Locked { rows, locks: Locks::Own, own: None }));
            }
        }
    } else if settlement.row.hold.returns() {
        // So that no other session gives back its expired tokens.
        rows.lock(target.row(0), true)?;
    }
    let shards = stores::peek(host, Some(rows), target, None)?.0.shards;
    let locks = if counts { Locks::Others } else { Locks::Own };
    Ok(Some(Locked { rows: LockedRows::none(shards.into()), locks, own: None }))
}

/// Applies expired holds to the locked rows, and reads the asks' holds; returns the instant to decide at. `None`: the
/// rows must be read again.
fn apply_expired<H: Host>(
    host: &H,
    rows: &dyn Rows,
    asks: &[Ask],
    locked: &mut [Locked],
) -> Result<Option<Micros>> {
    let mut has_read = false;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let now = host.now();
        // Without holds of its own kind, a limit gets nothing back: the holds wait.
        let is_due = |(ask, locked): (&Ask, &Locked)| {
            locked.rows.found.is_due(now) && expiry::returns(&ask.target.definition)
        };
        if let Some(due) = asks.iter().zip(&*locked).position(is_due) {
            if !locked[due].rows.apply_expired(host, rows, &asks[due].target)? {
                return Ok(None);
            }
            has_read = false;
            continue;
        }
        if has_read {
            return Ok(Some(now));
        }
        let mut waited = false;
        for (ask, locked) in asks.iter().zip(&mut *locked) {
            match &ask.change {
                Change::Settle(_) => waited |= locked.own.is_none() && delete(host, ask, locked)?,
                Change::Hold(_) => {
                    locked.own = own(host, rows, ask, locked)?;
                    has_read = true;
                }
                _ => {}
            }
        }
        if !waited {
            if !has_read {
                return Ok(Some(now));
            }
            continue;
        }
        // Another session had a hold without its row. As if no other were deleted yet, what has expired meanwhile comes
        // first.
        for own in locked.iter_mut().filter_map(|locked| locked.own.take()) {
            host.with_holds(|holds| holds.insert(&own))?;
        }
    }
    Err(LimiterError::not_written())
}

/// Reads the hold with the call's id, unless the state of its limit begins again.
fn own<H: Host>(host: &H, rows: &dyn Rows, ask: &Ask, locked: &Locked) -> Result<Option<HoldRow>> {
    let own = ask.own(host)?;
    match locked.rows.locked.is_empty() {
        true => of_state(host, rows, &ask.target, own),
        false => Ok(own.filter(|_| !locked.rows.begins_anew)),
    }
}

/// Deletes the hold to settle, unless another session has it; returns whether it waited for that session.
fn delete<H: Host>(host: &H, ask: &Ask, locked: &mut Locked) -> Result<bool> {
    let Change::Settle(settlement) = &ask.change else { return Ok(false) };
    let HoldRow { id, name, key, hold, .. } = &settlement.row;
    let deleted = host.with_holds(|holds| holds.delete(id, name, key))?;
    locked.own = match deleted {
        Deleted::Waited => return Ok(true),
        Deleted::Row(row) if Fault::HoldReadFirst.is_on() => Some(HoldRow { hold: *hold, ..row }),
        Deleted::Row(row) => Some(row),
        Deleted::Gone => Fault::GoneHoldSettled.is_on().then(|| settlement.row.clone()),
    };
    Ok(false)
}

/// Decides all asks at one instant; returns whether the locked rows suffice for the changes, too.
fn decide<'a, H: Host>(
    host: &H,
    asks: &'a [Ask<'a>],
    locked: &[Locked<'a>],
    now: Micros,
) -> Result<(Vec<Decided>, bool)> {
    let (mut all, mut suffice) = (Vec::with_capacity(asks.len()), true);
    for (Ask { target, change, .. }, locked) in asks.iter().zip(locked) {
        host.check_for_interrupts();
        let mut own = locked.own.as_ref().map(|own| own.hold);
        if let Some(Hold { lease: None, taken_at, .. }) = &mut own
            && Fault::RefundedToAnyWindow.is_on()
            && matches!(change, Change::Settle(_))
        {
            *taken_at = now;
        }
        let contents = Contents::All(&locked.rows.found.shards, own.as_ref());
        let mut decided = change.decide(host, target, contents, now)?;
        match locked.locks {
            Locks::None => {}
            Locks::Others if change.is_take() => decided.give_up(change, target.limit()),
            Locks::Others => {}
            // A settlement has locked all rows.
            Locks::Own if !matches!(change, Change::Settle(_)) && decided.changes() => {
                suffice &= locked.rows.suffices(now, decided.after.as_ref());
            }
            Locks::Own => {}
        }
        all.push(decided);
    }
    Ok((all, suffice))
}

/// Writes the decision on an ask to its locked rows and its hold; false if the hold is gone.
fn write<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
    decided: &mut Decided,
    locked: &mut Locked,
    now: Micros,
) -> Result<bool> {
    let target = &ask.target;
    if let Change::Settle(settlement) = &ask.change {
        let Some(own) = &locked.own else { return Ok(true) };
        if locked.locks == Locks::Others {
            let (count, taken_at) = own.hold.credit(settlement.used);
            let credit = Change::Credit { count, taken_at };
            let credit = Ask { target: target.clone(), change: credit, entry: None };
            *decided = Decided::of_settled(super::run_one(host, rows, &credit)?, own.hold);
            return Ok(true);
        }
        if let Some(hold) = decided.hold_after() {
            // No caller knows its new id.
            let row = HoldRow { id: random_id(host)?, hold, ..own.clone() };
            host.with_holds(|holds| holds.insert(&row))?;
        }
    } else if decided.changes() {
        locked.rows.begin_anew(host, target)?;
        if let (Some(hold), Some(_)) = (decided.hold_after(), &decided.after) {
            locked.rows.found.due = expiry::first_expiry(&hold, locked.rows.found.due);
        }
    }
    if let Some(after) = &decided.after {
        locked.rows.write(rows, target, now, after)?;
    }
    decided.set_level(locked.rows.found.shards.level(now));
    ask.put(host, locked.own.as_ref(), decided)
}
