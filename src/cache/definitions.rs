//! Named limits: `rl_config`, and this backend's cache of definitions and blocks.
//!
//! A key's row may name a plan: a limit with a definition that the key shares. Both rows are read at once, so that they
//! are of one instant, and the plan's definition is cached as the key's own; any change of `rl_config` clears both.
//!
//! Parsing a config costs more than the limiter itself, so definitions and inline configs are cached. A trigger on
//! `rl_config` invalidates the relation. That clears the cache of every backend when the change commits, and the cache
//! of this one at its next command or at a rollback. The trigger is FOR EACH ROW and ENABLE ALWAYS: statement triggers
//! don't fire in logical replication's apply, and ordinary triggers don't fire under `session_replication_role =
//! replica`. If Citus copies `rl_config` to every node, the trigger fires on every node, for the OID of the shard.
//!
//! A function that parses a stored config fails with 22023 if it is invalid ([`LimiterError::StoredConfig`]).

use std::borrow::Cow;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{BOOLOID, INT8OID, JSONBOID, REGCLASSOID, TEXTOID};
use ratelimit_core::config::{self, ConfigError, Definition};
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::{Defined, Key};
use ratelimit_limiter::target::undefined;

use super::blocks;
use crate::schema::catalog::{Catalog, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::invalidation;
use crate::schema::spi::{self, Connection, Statement};
use ratelimit_pg::transaction::{local_transaction, subtransaction};
use ratelimit_pg::values::{Jsonb, server_text, text_datum, utf8};

/// The number of entries in each cache. Reading a definition takes two statements and parsing a config some
/// microseconds, several times the cost of a call; an entry takes about 200 bytes.
pub const CACHE_ENTRIES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// The largest cached inline config, in bytes; a sensible one has about 200.
const CACHED_CONFIG_BYTES: usize = 2_000;

/// The rows of a name in rl_config.
struct Rows {
    /// For every key without a row of its own.
    default: Option<Rc<Definition>>,
    /// Whether any key has a row of its own.
    has_keys: bool,
    /// Whether any key is or was blocked.
    has_blocks: bool,
}

/// A cache by bytes.
type Cache<V> = LruCache<Box<[u8]>, V>;

/// An empty cache, which evicts the least recently used entry when it is full.
pub fn cache<V>() -> Cache<V> {
    LruCache::sparse(CACHE_ENTRIES)
}

/// The rows of rl_config and rl_blocks that this backend has read and that have not changed.
struct Cached {
    /// The value of [`invalidation::definition_changes`] at which the cache was valid.
    changes: u64,
    /// The name looked up last, the same for most calls as for the call before, and its definition for every key if no
    /// key has a row of its own.
    last: Option<(Vec<u8>, Option<Rc<Definition>>)>,
    names: Cache<Rows>,
    /// By [`name_and_key`], for names with overrides or blocked keys.
    keys: Cache<Defined>,
    /// The definitions of names for every key, of [`default_of`].
    defaults: Cache<Option<Rc<Definition>>>,
}

thread_local! {
    static CACHED: RefCell<Cached> = RefCell::new(Cached {
        changes: 0,
        last: None,
        names: cache(),
        keys: cache(),
        defaults: cache(),
    });
    /// By the binary form of the config.
    static INLINE: RefCell<Cache<Rc<Definition>>> = RefCell::new(cache());
    /// The plan rows that this session has locked last, and what holds the locks.
    static LOCKED: RefCell<Option<(Holder, Cache<()>)>> = const { RefCell::new(None) };
}

/// A table, and the transaction and subtransaction that hold locks on its rows: a rollback releases the locks and ends
/// both.
type Holder = (pg_sys::Oid, pg_sys::LocalTransactionId, pg_sys::SubTransactionId);

impl Cached {
    /// Clears the cache if there were changes since.
    fn at(&mut self, changes: u64) -> &mut Cached {
        if self.changes != changes {
            self.last = None;
            self.names.clear();
            self.keys.clear();
            self.defaults.clear();
            self.changes = changes;
        }
        self
    }

    /// Finds the definition and the block of a name and key; `None` if they are not cached.
    fn find(&mut self, name: &[u8], key: &[u8]) -> Option<Defined> {
        if let Some((last, definition)) = &self.last
            && last == name
        {
            return Some(Defined { definition: definition.clone(), ..Defined::default() });
        }
        let rows = self.names.get(name)?;
        if !rows.has_keys && !rows.has_blocks {
            let definition = rows.default.clone();
            self.last = Some((name.into(), definition.clone()));
            return Some(Defined { definition, ..Defined::default() });
        }
        self.keys.get(&name_and_key(name, key)[..]).cloned()
    }
}

/// Joins a name and a key by a zero byte, which can't occur in a Postgres text.
fn name_and_key(name: &[u8], key: &[u8]) -> Vec<u8> {
    [name, &[0], key].concat()
}

/// Returns the definition of a name and key; for the key `''` the definition of every key without a row of its own.
///
/// # Errors
/// 42704: no definition.
pub fn of_key(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Rc<Definition>> {
    if let Some(definition) = defined(catalog, name, key)? {
        return Ok(definition);
    }
    let plan = look_up(catalog, name, key)?.missing_plan;
    Err(undefined(utf8(name), plan.as_deref()).into())
}

/// Parses a config. Cached by the binary form of the config.
///
/// # Errors
/// 22023: an invalid config.
pub fn inline(config: Jsonb) -> Result<Rc<Definition>> {
    if let Some(definition) = INLINE.with_borrow_mut(|known| known.get(config.bytes).cloned()) {
        return Ok(definition);
    }
    let json = config.to_json(config::MAX_BYTES).map_err(ConfigError::too_long)?;
    let definition = Rc::new(config::definition(&json)?);
    if config.bytes.len() > CACHED_CONFIG_BYTES {
        return Ok(definition);
    }
    INLINE.with_borrow_mut(|known| known.put(config.bytes.into(), definition.clone()));
    Ok(definition)
}

/// The content of a row of rl_config.
#[derive(PartialEq)]
pub enum RowConfig {
    /// A config of its own.
    Own(Rc<Definition>),
    /// The plan of a key, in the server's encoding.
    Plan(Vec<u8>),
}

/// Parses the config of a row. An empty `key` is the row for every key.
///
/// # Errors
/// 22023: an invalid config; a plan without a key.
pub fn of_row(config: Jsonb, key: &[u8]) -> Result<RowConfig> {
    if !key.is_empty() {
        let json = config.to_json(config::MAX_BYTES).map_err(ConfigError::too_long)?;
        if let Some(plan) = plan(&json)? {
            return Ok(RowConfig::Plan(server_text(&plan)));
        }
    }
    inline(config).map(RowConfig::Own)
}

/// The plan that a key's config names.
fn plan(json: &str) -> std::result::Result<Option<String>, ConfigError> {
    config::plan(json, |name| server_text(name).len())
}

/// Looks up the definition of (name, key), or else of the name; `None` if neither exists.
pub fn defined(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>> {
    // If only blocks of keys were read, the definition is that of every key.
    let for_all = CACHED.with_borrow_mut(|cached| {
        let cached = cached.at(invalidation::definition_changes());
        let rows = cached.names.get(name).filter(|rows| !rows.has_keys)?;
        Some(rows.default.clone())
    });
    match for_all {
        Some(definition) => Ok(definition),
        None => Ok(look_up(catalog, name, key)?.definition),
    }
}

/// Looks up the definition, as [`defined`], and the block.
pub fn look_up(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Defined> {
    let changes = invalidation::definition_changes();
    match CACHED.with_borrow_mut(|cached| cached.at(changes).find(name, key)) {
        Some(defined) => Ok(defined),
        None => load(catalog, name, key, changes),
    }
}

/// The config of a name and key as it is in rl_config; an error if it is too long.
type StoredJson = Option<std::result::Result<String, ConfigError>>;

/// The rows of rl_config for a name and key.
struct Stored {
    /// For every key without a row of its own.
    default: StoredJson,
    own: StoredJson,
    /// The definition of the key's plan.
    plan: StoredJson,
    /// Whether any key has a row of its own.
    has_keys: bool,
    /// Whether this session is notified of changes.
    is_notified: bool,
}

/// Reads the rows of rl_config for a name and key.
fn read(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Stored> {
    const ROWS: Statement = Statement::reads(
        "SELECT key @=@ '', config, \
                (SELECT plan.config FROM ONLY @schema@.rl_config AS plan \
                 WHERE plan.name @=@ (own.config @->>@ 'plan') AND plan.key @=@ '') \
         FROM ONLY @schema@.rl_config AS own WHERE name @=@ $1 AND (key @=@ '' OR key @=@ $2)",
        &[TEXTOID, TEXTOID],
        &[BOOLOID, JSONBOID, JSONBOID],
    );
    const HAS_KEYS: Statement = Statement::reads(
        "SELECT FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @>@ '' LIMIT 1",
        &[TEXTOID],
        &[],
    );
    // Without a copy of the table on this node, no invalidation arrives, for example on a node that was added and not
    // rebalanced yet. From another node's copy, it arrives too late.
    const IS_HERE: Statement = Statement::reads(
        "SELECT FROM pg_catalog.pg_dist_shard AS shard, pg_catalog.pg_dist_placement AS copy, \
                     pg_catalog.pg_dist_local_group AS here \
         WHERE shard.logicalrelid @=@ $1 \
         AND copy.shardid @=@ shard.shardid AND copy.groupid @=@ here.groupid \
         AND pg_catalog.current_setting('citus.enable_local_execution')::pg_catalog.bool",
        &[REGCLASSOID],
        &[],
    );
    spi::with_owner(catalog, catalog.rl_config, TableLock::Read, |spi| {
        let name = Some(text_datum(name));
        let (mut default, mut own, mut plan) = (None, None, None);
        for row in 0..spi.execute(&ROWS, &[name, Some(text_datum(key))])? {
            let for_all = spi.field(row, 1).is_some_and(|datum| datum.value() as u8 != 0);
            let config = |column| {
                let json = spi.jsonb(row, column)?.to_json(config::MAX_BYTES);
                // Copied, because the text lives only as long as the connection.
                Some(json.map(Cow::into_owned).map_err(ConfigError::too_long))
            };
            if for_all {
                default = config(2);
            } else {
                (own, plan) = (config(2), config(3));
            }
        }
        let has_keys = spi.execute(&HAS_KEYS, &[name])? > 0;
        let mut is_notified = true;
        for table in [catalog.rl_config, catalog.rl_blocks] {
            is_notified &=
                !table.distributed || spi.execute(&IS_HERE, &[Some(table.oid.into())])? > 0;
        }
        Ok(Stored { default, own, plan, has_keys, is_notified })
    })
}

/// Reads a definition from rl_config and a block, and caches both as of `changes`.
fn load(catalog: &Catalog, name: &[u8], key: &[u8], changes: u64) -> Result<Defined> {
    let (has_blocks, blocked_until) = blocks::read(catalog, name, key)?;
    let Stored { default, own, plan: of_plan, has_keys, is_notified } = read(catalog, name, key)?;
    let invalid = |name: &str, error| LimiterError::StoredConfig(name.to_owned(), error);
    let parse = |name: &str, config: StoredJson| {
        let config = config.map(|config| Ok(Rc::new(config::definition(&config?)?)));
        config.transpose().map_err(|error| invalid(name, error))
    };
    let utf8_name = utf8(name);
    let plan = match &own {
        Some(Ok(own)) => plan(own).map_err(|error| invalid(&utf8_name, error))?,
        _ => None,
    };
    let own = match &plan {
        Some(plan) => parse(plan, of_plan)?,
        None => parse(&utf8_name, own)?,
    };
    let default = parse(&utf8_name, default)?;
    let missing_plan = plan.filter(|_| own.is_none()).map(Rc::from);
    let definition = match missing_plan {
        Some(_) => None,
        None => own.or_else(|| default.clone()),
    };
    let found = Defined { definition, missing_plan, blocked_until };
    // The rows may lack a change that was announced while they were read.
    if is_notified && invalidation::definition_changes() == changes {
        CACHED.with_borrow_mut(|cached| {
            let cached = cached.at(changes);
            cached.names.put(name.into(), Rows { default, has_keys, has_blocks });
            if has_keys || has_blocks {
                cached.keys.put(name_and_key(name, key).into(), found.clone());
            }
        });
    }
    Ok(found)
}

/// Reads the definition of a name for every key, for a trigger: once for all rows of a statement, since their changes
/// take effect with the next command. The cache of calls would read more.
pub fn default_of(catalog: &Catalog, name: &[u8]) -> Result<Option<Rc<Definition>>> {
    const DEFAULT: Statement = Statement::reads(
        "SELECT config FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @=@ ''",
        &[TEXTOID],
        &[JSONBOID],
    );
    let changes = invalidation::definition_changes();
    let known = CACHED.with_borrow_mut(|cached| cached.at(changes).defaults.get(name).cloned());
    if let Some(definition) = known {
        return Ok(definition);
    }
    let definition = spi::with_owner(catalog, catalog.rl_config, TableLock::Read, |spi| {
        spi.execute(&DEFAULT, &[Some(text_datum(name))])?;
        spi.jsonb(0, 1).map(inline).transpose().map_err(|error| error.of_config(name, true))
    })?;
    // The row may lack a change that was announced while it was read.
    if invalidation::definition_changes() == changes {
        CACHED.with_borrow_mut(|cached| {
            cached.at(changes).defaults.put(name.into(), definition.clone());
        });
    }
    Ok(definition)
}

/// Locks the row of a plan, if there is one, until the transaction ends: a key gets the plan either before or after a
/// change. Does nothing if this subtransaction has locked it already.
pub fn lock_plan(catalog: &Catalog, plan: &[u8]) -> Result<()> {
    const LOCK: Statement = Statement::locks(
        "SELECT FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @=@ '' FOR SHARE",
        &[TEXTOID],
        &[],
    );
    let now = (catalog.rl_config.oid, local_transaction(), subtransaction());
    let is_locked = LOCKED.with_borrow_mut(|locked| match locked {
        Some((holder, plans)) => *holder == now && plans.get(plan).is_some(),
        None => false,
    });
    if is_locked {
        return Ok(());
    }
    let found = spi::with_owner(catalog, catalog.rl_config, TableLock::LockRows, |spi| {
        spi.execute(&LOCK, &[Some(text_datum(plan))])
    })?;
    if found > 0 {
        LOCKED.with_borrow_mut(|locked| {
            let same = locked.take_if(|(holder, _)| *holder == now);
            let (_, plans) = locked.insert(same.unwrap_or_else(|| (now, cache())));
            plans.put(plan.into(), ());
        });
    }
    Ok(())
}

/// The names under which any key has this plan.
pub fn with_plan(catalog: &Catalog, plan: &[u8]) -> Result<Vec<Vec<u8>>> {
    const NAMES: Statement = Statement::reads(
        "SELECT DISTINCT name FROM ONLY @schema@.rl_config WHERE name @>@ '' AND key @>@ '' \
         AND (config @->>@ 'plan') @=@ $1",
        &[TEXTOID],
        &[TEXTOID],
    );
    super::names(catalog, catalog.rl_config, TableLock::Read, &NAMES, &[Some(text_datum(plan))])
}

/// Whether states of a name may be in the table. False if each definition of the name keeps them in memory without
/// saving, or exempts a key. A key with a plan counts as in the table.
pub fn may_be_in_table(catalog: &Catalog, name: &[u8]) -> Result<bool> {
    const STORES: Statement = Statement::reads(
        "SELECT FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND \
         ((config @->>@ 'store') @=@ 'memory' IS NOT TRUE OR config @?@ 'save') AND \
         (config @->>@ 'kind') @=@ 'unlimited' IS NOT TRUE",
        &[TEXTOID],
        &[],
    );
    let in_memory = |definition: &Rc<Definition>| definition.has_no_rows();
    if !defined(catalog, name, b"")?.as_ref().is_some_and(in_memory) {
        return Ok(true);
    }
    spi::with_owner(catalog, catalog.rl_config, TableLock::Read, |spi| {
        Ok(spi.execute(&STORES, &[Some(text_datum(name))])? > 0)
    })
}

/// Reads the names and keys that an override or its plan exempts, with that definition; of one name or one key if
/// given. With both, the name must exempt the key, too.
pub fn exempt_keys(
    catalog: &Catalog,
    name: Option<&[u8]>,
    key: Option<&[u8]>,
) -> Result<Vec<(Key, Rc<Definition>)>> {
    const EXEMPT: Statement = Statement::reads(
        "SELECT name, key, config FROM \
         (SELECT name, key::pg_catalog.text, \
                 CASE WHEN config @?@ 'plan' \
                      THEN (SELECT plan.config FROM ONLY @schema@.rl_config AS plan \
                            WHERE plan.name @=@ (own.config @->>@ 'plan') AND plan.key @=@ '') \
                      ELSE config END AS config \
          FROM ONLY @schema@.rl_config AS own WHERE name @>@ '' AND key @>@ '' \
          AND ($1 IS NULL OR name @=@ $1) AND ($2 IS NULL OR key @=@ $2)) AS of_key \
         WHERE (config @->>@ 'kind') @=@ 'unlimited'",
        &[TEXTOID, TEXTOID],
        &[TEXTOID, TEXTOID, JSONBOID],
    );
    if let (Some(name), Some(key)) = (name, key) {
        let definition = defined(catalog, name, key)?;
        let exempt = definition.filter(|definition| definition.limit.is_unlimited());
        let own = (name.to_vec(), key.to_vec());
        return Ok(exempt.map(|definition| (own, definition)).into_iter().collect());
    }
    spi::with_owner(catalog, catalog.rl_config, TableLock::Read, |spi| {
        let count = spi.execute(&EXEMPT, &[name.map(text_datum), key.map(text_datum)])?;
        let exempt = |row| {
            let (name, key, config) = (spi.text(row, 1)?, spi.text(row, 2)?, spi.jsonb(row, 3)?);
            Some(match inline(config) {
                Ok(definition) => Ok(((name, key), definition)),
                Err(error) => Err(error.of_config(&name, true)),
            })
        };
        (0..count).filter_map(exempt).collect()
    })
}

/// Reads the names with a definition, for all keys or for some.
pub fn names(catalog: &Catalog) -> Result<Vec<Vec<u8>>> {
    const NAMES: Statement = Statement::reads(
        "SELECT DISTINCT name FROM ONLY @schema@.rl_config WHERE name @>@ ''",
        &[],
        &[TEXTOID],
    );
    super::names(catalog, catalog.rl_config, TableLock::Read, &NAMES, &[])
}

/// Reads the names with an override for a key.
pub fn overridden(catalog: &Catalog, key: &[u8]) -> Result<Vec<Vec<u8>>> {
    const OVERRIDDEN: Statement = Statement::reads(
        "SELECT name FROM ONLY @schema@.rl_config WHERE name @>@ '' AND key @=@ $1",
        &[TEXTOID],
        &[TEXTOID],
    );
    let key = [Some(text_datum(key))];
    super::names(catalog, catalog.rl_config, TableLock::Write, &OVERRIDDEN, &key)
}

/// Creates or replaces a definition; false if the existing one has the same meaning, which stays as it is.
///
/// Keeps a plan's row locked, so that no change of the plan commits before the key has it, and waits for a change
/// in progress.
///
/// # Errors
/// 22023: an invalid config; 42704: a plan that is not defined; 55000: the row could not be written.
pub fn define(catalog: &Catalog, name: &[u8], key: &[u8], config: Jsonb) -> Result<bool> {
    const THERE: Statement = Statement::reads(
        "SELECT config FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @=@ $2",
        &[TEXTOID, TEXTOID],
        &[JSONBOID],
    );
    const PUT: Statement = Statement::writes(
        "INSERT INTO @schema@.rl_config AS old (name, key, config) VALUES ($1, $2, $3) \
         ON CONFLICT (name, key) DO UPDATE SET config = EXCLUDED.config \
         WHERE old.config @<>@ EXCLUDED.config",
        &[TEXTOID, TEXTOID, JSONBOID],
        &[],
    );
    const PLAN: Statement = Statement::reads(
        "SELECT FROM ONLY @schema@.rl_config WHERE name @=@ ($1 @->>@ 'plan') AND key @=@ ''",
        &[JSONBOID],
        &[],
    );
    const LOCK_PLAN: Statement = Statement {
        sql: "SELECT FROM ONLY @schema@.rl_config \
              WHERE name @=@ ($1 @->>@ 'plan') AND key @=@ '' FOR SHARE",
        lock: TableLock::LockRows,
        ..PLAN
    };
    let row_config = of_row(config, key).map_err(|error| error.of_config(name, false))?;
    spi::with_owner(catalog, catalog.rl_config, TableLock::Write, |spi| {
        let row = [Some(text_datum(name)), Some(text_datum(key)), Some(config.datum)];
        let is_same = || {
            spi.execute(&THERE, &row[..2])?;
            // An invalid old definition counts as a different one.
            let there = spi.jsonb(0, 1).and_then(|there| of_row(there, key).ok());
            Ok::<_, Error>(there.is_some_and(|there| there == row_config))
        };
        let is_same_now = is_same()?;
        if let RowConfig::Plan(plan) = &row_config
            && spi.execute(if is_same_now { &PLAN } else { &LOCK_PLAN }, &row[2..])? == 0
        {
            return Err(undefined(utf8(name), Some(&utf8(plan))).into());
        }
        if is_same_now {
            return Ok(false);
        }
        if spi.execute(&PUT, &row)? > 0 {
            return Ok(true);
        }
        // Another session has just inserted the same definition, or a trigger or rule swallowed the row.
        if is_same()? { Ok(false) } else { Err(spi.not_written()) }
    })
}

/// Drops a definition; false if there was none.
///
/// # Errors
/// 2BP01: keys have it as their plan; 55000: the row could not be deleted.
pub fn undefine(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<bool> {
    const LOCK: Statement = Statement::locks(
        "SELECT FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @=@ $2 FOR UPDATE",
        &[TEXTOID, TEXTOID],
        &[],
    );
    const DROP: Statement = Statement::writes(
        "DELETE FROM ONLY @schema@.rl_config WHERE name @=@ $1 AND key @=@ $2",
        &[TEXTOID, TEXTOID],
        &[],
    );
    const WITH_PLAN: Statement = Statement::reads(
        "SELECT pg_catalog.count(*) FROM ONLY @schema@.rl_config WHERE name @>@ '' AND key @>@ '' \
         AND (config @->>@ 'plan') @=@ $1",
        &[TEXTOID],
        &[INT8OID],
    );
    let check = |spi: &Connection| {
        if !key.is_empty() {
            return Ok(());
        }
        spi.execute(&WITH_PLAN, &[Some(text_datum(name))])?;
        match spi.field(0, 1).map_or(0, |keys| keys.value() as i64) {
            0 => Ok(()),
            keys => Err(Error::PlanInUse { plan: utf8(name).into_owned(), keys }),
        }
    };
    let found = super::delete(catalog, catalog.rl_config, [&LOCK, &DROP], name, key, check)?;
    Ok(found.is_some())
}
