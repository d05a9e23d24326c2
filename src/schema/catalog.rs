//! The extension's objects in this database. Found through the extension, never through search_path, and cached until
//! an invalidation.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_int};
use std::rc::Rc;
use std::thread::LocalKey;

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;
use ratelimit_pg::transaction::{
    Snapshot, local_transaction, subtransaction, with_lasting_locks, with_passing_locks,
};

use crate::schema::error::{Error, Result};
use crate::schema::unaltered_table::OpenTable;
use crate::schema::{citus, invalidation};

/// The extension's objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    /// The extension itself.
    pub extension: pg_sys::Oid,
    /// Its schema.
    namespace: pg_sys::Oid,
    /// The schema as an SQL identifier, quoted where necessary.
    pub schema: CString,
    /// rateLimits.
    pub rate_limits: Table,
    /// rl_config.
    pub rl_config: Table,
    /// rl_blocks.
    pub rl_blocks: Table,
    /// rl_holds.
    pub rl_holds: Table,
    /// The indexes of rl_holds for direct access: that of its primary key, id, name and key; and that of name, key,
    /// charge and expires_at. `None` if the table needs SQL.
    pub hold_indexes: Option<[pg_sys::Oid; 2]>,
    /// The index of the primary key of rateLimits for direct access, or the reason why the table needs SQL.
    pub index: std::result::Result<pg_sys::Oid, &'static str>,
    /// Whether the primary key of rateLimits is unaltered, which rules out two rows of one key.
    pub usual_key: bool,
    /// The function `rl_define`. A config in a call requires EXECUTE on it.
    pub rl_define: pg_sys::Oid,
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Its OID.
    pub oid: pg_sys::Oid,
    /// Whether Citus distributes it.
    pub distributed: bool,
    /// Whether it is distributed by the column `key`, or by none, with one copy of each row.
    pub by_key: bool,
}

/// The table lock of a statement, as Postgres takes it.
#[derive(Clone, Copy)]
pub enum TableLock {
    /// ACCESS SHARE, of a SELECT.
    Read = pg_sys::AccessShareLock as isize,
    /// ROW SHARE, of a SELECT ... FOR UPDATE.
    LockRows = pg_sys::RowShareLock as isize,
    /// ROW EXCLUSIVE, of an INSERT, UPDATE or DELETE. A call that will write takes it first: REINDEX holds SHARE on the
    /// table while it waits for the index, so a call that reads first and takes a stronger lock later would deadlock.
    Write = pg_sys::RowExclusiveLock as isize,
}

impl TableLock {
    /// Takes locks of this mode. They last until the end of the transaction, or of [`reading`].
    pub fn take(self, locks: impl FnOnce()) {
        match self {
            TableLock::Read if PASSES.get() => locks(),
            _ => with_lasting_locks(locks),
        }
    }
}

/// Runs `work`, which reads a table, and releases its locks: a call that waits for locks later holds none of these, and
/// so can't deadlock with REINDEX. The locks last to the end of the transaction if reads run code of the table's owner,
/// which may write, or if other nodes have the rows.
pub fn reading<T>(table: Table, work: impl FnOnce() -> T) -> T {
    let runs_code = class_of(table.oid, |class| class.relforcerowsecurity) == Some(true);
    if table.distributed || runs_code {
        return work();
    }
    let _passing = Restore(&PASSES, PASSES.replace(true));
    with_passing_locks(work)
}

/// The tries of a call before it gives up. A change of the table causes another try.
const TRIES: u32 = 1000;

thread_local! {
    static CACHED: RefCell<Option<Cached>> = const { RefCell::new(None) };
    static RUNNING: Cell<Running> = const { Cell::new(Running { lock: TableLock::Read, again: false }) };
    /// The table for which [`announce_written`] has last announced changes, and when.
    static ANNOUNCED: Cell<Option<Announced>> = const { Cell::new(None) };
    /// Whether locks for reading are released by [`reading`].
    static PASSES: Cell<bool> = const { Cell::new(false) };
}

/// A table, a transaction, a subtransaction, and the command after the announcement.
type Announced =
    (pg_sys::Oid, pg_sys::LocalTransactionId, pg_sys::SubTransactionId, pg_sys::CommandId);

