//! Erases a key.

use std::collections::BTreeSet;

use ratelimit_core::ArgumentError;
use ratelimit_limiter::stores;

use super::arguments::LimitKey;
use crate::cache::{blocks, definitions};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use crate::schema::catalog::{self, TableLock};
use crate::{tally, writer};
use ratelimit_pg::call::Call;

sql_function! {
    /// 22004: the empty key, which stands for all keys without a definition of their own; 25006 in a read-only
    /// transaction; 55000: a trigger keeps a row.
    #[effect(Writes)]
    fn rl_forget(call: &Call, key: LimitKey) -> i64 {
        let (function, key) = (call.function(), key.0);
        if key.is_empty() {
            return Err(ArgumentError::Empty("key").into());
        }
        // Keeps growing if the table changes and the work starts again.
        let mut forgotten = BTreeSet::new();
        let mut names = tally::names(function)?;
        names.extend(catalog::with(function, TableLock::Read, definitions::names)?);
        // Fill a saved key in memory before deleting its row: until this commits, others can load the row.
        Session::run(Use::Writes, function, |host| {
            stores::forget_key_in_memory(host, names.clone(), key, &mut forgotten)
        })?;
        writer::write_now(function)?;
        Session::run(Use::Writes, function, |host| stores::delete_rows(host, key, &mut forgotten))?;
        let mut count = forgotten.len() as i64;
        catalog::with(function, TableLock::Write, |catalog| {
            for name in definitions::overridden(catalog, key)? {
                count += i64::from(definitions::undefine(catalog, &name, key)?);
            }
            for name in blocks::names(catalog, key)? {
                count += i64::from(blocks::delete(catalog, &name, key)?.is_some());
            }
            Ok(())
        })?;
        writer::forget_saved(function, key)?;
        tally::forget_key(function, key)?;
        Ok(count)
    }
}
