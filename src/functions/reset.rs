//! What forgets state: resets, and the deletion of rows.

use super::arguments::{Idle, Key, MaxRows, Name};
use crate::host;
use crate::pg::call::Call;
use crate::pg::declaration::sql_function;
use ratelimit_limiter::one;
use ratelimit_limiter::prune::prune;

sql_function! {
    /// 25006 in a read-only transaction.
    #[sql(
        TAKES,
        comment = "makes a rate limit full again, debt forgotten; false if there was nothing to forget"
    )]
    fn rl_reset(call: &Call, name: Name, key: Key = "''") -> bool {
        host::take(call.function(), |host| one::reset(host, name.0, key.0))
    }
}

sql_function! {
    /// 25006 in a read-only transaction.
    #[sql(
        TAKES,
        comment = "makes a rate limit full again for every key; returns for how many there was something to forget"
    )]
    fn rl_reset_all(call: &Call, name: Name) -> i64 {
        // Outside, since the work begins again where the table has changed.
        let mut count = 0;
        host::take(call.function(), |host| one::reset_all(host, name.0, &mut count))?;
        Ok(count)
    }
}

sql_function! {
    /// 22004, 22023; 25006 in a read-only transaction.
    #[sql(
        WRITES,
        comment = "deletes a batch of blocks that are over and idle rows; returns how many"
    )]
    fn rl_prune(
        call: &Call,
        max_rows: MaxRows = "10000",
        undefined_idle: Option<Idle> = "NULL",
    ) -> i64 {
        let undefined_idle = undefined_idle.map(|idle| idle.0);
        // Outside, since the work begins again where the table has changed.
        let mut deleted = 0;
        host::write(call.function(), |host| prune(host, max_rows.0, undefined_idle, &mut deleted))?;
        Ok(deleted)
    }
}
