//! Runs SQL on the extension's tables: prepared once, as the tables' owner, under the latest snapshot.
//!
//! So the caller needs no privilege on the tables, and the owner's triggers run with the owner's rights only: with the
//! rights of the caller or of a SECURITY DEFINER function's owner, they could become superuser.
//! SECURITY_RESTRICTED_OPERATION keeps them from switching roles back. A fixed search_path keeps the caller from
//! choosing the functions that run as the owner.
//!
//! Above READ COMMITTED a statement sees the transaction's snapshot, but limits and definitions must see the latest
//! state: hence `SPI_execute_snapshot` with `GetLatestSnapshot`.
//!
//! Every statement says ONLY. An inheriting table is not covered by the parent's index: it would be scanned, with plans
//! so expensive that each call compiles them (JIT), and it can have a second row of a key. A table that Citus
//! distributes has neither children nor ONLY ([`Connection::plan`]).
//!
//! Every call locks `rateLimits` before `rl_config`, `rl_blocks` and `rl_holds` ([`with_owner`]); in another order
//! calls would deadlock with commands that lock all of them, such as rl_distribute.
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::thread::panicking;

use pgrx::{PgLogLevel, pg_sys};
use ratelimit_limiter::error::LimiterError;
use ratelimit_pg::error::PgError;
use ratelimit_pg::nested_query;
use ratelimit_pg::raise::hiding_rows;
use ratelimit_pg::values::{Jsonb, jsonb, varlena_bytes};

use crate::schema::catalog::{self, Catalog, Table, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::settings;

/// A statement on the extension's tables. Constants only: names and keys are parameters.
pub struct Statement {
    /// The text; `@schema@` stands for the tables' schema, and `@=@` for the operator `=` of pg_catalog, like others.
    /// Says ONLY before a table from which rows are read, updated or deleted.
    pub sql: &'static str,
    /// The types of its parameters.
    pub parameters: Types,
    /// The types of its columns, checked because the tables' owner may alter them.
    pub results: Types,
    /// The table lock that the statement takes.
    pub lock: TableLock,
}

type Types = &'static [pg_sys::BuiltinOid];

impl Statement {
    /// Reads rows: the text, and the types of its parameters and its columns.
    pub const fn reads(sql: &'static str, parameters: Types, results: Types) -> Statement {
        Statement { sql, parameters, results, lock: TableLock::Read }
    }

    /// Locks rows.
    pub const fn locks(sql: &'static str, parameters: Types, results: Types) -> Statement {
        Statement { sql, parameters, results, lock: TableLock::LockRows }
    }

    /// Writes rows.
    pub const fn writes(sql: &'static str, parameters: Types, results: Types) -> Statement {
        Statement { sql, parameters, results, lock: TableLock::Write }
    }
}

/// A prepared statement, for the schema of the tables.
struct Plan {
    schema: CString,
    /// Whether Citus distributes the table.
    distributed: bool,
    plan: Rc<Prepared>,
}

/// A kept plan of SPI. An obsolete one is freed with its last user, because it may be running: a trigger can rename the
/// schema and call a function of the extension.
struct Prepared(pg_sys::SPIPlanPtr);

impl Drop for Prepared {
    fn drop(&mut self) {
        if panicking() {
            LEFT.with_borrow_mut(|left| left.push(self.0));
        } else {
            // SAFETY: nothing runs it.
            unsafe { pg_sys::SPI_freeplan(self.0) };
        }
    }
}

thread_local! {
    /// Not dropped at the end of the process.
    static PLANS: RefCell<ManuallyDrop<HashMap<&'static str, Plan>>> = RefCell::default();
    /// Obsolete plans that an error has left, to be freed by the next connection.
    static LEFT: RefCell<Vec<pg_sys::SPIPlanPtr>> = const { RefCell::new(Vec::new()) };
}

/// The settings under which SQL runs as the owner. Settings made by the owner's code are undone with them, as
/// after REINDEX.
const SETTINGS: [(&CStr, &CStr); 2] = [
    // A plan made for a small table would scan it sequentially, and be kept while the table grows.
    (c"enable_seqscan", c"off"),
    // As in PostgreSQL's own maintenance commands since 17. Temporary objects come last: unlisted they
    // would come first.
    (c"search_path", c"pg_catalog, pg_temp"),
];

/// The settings for writes on other nodes, which any role may have set otherwise: a nested query gets a transaction
/// there, and values are read exactly as they were written, as in postgres_fdw.
const DISTRIBUTED: [(&CStr, &CStr); 4] = [
    (c"citus.function_opens_transaction_block", c"on"),
    (c"datestyle", c"ISO"),
    (c"extra_float_digits", c"3"),
    (c"standard_conforming_strings", c"on"),
];

/// The settings under which Citus logs no statement: statements contain keys.
const DISCREET: [(&CStr, &CStr); 3] = [
    (c"citus.log_remote_commands", c"off"),
    (c"citus.log_local_commands", c"off"),
    (c"client_min_messages", c"notice"),
];

/// Returns the settings for work on a table that Citus distributes.
fn distributed_settings() -> Vec<(&'static CStr, &'static CStr)> {
    let mut settings = DISTRIBUTED.to_vec();
    // SAFETY: look-ups; the setting is a plain number.
    let (may_see, debugs) = unsafe {
        let notice = PgLogLevel::NOTICE as c_int;
        (pg_sys::superuser_arg(pg_sys::GetSessionUserId()), pg_sys::client_min_messages < notice)
    };
    if !may_see {
        settings.extend(&DISCREET[..if debugs { 3 } else { 2 }]);
    }
    settings
}

/// An open connection to SPI, as a table's owner.
pub struct Connection<'a> {
    /// The extension's objects.
    pub catalog: &'a Catalog,
    table: Table,
}

