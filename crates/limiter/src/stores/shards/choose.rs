//! Chooses the rows that a change goes to, if not all of them are needed.

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::contents::shard_number;
use super::locked::{LockedShard, write};
use super::{Sharded, left, may_wait, room};
use crate::change::{Contents, Decided};
use crate::error::Result;
use crate::ports::{Host, Random, Row, Rows, Stored};
use crate::request::Answer;
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

impl<H: Host> Sharded<'_, H> {
    /// Makes the whole change in the row that this transaction already holds, or else in the better of two random rows;
    /// `None`: it is locked or has no room.
    pub(super) fn change_better_of_two(&self) -> Result<Option<Answer>> {
        let Sharded { host, rows, target, change } = self;
        if !change.moves_tokens() {
            return Ok(None);
        }
        let Some(Estimate { mut shards, better, seen, is_own, now }) = self.estimate()? else {
            return Ok(None);
        };
        let row = target.row(shard_number(target.limit().shards(), better));
        let contents = Contents::OneOf(&shards, better);
        let Decided { answer, after, .. } = change.decide(*host, target, contents, now)?;
        if let Some(after) = after {
            let after = Stored::State(after);
            if rows.replace(row, &seen, &after, seen.holds_due, false)? {
                if let Stored::State(after) = after {
                    shards.states_mut()[better] = after;
                }
                return Ok(Some(left(answer, &shards, now)));
            }
        }
        let take = || {
            let found = rows.lock(row, false)?;
            let amount = change.tokens();
            self.change_locked(&shards, better, found, amount)
        };
        // Another call may change the row before it is locked here: the lock is then released, unless it was held
        // before.
        if is_own { take() } else { self.host.attempt(take) }
    }

    /// Reads two rows; `None`: the better one has no room for the whole change, or a credit goes to other rows first.
    fn estimate(&self) -> Result<Option<Estimate<'_>>> {
        let Sharded { host, rows, target, change } = self;
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

    /// Makes the whole change in a single row: one that is not locked, or else one after a wait.
    pub(super) fn change_any_row(
        &self,
        shards: &Shards,
        now: Micros,
        amount: f64,
    ) -> Result<Option<Answer>> {
        let Sharded { host, rows, target, .. } = self;
        let mut candidates = rows_with_room(*host, shards, now, amount);
        // Then wait for the first one, unless this transaction already holds a row.
        let once = candidates.len();
        candidates.extend(candidates.first().copied().filter(|_| may_wait(*host, target)));
        for (tried, &shard) in candidates.iter().enumerate() {
            let row = target.row(shard_number(target.limit().shards(), shard));
            let changed = host.attempt(|| {
                let row = rows.lock(row, tried == once)?;
                self.change_locked(shards, shard, row, amount)
            })?;
            if changed.is_some() {
                return Ok(changed);
            }
        }
        Ok(None)
    }

    /// Makes the whole change in the locked row of a shard; `None` if it is gone or has no room.
    fn change_locked(
        &self,
        shards: &Shards,
        shard: usize,
        locked: Option<Row>,
        amount: f64,
    ) -> Result<Option<Answer>> {
        let Sharded { host, rows, target, change } = self;
        let Some(Row { stored, holds_due, tuple }) = locked else { return Ok(None) };
        let (now, mut shards) = (host.now(), shards.clone());
        shards.states_mut()[shard] =
            target.state(shards.shard_limit(), Some(&stored), now)?.into_owned();
        let suffices = room(&shards, shard, now, amount) >= amount.abs();
        if !suffices && !Fault::ShardNotCompared.is_on() {
            return Ok(None);
        }
        let contents = Contents::OneOf(&shards, shard);
        let Decided { answer, after, .. } = change.decide(*host, target, contents, now)?;
        let Some(after) = after else { return Ok(None) };
        let row = target.row(shard_number(target.limit().shards(), shard));
        rows.update(row, tuple, &Stored::State(after.clone()), holds_due)?;
        shards.states_mut()[shard] = after;
        Ok(Some(left(answer, &shards, now)))
    }

    /// Makes the change in the fewest unlocked rows with room for it together.
    pub(super) fn change_several_rows(
        &self,
        shards: &Shards,
        now: Micros,
        amount: f64,
    ) -> Result<Option<Answer>> {
        let Sharded { host, rows, target, change } = self;
        for fewest in [true, false] {
            let mut shards = shards.clone();
            let changed = host.attempt(|| {
                let Some(locked) =
                    lock_free(*host, *rows, target, &mut shards, now, amount, fewest)?
                else {
                    return Ok(None);
                };
                let now = host.now();
                let decided = change.decide(*host, target, Contents::All(&shards), now)?;
                let Decided { answer, after: Some(_), .. } = decided else {
                    return Ok(None);
                };
                if change.takes_part(&answer) {
                    return Ok(None);
                }
                let available: f64 = locked.iter().map(|&(n, _)| shards.available(n, now)).sum();
                let again = if Fault::RefilledTwice.is_on() { Micros::SECOND } else { Micros(0) };
                let ts = shards.total(now).ts().minus(again);
                let after = State::from_tokens(available + amount, ts);
                write(*rows, target, &mut shards, &locked, now, &after)?;
                Ok(Some(left(answer, &shards, now)))
            })?;
            if changed.is_some() {
                return Ok(changed);
            }
        }
        Ok(None)
    }
}

/// Locks unlocked rows until together they have room for the change, and updates the shards: the `fewest` that seem to
/// suffice, or any. `None`: they don't suffice, and the caller releases them. Locks in ascending order, since in
/// PostgreSQL even SKIP LOCKED can wait, if a row is updated twice while it is being locked.
pub(super) fn lock_free<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    shards: &mut Shards,
    now: Micros,
    amount: f64,
    fewest: bool,
) -> Result<Option<Vec<LockedShard>>> {
    let rooms: Vec<f64> =
        (0..shards.states().len()).map(|shard| room(shards, shard, now, amount)).collect();
    let mut wanted: Vec<usize> = (0..rooms.len()).filter(|&n| rooms[n] > 0.0).collect();
    if fewest {
        // Spread calls over equal rows.
        shuffle(host, &mut wanted);
        wanted.sort_by(|&one, &other| rooms[other].total_cmp(&rooms[one]));
        let mut sum = 0.0;
        let last = wanted.iter().position(|&shard| {
            sum += rooms[shard];
            sum >= amount.abs()
        });
        wanted.truncate(last.map_or(wanted.len(), |last| last + 1));
        if !Fault::ShardsUnordered.is_on() {
            wanted.sort_unstable();
        }
    }
    let (mut locked, mut sum) = (Vec::new(), 0.0);
    for shard in wanted {
        let row = target.row(shard_number(target.limit().shards(), shard));
        match rows.lock(row, false)? {
            Some(Row { stored, tuple, .. }) => {
                let now = host.now();
                let state: State =
                    target.state(shards.shard_limit(), Some(&stored), now)?.into_owned();
                shards.states_mut()[shard] = state;
                sum += room(shards, shard, now, amount).max(0.0);
                locked.push((shard, tuple));
            }
            None if fewest => return Ok(None),
            None => {}
        }
        if sum >= amount.abs() {
            return Ok(Some(locked));
        }
    }
    Ok(None)
}
