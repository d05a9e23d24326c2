//! The names whose definitions the current transaction has changed, from or to one that is saved: until it commits nobody
//! else sees that, and after a rollback nothing is to be left of it.

use std::cell::RefCell;

use pgrx::pg_sys;

use ratelimit_pg::transaction::{local_transaction, subtransaction};

/// What a transaction has changed.
struct Changed {
    transaction: pg_sys::LocalTransactionId,
    /// An SQL function of the extension.
    function: pg_sys::Oid,
    /// Each name, `None`: all, with the subtransaction that has changed it.
    names: Vec<(Option<Vec<u8>>, pg_sys::SubTransactionId)>,
}

thread_local! {
    static CHANGED: RefCell<Option<Changed>> = const { RefCell::new(None) };
}

/// Notes that a definition of a name has changed, `None`: all are deleted; told by a trigger that calls `function`.
pub fn note(function: pg_sys::Oid, name: Option<&[u8]>) {
    let (transaction, here) = (local_transaction(), subtransaction());
    CHANGED.with_borrow_mut(|changed| {
        let new = || Changed { transaction, function, names: Vec::new() };
        let is_old = changed.as_ref().is_some_and(|changed| changed.transaction != transaction);
        let changed = if is_old { changed.insert(new()) } else { changed.get_or_insert_with(new) };
        changed.function = function;
        if !changed.names.iter().any(|(of, _)| of.as_deref() == name) {
            changed.names.push((name.map(Into::into), here));
        }
    });
}

/// Whether this transaction has changed a definition of a name.
#[inline]
pub fn is_changed(name: &[u8]) -> bool {
    let is_meant = |of: &Option<Vec<u8>>| of.as_deref().is_none_or(|of| of == name);
    CHANGED.with_borrow(|changed| {
        changed.as_ref().is_some_and(|changed| {
            changed.transaction == local_transaction()
                && changed.names.iter().any(|(of, _)| is_meant(of))
        })
    })
}

/// Takes what this transaction has changed, which ends now: the function, and the names, of which `None` means all.
pub fn take() -> Option<(pg_sys::Oid, Vec<Option<Vec<u8>>>)> {
    let Changed { transaction, function, names } = CHANGED.take()?;
    if transaction != local_transaction() || names.is_empty() {
        return None;
    }
    Some((function, names.into_iter().map(|(name, _)| name).collect()))
}

/// Forgets what was changed in a subtransaction that is rolled back, or in one within it, whose number is greater.
pub fn forget(rolled_back: pg_sys::SubTransactionId) {
    // Never borrowed while Postgres ends a subtransaction.
    CHANGED.with(|changed| {
        if let Ok(mut changed) = changed.try_borrow_mut()
            && let Some(changed) = changed.as_mut()
        {
            changed.names.retain(|&(_, changed_in)| changed_in < rolled_back);
        }
    });
}
