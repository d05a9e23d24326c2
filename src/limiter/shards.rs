//! A limit spread over several rows, so that as many transactions can hold it at once: the choice of
//! the rows that a call takes from, and resharding.
//!
//! A limit of n shards has rows n * 10000 + 1 to n * 10000 + n, all inserted at once, and row 0, which
//! holds no tokens. So a call with another number of shards finds none of its rows, and must lock row
//! 0, then all others, to reshard them: no token is counted twice.
//!
//! Rows are waited for in ascending order, or singly while no other is held; locks that turn out
//! useless are released first. A transaction that holds a row from an earlier call, also under another
//! number of shards, waits for no other row of that limit: it reshards if it gets all rows at once.

use ratelimit_core::{Decision, Micros, Shards};

use crate::limiter::request::{Answer, Change, Take, Target};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::subtransaction::attempt;
use crate::store::held::{held_rows, holds_row};
use crate::store::{Row, Store, Stored, TRIES, TupleId};

use holding::{lock_all, shard_number};

mod holding;

pub use holding::{Holding, holding, peek, shard_limit_of, shards_of};

/// Returns the shard whose row this transaction last locked, counted from 0: it takes from it again.
fn held_shard(target: &Target) -> Option<usize> {
    let count = target.limit.shards() as usize;
    let first = shard_number(count as u32, 0);
    let shard = |number: i32| usize::try_from(number - first).ok().filter(|&shard| shard < count);
    held_rows(target.name, target.key).into_iter().find_map(shard)
}

/// Whether this transaction may wait for rows of the limit: it holds none, under whichever number of shards.
fn may_wait(target: &Target) -> bool {
    !holds_row(target.name, target.key)
}

/// Makes one call on a limit with shards. A call that changes nothing is answered from a plain read of
/// all rows.
///
/// # Errors
/// As [`single::limit`](crate::limiter::single::limit), but for the arguments.
pub fn change(store: &dyn Store, target: &Target, change: Change) -> Result<Answer> {
    for _ in 0..TRIES {
        check_for_interrupts();
        if let Some(answer) = change_better_of_two(store, target, change)? {
            return Ok(answer);
        }
        let rows = store.read_key(target.name, target.key)?;
        let now = clock::now();
        let Holding { shards, matches_limit, .. } = holding(target, rows, now)?;
        let decision = change.decide(&target.limit, &shards, now)?;
        let Some(after) = &decision.state else {
            return Ok(target.answer(&decision, shards.level(now), now));
        };
        let amount = after.value() - shards.total(now).value();
        // A debt is shared by all rows, and paid back first.
        let in_debt = (0..shards.states().len()).any(|shard| shards.available(shard, now) < 0.0);
        if matches_limit && after.value() >= 0.0 && !in_debt {
            if let Some(answer) = change_any_row(store, target, change, &shards, now, amount)? {
                return Ok(answer);
            }
            if let Some(answer) =
                change_several_rows(store, target, &decision, shards.clone(), now, amount)?
            {
                return Ok(answer);
            }
        }
        if matches_limit && !may_wait(target) {
            return answer_while_locked(store, target, change, &shards, now);
        }
        if let Some(answer) = change_all_or_answer(store, target, change, &shards, now)? {
            return Ok(answer);
        }
    }
    Err(store.not_written())
}

/// Makes a call on a limit of one row, where the rows are still those of a limit with shards; `None` if
/// they must be read again.
///
/// # Errors
/// As [`change`].
pub fn change_to_one(store: &dyn Store, target: &Target, change: Change) -> Result<Option<Answer>> {
    let (now, Holding { shards, .. }) = peek(store, target)?;
    let decision = change.decide(&target.limit, &shards, now)?;
    if decision.state.is_none() {
        return Ok(Some(target.answer(&decision, shards.level(now), now)));
    }
    change_all_or_answer(store, target, change, &shards, now)
}

