//! Checks whether the tables of states and holds are unaltered: as CREATE EXTENSION made them, with their own indexes
//! and no addition that the executor would have to process. Every property that matters to a write must have an allowed
//! value, so unforeseen ones are refused.

use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::*;

use crate::schema::citus::distribution;

/// A column as CREATE EXTENSION made it.
pub struct Column {
    /// Its name.
    pub name: &'static CStr,
    /// Its type.
    pub data_type: pg_sys::BuiltinOid,
    not_null: bool,
    collation: pg_sys::Oid,
    /// Whether the storage is EXTENDED: out of line or compressed.
    extended: bool,
    has_default: bool,
}

const fn column(name: &'static CStr, data_type: pg_sys::BuiltinOid) -> Column {
    let collation = pg_sys::InvalidOid;
    Column { name, data_type, not_null: true, collation, extended: false, has_default: false }
}

const fn text(name: &'static CStr) -> Column {
    Column { collation: pg_sys::C_COLLATION_OID, extended: true, ..column(name, TEXTOID) }
}

/// The number of columns of the table.
pub const COLUMNS: usize = 11;

/// The columns of rateLimits.
pub const LIMITS: [Column; COLUMNS] = [
    text(c"name"),
    Column { has_default: true, ..text(c"key") },
    Column { has_default: true, ..column(c"shard", INT4OID) },
    column(c"kind", CHAROID),
    column(c"value", FLOAT8OID),
    column(c"ts", TIMESTAMPTZOID),
    Column { not_null: false, ..column(c"added", FLOAT8OID) },
    Column { not_null: false, ..column(c"prior", FLOAT8OID) },
    Column { not_null: false, extended: true, ..column(c"log", TIMESTAMPTZARRAYOID) },
    Column { not_null: false, extended: true, ..column(c"leases", INT8ARRAYOID) },
    Column { not_null: false, ..column(c"holds_due", TIMESTAMPTZOID) },
];

/// The number of columns of rl_holds.
pub const HOLD_COLUMNS: usize = 11;

/// The columns of rl_holds.
pub const HOLDS: [Column; HOLD_COLUMNS] = [
    text(c"id"),
    text(c"name"),
    Column { has_default: true, ..text(c"key") },
    column(c"count", FLOAT8OID),
    Column { has_default: true, ..column(c"spent", FLOAT8OID) },
    Column { has_default: true, ..column(c"returned", FLOAT8OID) },
    column(c"taken_at", TIMESTAMPTZOID),
    column(c"expires_at", TIMESTAMPTZOID),
    column(c"charge", BOOLOID),
    Column { not_null: false, ..column(c"lease", INT8OID) },
    Column { not_null: false, extended: true, ..column(c"config", JSONBOID) },
];

/// Returns the primary key's index of the unaltered table.
///
/// # Errors
/// The reason why the table is not unaltered, such as a trigger.
///
/// # Safety
/// The table is open.
pub unsafe fn index_of(table: pg_sys::Relation) -> std::result::Result<pg_sys::Oid, &'static str> {
    // SAFETY: reads the open relation's descriptions.
    unsafe {
        match alteration(table, &LIMITS, 1) {
            Some(why) => Err(why),
            None => unaltered_key(table).ok_or("has a different primary key"),
        }
    }
}

/// Returns the indexes of the unaltered table of holds: the primary key's and the other.
///
/// # Safety
/// The table is open.
pub unsafe fn indexes_of_holds(table: pg_sys::Relation) -> Option<[pg_sys::Oid; 2]> {
    // SAFETY: reads the open relation's descriptions.
    unsafe {
        if alteration(table, &HOLDS, 2).is_some() {
            return None;
        }
        let (primary, indexes) = indexes(table);
        let other = indexes.into_iter().find(|&index| index != primary)?;
        let are_as_made = is_unaltered_index(primary, &HOLDS, &[1, 2, 3], true)
            && is_unaltered_index(other, &HOLDS, &[2, 3, 9, 8], false);
        are_as_made.then_some([primary, other])
    }
}