/// The catalog that was read last.
struct Cached {
    catalog: Rc<Catalog>,
    /// The value of [`invalidation::changes`] before the catalog was read.
    changes: u64,
}

/// The running call.
#[derive(Clone, Copy)]
struct Running {
    /// The lock on rateLimits that the call needs.
    lock: TableLock,
    /// Whether the call has started again, with the table locked.
    again: bool,
}

/// Sets a variable back, also after an error: a trigger may run one call inside another.
struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// The lock on rateLimits that the running call needs. A caller that locks another table of the extension takes it
/// first, as [`with`] does: in another order, calls could deadlock with statements that lock all tables.
pub fn first_lock() -> TableLock {
    RUNNING.get().lock
}

/// Whether no invalidation has come since the catalog was read. Raises no error, and calls nothing of Postgres.
pub fn is_fresh(catalog: &Catalog) -> bool {
    CACHED.with_borrow(|cached| {
        cached.as_ref().is_some_and(|cached| {
            cached.changes == invalidation::changes() && std::ptr::eq(&*cached.catalog, catalog)
        })
    })
}

/// Checks that the running call may continue with its catalog and definitions: either no invalidation has come
/// since ([`is_fresh`]), or the call has started again before and the tables are the same. Without the second case,
/// a call would never end if invalidations keep coming, or if Postgres discards its caches at each opportunity
/// (`debug_discard_caches`). Called with rateLimits locked: taking the lock has processed the invalidations of
/// other sessions.
///
/// # Errors
/// [`Error::Moved`].
pub fn check(catalog: &Catalog) -> Result<()> {
    let is_unchanged = || read(catalog.namespace).is_ok_and(|now| now == *catalog);
    if is_fresh(catalog) || RUNNING.get().again && is_unchanged() {
        return Ok(());
    }
    Err(Error::Moved)
}

/// Runs `work` with the extension's objects, as a new command with a snapshot, and again if the table changes before
/// the first write. `lock`: the lock that it needs on rateLimits; no weaker one that lasts is taken before.
pub fn with<T>(
    function: pg_sys::Oid,
    lock: TableLock,
    mut work: impl FnMut(&Catalog) -> Result<T>,
) -> Result<T> {
    let _outer = Restore(&RUNNING, RUNNING.replace(Running { lock, again: false }));
    new_command();
    let _snapshot = Snapshot::ensure();
    let mut catalog = cached(function)?;
    for _ in 0..TRIES {
        match work(&catalog) {
            Err(Error::Moved) => {
                RUNNING.set(Running { lock, again: true });
                catalog = latest(function)?;
            }
            outcome => return outcome,
        }
    }
    Err(Error::Moved)
}

/// Returns the extension's objects as they are now. `function`: the OID of the called SQL function, which is in the
/// extension's schema.
///
/// # Errors
/// [`Error::NoTable`] (42P01): a table is not in that schema.
pub fn latest(function: pg_sys::Oid) -> Result<Rc<Catalog>> {
    // Opening a table that is already locked processes no invalidations: a long transaction would never see a change.
    invalidation::accept();
    cached(function)
}

/// Makes the writes of the caller's command visible, as any function that runs SQL, and processes the invalidations of
/// other sessions, as [`latest`]. One guard for both, because a guard takes longer than either.
fn new_command() {
    unsafe extern "C-unwind" {
        fn CommandCounterIncrement();
        fn AcceptInvalidationMessages();
    }
    // SAFETY: in a transaction, and not in parallel. An error jumps past nothing that is to be dropped: neither here
    // nor in the callbacks of `invalidation`, which don't panic and call nothing of Postgres.
    unsafe {
        pg_guard_ffi_boundary(|| {
            CommandCounterIncrement();
            AcceptInvalidationMessages();
        });
    }
}

/// Notifies every session of this node that definitions or blocks have changed, for a trigger of `function` on
/// `written`: rl_config or rl_blocks, or, if Citus distributes it, this node's copy, which no session knows.
pub fn announce(function: pg_sys::Oid, written: pg_sys::Oid) -> Result<()> {
    invalidation::announce(written);
    if citus::is_installed() {
        let rl_config = latest(function)?.rl_config.oid;
        if rl_config != written {
            invalidation::announce(rl_config);
        }
    }
    Ok(())
}