/// Makes the change in all rows, as [`change_all_rows`], or answers as [`answer_while_locked`] if they are
/// not to be had at once by a transaction that may not wait.
///
/// # Errors
/// As [`change`].
fn change_all_or_answer(
    store: &dyn Store,
    target: &Target,
    change: Change,
    shards: &Shards,
    now: Micros,
) -> Result<Option<Answer>> {
    match change_all_rows(store, target, change, may_wait(target)) {
        Err(Error::Busy) => answer_while_locked(store, target, change, shards, now).map(Some),
        changed => changed,
    }
}

/// Answers a transaction that holds rows of the limit already, where the others that it needs are
/// locked: waiting for them could be a deadlock. A take is denied, to be retried at once; a credit
/// goes to a held row, as that of the number of shards that it has.
///
/// # Errors
/// As [`change`].
fn answer_while_locked(
    store: &dyn Store,
    target: &Target,
    change: Change,
    shards: &Shards,
    now: Micros,
) -> Result<Answer> {
    let level = shards.level(now);
    let denied = Decision { ok: false, retry_after: Some(Micros(0)), level, state: None };
    let Change::Credit { count, .. } = change else {
        return Ok(target.answer(&denied, level, now));
    };
    for number in held_rows(target.name, target.key) {
        let id = target.row(number);
        let Some(Row { stored, tuple }) = store.lock(id)? else { continue };
        if matches!(stored, Stored::Marker) {
            continue;
        }
        let limit = shard_limit_of(&target.limit, shards_of(number));
        let state = target.state(&limit, Some(stored), now)?;
        let tokens = Shards::new(&limit, vec![state.clone()]).available(0, now);
        if tokens + count > limit.capacity() {
            continue;
        }
        let decision = change.apply(&limit, &state, now)?;
        if let Some(after) = &decision.state {
            store.update(id, tuple, &after.clone().into())?;
        }
        let (now, Holding { shards, .. }) = peek(store, target)?;
        return Ok(target.answer(&decision, shards.level(now), now));
    }
    // It doesn't fit, and no token may be lost: wait, since even a deadlock can be retried.
    change_all_rows(store, target, change, true)?.ok_or_else(|| store.not_written())
}

/// Returns the tokens by which a shard can change in the direction of `amount`: those available, or
/// the room up to its capacity.
fn room(shards: &Shards, shard: usize, now: Micros, amount: f64) -> f64 {
    let available = shards.available(shard, now);
    if amount < 0.0 { available } else { shards.shard_limit().capacity() - available }
}

/// Makes the whole change in the row that this transaction holds already, or else in the better of two
/// random rows; `None` if it is locked or has no room.
///
/// # Errors
/// As [`change`].
fn change_better_of_two(
    store: &dyn Store,
    target: &Target,
    change: Change,
) -> Result<Option<Answer>> {
    let amount = match change {
        Change::Take(Take { count, .. }) => -count,
        Change::Credit { count, .. } => count,
    };
    let shard_count = target.limit.shards();
    if amount == 0.0 {
        return Ok(None);
    }
    let own = held_shard(target);
    let first = own.unwrap_or_else(|| fastrand::usize(0..shard_count as usize));
    let second = (first + fastrand::usize(1..shard_count as usize)) % shard_count as usize;
    let numbers = [shard_number(shard_count, first), shard_number(shard_count, second)];
    let rows = store.read_shards(target.name, target.key, &numbers)?;
    let now = clock::now();
    let shard_limit = target.limit.shard_limit(shard_count);
    let mut states = Vec::new();
    for wanted in numbers {
        let row = rows.iter().find(|&&(number, _)| number == wanted);
        let Some((_, row)) = row else { return Ok(None) };
        states.push(target.state(&shard_limit, Some(row.stored.clone()), now)?);
    }
    // The other rows are assumed to be like the second.
    let mut estimate = vec![states[1].clone(); shard_count as usize];
    estimate[first] = states.swap_remove(0);
    let estimate = Shards::new(&target.limit, estimate);
    let room = |shard| room(&estimate, shard, now, amount);
    let better = if own.is_some() || room(first) >= room(second) { first } else { second };
    let in_debt = [first, second].iter().any(|&shard| estimate.available(shard, now) < 0.0);
    if room(better) < amount.abs() || in_debt {
        return Ok(None);
    }
    let row = target.row(shard_number(shard_count, better));
    let decision = change.apply(estimate.shard_limit(), &estimate.states()[better], now)?;
    let seen = rows.iter().find(|&&(number, _)| number == row.shard).map(|(_, found)| found);
    if let (Some(after), Some(seen)) = (&decision.state, seen)
        && store.replace(row, seen, &after.clone().into(), false)?
    {
        let mut shards = estimate;
        shards.states_mut()[better] = after.clone();
        return Ok(Some(target.answer(&decision, shards.level(now), now)));
    }
    let take = || {
        let found = store.try_lock(row)?;
        change_row(store, target, change, estimate.clone(), better, found, amount)
    };
    // Another call may change the row before it is locked here: then the lock is released, unless it
    // was held before.
    if own.is_some() { take() } else { attempt(take) }
}

