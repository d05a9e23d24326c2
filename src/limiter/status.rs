//! `rl_status`: the current level of every key of every limit.

use std::ops::ControlFlow;
use std::rc::Rc;

use pgrx::pg_sys;
use ratelimit_core::config::{Definition, Store as Kept};
use ratelimit_core::{Kind, Micros, Shards};

use crate::limiter::blocks::{self, InForce};
use crate::limiter::definitions::{self, Known};
use crate::limiter::keys::{Key, each_key};
use crate::limiter::request::{Take, Target, after_block};
use crate::limiter::{in_memory, shards};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::interrupts::check_for_interrupts;
use crate::store::memory::Memory;
use crate::store::{self, Stored};

/// The status of a key.
pub struct Status<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// The instant of the status.
    pub now: Micros,
    /// The instant that a call would be decided at: a later one, where the key has seen it.
    pub as_of: Micros,
    /// The number of shards, from 1.
    pub shards: u32,
    /// `None` for an undefined name.
    pub limit: Option<LimitStatus>,
    /// Whether a call for one token is denied; `None` for an undefined name.
    pub limited: Option<bool>,
    /// The wait until such a call passes, from `now`.
    pub retry_after: Option<Micros>,
}

/// The level of a key under its limit.
pub struct LimitStatus {
    /// The definition.
    pub limit: Rc<Definition>,
    /// Tokens; negative: debt; infinite without a limit.
    pub remaining: f64,
}

/// Visits the status of each key that has a row or is blocked, in the order of name and key; only of one name or
/// one key where they are given. Memory has no list of its keys: a limit there is visited where both
/// are given, or where it is blocked.
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
        let mut blocked = blocks::in_force(catalog, name, key)?;
        if let (Some(name), Some(key)) = (name, key)
            && let Known { limit: Some(limit), blocked_until } =
                definitions::known(catalog, name, key)?
            && limit.store == Kept::Memory
        {
            let target = Target { name, key, limit, is_defined: true, blocked_until };
            let memory = Memory::get()?;
            let id = in_memory::id(memory, catalog, &target);
            if !blocked.is_empty() || in_memory::find(memory, id, &target).is_some() {
                visit(status_without_rows(catalog, &target)?);
            }
            return Ok(());
        }
        let mut show = |found: Key| {
            let own = (found.name.clone(), found.key.clone());
            show_blocked(catalog, &mut blocked, |key| *key < own, &mut visit)?;
            if let Some(status) = status(catalog, &found, blocked.get(&own).copied())? {
                blocked.remove(&own);
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
        })?;
        show_blocked(catalog, &mut blocked, |_| true, &mut visit)
    })
}

/// Visits the first of the blocked keys, while they are `due`.
///
/// # Errors
/// As [`each`].
fn show_blocked(
    catalog: &Catalog,
    blocked: &mut InForce,
    due: impl Fn(&(Vec<u8>, Vec<u8>)) -> bool,
    mut visit: impl FnMut(Status),
) -> Result<()> {
    while let Some(first) = blocked.first_entry().filter(|first| due(first.key())) {
        check_for_interrupts();
        let ((name, key), until) = first.remove_entry();
        let (name, key) = (&name[..], &key[..]);
        match definitions::defined(catalog, name, key)? {
            Some(limit) => {
                let target =
                    Target { name, key, limit, is_defined: true, blocked_until: Some(until) };
                visit(status_without_rows(catalog, &target)?);
            }
            None => visit(undefined(name, key, 1, Some(until))),
        }
    }
    Ok(())
}

/// Returns the status of a key of a name that is not defined.
fn undefined<'a>(name: &'a [u8], key: &'a [u8], shards: u32, until: Option<Micros>) -> Status<'a> {
    let now = clock::now();
    let block = until.filter(|&until| until > now);
    let retry_after = block.and_then(|until| after_block(until, now, |_| Some(Micros(0))));
    Status {
        name,
        key,
        now,
        as_of: now,
        shards,
        limit: None,
        limited: block.map(|_| true),
        retry_after,
    }
}

/// Returns the status of a key that has no row: of one in memory, or full.
///
/// # Errors
/// Those of the memory.
fn status_without_rows<'a>(catalog: &Catalog, target: &Target<'a>) -> Result<Status<'a>> {
    let limit = &target.limit;
    let (now, state) = match limit.store {
        Kept::Memory if limit.kind() != Kind::Unlimited => in_memory::peek(catalog, target)?,
        _ => {
            let now = clock::now();
            (now, limit.initial_state(now, target.phase()))
        }
    };
    Ok(defined(target, &Shards::new(limit, vec![state]), now))
}

/// Returns the status of a key whose limit has these shards.
fn defined<'a>(target: &Target<'a>, shards: &Shards, now: Micros) -> Status<'a> {
    let one = Take { count: 1.0, reserve: false, lease: None };
    let (limited, retry_after) = match target.block(now) {
        Some(until) => (true, target.blocked(until, shards, now, one, false).retry_after),
        None => {
            let decision = shards.decide(now, one.count, one.reserve);
            (!decision.ok, decision.retry_after)
        }
    };
    let remaining = shards.level(now).remaining;
    Status {
        name: target.name,
        key: target.key,
        now,
        as_of: shards.present(now),
        shards: target.limit.shards(),
        limit: Some(LimitStatus { limit: target.limit.clone(), remaining }),
        limited: Some(limited),
        retry_after,
    }
}

/// Returns the status of a key that has rows; `None` where these are left from before its limit was
/// moved into memory.
///
/// # Errors
/// As [`each`].
fn status<'a>(
    catalog: &Catalog,
    found: &'a Key,
    blocked_until: Option<Micros>,
) -> Result<Option<Status<'a>>> {
    let Key { name, key, rows } = found;
    Ok(match definitions::defined(catalog, name, key)? {
        None => {
            let present =
                rows.iter().filter(|(_, row)| !matches!(row.stored, Stored::Marker)).count();
            Some(undefined(name, key, present as u32, blocked_until))
        }
        Some(limit) if limit.store == Kept::Memory => None,
        Some(limit) => {
            let now = clock::now();
            let target = Target { name, key, limit, is_defined: true, blocked_until };
            let holding = shards::holding(&target, rows.clone(), now)?;
            Some(defined(&target, &holding.shards, now))
        }
    })
}