/// Notifies every session, as [`announce`], for a trigger that runs after the rows are written, and makes the rows
/// visible. Once for all rows of a statement: another announcement would end the command, and so discard what this
/// session has read for the row before.
pub fn announce_written(function: pg_sys::Oid, written: pg_sys::Oid) -> Result<()> {
    // A later write starts another command; a rollback that undoes the announcement ends its subtransaction.
    // SAFETY: in a transaction.
    let command = || unsafe { pg_sys::GetCurrentCommandId(false) };
    let now = || (written, local_transaction(), subtransaction(), command());
    new_command();
    if ANNOUNCED.get() == Some(now()) {
        return Ok(());
    }
    announce(function, written)?;
    new_command();
    ANNOUNCED.set(Some(now()));
    Ok(())
}

/// Returns the extension's objects as of the invalidations processed; reads them if one came.
fn cached(function: pg_sys::Oid) -> Result<Rc<Catalog>> {
    // Counted before the read: a change during it makes the next call read again.
    let changes = invalidation::changes();
    let known = CACHED.with_borrow(|cached| {
        cached
            .as_ref()
            .filter(|cached| cached.changes == changes)
            .map(|cached| cached.catalog.clone())
    });
    if let Some(catalog) = known {
        return Ok(catalog);
    }
    // Until they are read, every changed table may be one of the extension's.
    CACHED.set(None);
    invalidation::watch_tables(None);
    // SAFETY: a look-up in the system catalogs, in a transaction.
    let catalog = Rc::new(read(unsafe { pg_sys::get_func_namespace(function) })?);
    let Catalog { rate_limits, rl_config, rl_blocks, rl_holds, .. } = &*catalog;
    let definitions = [rl_config.oid, rl_blocks.oid];
    invalidation::watch_tables(Some((definitions, [rate_limits.oid, rl_holds.oid])));
    CACHED.set(Some(Cached { catalog: catalog.clone(), changes }));
    Ok(catalog)
}

/// Reads the objects in a schema.
fn read(namespace: pg_sys::Oid) -> Result<Catalog> {
    // SAFETY: a look-up in the system catalogs, in a transaction; the name is null or a C string.
    let schema = unsafe {
        let name = pg_sys::get_namespace_name(namespace);
        let is_there = !name.is_null();
        is_there.then(|| CStr::from_ptr(pg_sys::quote_identifier(name)).to_owned())
    };
    let extension = extension();
    let rate_limits = table(extension, namespace, c"ratelimits", "rateLimits")?;
    let (index, usual_key) = OpenTable::with(rate_limits.oid, |table| {
        (table.index_of_limits(), table.unaltered_key().is_some())
    })
    .ok_or(Error::NoTable { table: "rateLimits" })?;
    let rl_holds = table(extension, namespace, c"rl_holds", "rl_holds")?;
    Ok(Catalog {
        hold_indexes: OpenTable::with(rl_holds.oid, OpenTable::indexes_of_holds).flatten(),
        extension,
        namespace,
        schema: schema.unwrap_or_default(),
        rate_limits,
        index,
        usual_key,
        rl_config: table(extension, namespace, c"rl_config", "rl_config")?,
        rl_blocks: table(extension, namespace, c"rl_blocks", "rl_blocks")?,
        rl_holds,
        rl_define: rl_define(namespace),
    })
}

/// Finds a table of the extension; `table` is its name in the error.
///
/// # Errors
/// [`Error::NoTable`] (42P01): it is not in this schema, or not the extension's.
fn table(
    extension: pg_sys::Oid,
    namespace: pg_sys::Oid,
    relname: &CStr,
    table: &'static str,
) -> Result<Table> {
    // SAFETY: look-ups in the system catalogs, in a transaction.
    let (oid, owner) = unsafe {
        let oid = pg_sys::get_relname_relid(relname.as_ptr(), namespace);
        (oid, pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid))
    };
    if [extension, oid].contains(&pg_sys::InvalidOid) || owner != extension {
        return Err(Error::NoTable { table });
    }
    let by_key = citus::distribution(oid);
    Ok(Table { oid, distributed: by_key.is_some(), by_key: by_key == Some(true) })
}

