//! The configuration of a limit: from JSON to a validated [`Limit`], and from arguments to JSON.
//!
//! A config is an object with a `kind` and the fields of that kind:
//!
//! - `kind` (all) — `"token bucket"`, `"fixed window"`, `"sliding window"`, `"sliding log"`, `"concurrency"` or
//!   `"unlimited"`
//! - `rate` (the first four) — tokens per period: above 0, at most 1e15; for a sliding log a whole number, at most
//!   10,000
//! - `period` (the first four) — milliseconds, or a duration such as `"1 minute"` or `"PT1M"`: 1 to 1e15 ms; a day is
//!   24 hours
//! - `capacity` (token bucket, fixed window) — the most tokens that accumulate, 0 to 1e15; default: `rate`
//! - `maxReserved` (token bucket, fixed window) — the largest debt of reservations, 0 to 1e15; default: bounded by a
//!   wait of ten years
//! - `shards` (token bucket, fixed window) — the number of shards, 1 to 1,024; default: 1
//! - `start` (fixed window) — where windows begin: epoch milliseconds, a time with its offset, or `"first request"`;
//!   default: the `phase` passed to [`Limit::initial_state`]
//! - `timezone` (fixed window) — an IANA name: windows begin on local dates of that zone. `period` is then a whole
//!   number of days, weeks, months or years, at most 100 years, and `start` a date; default: Monday 1970-01-05 for
//!   days and weeks, 1970-01-01 for months and years
//! - `overage` (fixed window) — `true`: calls may exceed the limit, with a debt that ends with the window; default:
//!   `false`. Not with `maxReserved` or `shards`
//! - `slots` (concurrency) — the most leases at a time, 1 to 1,000; in memory to 100
//! - `ttl` (concurrency) — the time after which a lease expires: as `period`
//! - `store` (all) — `"table"`, or `"memory"`, which can't have sliding logs and shards; default: `"table"`
//! - `save` (all, in memory) — how long a change stays in memory only: 100 ms to 1 h, as `period`; default: for ever
//! - `enforce` (all) — `false`: a dry run, which admits what would be denied; default: `true`
//! - `keyed` (all) — `true`: the empty key, which all calls without a key share, is refused; `false`: any other key
//!   is; default: neither
//! - `applyUpdates` (all) — `"transactionally"`: as without it; `"asynchronously"`: in memory with a `save` of a
//!   second, or without `save` where the config is passed with a call. `start` of a token bucket can be null. Both are
//!   for configs of the Convex rate limiter
//!
//! The config of one key may name a [`plan`] instead: a limit with a definition that the key shares.
//!
//! An unknown, missing or repeated field, a wrong type and a number out of range are a
//! [`ConfigError`]. Nothing here depends on settings of the process or the machine.

use crate::fields::{FLAG, FieldError, Fields, Reader, TEXT};
use crate::kinds::Unlimited;
use crate::text::{json_number, quoted, shortened};
use crate::{Kind, Limit, Micros};

pub use crate::numbers::{MAX_LOG, MAX_SHARDS, MAX_SLOTS, MAX_SLOTS_IN_MEMORY, MAX_TOKENS};
pub use build::{Argument, Interval, build};

use times::SAVE;

mod build;
mod in_call;
pub(crate) mod times;

/// The fields of every kind, after `kind` and the kind's own.
const COMMON_FIELDS: &[&str] = &["store", "save", "enforce", "keyed", "applyUpdates"];

/// The maximum length of a config, in bytes of JSON; a sensible one has about 200.
pub const MAX_BYTES: usize = 10_000;

/// An invalid config: the field, its value and the allowed values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{problem} (allowed: {allowed})")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field and its value: `"rate" is -1`.
    pub problem: String,
    /// The allowed values: `a number greater than 0, at most 1e15`.
    pub allowed: String,
    /// The kind of the config, if it has one.
    pub kind: Option<Kind>,
    /// Whether the config has a `timezone`.
    pub calendar: bool,
    /// Whether it names a plan.
    pub plan: bool,
}

impl ConfigError {
    /// An error of a config without a kind, a `timezone` or a plan.
    fn new(problem: String, allowed: impl Into<String>) -> ConfigError {
        let allowed = allowed.into();
        ConfigError { problem, allowed, kind: None, calendar: false, plan: false }
    }

