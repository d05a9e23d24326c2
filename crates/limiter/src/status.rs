//! The current level of every key of every limit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::config::Definition;
use ratelimit_core::{Micros, kinds};

use crate::change::{Change, Contents};
use crate::engine::Ask;
use crate::error::Result;
use crate::keys::each_key;
use crate::ports::{
    BlockInForce, Defined, Entries, ExemptKey, Host, KeyRows, RowAccess, Rows, SavedKey,
};
use crate::request::{LimitedBy, Take};
use crate::single;
use crate::stores::{self, Keys, Peeked};
use crate::target::{Store, Target, after_block, has_no_rows};

/// The status of a key.
pub struct Status<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// The instant of the status.
    pub now: Micros,
    /// The instant at which a call would be decided: later than `now` if the key has seen a later one.
    pub as_of: Micros,
    /// The number of shards, from 1.
    pub shards: u32,
    /// `None` for an undefined name.
    pub limit: Option<LimitStatus>,
    /// Whether a call for one token is denied; `None` for an undefined name.
    pub limited: Option<bool>,
    /// The reason for the denial.
    pub limited_by: Option<LimitedBy>,
    /// The reason for the block in force, in the server's encoding.
    pub block_reason: Option<Vec<u8>>,
    /// The wait until such a call passes, from `now`.
    pub retry_after: Option<Micros>,
    /// The tokens that would come back if all of the key's holds were settled as unused now; `None` for an undefined
    /// name.
    pub held: Option<f64>,
}

/// The level of a key under its limit.
pub struct LimitStatus {
    /// The definition.
    pub definition: Rc<Definition>,
    /// Tokens; negative: debt; infinite without a limit.
    pub remaining: f64,
}

/// Keys not visited yet that may have no row, by name and key: blocked keys, exempt keys, and keys of saved limits.
type Others = BTreeMap<(Vec<u8>, Vec<u8>), Other>;

#[derive(Default)]
struct Other {
    block: Option<Block>,
    /// The definition of an exempt key, which is not looked up.
    exempt: Option<Rc<Definition>>,
}

/// A block that is in force.
struct Block {
    until: Micros,
    reason: Option<Vec<u8>>,
}

/// The keys to list, in the server's encoding.
#[derive(Clone, Copy, Default)]
pub struct Listing<'a> {
    /// Only keys of this name.
    pub name: Option<&'a [u8]>,
    /// Only this key.
    pub key: Option<&'a [u8]>,
    /// Only keys after this name and key.
    pub after: Option<(&'a [u8], &'a [u8])>,
}

impl Listing<'_> {
    fn has(&self, name: &[u8], key: &[u8]) -> bool {
        self.after.is_none_or(|after| (name, key) > after)
    }
}

