//! Checks whether the tables of states and holds are unaltered: as CREATE EXTENSION made them, with their own indexes
//! and no addition that the executor would have to process. Every property that matters to a write must have an allowed
//! value, so unforeseen ones are refused.

use std::ffi::{CStr, c_char};
use std::ops::Deref;

use pgrx::pg_sys::BuiltinOid::*;
use pgrx::{PgTupleDesc, pg_sys};

use ratelimit_pg::transaction::is_in_recovery;

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

/// An open table. Its descriptions are read by pointers, which are valid as long as it is open.
pub struct OpenTable(pg_sys::Relation);

impl Deref for OpenTable {
    type Target = pg_sys::RelationData;

    fn deref(&self) -> &pg_sys::RelationData {
        // SAFETY: open.
        unsafe { &*self.0 }
    }
}

impl OpenTable {
    /// Opens a table for `read`, and closes it: callers lock it before they use it. `None`: it was dropped while this
    /// waited.
    pub fn with<T>(oid: pg_sys::Oid, read: impl FnOnce(&OpenTable) -> T) -> Option<T> {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        // SAFETY: in a transaction.
        let table = OpenTable(unsafe { pg_sys::try_table_open(oid, lock) });
        if table.0.is_null() {
            return None;
        }
        let result = read(&table);
        // SAFETY: opened above.
        unsafe { pg_sys::table_close(table.0, lock) };
        Some(result)
    }

