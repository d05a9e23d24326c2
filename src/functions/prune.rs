//! Deletes the rows that no answer depends on.

use std::cell::RefCell;

use pgrx::pg_sys;

use super::arguments::{Idle, MaxRows};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use ratelimit_limiter::ports::Key;
use ratelimit_limiter::prune::prune;
use ratelimit_pg::call::Call;

thread_local! {
    /// The table of the session's last batch, and the key with which it ended.
    static POSITION: RefCell<Option<(pg_sys::Oid, Key)>> = const { RefCell::new(None) };
}

sql_function! {
    /// 22004, 22023; 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_prune(call: &Call, max_rows: MaxRows, undefined_idle: Option<Idle>) -> i64 {
        let undefined_idle = undefined_idle.map(|idle| idle.0);
        // Continues the count if the table changes and the work starts again.
        let mut deleted = 0;
        Session::run(Use::Writes, call.function(), |host| {
            let table = host.table();
            let last = POSITION.with_borrow(Option::clone).filter(|&(of, _)| of == table);
            let mut position = last.map(|(_, position)| position);
            let pruned = prune(host, max_rows.0, undefined_idle, &mut position, &mut deleted);
            POSITION.set(position.map(|position| (table, position)));
            pruned
        })?;
        Ok(deleted)
    }
}
