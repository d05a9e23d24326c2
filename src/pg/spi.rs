//! SQL on the extension's tables: prepared once, run as the tables' owner, under the latest
//! snapshot.
//!
//! Running as the owner means that the caller needs no privilege on the tables, and that a trigger
//! which the owner put there runs with the owner's rights only: with the caller's, or as a
//! security definer function's owner, it could become superuser. SECURITY_RESTRICTED_OPERATION
//! keeps it from changing roles back. And the caller must not choose what runs as the owner: names in
//! the owner's code mean the same whatever the caller's search_path is.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::pg_sys;

use crate::pg::catalog::{Catalog, Table, TableLock};
use crate::pg::error::{Error, Result};
use crate::pg::settings;
use crate::pg::transaction::{with_lasting_locks, with_snapshot};
use crate::pg::values::{Jsonb, jsonb};

/// A statement on the extension's tables; `@schema@` stands for their schema. Constants only:
/// names and keys are parameters, never part of the text.
pub struct Statement {
    pub sql: &'static str,
    pub parameters: &'static [pg_sys::BuiltinOid],
    /// What it selects. The tables' owner can alter a column, and a value must never be read as of
    /// another type than it has.
    pub results: &'static [pg_sys::BuiltinOid],
    pub lock: TableLock,
}

struct Plan {
    schema: CString,
    plan: pg_sys::SPIPlanPtr,
}

