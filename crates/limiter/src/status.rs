//! The current level of every key of every limit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::config::Definition;
use ratelimit_core::{Micros, Take, kinds};

use crate::change::{Ask, Change};
use crate::error::Result;
use crate::keys::each_key;
use crate::ports::{Block, Entries, Host, Key, KeyRows, Listing, RowAccess, Rows, ShardRow};
use crate::request::LimitedBy;
use crate::single;
use crate::stores::{self, Keys};
use crate::target::{Store, Target};

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
    /// The definition; `None` for an undefined name.
    pub definition: Option<Rc<Definition>>,
    /// Tokens; negative: debt; infinite without a limit.
    pub remaining: f64,
    /// The reason why a call for one token is denied; `None`: it isn't.
    pub limited_by: Option<LimitedBy>,
    /// The reason for the block in force, in the server's encoding.
    pub block_reason: Option<Vec<u8>>,
    /// The wait until such a call passes, from `now`.
    pub retry_after: Option<Micros>,
    /// The tokens that would come back if all of the key's holds were settled as unused now.
    pub held: f64,
}

/// Keys not visited yet that may have no row: blocked keys, with the block; exempt keys and one with a state in memory
/// alone, with the definition, which is not looked up; and saved keys.
type Others = BTreeMap<Key, (Option<Block>, Option<Rc<Definition>>)>;

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
    let Listing { name, key, .. } = listing;
    if name.zip(key).is_some_and(|(name, key)| !listing.has(name, key)) {
        return Ok(());
    }
    let mut others = Others::new();
    if let Some(entries) = host.entries_if_any()? {
        others.extend(entries.saved_keys(name).into_iter().map(|own| (own, (None, None))));
    }
    for (own, definition) in host.exempt_keys(listing)? {
        others.entry(own).or_default().1 = Some(definition);
    }
    for (own, block) in host.blocks_in_force(listing)? {
        others.entry(own).or_default().0 = Some(block);
    }
    others.retain(|(name, key), _| listing.has(name, key));
    if let (Some(name), Some(key)) = (name, key)
        && let Some(definition) = host.defined(name, key)?
        && definition.has_no_rows()
    {
        let target = Target::defined::<H>(name, key, definition.clone(), None);
        if !others.is_empty() || stores::stored(host, &target)?.0.is_some() {
            others.entry((name.to_vec(), key.to_vec())).or_default().1 = Some(definition);
        }
        return show_others(host, others, &mut visit).map(drop);
    }
    let holders = stores::holders(host, listing, true)?;
    let ended = host.with_rows(RowAccess::Read, |rows| {
        each_key(host, rows, listing, |KeyRows { key: own, rows: of_key }| {
            let later = others.split_off(&own);
            let before = std::mem::replace(&mut others, later);
            if show_others(host, before, &mut visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let definition = host.defined(&own.0, &own.1)?;
            // Rows left from before the limit was moved into memory: if listed, the key is one of the others.
            if definition.as_ref().is_some_and(|definition| definition.has_no_rows()) {
                return Ok(ControlFlow::Continue(()));
            }
            let block = others.remove(&own).and_then(|(block, _)| block);
            let in_rows = Some((rows, &of_key[..], &holders));
            Ok(visit(status_of(host, &own, definition, block, in_rows)?))
        })
    })?;
    if ended.is_continue() {
        let _ = show_others(host, others, &mut visit)?;
    }
    Ok(())
}

/// Visits other keys until `visit` breaks.
fn show_others<H: Host>(
    host: &H,
    others: Others,
    visit: &mut impl FnMut(Status) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for (own, (block, known)) in others {
        host.check_for_interrupts();
        let is_known = known.is_some();
        let definition = if is_known { known } else { host.defined(&own.0, &own.1)? };
        let is_listed = |of: &Rc<Definition>| of.save.is_some() || of.limit.is_unlimited();
        // A key that was saved or exempt once; its name is now undefined, or its state elsewhere.
        if !is_known && block.is_none() && !definition.as_ref().is_some_and(is_listed) {
            continue;
        }
        if visit(status_of(host, &own, definition, block, None)?).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The status of a key, with these rows and of these keys with holds if it has rows; otherwise it is in memory, full,
/// or undefined. `block` is its block, if the reason is known.
fn status_of<'a, H: Host>(
    host: &H,
    own: &'a Key,
    definition: Option<Rc<Definition>>,
    block: Option<Block>,
    in_rows: Option<(&dyn Rows, &[ShardRow], &Keys)>,
) -> Result<Status<'a>> {
    let (name, key) = own;
    let until = block.as_ref().map(|block| block.until);
    let target = Target::remaining::<H>(name, key, definition, until);
    let limit = target.limit();
    let shard_count = match in_rows {
        Some((_, of_key, _)) if !target.is_defined => stores::of_shards(of_key).count() as u32,
        _ => limit.shards(),
    };
    let in_rows = in_rows.filter(|_| target.is_defined && target.store != Store::Saved);
    let (found, now) = match in_rows {
        Some((rows, of_key, _)) => {
            stores::peek_found(host, rows, &target, of_key.to_vec(), host.now())?
        }
        None => stores::peek(host, None, &target, None)?,
    };
    let shards = &found.shards;
    // The holds of an ignored state are ignored, too.
    let is_ignored = || shards.states().iter().any(|state| limit.ignores(state, now));
    let is_held = in_rows.is_some_and(|(.., holders)| holders.contains(own) && !is_ignored());
    let held = match kinds::returnable(limit, &shards.total(now), now).filter(|_| is_held) {
        Some(kinds::Returnable { since, room }) => {
            host.with_key_holds(|holds| holds.held((name, key), since, now))?.min(room)
        }
        None => 0.0,
    };
    // Enforced, to show what would be denied in a dry run, too.
    let mut enforced = target.clone();
    Rc::make_mut(&mut enforced.definition).enforce = true;
    let one = Take { count: 1.0, reserve: false, lease: None, at_least: None };
    let ask = Ask { target: enforced, change: Change::Take(one), entry: None };
    let answer = ask.decide(host, shards, None, now)?.answer;
    let retry_after = match found.has_holds() {
        // Holds are read after the row: read both in one state. The wait is 0 if the key is no longer limited.
        true if !answer.ok => {
            let again = single::look(host, &ask)?;
            if again.ok { Some(Micros(0)) } else { again.retry_after }
        }
        _ => answer.retry_after,
    };
    Ok(Status {
        name,
        key,
        now,
        as_of: shards.present(now),
        shards: shard_count,
        definition: target.is_defined.then(|| target.definition.clone()),
        remaining: shards.level(now).remaining,
        limited_by: answer.limited_by,
        block_reason: target.block(now).and(block).and_then(|block| block.reason),
        retry_after,
        held,
    })
}