    /// Returns the primary key's index of the unaltered table.
    ///
    /// # Errors
    /// The reason why the table is not unaltered, such as a trigger.
    pub fn index_of_limits(&self) -> std::result::Result<pg_sys::Oid, &'static str> {
        match self.alteration(&LIMITS, 1) {
            Some(why) => Err(why),
            None => self.unaltered_key().ok_or("has a different primary key"),
        }
    }

    /// Returns the indexes of the unaltered table of holds: the primary key's and the other.
    pub fn indexes_of_holds(&self) -> Option<[pg_sys::Oid; 2]> {
        if self.alteration(&HOLDS, 2).is_some() {
            return None;
        }
        let (primary, indexes) = self.indexes();
        let other = indexes.into_iter().find(|&index| index != primary)?;
        let are_as_made = is_unaltered_index(primary, &HOLDS, &[1, 2, 3], true)
            && is_unaltered_index(other, &HOLDS, &[2, 3, 9, 8], false);
        are_as_made.then_some([primary, other])
    }

    /// Returns the primary key's index of the table of limits, if it is unaltered.
    pub fn unaltered_key(&self) -> Option<pg_sys::Oid> {
        let (index, _) = self.indexes();
        is_unaltered_index(index, &LIMITS, &[1, 2, 3], true).then_some(index)
    }

    /// How the table differs from the created one, which has these columns and this number of indexes.
    fn alteration(&self, created: &[Column], index_count: usize) -> Option<&'static str> {
        // SAFETY: an open table has a row of pg_class.
        let class = unsafe { &*self.rd_rel };
        let (primary, indexes) = self.indexes();
        let is_table = class.relkind == pg_sys::RELKIND_RELATION as c_char;
        let is_permanent = class.relpersistence == pg_sys::RELPERSISTENCE_PERMANENT as c_char;
        let is_unlogged = class.relpersistence == pg_sys::RELPERSISTENCE_UNLOGGED as c_char;
        let allowed = [
            (is_table, "is not an ordinary table"),
            (class.relam == pg_sys::HEAP_TABLE_AM_OID, "does not use the heap access method"),
            // The pages of a temporary table are in local buffers of its session.
            (is_permanent || is_unlogged, "is temporary"),
            (is_permanent || !is_in_recovery(), "is unlogged, and so empty on a standby"),
            // Foreign keys and deferrable constraints are triggers, too.
            (!class.relhastriggers, "has a trigger, or has had one"),
            (!class.relhasrules, "has a rule, or has had one"),
            (!class.relrowsecurity, "has row security"),
            // A table that inherits from this one is not read or written here, nor by SQL, which says ONLY.
            (!class.relispartition, "is a partition"),
            (
                !(is_table && self.is_catalog_table()),
                "is used as a catalog table, where ON CONFLICT is refused",
            ),
            (class.relreplident == b'd' as c_char, "does not have the default replica identity"),
            (self.has_columns(created, Column::is_same), "has different columns"),
            (
                self.has_columns(created, Column::is_unaltered)
                    && self.has_valid_constraints(created),
                "has an altered column",
            ),
            (!self.has_checks(), "has a check constraint"),
            (primary != pg_sys::InvalidOid, "has no primary key"),
            (indexes.len() == index_count, "has an additional index"),
            (
                self.publications_allow_writes(),
                "has a publication whose filter or columns forbid updates",
            ),
            (distribution(self.rd_id).is_none(), "is distributed by Citus"),
            (
                snapshots_never_expire(),
                "can lose rows that a snapshot still sees, because old_snapshot_threshold is set",
            ),
        ];
        allowed.iter().find(|(is_unaltered, _)| !is_unaltered).map(|&(_, why)| why)
    }

    /// Whether the table has as many columns as it was created with, and each matches.
    fn has_columns(
        &self,
        created: &[Column],
        matches: fn(&Column, &pg_sys::FormData_pg_attribute) -> bool,
    ) -> bool {
        // SAFETY: the description is valid.
        let columns = unsafe { PgTupleDesc::from_pg_unchecked(self.rd_att) };
        columns.len() == created.len()
            && created.iter().zip(columns.iter()).all(|(created, column)| matches(created, column))
    }

    /// Whether the columns that were created NOT NULL have no NULL: from PostgreSQL 18 on the constraint can be NOT
    /// VALID. Called if there are as many columns.
    #[cfg_attr(not(feature = "pg18"), allow(unused_variables, clippy::unused_self))]
    fn has_valid_constraints(&self, created: &[Column]) -> bool {
        #[cfg(feature = "pg18")]
        // SAFETY: the description has as many columns.
        return created.iter().enumerate().all(|(n, column)| unsafe {
            !column.not_null
                || (*(*self.rd_att).compact_attrs.as_ptr().add(n)).attnullability
                    == pg_sys::ATTNULLABLE_VALID as c_char
        });
        #[cfg(not(feature = "pg18"))]
        true
    }

    /// Whether the option `user_catalog_table` of an ordinary table is set (RelationIsUsedAsCatalogTable): the parser
    /// then refuses INSERT with ON CONFLICT.
    fn is_catalog_table(&self) -> bool {
        // SAFETY: the options of an ordinary table are these, or null.
        let options = unsafe { self.rd_options.cast::<pg_sys::StdRdOptions>().as_ref() };
        options.is_some_and(|options| options.user_catalog_table)
    }

    /// Whether the table has a check constraint.
    fn has_checks(&self) -> bool {
        // SAFETY: reads the description.
        let constraints = unsafe { (*self.rd_att).constr.as_ref() };
        constraints.is_some_and(|constraints| constraints.num_check > 0)
    }

    /// Whether the table's publications, if any, allow updates and deletes.
    fn publications_allow_writes(&self) -> bool {
        let mut published = pg_sys::PublicationDesc::default();
        // SAFETY: fills a description of plain data.
        unsafe { pg_sys::RelationBuildPublicationDesc(self.0, &mut published) };
        published.rf_valid_for_update
            && published.rf_valid_for_delete
            && published.cols_valid_for_update
            && published.cols_valid_for_delete
    }

    /// The index of the primary key, or `InvalidOid`, and all indexes. The relation knows the first only after it has
    /// listed them, and until an invalidation, which any look-up in a catalog may process: so both are read here
    /// together.
    fn indexes(&self) -> (pg_sys::Oid, Vec<pg_sys::Oid>) {
        // SAFETY: a list of OIDs that is freed here.
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.0);
            let primary = self.rd_pkindex;
            let count = if list.is_null() { 0 } else { (*list).length as usize };
            let all = (0..count).map(|n| (*(*list).elements.add(n)).oid_value).collect();
            pg_sys::list_free(list);
            (primary, all)
        }
    }
}

impl Column {
    /// Whether a column has the name and type that it was created with.
    fn is_same(&self, column: &pg_sys::FormData_pg_attribute) -> bool {
        // SAFETY: the name is a C string.
        let name = unsafe { CStr::from_ptr(column.attname.data.as_ptr()) };
        !column.attisdropped && name == self.name && column.atttypid == self.data_type.value()
    }

    /// Whether a column is as CREATE EXTENSION made it, in every property by which the executor forms or checks a row,
    /// but for the validity of a constraint. The value of its default does not matter, since every column is written.
    fn is_unaltered(&self, column: &pg_sys::FormData_pg_attribute) -> bool {
        let storage = if self.extended { b'x' } else { b'p' };
        column.atttypmod == -1
            && column.attcollation == self.collation
            && column.attnotnull == self.not_null
            && column.attstorage == storage as c_char
            && column.atthasdef == self.has_default
            && column.attidentity == 0
            && column.attgenerated == 0
            && column.attinhcount == 0
            && !column.atthasmissing
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

/// Whether an index of a table with these columns has those of these numbers, and otherwise the properties with which
/// it was created: the order of its types, the C collation, valid, immediate and not partial. `indcheckxmin` doesn't
/// matter: it is about snapshots older than the latest. `index`: one of an open table, or `InvalidOid`.
fn is_unaltered_index(
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
