//! All or none: locks, decides again at one instant, and writes.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::{Outcome, Peek, View, count_expiries, memory};
use crate::change::held::{HoldChange, Settlement, random_id};
use crate::change::{Ask, Change, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Deleted, HoldRow, Host, Rows, TRIES};
use crate::request::Take;
use crate::stores;
use crate::stores::expiry::{self, Found};
use crate::stores::shards::{self, Extent, LockedRows};
use crate::target::Store;

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
    let (mut decided, mut suffice) = (Vec::with_capacity(asks.len()), true);
    for (ask, locked) in asks.iter().zip(&locked) {
        host.check_for_interrupts();
        let Ask { target, change, .. } = ask;
        let mut one = ask.decide(host, &locked.found.shards, locked.own.as_ref(), now)?;
        if locked.are_others && change.is_take() {
            one.give_up(change, target.limit(), true);
        }
        // A settlement has locked all rows.
        let needs_rows = !matches!(change, Change::Settle(_)) && !ask.is_in_memory();
        if needs_rows && one.changes() {
            suffice &= locked.suffices(now, one.after.as_ref());
        }
        decided.push(one);
    }
    if !decided.iter().all(Decided::passes) && !Fault::PartOfSeveral.is_on() {
        // A limit with only some rows locked may have enough in the others.
        if locked.iter().all(LockedRows::is_whole) {
            for ((ask, locked), decided) in asks.iter().zip(locked).zip(&mut decided) {
                decided.set_level(locked.found.shards.level(now));
                let LockedRows { found, own, .. } = locked;
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
    let Outcome { decided: in_memory, ok } =
        memory::take(host, asks.iter().filter(|ask| ask.is_in_memory()))?;
    let (mut in_memory, is_refused) =
        (in_memory.into_iter(), !ok && !Fault::MemoryOverlooked.is_on());
    for ((ask, decided), locked) in asks.iter().zip(&mut decided).zip(&mut locked) {
        if ask.is_in_memory() {
            in_memory.next().into_iter().for_each(|own| *decided = own);
        } else if is_refused {
            decided.set_level(locked.found.shards.level(now));
        } else if !write(host, rows, ask, decided, locked, now)? {
            return Ok(None);
        }
    }
    if is_refused {
        *refused = Some(decided);
        return Ok(None);
    }
    Ok(Some(decided))
}

/// Locks the rows to change, limit by limit. `None`: they must be read again.
fn lock<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    asks: &'a [Ask<'a>],
    peek: Option<Peek<'a>>,
    extent: Extent,
) -> Result<Option<Vec<LockedRows<'a>>>> {
    let mut locked = Vec::with_capacity(asks.len());
    let mut seen = peek.into_iter().flatten();
    for ask in asks {
        host.check_for_interrupts();
        let one = match (&ask.change, seen.next()) {
            (Change::Settle(settlement), _) => lock_to_settle(host, rows, ask, settlement)?,
            (_, Some((View { found, .. }, decided))) => {
                lock_seen(host, rows, ask, found, &decided, (extent, asks.len() == 1))?
            }
            (_, None) => None,
        };
        let Some(one) = one else { return Ok(None) };
        locked.push(one);
    }
    Ok(Some(locked))
}

/// Locks the rows of a limit that a decision changes. `None`: they must be read again. `alone`: as in [`shards::lock`].
fn lock_seen<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &'a Ask<'a>,
    found: Found<'a>,
    decided: &Decided,
    (extent, alone): (Extent, bool),
) -> Result<Option<LockedRows<'a>>> {
    if ask.is_in_memory() || !decided.changes() {
        return Ok(Some(LockedRows::none(found)));
    }
    let shards = found.shards;
    let is_dry_take = ask.change.is_take() && !decided.answer.enforced;
    let seen = is_dry_take.then(|| shards.clone());
    let few = amount(ask, &shards, decided).map(|amount| (shards, amount));
    match (shards::lock(host, rows, &ask.target, few, extent, alone), seen) {
        (Err(LimiterError::Busy), Some(seen)) => {
            Ok(Some(LockedRows { are_others: true, ..LockedRows::none(seen.into()) }))
        }
        (locked, _) => locked,
    }
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
    let is_part = matches!(ask.change, Change::Take(Take { count, at_least: Some(_), .. })
        if decided.answer.taken < count && !Fault::PartOfSomeShards.is_on());
    let needs_all = after.value() < 0.0 || is_owed || is_part;
    Some(amount).filter(|_| !needs_all)
}

