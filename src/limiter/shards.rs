//! A limit spread over several rows, so that as many transactions can hold it at once: which of
//! them a call takes from, and how a key's rows become another number of them.
//!
//! A limit of n shards has rows n * 10000 + 1 to n * 10000 + n, all made at once, and row 0, which
//! holds no tokens. So a call that wants another number of shards finds none of its rows, and must
//! lock row 0, then all others, to rearrange what they hold: nothing is counted twice.
//!
//! Who waits for locks waits in ascending order, or for a single row while it holds no other; what
//! it locked and cannot use it gives back first. A transaction that holds a row from an earlier call
//! waits for no other row of that limit.

use ratelimit_core::{Decision, Micros, Shards};

use crate::limiter::request::{Answer, Change, Target};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::subtransaction::attempt;
use crate::store::{Row, Store, TRIES, TupleId, is_marker, reset_state};

use held::{held, hold};
use holding::shard_number;

mod held;
mod holding;

pub use held::forget;
pub use holding::{Holding, holding, look, part_of, rearrange, shards_of};

/// One call on a limit with shards. What changes nothing is answered from a plain read of all rows.
pub fn change(store: &dyn Store, target: &Target, change: Change) -> Result<Answer> {
    for _ in 0..TRIES {
        check_for_interrupts();
        if let Some(answer) = change_better_of_two(store, target, change)? {
            return Ok(answer);
        }
        let rows = store.read_key(target.name, target.key)?;
        let now = clock::now();
        let Holding { parts, in_place, .. } = holding(target, rows, now)?;
        let decision = change.decide(&target.limit, &parts, now)?;
        let Some(after) = &decision.state else {
            return Ok(target.answer(&decision, parts.level(now), now));
        };
        if !in_place {
            rearrange(store, target)?;
            continue;
        }
        let amount = after.value - parts.total(now).value;
        // A debt is for all rows to share, and to be paid back first.
        let in_debt = (0..parts.states().len()).any(|shard| parts.available(shard, now) < 0.0);
        if after.value >= 0.0 && !in_debt {
            if let Some(answer) = change_any_row(store, target, change, &parts, now, amount)? {
                return Ok(answer);
            }
            if let Some(answer) =
                change_several_rows(store, target, &decision, parts.clone(), now, amount)?
            {
                return Ok(answer);
            }
        }
        if held(target).is_some() {
            return answer_while_locked(store, target, change, parts, now);
        }
        if let Some(answer) = change_all_rows(store, target, change)? {
            return Ok(answer);
        }
    }
    Err(store.not_written())
}

/// What is left to a transaction that holds rows of the limit already, where the others that it
/// needs are locked: to wait for them could be a deadlock with one that waits for its own. A take is
/// denied, and may be tried again at once; a credit goes to the row that it holds.
fn answer_while_locked(
    store: &dyn Store,
    target: &Target,
    change: Change,
    mut parts: Shards,
    now: Micros,
) -> Result<Answer> {
    let level = parts.level(now);
    let denied = Decision { ok: false, retry_after: Some(Micros(0)), level, state: None };
    let (Change::Credit { count, .. }, Some(shard)) = (change, held(target)) else {
        return Ok(target.answer(&denied, level, now));
    };
    let id = target.row(shard_number(target.limit.shards(), shard));
    let Some(Row { state, tuple }) = store.lock(id)? else { return Err(store.not_written()) };
    parts.states_mut()[shard] = target.state(parts.shard_limit(), Some(state), now)?;
    let tokens = parts.available(shard, now) + count;
    if tokens > parts.shard_limit().capacity() {
        // It doesn't fit there, and nothing may be lost: even a deadlock can be tried again.
        return change_all_rows(store, target, change)?.ok_or_else(|| store.not_written());
    }
    let ts = parts.total(now).ts;
    write(store, target, &mut parts, &[(shard, tuple)], now, tokens, ts)?;
    let level = parts.level(now);
    Ok(target.answer(&Decision { ok: true, retry_after: None, level, state: None }, level, now))
}

/// By how much a part can change by itself in the direction of `amount`: what it holds, or what it
/// has room for.
fn room(parts: &Shards, shard: usize, now: Micros, amount: f64) -> f64 {
    let available = parts.available(shard, now);
    if amount < 0.0 { available } else { parts.shard_limit().capacity() - available }
}

