//! Applies a limit to the requests of a log.

use ratelimit_core::{Micros, State, decide};
use ratelimit_limiter::request::Answer;

use super::answers::RlResult;
use crate::cache::definitions;
use crate::declaration::sql_function;
use ratelimit_pg::call::Call;
use ratelimit_pg::values::Jsonb;

/// The state after the calls of a partition. A denial leaves no state, as in the table.
#[derive(Default)]
pub struct Replay {
    /// The time of the first request: windows without a start count from it.
    first: Option<Micros>,
    state: Option<State>,
}

sql_function! {
    /// 22004, 22023.
    #[effect(Window)]
    fn rl_replay(
        call: &Call,
        config: Jsonb,
        at: Micros,
        count: f64,
        reserve: bool,
    ) -> RlResult {
        let definition = definitions::inline(config)?;
        let limit = &definition.limit;
        limit.check_tokens("count", count)?;
        call.in_partition(|replay: &mut Replay| {
            let first = *replay.first.get_or_insert(at);
            let fresh = limit.initial_state(at, first);
            let state = replay.state.as_ref().filter(|state| limit.accepts(state.shape()));
            let decision = decide(limit, state.unwrap_or(&fresh), at, count, reserve);
            let answer = Answer::new(&definition, &decision, at);
            replay.state = decision.state.or(replay.state.take());
            Ok(RlResult::from(&answer))
        })
    }
}