/// Visits the status of each key of a listing that has a row, is blocked or is exempt, in the byte order of name and
/// key, until `visit` breaks. Memory has no list of its keys: a limit there is visited if name and key are given, or if
/// it is blocked.
///
/// # Errors
/// 22023: an invalid stored config; 55000: a value that no call writes.
pub fn each<H: Host>(
    host: &H,
    listing: Listing,
    mut visit: impl FnMut(Status) -> ControlFlow<()>,
) -> Result<()> {
    let Listing { name, key, after } = listing;
    if let (Some(name), Some(key)) = (name, key)
        && !listing.has(name, key)
    {
        return Ok(());
    }
    let mut others: Others = BTreeMap::new();
    if let Some(entries) = host.entries_if_any()? {
        let keys = entries.saved_keys(name).into_iter();
        let keys = keys.filter(|saved| key.is_none_or(|key| saved.key == key));
        others.extend(keys.map(|SavedKey { name, key, .. }| ((name, key), Other::default())));
    }
    for ExemptKey { name, key, definition } in host.exempt_keys(name, key)? {
        others.entry((name, key)).or_default().exempt = Some(definition);
    }
    for BlockInForce { name, key, until, reason } in host.blocks_in_force(name, key)? {
        others.entry((name, key)).or_default().block = Some(Block { until, reason });
    }
    others.retain(|(name, key), _| listing.has(name, key));
    if let (Some(name), Some(key)) = (name, key)
        && let Defined { definition: Some(definition), blocked_until, .. } =
            host.look_up(name, key)?
        && let definition = host.in_force(name, definition)
        && has_no_rows(&definition)
    {
        let target = Target::defined::<H>(name, key, definition, blocked_until);
        if !others.is_empty() || stores::stored(host, &target)?.1.is_some() {
            let block = others.into_values().next().and_then(|other| other.block);
            let _ = visit(without_rows(host, &target, block)?);
        }
        return Ok(());
    }
    let holders = stores::holders(host, name, key, true)?;
    let mut show = |rows: &dyn Rows, found: KeyRows| {
        let own = (found.name.clone(), found.key.clone());
        if show_others(host, &mut others, |key| *key < own, &mut visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let status = with_rows(host, rows, &found, &mut others, &holders)?;
        Ok(status.map_or(ControlFlow::Continue(()), &mut visit))
    };
    let ended = host.with_rows(RowAccess::Read, |rows| {
        let mut show_key = |name: &[u8], key: &[u8]| match rows.read_key(name, key, None)? {
            found if found.is_empty() => Ok(ControlFlow::Continue(())),
            found => show(rows, KeyRows { name: name.to_vec(), key: key.to_vec(), rows: found }),
        };
        match (name, key, after) {
            (Some(name), Some(key), _) => show_key(name, key),
            (Some(name), None, Some((after, _))) if after > name => Ok(ControlFlow::Continue(())),
            (Some(name), None, after) => {
                let after = after.filter(|(after, _)| *after == name);
                // The empty key is the first, and comes after no other.
                if after.is_none() && show_key(name, b"")?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                each_key(host, rows, after.unwrap_or((name, b"")), true, |found| show(rows, found))
            }
            (None, _, after) => {
                each_key(host, rows, after.unwrap_or_default(), false, |found| match key {
                    Some(key) if found.key != key => Ok(ControlFlow::Continue(())),
                    _ => show(rows, found),
                })
            }
        }
    })?;
    if ended.is_continue() {
        let _ = show_others(host, &mut others, |_| true, &mut visit)?;
    }
    Ok(())
}

/// Visits the first of the other keys, while they are `due` and until `visit` breaks.
fn show_others<H: Host>(
    host: &H,
    others: &mut Others,
    due: impl Fn(&(Vec<u8>, Vec<u8>)) -> bool,
    mut visit: impl FnMut(Status) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    while let Some(first) = others.first_entry().filter(|first| due(first.key())) {
        host.check_for_interrupts();
        let ((name, key), Other { block, exempt }) = first.remove_entry();
        let (name, key) = (&name[..], &key[..]);
        let listed = |definition: &Definition| {
            block.is_some() || definition.save.is_some() || definition.limit.is_unlimited()
        };
        let definition = match exempt {
            None => host.defined(name, key)?,
            exempt => exempt,
        };
        let visited = match definition {
            Some(definition) if listed(&definition) => {
                let until = block.as_ref().map(|block| block.until);
                let target = Target::defined::<H>(name, key, definition, until);
                visit(without_rows(host, &target, block)?)
            }
            None if block.is_some() => visit(undefined(host.now(), name, key, 1, block)),
            // The key was saved or exempt once; its name is now undefined, or its state elsewhere.
            _ => ControlFlow::Continue(()),
        };
        if visited.is_break() {
            return Ok(visited);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The status of a key with an undefined name.
fn undefined<'a>(
    now: Micros,
    name: &'a [u8],
    key: &'a [u8],
    shards: u32,
    block: Option<Block>,
) -> Status<'a> {
    let block = block.filter(|block| block.until > now);
    let until = block.as_ref().map(|block| block.until);
    Status {
        name,
        key,
        now,
        as_of: now,
        shards,
        limit: None,
        limited: until.map(|_| true),
        limited_by: until.map(|_| LimitedBy::Block),
        block_reason: block.and_then(|block| block.reason),
        retry_after: until.and_then(|until| after_block(until, now, |_| Some(Micros(0)))),
        held: None,
    }
}

/// The status of a key without rows: in memory, or full.
fn without_rows<'a, H: Host>(
    host: &H,
    target: &Target<'a>,
    block: Option<Block>,
) -> Result<Status<'a>> {
    let peeked = stores::without_rows(host, target)?;
    defined(host, target, &peeked, block)
}

