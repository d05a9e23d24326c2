//! A limit, its statements, and their results.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::statement::parameters;
use crate::{Connection, Error, Headers, statement};

/// A limit: its name, its config unless it is defined in the database, and the tokens that a call takes.
///
/// The role needs EXECUTE on `rl_limit`; for a layer, on `rl_headers`, too; for [several](crate::RateLimitLayer::and),
/// on `rl_limit_all` and `rl_headers_all` in their place.
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) config: Option<String>,
    pub(crate) count: f64,
    pub(crate) schema: String,
}

impl Limit {
    /// The limit with this name, defined in the database by `rl_define`. A call takes 1 token.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), config: None, count: 1.0, schema: String::new() }
    }

    /// Passes this config with each call, so that the name need not be defined: the same JSON as for `rl_define`. If
    /// the name is defined, calls fail with 42501, unless the role may define limits.
    pub fn config(self, config: Value) -> Self {
        Self { config: Some(config.to_string()), ..self }
    }

    /// The tokens that a call takes, 0 to 1e15; otherwise calls fail with 22023. With 0 it takes none, and is denied
    /// while the key is blocked or in debt.
    pub fn count(self, count: f64) -> Self {
        Self { count, ..self }
    }

    /// The schema of the functions. Default: found by the `search_path`.
    pub fn schema(self, schema: &str) -> Self {
        Self { schema: format!("\"{}\".", schema.replace('"', "\"\"")), ..self }
    }

    /// Takes the tokens for a key, `""` for a limit that everyone shares. In a transaction they are taken if, and only
    /// if, it commits; an error aborts it. A denial takes nothing, and is not an error.
    ///
    /// # Errors
    /// Errors of the database: 42704 if the name is not defined and there is no config; 22023 if an argument is
    /// refused, such as a key of more than 1,024 bytes; a serialization failure. And errors of the driver.
    pub async fn take(&self, db: &mut impl Connection, key: &str) -> Result<Decision, Error> {
        let sql = statement::one(&self.schema, Headers::Off);
        let count = self.count.to_string();
        let values = [Some(&*self.name), Some(key), Some(&count), self.config.as_deref()];
        let text = db.text(&sql, &parameters(&sql, values)).await?;
        Ok(Decision::of(&parsed(&text)?["row"]))
    }
}

/// Parses the result of a statement.
pub(crate) fn parsed(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| Error::new(error, None))
}

/// The result of a call. Waits and times are rounded up to a millisecond.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the tokens were taken.
    pub ok: bool,
    /// Denied: the time until the same call can pass; None if it never can.
    pub retry_after: Option<Duration>,
    /// `retry_after` as a time, by the database's clock.
    pub retry_at: Option<SystemTime>,
    /// Tokens left after the call; negative: a debt. None: the key is exempt.
    pub remaining: Option<f64>,
    /// The maximum number of tokens of the limit. None: the key is exempt.
    pub capacity: Option<f64>,
    /// The time when it will be full again, by the database's clock.
    pub reset_at: Option<SystemTime>,
}

impl Decision {
    pub(crate) fn of(row: &Value) -> Self {
        let time = |field: &str| {
            let seconds = row[field].as_f64()?;
            let since = milliseconds(seconds.abs());
            if seconds < 0.0 {
                SystemTime::UNIX_EPOCH.checked_sub(since)
            } else {
                SystemTime::UNIX_EPOCH.checked_add(since)
            }
        };
        Self {
            ok: row["ok"] == true,
            retry_after: row["wait"].as_f64().map(milliseconds),
            retry_at: time("at"),
            remaining: row["remaining"].as_f64(),
            capacity: row["capacity"].as_f64(),
            reset_at: time("reset"),
        }
    }
}

/// Converts seconds to whole milliseconds, ignoring float error.
fn milliseconds(seconds: f64) -> Duration {
    Duration::from_millis((seconds * 1000.0).round() as u64)
}