    /// Refuses a config of more than [`MAX_BYTES`] bytes of JSON.
    pub fn too_long(bytes: usize) -> ConfigError {
        ConfigError::new(format!("it is {bytes} bytes long"), format!("at most {MAX_BYTES} bytes"))
    }

    /// Makes the error of a field; `kind` is the config's, if it has one.
    fn from_field(error: FieldError, kind: Option<Kind>) -> ConfigError {
        let (problem, allowed) = error.in_words(|field, value| {
            let problem = match kind {
                Some(kind) if Kind::all_fields().contains(&field) => {
                    format!("\"{field}\" is {value}, and {} has no such field", kind.with_article())
                }
                _ => format!("{} is not a field", serde_json::Value::from(shortened(field))),
            };
            let own = kind.map_or(Kind::all_fields(), Kind::fields);
            (problem, quoted(["kind"].iter().chain(own).chain(COMMON_FIELDS)))
        });
        ConfigError { kind, ..ConfigError::new(problem, allowed) }
    }
}

/// A parsed config: a limit and its use by the caller. Fields other than `limit` don't change the
/// [`Limit`]'s decisions.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The limit.
    pub limit: Limit,
    /// The store of its states.
    pub store: StoreKind,
    /// Whether the config names the store, or has the default.
    pub names_store: bool,
    /// In memory: the time after which a change is written to the table; `None`: never.
    pub save: Option<Micros>,
    /// Whether the config names `save`, or `applyUpdates` implies it.
    pub names_save: bool,
    /// Whether calls are denied. Otherwise a dry run: a call that would be denied is admitted, and changes nothing.
    pub enforce: bool,
    /// Whether the caller has to refuse calls without a key (`Some(true)`) or with one (`Some(false)`);
    /// `None`: neither.
    pub keyed: Option<bool>,
}

impl Definition {
    /// Whether its states have no rows, not counting those left from before: it is kept in memory and is not saved, or
    /// would be if it had a limit.
    pub fn has_no_rows(&self) -> bool {
        self.store == StoreKind::Memory && self.save.is_none()
    }

    /// The definition of a name without a limit.
    pub fn unlimited() -> Definition {
        Definition {
            limit: Limit::Unlimited(Unlimited),
            store: StoreKind::Table,
            names_store: false,
            save: None,
            names_save: false,
            enforce: true,
            keyed: None,
        }
    }
}

impl PartialEq for Definition {
    /// An implied store or save equals the same one given by name.
    fn eq(&self, other: &Definition) -> bool {
        let Definition { limit, store, names_store: _, save, names_save: _, enforce, keyed } = self;
        (limit, store, save, enforce, keyed)
            == (&other.limit, &other.store, &other.save, &other.enforce, &other.keyed)
    }
}

/// The store of a limit's states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In a table, with the caller's transaction.
    #[default]
    Table,
    /// In memory, also after a rollback of the transaction.
    Memory,
}

/// The place of the states of a limit, by its whole definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Nowhere: there is no limit, and nothing is remembered.
    Nowhere,
    /// In a row of the table.
    Row,
    /// In several rows, one for each shard.
    Shards(u32),
    /// In an entry of memory.
    Memory,
    /// In an entry of memory that is saved to its row.
    Saved,
}

impl Store {
    /// The store of a limit.
    pub fn from_definition(definition: &Definition) -> Store {
        let limit = &definition.limit;
        match definition.store {
            _ if limit.is_unlimited() => Store::Nowhere,
            StoreKind::Table if limit.shards() > 1 => Store::Shards(limit.shards()),
            StoreKind::Table => Store::Row,
            StoreKind::Memory if definition.save.is_some() => Store::Saved,
            StoreKind::Memory => Store::Memory,
        }
    }

    /// Whether it is in rows of the table.
    pub fn is_in_table(self) -> bool {
        matches!(self, Store::Row | Store::Shards(_))
    }

    /// Whether it is in memory.
    pub fn is_in_memory(self) -> bool {
        matches!(self, Store::Memory | Store::Saved)
    }
}

const STORE: Reader<StoreKind> = Reader {
    allowed: r#""table" or "memory""#,
    read: |given| match given.text()? {
        "table" => Some(StoreKind::Table),
        "memory" => Some(StoreKind::Memory),
        _ => None,
    },
};

