//! `rl_status`: the current level of every key of every limit.

use std::ops::ControlFlow;
use std::rc::Rc;

use pgrx::pg_sys;
use ratelimit_core::config::{Definition, Store as Kept};
use ratelimit_core::{Micros, Shards};

use crate::limiter::keys::{Key, each_key};
use crate::limiter::request::Target;
use crate::limiter::{definitions, in_memory, shards};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::Result;
use crate::store::memory::{Memory, Scope};
use crate::store::{self, is_marker};

/// The status of a key.
pub struct Status<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// The instant of the status.
    pub as_of: Micros,
    /// The number of shards, from 1.
    pub shards: u32,
    /// `None` for an undefined name.
    pub limit: Option<LimitStatus>,
}

/// The level of a key under its limit.
pub struct LimitStatus {
    /// The definition.
    pub limit: Rc<Definition>,
    /// Tokens; negative: debt.
    pub remaining: f64,
    /// Whether a call for one token is denied.
    pub limited: bool,
    /// The wait until such a call passes, from `as_of`.
    pub retry_after: Option<Micros>,
}

/// Visits the status of each key that has a row, in the order of name and key; only of one name or
/// one key where they are given. Memory has no list of its keys: a limit there is visited where both
/// are given.
///
/// # Errors
/// Those of the catalog and of the store; 22023: an invalid stored config; 55000: a value that no call
/// writes.
pub fn each(
    function: pg_sys::Oid,
    name: Option<&[u8]>,
    key: Option<&[u8]>,
    mut visit: impl FnMut(Status),
) -> Result<()> {
    catalog::with(function, TableLock::Read, |catalog| {
        if let (Some(name), Some(key)) = (name, key)
            && let Some(limit) = definitions::defined(catalog, name, key)?
            && limit.store == Kept::Memory
        {
            let target = Target { name, key, limit };
            if let Some(status) = status_in_memory(catalog, &target)? {
                visit(status);
            }
            return Ok(());
        }
        let mut show = |found: Key| {
            if let Some(status) = status(catalog, &found)? {
                visit(status);
            }
            Ok(ControlFlow::Continue(()))
        };
        store::with_store(catalog, TableLock::Read, |store| match (name, key) {
            (Some(name), Some(key)) => {
                let rows = store.read_key(name, key)?;
                if !rows.is_empty() {
                    let _ = show(Key { name: name.to_vec(), key: key.to_vec(), rows })?;
                }
                Ok(())
            }
            (Some(name), None) => {
                // The empty key is the first, and comes after no other.
                let rows = store.read_key(name, b"")?;
                if !rows.is_empty() {
                    let _ = show(Key { name: name.to_vec(), key: Vec::new(), rows })?;
                }
                each_key(store, (name, b""), true, &mut show).map(|_| ())
            }
            (None, _) => each_key(store, (b"", b""), false, |found| match key {
                Some(key) if found.key != key => Ok(ControlFlow::Continue(())),
                _ => show(found),
            })
            .map(|_| ()),
        })
    })
}

/// Returns the status of a key whose limit is in memory; `None` where it has no state.
///
/// # Errors
/// Those of the memory.
fn status_in_memory<'a>(catalog: &Catalog, target: &Target<'a>) -> Result<Option<Status<'a>>> {
    let memory = Memory::get()?;
    let found =
        memory.states.read(memory.id(Scope::new(catalog.extension), target.name, target.key));
    Ok(found.map(|found| {
        let as_of = clock::now();
        let state = in_memory::state(target, Some(found), as_of, in_memory::phase(target));
        let limit =
            Some(limit_status(&target.limit, &Shards::new(&target.limit, vec![state]), as_of));
        Status { name: target.name, key: target.key, as_of, shards: 1, limit }
    }))
}

/// Tells what a limit holds whose shards these are.
fn limit_status(limit: &Rc<Definition>, shards: &Shards, as_of: Micros) -> LimitStatus {
    let decision = shards.decide(as_of, 1.0, false);
    LimitStatus {
        remaining: shards.level(as_of).remaining,
        limited: !decision.ok,
        retry_after: decision.retry_after,
        limit: limit.clone(),
    }
}

/// Returns the status of a key that has rows; `None` where these are left from before its limit was
/// moved into memory.
///
/// # Errors
/// As [`each`].
fn status<'a>(catalog: &Catalog, found: &'a Key) -> Result<Option<Status<'a>>> {
    let Key { name, key, rows } = found;
    let present = rows.iter().filter(|(_, row)| !is_marker(Some(&row.state))).count();
    let as_of = clock::now();
    let limit = match definitions::defined(catalog, name, key)? {
        None => None,
        Some(limit) if limit.store == Kept::Memory => return Ok(None),
        Some(limit) => {
            let target = Target { name, key, limit: limit.clone() };
            let holding = shards::holding(&target, rows.clone(), as_of)?;
            Some(limit_status(&limit, &holding.shards, as_of))
        }
    };
    let shards = limit.as_ref().map_or(present as u32, |status| status.limit.shards());
    Ok(Some(Status { name, key, as_of, shards, limit }))
}
