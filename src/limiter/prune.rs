//! `rl_prune`: deletes blocks that are over, and idle rows, those without which every call would be answered the
//! same.
//!
//! A batch continues where the session's last one ended, and a session's first begins at a random key,
//! so that busy rows are not scanned again by every batch. Locked rows are skipped; a row is checked
//! again once it is locked here.

use std::cell::RefCell;
use std::ops::ControlFlow;

use pgrx::pg_sys;
use ratelimit_core::algorithm::Shape;
use ratelimit_core::{Kind, Limit, Micros, State};

use crate::limiter::keys::{Key, each_key};
use crate::limiter::request::Target;
use crate::limiter::{blocks, definitions, shards};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::subtransaction::attempt;
use crate::store::{self, RowId, ShardRow, Store, Stored, same_rows};

/// The end of a batch: the last (name, key) that it scanned.
struct Position {
    table: pg_sys::Oid,
    name: Vec<u8>,
    key: Vec<u8>,
}

thread_local! {
    static POSITION: RefCell<Option<Position>> = const { RefCell::new(None) };
}

/// Deletes blocks that are over, then idle rows, all rows of a key together, and stops at `max_rows` or at most a key's rows
/// beyond; returns their number. 0 means that no unlocked row is idle. Rows of undefined names, and of exempt keys,
/// whose limit may be there again, are deleted when their last call is longer than `undefined_idle` ago.
///
/// # Errors
/// Those of the catalog and of the store.
pub fn prune(function: pg_sys::Oid, max_rows: i64, undefined_idle: Option<Micros>) -> Result<i64> {
    // Outside, since the work begins again where the table has changed.
    let mut deleted = 0;
    catalog::with(function, TableLock::Write, |catalog| {
        deleted += blocks::prune(catalog, max_rows - deleted)?;
        if deleted >= max_rows {
            return Ok(deleted);
        }
        store::with_store(catalog, TableLock::Write, |store| {
            let table = catalog.rate_limits.oid;
            let start = match POSITION.take().filter(|last| last.table == table) {
                Some(last) => (last.name, last.key),
                None => store.random_key()?.unwrap_or_default(),
            };
            let mut reached = start.clone();
            let mut visit = |key: Key| {
                deleted += prune_key(store, catalog, &key, undefined_idle)?;
                reached = (key.name, key.key);
                Ok(if deleted < max_rows {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                })
            };
            if each_key(store, (&start.0, &start.1), false, &mut visit)?.is_continue() {
                // Wraps around, up to the start.
                let _ = each_key(store, (b"", b""), false, |key| {
                    let past = (&key.name, &key.key) > (&start.0, &start.1);
                    if past { Ok(ControlFlow::Break(())) } else { visit(key) }
                })?;
            }
            let (name, key) = reached;
            POSITION.set(Some(Position { table, name, key }));
            Ok(deleted)
        })
    })
}

/// Deletes the rows of a key if they are idle, can all be locked without waiting, and are still idle
/// then; returns their number.
///
/// # Errors
/// Those of the store.
fn prune_key(
    store: &dyn Store,
    catalog: &Catalog,
    found: &Key,
    undefined_idle: Option<Micros>,
) -> Result<i64> {
    let Key { name, key, rows } = found;
    let limit = match definitions::defined(catalog, name, key) {
        Err(Error::StoredConfig { .. }) => return Ok(0), // unknown whether they are idle
        limit => limit?.filter(|limit| limit.kind() != Kind::Unlimited),
    };
    let idle = |rows: &[ShardRow]| match &limit {
        Some(limit) => is_idle(
            &Target { name, key, limit: limit.clone(), is_defined: true, blocked_until: None },
            rows,
        ),
        None => is_expired(rows, undefined_idle),
    };
    if !idle(rows) {
        return Ok(0);
    }
    // In one step where possible: each subtransaction uses up a transaction id, and more than 64 of
    // them in one transaction slow down all other snapshots.
    if let [(shard, seen)] = &rows[..]
        && store.remove(RowId { name, key, shard: *shard }, seen)?
    {
        return Ok(1);
    }
    let deleted = attempt(|| {
        let mut locked = Vec::new();
        for &(shard, _) in rows {
            match store.try_lock(RowId { name, key, shard })? {
                Some(found) => locked.push((shard, found)),
                None => return Ok(None),
            }
        }
        // The number of shards may have changed since they were read: row 0 marks others then.
        if !idle(&locked) || !same_rows(&locked, &store.read_key(name, key)?) {
            return Ok(None);
        }
        for &(shard, ref found) in &locked {
            store.delete(RowId { name, key, shard }, found.tuple)?;
        }
        Ok(Some(locked.len() as i64))
    })?;
    Ok(deleted.unwrap_or(0))
}

/// Whether the rows of a key are idle: every call would be answered the same without them.
fn is_idle(target: &Target, rows: &[ShardRow]) -> bool {
    let now = clock::now();
    let mut shard_limit: Option<(u32, Limit)> = None;
    let mut states = rows.iter().filter(|(_, found)| !matches!(found.stored, Stored::Marker));
    states.all(|(number, found)| {
        let of = shards::shards_of(*number);
        let (_, limit) = match shard_limit.take().filter(|&(shard_count, _)| shard_count == of) {
            Some(same) => shard_limit.insert(same),
            None => shard_limit.insert((of, shards::shard_limit_of(&target.limit, of))),
        };
        // An invalid row is kept for inspection, and one that is ahead of the clock, which may be wrong now.
        target
            .state(limit, Some(found.stored.clone()), now)
            .is_ok_and(|state| state.ts() <= now && limit.is_idle(&state, now, target.phase()))
    })
}

/// Whether the rows of an undefined name are reset, or unused for longer than `undefined_idle`, and hold no lease.
fn is_expired(rows: &[ShardRow], undefined_idle: Option<Micros>) -> bool {
    let now = clock::now();
    let is_old = |ts: Micros| undefined_idle.is_some_and(|idle| ts < now.minus(idle));
    rows.iter().all(|(_, found)| match &found.stored {
        Stored::Reset { .. } | Stored::Marker => true,
        Stored::State(state) => is_old(state.ts()) && !holds_lease(state, now),
        // Of leases that can't be read nobody knows whether they have expired.
        Stored::Invalid { shape, ts, .. } => is_old(*ts) && *shape != Shape::Leases,
    })
}

/// Whether it is the state of a concurrency limit, with a lease that has not expired: it may have been extended
/// since it was given.
fn holds_lease(state: &State, now: Micros) -> bool {
    matches!(state, State::Leases(leases) if leases.leases.iter().any(|lease| lease.is_live(now)))
}