/// Runs `work` connected to SPI as the owner of `table`. `lock`: the strongest lock on the table that the whole work
/// needs; a lock for reading is released afterwards ([`catalog::reading`]). After an error the abort of the
/// (sub)transaction restores user and connection.
pub fn with_owner<T>(
    catalog: &Catalog,
    table: Table,
    lock: TableLock,
    work: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    match lock {
        TableLock::Read => catalog::reading(table, || as_owner(catalog, table, lock, work)),
        TableLock::LockRows | TableLock::Write => as_owner(catalog, table, lock, work),
    }
}

/// Runs `work`, as [`with_owner`]; locks for reading belong to the current resource owner.
fn as_owner<T>(
    catalog: &Catalog,
    table: Table,
    lock: TableLock,
    work: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    // SAFETY: nothing runs these plans; user and connection are restored unless an error aborts.
    unsafe {
        for plan in LEFT.take() {
            pg_sys::SPI_freeplan(plan);
        }
        lock.take(|| {
            if table != catalog.rate_limits {
                let first = match lock {
                    TableLock::Read => lock,
                    _ => catalog::first_lock(),
                };
                pg_sys::LockRelationOid(catalog.rate_limits.oid, first as pg_sys::LOCKMODE);
            }
            pg_sys::LockRelationOid(table.oid, lock as pg_sys::LOCKMODE);
        });
        // During the wait for the lock the table may have got another owner, with other triggers.
        let owner = catalog::owner_of(table.oid).ok_or(Error::Moved)?;
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(
            owner,
            context
                | pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int
                | pg_sys::SECURITY_RESTRICTED_OPERATION as c_int,
        );
        let result = settings::locally(&SETTINGS, || {
            pg_sys::SPI_connect();
            // A snapshot is active, so TOAST can be read: `catalog::with` pushes one if necessary.
            let connection = Connection { catalog, table };
            let result = match table.distributed {
                true => connection.distributed(work),
                false => work(&connection),
            };
            pg_sys::SPI_finish();
            result
        });
        pg_sys::SetUserIdAndSecContext(user, context);
        if matches!(result, Err(Error::Limiter(LimiterError::NotWritten { .. }))) {
            forget_plans();
        }
        result
    }
}

/// Drops all plans: a plan made under a rule DO INSTEAD NOTHING depends on no table, and so outlives the rule.
pub fn forget_plans() {
    drop(ManuallyDrop::into_inner(PLANS.take()));
}

