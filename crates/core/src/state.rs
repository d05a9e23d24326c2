//! The state of a limit as JSON: `{"value": 3, "ts": <epoch ms>}`; with `prior` for a sliding window, `log` (epoch ms,
//! oldest first) for a sliding log, `added` for a fixed window with a changed config, and `leases` for a concurrency
//! limit: for each taken slot the id of its [`Lease`], in thousandths, and the time when it expires (epoch ms).

use serde_json::{Value, json};

use crate::fields::{FieldError, Fields, Reader};
use crate::kinds::{Counters, Lease, Leases, Log, Shape, Tokens};
use crate::numbers::{AMOUNT, EPOCH_MILLIS, MAX_LOG, MAX_SLOTS, epoch_millis};
use crate::text::{number, quoted, shortened};
use crate::{Limit, Micros, State};

/// The maximum length of a state, in bytes of JSON: a log has 10,000 entries of up to 20 digits.
pub const MAX_BYTES: usize = 1_000_000;

/// An invalid state: the field, its value and the allowed values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{problem} (allowed: {allowed})")]
#[non_exhaustive]
pub struct StateError {
    /// The field and its value: `"ts" is "now"`.
    pub problem: String,
    /// The allowed values: `epoch milliseconds`.
    pub allowed: String,
}

impl StateError {
    fn new(problem: String, allowed: impl Into<String>) -> StateError {
        StateError { problem, allowed: allowed.into() }
    }

    /// Refuses a state of more than [`MAX_BYTES`] bytes of JSON.
    pub fn too_long(bytes: usize) -> StateError {
        StateError::new(format!("it is {bytes} bytes long"), format!("at most {MAX_BYTES} bytes"))
    }
}

/// One entry per token, oldest first.
const LOG: Reader<Vec<Micros>> = Reader {
    allowed: "an array of at most 10000 epoch milliseconds, oldest first",
    read: |given| {
        let log = given.list(MAX_LOG as usize, epoch_millis)?;
        log.is_sorted().then(|| log.into_iter().map(Micros::from_millis).collect())
    },
};

/// For each slot the id of its lease, and the time when it expires.
const LEASES: Reader<Vec<Lease>> = Reader {
    allowed: "an array of at most 1000 pairs of epoch milliseconds",
    read: |given| {
        given.list(MAX_SLOTS as usize, |pair| match *pair.list(2, epoch_millis)? {
            [id, expires_at] => Some(Lease {
                id: Micros::from_millis(id),
                expires_at: Micros::from_millis(expires_at),
            }),
            _ => None,
        })
    },
};

/// Reads the state of a limit. The caller checks that the text is no longer than [`MAX_BYTES`].
///
/// ```
/// use ratelimit_core::{config, state};
///
/// let limit = config::parse(r#"{"kind": "token bucket", "rate": 10, "period": "1 minute"}"#)?;
/// let json = r#"{"ts":1798804800000,"value":3}"#;
/// let read = state::parse(json, &limit)?;
/// assert_eq!(read.value(), 3.0);
/// assert_eq!(state::to_json(&read).to_string(), json);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`StateError`] for a field that is missing, repeated, unknown, of a wrong type or out of range,
/// and for one that the limit's kind doesn't have.
pub fn parse(json: &str, limit: &Limit) -> Result<State, StateError> {
    let fields = Fields::from_json(json).ok_or_else(|| {
        StateError::new(
            format!("it is {}", shortened(json)),
            r#"an object such as {"value": 3, "ts": 1798804800000}"#,
        )
    })?;
    read(&fields, limit).map_err(|error| {
        let (problem, allowed) = error.in_words(|field, _| {
            let field = Value::from(shortened(field));
            let allowed = quoted(fields_of(limit));
            let allowed = if allowed.is_empty() { "none".into() } else { allowed };
            (format!("{field} is not a field of this kind's state"), allowed)
        });
        StateError::new(problem, allowed)
    })
}

/// The fields of a limit's state.
fn fields_of(limit: &Limit) -> &'static [&'static str] {
    match limit.shape() {
        Some(Shape::Tokens) if limit.adds_windows() => &["value", "ts", "added"],
        Some(Shape::Tokens) => &["value", "ts"],
        Some(Shape::Counters) => &["value", "ts", "prior"],
        Some(Shape::Log) => &["value", "ts", "log"],
        Some(Shape::Leases) => &["value", "ts", "leases"],
        None => &[],
    }
}

