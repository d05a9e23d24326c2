//! Chooses the rows that a change goes to, if not all of them are needed.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::contents::shard_number;
use super::locked::LockedShard;
use super::room;
use crate::change::{Change, Contents, Decided};
use crate::error::Result;
use crate::ports::{Host, Random, Row, Rows, Stored};
use crate::target::Target;

/// The shard of the row that this transaction last locked, counted from 0: it takes from that row again.
pub(super) fn own_shard(host: &impl Host, target: &Target) -> Option<usize> {
    let count = target.limit().shards() as usize;
    let first = shard_number(count as u32, 0);
    let shard = |number: i32| usize::try_from(number - first).ok().filter(|&shard| shard < count);
    host.own_rows(target.name, target.key).into_iter().find_map(shard)
}

/// Puts a list into random order.
fn shuffle(random: &impl Random, list: &mut [usize]) {
    for end in (2..=list.len()).rev() {
        list.swap(random.below(end), end - 1);
    }
}

/// The shards with room for the whole change, in random order, so that calls spread.
pub(super) fn rows_with_room(
    random: &impl Random,
    shards: &Shards,
    now: Micros,
    amount: f64,
) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..shards.states().len())
        .filter(|&shard| room(shards, shard, now, amount) >= amount.abs())
        .collect();
    shuffle(random, &mut rows);
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
///
/// # Errors
/// [`LimiterError::BadState`](crate::error::LimiterError::BadState) (55000).
pub(crate) fn apply_to_one_shard<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
) -> Result<Option<Decided>> {
    if !change.moves_tokens() {
        return Ok(None);
    }
    let call = Call { host, rows, target, change };
    let Some(Estimate { mut shards, better, seen, is_own, now }) = call.estimate()? else {
        return Ok(None);
    };
    let row = target.row(shard_number(target.limit().shards(), better));
    let mut decided = change.decide(host, target, Contents::OneOf(&shards, better), now)?;
    if let Some(after) = decided.after.take() {
        let after = seen.with(Stored::State(after));
        if rows.replace(row, &seen, &after, false)? {
            if let Stored::State(after) = after.stored {
                shards.states_mut()[better] = after;
            }
            decided.set_level(shards.level(now));
            return Ok(Some(decided));
        }
    }
    let take = || call.change_locked(&shards, better, rows.lock(row, false)?);
    // Another call may change the row before it is locked here: the lock is then released, unless it was held before.
    if is_own { take() } else { host.attempt(take) }
}

/// A call for one shard.
struct Call<'a, H> {
    host: &'a H,
    rows: &'a dyn Rows,
    target: &'a Target<'a>,
    change: &'a Change<'a>,
}

impl<H: Host> Call<'_, H> {
    /// Reads two rows; `None`: the better one has no room for the whole change, or a credit goes to other rows first.
    fn estimate(&self) -> Result<Option<Estimate<'_>>> {
        let Call { host, rows, target, change } = self;
        let count = target.limit().shards() as usize;
        let own = own_shard(*host, target);
        let first = own.unwrap_or_else(|| host.below(count));
        let second = (first + 1 + host.below(count - 1)) % count;
        let number = |shard| shard_number(count as u32, shard);
        let numbers = [number(first), number(second)];
        let mut found = rows.read_key(target.name, target.key, Some(&numbers))?;
        let now = host.now();
        let shard_limit = target.limit().shard_limit(count as u32);
        let mut states = Vec::with_capacity(2);
        for wanted in numbers {
            let row = found.iter().find(|&&(number, _)| number == wanted);
            let Some((_, row)) = row else { return Ok(None) };
            states.push(target.state(&shard_limit, Some(&row.stored), now)?.into_owned());
        }
        // The other rows are assumed to be like the second.
        let mut all = vec![states[1].clone(); count];
        all[first] = states.swap_remove(0);
        let shards = Shards::new(target.limit(), all);
        let amount = change.tokens();
        let room = |shard| room(&shards, shard, now, amount);
        let better = if own.is_some() || room(first) >= room(second) { first } else { second };
        let in_debt = [first, second].iter().any(|&shard| shards.available(shard, now) < 0.0);
        let is_owed = in_debt || amount > 0.0 && shards.are_overused(now);
        let suffices = room(better) >= amount.abs() && !is_owed;
        if !suffices && !Fault::BetterNotCompared.is_on() {
            return Ok(None);
        }
        let Some(at) = found.iter().position(|&(n, _)| n == number(better)) else {
            return Ok(None);
        };
        let (_, seen) = found.swap_remove(at);
        Ok(Some(Estimate { shards, better, seen, is_own: own.is_some(), now }))
    }

    /// Makes the whole change in the locked row of a shard; `None` if it is gone or has no room.
    fn change_locked(
        &self,
        shards: &Shards,
        shard: usize,
        locked: Option<Row>,
    ) -> Result<Option<Decided>> {
        let Call { host, rows, target, change } = self;
        let Some(locked) = locked else { return Ok(None) };
        let (now, mut shards) = (host.now(), shards.clone());
        shards.states_mut()[shard] =
            target.state(shards.shard_limit(), Some(&locked.stored), now)?.into_owned();
        let amount = change.tokens();
        let suffices = room(&shards, shard, now, amount) >= amount.abs();
        if !suffices && !Fault::ShardNotCompared.is_on() {
            return Ok(None);
        }
        let contents = Contents::OneOf(&shards, shard);
        let mut decided = change.decide(*host, target, contents, now)?;
        let Some(after) = decided.after.take() else { return Ok(None) };
        let row = target.row(shard_number(target.limit().shards(), shard));
        rows.update(row, locked.tuple, &locked.with(Stored::State(after.clone())))?;
        shards.states_mut()[shard] = after;
        decided.set_level(shards.level(now));
        Ok(Some(decided))
    }
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
) -> Result<Option<Vec<LockedShard>>> {
    let has_room = |&shard: &usize| room(shards, shard, now, amount) > 0.0;
    let mut wanted: Vec<usize> = (0..shards.states().len()).filter(has_room).collect();
    if Fault::ShardsUnordered.is_on() {
        wanted.reverse();
    }
    let (mut locked, mut sum) = (Vec::new(), 0.0);
    for shard in wanted {
        let row = target.row(shard_number(target.limit().shards(), shard));
        let Some(row) = rows.lock(row, false)? else { continue };
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