/// The status of a key with these shards. `block` is the target's block, if its reason is known.
fn defined<'a, H: Host>(
    host: &H,
    target: &Target<'a>,
    peeked: &Peeked,
    block: Option<Block>,
) -> Result<Status<'a>> {
    let Peeked { now, found } = peeked;
    let (now, shards) = (*now, &found.shards);
    let until = target.block(now);
    // Enforced, to show what would be denied in a dry run, too.
    let mut enforced = target.clone();
    if !enforced.definition.enforce {
        let definition = (*enforced.definition).clone();
        enforced.definition = Rc::new(Definition { enforce: true, ..definition });
    }
    let one = Take { count: 1.0, reserve: false, lease: None, at_least: None };
    let ask = Ask { target: enforced, change: Change::Take(one), entry: None };
    let answer = ask.change.decide(host, &ask.target, Contents::All(shards, None), now)?.answer;
    let retry_after = match found.has_holds() {
        // Holds are read after the row: read both in one state. The wait is 0 if the key is no longer limited.
        true if !answer.ok => {
            let again = single::look(host, &ask)?;
            if again.ok { Some(Micros(0)) } else { again.retry_after }
        }
        _ => answer.retry_after,
    };
    let remaining = shards.level(now).remaining;
    Ok(Status {
        name: target.name,
        key: target.key,
        now,
        as_of: shards.present(now),
        shards: target.limit().shards(),
        limit: Some(LimitStatus { definition: target.definition.clone(), remaining }),
        limited: Some(answer.limited_by.is_some()),
        limited_by: answer.limited_by,
        block_reason: until.and(block).and_then(|block| block.reason),
        retry_after,
        held: Some(0.0),
    })
}

/// The status of a key with rows. `None`: they are left from before its limit was moved into memory, and the key is one
/// of the `others`, if listed.
fn with_rows<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    found: &'a KeyRows,
    others: &mut Others,
    holders: &Keys,
) -> Result<Option<Status<'a>>> {
    let KeyRows { name, key, rows: of_key } = found;
    let definition = host.defined(name, key)?;
    if definition.as_ref().is_some_and(|definition| has_no_rows(definition)) {
        return Ok(None);
    }
    let block = others.remove(&(name.clone(), key.clone())).and_then(|other| other.block);
    let Some(definition) = definition else {
        let shards = stores::of_shards(of_key).count() as u32;
        return Ok(Some(undefined(host.now(), name, key, shards, block)));
    };
    let until = block.as_ref().map(|block| block.until);
    let target = Target::defined::<H>(name, key, definition, until);
    if target.store == Store::Saved {
        return without_rows(host, &target, block).map(Some);
    }
    let now = host.now();
    let peeked = stores::peek_found(host, rows, &target, of_key.clone(), now)?;
    let held = held_of(host, holders, &target, &peeked)?;
    Ok(Some(Status { held: Some(held), ..defined(host, &target, &peeked, block)? }))
}

/// The tokens that would come back to a key, if it is one of those that have holds.
fn held_of<H: Host>(host: &H, holders: &Keys, target: &Target, peeked: &Peeked) -> Result<f64> {
    let (name, key, now) = (target.name, target.key, peeked.now);
    let is_held = !holders.is_empty() && holders.contains(&(name.to_vec(), key.to_vec()));
    let (limit, state) = (target.limit(), peeked.found.shards.total(now));
    // The holds of an ignored state are ignored, too.
    let is_ignored = peeked.found.shards.states().iter().any(|state| limit.ignores(state, now));
    let returnable = kinds::returnable(limit, &state, now).filter(|_| is_held && !is_ignored);
    returnable.map_or(Ok(0.0), |returnable| {
        let held = host.with_key_holds(|holds| holds.held(name, key, returnable.since, now))?;
        Ok(held.min(returnable.room))
    })
}
