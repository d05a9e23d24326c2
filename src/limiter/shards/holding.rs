//! The rows of a key: their shard numbers, their contents, and resharding.

use std::collections::BTreeMap;
use std::rc::Rc;

use ratelimit_core::algorithm::Shape;
use ratelimit_core::{Limit, Micros, Shards, State};

use crate::limiter::request::Target;
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::store::{Row, ShardRow, Store, Stored, TupleId};

/// Returns the number in the row's `shard` column of a shard, counted from 0, of a limit with so many
/// shards.
pub fn shard_number(shard_count: u32, shard: usize) -> i32 {
    if shard_count == 1 { 0 } else { shard_count as i32 * 10_000 + 1 + shard as i32 }
}

/// Returns the number of shards of the limit that a row with this shard number belongs to.
pub fn shards_of(number: i32) -> u32 {
    (number / 10_000).max(1) as u32
}

/// Returns the limit of each row where a limit has so many shards.
pub fn shard_limit_of(limit: &Limit, shard_count: u32) -> Limit {
    if shard_count == 1 { limit.clone() } else { limit.shard_limit(shard_count) }
}

/// The contents of a key's rows.
pub struct Holding<'a> {
    /// A shard for each row.
    pub shards: Shards<'a>,
    /// Whether the rows are one for each shard of the limit. If not, the shards are those of the present
    /// rows, or new ones where the limit can't carry over any of their states.
    pub matches_limit: bool,
    /// The versions of the rows, for a limit that they match.
    pub tuples: Vec<TupleId>,
}

/// Interprets all rows of a key at `now`, which is read after them.
///
/// # Errors
/// As [`Target::state`].
pub fn holding<'a>(
    target: &'a Target,
    mut rows: Vec<ShardRow>,
    now: Micros,
) -> Result<Holding<'a>> {
    let limit = &*target.limit;
    let shard_count = limit.shards();
    rows.retain(|(_, found)| !matches!(found.stored, Stored::Marker));
    let wanted = (0..shard_count as usize).map(|shard| shard_number(shard_count, shard));
    let matches_limit = rows.iter().map(|&(number, _)| number).eq(wanted);

    // One that was reset is a full shard.
    let accepts = |found: &Row| limit.accepts(found.stored.shape().unwrap_or(Shape::Tokens));
    let fresh = !rows.iter().any(|(_, found)| accepts(found));
    let tuples = rows.iter().map(|(_, found)| found.tuple).collect();
    let shards = if matches_limit || fresh {
        let shard_limit = shard_limit_of(limit, shard_count);
        let mut rows = if matches_limit { rows } else { Vec::new() }.into_iter();
        let states = (0..shard_count)
            .map(|_| target.state(&shard_limit, rows.next().map(|(_, found)| found.stored), now))
            .collect::<Result<Vec<State>>>()?;
        Shards::new(limit, states)
    } else {
        // Rows of another number of shards, which only a take reshards.
        let mut limits: BTreeMap<u32, Rc<Limit>> = BTreeMap::new();
        let rows = rows.into_iter().map(|(number, found)| {
            let of = shards_of(number);
            let shard_limit =
                limits.entry(of).or_insert_with(|| Rc::new(shard_limit_of(limit, of)));
            Ok((shard_limit.clone(), target.state(shard_limit, Some(found.stored), now)?))
        });
        Shards::unequal(limit, rows.collect::<Result<_>>()?)
    };
    Ok(Holding { shards, matches_limit, tuples })
}

/// Reads the key's rows under the latest state, without locks; with the instant after the read.
///
/// # Errors
/// As [`holding`]; those of the store.
pub fn peek<'a>(store: &dyn Store, target: &'a Target) -> Result<(Micros, Holding<'a>)> {
    let mut rows = Vec::new();
    if target.limit.shards() == 1 {
        rows.extend(store.read(target.row(0))?.map(|found| (0, found)));
    }
    if target.limit.shards() > 1
        || matches!(rows.first(), Some((_, Row { stored: Stored::Marker, .. })))
    {
        rows = store.read_key(target.name, target.key)?;
    }
    let now = clock::now();
    Ok((now, holding(target, rows, now)?))
}

/// Locks all rows of a key, row 0 first, and changes them to one for each shard of the limit, without
/// changing their total. `None` if another session has just made the first: the rows must be read again.
///
/// # Errors
/// As [`holding`]; those of the store; [`Error::Busy`]: without `wait`, and a row is locked; 55000: a
/// trigger undoes it.
///
/// [`Error::Busy`]: crate::pg::error::Error::Busy
pub fn lock_all<'a>(
    store: &dyn Store,
    target: &'a Target,
    wait: bool,
) -> Result<Option<Holding<'a>>> {
    let (name, key, root) = (target.name, target.key, target.row(0));
    // Locked first by every change of their number, so that there is no other until this transaction ends.
    if store.lock_or_busy(root, wait)?.is_none() && !store.insert(root, &Stored::Marker)? {
        return Ok(None);
    }
    let rows = store.lock_key(name, key, wait)?;
    let now = clock::now();
    let held = holding(target, rows.clone(), now)?;
    if held.matches_limit {
        return Ok(Some(held));
    }
    reshard(store, target, rows, &held.shards, now)?;
    // Only a trigger of the owner's can have changed them again.
    let held = holding(target, store.lock_key(name, key, wait)?, now)?;
    if held.matches_limit { Ok(Some(held)) } else { Err(store.not_written()) }
}

/// Replaces a key's rows, which are locked and hold `shards`, by one for each shard of the limit.
///
/// # Errors
/// Those of the store.
fn reshard(
    store: &dyn Store,
    target: &Target,
    rows: Vec<ShardRow>,
    shards: &Shards,
    now: Micros,
) -> Result<()> {
    let shard_count = target.limit.shards();
    let mut root = None;
    for (number, found) in rows {
        if number == 0 {
            root = Some(found);
        } else {
            store.delete(target.row(number), found.tuple)?;
        }
    }
    let Some(root) = root else { return Err(store.not_written()) };
    let states = shards.resharded(shard_count, now);
    if shard_count == 1 {
        return store.update(target.row(0), root.tuple, &states[0].clone().into());
    }
    if !matches!(root.stored, Stored::Marker) {
        store.update(target.row(0), root.tuple, &Stored::Marker)?;
    }
    for (shard, state) in states.into_iter().enumerate() {
        check_for_interrupts();
        store.insert(target.row(shard_number(shard_count, shard)), &state.into())?;
    }
    Ok(())
}
