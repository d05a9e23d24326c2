//! Chooses the rows that a change goes to, if not all of them are needed.

use std::slice::from_ref;

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::contents::{row_of, shard_number};
use super::room;
use crate::change::{Ask, Decided};
use crate::error::Result;
use crate::ports::{Host, Row, Rows, ShardRow, Stored, TupleId};
use crate::target::Target;

/// The shard of the row that this transaction last locked, counted from 0: it takes from that row again.
pub(super) fn own_shard(host: &impl Host, target: &Target) -> Option<usize> {
    let count = target.limit().shards() as usize;
    let first = shard_number(count as u32, 0);
    let shard = |number: i32| usize::try_from(number - first).ok().filter(|&shard| shard < count);
    host.own_rows(target.name, target.key).into_iter().find_map(shard)
}

/// The shards with room for the whole change, in random order, so that calls spread.
pub(super) fn rows_with_room(
    host: &impl Host,
    shards: &Shards,
    now: Micros,
    amount: f64,
) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..shards.states().len())
        .filter(|&shard| room(shards, shard, now, amount) >= amount.abs())
        .collect();
    for end in (2..=rows.len()).rev() {
        rows.swap(host.below(end), end - 1);
    }
    rows
}

/// An estimate from two shards of a limit, read without a lock: all others are taken to be like the second.
struct Estimate<'a> {
    shards: Shards<'a>,
    /// The shard with more room, or the one that this transaction holds.
    better: usize,
    /// The row of that shard.
    seen: Row,
    /// Whether this transaction holds that row.
    is_own: bool,
    now: Micros,
}

/// Makes the whole change in the row that this transaction already holds, or else in the better of two random rows;
/// `None`: nothing is changed, since it is locked or has no room.
pub(crate) fn apply_to_one_shard<H: Host>(
    host: &H,
    rows: &dyn Rows,
    ask: &Ask,
) -> Result<Option<Decided>> {
    let (target, amount) = (&ask.target, ask.change.tokens());
    if amount == 0.0 {
        return Ok(None);
    }
    let Some(Estimate { mut shards, better, seen, is_own, now }) =
        estimate(host, rows, target, amount)?
    else {
        return Ok(None);
    };
    let id = row_of(target, better);
    let mut change_row = |row: &Row, now, is_locked: bool| -> Result<Option<Decided>> {
        if is_locked {
            let state = target.state(shards.shard_limit(), Some(&row.stored), now)?.into_owned();
            shards.states_mut()[better] = state;
            let suffices = room(&shards, better, now, amount) >= amount.abs();
            if !suffices && !Fault::ShardNotCompared.is_on() {
                return Ok(None);
            }
        }
        let one = Shards::new(shards.shard_limit(), from_ref(&shards.states()[better]));
        let mut decided = ask.decide(host, &one, None, now)?;
        let Some(after) = decided.after.take() else { return Ok(None) };
        let next = row.with(Stored::State(after.clone()));
        if is_locked {
            rows.update(id, row.tuple, &next)?;
        } else if !rows.replace(id, row, &next, false)? {
            return Ok(None);
        }
        shards.states_mut()[better] = after;
        decided.set_level(shards.level(now));
        Ok(Some(decided))
    };
    if let Some(decided) = change_row(&seen, now, false)? {
        return Ok(Some(decided));
    }
    let mut change_locked = || match rows.lock(id, false)? {
        Some(locked) => change_row(&locked, host.now(), true),
        None => Ok(None),
    };
    // Another call may change the row before it is locked here: the lock is then released, unless it was held before.
    if is_own { change_locked() } else { host.attempt(change_locked) }
}

/// Reads two rows; `None`: the better one has no room for the whole change, or a credit goes to other rows first.
fn estimate<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'a Target,
    amount: f64,
) -> Result<Option<Estimate<'a>>> {
    let count = target.limit().shards() as usize;
    let own = own_shard(host, target);
    let first = own.unwrap_or_else(|| host.below(count));
    let second = (first + 1 + host.below(count - 1)) % count;
    let numbers = [first, second].map(|shard| shard_number(count as u32, shard));
    let found = rows.read_key(target.name, target.key, Some(&numbers))?;
    let now = host.now();
    let Ok([one, other]) = <[ShardRow; 2]>::try_from(found) else { return Ok(None) };
    let (one, other) = if one.0 == numbers[0] { (one, other) } else { (other, one) };
    let shard_limit = target.limit().shard_limit(count as u32);
    let state = |(_, row): &ShardRow| -> Result<State> {
        Ok(target.state(&shard_limit, Some(&row.stored), now)?.into_owned())
    };
    let mut all = vec![state(&other)?; count];
    all[first] = state(&one)?;
    let shards = Shards::new(target.limit(), all);
    let room = |shard| room(&shards, shard, now, amount);
    let is_first = own.is_some() || room(first) >= room(second);
    let (better, (_, seen)) = if is_first { (first, one) } else { (second, other) };
    let in_debt = [first, second].iter().any(|&shard| shards.available(shard, now) < 0.0);
    let is_owed = in_debt || amount > 0.0 && shards.are_overused(now);
    let suffices = room(better) >= amount.abs() && !is_owed;
    if !suffices && !Fault::BetterNotCompared.is_on() {
        return Ok(None);
    }
    Ok(Some(Estimate { shards, better, seen, is_own: own.is_some(), now }))
}

/// Locks unlocked rows until together they have room for the change, and updates the shards. `None`: they don't
/// suffice, and the caller releases them. Locks in ascending order, since in PostgreSQL even SKIP LOCKED can wait, if a
/// row is updated twice while it is being locked.
pub(super) fn lock_free<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    shards: &mut Shards,
    now: Micros,
    amount: f64,
) -> Result<Option<Vec<(usize, TupleId)>>> {
    let has_room = |&shard: &usize| room(shards, shard, now, amount) > 0.0;
    let mut wanted: Vec<usize> = (0..shards.states().len()).filter(has_room).collect();
    if Fault::ShardsUnordered.is_on() {
        wanted.reverse();
    }
    let (mut locked, mut sum) = (Vec::new(), 0.0);
    for shard in wanted {
        let Some(row) = rows.lock(row_of(target, shard), false)? else { continue };
        let now = host.now();
        let state = target.state(shards.shard_limit(), Some(&row.stored), now)?.into_owned();
        shards.states_mut()[shard] = state;
        sum += room(shards, shard, now, amount).max(0.0);
        locked.push((shard, row.tuple));
        if sum >= amount.abs() {
            return Ok(Some(locked));
        }
    }
    Ok(None)
}
