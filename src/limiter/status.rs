//! `rl_status`: the current level of every key of every limit.

use std::ops::ControlFlow;
use std::rc::Rc;

use pgrx::pg_sys;
use ratelimit_core::{Limit, Micros};

use crate::limiter::keys::{Key, each_key};
use crate::limiter::request::Target;
use crate::limiter::{definitions, shards};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::Result;
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
    pub limit: Rc<Limit>,
    /// Tokens; negative: debt.
    pub remaining: f64,
    /// Whether a call for one token is denied.
    pub limited: bool,
    /// The wait until such a call passes, from `as_of`.
    pub retry_after: Option<Micros>,
}

/// Visits the status of each key that has a row, in the order of name and key; only of one name or
/// one key where they are given.
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
        let mut show = |found: Key| {
            visit(status(catalog, &found)?);
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

/// Returns the status of a key.
///
/// # Errors
/// As [`each`].
fn status<'a>(catalog: &Catalog, found: &'a Key) -> Result<Status<'a>> {
    let Key { name, key, rows } = found;
    let present = rows.iter().filter(|(_, row)| !is_marker(Some(&row.state))).count();
    let as_of = clock::now();
    let limit = match definitions::defined(catalog, name, key)? {
        None => None,
        Some(limit) => {
            let target = Target { name, key, limit: limit.clone() };
            let holding = shards::holding(&target, rows.clone(), as_of)?;
            let decision = holding.shards.decide(as_of, 1.0, false);
            Some(LimitStatus {
                remaining: holding.shards.level(as_of).remaining,
                limited: !decision.ok,
                retry_after: decision.retry_after,
                limit,
            })
        }
    };
    let shards = limit.as_ref().map_or(present as u32, |status| status.limit.shards());
    Ok(Status { name, key, as_of, shards, limit })
}
