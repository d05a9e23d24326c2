//! Citus, where it is installed: whether a table is one of its own. Then its rows are in shards, here or
//! on other nodes, and the table itself is an empty shell.

use std::ptr::null_mut;

use pgrx::pg_sys;

/// Whether Citus is installed in this database.
///
/// # Safety
/// Inside a transaction.
pub unsafe fn is_installed() -> bool {
    // SAFETY: a look-up in the system catalogs.
    unsafe { pg_sys::get_extension_oid(c"citus".as_ptr(), true) != pg_sys::InvalidOid }
}

/// Whether Citus distributes a table: then its pg_dist_partition lists the table, on all nodes. Citus
/// invalidates the table at each change of that list.
///
/// # Safety
/// Inside a transaction.
pub unsafe fn is_distributed(table: pg_sys::Oid) -> bool {
    // SAFETY: scans a catalog of Citus, which is opened and closed here; its column is compared if it
    // is a regclass.
    unsafe {
        if !is_installed() {
            return false;
        }
        let catalog = pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE);
        let list = pg_sys::get_relname_relid(c"pg_dist_partition".as_ptr(), catalog);
        if list == pg_sys::InvalidOid {
            return false;
        }
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let list = pg_sys::table_open(list, lock);
        let column = pg_sys::SPI_fnumber((*list).rd_att, c"logicalrelid".as_ptr());
        // A list without that column may contain the table.
        let mut listed = true;
        if column > 0 && pg_sys::SPI_gettypeid((*list).rd_att, column) == pg_sys::REGCLASSOID {
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
            listed = !pg_sys::systable_getnext(scan).is_null();
            pg_sys::systable_endscan(scan);
        }
        pg_sys::table_close(list, lock);
        listed
    }
}
