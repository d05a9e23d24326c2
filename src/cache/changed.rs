//! The names of limits, saved now or before, with definitions that the current transaction has changed. Other sessions
//! see the changes when it commits; a rollback undoes them.

use std::cell::RefCell;

use pgrx::pg_sys;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// The changes of a transaction.
struct Changed {
    transaction: pg_sys::LocalTransactionId,
    /// An SQL function of the extension.
    function: pg_sys::Oid,
    /// In the order of the changes.
    names: Vec<Name>,
}

/// A name; `None`: all.
struct Name {
    name: Option<Vec<u8>>,
    /// Whether its limit comes into memory or leaves it.
    moves: bool,
    /// The subtransaction that has changed it.
    changed_in: pg_sys::SubTransactionId,
}

/// The changes of a transaction that ends now.
pub struct Taken {
    /// An SQL function of the extension.
    pub function: pg_sys::Oid,
    /// The names with limits that come into memory or leave it; `None`: all.
    pub names: Vec<Option<Vec<u8>>>,
    /// The other changed names.
    pub redefined: Vec<Option<Vec<u8>>>,
}

thread_local! {
    static CHANGED: RefCell<Option<Changed>> = const { RefCell::new(None) };
}

/// Notes a change of a name's definition; `None`: all definitions are deleted. `function`: the function of the trigger
/// that saw it. `moves`: whether the limit comes into memory or leaves it.
pub fn note(function: pg_sys::Oid, name: Option<&[u8]>, moves: bool) {
    let (transaction, changed_in) = (local_transaction(), subtransaction());
    CHANGED.with_borrow_mut(|changed| {
        let new = || Changed { transaction, function, names: Vec::new() };
        let is_old = changed.as_ref().is_some_and(|changed| changed.transaction != transaction);
        let changed = if is_old { changed.insert(new()) } else { changed.get_or_insert_with(new) };
        changed.function = function;
        let is_noted = |of: &Name| of.name.as_deref() == name && of.moves == moves;
        if !changed.names.iter().any(is_noted) {
            changed.names.push(Name { name: name.map(Into::into), moves, changed_in });
        }
    });
}

/// Whether this transaction has brought the limit of a name into memory or out of it.
#[inline]
pub fn is_changed(name: &[u8]) -> bool {
    let is_meant = |of: &Name| of.moves && of.name.as_deref().is_none_or(|of| of == name);
    CHANGED.with_borrow(|changed| {
        changed.as_ref().is_some_and(|changed| {
            changed.transaction == local_transaction() && changed.names.iter().any(is_meant)
        })
    })
}

/// Whether the transaction has changed any definition.
pub fn is_any() -> bool {
    CHANGED.with_borrow(Option::is_some)
}

/// Takes the changes of this transaction, which ends now.
pub fn take() -> Option<Taken> {
    let Changed { transaction, function, names } = CHANGED.take()?;
    if transaction != local_transaction() || names.is_empty() {
        return None;
    }
    let (moved, others): (Vec<Name>, Vec<Name>) = names.into_iter().partition(|name| name.moves);
    let [names, redefined] =
        [moved, others].map(|names| names.into_iter().map(|name| name.name).collect());
    Some(Taken { function, names, redefined })
}

/// Forgets the changes of a subtransaction that is rolled back, and of those within it, which have greater numbers.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    // Never borrowed while Postgres ends a subtransaction.
    CHANGED.with(|changed| {
        if let Ok(mut changed) = changed.try_borrow_mut()
            && let Some(changed) = changed.as_mut()
        {
            changed.names.retain(|name| name.changed_in < rolled_back);
        }
    });
}