impl Connection<'_> {
    /// Runs `work` on a table that Citus distributes, in one transaction on all nodes. Citus begins one for a
    /// statement only in a transaction block or inside another query: called by a trigger or COPY, each statement
    /// would commit alone.
    fn distributed<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        const ONE_ROW: Statement = Statement::reads("SELECT 1", &[], &[]);
        let plan = self.plan(&ONE_ROW)?;
        let (mut work, mut result) = (Some(work), None);
        let mut once = || {
            result = work.take().map(|work| {
                // SAFETY: a connection of its own, in which the query's is not disturbed.
                unsafe { pg_sys::SPI_connect() };
                let result = work(self);
                // SAFETY: as above.
                unsafe { pg_sys::SPI_finish() };
                result
            });
        };
        let inside = || {
            // SAFETY: connected, and a snapshot is active; `once` closes what it opens.
            unsafe { nested_query::inside(plan.0, &mut once) }
        };
        settings::locally(&distributed_settings(), || hiding_rows(inside));
        result.unwrap_or_else(|| Err(self.not_written()))
    }

    /// Executes a statement under the latest snapshot, at any isolation level, and returns the number of processed
    /// rows. [`LimiterError::NotWritten`]: a rule replaces the statement by another.
    pub fn execute(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<u64> {
        // SAFETY: no field of the last result is used from here on.
        unsafe { pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable) };
        let plan = self.plan(statement)?;
        let mut values: Vec<pg_sys::Datum> =
            parameters.iter().map(|value| value.unwrap_or(pg_sys::Datum::from(0))).collect();
        let nulls: Vec<c_char> = parameters
            .iter()
            .map(|value| if value.is_some() { b' ' } else { b'n' } as c_char)
            .collect();
        debug_assert_eq!(parameters.len(), statement.parameters.len());
        // SAFETY: the parameters are the plan's; the snapshot is registered while in use.
        unsafe {
            // Locked before the snapshot is taken, so that the snapshot sees the changes of those waited for.
            pg_sys::LockRelationOid(self.table.oid, statement.lock as pg_sys::LOCKMODE);
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let result = pg_sys::SPI_execute_snapshot(
                plan.0,
                values.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                false,
                true,
                0,
            );
            pg_sys::UnregisterSnapshot(snapshot);
            // A rule of the table's owner can replace or drop the statement.
            if result < 0 {
                return Err(self.not_written());
            }
        }
        self.check_results(statement)?;
        // SAFETY: set by the statement that has just run.
        Ok(unsafe { pg_sys::SPI_processed })
    }

    /// Returns the tuple id at the beginning of a random page of the table; `None` if it has no pages.
    pub fn random_page(&self) -> Option<pg_sys::Datum> {
        // SAFETY: the table is opened and closed here; the tuple id is palloc'd.
        unsafe {
            let relation = pg_sys::table_open(self.table.oid, TableLock::Read as pg_sys::LOCKMODE);
            let storage =
                pg_sys::get_rel_relkind(self.table.oid) == pg_sys::RELKIND_RELATION as c_char;
            let pages = match storage {
                true => pg_sys::RelationGetNumberOfBlocksInFork(
                    relation,
                    pg_sys::ForkNumber::MAIN_FORKNUM,
                ),
                false => 0,
            };
            pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            if pages == 0 {
                return None;
            }
            let page = fastrand::u32(0..pages);
            let tid = pg_sys::palloc0(size_of::<pg_sys::ItemPointerData>())
                .cast::<pg_sys::ItemPointerData>();
            (*tid).ip_blkid.bi_hi = (page >> 16) as u16;
            (*tid).ip_blkid.bi_lo = page as u16;
            Some(pg_sys::Datum::from(tid))
        }
    }

    /// Returns the error for a row that was not written although no statement failed.
    pub fn not_written(&self) -> Error {
        let table = match self.table {
            table if table == self.catalog.rl_config => "rl_config",
            table if table == self.catalog.rl_blocks => "rl_blocks",
            table if table == self.catalog.rl_holds => "rl_holds",
            _ => "rateLimits",
        };
        LimiterError::NotWritten(table).into()
    }

    /// Checks that there is a result, and the types of its columns.
    fn check_results(&self, statement: &Statement) -> Result<()> {
        for (n, expected) in statement.results.iter().enumerate() {
            // SAFETY: a result has a description; a column past its end has type 0.
            unsafe {
                let table = pg_sys::SPI_tuptable;
                if table.is_null() {
                    return Err(self.not_written());
                }
                let column = n as c_int + 1;
                if pg_sys::SPI_gettypeid((*table).tupdesc, column) != expected.value() {
                    let name = pg_sys::SPI_fname((*table).tupdesc, column);
                    let name = if name.is_null() { c"?" } else { CStr::from_ptr(name) };
                    let column = name.to_string_lossy().into();
                    return Err(PgError::AlteredColumn { column }.into());
                }
            }
        }
        Ok(())
    }

    /// Returns a field of the last result, valid until the next statement; `None`: NULL. Rows are counted from 0,
    /// columns from 1.
    pub fn field(&self, row: u64, column: c_int) -> Option<pg_sys::Datum> {
        // SAFETY: the last result has this row, and SPI_getbinval checks the column.
        unsafe {
            let table = pg_sys::SPI_tuptable;
            if table.is_null() || row >= (*table).numvals {
                return None;
            }
            let mut is_null = false;
            let tuple = *(*table).vals.add(row as usize);
            let datum = pg_sys::SPI_getbinval(tuple, (*table).tupdesc, column, &mut is_null);
            (!is_null).then_some(datum)
        }
    }

    /// Returns a jsonb field like [`field`](Connection::field).
    pub fn jsonb(&self, row: u64, column: c_int) -> Option<Jsonb<'_>> {
        // SAFETY: `check_results` has checked that the column is a jsonb.
        self.field(row, column).map(|datum| unsafe { jsonb(datum) })
    }

    /// Returns a copy of a text field like [`field`](Connection::field).
    pub fn text(&self, row: u64, column: c_int) -> Option<Vec<u8>> {
        // SAFETY: `check_results` has checked that the column is a text.
        self.field(row, column).map(|datum| unsafe { varlena_bytes(datum).to_vec() })
    }

    /// Returns the plan of a statement, prepared if necessary. Without ONLY on a table that Citus distributes: such a
    /// table has no children (EnsureRelationKindSupported and PostprocessCreateTableStmt of Citus 13.0), so the effect
    /// of ONLY in Citus does not matter. [`LimiterError::NotWritten`]: the statement can't be prepared.
    fn plan(&self, statement: &Statement) -> Result<Rc<Prepared>> {
        let (schema, distributed) = (&self.catalog.schema, self.table.distributed);
        let is_as_now = |plan: &Plan| plan.schema == *schema && plan.distributed == distributed;
        let known = PLANS.with_borrow(|plans| {
            plans
                .get(statement.sql)
                .filter(|known| is_as_now(known))
                .map(|known| known.plan.clone())
        });
        if let Some(plan) = known {
            return Ok(plan);
        }
        let mut sql = Cow::Borrowed(statement.sql);
        if distributed {
            sql = sql.replace("ONLY @schema@", "@schema@").into();
        }
        // Bytes, because the schema's name is in the server's encoding. Every second part is a mark.
        let part = |(n, part): (usize, &str)| match part {
            "schema" if n % 2 == 1 => schema.as_bytes().to_vec(),
            operator if n % 2 == 1 => format!("OPERATOR(pg_catalog.{operator})").into_bytes(),
            text => text.into(),
        };
        let sql: Vec<u8> = sql.split('@').enumerate().flat_map(part).collect();
        let sql = CString::new(sql).unwrap_or_default();
        let mut types: Vec<pg_sys::Oid> =
            statement.parameters.iter().map(|parameter| parameter.value()).collect();
        // SAFETY: a valid C string and types; a kept plan lives until it is freed.
        let prepared = unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr());
            if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                return Err(self.not_written());
            }
            Rc::new(Prepared(plan))
        };
        let plan = Plan { schema: schema.clone(), distributed, plan: prepared.clone() };
        let _obsolete = PLANS.with_borrow_mut(|plans| plans.insert(statement.sql, plan));
        Ok(prepared)
    }
}