fn read(fields: &Fields, limit: &Limit) -> Result<State, FieldError> {
    fields.only(&[fields_of(limit)])?;
    let Some(shape) = limit.shape() else {
        return Ok(limit.initial_state(Micros(0), Micros(0)));
    };
    let value = fields.required("value", &AMOUNT)?;
    let ts = fields.required("ts", &EPOCH_MILLIS)?;
    Ok(match shape {
        Shape::Tokens => {
            State::Tokens(Tokens { value, ts, added: fields.optional("added", &AMOUNT)? })
        }
        Shape::Counters => {
            State::Counters(Counters { value, prior: fields.required("prior", &AMOUNT)?, ts })
        }
        Shape::Log => State::Log(Log { entries: fields.required("log", &LOG)?, ts }),
        Shape::Leases => State::Leases(Leases { leases: fields.required("leases", &LEASES)?, ts }),
    })
}

/// Writes a state as JSON, as [`reported`](Limit::reported): with the tokens that a fixed window added, if the
/// state has them.
pub fn reported(state: &State) -> Value {
    let mut json = to_json(state);
    if let State::Tokens(Tokens { added: Some(added), .. }) = state {
        json["added"] = number(*added);
    }
    json
}

/// Writes a state as JSON, in the form that [`parse`] reads, without the tokens that a fixed window added: the JSON of
/// the Convex component.
pub fn to_json(state: &State) -> Value {
    let mut json = json!({ "value": number(state.value()), "ts": state.ts().to_json() });
    match state {
        State::Tokens(_) => {}
        State::Counters(counters) => json["prior"] = number(counters.prior),
        State::Log(log) => json["log"] = log.entries.iter().map(|at| at.to_json()).collect(),
        State::Leases(leases) => {
            let pair = |lease: &Lease| json!([lease.id.to_json(), lease.expires_at.to_json()]);
            json["leases"] = leases.leases.iter().map(pair).collect();
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn limit(kind: &str) -> Limit {
        let json = serde_json::json!({ "kind": kind, "rate": 3, "period": 1000 });
        config::parse(&json.to_string()).unwrap()
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for (kind, json) in [
            ("token bucket", r#"{"ts":1798804800000.001,"value":-0.5}"#),
            ("fixed window", r#"{"ts":-1,"value":1000000000000000}"#),
            ("sliding window", r#"{"prior":2,"ts":0,"value":1e-12}"#),
            ("sliding log", r#"{"log":[],"ts":0,"value":0}"#),
            ("sliding log", r#"{"log":[-1,0.5,0.5],"ts":0.5,"value":3}"#),
        ] {
            let state = parse(json, &limit(kind)).unwrap();
            assert_eq!(to_json(&state).to_string(), json, "{kind}");
        }
    }

    #[test]
    fn numbers_are_what_their_digits_say() {
        let value = |digits: &str| {
            let json = format!(r#"{{"value": {digits}, "ts": 0}}"#);
            parse(&json, &limit("token bucket")).map(|state| state.value())
        };
        // Half a unit in the last place above 1, and a digit more, thousands of digits later.
        let half = "1.00000000000000011102230246251565404236316680908203125";
        assert_eq!(value(half), Ok(1.0));
        let above = format!("{half}{}1", "0".repeat(5_000));
        assert_eq!(value(&above), Ok(1.0f64.next_up()));
        assert!(value(&"9".repeat(400)).is_err());
        assert_eq!(value(&format!("0.{}1", "0".repeat(400))), Ok(0.0));
    }

    #[test]
    fn an_error_says_field_value_and_what_is_allowed() {
        for (kind, json, message) in [
            ("token bucket", r#"{"ts": 0}"#, r#""value" is missing (allowed: a finite number)"#),
            (
                "token bucket",
                r#"{"ts": 0, "value": 1, "log": []}"#,
                r#""log" is not a field of this kind's state (allowed: "value", "ts")"#,
            ),
            (
                "sliding window",
                r#"{"ts": 0, "value": 1, "ts": 1, "prior": 0}"#,
                r#""ts" is given more than once (allowed: one value)"#,
            ),
            (
                "sliding log",
                r#"{"ts": 0, "value": 1, "log": [1, 0.5]}"#,
                r#""log" is [1, 0.5] (allowed: an array of at most 10000 epoch milliseconds, oldest first)"#,
            ),
        ] {
            assert_eq!(parse(json, &limit(kind)).unwrap_err().to_string(), message);
        }
        let log = |entries: usize| {
            let json =
                format!(r#"{{"ts": 0, "value": 1, "log": [0{}]}}"#, ",0".repeat(entries - 1));
            parse(&json, &limit("sliding log"))
        };
        assert!(log(10_000).is_ok());
        assert!(log(10_001).is_err());
    }
}
