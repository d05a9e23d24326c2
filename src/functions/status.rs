//! The tokens left of every limit in use.

use ratelimit_core::Micros;
use ratelimit_limiter::status::{self, Status};

use super::answers::{finite, retry, time, word};
use super::arguments::{LimitKey, LimitName};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use ratelimit_pg::call::sql_types::{Constant, Text, Timestamptz, sql_row};
use ratelimit_pg::call::{Call, Rows};

sql_row! {
    /// The tokens left for a name and key; without a definition only these, and whether the key is blocked.
    pub struct StatusRow as "@extschema@.rl_status_result" {
        name: Text,
        key: Text,
        kind: Option<Text>,
        remaining: Option<f64>,
        capacity: Option<f64>,
        retry_at: Option<Timestamptz>,
        as_of: Option<Timestamptz>,
        shards: i32,
        limited: Option<bool>,
        limited_by: Option<Constant>,
        block_reason: Option<Text>,
        held: Option<f64>,
    }
}

sql_function! {
    /// 22023, and those of `rl_check` for a bad stored config or state.
    #[effect(Reads)]
    fn rl_status(
        call: &Call,
        name: Option<LimitName>,
        key: Option<LimitKey>,
    ) -> Rows<StatusRow> {
        let rows = call.rows()?;
        let (name, key) = (name.map(|name| name.0), key.map(|key| key.0));
        let mut put = |status: Status| {
            let standing = status.limit.as_ref();
            let (_, retry_at) = retry(status.now, status.retry_after, Micros::ceil_to_millis);
            rows.put(StatusRow {
                name: Text::new(status.name),
                key: Text::new(status.key),
                kind: standing.map(|standing| Text::new(standing.definition.limit.kind().as_str().as_bytes())),
                remaining: standing.and_then(|standing| finite(standing.remaining)),
                capacity: standing.and_then(|standing| finite(standing.definition.limit.capacity())),
                retry_at,
                as_of: time(status.as_of),
                shards: status.shards as i32,
                limited: status.limited,
                limited_by: status.limited_by.map(word),
                block_reason: status.block_reason.as_deref().map(Text::new),
                held: status.held,
            });
        };
        Session::run(Use::Reads, call.function(), |host| status::each(host, name, key, &mut put))?;
        Ok(rows)
    }
}
