//! Returns the state and config behind a key's answers, for a client that computes them.

use ratelimit_core::{Micros, config, state};
use ratelimit_limiter::request::Request;
use ratelimit_limiter::single::{self, Value};
use serde_json::{Value as JsonValue, json};

use super::arguments::{LimitKey, LimitName};
use crate::declaration::sql_function;
use crate::host::{CallConfig, Session, Use, inline};
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::Json;

sql_function! {
    /// As `rl_check`.
    #[effect(Reads)]
    fn rl_value(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        config: Option<CallConfig>,
    ) -> Json {
        let request = Request { name: name.0, key: key.0, count: 0.0, reserve: false, config: inline(&config) };
        let value = Session::run(Use::Reads, call.function(), |host| single::value(host, &request))?;
        Ok(Json::new(to_json(&value)))
    }
}

fn to_json(value: &Value) -> JsonValue {
    let Value { definition, phase, state, now, blocked_until } = value;
    json!({
        "config": config::resolved(definition, *phase),
        "state": state.as_ref().map(state::reported),
        "now": now.to_json(),
        "blockedUntil": blocked_until
            .map(|until| until.ceil_to_millis().min(Micros::LATEST_SHOWN).to_json()),
    })
}
