//! Finds out whether Citus distributes a table. The rows of such a table are in shards, here or on other nodes, and the
//! table itself is empty.

use std::ffi::CStr;
use std::ptr::null_mut;

use pgrx::pg_sys;

/// Whether Citus is installed in this database.
pub fn is_installed() -> bool {
    // SAFETY: a look-up in the system catalogs, in a transaction.
    unsafe { pg_sys::get_extension_oid(c"citus".as_ptr(), true) != pg_sys::InvalidOid }
}

/// How Citus distributes a table: whether by the column `key`, or by no column with one copy of each row; `None`: it
/// doesn't. All nodes have its list, pg_dist_partition, and it invalidates the table at each change of its entry.
pub fn distribution(table: pg_sys::Oid) -> Option<bool> {
    if !is_installed() {
        return None;
    }
    // SAFETY: in a transaction; scans a catalog of Citus, opened and closed here. Its column is compared if it is a
    // regclass.
    unsafe {
        let catalog = pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE);
        let list = pg_sys::get_relname_relid(c"pg_dist_partition".as_ptr(), catalog);
        if list == pg_sys::InvalidOid {
            return None;
        }
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let list = pg_sys::table_open(list, lock);
        let description = (*list).rd_att;
        let column = pg_sys::SPI_fnumber(description, c"logicalrelid".as_ptr());
        // An unexpected layout of the list: assume that it contains the table.
        let mut found = Some(false);
        if column > 0 && pg_sys::SPI_gettypeid(description, column) == pg_sys::REGCLASSOID {
            let mut key = pg_sys::ScanKeyData::default();
            pg_sys::ScanKeyInit(
                &mut key,
                column as pg_sys::AttrNumber,
                pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                pg_sys::F_OIDEQ.into(),
                table.into(),
            );
            let none = pg_sys::InvalidOid;
            let scan = pg_sys::systable_beginscan(list, none, false, null_mut(), 1, &mut key);
            let row = pg_sys::systable_getnext(scan);
            found = (!row.is_null()).then(|| by_key(row, description, table));
            pg_sys::systable_endscan(scan);
        }
        pg_sys::table_close(list, lock);
        found
    }
}

/// Whether a row of pg_dist_partition says that a table is distributed by its column `key`, or by no column with one
/// copy of each row (`repmodel` s).
///
/// # Safety
/// The row is of the description's type.
unsafe fn by_key(
    row: pg_sys::HeapTuple,
    description: pg_sys::TupleDesc,
    table: pg_sys::Oid,
) -> bool {
    // SAFETY: as the caller says; a value is a C string or null.
    let field = |name: &CStr| unsafe {
        let number = pg_sys::SPI_fnumber(description, name.as_ptr());
        let value =
            if number > 0 { pg_sys::SPI_getvalue(row, description, number) } else { null_mut() };
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    };
    // SAFETY: a look-up in the system catalogs.
    let number = unsafe { pg_sys::get_attnum(table, c"key".as_ptr()) };
    let column = format!(":varattno {number} ");
    field(c"repmodel").as_deref() == Some("s")
        && field(c"partkey").is_none_or(|partkey| partkey.contains(&column))
}
