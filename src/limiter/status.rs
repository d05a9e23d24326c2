//! `rl_status`: what every key of every limit holds at this moment.

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

/// What a key holds.
pub struct Status<'a> {
    pub name: &'a [u8],
    pub key: &'a [u8],
    /// When it was looked at.
    pub as_of: Micros,
    /// Over how many rows it is spread.
    pub shards: u32,
    /// `None` where nobody defined the name.
    pub limit: Option<LimitStatus>,
}

/// What its limit makes of it.
pub struct LimitStatus {
    pub limit: Rc<Limit>,
    /// Tokens; negative: debt.
    pub remaining: f64,
    /// Whether a call for one token is denied, and after which span it passes.
    pub limited: bool,
    pub retry_after: Option<Micros>,
}

/// Hands over the status of each key that has a row, in the order of name and key; of one name, or
/// one key, where they are given.
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
                // The limit without keys comes first, and after no other.
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

fn status<'a>(catalog: &Catalog, found: &'a Key) -> Result<Status<'a>> {
    let Key { name, key, rows } = found;
    let parts = rows.iter().filter(|(_, row)| !is_marker(Some(&row.state))).count();
    let as_of = clock::now();
    let limit = match definitions::defined(catalog, name, key)? {
        None => None,
        Some(limit) => {
            let target = Target { name, key, limit: limit.clone() };
            let holding = shards::holding(&target, rows.clone(), as_of)?;
            let decision = holding.parts.decide(as_of, 1.0, false);
            Some(LimitStatus {
                remaining: holding.parts.level(as_of).remaining,
                limited: !decision.ok,
                retry_after: decision.retry_after,
                limit,
            })
        }
    };
    let shards = limit.as_ref().map_or(parts as u32, |standing| standing.limit.shards());
    Ok(Status { name, key, as_of, shards, limit })
}
