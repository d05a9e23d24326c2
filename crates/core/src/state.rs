//! The state of a limit as JSON, which `rl_calculate` takes and returns. Pure.

use serde_json::{Map, Value};

use crate::config::{ConfigError, MAX_LOG, json_number, number, object, quoted, shortened};
use crate::{Limit, Micros, State};

/// The largest epoch milliseconds of a stored time, either side of 1970: whatever [`Micros`] holds.
/// It is more than a config may have, since windows are counted up to the end of what a timestamp is.
const MAX_EPOCH: f64 = i64::MAX as f64 / 1e3;

/// The longest state, in bytes of JSON: a log has 10,000 entries of up to 20 digits.
pub const MAX_BYTES: usize = 1_000_000;

/// Reads a state as `rl_calculate` takes it: `{"value": 3, "ts": <epoch ms>}`, with `prior` for a
/// sliding window and `log` (epoch ms, oldest first) for a sliding log.
///
/// # Errors
/// [`ConfigError`] for a field that is missing, unknown, of a wrong type or not this kind's.
pub fn parse(json: &str, limit: &Limit) -> Result<State, ConfigError> {
    const TOKENS: &str = "a finite number";
    const EPOCH: &str = "epoch milliseconds";
    const LOG: &str = "an array of at most 10000 epoch milliseconds, oldest first";
    let fields = object(json, r#"{"value": 3, "ts": 1798804800000}"#)?;
    let expected: &[&str] = match limit {
        Limit::SlidingWindow(_) => &["value", "ts", "prior"],
        Limit::SlidingLog(_) => &["value", "ts", "log"],
        _ => &["value", "ts"],
    };
    if let Some(unknown) = fields.keys().find(|field| !expected.contains(&field.as_str())) {
        let problem = format!("{} is not a field of it", Value::from(shortened(unknown)));
        return Err(ConfigError::new(problem, quoted(expected)));
    }
    let required = |field: &str, allowed: &str| {
        fields
            .get(field)
            .copied()
            .ok_or_else(|| ConfigError::new(format!("\"{field}\" is missing"), allowed))
    };
    let value = number("value", required("value", TOKENS)?, TOKENS, |_| true)?;
    let ts = number("ts", required("ts", EPOCH)?, EPOCH, |ts| ts.abs() <= MAX_EPOCH)?;
    let (mut prior, mut log) = (None, None);
    match limit {
        Limit::SlidingWindow(_) => {
            prior = Some(number("prior", required("prior", TOKENS)?, TOKENS, |_| true)?);
        }
        Limit::SlidingLog(_) => {
            let raw = required("log", LOG)?;
            let entries = serde_json::from_str::<Vec<f64>>(raw.get())
                .ok()
                .filter(|log| log.is_sorted() && log.len() as f64 <= MAX_LOG)
                .filter(|log| log.iter().all(|entry| entry.abs() <= MAX_EPOCH))
                .ok_or_else(|| ConfigError::field("log", raw.get(), LOG))?;
            log = Some(entries.into_iter().map(Micros::from_millis).collect());
        }
        _ => {}
    }
    Ok(State { value, ts: Micros::from_millis(ts), prior, log })
}

/// The state as JSON, as [`parse`] reads it.
pub fn to_json(state: &State) -> Value {
    let number = |number: f64| json_number("state", number).unwrap_or(Value::Null);
    let mut json = Map::new();
    json.insert("value".into(), number(state.value));
    json.insert("ts".into(), number(state.ts.as_millis()));
    if let Some(prior) = state.prior {
        json.insert("prior".into(), number(prior));
    }
    if let Some(log) = &state.log {
        json.insert("log".into(), log.iter().map(|entry| number(entry.as_millis())).collect());
    }
    Value::Object(json)
}
