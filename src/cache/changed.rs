//! The names whose definitions the current transaction has changed, of limits that are or were saved: until it commits
//! no other session sees that, and a rollback must undo it.

use std::cell::RefCell;

use pgrx::pg_sys;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// What a transaction has changed.
struct Changed {
    transaction: pg_sys::LocalTransactionId,
    /// An SQL function of the extension.
    function: pg_sys::Oid,
    /// In their order.
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

/// What a transaction has changed that ends.
pub struct Taken {
    /// An SQL function of the extension.
    pub function: pg_sys::Oid,
    /// The names whose limits come into memory or leave it; `None`: all.
    pub names: Vec<Option<Vec<u8>>>,
    /// The others.
    pub redefined: Vec<Option<Vec<u8>>>,
}

thread_local! {
    static CHANGED: RefCell<Option<Changed>> = const { RefCell::new(None) };
}

/// Notes that a definition of a name has changed, `None`: all are deleted, as a trigger sees it that calls `function`; and
/// whether its limit comes into memory or leaves it.
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

/// Whether this transaction has brought the limit of a name into memory, or out of it.
#[inline]
pub fn is_changed(name: &[u8]) -> bool {
    let is_meant = |of: &Name| of.moves && of.name.as_deref().is_none_or(|of| of == name);
    CHANGED.with_borrow(|changed| {
        changed.as_ref().is_some_and(|changed| {
            changed.transaction == local_transaction() && changed.names.iter().any(is_meant)
        })
    })
}

/// Whether a transaction has changed any.
pub fn is_any() -> bool {
    CHANGED.with_borrow(Option::is_some)
}

/// Takes what this transaction has changed, which ends now.
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

/// Forgets what was changed in a subtransaction that is rolled back, or in one within it, whose number is greater.
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
