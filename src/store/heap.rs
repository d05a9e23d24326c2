//! Accesses the rows directly in the heap, without the executor: finds a row by its last tuple id or by the primary
//! key's index, under the latest state, and updates it in one step. Only for an unaltered table; see `unaltered_table`.
//! A hold and its settlement find, insert, lock and delete the rows of `rl_holds` in the same ways (`held`).
//!
//! # The executor's steps, and where they are here
//!
//! Every step of the executor around a read, a lock or a write has to be made. They are in nodeIndexscan.c,
//! nodeLockRows.c, nodeModifyTable.c (ExecInsert with ON CONFLICT DO NOTHING, ExecUpdate, ExecDelete), execIndexing.c
//! and, nearest to this module, execReplication.c (RelationFindReplTupleByIndex, ExecSimpleRelationUpdate). Each item
//! is a step of the executor; after the arrow is the place that makes it here.
//!
//! Before any of them:
//!
//! - refuses to write in a read-only transaction, in recovery and in a parallel query (ExecCheckXactReadOnly)
//!   → `transaction::refuse_read_only`, first in each SQL function that writes
//! - checks the privileges of the user, and row security
//!   → not needed: calls need no privilege on the tables; a table with row security is an altered one
//! - refuses to read an unlogged table on a standby (get_relation_info)
//!   → `OpenTable::index_of_limits`
//! - locks the table, as strongly as the whole statement needs, before it touches an index (parse_relation.c,
//!   ExecGetRangeTableRelation)
//!   → [`Heap::open`], in each call, since ROLLBACK TO releases locks. The locks are the transaction's, since a
//!   query's locks are released with a cursor that fails in a savepoint, while its writes stay
//!   (`transaction::with_lasting_locks`)
//!   → [`Heap::open`], after the table, as REINDEX does
//! - processes invalidations with a new lock, and plans again
//!   → [`Heap::open`]: `LockRelationOid` processes them, and the call begins again with the current catalog
//!   ([`Error::Moved`](crate::schema::error::Error::Moved)); from its second try on only if the tables are different
//!   (`catalog::check`)
//! - sees the writes of the transaction's earlier commands, and this one's so far (SPI begins a command of its own)
//!   → `catalog::with` begins a new command
//! - has an active snapshot, which keeps the visible versions from being pruned, and TOAST readable
//!   → `catalog::with` pushes one if there is none; `OpenTable::index_of_limits` refuses if that is not enough
//!   (`old_snapshot_threshold`)
//! - checks that the publications allow updates and deletes (CheckCmdReplicaIdentity)
//!   → `OpenTable::index_of_limits`
//! - ignores tables that inherit: SQL says ONLY, so no other table is planned or locked
//!   → there is only one table here
//!
//! To find a row:
//!
//! - scans the index with index_beginscan, index_getnext_tid and index_fetch_heap
//!   → [`Heap::scan`], through the same functions; [`Heap::fetch_at_root`] begins at the index entry's tuple id of an
//!   earlier scan, and then compares the row
//! - sees the snapshot of the statement, or of the transaction
//!   → the latest, by design: like a sequence, a limit is judged by the latest state at every isolation level
//! - leaves predicate locks in a SERIALIZABLE transaction
//!   → not wanted, by the same design: there [`Heap::scan_latest`] scans all versions, and checks their visibility
//!   itself
//! - checks for interrupts at each row
//!   → [`Heap::scan`]
//!
//! To lock one (ExecLockRows):
//!
//! - table_tuple_lock, which follows updates to the last version
//!   → [`Heap::lock_version`]
//! - TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS
//!   → not needed, as in execReplication.c: a lock FOR UPDATE is never granted during an update, and the last version
//!   is locked in the end
//! - compares the row again if an update was followed (`tmfd.traversed`, EvalPlanQual)
//!   → [`Heap::lock_version`] compares name, key and shard; if they differ the row counts as gone, and is searched
//!   again
//! - 40001 above READ COMMITTED
//!   → not wanted: the latest state
//! - skips TM_Deleted, TM_SelfModified and TM_WouldBlock
//!   → as no row; the caller reads again
//!
//! To update one (ExecUpdate):
//!
//! - BEFORE, INSTEAD OF and AFTER triggers, transition tables
//!   → not needed: no trigger (`OpenTable::index_of_limits`)
//! - computes generated columns (ExecComputeStoredGenerated)
//!   → not needed: none
//! - takes the columns that are not set, name and key, from the version that is replaced, as they are stored there:
//!   compressed, or a pointer to TOAST (ExecGetUpdateNewTuple). heap_update compares them byte by byte: if they differ,
//!   the key has changed, so the update is not HOT, takes the stronger lock and logs the old key
//!   → [`Heap::update_version`], which fetches that version if name or key is long enough to be toasted
//! - checks NOT NULL and CHECK, partition bounds, views' and policies' conditions (ExecConstraints)
//!   → not needed: a call fills every NOT NULL column, and there is nothing else to check (`unaltered_table`)
//! - table_tuple_update with `wait`
//!   → [`Heap::update_version`]: heap_update takes the tuple's heavyweight
//!   lock, which keeps the order of waiting transactions, waits for the row's lock, alone or in a multixact, and
//!   releases the tuple's lock
//! - TM_Updated: locks the last version and evaluates the statement again (EvalPlanQual)
//!   → `false`; the limiter, which has locked nothing then, reads the row and decides again
//! - TM_SelfModified: 27000 if a trigger did it
//!   → impossible: the version was read in this command, and nothing has written since
//! - inserts index entries, as unique ones, unless the update was HOT (ExecInsertIndexTuples)
//!   → [`Heap::insert_index`]; not as unique, since the key is unchanged
//! - aminsertcleanup (17)
//!   → not needed: nbtree has none
//! - begins a new command afterwards (CommandCounterIncrement)
//!   → [`Heap::update_version`], [`Heap::delete_version`], [`Heap::insert_values`]
//! - es_processed, RETURNING
//!   → not needed
//!
//! To delete one (ExecDelete): like an update, by table_tuple_delete, in [`Heap::delete_version`].
//!
//! To form a tuple (heap_form_tuple with the table's description):
//!
//! - has a flag for each NULL, if there is one
//!   → `shortened`: trailing NULLs are left out, and read as NULL (getmissingattr), as after ADD COLUMN; so a table
//!   with a default for missing values is an altered one
//!
//! To insert one (ExecInsert with ON CONFLICT DO NOTHING):
//!
//! - refuses ON CONFLICT on a table with `user_catalog_table` (transformOnConflictArbiter)
//!   → `OpenTable::index_of_limits`
//! - searches a row with the same key, and waits for a concurrent insert of one (ExecCheckIndexConstraints)
//!   → the limiter has just read; a concurrent insert is found by its index entry, and waited for in
//!   [`Heap::wait_for_inserter`]
//! - table_tuple_insert_speculative under a speculative insertion lock
//!   → [`Heap::insert_values`]
//! - index entries with UNIQUE_CHECK_PARTIAL, which report a conflict without an error
//!   → [`Heap::insert_index`]
//! - table_tuple_complete_speculative, and the lock released
//!   → [`Heap::insert_values`]
//! - 40001 above READ COMMITTED if the other row is not in the snapshot (ExecCheckTIDVisible)
//!   → not wanted: the latest state