/// How the table differs from the created one, which has these columns and this number of indexes.
///
/// # Safety
/// The table is open.
unsafe fn alteration(
    table: pg_sys::Relation,
    created: &[Column],
    index_count: usize,
) -> Option<&'static str> {
    // SAFETY: reads the open relation's descriptions.
    unsafe {
        let class = &*(*table).rd_rel;
        let (primary, indexes) = indexes(table);
        let allowed = [
            (class.relkind == pg_sys::RELKIND_RELATION as c_char, "is not an ordinary table"),
            (class.relam == pg_sys::HEAP_TABLE_AM_OID, "does not use the heap access method"),
            // The pages of a temporary table are in local buffers of its session.
            (
                class.relpersistence == pg_sys::RELPERSISTENCE_PERMANENT as c_char
                    || class.relpersistence == pg_sys::RELPERSISTENCE_UNLOGGED as c_char,
                "is temporary",
            ),
            (
                class.relpersistence == pg_sys::RELPERSISTENCE_PERMANENT as c_char
                    || !pg_sys::RecoveryInProgress(),
                "is unlogged, and so empty on a standby",
            ),
            // Foreign keys and deferrable constraints are triggers, too.
            (!class.relhastriggers, "has a trigger, or has had one"),
            (!class.relhasrules, "has a rule, or has had one"),
            (!class.relrowsecurity, "has row security"),
            // A table that inherits from this one is not read or written here, nor by SQL, which says ONLY.
            (!class.relispartition, "is a partition"),
            (!is_catalog_table(table), "is used as a catalog table, where ON CONFLICT is refused"),
            (class.relreplident == b'd' as c_char, "does not have the default replica identity"),
            (has_columns(table, created, is_same_column), "has different columns"),
            (has_columns(table, created, is_unaltered_column), "has an altered column"),
            (!has_checks(table), "has a check constraint"),
            (primary != pg_sys::InvalidOid, "has no primary key"),
            (indexes.len() == index_count, "has an additional index"),
            (
                publications_allow_writes(table),
                "has a publication whose filter or columns forbid updates",
            ),
            (distribution((*table).rd_id).is_none(), "is distributed by Citus"),
            (
                snapshots_never_expire(),
                "can lose rows that a snapshot still sees, because old_snapshot_threshold is set",
            ),
        ];
        allowed.iter().find(|(is_unaltered, _)| !is_unaltered).map(|&(_, why)| why)
    }
}

/// Whether the table has exactly the columns of the unaltered one.
///
/// # Safety
/// The table is open.
unsafe fn has_columns(
    table: pg_sys::Relation,
    created: &[Column],
    matches: unsafe fn(pg_sys::TupleDesc, &pg_sys::FormData_pg_attribute, &Column) -> bool,
) -> bool {
    // SAFETY: reads the columns of the open relation; each tuple is read before it is released.
    unsafe {
        let description = (*table).rd_att;
        (*description).natts as usize == created.len()
            && created.iter().enumerate().all(|(n, created)| {
                let tuple = pg_sys::SearchSysCache2(
                    pg_sys::SysCacheIdentifier::ATTNUM as c_int,
                    (*table).rd_id.into(),
                    (n as i16 + 1).into(),
                );
                if tuple.is_null() {
                    return false;
                }
                let column = pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_attribute>(tuple);
                let matches = matches(description, &*column, created);
                pg_sys::ReleaseSysCache(tuple);
                matches
            })
    }
}

/// Whether a column has the name and type that it was created with.
fn is_same_column(
    _: pg_sys::TupleDesc,
    column: &pg_sys::FormData_pg_attribute,
    created: &Column,
) -> bool {
    // SAFETY: the name is a C string.
    let name = unsafe { CStr::from_ptr(column.attname.data.as_ptr()) };
    !column.attisdropped && name == created.name && column.atttypid == created.data_type.value()
}

/// Whether a column is as CREATE EXTENSION made it, in every property by which the executor forms or
/// checks a row. The value of its default does not matter, since every column is written.
///
/// # Safety
/// The column is one of the description's.
unsafe fn is_unaltered_column(
    description: pg_sys::TupleDesc,
    column: &pg_sys::FormData_pg_attribute,
    created: &Column,
) -> bool {
    let storage = if created.extended { b'x' } else { b'p' };
    column.atttypmod == -1
        && column.attcollation == created.collation
        && column.attnotnull == created.not_null
        // SAFETY: as the caller says.
        && (!created.not_null || unsafe { is_never_null(description, column.attnum) })
        && column.attstorage == storage as c_char
        && column.atthasdef == created.has_default
        && column.attidentity == 0
        && column.attgenerated == 0
        && column.attinhcount == 0
        && !column.atthasmissing
}

/// Whether a NOT NULL column has no NULL: from PostgreSQL 18 on the constraint can be NOT VALID.
///
/// # Safety
/// The description has a column of this number.
unsafe fn is_never_null(description: pg_sys::TupleDesc, number: i16) -> bool {
    #[cfg(feature = "pg18")]
    // SAFETY: as the caller says.
    return unsafe {
        (*(*description).compact_attrs.as_ptr().add(number as usize - 1)).attnullability
            == pg_sys::ATTNULLABLE_VALID as c_char
    };
    #[cfg(not(feature = "pg18"))]
    {
        let _ = (description, number);
        true
    }
}

