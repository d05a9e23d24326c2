//! What the rows of a key hold, how they are numbered, and how they become another number of shards.

use std::collections::BTreeMap;
use std::rc::Rc;

use ratelimit_core::{Limit, Micros, Shards, State};

use crate::limiter::request::Target;
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::store::{MARKER, ShardRow, Store, TupleId, is_marker};

/// The number of a shard, counted from 0, of a limit of so many.
pub fn shard_number(shards: u32, shard: usize) -> i32 {
    if shards == 1 { 0 } else { shards as i32 * 10_000 + 1 + shard as i32 }
}

/// How many shards a limit has that such a row belongs to.
pub fn shards_of(number: i32) -> u32 {
    (number / 10_000).max(1) as u32
}

/// The limit of each row of a limit that is spread over so many.
pub fn part_of(limit: &Limit, shards: u32) -> Limit {
    if shards == 1 { limit.clone() } else { limit.shard_limit(shards) }
}

/// What the rows of a key hold.
pub struct Holding<'a> {
    pub parts: Shards<'a>,
    /// Whether the rows are those that the limit wants; if not, the parts are the rows as they stand,
    /// or, where these mean nothing to it, new ones.
    pub in_place: bool,
    /// Where they are then.
    pub tuples: Vec<TupleId>,
}

/// What the rows of a key, all of them, hold at `now`, which is read after them.
pub fn holding<'a>(
    target: &'a Target,
    mut rows: Vec<ShardRow>,
    now: Micros,
) -> Result<Holding<'a>> {
    let limit = &*target.limit;
    let shards = limit.shards();
    rows.retain(|(_, found)| !is_marker(Some(&found.state)));
    let wanted = (0..shards as usize).map(|shard| shard_number(shards, shard));
    let in_place = rows.iter().map(|&(number, _)| number).eq(wanted);

    let fresh = !rows.iter().any(|(_, found)| limit.accepts(&found.state));
    let tuples = rows.iter().map(|(_, found)| found.tuple).collect();
    let parts = if in_place || fresh {
        let part = part_of(limit, shards);
        let mut rows = if in_place { rows } else { Vec::new() }.into_iter();
        let states = (0..shards)
            .map(|_| target.state(&part, rows.next().map(|(_, found)| found.state), now))
            .collect::<Result<Vec<State>>>()?;
        Shards::new(limit, states)
    } else {
        // Rows of another number of shards: only a take rearranges them.
        let mut parts: BTreeMap<u32, Rc<Limit>> = BTreeMap::new();
        let rows = rows.into_iter().map(|(number, found)| {
            let of = shards_of(number);
            let part = parts.entry(of).or_insert_with(|| Rc::new(part_of(limit, of)));
            Ok((part.clone(), target.state(part, Some(found.state), now)?))
        });
        Shards::unequal(limit, rows.collect::<Result<_>>()?)
    };
    Ok(Holding { parts, in_place, tuples })
}

/// What is in the limit under the latest state, and when that was looked at: takes no lock.
pub fn look<'a>(store: &dyn Store, target: &'a Target) -> Result<(Micros, Holding<'a>)> {
    let mut rows = Vec::new();
    if target.limit.shards() == 1 {
        rows.extend(store.read(target.row(0))?.map(|found| (0, found)));
    }
    if target.limit.shards() > 1 || is_marker(rows.first().map(|(_, found)| &found.state)) {
        rows = store.read_key(target.name, target.key)?;
    }
    let now = clock::now();
    Ok((now, holding(target, rows, now)?))
}

/// Makes the rows of a key those that the limit wants, without changing what they hold together.
///
/// # Errors
/// [`Error::NotWritten`]: something undoes it.
pub fn rearrange(store: &dyn Store, target: &Target) -> Result<()> {
    let shards = target.limit.shards();
    let marker = State { value: 0.0, ts: MARKER, prior: None, log: None };
    // Whoever rearranges locks row 0 first, so nobody else does before this transaction ends.
    if store.lock(target.row(0))?.is_none() && !store.insert(target.row(0), &marker)? {
        return Ok(()); // somebody else has just begun: look again
    }
    let rows = store.lock_key(target.name, target.key)?;
    let now = clock::now();
    let holding = holding(target, rows.clone(), now)?;
    if holding.in_place {
        return Ok(());
    }
    let mut root = None;
    for (number, found) in rows {
        if number == 0 {
            root = Some(found);
        } else {
            store.delete(target.row(number), found.tuple)?;
        }
    }
    let Some(root) = root else { return Err(store.not_written()) };
    let states = holding.parts.resharded(shards, now);
    if shards == 1 {
        store.update(target.row(0), root.tuple, &states[0])?;
    } else {
        if !is_marker(Some(&root.state)) {
            store.update(target.row(0), root.tuple, &marker)?;
        }
        for (shard, state) in states.iter().enumerate() {
            check_for_interrupts();
            store.insert(target.row(shard_number(shards, shard)), state)?;
        }
    }
    // Nobody else can have changed them again: it would be a trigger of the owner's.
    let rows = store.read_key(target.name, target.key)?;
    if self::holding(target, rows, now)?.in_place { Ok(()) } else { Err(store.not_written()) }
}