/// Makes the whole change in a single row: one that is not locked, or else one after a wait.
///
/// # Errors
/// As [`change`].
fn change_any_row(
    store: &dyn Store,
    target: &Target,
    change: Change,
    shards: &Shards,
    now: Micros,
    amount: f64,
) -> Result<Option<Answer>> {
    let shard_count = target.limit.shards();
    let mut candidates = rows_with_room(shards, now, amount);
    // The first once more, to be waited for, unless a row is held.
    let once = candidates.len();
    candidates.extend(candidates.first().copied().filter(|_| may_wait(target)));
    for (tried, &shard) in candidates.iter().enumerate() {
        let row = target.row(shard_number(shard_count, shard));
        let wait = tried == once;
        let answer = attempt(|| {
            let row = if wait { store.lock(row)? } else { store.try_lock(row)? };
            change_row(store, target, change, shards.clone(), shard, row, amount)
        })?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// Returns the shards with room for the whole change, in random order, so that calls spread.
fn rows_with_room(shards: &Shards, now: Micros, amount: f64) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..shards.states().len())
        .filter(|&shard| room(shards, shard, now, amount) >= amount.abs())
        .collect();
    fastrand::shuffle(&mut rows);
    rows
}

/// Makes the whole change in the locked row of a shard; `None` if it is gone or has no room.
///
/// # Errors
/// As [`change`].
fn change_row(
    store: &dyn Store,
    target: &Target,
    change: Change,
    mut shards: Shards,
    shard: usize,
    locked: Option<Row>,
    amount: f64,
) -> Result<Option<Answer>> {
    let Some(Row { stored, tuple }) = locked else { return Ok(None) };
    let now = clock::now();
    shards.states_mut()[shard] = target.state(shards.shard_limit(), Some(stored), now)?;
    if room(&shards, shard, now, amount) < amount.abs() {
        return Ok(None);
    }
    let decision = change.apply(shards.shard_limit(), &shards.states()[shard], now)?;
    let Some(after) = &decision.state else { return Ok(None) };
    shards.states_mut()[shard] = after.clone();
    let row = target.row(shard_number(target.limit.shards(), shard));
    store.update(row, tuple, &after.clone().into())?;
    Ok(Some(target.answer(&decision, shards.level(now), now)))
}

