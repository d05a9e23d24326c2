//! Where the extension's objects are in this database: found through the extension, never through
//! search_path, remembered until an invalidation says that something moved.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_int};
use std::rc::Rc;

use pgrx::pg_sys;

use crate::pg::error::{Error, Result};
use crate::pg::transaction::with_snapshot;
use crate::pg::{invalidation, usual_table};

/// The extension's objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    /// The schema as it is written in SQL, quoted where it must be.
    pub schema: CString,
    pub rate_limits: Table,
    pub rl_config: Table,
    /// The index by which the rows of rateLimits can be reached without SQL, or why they can't.
    pub index: std::result::Result<pg_sys::Oid, &'static str>,
    /// Whether the primary key of rateLimits is the usual one, and so keeps its rows apart.
    pub usual_key: bool,
    /// The function that a config in a call needs the right to call.
    pub rl_define: pg_sys::Oid,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    pub oid: pg_sys::Oid,
    pub owner: pg_sys::Oid,
}

/// The lock on the table that a statement needs, which is also the one that Postgres takes for it.
#[derive(Clone, Copy)]
pub enum TableLock {
    /// ACCESS SHARE, of a SELECT.
    Read = pg_sys::AccessShareLock as isize,
    /// ROW SHARE, of a SELECT ... FOR UPDATE.
    LockRows = pg_sys::RowShareLock as isize,
    /// ROW EXCLUSIVE, of whatever writes.
    Write = pg_sys::RowExclusiveLock as isize,
}

/// How often the table may change under a call's hands.
const MOVES: u32 = 1000;

thread_local! {
    static CATALOG: RefCell<Option<Rc<Catalog>>> = const { RefCell::new(None) };
    /// The value of [`invalidation::changes`] that CATALOG was read at.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Whether nothing has changed since the catalog was read last.
pub fn is_current() -> bool {
    SEEN.get() == invalidation::changes()
}

/// Runs `work` with the extension's objects, as a command of its own with a snapshot, and again where
/// the table changed before it began to write. `lock` is what the work needs on rateLimits: nothing here
/// takes a weaker one.
///
/// # Errors
/// As [`current`], and those of the work.
pub fn with<T>(
    function: pg_sys::Oid,
    lock: TableLock,
    mut work: impl FnMut(&Catalog) -> Result<T>,
) -> Result<T> {
    // SAFETY: in a transaction, and not in parallel. What the caller's command has written so far is
    // seen, as by any function that runs SQL.
    unsafe { pg_sys::CommandCounterIncrement() };
    with_snapshot(|| {
        for _ in 0..MOVES {
            match work(&*current(function, lock)?) {
                Err(Error::Moved) => {}
                outcome => return outcome,
            }
        }
        Err(Error::Moved)
    })
}

/// The extension's objects as they stand now. `function` is the OID of the SQL function that is
/// being called, which tells the extension's schema; `lock` is taken on rateLimits where that has to
/// be looked at.
///
/// # Errors
/// [`Error::NoTable`] where a table is no longer in that schema.
pub fn current(function: pg_sys::Oid, lock: TableLock) -> Result<Rc<Catalog>> {
    // SAFETY: processes what other sessions announced. A table that is locked already announces
    // nothing more when it is opened again, so a long transaction would never see a change.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let known = CATALOG.with_borrow(Option::clone);
    match known {
        Some(catalog) if SEEN.get() == invalidation::changes() => Ok(catalog),
        _ => look_up(function, lock),
    }
}

fn look_up(function: pg_sys::Oid, lock: TableLock) -> Result<Rc<Catalog>> {
    // Until it is known anew, each table that is announced as changed may be ours.
    CATALOG.set(None);
    invalidation::watch_tables(None);
    // Counted before the look-up: what changes during it makes it be done again.
    let changes = invalidation::changes();
    // SAFETY: look-ups in the system catalogs.
    let catalog = unsafe {
        let extension = pg_sys::get_extension_oid(c"ratelimit".as_ptr(), true);
        let namespace = pg_sys::get_func_namespace(function);
        let name = pg_sys::get_namespace_name(namespace);
        let schema = if name.is_null() {
            CString::default()
        } else {
            CStr::from_ptr(pg_sys::quote_identifier(name)).to_owned()
        };
        let rate_limits = table(extension, namespace, c"ratelimits", "rateLimits")?;
        let relation = pg_sys::try_table_open(rate_limits.oid, lock as _);
        if relation.is_null() {
            return Err(Error::NoTable { table: "rateLimits" }); // dropped while this waited
        }
        let index = usual_table::index_of(relation);
        let usual_key = usual_table::usual_key(relation).is_some();
        pg_sys::table_close(relation, pg_sys::NoLock as _);
        Catalog {
            schema,
            rate_limits,
            index,
            usual_key,
            rl_config: table(extension, namespace, c"rl_config", "rl_config")?,
            rl_define: rl_define(namespace),
        }
    };
    let catalog = Rc::new(catalog);
    CATALOG.with_borrow_mut(|known| *known = Some(catalog.clone()));
    invalidation::watch_tables(Some((catalog.rate_limits.oid, catalog.rl_config.oid)));
    SEEN.set(changes);
    Ok(catalog)
}

/// # Safety
/// Inside a transaction.
unsafe fn table(
    extension: pg_sys::Oid,
    namespace: pg_sys::Oid,
    relname: &CStr,
    table: &'static str,
) -> Result<Table> {
    // SAFETY: look-ups in the system catalogs; the tuple is read before it is released.
    unsafe {
        let oid = pg_sys::get_relname_relid(relname.as_ptr(), namespace);
        let member = extension != pg_sys::InvalidOid
            && oid != pg_sys::InvalidOid
            && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid) == extension;
        let tuple = if member {
            pg_sys::SearchSysCache1(
                pg_sys::SysCacheIdentifier::RELOID as c_int,
                pg_sys::Datum::from(oid),
            )
        } else {
            std::ptr::null_mut()
        };
        if tuple.is_null() {
            return Err(Error::NoTable { table });
        }
        let class = pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(tuple);
        let owner = (*class).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Ok(Table { oid, owner })
    }
}

/// # Safety
/// Inside a transaction.
unsafe fn rl_define(namespace: pg_sys::Oid) -> pg_sys::Oid {
    let arguments = [pg_sys::TEXTOID, pg_sys::JSONBOID, pg_sys::TEXTOID];
    // SAFETY: a look-up in the system catalogs; the vector is palloc'd.
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
    /// Whether the current user may call rl_define.
    pub fn may_define(&self) -> bool {
        if self.rl_define == pg_sys::InvalidOid {
            return false;
        }
        // SAFETY: looks at the privileges of an existing function.
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
