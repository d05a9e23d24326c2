//! Moves keys in and out of memory when a definition becomes or ceases to be a saved one. Nothing happens until the
//! change commits, so a rollback leaves everything as it was.
//!
//! Just before the commit, the session writes the unsaved keys that leave memory to their rows, in its own transaction
//! and as any call would. From then on the writer skips those names, because its copy is older. When others have been
//! notified of the change, memory forgets these keys. It also forgets the saved ones among the other keys of those
//! names, because their rows may have been written. Calls that still use the old definition then find no key, and look
//! again (see `stores/memory.rs`); what they took between the copy and the end is lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::iter::once;

use pgrx::pg_sys;
use ratelimit_core::config::Definition;
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::{Host, RowAccess};
use ratelimit_limiter::stores;
use ratelimit_memory::saved::SavedCopy;

use crate::cache::changed::{self, Taken};
use crate::cache::definitions::{self, RowConfig};
use crate::host::{Session, Use};
use crate::schema::catalog::{self, Catalog};
use crate::schema::error::{Error, Result};
use crate::store::memory::writer::{self, Origin};
use crate::store::memory::{Memory, SavedMemory};
use crate::writer::{keep_from_writing, may_be_saved};
use ratelimit_pg::hooks;
use ratelimit_pg::shared_memory::Need;
use ratelimit_pg::values::utf8;

/// Whether keys stay in memory, by name and key; under the key `''`, whether the other keys of the name do.
type Stay = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, bool>>;

/// The keys to remove from memory once this transaction has committed.
struct Pending {
    origin: Origin,
    /// `None`: all.
    names: Vec<Option<Vec<u8>>>,
    stay: Stay,
    /// Names that stay, with keys that may have to be written sooner.
    redefined: Vec<Option<Vec<u8>>>,
}

thread_local! {
    static PENDING: RefCell<Option<Pending>> = const { RefCell::new(None) };
}

/// Runs a hook before the end of a transaction, if it has changed definitions, and raises its error.
fn run(hook: fn() -> Result<()>) {
    if changed::is_any() {
        // SAFETY: these frames have nothing to drop.
        unsafe { hooks::run(hook) }
    }
}

/// A change of a definition, as a trigger sees it: of one name and key, or the deletion of all.
pub struct Change<'c> {
    /// The name; `None`: all.
    pub name: Option<&'c [u8]>,
    /// Whether it is the definition of a key, not of the name.
    pub of_key: bool,
    /// The old definition, if there was a valid one.
    pub old: Option<RowConfig>,
    /// The new definition, if there is one.
    pub new: Option<RowConfig>,
}

/// Notes a change, seen by a trigger that calls `function`, for its name and for the names of keys that have it as
/// their plan. If keys leave memory, has them written now.
///
/// # Errors
/// [`Error::SavedOnCitus`] (0A000); a cancel.
pub fn note(function: pg_sys::Oid, change: Change) -> Result<()> {
    let Change { name, of_key, old, new } = change;
    let saved = SavedMemory::open(Need::May)?;
    let may_concern_memory = |config: &Option<RowConfig>| match config {
        Some(RowConfig::Own(definition)) => definition.save.is_some(),
        Some(RowConfig::Plan(_)) => true,
        None => false,
    };
    if saved.is_none() && !may_concern_memory(&old) && !may_concern_memory(&new) {
        return Ok(()); // nothing is in memory
    }
    let catalog = catalog::latest(function)?;
    // If Citus distributes the tables, a commit could write nothing.
    if catalog.rl_config.distributed || catalog.rate_limits.distributed {
        return match new {
            Some(RowConfig::Own(new)) if is_saved(Some(&new)) => Err(Error::SavedOnCitus),
            _ => Ok(()),
        };
    }
    let default_of = |name: &[u8]| definitions::default_of(&catalog, name).unwrap_or_default();
    // The statement may have changed the plan, too: keys may have had a different one.
    let was_plan = matches!(old, Some(RowConfig::Plan(_)));
    let (was_defined, is_defined) = (old.is_some(), new.is_some());
    let [mut old, mut new] = [old, new].map(|config| match config? {
        RowConfig::Own(definition) => Some(definition),
        RowConfig::Plan(plan) => default_of(&plan),
    });
    if saved.is_none() && !is_saved(old.as_deref()) && !is_saved(new.as_deref()) {
        return Ok(());
    }
    // A key without a definition has the name's.
    if let Some(name) = name.filter(|_| of_key && !(was_defined && is_defined)) {
        let of_name = default_of(name);
        let missing = if was_defined { &mut new } else { &mut old };
        *missing = of_name;
    }
    let (old, new) = (old.as_deref(), new.as_deref());
    let concerns_memory = is_saved(old) || is_saved(new) || saved.is_some() && may_be_saved(old);
    let of_plan = match name.filter(|_| !of_key && concerns_memory) {
        Some(plan) => definitions::with_plan(&catalog, plan)?,
        None => Vec::new(),
    };
    let saved = match saved {
        Some(saved) => Some((saved, Origin::new(Memory::get()?, &catalog))),
        None => None,
    };
    let may_stay = may_be_saved(new);
    let moves = is_saved(old) && !may_stay || !is_saved(old) && is_saved(new);
    for name in once(name).chain(of_plan.iter().map(|name| Some(&name[..]))) {
        // Keys may have stayed in memory while they were unlimited.
        let has_left = (name.is_none() || was_plan || may_be_saved(old)) && !may_stay;
        let left = match saved {
            Some((saved, origin)) if has_left => saved.has_keys(origin.scope, name),
            _ => None,
        };
        if moves || left.is_some() {
            changed::note(function, name, true);
        } else if saved.is_some() && is_saved(old) && is_saved(new) {
            changed::note(function, name, false);
        }
        if let (Some((saved, origin)), Some(true)) = (saved, left) {
            writer::wait(saved, &origin);
        }
    }
    Ok(())
}