/// Makes the change in the fewest unlocked rows with room for it together.
///
/// # Errors
/// As [`change`].
fn change_several_rows(
    store: &dyn Store,
    target: &Target,
    decision: &Decision,
    mut shards: Shards,
    now: Micros,
    amount: f64,
) -> Result<Option<Answer>> {
    for fewest in [true, false] {
        let answer = attempt(|| {
            let Some(locked) = lock_free(store, target, &mut shards, now, amount, fewest)? else {
                return Ok(None);
            };
            let now = clock::now();
            let held: f64 = locked.iter().map(|&(shard, _)| shards.available(shard, now)).sum();
            let ts = shards.total(now).ts();
            write(store, target, &mut shards, &locked, now, held + amount, ts)?;
            Ok(Some(target.answer(decision, shards.level(now), now)))
        })?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// Locks unlocked rows until they have room for the change together, and updates the shards: the
/// `fewest` that seem to suffice, or any. `None` if they don't suffice; the caller then releases them.
/// In ascending order, since even SKIP LOCKED can wait in PostgreSQL, where a row is updated twice
/// while it is being locked.
///
/// # Errors
/// As [`change`].
fn lock_free(
    store: &dyn Store,
    target: &Target,
    shards: &mut Shards,
    now: Micros,
    amount: f64,
    fewest: bool,
) -> Result<Option<Vec<LockedShard>>> {
    let rooms: Vec<f64> =
        (0..shards.states().len()).map(|shard| room(shards, shard, now, amount)).collect();
    let mut rows: Vec<usize> = (0..rooms.len()).filter(|&shard| rooms[shard] > 0.0).collect();
    if fewest {
        // Calls spread over equal rows.
        fastrand::shuffle(&mut rows);
        rows.sort_by(|&one, &other| rooms[other].total_cmp(&rooms[one]));
        let mut sum = 0.0;
        let last = rows.iter().position(|&shard| {
            sum += rooms[shard];
            sum >= amount.abs()
        });
        rows.truncate(last.map_or(rows.len(), |last| last + 1));
        rows.sort_unstable();
    }
    let (mut locked, mut sum) = (Vec::new(), 0.0);
    for shard in rows {
        let row = target.row(shard_number(target.limit.shards(), shard));
        match store.try_lock(row)? {
            Some(found) => {
                let now = clock::now();
                shards.states_mut()[shard] =
                    target.state(shards.shard_limit(), Some(found.stored), now)?;
                sum += room(shards, shard, now, amount).max(0.0);
                locked.push((shard, found.tuple));
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

/// Makes the change after locking all rows, in ascending order, and resharding them if they are those of
/// another number of shards. A call that is denied then gives all of that back. `None` if the rows must be
/// read again.
///
/// # Errors
/// As [`change`]; [`Error::Busy`]: without `wait`, and a row is locked.
fn change_all_rows(
    store: &dyn Store,
    target: &Target,
    change: Change,
    wait: bool,
) -> Result<Option<Answer>> {
    let mut unchanged = None;
    let answer = attempt(|| {
        let Some(Holding { mut shards, tuples, .. }) = lock_all(store, target, wait)? else {
            return Ok(None);
        };
        let now = clock::now();
        let decision = change.decide(&target.limit, &shards, now)?;
        let Some(after) = &decision.state else {
            unchanged = Some(target.answer(&decision, shards.level(now), now));
            return Ok(None);
        };
        if let [tuple] = tuples[..] {
            store.update(target.row(0), tuple, &after.clone().into())?;
            return Ok(Some(target.answer(&decision, decision.level, now)));
        }
        let locked: Vec<LockedShard> = tuples.into_iter().enumerate().collect();
        write(store, target, &mut shards, &locked, now, after.value(), after.ts())?;
        Ok(Some(target.answer(&decision, shards.level(now), now)))
    })?;
    Ok(answer.or(unchanged))
}

/// The index of a shard, and the version of its row that is locked.
pub type LockedShard = (usize, TupleId);

/// The contents of a key, some of whose rows are locked.
pub struct Locked<'a> {
    /// A shard for each row, up to date for the locked ones.
    pub shards: Shards<'a>,
    /// The locked rows; none where nothing is to be changed.
    pub locked: Vec<LockedShard>,
}

/// Locks rows of a key with room for a change of `amount` tokens: with `single_row` one that seems to
/// have it, or a few unlocked ones, otherwise all. `shards` are those read before. `None` where the
/// rows must be read again, or don't suffice.
///
/// # Errors
/// As [`change`]; [`Error::Busy`]: others are locked while this transaction holds one.
pub fn lock<'a>(
    store: &dyn Store,
    target: &'a Target,
    mut shards: Shards<'a>,
    amount: f64,
    single_row: bool,
) -> Result<Option<Locked<'a>>> {
    let (shard_count, wait) = (target.limit.shards(), may_wait(target));
    if shard_count == 1 {
        let id = target.row(0);
        let found = match store.lock_or_busy(id, wait)? {
            None => {
                // A row that was reset counts as none until it is written.
                if !store.insert(id, &Stored::Reset { ts: clock::now() })? {
                    return Ok(None);
                }
                store.lock(id)?
            }
            Some(Row { stored: Stored::Marker, .. }) => {
                return Ok(lock_all(store, target, wait)?.map(Locked::all));
            }
            found => found,
        };
        let Some(Row { stored, tuple }) = found else { return Ok(None) };
        let state = target.state(&target.limit, Some(stored), clock::now())?;
        let shards = Shards::new(&target.limit, vec![state]);
        return Ok(Some(Locked { shards, locked: vec![(0, tuple)] }));
    }
    let now = clock::now();
    // Rows of another number of shards are resharded below.
    let equal = shards.are_equal();
    if single_row && equal && shards.total(now).value() + amount >= 0.0 {
        if let Some(shard) =
            held_shard(target).filter(|&shard| room(&shards, shard, now, amount) >= amount.abs())
            && let Some(Row { stored, tuple }) =
                store.try_lock(target.row(shard_number(shard_count, shard)))?
        {
            shards.states_mut()[shard] = target.state(shards.shard_limit(), Some(stored), now)?;
            return Ok(Some(Locked { shards, locked: vec![(shard, tuple)] }));
        }
        for shard in rows_with_room(&shards, now, amount) {
            if let Some(Row { stored, tuple }) =
                store.try_lock(target.row(shard_number(shard_count, shard)))?
            {
                shards.states_mut()[shard] =
                    target.state(shards.shard_limit(), Some(stored), now)?;
                return Ok(Some(Locked { shards, locked: vec![(shard, tuple)] }));
            }
        }
        // `None`: the caller releases them, and then locks all rows.
        let locked = lock_free(store, target, &mut shards, now, amount, false)?;
        return Ok(locked.map(|locked| Locked { shards, locked }));
    }
    if equal && !wait {
        let mut tuples = Vec::new();
        for other in 0..shard_count as usize {
            let id = target.row(shard_number(shard_count, other));
            let Some(Row { stored, tuple }) = store.lock_or_busy(id, wait)? else {
                return Ok(None);
            };
            shards.states_mut()[other] = target.state(shards.shard_limit(), Some(stored), now)?;
            tuples.push((other, tuple));
        }
        return Ok(Some(Locked { shards, locked: tuples }));
    }
    Ok(lock_all(store, target, wait)?.map(Locked::all))
}

impl<'a> Locked<'a> {
    /// All rows of a key, locked.
    fn all(held: Holding<'a>) -> Locked<'a> {
        Locked { shards: held.shards, locked: held.tuples.into_iter().enumerate().collect() }
    }
}

/// Spreads `tokens` over the locked rows, and writes those that change.
///
/// # Errors
/// Those of the store.
pub fn write(
    store: &dyn Store,
    target: &Target,
    shards: &mut Shards,
    locked: &[LockedShard],
    now: Micros,
    tokens: f64,
    ts: Micros,
) -> Result<()> {
    let before = shards.states().to_vec();
    let rows: Vec<usize> = locked.iter().map(|&(shard, _)| shard).collect();
    shards.distribute(&rows, now, tokens, ts);
    for &(shard, tuple) in locked {
        let state = &shards.states()[shard];
        if *state != before[shard] {
            let row = target.row(shard_number(target.limit.shards(), shard));
            store.update(row, tuple, &state.clone().into())?;
        }
    }
    Ok(())
}