/// The `save` implied by `applyUpdates` "asynchronously".
const SAVE_LATER: Micros = Micros(1_000_000);

/// Whether a change of a limit is written to the table later, like a limit in memory that is saved, or, if passed with
/// a call, like one in memory; or with the caller's transaction. In the words of the Convex rate limiter.
const UPDATES_LATER: Reader<bool> = Reader {
    allowed: r#""transactionally" or "asynchronously""#,
    read: |given| match given.text()? {
        "transactionally" => Some(false),
        "asynchronously" => Some(true),
        _ => None,
    },
};

/// Reads and checks the limit of a config. The caller checks that the text is no longer than [`MAX_BYTES`].
///
/// ```
/// use ratelimit_core::config;
///
/// let error = config::parse(r#"{"kind": "sliding log", "rate": 0.5, "period": "1 s"}"#).unwrap_err();
/// assert_eq!(error.problem, r#""rate" is 0.5"#);
/// assert_eq!(error.allowed, "a whole number from 1 to 10000");
/// ```
///
/// # Errors
/// [`ConfigError`] for an unknown, missing or repeated field, a wrong type, a value out of range and
/// a field that the kind does not take.
pub fn parse(json: &str) -> Result<Limit, ConfigError> {
    definition(json).map(|definition| definition.limit)
}

/// Reads and checks a whole config, as [`parse`] reads its limit.
///
/// ```
/// use ratelimit_core::config::{self, StoreKind};
///
/// let json = r#"{"kind": "sliding window", "rate": 5, "period": "1 s", "store": "memory"}"#;
/// let definition = config::definition(json)?;
/// assert_eq!((definition.store, definition.enforce), (StoreKind::Memory, true));
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
///
/// # Errors
/// As [`parse`], and for a `store` that the limit can't be kept in.
pub fn definition(json: &str) -> Result<Definition, ConfigError> {
    let fields = Fields::from_json(json).ok_or_else(|| {
        ConfigError::new(
            format!("it is {}", shortened(json)),
            r#"an object such as {"kind": "token bucket", "rate": 10, "period": "1 minute"}"#,
        )
    })?;
    let (calendar, plan) = (fields.get("timezone").is_some(), fields.get("plan"));
    read_definition(&fields).map_err(|error| match plan {
        Some(plan) => refused_plan(plan, "only in the definition of a key, without other fields"),
        None => ConfigError { calendar, ..error },
    })
}

/// Reads the name of the plan from the config of a key: the key has the definition of that limit. `None`: an ordinary
/// config, for [`definition`]. `bytes` counts the bytes of a name in the encoding of the database.
///
/// ```
/// use ratelimit_core::config;
///
/// assert_eq!(config::plan(r#"{"plan": "pro"}"#, str::len)?, Some("pro".into()));
/// assert_eq!(config::plan(r#"{"kind": "unlimited"}"#, str::len)?, None);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
///
/// # Errors
/// [`ConfigError`]: no limit can have such a name.
pub fn plan(json: &str, bytes: impl FnOnce(&str) -> usize) -> Result<Option<String>, ConfigError> {
    let Some(fields) = Fields::from_json(json) else { return Ok(None) };
    let Some(value) = fields.get("plan") else { return Ok(None) };
    if fields.only(&[&["plan"]]).is_err() {
        return Ok(None);
    }
    let is_name = |name: &String| (1..=200).contains(&bytes(name));
    match fields.required("plan", &TEXT) {
        Ok(name) if is_name(&name) => Ok(Some(name)),
        Err(error @ FieldError::Repeated { .. }) => {
            Err(ConfigError { plan: true, ..ConfigError::from_field(error, None) })
        }
        _ => Err(refused_plan(value, "the name of a limit, 1 to 200 bytes")),
    }
}

/// The error of a `plan`.
fn refused_plan(plan: &str, allowed: &str) -> ConfigError {
    let problem = format!("\"plan\" is {}", shortened(plan));
    ConfigError { plan: true, ..ConfigError::new(problem, allowed) }
}