/// Whether keys of a definition are in memory and saved.
fn is_saved(definition: Option<&Definition>) -> bool {
    definition.is_some_and(|definition| definition.save.is_some())
}

/// Before the commit: writes the keys that leave memory, and notes which to forget.
pub fn before_commit() {
    run(write_leaving);
}

fn write_leaving() -> Result<()> {
    let Some(Taken { function, names, redefined }) = changed::take() else { return Ok(()) };
    give_back(function, &names)?;
    let Some(saved) = SavedMemory::open(Need::May)? else { return Ok(()) };
    let catalog = match catalog::latest(function) {
        Err(Error::NoTable { .. }) => return Ok(()), // the extension is dropped by now
        catalog => catalog?,
    };
    let origin = Origin::new(Memory::get()?, &catalog);
    keep_from_writing(origin.scope, &names);
    let keys = || names.iter().flat_map(|name| saved.keys(origin.scope, name.as_deref()));
    let stay = stay(&catalog, &names, keys())?;
    let mut leaving: Vec<SavedCopy> =
        keys().filter(|copy| copy.is_unsaved() && !stays(&stay, copy)).collect();
    // In the order in which every call locks rows.
    leaving.sort_unstable_by(|one, other| (&one.name, &one.key).cmp(&(&other.name, &other.key)));
    // Leaves no deferred trigger, which would not fire any more: SQL that runs as the owner refuses deferred triggers.
    if !leaving.is_empty() {
        Session::run(Use::Writes, function, |session| {
            session.with_rows(RowAccess::Write, |rows| {
                leaving.iter().try_for_each(|copy| {
                    let key = (&copy.name[..], &copy.key[..]);
                    stores::save(session, rows, key, copy.state.as_ref(), true).map(drop)
                })
            })
        })?;
    }
    PENDING.set(Some(Pending { origin, names, stay, redefined }));
    Ok(())
}

/// Gives back the tokens of expired holds, for keys with states that move into memory.
fn give_back(function: pg_sys::Oid, names: &[Option<Vec<u8>>]) -> Result<()> {
    if names.iter().all(Option::is_none) {
        return Ok(());
    }
    let given = Session::run(Use::Writes, function, |session| {
        session.with_rows(RowAccess::Write, |rows| {
            names
                .iter()
                .flatten()
                .try_for_each(|name| stores::give_back_to_saved(session, rows, name))
        })
    });
    match given {
        Err(Error::NoTable { .. }) => Ok(()), // the extension is dropped by now
        given => given,
    }
}

/// Whether keys of these names stay in memory, by the definitions of this transaction.
fn stay(
    catalog: &Catalog,
    names: &[Option<Vec<u8>>],
    keys: impl Iterator<Item = SavedCopy>,
) -> Result<Stay> {
    // A definition that can't be read may still be a saved one.
    let is_saved = |name: &[u8], key: &[u8]| match definitions::defined(catalog, name, key) {
        Err(Error::Limiter(LimiterError::StoredConfig { .. })) => Ok(true),
        definition => definition.map(|definition| may_be_saved(definition.as_deref())),
    };
    let mut stay = Stay::new();
    let all = names.iter().flatten().map(|name| (name.clone(), Vec::new()));
    for (name, key) in all.chain(keys.map(|SavedCopy { name, key, .. }| (name, key))) {
        if !stay.contains_key(&name) {
            stay.insert(name.clone(), [(Vec::new(), is_saved(&name, b"")?)].into());
        }
        let own = is_saved(&name, &key)?;
        stay.entry(name).or_default().insert(key, own);
    }
    Ok(stay)
}

/// Whether a key stays in memory.
fn stays(stay: &Stay, copy: &SavedCopy) -> bool {
    let of_name = stay.get(&copy.name);
    of_name.and_then(|keys| keys.get(&copy.key).or(keys.get(&b""[..]))).is_some_and(|&stays| stays)
}

/// Refuses PREPARE TRANSACTION after a change: it would commit without this session.
pub fn before_prepare() {
    run(refuse_prepare);
}

fn refuse_prepare() -> Result<()> {
    match changed::take().and_then(|taken| taken.names.into_iter().next()) {
        Some(name) => Err(Error::Prepared { name: utf8(&name.unwrap_or_default()).into_owned() }),
        None => Ok(()),
    }
}

/// Forgets the keys that have left memory; nothing after a rollback.
pub fn ended(has_committed: bool) {
    changed::take();
    let Some(Pending { origin, names, stay, redefined }) = PENDING.take() else { return };
    let Some(saved) = SavedMemory::seen().filter(|_| has_committed) else { return };
    for name in names {
        let is_to_go = |copy: &SavedCopy| !copy.is_unsaved() || !stays(&stay, copy);
        saved.remove(origin.scope, name.as_deref(), is_to_go);
    }
    for name in redefined {
        saved.remove(origin.scope, name.as_deref(), |_| false);
    }
    writer::note(saved, &origin, saved.unsaved(Some(origin.scope)).due);
}
