//! Every error that a user can meet, and the one place that gives it SQLSTATE, message, detail and
//! hint. Raising is done elsewhere (`call`); nothing here touches Postgres.

#![forbid(unsafe_code)]

use std::ffi::CStr;

use ratelimit_core::config::ConfigError;
use ratelimit_core::requests::{Fault, RequestError};
use ratelimit_core::state::StateError;
use ratelimit_core::text::float_text;
use ratelimit_core::{Kind, Micros};
use serde_json::json;

/// An SQLSTATE, its five characters.
pub type SqlState = [u8; 5];

pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug)]
pub enum Error {
    /// An argument that may not be NULL is (22004).
    NullArgument(&'static str),
    /// An argument has a value that is not allowed (22023).
    InvalidArgument { argument: &'static str, value: String, allowed: String },
    /// A config is not a valid one (22023).
    Config(ConfigError),
    /// A state given to rl_calculate is not a valid one (22023).
    State(StateError),
    /// The stored definition of a limit is not a valid config (22023).
    StoredConfig { name: String, error: ConfigError },
    /// A name that nobody defined was used without a config (42704).
    Undefined { name: String },
    /// A config was brought for a defined name without EXECUTE on rl_define (42501).
    InlineConfig { name: String },
    /// What is wrong with the `n`th request of a list, from 1 (the SQLSTATE of that).
    InRequest { n: usize, error: Box<Error> },
    /// With `throws`: the denial (PT429).
    RateLimited { name: String, retry_after: Option<Micros>, capacity: f64 },
    /// A function that this kind of limit has no answer to (0A000).
    NotForKind { function: &'static str, kind: Kind },
    /// A stored row that no call wrote, such as a NaN value (55000).
    BadState { name: String, column: &'static str, value: f64 },
    /// A row has NULL where no call writes one: its owner allowed that (55000).
    NullState { column: &'static str },
    /// A row could not be written although nothing failed: a trigger or rule swallows it (55000).
    NotWritten { table: &'static str },
    /// The extension's tables are not where CREATE EXTENSION put them (42P01).
    NoTable { table: &'static str },
    /// A column of the extension's tables no longer has the type that it was made with (42804).
    AlteredColumn { column: String },
    /// `ratelimit.access` is heap, and the table needs SQL (0A000).
    NoHeap { why: &'static str },
    /// Rows that the call needs are locked, and it may not wait for them; answered as a denial
    /// (55P03 where that is not possible).
    Busy,
    /// The table has changed since it was looked up; the call begins again (55000).
    Moved,
    /// The SQL declaration of the function is not the one that this library was made for (42P13).
    Declaration,
    /// Called while the query runs in parallel (25000).
    Parallel { function: &'static CStr },
    /// A trigger function called otherwise than by its trigger (39P01).
    NotATrigger { function: &'static str },
    /// rl_trigger fired by what it can't limit (39P01); `firing` is what a trigger that works says.
    TriggerMisuse { problem: &'static str, firing: String },
    /// An option of rl_trigger names a column that the table doesn't have (42703).
    NoColumn { column: String, table: String },
    /// The key or the count of rl_trigger is NULL in a row (22004).
    NullColumn { option: &'static str, column: String, table: String },
}

/// An error as Postgres reports it.
pub struct Report {
    pub sqlstate: SqlState,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

const SOME_CONFIG: &str = r#"For example: SELECT rl_define('sendMessage', rl_token_bucket(rate => 10, period => '1 minute'));"#;

const NULL_KEY: &str =
    "A missing user id must not become everybody's limit; for that, leave the key out.";

impl Error {
    /// The report of this error.
    pub fn report(self) -> Report {
        let report = |sqlstate: &SqlState, message: String| Report {
            sqlstate: *sqlstate,
            message,
            detail: None,
            hint: None,
        };
        match self {
            Error::NullArgument(argument) => Report {
                hint: (argument == "key").then(|| NULL_KEY.into()),
                ..report(b"22004", format!("{argument} must not be NULL"))
            },
            Error::InvalidArgument { argument, value, allowed } => Report {
                detail: Some(format!("Allowed: {allowed}.")),
                ..report(b"22023", format!("{argument} is {value}"))
            },
            Error::Config(error) => config_report("invalid rate limit config", error),
            Error::State(error) => Report {
                detail: Some(format!("Allowed: {}.", error.allowed)),
                ..report(b"22023", format!("invalid rate limit state: {}", error.problem))
            },
            Error::StoredConfig { name, error } => {
                config_report(&format!("invalid config stored for rate limit \"{name}\""), error)
            }
            Error::Undefined { name } => Report {
                hint: Some(format!(
                    "Define it: SELECT rl_define({}, rl_token_bucket(rate => 10, period => '1 minute'));",
                    literal(&name)
                )),
                ..report(b"42704", format!("rate limit \"{name}\" is not defined"))
            },
            Error::InlineConfig { name } => Report {
                detail: Some(
                    "A config in the call overrides the definition, which needs EXECUTE on rl_define."
                        .into(),
                ),
                hint: Some(format!(
                    "Call it without a config: SELECT * FROM rl_limit({}, $1);",
                    literal(&name)
                )),
                ..report(b"42501", format!("permission denied to override rate limit \"{name}\""))
            },
            Error::InRequest { n, error } => {
                let inner = error.report();
                Report { message: format!("request {n}: {}", inner.message), ..inner }
            }
            Error::RateLimited { name, retry_after, capacity } => {
                let retry_after = retry_after.map(Micros::ceil_to_millis);
                Report {
                    detail: Some(
                        json!({
                            "kind": "RateLimited",
                            "name": name,
                            "retryAfter": retry_after.map(|wait| wait.0 / Micros::MILLISECOND.0),
                        })
                        .to_string(),
                    ),
                    hint: Some(match retry_after {
                        Some(Micros(0)) => "Try again at once: other transactions hold it.".into(),
                        Some(Micros::SECOND) => "Try again in 1 second.".into(),
                        Some(wait) => format!("Try again in {} seconds.", wait.as_secs()),
                        None => format!(
                            "It can never succeed: the count is more than a limit of capacity {} can give.",
                            float_text(capacity)
                        ),
                    }),
                    ..report(b"PT429", "rate limit exceeded".into())
                }
            }
            Error::NotForKind { function, kind } => Report {
                detail: Some("Only a token bucket and a fixed window hold tokens to give back to.".into()),
                hint: Some("rl_reset(name, key) forgets what was taken.".into()),
                ..report(b"0A000", format!("{function}() is not supported for a {kind}"))
            },
            Error::BadState { name, column, value } => {
                let (quoted, value) = (literal(&name), float_text(value));
                let column_is = if column == "log" { "ANY (log)" } else { column };
                Report {
                    hint: Some(format!(
                        "SELECT rl_reset({quoted}, $1); makes it full again. Its key: \
                         SELECT key FROM rateLimits WHERE name = {quoted} AND '{value}' = {column_is};"
                    )),
                    ..report(b"55000", format!("rate limit \"{name}\" has a stored {column} of {value}"))
                }
            }
            Error::NullState { column } => Report {
                hint: Some(
                    "DELETE FROM rateLimits WHERE value IS NULL OR ts IS NULL; makes such limits full again."
                        .into(),
                ),
                ..report(b"55000", format!("a stored {column} is NULL"))
            },
            Error::NotWritten { table } => Report {
                detail: Some(format!(
                    "A trigger, a rule or row security on the table {table} keeps rows from being written or read."
                )),
                ..report(b"55000", "the rate limit could not be stored".into())
            },
            Error::NoTable { table } => Report {
                hint: Some("Move it back, or DROP EXTENSION ratelimit and create it again.".into()),
                ..report(
                    b"42P01",
                    format!("table \"{table}\" of extension ratelimit is not in the extension's schema"),
                )
            },
            Error::AlteredColumn { column } => Report {
                hint: Some("Give it its type back, or DROP EXTENSION ratelimit and create it again.".into()),
                ..report(
                    b"42804",
                    format!("column \"{column}\" of extension ratelimit has been altered"),
                )
            },
            Error::NoHeap { why } => Report {
                detail: Some(format!("The table {why}.")),
                hint: Some("SET ratelimit.access = auto;".into()),
                ..report(b"0A000", "the table rateLimits can't be accessed directly".into())
            },
            Error::Busy => report(b"55P03", "could not obtain the rows of a rate limit".into()),
            Error::Moved => report(b"55000", "the table rateLimits keeps being altered".into()),
            Error::Declaration => Report {
                hint: Some("ALTER EXTENSION ratelimit UPDATE;".into()),
                ..report(
                    b"42P13",
                    "the function's declaration does not fit the library of extension ratelimit".into(),
                )
            },
            Error::Parallel { function } => report(
                b"25000",
                format!("cannot execute {} during a parallel operation", function.to_string_lossy()),
            ),
            Error::NotATrigger { function } => {
                report(b"39P01", format!("{function}() can only be called by its trigger"))
            }
            Error::TriggerMisuse { problem, firing } => Report {
                hint: Some(format!(
                    "For example: CREATE TRIGGER limit_messages {firing} EXECUTE FUNCTION rl_trigger('sendMessage', 'key=author');"
                )),
                ..report(b"39P01", format!("rl_trigger() {problem}"))
            },
            Error::NoColumn { column, table } => Report {
                hint: Some(
                    "Write the name as the catalog has it, without quotes and blanks around it: 'key=author'."
                        .into(),
                ),
                ..report(b"42703", format!("column \"{column}\" of table \"{table}\" does not exist"))
            },
            Error::NullColumn { option, column, table } => Report {
                hint: (option == "key").then(|| NULL_KEY.into()),
                ..report(
                    b"22004",
                    format!("{option} column \"{column}\" of table \"{table}\" must not be NULL"),
                )
            },
        }
    }
}

impl Error {
    /// The report of this error where PostgREST is to answer it: a denial in the form that PostgREST
    /// takes status, headers and body from, any other error as it is.
    pub fn report_for_postgrest(self) -> Report {
        let Error::RateLimited { retry_after, .. } = self else { return self.report() };
        let report = self.report();
        let headers = match retry_after {
            Some(wait) => json!({ "Retry-After": wait.ceil_to_secs().to_string() }),
            None => json!({}),
        };
        let body = json!({
            "code": "PT429",
            "message": report.message,
            "details": report.detail,
            "hint": report.hint,
        });
        Report {
            sqlstate: *b"PGRST",
            message: body.to_string(),
            detail: Some(json!({ "status": 429, "headers": headers }).to_string()),
            hint: None,
        }
    }
}

fn config_report(what: &str, error: ConfigError) -> Report {
    Report {
        sqlstate: *b"22023",
        message: format!("{what}: {}", error.problem),
        detail: Some(format!("Allowed: {}.", error.allowed)),
        hint: Some(SOME_CONFIG.into()),
    }
}

/// A name as an SQL literal, for hints that can be typed as they stand.
fn literal(name: &str) -> String {
    format!("'{}'", name.replace('\'', "''"))
}

impl From<RequestError> for Error {
    fn from(RequestError { n, fault }: RequestError) -> Error {
        let error = match fault {
            Fault::Null(argument) => Error::NullArgument(argument),
            Fault::Invalid { argument, value, allowed } => {
                Error::InvalidArgument { argument, value, allowed }
            }
        };
        if n == 0 { error } else { Error::InRequest { n, error: Box::new(error) } }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}
