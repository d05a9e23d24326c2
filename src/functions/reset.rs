//! Makes limits full again.

use super::arguments::{LimitKey, LimitName};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use ratelimit_limiter::single;
use ratelimit_pg::call::Call;

sql_function! {
    /// 25006 in a read-only transaction.
    #[effect(Takes)]
    fn rl_reset(call: &Call, name: LimitName, key: LimitKey) -> bool {
        Session::run(Use::Takes, call.function(), |host| single::reset(host, name.0, key.0))
    }
}

sql_function! {
    /// 25006 in a read-only transaction.
    #[effect(Takes)]
    fn rl_reset_keys(call: &Call, name: LimitName) -> i64 {
        // Continues the count if the table changes and the work starts again.
        let mut count = 0;
        Session::run(Use::Takes, call.function(), |host| single::reset_keys(host, name.0, &mut count))?;
        Ok(count)
    }
}