use pgrx::pg_sys;
use ratelimit_limiter::error::{LimiterError, Result};
use ratelimit_limiter::ports::{
    KeyRef, KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
};

use open::guarded;
use read::{decode, hash, scan_keys};
use row::{RawRow, TextDatum, copy_texts, row_values, tuple_id};
use shortened::LIMITS;

use crate::store::own_locks::{note, note_keys, noted};

mod held;
mod open;
mod own;
mod raw;
mod read;
mod roots;
mod row;
mod shortened;
mod write;

pub use held::HeldHeap;
pub use open::Heap;
pub use own::forget;

impl Rows for Heap {
    fn read(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.find(id).map(RawRow::decode).transpose()?.map(|(_, row)| row))
    }

    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        let locked = self.find(id).map(|found| self.lock_version(id, found, wait));
        Ok(locked.transpose()?.flatten().inspect(|_| note(id)))
    }

    fn facts(&self) -> RowFacts {
        RowFacts::LOCAL
    }

    fn replace(&self, id: RowId, seen: &Row, version: &Version, wait: bool) -> Result<bool> {
        let is_free = wait || self.lock_seen(seen);
        Ok(noted(id, is_free && self.update_version(id, seen.tuple, version)))
    }

    fn read_key(&self, name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>> {
        if let Some(shards) = shards {
            let rows = shards.iter().filter_map(|&shard| self.find(RowId { name, key, shard }));
            return rows.map(|row| Ok(decode(row)?)).collect();
        }
        let (name_text, key_text) = (TextDatum::new(name), TextDatum::new(key));
        let mut keys = scan_keys([name_text.datum(), key_text.datum()], 2, false);
        // SAFETY: called with a row fetched.
        let rows = unsafe { self.collect(&mut keys, usize::MAX, || self.fetched_row()) };
        rows.into_iter().map(|row| Ok(decode(row)?)).collect()
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> Result<bool> {
        let (name, key) = (TextDatum::new(id.name), TextDatum::new(id.key));
        let (mut values, mut nulls) = row_values(&name, &key, id.shard, version);
        // SAFETY: the description of the open table.
        let whole = unsafe { (*self.table).rd_att };
        let description = LIMITS.with(|short| short.description(whole, &nulls));
        // SAFETY: the values are those of the table's columns.
        let new = unsafe { self.insert_values(description, &mut values, &mut nulls, None) };
        match new {
            Some(tid) => {
                let hash = hash(id);
                own::remember(hash, tid);
                roots::remember(hash, tid);
            }
            None if wait => self.wait_for_inserter(id),
            None => {}
        }
        Ok(noted(id, new.is_some()))
    }

    fn update(&self, id: RowId, locked: TupleId, version: &Version) -> Result<()> {
        if self.update_version(id, locked, version) {
            Ok(())
        } else {
            Err(LimiterError::not_written())
        }
    }

    fn delete(&self, _: RowId, locked: TupleId) -> Result<()> {
        if self.delete_version(locked) { Ok(()) } else { Err(LimiterError::not_written()) }
    }

    fn remove(&self, keys: &[KeyRows]) -> Result<u64> {
        let remove = |of: &&KeyRows| match &of.rows[..] {
            [(_, seen)] => self.lock_seen(seen) && self.delete_version(seen.tuple),
            _ => false,
        };
        let removed = keys.iter().filter(remove).count() as u64;
        if removed > 0 {
            note_keys(keys);
        }
        Ok(removed)
    }

    fn delete_name(&self, _: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
        Ok(None)
    }

    fn read_after(&self, after: KeyRef, same_name: bool, rows: i64) -> Result<Vec<KeyedRow>> {
        let (name, key) = (TextDatum::new(after.0), TextDatum::new(after.1));
        let most = usize::try_from(rows).unwrap_or(0);
        let take = || {
            // SAFETY: called with a row fetched; its first two columns are the name and the key.
            unsafe {
                let row = self.fetched_row();
                let values = (*self.fetched).tts_values;
                (copy_texts([*values, *values.add(1)]), row)
            }
        };
        // SAFETY: `take` copies, and an error of its own jumps over no copy.
        let found = unsafe {
            let mut in_name = scan_keys([name.datum(), key.datum()], 2, true);
            let mut found = self.collect(&mut in_name, most, take);
            if !same_name {
                let mut later = scan_keys([name.datum()], 2, true);
                found.extend(self.collect(&mut later, most - found.len(), take));
            }
            found
        };
        let keyed = |([name, key], row): ([Vec<u8>; 2], RawRow)| Ok(((name, key), decode(row)?));
        found.into_iter().map(keyed).collect()
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let found = &mut None;
        // SAFETY: guarded; the row is pinned while it is copied.
        unsafe {
            guarded(|| {
                let main = pg_sys::ForkNumber::MAIN_FORKNUM;
                let pages = raw::RelationGetNumberOfBlocksInFork(self.table, main);
                if pages == 0 {
                    return;
                }
                let page = fastrand::u32(0..pages);
                for n in 1..=pg_sys::MaxOffsetNumber {
                    let mut tid = tuple_id((page, n));
                    let any = &raw mut pg_sys::SnapshotSelfData;
                    let table = self.table;
                    if raw::table_tuple_fetch_row_version(table, &mut tid, any, self.fetched) {
                        raw::deform(self.fetched);
                        let values = (*self.fetched).tts_values;
                        *found = Some(copy_texts([*values, *values.add(1)]));
                        raw::clear(self.fetched);
                        return;
                    }
                }
            });
        }
        Ok(found.take().map(|[name, key]| (name, key)))
    }
}