/// Whether the option `user_catalog_table` is set (RelationIsUsedAsCatalogTable): the parser then refuses INSERT with
/// ON CONFLICT.
///
/// # Safety
/// The table is open.
unsafe fn is_catalog_table(table: pg_sys::Relation) -> bool {
    // SAFETY: the options of an ordinary table, which is asked for first, are these, or null.
    unsafe {
        let options = (*table).rd_options.cast::<pg_sys::StdRdOptions>();
        (*(*table).rd_rel).relkind == pg_sys::RELKIND_RELATION as c_char
            && !options.is_null()
            && (*options).user_catalog_table
    }
}

/// Whether the table has a check constraint.
///
/// # Safety
/// The table is open.
unsafe fn has_checks(table: pg_sys::Relation) -> bool {
    // SAFETY: reads the description of the open relation.
    unsafe {
        let constraints = (*(*table).rd_att).constr;
        !constraints.is_null() && (*constraints).num_check > 0
    }
}

/// Whether the table's publications, if any, allow updates and deletes.
///
/// # Safety
/// The table is open.
unsafe fn publications_allow_writes(table: pg_sys::Relation) -> bool {
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

/// Whether an active snapshot keeps the visible versions from being pruned. Not with `old_snapshot_threshold` (15 and
/// 16), which only a restart changes.
fn snapshots_never_expire() -> bool {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    // SAFETY: reads a setting.
    return unsafe { pg_sys::old_snapshot_threshold < 0 };
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    true
}

/// The index of the primary key, or `InvalidOid`, and all indexes. The relation knows the first only after it has
/// listed them, and until an invalidation, which any look-up in a catalog may process: so both are read here together.
///
/// # Safety
/// The table is open.
unsafe fn indexes(table: pg_sys::Relation) -> (pg_sys::Oid, Vec<pg_sys::Oid>) {
    // SAFETY: reads the open relation's descriptions; a list of OIDs that is freed here.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        let primary = (*table).rd_pkindex;
        let count = if list.is_null() { 0 } else { (*list).length as usize };
        let all = (0..count).map(|n| (*(*list).elements.add(n)).oid_value).collect();
        pg_sys::list_free(list);
        (primary, all)
    }
}

/// Returns the primary key's index, if it is unaltered.
///
/// # Safety
/// The table is open.
pub unsafe fn unaltered_key(table: pg_sys::Relation) -> Option<pg_sys::Oid> {
    // SAFETY: reads the open relation's descriptions.
    unsafe {
        let (index, _) = indexes(table);
        is_unaltered_index(index, &LIMITS, &[1, 2, 3], true).then_some(index)
    }
}

/// Whether an index of a table with these columns has those of these numbers, and otherwise the properties with which
/// it was created: the order of its types, the C collation, valid, immediate and not partial. `indcheckxmin` doesn't
/// matter: it is about snapshots older than the latest.
///
/// # Safety
/// The table is open, and the index is one of it or `InvalidOid`.
unsafe fn is_unaltered_index(
    index: pg_sys::Oid,
    table: &[Column],
    columns: &[i16],
    is_primary: bool,
) -> bool {
    if index == pg_sys::InvalidOid {
        return false;
    }
    // SAFETY: reads the index's descriptions, each of as many entries as it has columns, and closes it.
    unsafe {
        let index = pg_sys::index_open(index, pg_sys::AccessShareLock as _);
        let form = &*(*index).rd_index;
        let is_unaltered = (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indisunique == is_primary
            && form.indisprimary == is_primary
            && form.indimmediate
            && form.indisvalid
            && form.indisready
            && form.indislive
            && !form.indisexclusion
            && !form.indnullsnotdistinct
            && form.indnatts as usize == columns.len()
            && form.indnkeyatts as usize == columns.len()
            && pg_sys::RelationGetIndexExpressions(index).is_null()
            && pg_sys::RelationGetIndexPredicate(index).is_null()
            && columns.iter().enumerate().all(|(n, &column)| {
                let Column { data_type, collation, .. } = table[column as usize - 1];
                let family = match data_type {
                    TEXTOID => Some(pg_sys::TEXT_BTREE_FAM_OID),
                    INT4OID => Some(pg_sys::INTEGER_BTREE_FAM_OID),
                    _ => None,
                };
                *form.indkey.values.as_ptr().add(n) == column
                    && family.is_none_or(|family| *(*index).rd_opfamily.add(n) == family)
                    && *(*index).rd_indcollation.add(n) == collation
                    && *(*index).rd_indoption.add(n) == 0
            });
        pg_sys::index_close(index, pg_sys::AccessShareLock as _);
        is_unaltered
    }
}