/// Writes a config as JSON with its defaults resolved, so that nothing else is needed to decide calls on a state: with
/// the `capacity`, the number of `shards`, and the `start` of windows, derived from `phase` where it names none.
/// Periods are in milliseconds, or for a calendar in days or months; other fields are left out where they have their
/// default.
///
/// ```
/// use ratelimit_core::{Micros, config};
///
/// let definition = config::definition(r#"{"kind": "fixed window", "rate": 5, "period": "1 s", "enforce": true}"#)?;
/// let json = config::resolved(&definition, Micros(7_250_000));
/// let expected = r#"{"capacity":5,"kind":"fixed window","period":1000,"rate":5,"shards":1,"start":250}"#;
/// assert_eq!(json.to_string(), expected);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
pub fn resolved(definition: &Definition, phase: Micros) -> serde_json::Value {
    let Definition { limit, store, names_store: _, save, names_save: _, enforce, keyed } =
        definition;
    let mut json = limit.json(phase);
    let Some(fields) = json.as_object_mut() else { return json };
    if *store == StoreKind::Memory {
        fields.insert("store".into(), "memory".into());
    }
    if let Some(save) = save {
        fields.insert("save".into(), save.to_json());
    }
    if !enforce {
        fields.insert("enforce".into(), false.into());
    }
    if let Some(keyed) = keyed {
        fields.insert("keyed".into(), (*keyed).into());
    }
    json
}

fn read_definition(fields: &Fields) -> Result<Definition, ConfigError> {
    let by_name = Reader { allowed: Kind::names(), read: |given| Kind::from_name(given.text()?) };
    let kind = fields.required("kind", &by_name).map_err(|error| {
        // Reports a field unknown to every kind first, as for a config with a kind.
        let known = fields.only(&[&["kind"], Kind::all_fields(), COMMON_FIELDS]);
        ConfigError::from_field(known.err().unwrap_or(error), None)
    })?;
    read_kind(kind, fields).map_err(|error| ConfigError::from_field(error, Some(kind)))
}

/// Reads the definition of a limit of this kind.
fn read_kind(kind: Kind, fields: &Fields) -> Result<Definition, FieldError> {
    fields.only(&[&["kind"], kind.fields(), COMMON_FIELDS])?;
    let limit = kind.limit(fields)?;
    let (store, save) = (fields.optional("store", &STORE)?, fields.optional("save", &SAVE)?);
    let is_later = fields.optional("applyUpdates", &UPDATES_LATER)?.unwrap_or(false);
    let (names_store, names_save) = (store.is_some() || is_later, save.is_some());
    let enforce = fields.optional("enforce", &FLAG)?.unwrap_or(true);
    let keyed = fields.optional("keyed", &FLAG)?;
    let (store, save) = match (is_later, store) {
        (false, store) => (store.unwrap_or_default(), save),
        (true, None | Some(StoreKind::Memory)) => (StoreKind::Memory, save.or(Some(SAVE_LATER))),
        (true, Some(StoreKind::Table)) => {
            return Err(fields.refused("applyUpdates", r#"only with "store": "memory""#));
        }
    };
    let refused =
        |field, value, allowed: String| Err(FieldError::Invalid { field, value, allowed });
    match (store, save, &limit) {
        (StoreKind::Table, Some(save), _) => {
            let save = json_number(save.as_millis());
            refused("save", save, r#"only with "store": "memory""#.into())
        }
        (StoreKind::Memory, _, Limit::SlidingLog(_)) => {
            let allowed = r#""table" for a sliding log, which stores an entry per token"#;
            refused("store", r#""memory""#.into(), allowed.into())
        }
        (StoreKind::Memory, _, limit) if let Some(unfit) = not_in_memory(limit) => {
            let (field, value, allowed, because) = unfit;
            let allowed = format!(r#"{allowed} if "store" is "memory"{because}"#);
            refused(field, value.to_string(), allowed)
        }
        _ => Ok(Definition { limit, store, names_store, save, names_save, enforce, keyed }),
    }
}

/// The field for which memory allows less, with its value, the allowed values, and the reason, as the end of a
/// sentence. `None`: it can store the states, unless the limit is a sliding log.
fn not_in_memory(limit: &Limit) -> Option<(&'static str, u32, String, &'static str)> {
    match limit {
        Limit::Concurrency(limit) if limit.slots > MAX_SLOTS_IN_MEMORY => {
            let allowed = format!("a whole number from 1 to {MAX_SLOTS_IN_MEMORY}");
            Some(("slots", limit.slots, allowed, ""))
        }
        limit if limit.shards() > 1 => {
            let because = ", where no call waits for another transaction";
            Some(("shards", limit.shards(), "1".into(), because))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
