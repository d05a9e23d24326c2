//! Every error that a user can meet, and the one place that gives it SQLSTATE, message, detail and
//! hint.

#![forbid(unsafe_code)]

use std::ffi::CStr;

use ratelimit_core::config::ConfigError;
use ratelimit_core::requests::{Fault, RequestError};
use ratelimit_core::state::StateError;
use ratelimit_core::text::float_text;
use ratelimit_core::{Kind, Micros};
use ratelimit_limiter::error::LimiterError;
use ratelimit_pg::error::{PgError, Qualifier, Raised, Report, SqlState};
use serde_json::json;

use crate::schema::settings::{self, ErrorStyle};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. What it displays is the message, without a detail or a hint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument that may not be NULL is (22004).
    #[error("{0} must not be NULL")]
    NullArgument(&'static str),
    /// An argument has a value that is not allowed (22023).
    #[error("{argument} is {value}")]
    InvalidArgument { argument: &'static str, value: String, allowed: String },
    /// A config is not a valid one (22023).
    #[error("invalid rate limit config: {}", .0.problem)]
    Config(#[from] ConfigError),
    /// A state given to rl_calculate is not a valid one (22023).
    #[error("invalid rate limit state: {}", .0.problem)]
    State(StateError),
    /// The stored definition of a limit is not a valid config (22023).
    #[error("invalid config stored for rate limit \"{name}\": {}", .error.problem)]
    StoredConfig { name: String, error: ConfigError },
    /// A name that nobody defined was used without a config (42704); `kind` is what the function is for.
    #[error("rate limit \"{name}\" is not defined")]
    Undefined { name: String, kind: Kind },
    /// A limit that is keyed was used without a key (22004).
    #[error("rate limit \"{name}\" requires a key")]
    Keyed { name: String, kind: Kind },
    /// A config was brought for a defined name without EXECUTE on rl_define (42501).
    #[error("permission denied to override rate limit \"{name}\"")]
    InlineConfig { name: String },
    /// What is wrong with the `n`th request of a list, from 1 (the SQLSTATE of that).
    #[error("request {n}: {error}")]
    InRequest { n: usize, error: Box<Error> },
    /// With `throws`: the denial (PT429).
    #[error("rate limit exceeded")]
    RateLimited { name: String, retry_after: Option<Micros>, capacity: f64, forever: bool },
    /// A function that this kind of limit has no answer to (0A000).
    #[error("{function}() is not supported for {}", .kind.with_article())]
    NotForKind { function: &'static str, kind: Kind },
    /// A stored row that no call wrote, such as a NaN value (55000).
    #[error("rate limit \"{name}\" has a stored {column} of {}", float_text(*.value))]
    BadState { name: String, column: &'static str, value: f64 },
    /// A row has NULL where no call writes one: its owner allowed that (55000).
    #[error("a stored {column} is NULL")]
    NullState { column: &'static str },
    /// A row could not be written although nothing failed: a trigger or rule swallows it (55000).
    #[error("the rate limit could not be stored")]
    NotWritten { table: &'static str },
    /// The extension's tables are not where CREATE EXTENSION put them (42P01).
    #[error("table \"{table}\" of extension ratelimit is not in the extension's schema")]
    NoTable { table: &'static str },
    /// A column of the extension's tables no longer has the type that it was made with (42804).
    #[error("column \"{column}\" of extension ratelimit has been altered")]
    AlteredColumn { column: String },
    /// `ratelimit.access` is heap, and the table needs SQL (0A000).
    #[error("the table rateLimits can't be accessed directly")]
    NoHeap { why: &'static str },
    /// Rows that the call needs are locked, and it may not wait for them; answered as a denial
    /// (55P03 where that is not possible).
    #[error("could not lock the rows of a rate limit")]
    Busy,
    /// The table has changed since it was looked up; the call begins again (55000).
    #[error("the table rateLimits keeps being altered")]
    Moved,
    /// The shared memory of limits in memory could not be mapped into the session (53200).
    #[error("could not map the shared memory of the rate limiter")]
    NotMapped,
    /// A limit in memory is to be saved to a table that several nodes share (0A000).
    #[error("limits in memory can't be saved where Citus distributes the table rateLimits")]
    SavedOnCitus,
    /// All room for saved keys in memory is taken by such that are not saved yet (53200).
    #[error("no room in memory for another key of rate limit \"{name}\"")]
    NoRoom { name: String },
    /// PREPARE TRANSACTION after a change of a definition from or to one that is saved (0A000).
    #[error("cannot PREPARE a transaction that has changed the store of rate limit \"{name}\"")]
    Prepared { name: String },
    /// The system has no random bits to give (58000).
    #[error("could not draw a random number")]
    NoRandom,
    /// The SQL declaration of the function is not the one that this library was made for (42P13).
    #[error(
        "the SQL declaration of the function does not match the library of extension ratelimit"
    )]
    Declaration,
    /// A call that would take from a limit in the table, where nothing can be written (25006).
    #[error("cannot execute {call} in a read-only transaction")]
    ReadOnly { call: String, is_standby: bool },
    /// `ratelimit.clock` was set by a role that may not, before the library was loaded or before a REVOKE (42501).
    #[error("permission denied to set parameter \"ratelimit.clock\"")]
    ClockDenied { role: String },
    /// `ratelimit.clock` was set before the library was loaded, to what is no time (22023).
    #[error("invalid value for parameter \"ratelimit.clock\": \"{value}\"")]
    InvalidClock { value: String },
    /// Called while the query runs in parallel (25000).
    #[error("cannot execute {} during a parallel operation", .function.to_string_lossy())]
    Parallel { function: &'static CStr },
    /// A trigger function called otherwise than by its trigger (39P01).
    #[error("{function}() can only be called by its trigger")]
    NotATrigger { function: &'static str },
    /// rl_trigger fired by what it can't limit (39P01); `firing` is what a trigger that works says.
    #[error("rl_trigger() {problem}")]
    TriggerMisuse { problem: &'static str, firing: String },
    /// rl_trigger fired before the row is written, for a limit in memory (39P01); `firing` as above.
    #[error("rl_trigger() cannot take from in-memory rate limit \"{name}\" BEFORE the event")]
    TriggerTooEarly { name: String, firing: String },
    /// What is said below a port of the limiter, and is none of these (XX000).
    #[error("{0}")]
    Host(Box<dyn std::error::Error>),
    /// An option of rl_trigger names a column that the table doesn't have (42703).
    #[error("column \"{column}\" of table \"{table}\" does not exist")]
    NoColumn { column: String, table: String },
    /// The key or the count of rl_trigger is NULL in a row (22004).
    #[error("{option} column \"{column}\" of table \"{table}\" must not be NULL")]
    NullColumn { option: &'static str, column: String, table: String },
}

const NULL_KEY: &str = "A missing user id must not take from the limit that everybody shares. \
    To use that limit, omit the key.";

impl Error {
    /// Its SQLSTATE.
    pub fn sqlstate(&self) -> &SqlState {
        match self {
            Error::InRequest { error, .. } => error.sqlstate(),
            Error::NullArgument(_) | Error::NullColumn { .. } | Error::Keyed { .. } => b"22004",
            Error::InvalidArgument { .. }
            | Error::Config(_)
            | Error::State(_)
            | Error::StoredConfig { .. }
            | Error::InvalidClock { .. } => b"22023",
            Error::Parallel { .. } => b"25000",
            Error::Host(_) => b"XX000",
            Error::ReadOnly { .. } => b"25006",
            Error::NotATrigger { .. }
            | Error::TriggerMisuse { .. }
            | Error::TriggerTooEarly { .. } => b"39P01",
            Error::InlineConfig { .. } | Error::ClockDenied { .. } => b"42501",
            Error::NoColumn { .. } => b"42703",
            Error::Undefined { .. } => b"42704",
            Error::AlteredColumn { .. } => b"42804",
            Error::NoTable { .. } => b"42P01",
            Error::Declaration => b"42P13",
            Error::BadState { .. }
            | Error::NullState { .. }
            | Error::NotWritten { .. }
            | Error::Moved => b"55000",
            Error::NotMapped | Error::NoRoom { .. } => b"53200",
            Error::NoRandom => b"58000",
            Error::Busy => b"55P03",
            Error::NotForKind { .. }
            | Error::NoHeap { .. }
            | Error::SavedOnCitus
            | Error::Prepared { .. } => b"0A000",
            Error::RateLimited { .. } => b"PT429",
        }
    }

    fn detail(&self) -> Option<String> {
        Some(match self {
            Error::InRequest { error, .. } => return error.detail(),
            Error::InvalidArgument { allowed, .. }
            | Error::Config(ConfigError { allowed, .. })
            | Error::StoredConfig { error: ConfigError { allowed, .. }, .. }
            | Error::State(StateError { allowed, .. }) => format!("Allowed: {allowed}."),
            Error::InlineConfig { .. } => {
                "A config passed with the call overrides the definition; that requires EXECUTE on rl_define."
                    .into()
            }
            Error::Keyed { .. } => {
                "Its config has \"keyed\": true, so that a call without a key fails instead of taking from \
                 a limit that everybody shares."
                    .into()
            }
            Error::RateLimited { name, retry_after, .. } => {
                let retry_after = retry_after.map(Micros::ceil_to_millis);
                json!({
                    "kind": "RateLimited",
                    "name": name,
                    "retryAfter": retry_after.map(|wait| wait.0 / Micros::MILLISECOND.0),
                })
                .to_string()
            }
            Error::TriggerTooEarly { .. } => {
                "If row security or a constraint then rejected the row, its tokens would stay taken, \
                 whatever key it names."
                    .into()
            }
            Error::NotForKind { function: "rl_credit", .. } => {
                "Only token buckets and fixed windows can be credited.".into()
            }
            Error::NotForKind { kind, .. } if kind.has_leases() => {
                "Its slots are taken with leases.".into()
            }
            Error::NotForKind { .. } => "Only concurrency limits have leases.".into(),
            Error::NotWritten { table } => format!(
                "A trigger, a rule or row security on the table {table} prevents rows from being written or read."
            ),
            Error::NoHeap { why } => format!("The table {why}."),
            Error::ClockDenied { role } => {
                format!("It was set by role {role}, which lacks the privilege.")
            }
            Error::InvalidClock { .. } => settings::CLOCK_ALLOWED.to_string_lossy().into(),
            Error::SavedOnCitus => {
                "Each node counts for itself in memory, and would overwrite what others saved.".into()
            }
            Error::Prepared { .. } => {
                "Memory would have to know what became of it after a restart.".into()
            }
            Error::NoRoom { .. } => {
                "The keys that are there are not saved to the table yet, so none can be evicted.".into()
            }
            _ => return None,
        })
    }

    /// A hint that is the same for all calls.
    fn fixed_hint(&self) -> Option<&'static str> {
        Some(match self {
            Error::NullArgument("key") | Error::NullColumn { option: "key", .. } => NULL_KEY,
            Error::NoTable { .. } => {
                "Move it back, or DROP EXTENSION ratelimit and create it again."
            }
            Error::AlteredColumn { .. } => {
                "Restore its type, or DROP EXTENSION ratelimit and create it again."
            }
            Error::NoHeap { .. } => "SET ratelimit.access = auto;",
            Error::ReadOnly { is_standby: true, .. } => {
                "This server is a standby: make the call on the primary. Limits in memory can be used here, but \
                 each server counts them separately."
            }
            Error::ReadOnly { .. } => {
                "Only limits in memory can be used here: those whose config has \"store\": \"memory\"."
            }
            Error::Prepared { .. } => {
                "COMMIT it instead, or leave \"save\" and \"store\" as they are."
            }
            Error::SavedOnCitus => {
                "Leave \"save\" out of its config, or keep it in the table: \"store\": \"table\"."
            }
            Error::Declaration => "ALTER EXTENSION ratelimit UPDATE;",
            Error::NoColumn { .. } => {
                "Write the name as it is in pg_attribute, without quotes or spaces around it: 'key=author'."
            }
            _ => return None,
        })
    }

    fn hint(&self, qualifier: Qualifier) -> Option<String> {
        if let Some(hint) = self.fixed_hint() {
            return Some(hint.into());
        }
        Some(match self {
            Error::InRequest { error, .. } => return error.hint(qualifier),
            Error::Config(error) | Error::StoredConfig { error, .. } => {
                format!("For example: {}", example(error, &qualifier()))
            }
            Error::Undefined { name, kind } => {
                format!("Define it: {}", definition(name, *kind, kind.example(false), &qualifier()))
            }
            Error::Keyed { name, kind } => format!(
                "For example: SELECT * FROM {}{}({}, 'user-1'); in a list \"key\": \"user-1\", \
                 in a trigger 'key=author'.",
                qualifier(),
                if kind.has_leases() { "rl_acquire" } else { "rl_limit" },
                literal(name)
            ),
            Error::ClockDenied { role } => format!(
                "GRANT SET ON PARAMETER ratelimit.clock TO {role}; or, to return to the server's clock: RESET ALL;"
            ),
            Error::InlineConfig { name } => format!(
                "Call it without a config: SELECT * FROM {}rl_limit({}, $1);",
                qualifier(),
                literal(name)
            ),
            Error::RateLimited { retry_after, capacity, forever, .. } => {
                when_to_try(*retry_after, *capacity, *forever)
            }
            Error::NotForKind { kind, .. } if kind.has_leases() => format!(
                "Use {schema}rl_acquire(name, key) to take a slot and {schema}rl_release(lease) to release it.",
                schema = qualifier()
            ),
            Error::NotForKind { function: "rl_credit", .. } => {
                format!("Use {}rl_reset(name, key) to make the limit full again.", qualifier())
            }
            Error::NotForKind { .. } => {
                format!("SELECT * FROM {}rl_limit(name, key);", qualifier())
            }
            Error::BadState { name, column, value } => {
                let (schema, quoted) = (qualifier(), literal(name));
                let value = float_text(*value);
                let column_is = if *column == "log" { "ANY (log)" } else { column };
                format!(
                    "To make it full again: SELECT {schema}rl_reset({quoted}, $1); To find its key: \
                     SELECT key FROM {schema}rateLimits WHERE name = {quoted} AND '{value}' = {column_is};"
                )
            }
            Error::NullState { .. } => format!(
                "To make such limits full again: DELETE FROM {}rateLimits WHERE value IS NULL OR ts IS NULL;",
                qualifier()
            ),
            Error::TriggerMisuse { firing, .. } | Error::TriggerTooEarly { firing, .. } => format!(
                "For example: CREATE TRIGGER limit_messages {firing} EXECUTE FUNCTION \
                 {}rl_trigger('sendMessage', 'key=author');",
                qualifier()
            ),
            _ => return None,
        })
    }
}

impl Raised for Error {
    fn report(&self, qualifier: Qualifier) -> Report {
        let report = Report {
            sqlstate: *self.sqlstate(),
            message: self.to_string(),
            detail: self.detail(),
            hint: self.hint(qualifier),
        };
        match (settings::error_style(), self) {
            (ErrorStyle::Pgrst, Error::RateLimited { retry_after, .. }) => {
                for_postgrest(report, *retry_after)
            }
            _ => report,
        }
    }
}

/// A denial in the form that PostgREST takes status, headers and body of its answer from.
fn for_postgrest(report: Report, retry_after: Option<Micros>) -> Report {
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

/// When a call that was denied can succeed.
fn when_to_try(retry_after: Option<Micros>, capacity: f64, forever: bool) -> String {
    match retry_after.map(Micros::ceil_to_millis) {
        Some(Micros(0)) => "Try again at once: other transactions hold the limit's rows.".into(),
        Some(Micros::SECOND) => "Try again in 1 second.".into(),
        Some(wait) => format!("Try again in {} seconds.", wait.as_secs()),
        None if forever => "The key is blocked indefinitely.".into(),
        None => format!(
            "The call can never succeed: the count is more than a limit of capacity {} can give.",
            float_text(capacity)
        ),
    }
}

/// A definition as the config that has an error may have been meant.
fn example(error: &ConfigError, schema: &str) -> String {
    let kind = error.kind.unwrap_or(Kind::TokenBucket);
    definition("sendMessage", kind, kind.example(error.calendar), schema)
}

/// The call that defines a limit of a kind.
fn definition(name: &str, kind: Kind, arguments: &str, schema: &str) -> String {
    let (name, builder) = (literal(name), kind.builder());
    format!("SELECT {schema}rl_define({name}, {schema}{builder}({arguments}));")
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

impl From<PgError> for Error {
    fn from(error: PgError) -> Error {
        match error {
            PgError::NullArgument(argument) => Error::NullArgument(argument),
            PgError::InvalidArgument { argument, value, allowed } => {
                Error::InvalidArgument { argument, value, allowed }
            }
            PgError::AlteredColumn { column } => Error::AlteredColumn { column },
            PgError::Declaration => Error::Declaration,
            PgError::NotMapped => Error::NotMapped,
            PgError::Parallel { function } => Error::Parallel { function },
            PgError::ReadOnly { call, is_standby } => Error::ReadOnly { call, is_standby },
        }
    }
}

impl From<LimiterError> for Error {
    fn from(error: LimiterError) -> Error {
        match error {
            LimiterError::InvalidArgument { argument, value, allowed } => {
                Error::InvalidArgument { argument, value, allowed }
            }
            LimiterError::BadCount { count, allowed } => {
                Error::InvalidArgument { argument: "count", value: float_text(count), allowed }
            }
            LimiterError::Config(error) => Error::Config(error),
            LimiterError::StoredConfig { name, error } => Error::StoredConfig { name, error },
            LimiterError::Undefined { name, kind } => Error::Undefined { name, kind },
            LimiterError::Keyed { name, kind } => Error::Keyed { name, kind },
            LimiterError::InlineConfig { name } => Error::InlineConfig { name },
            LimiterError::InRequest { n, error } => {
                Error::InRequest { n, error: Box::new(Error::from(*error)) }
            }
            LimiterError::NotForKind { function, kind } => Error::NotForKind { function, kind },
            LimiterError::BadState { name, column, value } => {
                Error::BadState { name, column, value }
            }
            LimiterError::NotWritten { table } => Error::NotWritten { table },
            LimiterError::NoRoom { name } => Error::NoRoom { name },
            LimiterError::Busy => Error::Busy,
            LimiterError::Host(error) => {
                error.downcast().map_or_else(Error::Host, |error: Box<Error>| *error)
            }
        }
    }
}

/// What a port of the limiter says. Those that it understands itself are its own.
impl From<Error> for LimiterError {
    fn from(error: Error) -> LimiterError {
        match error {
            Error::Config(error) => LimiterError::Config(error),
            Error::StoredConfig { name, error } => LimiterError::StoredConfig { name, error },
            Error::NotWritten { table } => LimiterError::NotWritten { table },
            Error::Busy => LimiterError::Busy,
            other => LimiterError::Host(Box::new(other)),
        }
    }
}