/// The quick way: the row that this transaction holds already, or else the better of two at random,
/// if it is not locked and can bear the whole change.
fn change_better_of_two(
    store: &dyn Store,
    target: &Target,
    change: Change,
) -> Result<Option<Answer>> {
    let amount = match change {
        Change::Take { count, .. } => -count,
        Change::Credit { count, .. } => count,
    };
    let shards = target.limit.shards();
    if amount == 0.0 {
        return Ok(None);
    }
    let mine = held(target);
    let first = mine.unwrap_or_else(|| fastrand::usize(0..shards as usize));
    let second = (first + fastrand::usize(1..shards as usize)) % shards as usize;
    let numbers = [shard_number(shards, first), shard_number(shards, second)];
    let rows = store.read_shards(target.name, target.key, &numbers)?;
    let now = clock::now();
    let part = target.limit.shard_limit(shards);
    let mut states = Vec::new();
    for wanted in numbers {
        let row = rows.iter().find(|&&(number, _)| number == wanted);
        let Some((_, row)) = row else { return Ok(None) };
        states.push(target.state(&part, Some(row.state.clone()), now)?);
    }
    // The others are taken to be like the second.
    let mut guess = vec![states[1].clone(); shards as usize];
    guess[first] = states.swap_remove(0);
    let guess = Shards::new(&target.limit, guess);
    let room = |shard| room(&guess, shard, now, amount);
    let better = if mine.is_some() || room(first) >= room(second) { first } else { second };
    let in_debt = [first, second].iter().any(|&shard| guess.available(shard, now) < 0.0);
    if room(better) < amount.abs() || in_debt {
        return Ok(None);
    }
    let row = target.row(shard_number(shards, better));
    let decision = change.apply(guess.shard_limit(), &guess.states()[better], now)?;
    let seen = rows.iter().find(|&&(number, _)| number == row.shard).map(|(_, found)| found);
    if let (Some(after), Some(seen)) = (&decision.state, seen)
        && store.replace(row, seen, after, false)?
    {
        let mut parts = guess;
        parts.states_mut()[better] = after.clone();
        hold(target, better);
        return Ok(Some(target.answer(&decision, parts.level(now), now)));
    }
    let take = || {
        let found = store.try_lock(row)?;
        change_row(store, target, change, guess.clone(), better, found, amount)
    };
    // Another call may have got at the row in the moment before it is locked: then the lock is
    // given back, unless it was held before.
    if mine.is_some() { take() } else { attempt(take) }
}

/// Any single row that bears the change: one that nobody has locked, or else one that is waited for.
fn change_any_row(
    store: &dyn Store,
    target: &Target,
    change: Change,
    parts: &Shards,
    now: Micros,
    amount: f64,
) -> Result<Option<Answer>> {
    let shards = target.limit.shards();
    let mut candidates = rows_with_room(parts, now, amount);
    // The first once more, to be waited for, by who holds none.
    let once = candidates.len();
    candidates.extend(candidates.first().copied().filter(|_| held(target).is_none()));
    for (tried, &shard) in candidates.iter().enumerate() {
        let row = target.row(shard_number(shards, shard));
        let wait = tried == once;
        let answer = attempt(|| {
            let row = if wait { store.lock(row)? } else { store.try_lock(row)? };
            change_row(store, target, change, parts.clone(), shard, row, amount)
        })?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// The rows that bear a change by themselves, in no order, so that not all calls go for the same.
fn rows_with_room(parts: &Shards, now: Micros, amount: f64) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..parts.states().len())
        .filter(|&shard| room(parts, shard, now, amount) >= amount.abs())
        .collect();
    fastrand::shuffle(&mut rows);
    rows
}

