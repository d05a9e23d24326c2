//! The state of a limit as JSON: `{"value": 3, "ts": <epoch ms>}`; with `prior` for a sliding window, `log` (epoch ms,
//! oldest first) for a sliding log, `added` for a fixed window with a changed config, and `leases` for a concurrency
//! limit: for each taken slot the id of its [`Lease`], in thousandths, and the time when it expires (epoch ms).

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fields::{FieldError, Fields};
use crate::kinds::{self, Counters, Lease, Shape, Tokens};
use crate::numbers::{Amount, EpochMillis, MAX_LOG, MAX_SLOTS};
use crate::text::{quoted, shortened};
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

impl From<FieldError> for StateError {
    fn from(error: FieldError) -> StateError {
        match error {
            FieldError::Unknown { field, fields, .. } => StateError::new(
                format!("{} is not a field of this kind's state", Value::from(shortened(&field))),
                if fields.is_empty() { "none".into() } else { quoted(fields) },
            ),
            FieldError::Repeated { field } => {
                StateError::new(format!("\"{field}\" is given more than once"), "one value")
            }
            FieldError::Missing { field, allowed } => {
                StateError::new(format!("\"{field}\" is missing"), allowed)
            }
            FieldError::Invalid { field, value, allowed } => {
                StateError::new(format!("\"{field}\" is {value}"), allowed)
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensState {
    value: Amount,
    ts: EpochMillis,
}

/// The state of a fixed window, and the tokens that its window added, if known.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowState {
    value: Amount,
    ts: EpochMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<Amount>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountersState {
    value: Amount,
    ts: EpochMillis,
    prior: Amount,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogState {
    value: Amount,
    ts: EpochMillis,
    log: Log,
}

/// The state of an unlimited key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoState {}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeasesState {
    value: Amount,
    ts: EpochMillis,
    leases: Leases,
}

/// For each slot the id of its lease, and the time when it expires.
#[derive(Serialize)]
struct Leases(Vec<[EpochMillis; 2]>);

impl<'de> Deserialize<'de> for Leases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Leases, D::Error> {
        let pairs: Vec<Pair> = deserializer.deserialize_seq(Elements {
            allowed: "an array of at most 1000 pairs of epoch milliseconds",
            most: MAX_SLOTS as usize,
            fit: |_| true,
        })?;
        Ok(Leases(pairs.into_iter().map(|Pair(pair)| pair).collect()))
    }
}

struct Pair([EpochMillis; 2]);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pair, D::Error> {
        let allowed = "a pair of epoch milliseconds";
        let pair: Vec<EpochMillis> =
            deserializer.deserialize_seq(Elements { allowed, most: 2, fit: |_| true })?;
        pair.try_into().map(Pair).map_err(|_| D::Error::custom(allowed))
    }
}

/// One entry per token, oldest first.
#[derive(Serialize)]
struct Log(Vec<EpochMillis>);

impl<'de> Deserialize<'de> for Log {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Log, D::Error> {
        let log = Elements {
            allowed: "an array of at most 10000 epoch milliseconds, oldest first",
            most: MAX_LOG as usize,
            fit: <[EpochMillis]>::is_sorted,
        };
        deserializer.deserialize_seq(log).map(Log)
    }
}

/// Reads an array.
struct Elements<T> {
    /// The arrays that are allowed, in words.
    allowed: &'static str,
    /// The most elements.
    most: usize,
    fit: fn(&[T]) -> bool,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Vec<T>, A::Error> {
        let refused = || A::Error::invalid_value(Unexpected::Seq, &self);
        let mut elements = Vec::new();
        while let Some(element) = array.next_element().map_err(|_| refused())? {
            if elements.len() >= self.most {
                return Err(refused());
            }
            elements.push(element);
        }
        if (self.fit)(&elements) { Ok(elements) } else { Err(refused()) }
    }
}

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
    Ok(match limit.shape() {
        Some(Shape::Tokens) if limit.adds_windows() => {
            let WindowState { value, ts, added } = fields.read()?;
            let added = added.map(|added| added.0);
            State::Tokens(Tokens { value: value.0, ts: ts.into(), added })
        }
        Some(Shape::Tokens) => {
            let TokensState { value, ts } = fields.read()?;
            State::Tokens(Tokens { value: value.0, ts: ts.into(), added: None })
        }
        Some(Shape::Counters) => {
            let CountersState { value, ts, prior } = fields.read()?;
            State::Counters(Counters { value: value.0, prior: prior.0, ts: ts.into() })
        }
        Some(Shape::Log) => {
            let LogState { value: _, ts, log: Log(log) } = fields.read()?;
            let entries = log.into_iter().map(Micros::from).collect();
            State::Log(kinds::Log { entries, ts: ts.into() })
        }
        Some(Shape::Leases) => {
            let LeasesState { value: _, ts, leases: Leases(leases) } = fields.read()?;
            let lease = |[id, expires_at]: [EpochMillis; 2]| Lease {
                id: id.into(),
                expires_at: expires_at.into(),
            };
            let leases = leases.into_iter().map(lease).collect();
            State::Leases(kinds::Leases { leases, ts: ts.into() })
        }
        None => fields.read().map(|NoState {}| limit.initial_state(Micros(0), Micros(0)))?,
    })
}

/// Writes a state as JSON, as [`reported`](Limit::reported): with the tokens that a fixed window added, if the
/// state has them.
pub fn reported(state: &State) -> Value {
    match state {
        &State::Tokens(Tokens { value, ts, added: Some(added) }) => {
            let (value, ts, added) = (Amount(value), ts.into(), Some(Amount(added)));
            serde_json::to_value(WindowState { value, ts, added }).unwrap_or_default()
        }
        state => to_json(state),
    }
}

/// Writes a state as JSON, in the form that [`parse`] reads, without the tokens that a fixed window added: the JSON of
/// the Convex component.
pub fn to_json(state: &State) -> Value {
    let (value, ts) = (Amount(state.value()), EpochMillis::from(state.ts()));
    let json = match state {
        State::Tokens(_) => serde_json::to_value(TokensState { value, ts }),
        State::Counters(counters) => {
            let prior = Amount(counters.prior);
            serde_json::to_value(CountersState { value, ts, prior })
        }
        State::Log(log) => {
            let log = Log(log.entries.iter().copied().map(EpochMillis::from).collect());
            serde_json::to_value(LogState { value, ts, log })
        }
        State::Leases(leases) => {
            let pair = |lease: &Lease| [lease.id.into(), lease.expires_at.into()];
            let leases = Leases(leases.leases.iter().map(pair).collect());
            serde_json::to_value(LeasesState { value, ts, leases })
        }
    };
    json.unwrap_or_default()
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