/// Locks the rows to which something may come back; none of a limit with shards if this transaction already holds one
/// of its rows and another session holds another.
fn lock_to_settle<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &'a Ask<'a>,
    settlement: &Settlement,
) -> Result<Option<LockedRows<'a>>> {
    let target = &ask.target;
    let counts = settlement.counts(target);
    if counts {
        match shards::lock(host, rows, target, None, Extent::All, true) {
            Err(LimiterError::Busy) if target.store != Store::Row => {}
            locked => return locked,
        }
    } else if settlement.row.hold.returns() {
        // So that no other session gives back its expired tokens.
        rows.lock(target.row(0), true)?;
    }
    let shards = stores::peek(host, Some(rows), target, None)?.0.shards;
    let locked = LockedRows::none(shards.into());
    Ok(Some(LockedRows { are_others: counts, ..locked }))
}

/// Applies expired holds to the locked rows, and reads the asks' holds; returns the instant to decide at. `None`: the
/// rows must be read again.
fn apply_expired<H: Host>(
    host: &H,
    rows: &dyn Rows,
    asks: &[Ask],
    locked: &mut [LockedRows],
) -> Result<Option<Micros>> {
    let mut has_read = false;
    for _ in 0..TRIES {
        host.check_for_interrupts();
        let now = host.now();
        // Without holds of its own kind, a limit gets nothing back: the holds wait.
        let is_due = |(ask, locked): (&Ask, &LockedRows)| {
            locked.found.is_due(now) && expiry::returns(&ask.target.definition)
        };
        if let Some(due) = asks.iter().zip(&*locked).position(is_due) {
            if !locked[due].apply_expired(host, rows, &asks[due].target)? {
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
                Change::Settle(one) => waited |= locked.own.is_none() && delete(host, one, locked)?,
                Change::Hold(_) => {
                    locked.own = match locked.locked.is_empty() {
                        true => ask.own_of_state(host, rows)?,
                        false => ask.own(host)?.filter(|_| !locked.begins_anew),
                    };
                    has_read = true;
                }
                _ => {}
            }
        }
        if !waited && !has_read {
            return Ok(Some(now));
        }
        // Another session had a hold without its row. As if no other were deleted yet, what has expired meanwhile comes
        // first.
        for own in locked.iter_mut().filter(|_| waited).filter_map(|locked| locked.own.take()) {
            host.with_holds(|holds| holds.insert(&own))?;
        }
    }
    Err(LimiterError::not_written())
}

/// Deletes the hold to settle, unless another session has it; returns whether it waited for that session.
fn delete<H: Host>(host: &H, settlement: &Settlement, locked: &mut LockedRows) -> Result<bool> {
    let HoldRow { id, name, key, hold, .. } = settlement.row;
    locked.own = match host.with_holds(|holds| holds.delete(id, name, key))? {
        Deleted::Waited => return Ok(true),
        Deleted::Row(row) if Fault::HoldReadFirst.is_on() => Some(HoldRow { hold: *hold, ..row }),
        Deleted::Row(row) => Some(row),
        Deleted::Gone => Fault::GoneHoldSettled.is_on().then(|| settlement.row.clone()),
    };
    Ok(false)
}

/// Writes the decision on an ask to its locked rows and its hold; false if the hold is gone.
fn write<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
    decided: &mut Decided,
    locked: &mut LockedRows,
    now: Micros,
) -> Result<bool> {
    let target = &ask.target;
    if let Change::Settle(settlement) = &ask.change {
        let Some(own) = &locked.own else { return Ok(true) };
        if locked.are_others {
            let (count, taken_at) = own.hold.credit(settlement.used);
            let credit = Change::Credit { count, taken_at };
            let credit = Ask { target: target.clone(), change: credit, entry: None };
            let hold = HoldChange { before: Some(own.hold), ..HoldChange::default() };
            decided.answer = super::run_one(host, rows, &credit)?;
            decided.hold = Some(Box::new(hold));
            return Ok(true);
        }
        if let Some(hold) = decided.hold_after() {
            // No caller knows its new id.
            let row = HoldRow { id: random_id(host)?, hold, ..own.clone() };
            host.with_holds(|holds| holds.insert(&row))?;
        }
    } else if decided.changes() {
        locked.begin_anew(host, target)?;
        if let (Some(hold), Some(_)) = (decided.hold_after(), &decided.after) {
            locked.found.due = hold.first_expiry(locked.found.due);
        }
    }
    if let Some(after) = &decided.after {
        locked.write(rows, target, now, after)?;
    }
    decided.set_level(locked.found.shards.level(now));
    ask.put(host, locked.own.as_ref(), decided)
}