/// Makes the whole change in the `shard`th row, which is locked, if it can bear it.
fn change_row(
    store: &dyn Store,
    target: &Target,
    change: Change,
    mut parts: Shards,
    shard: usize,
    locked: Option<Row>,
    amount: f64,
) -> Result<Option<Answer>> {
    let Some(Row { state, tuple }) = locked else { return Ok(None) };
    let now = clock::now();
    parts.states_mut()[shard] = target.state(parts.shard_limit(), Some(state), now)?;
    if room(&parts, shard, now, amount) < amount.abs() {
        return Ok(None);
    }
    let decision = change.apply(parts.shard_limit(), &parts.states()[shard], now)?;
    let Some(state) = &decision.state else { return Ok(None) };
    store.update(target.row(shard_number(target.limit.shards(), shard)), tuple, state)?;
    parts.states_mut()[shard] = state.clone();
    hold(target, shard);
    Ok(Some(target.answer(&decision, parts.level(now), now)))
}

/// The fewest rows that together can bear the change, of those that nobody has locked.
fn change_several_rows(
    store: &dyn Store,
    target: &Target,
    decision: &Decision,
    mut parts: Shards,
    now: Micros,
    amount: f64,
) -> Result<Option<Answer>> {
    for fewest in [true, false] {
        let answer = attempt(|| {
            let Some(among) = lock_free(store, target, &mut parts, now, amount, fewest)? else {
                return Ok(None);
            };
            let now = clock::now();
            let held: f64 = among.iter().map(|&(shard, _)| parts.available(shard, now)).sum();
            let ts = parts.total(now).ts;
            write(store, target, &mut parts, &among, now, held + amount, ts)?;
            Ok(Some(target.answer(decision, parts.level(now), now)))
        })?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// Locks rows that nobody has locked until together they bear the change, and brings their parts up
/// to date: the `fewest` that look as if they did, or any. Nothing if they don't, and then the caller
/// gives them back. In ascending order: SKIP LOCKED, too, can wait in PostgreSQL, where a row was
/// updated twice in the moment of locking it.
fn lock_free(
    store: &dyn Store,
    target: &Target,
    parts: &mut Shards,
    now: Micros,
    amount: f64,
    fewest: bool,
) -> Result<Option<Vec<(usize, TupleId)>>> {
    let looked: Vec<f64> =
        (0..parts.states().len()).map(|shard| room(parts, shard, now, amount)).collect();
    let mut rows: Vec<usize> = (0..looked.len()).filter(|&shard| looked[shard] > 0.0).collect();
    if fewest {
        // Not all calls go for the same of those that are alike.
        fastrand::shuffle(&mut rows);
        rows.sort_by(|&one, &other| looked[other].total_cmp(&looked[one]));
        let mut sum = 0.0;
        let last = rows.iter().position(|&shard| {
            sum += looked[shard];
            sum >= amount.abs()
        });
        rows.truncate(last.map_or(rows.len(), |last| last + 1));
        rows.sort_unstable();
    }
    let (mut among, mut sum) = (Vec::new(), 0.0);
    for shard in rows {
        let row = target.row(shard_number(target.limit.shards(), shard));
        match store.try_lock(row)? {
            Some(found) => {
                let now = clock::now();
                parts.states_mut()[shard] =
                    target.state(parts.shard_limit(), Some(found.state), now)?;
                sum += room(parts, shard, now, amount).max(0.0);
                among.push((shard, found.tuple));
            }
            None if fewest => return Ok(None),
            None => {}
        }
        if sum >= amount.abs() {
            return Ok(Some(among));
        }
    }
    Ok(None)
}

/// All rows, waited for one after the other: what they hold now decides.
fn change_all_rows(store: &dyn Store, target: &Target, change: Change) -> Result<Option<Answer>> {
    let mut unchanged = None;
    let answer = attempt(|| {
        let rows = store.lock_key(target.name, target.key)?;
        let now = clock::now();
        let Holding { mut parts, in_place, tuples } = holding(target, rows, now)?;
        if !in_place {
            return Ok(None);
        }
        let decision = change.decide(&target.limit, &parts, now)?;
        let Some(after) = &decision.state else {
            unchanged = Some(target.answer(&decision, parts.level(now), now));
            return Ok(None);
        };
        let among: Vec<(usize, TupleId)> = tuples.into_iter().enumerate().collect();
        write(store, target, &mut parts, &among, now, after.value, after.ts)?;
        Ok(Some(target.answer(&decision, parts.level(now), now)))
    })?;
    Ok(answer.or(unchanged))
}

/// What a key holds, and which of its parts are locked.
pub struct Locked<'a> {
    pub parts: Shards<'a>,
    pub among: Vec<(usize, TupleId)>,
}

/// Locks rows of a key that bear a change of `amount` tokens: one that looks as if it did, where
/// `sparing`, or else all. Returns what the key holds now, and which parts of it are locked; nothing
/// where another session's row came first.
pub fn lock<'a>(
    store: &dyn Store,
    target: &'a Target,
    looked: Shards<'a>,
    amount: f64,
    sparing: bool,
) -> Result<Option<Locked<'a>>> {
    let shards = target.limit.shards();
    if shards == 1 {
        let id = target.row(0);
        let found = match store.lock(id)? {
            None => {
                // Marked as reset: it counts as no row until it is written.
                if !store.insert(id, &reset_state(clock::now()))? {
                    return Ok(None);
                }
                store.lock(id)?
            }
            Some(found) if is_marker(Some(&found.state)) => {
                rearrange(store, target)?;
                store.lock(id)?
            }
            found => found,
        };
        let Some(Row { state, tuple }) = found else { return Ok(None) };
        let state = target.state(&target.limit, Some(state), clock::now())?;
        let parts = Shards::new(&target.limit, vec![state]);
        return Ok(Some(Locked { parts, among: vec![(0, tuple)] }));
    }
    let now = clock::now();
    let mut parts = looked;
    // The rows of another number of shards are rearranged below.
    let equal = parts.are_equal();
    if sparing && equal && parts.total(now).value + amount >= 0.0 {
        if let Some(shard) =
            held(target).filter(|&shard| room(&parts, shard, now, amount) >= amount.abs())
            && let Some(Row { state, tuple }) =
                store.try_lock(target.row(shard_number(shards, shard)))?
        {
            parts.states_mut()[shard] = target.state(parts.shard_limit(), Some(state), now)?;
            return Ok(Some(Locked { parts, among: vec![(shard, tuple)] }));
        }
        for shard in rows_with_room(&parts, now, amount) {
            if let Some(Row { state, tuple }) =
                store.try_lock(target.row(shard_number(shards, shard)))?
            {
                parts.states_mut()[shard] = target.state(parts.shard_limit(), Some(state), now)?;
                return Ok(Some(Locked { parts, among: vec![(shard, tuple)] }));
            }
        }
        let among = lock_free(store, target, &mut parts, now, amount, false)?;
        // Nothing: what was locked is given back, and then it takes all rows.
        return Ok(among.map(|among| Locked { parts, among }));
    }
    if equal && held(target).is_some() {
        let mut tuples = Vec::new();
        for other in 0..shards as usize {
            let Some(Row { state, tuple }) =
                store.try_lock(target.row(shard_number(shards, other)))?
            else {
                return Err(Error::Busy);
            };
            parts.states_mut()[other] = target.state(parts.shard_limit(), Some(state), now)?;
            tuples.push((other, tuple));
        }
        return Ok(Some(Locked { parts, among: tuples }));
    }
    let rows = store.lock_key(target.name, target.key)?;
    let mut locked = holding(target, rows, clock::now())?;
    if !locked.in_place {
        rearrange(store, target)?;
        let rows = store.lock_key(target.name, target.key)?;
        locked = holding(target, rows, clock::now())?;
    }
    let among = locked.tuples.into_iter().enumerate().collect();
    Ok(locked.in_place.then_some(Locked { parts: locked.parts, among }))
}

/// Spreads tokens over the rows of `among`, which are locked, and stores what has changed.
pub fn write(
    store: &dyn Store,
    target: &Target,
    parts: &mut Shards,
    among: &[(usize, TupleId)],
    now: Micros,
    tokens: f64,
    ts: Micros,
) -> Result<()> {
    let before = parts.states().to_vec();
    let rows: Vec<usize> = among.iter().map(|&(shard, _)| shard).collect();
    if let Some(&shard) = rows.first() {
        hold(target, shard);
    }
    parts.distribute(&rows, now, tokens, ts);
    for &(shard, tuple) in among {
        let state = &parts.states()[shard];
        if *state != before[shard] {
            store.update(target.row(shard_number(target.limit.shards(), shard)), tuple, state)?;
        }
    }
    Ok(())
}
