//! The current level of every key of every limit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::config::Definition;
use ratelimit_core::{Micros, Shards};

use crate::error::Result;
use crate::keys::each_key;
use crate::ports::{BlockInForce, Defined, Entries, Host, KeyRows, RowAccess, SavedKey};
use crate::request::Take;
use crate::stores;
use crate::target::{Store, Target, after_block, has_no_rows};

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
    pub definition: Rc<Definition>,
    /// Tokens; negative: debt; infinite without a limit.
    pub remaining: f64,
}

/// The blocks that were not visited yet: until when, by name and key; and keys of limits that are saved, which may have
/// no row yet.
type Blocked = BTreeMap<(Vec<u8>, Vec<u8>), Option<Micros>>;

/// Visits the status of each key that has a row or is blocked, in the order of name and key; only of one name or
/// one key where they are given. Memory has no list of its keys: a limit there is visited where both
/// are given, or where it is blocked.
///
/// # Errors
/// 22023: an invalid stored config; 55000: a value that no call writes.
pub fn each<H: Host>(
    host: &H,
    name: Option<&[u8]>,
    key: Option<&[u8]>,
    mut visit: impl FnMut(Status),
) -> Result<()> {
    let by_key = |BlockInForce { name, key, until }| ((name, key), Some(until));
    let mut blocked: Blocked = BTreeMap::new();
    if let Some(entries) = host.entries_if_any()? {
        let keys = entries.saved_keys(name).into_iter();
        let keys = keys.filter(|saved| key.is_none_or(|key| saved.key == key));
        blocked.extend(keys.map(|SavedKey { name, key, .. }| ((name, key), None)));
    }
    blocked.extend(host.blocks_in_force(name, key)?.into_iter().map(by_key));
    if let (Some(name), Some(key)) = (name, key)
        && let Defined { definition: Some(definition), blocked_until } = host.look_up(name, key)?
        && let definition = host.in_force(name, definition)
        && has_no_rows(&definition)
    {
        let target = Target::defined::<H>(name, key, definition, blocked_until);
        if !blocked.is_empty() || stores::stored(host, &target)?.is_some() {
            visit(without_rows(host, &target)?);
        }
        return Ok(());
    }
    let mut show = |found: KeyRows| {
        let own = (found.name.clone(), found.key.clone());
        show_blocked(host, &mut blocked, |key| *key < own, &mut visit)?;
        if let Some(status) = status(host, &found, blocked.get(&own).copied().flatten())? {
            blocked.remove(&own);
            visit(status);
        }
        Ok(ControlFlow::Continue(()))
    };
    host.with_rows(RowAccess::Read, |rows| match (name, key) {
        (Some(name), Some(key)) => {
            let found = rows.read_key(name, key, None)?;
            if !found.is_empty() {
                let _ = show(KeyRows { name: name.to_vec(), key: key.to_vec(), rows: found })?;
            }
            Ok(())
        }
        (Some(name), None) => {
            // The empty key is the first, and comes after no other.
            let found = rows.read_key(name, b"", None)?;
            if !found.is_empty() {
                let _ = show(KeyRows { name: name.to_vec(), key: Vec::new(), rows: found })?;
            }
            each_key(host, rows, (name, b""), true, &mut show).map(|_| ())
        }
        (None, _) => each_key(host, rows, (b"", b""), false, |found| match key {
            Some(key) if found.key != key => Ok(ControlFlow::Continue(())),
            _ => show(found),
        })
        .map(|_| ()),
    })?;
    show_blocked(host, &mut blocked, |_| true, &mut visit)
}

/// Visits the first of the blocked keys, while they are `due`.
fn show_blocked<H: Host>(
    host: &H,
    blocked: &mut Blocked,
    due: impl Fn(&(Vec<u8>, Vec<u8>)) -> bool,
    mut visit: impl FnMut(Status),
) -> Result<()> {
    while let Some(first) = blocked.first_entry().filter(|first| due(first.key())) {
        host.check_for_interrupts();
        let ((name, key), until) = first.remove_entry();
        let (name, key) = (&name[..], &key[..]);
        match host.defined(name, key)? {
            Some(definition) if until.is_some() || definition.save.is_some() => {
                let target = Target::defined::<H>(name, key, definition, until);
                visit(without_rows(host, &target)?);
            }
            None if until.is_some() => visit(undefined(host.now(), name, key, 1, until)),
            // It was saved once, and its name is undefined now, or elsewhere.
            _ => {}
        }
    }
    Ok(())
}

/// The status of a key of a name that is not defined.
fn undefined<'a>(
    now: Micros,
    name: &'a [u8],
    key: &'a [u8],
    shards: u32,
    until: Option<Micros>,
) -> Status<'a> {
    let block = until.filter(|&until| until > now);
    let retry_after = block.and_then(|until| after_block(until, now, |_| Some(Micros(0))));
    let limited = block.map(|_| true);
    Status { name, key, now, as_of: now, shards, limit: None, limited, retry_after }
}

/// The status of a key that has no row: of one in memory, or full.
fn without_rows<'a, H: Host>(host: &H, target: &Target<'a>) -> Result<Status<'a>> {
    let (now, shards) = stores::without_rows(host, target)?;
    Ok(defined(target, &shards, now))
}

/// The status of a key whose limit has these shards.
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
        shards: target.limit().shards(),
        limit: Some(LimitStatus { definition: target.definition.clone(), remaining }),
        limited: Some(limited),
        retry_after,
    }
}

/// The status of a key that has rows; `None` where these are left from before its limit was
/// moved into memory.
fn status<'a, H: Host>(
    host: &H,
    found: &'a KeyRows,
    blocked_until: Option<Micros>,
) -> Result<Option<Status<'a>>> {
    let KeyRows { name, key, rows } = found;
    let Some(definition) = host.defined(name, key)? else {
        let shards = stores::shards_present(rows);
        return Ok(Some(undefined(host.now(), name, key, shards, blocked_until)));
    };
    if has_no_rows(&definition) {
        return Ok(None);
    }
    let target = Target::defined::<H>(name, key, definition, blocked_until);
    if target.store == Store::Saved {
        return without_rows(host, &target).map(Some);
    }
    let now = host.now();
    let shards = stores::of_rows(&target, rows.clone(), now)?;
    Ok(Some(defined(&target, &shards, now)))
}
