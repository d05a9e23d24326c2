//! Every error that a user can meet. The enum of each layer has the messages of its errors; this file adds SQLSTATE,
//! detail and hint.

#![forbid(unsafe_code)]

use ratelimit_core::config::ConfigError;
use ratelimit_core::requests::RequestError;
use ratelimit_core::state::StateError;
use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, Kind, Micros};
use ratelimit_limiter::error::{LimiterError, NoHolds};
use ratelimit_pg::error::{PgError, Raised, Report, SCHEMA};
use ratelimit_pg::values::utf8;
use serde_json::json;

use crate::schema::settings::{self, ErrorStyle};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the extension. Displays its message, without detail and hint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the limiter. Errors of its host come back as this type.
    #[error(transparent)]
    Limiter(LimiterError),
    #[error(transparent)]
    Pg(#[from] PgError),
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A state given to rl_calculate is not valid.
    #[error("invalid rate limit state: {}", .0.problem)]
    State(StateError),
    /// With `throws`, or in a trigger: the denial, with the trigger's message for end users.
    #[error("rate limit exceeded")]
    RateLimited {
        name: String,
        retry_after: Option<Micros>,
        capacity: f64,
        forever: bool,
        message: Option<String>,
    },
    /// A row with a NULL that no call writes: the owner dropped the constraint.
    #[error("a stored {column} is NULL")]
    NullState { table: &'static str, column: &'static str },
    /// A table of the extension is not where CREATE EXTENSION put it.
    #[error("table \"{table}\" of extension ratelimit is not in the extension's schema")]
    NoTable { table: &'static str },
    /// `ratelimit.access` is heap, and the table needs SQL.
    #[error("the table rateLimits can't be accessed directly")]
    NoHeap { why: &'static str },
    /// The table has changed since it was looked up. The call begins again, and raises this after several tries.
    #[error("the table rateLimits keeps being altered")]
    Moved,
    /// A saved limit with a table that several nodes share.
    #[error("limits in memory can't be saved where Citus distributes the table rateLimits")]
    SavedOnCitus,
    /// A hold with a table that several nodes share.
    #[error("tokens can't be held where Citus distributes the table rateLimits")]
    HoldsOnCitus,
    /// A bounded wait for rows of a table that several nodes share.
    #[error("lock_wait is not supported where Citus distributes the table rateLimits")]
    LockWaitOnCitus,
    /// PREPARE TRANSACTION after a definition was changed from or to a saved one.
    #[error("cannot PREPARE a transaction that has changed the store of rate limit \"{name}\"")]
    Prepared { name: String },
    /// The definition to be dropped is the plan of keys.
    #[error("rate limit \"{plan}\" is the plan of {keys} key{}", if *.keys == 1 { "" } else { "s" })]
    PlanInUse { plan: String, keys: i64 },
    /// The system has no random bits.
    #[error("could not draw a random number")]
    NoRandom,
    /// `ratelimit.clock` was set by a role without the privilege, before the library was loaded or before a REVOKE.
    #[error("permission denied to set parameter \"ratelimit.clock\"")]
    ClockDenied { role: String },
    /// `ratelimit.clock` was set before the library was loaded, to an invalid value.
    #[error("invalid value for parameter \"ratelimit.clock\": \"{value}\"")]
    InvalidClock { value: String },
    /// A trigger function was not called by a trigger.
    #[error("{function}() can only be called by its trigger")]
    NotATrigger { function: &'static str },
    /// A trigger calls rl_trigger in a way that can't be limited; `firing`: the clause of one that works.
    #[error("rl_trigger() {problem}")]
    TriggerMisuse { problem: &'static str, firing: String },
    /// A BEFORE trigger calls rl_trigger for a limit in memory; `firing` as above.
    #[error("rl_trigger() cannot take from in-memory rate limit \"{name}\" BEFORE the event")]
    TriggerTooEarly { name: String, firing: String },
    /// An option of rl_trigger names a column that the table doesn't have.
    #[error("column \"{column}\" of table \"{table}\" does not exist")]
    NoColumn { column: String, table: String },
    /// A row has NULL in a column that rl_trigger reads.
    #[error("{option} column \"{column}\" of table \"{table}\" must not be NULL")]
    NullColumn { option: &'static str, column: String, table: String },
    /// A NULL among the texts of rl_key: the `n`th, from 1.
    #[error("part {n} of the key must not be NULL")]
    NullPart { n: usize },
}

const NULL_KEY: &str = "A missing user id must not take from the limit that everybody shares. \
    To use that limit, omit the key.";

impl Raised for Error {
    fn report(&self) -> Report {
        let report = |sqlstate| Report::new(sqlstate, self);
        match self {
            Error::Limiter(error) => of_limiter(error),
            Error::Pg(error) => of_pg(error),
            Error::Argument(error) => of_argument(error),
            Error::State(StateError { allowed, .. }) => report(b"22023").detail(only(allowed)),
            Error::RateLimited { name, retry_after, capacity, forever, message } => {
                let after = retry_after.map(Micros::ceil_to_millis);
                let detail = json!({
                    "kind": "RateLimited",
                    "name": name,
                    "retryAfter": after.map(|wait| wait.0 / Micros::MILLISECOND.0),
                });
                let hint = || when_to_try(after, *capacity, *forever);
                let denial = report(b"PT429")
                    .detail(detail.to_string())
                    .hint(message.clone().unwrap_or_else(hint));
                match settings::ERROR_STYLE.get() {
                    ErrorStyle::Pgrst => for_postgrest(denial, *retry_after, message.as_deref()),
                    _ => denial,
                }
            }
            Error::NullState { table: "rateLimits", .. } => report(b"55000").hint(format!(
                "To make such limits full again: \
                 DELETE FROM {SCHEMA}rateLimits WHERE kind IS NULL OR value IS NULL OR ts IS NULL;"
            )),
            Error::NullState { table, column } => report(b"55000").hint(format!(
                "To delete such rows: DELETE FROM {SCHEMA}{table} WHERE {column} IS NULL;"
            )),
            Error::NoTable { .. } => report(b"42P01")
                .hint("Move it back, or DROP EXTENSION ratelimit and create it again."),
            Error::NoHeap { why } => report(b"0A000")
                .detail(format!("The table {why}."))
                .hint("SET ratelimit.access = auto;"),
            Error::Moved => report(b"55000"),
            Error::SavedOnCitus => report(b"0A000")
                .detail("Each node counts for itself in memory, and would overwrite what others saved.")
                .hint("Leave \"save\" out of its config, or keep it in the table: \"store\": \"table\"."),
            Error::HoldsOnCitus => report(b"0A000")
                .detail("A hold and the tokens that it has taken change together, on one node.")
                .hint(take_and_give_back("name")),
            Error::LockWaitOnCitus => report(b"0A000")
                .hint(format!("Call it without: SELECT * FROM {SCHEMA}rl_limit_each($1);")),
            Error::Prepared { .. } => report(b"0A000")
                .detail("Memory would have to know what became of it after a restart.")
                .hint("COMMIT it instead, or leave \"save\" and \"store\" as they are."),
            Error::PlanInUse { plan, .. } => report(b"2BP01").hint(format!(
                "Give them another plan first. To list them: SELECT name, key FROM {SCHEMA}rl_config WHERE config = {};",
                literal(&format!("{{\"plan\": {}}}", json!(plan)))
            )),
            Error::NoRandom => report(b"58000"),
            Error::ClockDenied { role } => report(b"42501")
                .detail(format!("It was set by role {role}, which lacks the privilege."))
                .hint(format!(
                    "GRANT SET ON PARAMETER ratelimit.clock TO {role}; or, to return to the server's clock: \
                     RESET ALL;"
                )),
            Error::InvalidClock { .. } => {
                report(b"22023").detail(settings::CLOCK_ALLOWED.to_string_lossy())
            }
            Error::NotATrigger { .. } => report(b"39P01"),
            Error::TriggerMisuse { firing, .. } => {
                report(b"39P01").hint(example_trigger(firing))
            }
            Error::TriggerTooEarly { firing, .. } => report(b"39P01")
                .detail(
                    "If row security or a constraint then rejected the row, its tokens would stay taken, \
                     whatever key it names.",
                )
                .hint(example_trigger(firing)),
            Error::NoColumn { .. } => report(b"42703").hint(
                "Write the name as it is in pg_attribute, without quotes or spaces around it: 'key=author'.",
            ),
            Error::NullColumn { option: "key", .. } => report(b"22004").hint(NULL_KEY),
            Error::NullColumn { .. } | Error::NullPart { .. } => report(b"22004"),
        }
    }
}

fn of_limiter(error: &LimiterError) -> Report {
    let report = |sqlstate| Report::new(sqlstate, error);
    match error {
        LimiterError::Argument(error) => of_argument(error),
        LimiterError::Config(config)
        | LimiterError::ConfigOf(_, config)
        | LimiterError::StoredConfig(_, config) => report(b"22023")
            .detail(only(&config.allowed))
            .hint(format!("For example: {}", example(config))),
        LimiterError::Undefined(name, kind) => {
            report(b"42704").hint(format!("Define it: {}", definition(name, *kind, false)))
        }
        LimiterError::UndefinedPlan(_, plan) => {
            report(b"42704").hint(format!("Define it: {}", definition(plan, Kind::TokenBucket, false)))
        }
        LimiterError::Keyed(name, kind) => report(b"22004")
            .detail(
                "Its config has \"keyed\": true, so that a call without a key fails instead of taking from \
                 a limit that everybody shares.",
            )
            .hint(format!(
                "For example: SELECT * FROM {SCHEMA}{}({}, 'user-1'); in a list \"key\": \"user-1\", \
                 in a trigger 'key=author'.",
                taker(*kind),
                literal(name)
            )),
        LimiterError::NotKeyed(name, kind) => report(b"22023")
            .detail(
                "Its config has \"keyed\": false: all calls share one limit, and a key would have a second one.",
            )
            .hint(format!(
                "Omit the key: SELECT * FROM {SCHEMA}{}({});",
                taker(*kind),
                literal(name)
            )),
        LimiterError::InlineConfig(name) => report(b"42501")
            .detail(
                "A config passed with the call overrides the definition; that requires EXECUTE on rl_define.",
            )
            .hint(format!(
                "Call it without a config: SELECT * FROM {SCHEMA}rl_limit({}, $1);",
                literal(name)
            )),
        LimiterError::InRequest(_, own) => {
            Report { message: error.to_string(), ..of_limiter(own) }
        }
        LimiterError::NotForHolds { name, kind, why, .. } => {
            not_for_holds(report(b"0A000"), name, *kind, *why)
        }
        LimiterError::SeveralLimits { .. } => report(b"22023").hint(format!(
            "Settle all of them: SELECT * FROM {SCHEMA}rl_settle_all($1, '{{\"llmTokens\": 2750}}');"
        )),
        LimiterError::NotForKind(function, kind) if kind.has_leases() => report(b"0A000")
            .detail(if *function == "rl_credit" {
                "Only token buckets and fixed windows can be credited."
            } else {
                "Its slots are taken with leases."
            })
            .hint(format!(
                "Use {SCHEMA}rl_acquire(name, key) to take a slot and {SCHEMA}rl_release(lease) to release it."
            )),
        LimiterError::NotForKind("rl_credit", _) => report(b"0A000")
            .detail("Only token buckets and fixed windows can be credited.")
            .hint(format!("Use {SCHEMA}rl_reset(name, key) to make the limit full again.")),
        LimiterError::NotForKind(..) => report(b"0A000")
            .detail("Only concurrency limits have leases.")
            .hint(format!("SELECT * FROM {SCHEMA}rl_limit(name, key);")),
        LimiterError::BadState { table, name, column, value } => {
            let name = literal(name);
            let found = match (*column, value.as_str()) {
                (column, "NULL") => format!("{column} IS NULL"),
                ("log", value) => format!("'{value}' = ANY (log)"),
                (column, value) => format!("'{value}' = {column}"),
            };
            report(b"55000").hint(format!(
                "To make it full again: SELECT {SCHEMA}rl_reset({name}, $1); To find its key: \
                 SELECT key FROM {SCHEMA}{table} WHERE name = {name} AND {found};"
            ))
        }
        LimiterError::NotWritten(table) => report(b"55000").detail(format!(
            "A trigger, a rule or row security on the table {table} prevents rows from being written or read."
        )),
        LimiterError::Busy => report(b"55P03"),
        LimiterError::Locked { .. } => {
            report(b"55P03").hint("Call it again later, or with a longer lock_wait.")
        }
        LimiterError::MemoryFull { .. } => report(b"53200").detail(
            "The keys that are there are not saved to the table yet, so none can be evicted.",
        ),
        LimiterError::Host(own) => match own.downcast_ref::<Error>() {
            Some(own) => own.report(),
            None => report(b"XX000"),
        },
    }
}

/// The function that takes from a limit.
fn taker(kind: Kind) -> &'static str {
    if kind.has_leases() { "rl_acquire" } else { "rl_limit" }
}

/// The reason why limits in memory have no holds.
const ROLLED_BACK: &str =
    "A hold is a row, which is rolled back with its transaction; memory is not.";

/// The reason why a limit has no holds, and an alternative.
fn not_for_holds(report: Report, name: &str, kind: Kind, why: NoHolds) -> Report {
    let name = literal(name);
    match why {
        NoHolds::Kind if kind.has_leases() => {
            report.detail("Its slots are taken with leases.").hint(format!(
                "Take one, or hold it together with other limits: SELECT * FROM {SCHEMA}rl_acquire({name}, $1);"
            ))
        }
        NoHolds::Kind => report
            .detail("Only token buckets and fixed windows can be given tokens back.")
            .hint(format!("Take them: SELECT * FROM {SCHEMA}rl_limit({name}, $1, 10);")),
        NoHolds::Memory if kind.has_leases() => report
            .detail(ROLLED_BACK)
            .hint(format!("Take one: SELECT * FROM {SCHEMA}rl_acquire({name}, $1);")),
        NoHolds::Memory => report.detail(ROLLED_BACK).hint(take_and_give_back(&name)),
        NoHolds::Shards => report
            .detail("A hold waits for one row of its key; shards are for keys that are too busy for that.")
            .hint(take_and_give_back(&name)),
    }
}

/// Calls with the effect of a hold, except if the process dies between them.
fn take_and_give_back(name: &str) -> String {
    format!(
        "Take the tokens, and give back what was not used: SELECT * FROM {SCHEMA}rl_limit({name}, $1, 10); \
         SELECT * FROM {SCHEMA}rl_credit({name}, $1, 4, $2);"
    )
}

fn of_pg(error: &PgError) -> Report {
    let report = |sqlstate| Report::new(sqlstate, error);
    match error {
        PgError::Argument(error) => of_argument(error),
        PgError::AlteredColumn { .. } => report(b"42804")
            .hint("Restore its type, or DROP EXTENSION ratelimit and create it again."),
        PgError::Declaration => report(b"42P13").hint("ALTER EXTENSION ratelimit UPDATE;"),
        PgError::NotMapped => report(b"53200"),
        PgError::Parallel { .. } => report(b"25000"),
        PgError::ReadOnly { is_standby: true, .. } => report(b"25006").hint(
            "This server is a standby: make the call on the primary. Limits in memory can be used here, but \
             each server counts them separately.",
        ),
        PgError::ReadOnly { .. } => report(b"25006").hint(
            "Only limits in memory can be used here: those whose config has \"store\": \"memory\".",
        ),
    }
}

fn of_argument(error: &ArgumentError) -> Report {
    let report = |sqlstate| Report::new(sqlstate, error);
    match error {
        ArgumentError::Null("key") => report(b"22004").hint(NULL_KEY),
        ArgumentError::Null(_) | ArgumentError::Empty(_) => report(b"22004"),
        ArgumentError::Invalid { allowed, .. } => report(b"22023").detail(only(allowed)),
    }
}

fn only(allowed: &str) -> String {
    format!("Allowed: {allowed}.")
}

/// The statement that creates a working trigger.
fn example_trigger(firing: &str) -> String {
    format!(
        "For example: CREATE TRIGGER limit_messages {firing} EXECUTE FUNCTION \
         {SCHEMA}rl_trigger('sendMessage', 'key=author');"
    )
}

/// A denial in the form from which PostgREST takes status, headers and body, with a message for end users.
fn for_postgrest(report: Report, retry_after: Option<Micros>, message: Option<&str>) -> Report {
    let headers = match retry_after {
        Some(wait) => json!({ "Retry-After": wait.ceil_to_secs().to_string() }),
        None => json!({}),
    };
    let body = json!({
        "code": "PT429",
        "message": message.unwrap_or(&report.message),
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

/// When a denied call can succeed; `retry_after` is in whole milliseconds.
fn when_to_try(retry_after: Option<Micros>, capacity: f64, forever: bool) -> String {
    match retry_after {
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

/// A corrected definition, for a config with an error.
fn example(error: &ConfigError) -> String {
    if error.plan {
        return format!(
            "SELECT {SCHEMA}rl_define('sendMessage', '{{\"plan\": \"pro\"}}', 'user-1');"
        );
    }
    definition("sendMessage", error.kind.unwrap_or(Kind::TokenBucket), error.calendar)
}

/// The call that defines a limit of a kind, with windows of the calendar or not.
fn definition(name: &str, kind: Kind, calendar: bool) -> String {
    let (name, builder, arguments) = (literal(name), kind.builder(), kind.example(calendar));
    format!("SELECT {SCHEMA}rl_define({name}, {SCHEMA}{builder}({arguments}));")
}

/// A text as an SQL literal, for hints that can be copied as they are.
pub fn literal(name: &str) -> String {
    format!("'{}'", name.replace('\'', "''"))
}

impl Error {
    /// The same error, naming the limit that the config is for, or, if `is_stored`, for which it is stored.
    pub fn of_config(self, name: &[u8], is_stored: bool) -> Error {
        let Error::Limiter(LimiterError::Config(error)) = self else { return self };
        let name = utf8(name).into_owned();
        Error::Limiter(match is_stored {
            true => LimiterError::StoredConfig(name, error),
            false => LimiterError::ConfigOf(name, error),
        })
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Limiter(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(RequestError { n, error }: RequestError) -> Error {
        if n == 0 { error.into() } else { LimiterError::in_request(n, error).into() }
    }
}

/// Errors of the host pass through the limiter unchanged: one of this type is returned as it was.
impl From<LimiterError> for Error {
    fn from(error: LimiterError) -> Error {
        match error {
            LimiterError::Host(error) => match error.downcast() {
                Ok(own) => *own,
                Err(other) => Error::Limiter(LimiterError::Host(other)),
            },
            own => Error::Limiter(own),
        }
    }
}

impl From<Error> for LimiterError {
    fn from(error: Error) -> LimiterError {
        match error {
            Error::Limiter(own) => own,
            other => LimiterError::Host(Box::new(other)),
        }
    }
}
