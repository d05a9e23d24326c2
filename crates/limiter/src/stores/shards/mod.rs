//! A limit spread over several rows, so that as many transactions can hold it at once.
//!
//! A limit of n shards has rows n * 10000 + 1 to n * 10000 + n, all inserted at once, and row 0, which holds no tokens.
//! A call with another number of shards thus finds none of its rows, and must lock row 0, then all others, to reshard
//! them: no token is counted twice.
//!
//! Rows are waited for in ascending order, or singly while no other is locked; locks that turn out
//! useless are released first. A transaction that holds a row from an earlier call, also under another
//! number of shards, waits for no other row of that limit: it reshards if it gets all rows at once.

pub(crate) mod contents;
mod locked;

use std::slice::from_ref;

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use crate::change::{Ask, Decided};
use crate::error::Result;
use crate::ports::{Host, Row, Rows, ShardRow, Stored};
use crate::target::Target;

pub(crate) use contents::lock_all;
use contents::{row_of, shard_number, shards_of};
use locked::own_shard;
pub(crate) use locked::{Contents, Extent, lock_few};

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
    let own = own_shard(host, target);
    let Some((mut shards, better, seen, now)) = estimate(host, rows, target, amount, own)? else {
        return Ok(None);
    };
    let id = row_of(target, better);
    let mut change_row = |row: &Row, now, is_locked: bool| -> Result<Option<Decided>> {
        if is_locked {
            let state = target.state(shards.shard_limit(), Some(&row.stored), now)?.into_owned();
            shards.states_mut()[better] = state;
            let suffices = shards.room(better, now, amount) >= amount.abs();
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
    let mut change_locked =
        || rows.lock(id, false)?.map_or(Ok(None), |row| change_row(&row, host.now(), true));
    // Another call may change the row before it is locked here: the lock is then released, unless it was held before.
    if own.is_some() { change_locked() } else { host.attempt(change_locked) }
}

/// Reads two rows of a limit, that of shard `own` and another one, or two random ones. Returns an estimate, for which
/// all others are taken to be like the second; the better shard of the two, which is `own` or has more room; its row,
/// and the instant. `None`: it has no room for the whole change, or a credit goes to other rows first.
fn estimate<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'a Target,
    amount: f64,
    own: Option<usize>,
) -> Result<Option<(Shards<'a>, usize, Row, Micros)>> {
    let count = target.limit().shards() as usize;
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
    let room = |shard| shards.room(shard, now, amount);
    let is_first = own.is_some() || room(first) >= room(second);
    let (better, (_, seen)) = if is_first { (first, one) } else { (second, other) };
    let in_debt = [first, second].iter().any(|&shard| shards.available(shard, now) < 0.0);
    let is_owed = in_debt || amount > 0.0 && shards.are_overused(now);
    let suffices = room(better) >= amount.abs() && !is_owed;
    if !suffices && !Fault::BetterNotCompared.is_on() {
        return Ok(None);
    }
    Ok(Some((shards, better, seen, now)))
}

/// Makes a credit by one of the transaction's own rows, under the number of shards of that row: others have locked rows
/// that this transaction can't wait for. `None`: no row has room for it.
pub(crate) fn credit_own(host: &impl Host, rows: &dyn Rows, ask: &Ask) -> Result<Option<Decided>> {
    let target = &ask.target;
    for number in host.own_rows(target.name, target.key) {
        let id = target.row(number);
        let Some(row) = rows.lock(id, true)? else { continue };
        if row.stored.is_marker() {
            continue;
        }
        let now = host.now();
        let limit = target.limit().shard_limit(shards_of(number));
        let state = target.state(&limit, Some(&row.stored), now)?.into_owned();
        let own = Shards::new(&limit, vec![state]);
        if own.available(0, now) + ask.change.tokens() > limit.capacity() {
            continue;
        }
        let mut decided = ask.decide(host, &own, None, now)?;
        if let Some(after) = decided.after.take_if(|_| !Fault::CreditDropped.is_on()) {
            rows.update(id, row.tuple, &row.with(Stored::State(after)))?;
        }
        let (found, now) = contents::peek(host, rows, target)?;
        decided.set_level(found.shards.level(now));
        return Ok(Some(decided));
    }
    Ok(None)
}
