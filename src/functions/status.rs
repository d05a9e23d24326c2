//! The tokens left of every limit in use.

use std::ops::ControlFlow;

use ratelimit_core::Micros;
use ratelimit_limiter::ports::Listing;
use ratelimit_limiter::status::{self, Status};

use super::answers::{finite, retry, time, word};
use super::arguments::{LimitKey, LimitName, MaxRows, required};
use crate::declaration::sql_function;
use crate::host::{Session, Use};
use ratelimit_pg::call::sql_types::{Constant, Text, Timestamptz, sql_row};
use ratelimit_pg::call::{Call, Rows};

sql_row! {
    /// The tokens left for a name and key. Without a definition, only these and whether the key is blocked.
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
    /// 22004: only one of `after_name` and `after_key` is given; 22023; and the errors of `rl_check` for a bad stored
    /// config or state.
    #[effect(Reads)]
    fn rl_status(
        call: &Call,
        name: Option<LimitName>,
        key: Option<LimitKey>,
        limited: bool,
        max_rows: Option<MaxRows>,
        after_name: Option<&[u8]>,
        after_key: Option<&[u8]>,
    ) -> Rows<StatusRow> {
        let after = match (after_name, after_key) {
            (None, None) => None,
            _ => Some((required(after_name, "after_name")?, required(after_key, "after_key")?)),
        };
        let rows = call.rows()?;
        let listing = Listing { name: name.map(|name| name.0), key: key.map(|key| key.0), after };
        let mut left = max_rows.map_or(i64::MAX, |max_rows| max_rows.0);
        let mut put = |status: Status| {
            let is_limited = status.limited_by.is_some();
            if limited && !is_limited {
                return ControlFlow::Continue(());
            }
            let limit = status.definition.as_ref().map(|definition| &definition.limit);
            let (_, retry_at) = retry(status.now, status.retry_after, Micros::ceil_to_millis);
            rows.put(StatusRow {
                name: Text::new(status.name),
                key: Text::new(status.key),
                kind: limit.map(|limit| Text::new(limit.kind().as_str().as_bytes())),
                remaining: finite(status.remaining),
                capacity: limit.and_then(|limit| finite(limit.capacity())),
                retry_at,
                as_of: time(status.as_of),
                shards: status.shards as i32,
                limited: (limit.is_some() || is_limited).then_some(is_limited),
                limited_by: status.limited_by.map(word),
                block_reason: status.block_reason.as_deref().map(Text::new),
                held: limit.map(|_| status.held),
            });
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        Session::run(Use::Reads, call.function(), |host| status::each(host, listing, &mut put))?;
        Ok(rows)
    }
}