thread_local! {
    static PLANS: RefCell<HashMap<&'static str, Plan>> = RefCell::new(HashMap::new());
    /// Plans of a schema that was renamed. One of them may be running: a trigger can rename the
    /// schema and call us, so they are freed by the next connection that is nobody's guest.
    static OLD_PLANS: RefCell<Vec<pg_sys::SPIPlanPtr>> = const { RefCell::new(Vec::new()) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts the connections that are open, also when an error unwinds them.
struct Depth;

impl Depth {
    fn enter() -> Depth {
        if DEPTH.get() == 0 {
            for plan in OLD_PLANS.take() {
                // SAFETY: the plan was kept, is no longer in PLANS, and nothing of ours runs.
                unsafe { pg_sys::SPI_freeplan(plan) };
            }
        }
        DEPTH.set(DEPTH.get() + 1);
        Depth
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// The settings under which SQL runs as the owner. What the owner's code sets meanwhile is taken back
/// with them, as after a function that a REINDEX calls.
const SETTINGS: [(&CStr, &CStr); 2] = [
    // A plan made while the table was small would scan all of it, and be kept as it grows.
    (c"enable_seqscan", c"off"),
    // That of PostgreSQL's own maintenance commands from 17 on. Temporary objects come last, since
    // unnamed they would come first; functions and operators are never looked for among them.
    (c"search_path", c"pg_catalog, pg_temp"),
];

/// An open connection to SPI, acting as a table's owner.
pub struct Connection<'a> {
    pub catalog: &'a Catalog,
    table: Table,
}

/// Connects to SPI as the owner of `table` while `work` runs, with the `lock` on it that the whole
/// work needs. An error on the way leaves the clearing up to the abort of the (sub)transaction, as
/// everywhere in Postgres.
pub fn with_owner<T>(
    catalog: &Catalog,
    table: Table,
    lock: TableLock,
    work: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    let _depth = Depth::enter();
    // SAFETY: the user and the connection are put back on every way out that does not abort.
    unsafe {
        with_lasting_locks(|| pg_sys::LockRelationOid(table.oid, lock as pg_sys::LOCKMODE));
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(
            table.owner,
            context
                | pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int
                | pg_sys::SECURITY_RESTRICTED_OPERATION as c_int,
        );
        let result = settings::locally(&SETTINGS, || {
            pg_sys::SPI_connect();
            let result = with_snapshot(|| work(&Connection { catalog, table }));
            pg_sys::SPI_finish();
            result
        });
        pg_sys::SetUserIdAndSecContext(user, context);
        if matches!(result, Err(Error::NotWritten { .. })) {
            forget_plans();
        }
        result
    }
}

/// A rule that does nothing instead leaves a plan that depends on no table, and so outlives the
/// rule: prepare everything anew.
fn forget_plans() {
    let plans = PLANS.take().into_values().map(|plan| plan.plan);
    OLD_PLANS.with_borrow_mut(|old| old.extend(plans));
}

impl Connection<'_> {
    /// Runs a statement under the latest snapshot, whatever the isolation level, and returns how
    /// many rows it processed.
    pub fn execute(
        &self,
        statement: &Statement,
        parameters: &[Option<pg_sys::Datum>],
    ) -> Result<u64> {
        // SAFETY: the last result's fields were good until now.
        unsafe { pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable) };
        let plan = self.plan(statement)?;
        let mut values: Vec<pg_sys::Datum> =
            parameters.iter().map(|value| value.unwrap_or(pg_sys::Datum::from(0))).collect();
        let nulls: Vec<c_char> = parameters
            .iter()
            .map(|value| if value.is_some() { b' ' } else { b'n' } as c_char)
            .collect();
        debug_assert_eq!(parameters.len(), statement.parameters.len());
        // SAFETY: plan and parameters belong together; the snapshot is held while it is in use.
        unsafe {
            // The table is locked before the snapshot is taken: whoever had to wait for it must see
            // what it was waiting for.
            pg_sys::LockRelationOid(self.table.oid, statement.lock as pg_sys::LOCKMODE);
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let result = pg_sys::SPI_execute_snapshot(
                plan,
                values.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                false,
                true,
                0,
            );
            pg_sys::UnregisterSnapshot(snapshot);
            // A rule that its owner put on the table can make another command of it, or none.
            if result < 0 {
                return Err(self.not_written());
            }
        }
        self.check_results(statement)?;
        // SAFETY: set by the statement that has just run.
        Ok(unsafe { pg_sys::SPI_processed })
    }

    /// The tuple id at which a page of the table begins, picked at random; `None` while it is empty.
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

    /// The error of a row that could not be written or read although nothing failed.
    pub fn not_written(&self) -> Error {
        let config = self.table == self.catalog.rl_config;
        Error::NotWritten { table: if config { "rl_config" } else { "rateLimits" } }
    }

    fn check_results(&self, statement: &Statement) -> Result<()> {
        for (n, expected) in statement.results.iter().enumerate() {
            // SAFETY: a table of results has a description; a column past its end has type 0.
            unsafe {
                let table = pg_sys::SPI_tuptable;
                if table.is_null() {
                    return Err(self.not_written());
                }
                let column = n as c_int + 1;
                if pg_sys::SPI_gettypeid((*table).tupdesc, column) != expected.value() {
                    let name = pg_sys::SPI_fname((*table).tupdesc, column);
                    let name = if name.is_null() { c"?" } else { CStr::from_ptr(name) };
                    return Err(Error::AlteredColumn { column: name.to_string_lossy().into() });
                }
            }
        }
        Ok(())
    }

    /// A field of the last result, which lives until the next statement.
    pub fn field(&self, row: u64, column: c_int) -> Option<pg_sys::Datum> {
        // SAFETY: the table of the last result has so many rows and columns, or we return None.
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

    /// A jsonb field of the last result.
    pub fn jsonb(&self, row: u64, column: c_int) -> Option<Jsonb<'_>> {
        // SAFETY: `check_results` saw that the column is the jsonb that the statement says it is.
        self.field(row, column).map(|datum| unsafe { jsonb(datum) })
    }

    fn plan(&self, statement: &Statement) -> Result<pg_sys::SPIPlanPtr> {
        let schema = &self.catalog.schema;
        let known = PLANS.with_borrow_mut(|plans| match plans.get(statement.sql) {
            Some(known) if known.schema == *schema => Some(known.plan),
            _ => {
                if let Some(moved) = plans.remove(statement.sql) {
                    OLD_PLANS.with_borrow_mut(|old| old.push(moved.plan));
                }
                None
            }
        });
        if let Some(plan) = known {
            return Ok(plan);
        }
        // As bytes: the schema's name is in the server's encoding.
        let parts: Vec<&[u8]> = statement.sql.split("@schema@").map(str::as_bytes).collect();
        let sql = CString::new(parts.join(schema.as_bytes())).unwrap_or_default();
        let mut types: Vec<pg_sys::Oid> =
            statement.parameters.iter().map(|parameter| parameter.value()).collect();
        // SAFETY: valid C string and types; a kept plan lives until it is freed.
        let plan = unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr());
            if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                return Err(self.not_written());
            }
            plan
        };
        // Preparing may have run code that prepared the same statement.
        let plan = Plan { schema: schema.clone(), plan };
        let raw = plan.plan;
        if let Some(other) = PLANS.with_borrow_mut(|plans| plans.insert(statement.sql, plan)) {
            OLD_PLANS.with_borrow_mut(|old| old.push(other.plan));
        }
        Ok(raw)
    }
}
