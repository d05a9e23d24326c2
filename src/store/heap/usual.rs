//! What the ordinary table is: the one that the extension created, with its own primary key, and
//! nothing added that the executor would have to mind.

use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::*;

/// The columns of rateLimits, in order, as this store reads and writes them.
pub const COLUMNS: [(&CStr, pg_sys::BuiltinOid); 7] = [
    (c"name", TEXTOID),
    (c"key", TEXTOID),
    (c"shard", INT4OID),
    (c"value", FLOAT8OID),
    (c"ts", TIMESTAMPTZOID),
    (c"prior", FLOAT8OID),
    (c"log", TIMESTAMPTZARRAYOID),
];

/// The primary key's index, if the table is the ordinary one; otherwise what keeps this store from
/// it, such as a trigger.
///
/// # Safety
/// The table is open.
pub unsafe fn index_of(table: pg_sys::Relation) -> std::result::Result<pg_sys::Oid, &'static str> {
    // SAFETY: reads the open relation's descriptions.
    unsafe {
        let class = &*(*table).rd_rel;
        let description = &*(*table).rd_att;
        let usual_key = usual_key(table);
        let indexes = pg_sys::RelationGetIndexList(table);
        let fits = |(n, &(name, r#type)): (usize, &(&CStr, pg_sys::BuiltinOid))| {
            let named = pg_sys::SPI_fnumber((*table).rd_att, name.as_ptr()) == n as c_int + 1;
            let attribute = pg_sys::SPI_gettypeid((*table).rd_att, n as c_int + 1);
            named
                && attribute == r#type.value()
                && pg_sys::get_attgenerated((*table).rd_id, n as i16 + 1) == 0
        };
        let constraints = description.constr;
        let checked = [
            (class.relkind != pg_sys::RELKIND_RELATION as c_char, "is no ordinary table"),
            (class.relam != pg_sys::HEAP_TABLE_AM_OID, "has another access method"),
            (class.relpersistence == pg_sys::RELPERSISTENCE_TEMP as c_char, "is temporary"),
            (class.relhastriggers, "has a trigger, or has had one"),
            (class.relhasrules, "has a rule, or has had one"),
            (class.relrowsecurity, "has row security"),
            (class.relispartition || class.relhassubclass, "is part of an inheritance"),
            (class.relreplident != b'd' as c_char, "has another replica identity"),
            (
                description.natts as usize != COLUMNS.len()
                    || !COLUMNS.iter().enumerate().all(fits),
                "has other columns",
            ),
            (!constraints.is_null() && (*constraints).num_check > 0, "has a check constraint"),
            ((*table).rd_pkindex == pg_sys::InvalidOid, "has no primary key"),
            (indexes.is_null() || (*indexes).length != 1, "has a further index"),
            (
                !is_published_whole(table),
                "has a publication whose filter or columns forbid updates",
            ),
        ];
        if let Some(&(_, why)) = checked.iter().find(|(other, _)| *other) {
            return Err(why);
        }
        usual_key.ok_or("has another primary key")
    }
}

/// Whether the publications that the table is in, if any, allow that its rows are updated and deleted.
///
/// # Safety
/// The table is open.
unsafe fn is_published_whole(table: pg_sys::Relation) -> bool {
    // SAFETY: fills a description of plain data.
    unsafe {
        let mut published = pg_sys::PublicationDesc::default();
        pg_sys::RelationBuildPublicationDesc(table, &mut published);
        published.rf_valid_for_update
            && published.rf_valid_for_delete
            && published.cols_valid_for_update
            && published.cols_valid_for_delete
    }
}

/// The primary key's index, if it is the usual one.
///
/// # Safety
/// The table is open.
pub unsafe fn usual_key(table: pg_sys::Relation) -> Option<pg_sys::Oid> {
    // SAFETY: reads the open relation's descriptions; the list of its indexes finds the primary key.
    unsafe {
        pg_sys::list_free(pg_sys::RelationGetIndexList(table));
        let index = (*table).rd_pkindex;
        if index == pg_sys::InvalidOid {
            return None;
        }
        let relation = pg_sys::index_open(index, pg_sys::AccessShareLock as _);
        let usual = is_usual(relation);
        pg_sys::index_close(relation, pg_sys::AccessShareLock as _);
        usual.then_some(index)
    }
}

/// Whether an index is of name, key and shard in this order, and sorted as by bytes.
///
/// # Safety
/// The index is open.
unsafe fn is_usual(index: pg_sys::Relation) -> bool {
    const FAMILIES: [pg_sys::Oid; 3] =
        [pg_sys::TEXT_BTREE_FAM_OID, pg_sys::TEXT_BTREE_FAM_OID, pg_sys::INTEGER_BTREE_FAM_OID];
    const COLLATIONS: [pg_sys::Oid; 3] =
        [pg_sys::C_COLLATION_OID, pg_sys::C_COLLATION_OID, pg_sys::InvalidOid];
    // SAFETY: reads the open index's descriptions, each of as many entries as it has columns.
    unsafe {
        let form = &*(*index).rd_index;
        (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indisvalid
            && form.indnatts == 3
            && (0..3).all(|n| {
                *form.indkey.values.as_ptr().add(n) == n as i16 + 1
                    && *(*index).rd_opfamily.add(n) == FAMILIES[n]
                    && *(*index).rd_indcollation.add(n) == COLLATIONS[n]
                    && *(*index).rd_indoption.add(n) == 0
            })
    }
}
