//! Locked rows of a key, to be written together with those of other limits.

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::super::expiry::{self, Found};
use super::contents::{row_of, shard_number};
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Rows, Stored, TupleId, Version};
use crate::target::Target;

/// The contents of a key as they were read, with some of its rows locked.
pub struct Contents<'a> {
    /// With a shard for each row, up to date for the locked ones.
    pub found: Found<'a>,
    /// The indexes of the shards with locked rows, and these versions; none if nothing is to change.
    pub locked: Vec<(usize, TupleId)>,
    /// Whether the row has the state of another kind, with holds that are gone once it begins again.
    pub(crate) begins_anew: bool,
    /// Whether other transactions have locked the rows to change: a dry run takes nothing then, and a settlement
    /// credits some of the rows.
    pub(crate) are_others: bool,
    /// The hold with the call's id.
    pub(crate) own: Option<HoldRow>,
    /// The instant of the read, if it left out expired holds because they don't matter: the key is blocked, or even a
    /// full limit denies the call.
    pub(crate) left_out_at: Option<Micros>,
}

impl<'a> Contents<'a> {
    /// Contents without locked rows.
    pub(crate) fn read(found: impl Into<Found<'a>>) -> Contents<'a> {
        Contents::of(found, Vec::new())
    }

    /// Contents with these locked rows.
    pub(crate) fn of(found: impl Into<Found<'a>>, locked: Vec<(usize, TupleId)>) -> Contents<'a> {
        let (found, begins_anew, are_others) = (found.into(), false, false);
        Contents { found, locked, begins_anew, are_others, own: None, left_out_at: None }
    }

    /// Whether a hold has expired since the read, or the block has ended for which expired holds were left out.
    pub(crate) fn is_over(&self, target: &Target, now: Micros) -> bool {
        let is_other = |at| target.block(at) != target.block(now);
        self.found.is_due(now) || self.left_out_at.is_some_and(is_other)
    }

    /// Applies expired holds to the row of a limit without shards; false if it is not locked, or is another's.
    #[cold]
    pub(crate) fn apply_expired<H: Host>(
        &mut self,
        host: &H,
        rows: &dyn Rows,
        target: &Target,
    ) -> Result<bool> {
        let ([_], [(0, _)]) = (self.found.shards.states(), &self.locked[..]) else {
            return Ok(false);
        };
        let id = target.row(0);
        let Some(row) = rows.lock(id, true)? else { return Ok(false) };
        let row = expiry::apply_locked(host, rows, id, Some(target), row)?;
        let state = target.state(target.limit(), Some(&row.stored), host.now())?;
        self.locked = vec![(0, row.tuple)];
        self.found.shards.states_mut()[0] = state.into_owned();
        self.found.due = row.holds_due;
        Ok(true)
    }

    /// Whether all of its rows are locked, or none.
    pub fn is_whole(&self) -> bool {
        self.locked.is_empty() || self.locked.len() == self.found.shards.states().len()
    }

    /// Whether the locked rows suffice for a change of the total to this state. Not if none is locked: at first sight
    /// nothing was to change.
    pub(crate) fn suffices(&self, now: Micros, after: Option<&State>) -> bool {
        let (shards, locked) = (&self.found.shards, self.locked.iter().map(|&(shard, _)| shard));
        !self.locked.is_empty() && (self.is_whole() || shards.suffice(locked, now, after))
    }

    /// Writes a change of the total, decided at `now`: spreads it over the locked rows, and writes those that change.
    pub(crate) fn write(
        &mut self,
        rows: &dyn Rows,
        target: &Target,
        now: Micros,
        after: &State,
    ) -> Result<()> {
        let Contents { found, locked, .. } = self;
        if let ([state], [(_, tuple)]) = (found.shards.states_mut(), &locked[..]) {
            state.clone_from(after);
            let stored = Stored::State(after.clone());
            return rows.update(target.row(0), *tuple, &Version { stored, holds_due: found.due });
        }
        if locked.is_empty() {
            return Err(LimiterError::not_written()); // nothing would be taken
        }
        let (shards, among) = (&mut found.shards, locked.iter().map(|&(shard, _)| shard));
        let before = shards.states().to_vec();
        shards.change(&among.collect::<Vec<_>>(), now, after);
        for &(shard, tuple) in &*locked {
            let state = &shards.states()[shard];
            if *state != before[shard] && !(shard == 1 && Fault::ShardForgotten.is_on()) {
                rows.update(row_of(target, shard), tuple, &Stored::State(state.clone()).into())?;
            }
        }
        Ok(())
    }
}

/// How many rows of a limit with shards a call locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// One with room for the whole change, or else several unlocked ones.
    Few,
    /// All.
    All,
    /// All, after any wait: even a deadlock can be retried.
    AllWaiting,
}

/// Locks one row with room for the whole change of equal shards that were read before, or unlocked ones until together
/// they have room for it. With `wait`, waits for one if all that have room are locked. `None`: they don't suffice, and
/// the caller releases them, and then locks all rows.
pub(crate) fn lock_few<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'a Target<'a>,
    mut shards: Shards<'a>,
    amount: f64,
    wait: bool,
) -> Result<Option<Contents<'a>>> {
    let now = host.now();
    let has_room = |&n: &usize| shards.room(n, now, amount) >= amount.abs();
    let mut with_room: Vec<usize> = (0..shards.states().len()).filter(has_room).collect();
    // In random order, so that calls spread.
    for end in (2..=with_room.len()).rev() {
        with_room.swap(host.below(end), end - 1);
    }
    let waited_for = with_room.first().filter(|_| wait).map(|&shard| (shard, true));
    let unlocked = own_shard(host, target).filter(has_room).into_iter().chain(with_room);
    for (shard, wait) in unlocked.map(|shard| (shard, false)).chain(waited_for) {
        if let Some(row) = rows.lock(row_of(target, shard), wait)? {
            let state = target.state(shards.shard_limit(), Some(&row.stored), now)?.into_owned();
            shards.states_mut()[shard] = state;
            return Ok(Some(Contents::of(shards, vec![(shard, row.tuple)])));
        }
    }
    // In ascending order, since in PostgreSQL even SKIP LOCKED can wait, if a row is updated twice while it is being
    // locked.
    let (mut locked, mut sum, count) = (Vec::new(), 0.0, shards.states().len());
    for n in 0..count {
        let shard = if Fault::ShardsUnordered.is_on() { count - 1 - n } else { n };
        if shards.room(shard, now, amount) <= 0.0 {
            continue;
        }
        let Some(row) = rows.lock(row_of(target, shard), false)? else { continue };
        let now = host.now();
        let state = target.state(shards.shard_limit(), Some(&row.stored), now)?.into_owned();
        shards.states_mut()[shard] = state;
        sum += shards.room(shard, now, amount).max(0.0);
        locked.push((shard, row.tuple));
        if sum >= amount.abs() {
            return Ok(Some(Contents::of(shards, locked)));
        }
    }
    Ok(None)
}

/// The shard of the row that this transaction last locked, counted from 0: it takes from that row again.
pub(super) fn own_shard(host: &impl Host, target: &Target) -> Option<usize> {
    let count = target.limit().shards() as usize;
    let first = shard_number(count as u32, 0);
    let shard = |number: i32| usize::try_from(number - first).ok().filter(|&shard| shard < count);
    host.own_rows(target.name, target.key).into_iter().find_map(shard)
}
