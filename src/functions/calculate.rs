//! Applies a limit to a given state, exact to the microsecond.

use ratelimit_core::state::{self, StateError};
use ratelimit_core::{Micros, decide};

use super::answers::{finite, retry, time};
use crate::cache::definitions;
use crate::declaration::sql_function;
use crate::schema::error::Error;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::{Json, Timestamptz, sql_row};
use ratelimit_pg::interrupts::larger_reserve;
use ratelimit_pg::values::Jsonb;

sql_row! {
    /// The answer, and the state afterwards.
    pub struct Calculation as "@extschema@.rl_calculate_result" {
        ok: bool,
        retry_after: Option<f64>,
        retry_at: Option<Timestamptz>,
        remaining: Option<f64>,
        capacity: Option<f64>,
        reset_at: Option<Timestamptz>,
        state: Option<Json>,
    }
}

sql_function! {
    /// 22004, 22023.
    #[effect(Computes)]
    fn rl_calculate(
        call: &Call,
        config: Jsonb,
        state: Option<Jsonb>,
        at: Micros,
        count: f64,
        reserve: bool,
    ) -> Calculation {
        let definition = definitions::inline(config)?;
        let limit = &definition.limit;
        limit.check_tokens("count", count)?;
        let json = state
            .map(|state| state.to_json(state::MAX_BYTES))
            .transpose()
            .map_err(|bytes| Error::State(StateError::too_long(bytes)))?
            .filter(|json| json != "null"); // rl_value returns it for a full limit
        let given = state.filter(|_| json.is_some());
        let state = match json {
            Some(json) => {
                let _larger = larger_reserve(json.len());
                state::parse(&json, limit).map_err(Error::State)?
            }
            // A fixed window without a start begins at the time given.
            None => limit.initial_state(at, at),
        };
        let decision = decide(limit, &state, at, count, reserve);
        let (retry_after, retry_at) = retry(at, decision.retry_after, |at| at);
        Ok(Calculation {
            ok: decision.ok,
            retry_after,
            retry_at,
            remaining: finite(decision.level.remaining),
            capacity: finite(limit.capacity()),
            reset_at: decision.level.reset_at.and_then(time),
            state: match decision.state {
                Some(state) => Some(Json::new(state::to_json(&state))),
                None => given.map(Json::from),
            },
        })
    }
}
