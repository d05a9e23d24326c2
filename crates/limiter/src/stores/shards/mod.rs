//! A limit spread over several rows, so that as many transactions can hold it at once.
//!
//! A limit of n shards has rows n * 10000 + 1 to n * 10000 + n, all inserted at once, and row 0, which holds no tokens.
//! A call with another number of shards thus finds none of its rows, and must lock row 0, then all others, to reshard
//! them: no token is counted twice.
//!
//! Rows are waited for in ascending order, or singly while no other is locked; locks that turn out
//! useless are released first. A transaction that holds a row from an earlier call, also under another
//! number of shards, waits for no other row of that limit: it reshards if it gets all rows at once.

mod choose;
pub(crate) mod contents;
mod locked;

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use crate::change::{Change, Contents, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Row, Rows, Stored, TRIES};
use crate::request::Answer;
use crate::target::Target;

use contents::{KeyShards, interpret, lock_all, shard_limit_of, shards_of};
pub use locked::{LockedRows, LockedShard, lock, lock_whole};

/// A change of the rows of a target.
pub(super) struct Sharded<'a, H> {
    host: &'a H,
    rows: &'a dyn Rows,
    target: &'a Target<'a>,
    change: &'a Change<'a>,
}

/// Reads a target's contents in its rows, with the instant after the read.
pub(super) fn peek<'t>(
    host: &impl Host,
    rows: &dyn Rows,
    target: &'t Target,
) -> Result<(Micros, Shards<'t>)> {
    let (now, found) = contents::peek(host, rows, target)?;
    Ok((now, found.shards))
}

/// Applies a change to a limit with shards. If nothing changes, answers from a plain read of all rows.
pub(crate) fn apply<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
) -> Result<Answer> {
    Sharded { host, rows, target, change }.change_fewest_rows()
}

/// Applies a change to a limit of one row while its rows are still those of a limit with shards; `None`: they must be
/// read again.
pub(crate) fn apply_to_one<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    change: &Change,
) -> Result<Option<Answer>> {
    let (now, shards) = peek(host, rows, target)?;
    let contents = Contents::All(&shards);
    let Decided { answer, after, .. } = change.decide(host, target, contents, now)?;
    if after.is_none() {
        return Ok(Some(left(answer, &shards, now)));
    }
    Sharded { host, rows, target, change }.change_all_or_answer(&shards, now)
}

/// Joins the rows of a limit that had shards into one, to which expired holds can come back; false if others have
/// locked rows that can't be waited for.
#[cold]
pub(crate) fn join<H: Host>(host: &H, rows: &dyn Rows, target: &Target) -> Result<bool> {
    match lock_all(host, rows, target, may_wait(host, target)) {
        Err(LimiterError::Busy) => Ok(false),
        joined => joined.map(|_| true),
    }
}

/// Locks all rows of a key, unless one has to be waited for.
pub(crate) fn lock_at_once<'t>(
    host: &impl Host,
    rows: &dyn Rows,
    target: &'t Target,
) -> Result<Option<LockedRows<'t>>> {
    match lock_all(host, rows, target, false) {
        Err(LimiterError::Busy) => Ok(None),
        locked => Ok(locked?.map(LockedRows::all)),
    }
}

/// The answer with the level of the shards.
fn left(answer: Answer, shards: &Shards, now: Micros) -> Answer {
    Answer { level: shards.level(now), ..answer }
}

/// Whether this transaction may wait for rows of a key: it has locked none, under any number of shards.
fn may_wait(host: &impl Host, target: &Target) -> bool {
    host.own_rows(target.name, target.key).is_empty() || Fault::OwnRowsOverlooked.is_on()
}

/// The tokens by which a shard can change in the direction of `amount`: those available, or
/// the room up to its capacity.
fn room(shards: &Shards, shard: usize, now: Micros, amount: f64) -> f64 {
    let available = shards.available(shard, now);
    if amount < 0.0 { available } else { shards.shard_limit().capacity() - available }
}