/// Returns the owner of a relation, `None` if there is none. SQL may run as that role if the relation is locked.
pub fn owner_of(relation: pg_sys::Oid) -> Option<pg_sys::Oid> {
    class_of(relation, |class| class.relowner)
}

/// Reads the row of a relation in pg_class; `None` if there is no relation.
fn class_of<T>(
    relation: pg_sys::Oid,
    read: impl FnOnce(&pg_sys::FormData_pg_class) -> T,
) -> Option<T> {
    // SAFETY: rows of pg_class have this form.
    cached_row(pg_sys::SysCacheIdentifier::RELOID, relation, |tuple| unsafe {
        read(&*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(tuple))
    })
}

/// Reads a row of the system catalogs; `None`: there is none.
fn cached_row<T>(
    cache: pg_sys::SysCacheIdentifier::Type,
    oid: pg_sys::Oid,
    read: impl FnOnce(pg_sys::HeapTuple) -> T,
) -> Option<T> {
    // SAFETY: in a transaction; the tuple is read before it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as c_int, oid.into());
        if tuple.is_null() {
            return None;
        }
        let result = read(tuple);
        pg_sys::ReleaseSysCache(tuple);
        Some(result)
    }
}

/// The extension of this database; `InvalidOid`: it has none.
pub fn extension() -> pg_sys::Oid {
    // SAFETY: a look-up in the system catalogs, in a transaction.
    unsafe { pg_sys::get_extension_oid(c"ratelimit".as_ptr(), true) }
}

/// The extension's function `rl_define`, found by the schema of one of its tables; `InvalidOid` if the table is gone.
pub fn function_beside(table: pg_sys::Oid) -> pg_sys::Oid {
    // SAFETY: a look-up in the system catalogs, in a transaction.
    rl_define(unsafe { pg_sys::get_rel_namespace(table) })
}

/// Whether a database with this OID exists.
pub fn has_database(database: pg_sys::Oid) -> bool {
    cached_row(pg_sys::SysCacheIdentifier::DATABASEOID, database, drop).is_some()
}

/// Whether a database was altered since it was created: its row in pg_database was written by an UPDATE. False if it
/// does not exist.
pub fn is_database_altered(database: pg_sys::Oid) -> bool {
    // SAFETY: a tuple has a header.
    let bits = cached_row(pg_sys::SysCacheIdentifier::DATABASEOID, database, |tuple| unsafe {
        (*(*tuple).t_data).t_infomask
    });
    bits.is_some_and(|bits| u32::from(bits) & pg_sys::HEAP_UPDATED != 0)
}

/// Finds the function `rl_define(text, jsonb, text)`; `InvalidOid` if there is none.
fn rl_define(namespace: pg_sys::Oid) -> pg_sys::Oid {
    let arguments = [pg_sys::TEXTOID, pg_sys::JSONBOID, pg_sys::TEXTOID];
    // SAFETY: a look-up in the system catalogs, in a transaction; the vector is palloc'd.
    unsafe {
        let arguments = pg_sys::buildoidvector(arguments.as_ptr(), arguments.len() as c_int);
        pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as c_int,
            pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber,
            pg_sys::Datum::from(c"rl_define".as_ptr()),
            pg_sys::Datum::from(arguments),
            pg_sys::Datum::from(namespace),
            pg_sys::Datum::from(0),
        )
    }
}

impl Catalog {
    /// Whether the current user has EXECUTE on rl_define.
    pub fn may_define(&self) -> bool {
        if self.rl_define == pg_sys::InvalidOid {
            return false;
        }
        // SAFETY: reads the privileges of an existing function.
        unsafe {
            let user = pg_sys::GetUserId();
            let mode = pg_sys::ACL_EXECUTE as pg_sys::AclMode;
            #[cfg(feature = "pg15")]
            let result = pg_sys::pg_proc_aclcheck(self.rl_define, user, mode);
            #[cfg(not(feature = "pg15"))]
            let result =
                pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, self.rl_define, user, mode);
            result == pg_sys::AclResult::ACLCHECK_OK
        }
    }
}
