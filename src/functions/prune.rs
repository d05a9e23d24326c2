//! Deletes the rows that no answer depends on.

use super::arguments::{Idle, MaxRows};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use ratelimit_limiter::prune::prune;
use ratelimit_pg::call::Call;

sql_function! {
    /// 22004, 22023; 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_prune(call: &Call, max_rows: MaxRows, undefined_idle: Option<Idle>) -> i64 {
        let undefined_idle = undefined_idle.map(|idle| idle.0);
        // Counts on if the table has changed and the work begins again.
        let mut deleted = 0;
        Session::run(Use::Writes, call.function(), |host| prune(host, max_rows.0, undefined_idle, &mut deleted))?;
        Ok(deleted)
    }
}