impl<H: Host> Sharded<'_, H> {
    /// Makes the change in one row, or else in as few as possible.
    fn change_fewest_rows(&self) -> Result<Answer> {
        let Sharded { host, rows, target, change } = self;
        for _ in 0..TRIES {
            host.check_for_interrupts();
            if let Some(answer) = self.change_better_of_two()? {
                return Ok(answer);
            }
            let found = rows.read_key(target.name, target.key, None)?;
            let now = host.now();
            let KeyShards { shards, matches_limit, .. } = interpret(target, found, now)?;
            let Decided { answer, after, .. } =
                change.decide(*host, target, Contents::All(&shards), now)?;
            let Some(after) = after else { return Ok(left(answer, &shards, now)) };
            let amount = after.value() - shards.total(now).value();
            // All rows share a debt, which is paid back first; so is use beyond a config that has changed.
            let in_debt = (0..shards.states().len()).any(|n| shards.available(n, now) < 0.0);
            let is_credit = change.tokens() > 0.0;
            let is_owed = in_debt || is_credit && shards.are_overused(now);
            // The number of tokens left is decided on all rows.
            let is_part = change.takes_part(&answer);
            if matches_limit && after.value() >= 0.0 && !is_owed && !is_part {
                if let Some(answer) = self.change_any_row(&shards, now, amount)? {
                    return Ok(answer);
                }
                if let Some(answer) = self.change_several_rows(&shards, now, amount)? {
                    return Ok(answer);
                }
            }
            if matches_limit && !is_part && !may_wait(*host, target) {
                return self.answer_while_locked(&shards, now);
            }
            if let Some(answer) = self.change_all_or_answer(&shards, now)? {
                return Ok(answer);
            }
        }
        Err(LimiterError::not_written())
    }

    /// Makes the change in all rows, as [`change_all_rows`](Self::change_all_rows), or answers as
    /// [`answer_while_locked`](Self::answer_while_locked) if the transaction may not wait and can't have them at once.
    fn change_all_or_answer(&self, shards: &Shards, now: Micros) -> Result<Option<Answer>> {
        match self.change_all_rows(may_wait(self.host, self.target)) {
            Err(LimiterError::Busy) => self.answer_while_locked(shards, now).map(Some),
            answer => answer,
        }
    }

    /// Answers a transaction that already holds rows of the limit if the other rows that it needs are locked: a wait
    /// for them could be a deadlock. A change that can't be answered so goes to one of its own rows, under the number
    /// of shards of that row.
    fn answer_while_locked(&self, shards: &Shards, now: Micros) -> Result<Answer> {
        let Sharded { host, rows, target, change } = self;
        match change.decide(*host, target, Contents::Busy(shards), now) {
            Err(LimiterError::Busy) => {}
            decided => return Ok(left(decided?.answer, shards, now)),
        }
        for number in host.own_rows(target.name, target.key) {
            let id = target.row(number);
            let Some(Row { stored, holds_due, tuple }) = rows.lock(id, true)? else { continue };
            if stored.is_marker() {
                continue;
            }
            let limit = shard_limit_of(target.limit(), shards_of(number));
            let state = target.state(&limit, Some(&stored), now)?.into_owned();
            let own = Shards::new(&limit, vec![state]);
            if own.available(0, now) + change.tokens() > limit.capacity() {
                continue;
            }
            let contents = Contents::OneOf(&own, 0);
            let Decided { answer, after, .. } = change.decide(*host, target, contents, now)?;
            if let Some(after) = after.filter(|_| !Fault::CreditDropped.is_on()) {
                rows.update(id, tuple, &Stored::State(after), holds_due)?;
            }
            let (now, shards) = peek(*host, *rows, target)?;
            return Ok(left(answer, &shards, now));
        }
        // It doesn't fit, and no token may be lost: wait, since even a deadlock can be retried.
        self.change_all_rows(true)?.ok_or_else(LimiterError::not_written)
    }

    /// Makes the change after locking all rows, in ascending order, and resharding them if they are of another number
    /// of shards. If nothing changes, releases and undoes all of that. `None`: the rows must be read again.
    ///
    /// # Errors
    /// [`LimiterError::Busy`]: a row is locked, and `wait` is false.
    fn change_all_rows(&self, wait: bool) -> Result<Option<Answer>> {
        let Sharded { host, rows, target, change } = self;
        let mut unchanged = None;
        let changed = host.attempt(|| {
            let all = lock_all(*host, *rows, target, wait)?;
            let Some(KeyShards { mut shards, tuples, holds_due, .. }) = all else {
                return Ok(None);
            };
            let now = host.now();
            let Decided { answer, after, .. } =
                change.decide(*host, target, Contents::All(&shards), now)?;
            let Some(after) = after else {
                unchanged = Some(left(answer, &shards, now));
                return Ok(None);
            };
            if let [tuple] = tuples[..] {
                rows.update(target.row(0), tuple, &Stored::State(after), holds_due)?;
                return Ok(Some(answer));
            }
            let locked: Vec<LockedShard> = tuples.into_iter().enumerate().collect();
            locked::write(*rows, target, &mut shards, &locked, now, &after)?;
            Ok(Some(left(answer, &shards, now)))
        })?;
        Ok(changed.or(unchanged))
    }
}
