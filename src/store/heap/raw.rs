//! Calls of Postgres without pgrx's guard around each: a whole operation runs inside one. They are
//! made from frames that hold plain data only, which an error may jump over, and never beside calls
//! of `pg_sys`, whose errors unwind instead.

use pgrx::pg_sys::*;
use std::ffi::c_int;

unsafe extern "C-unwind" {
    pub fn table_open(relation: Oid, lockmode: LOCKMODE) -> Relation;
    pub fn table_close(relation: Relation, lockmode: LOCKMODE);
    pub fn index_open(relation: Oid, lockmode: LOCKMODE) -> Relation;
    pub fn index_close(relation: Relation, lockmode: LOCKMODE);
    pub fn LockRelationOid(relation: Oid, lockmode: LOCKMODE);
    pub fn GetLatestSnapshot() -> Snapshot;
    #[cfg(not(feature = "pg18"))]
    pub fn index_beginscan(
        heap: Relation,
        index: Relation,
        snapshot: Snapshot,
        nkeys: c_int,
        norderbys: c_int,
    ) -> IndexScanDesc;
    #[cfg(feature = "pg18")]
    pub fn index_beginscan(
        heap: Relation,
        index: Relation,
        snapshot: Snapshot,
        instrument: *mut std::ffi::c_void,
        nkeys: c_int,
        norderbys: c_int,
    ) -> IndexScanDesc;
    pub fn index_rescan(
        scan: IndexScanDesc,
        keys: ScanKey,
        nkeys: c_int,
        orderbys: ScanKey,
        norderbys: c_int,
    );
    pub fn index_getnext_slot(
        scan: IndexScanDesc,
        direction: ScanDirection::Type,
        slot: *mut TupleTableSlot,
    ) -> bool;
    pub fn index_endscan(scan: IndexScanDesc);
    pub fn table_slot_create(relation: Relation, slots: *mut *mut List) -> *mut TupleTableSlot;
    pub fn ExecDropSingleTupleTableSlot(slot: *mut TupleTableSlot);
    pub fn slot_getsomeattrs_int(slot: *mut TupleTableSlot, attnum: c_int);
    pub fn ScanKeyEntryInitialize(
        entry: ScanKey,
        flags: c_int,
        attnum: AttrNumber,
        strategy: StrategyNumber,
        subtype: Oid,
        collation: Oid,
        procedure: RegProcedure,
        argument: Datum,
    );
    pub fn GetCurrentCommandId(used: bool) -> CommandId;
    pub fn CommandCounterIncrement();
    pub fn GetCurrentTransactionId() -> TransactionId;
    pub fn heap_form_tuple(
        description: TupleDesc,
        values: *mut Datum,
        nulls: *mut bool,
    ) -> HeapTuple;
    pub fn heap_freetuple(tuple: HeapTuple);
    pub fn heap_fetch(
        relation: Relation,
        snapshot: Snapshot,
        tuple: HeapTuple,
        buffer: *mut Buffer,
        keep: bool,
    ) -> bool;
    pub fn RelationGetNumberOfBlocksInFork(
        relation: Relation,
        fork: ForkNumber::Type,
    ) -> BlockNumber;
    pub fn LockBuffer(buffer: Buffer, mode: c_int);
    pub fn HeapTupleSatisfiesVisibility(
        tuple: HeapTuple,
        snapshot: Snapshot,
        buffer: Buffer,
    ) -> bool;
    #[cfg(feature = "pg15")]
    fn _bt_getroot(index: Relation, access: c_int) -> Buffer;
    #[cfg(not(feature = "pg15"))]
    fn _bt_getroot(index: Relation, heap: Relation, access: c_int) -> Buffer;
    pub fn _bt_relandgetbuf(
        index: Relation,
        old: Buffer,
        block: BlockNumber,
        access: c_int,
    ) -> Buffer;
    pub fn _bt_relbuf(index: Relation, buffer: Buffer);
    pub fn TransactionStartedDuringRecovery() -> bool;
    pub fn MarkBufferDirtyHint(buffer: Buffer, standard: bool);
    pub fn heap_page_prune_opt(relation: Relation, buffer: Buffer);
    pub fn heap_hot_search_buffer(
        tid: ItemPointer,
        relation: Relation,
        buffer: Buffer,
        snapshot: Snapshot,
        tuple: HeapTuple,
        all_dead: *mut bool,
        first_call: bool,
    ) -> bool;
    pub fn pfree(pointer: *mut std::ffi::c_void);
    pub fn ReadBuffer(relation: Relation, block: BlockNumber) -> Buffer;
    pub fn ReleaseBuffer(buffer: Buffer);
    pub fn heap_deform_tuple(
        tuple: HeapTuple,
        description: TupleDesc,
        values: *mut Datum,
        nulls: *mut bool,
    );
    #[cfg(feature = "pg15")]
    pub fn heap_update(
        relation: Relation,
        old: ItemPointer,
        new: HeapTuple,
        cid: CommandId,
        crosscheck: Snapshot,
        wait: bool,
        failure: *mut TM_FailureData,
        lockmode: *mut LockTupleMode::Type,
    ) -> TM_Result::Type;
    #[cfg(not(feature = "pg15"))]
    pub fn heap_update(
        relation: Relation,
        old: ItemPointer,
        new: HeapTuple,
        cid: CommandId,
        crosscheck: Snapshot,
        wait: bool,
        failure: *mut TM_FailureData,
        lockmode: *mut LockTupleMode::Type,
        indexes: *mut TU_UpdateIndexes::Type,
    ) -> TM_Result::Type;
    pub fn heap_delete(
        relation: Relation,
        tid: ItemPointer,
        cid: CommandId,
        crosscheck: Snapshot,
        wait: bool,
        failure: *mut TM_FailureData,
        changing_part: bool,
    ) -> TM_Result::Type;
    pub fn heap_insert(
        relation: Relation,
        tuple: HeapTuple,
        cid: CommandId,
        options: c_int,
        bulk: BulkInsertState,
    );
    pub fn heap_finish_speculative(relation: Relation, tid: ItemPointer);
    pub fn heap_abort_speculative(relation: Relation, tid: ItemPointer);
    pub fn SpeculativeInsertionLockAcquire(xid: TransactionId) -> uint32;
    pub fn SpeculativeInsertionLockRelease(xid: TransactionId);
    pub fn SpeculativeInsertionWait(xid: TransactionId, token: uint32);
    pub fn XactLockTableWait(
        xid: TransactionId,
        relation: Relation,
        tid: ItemPointer,
        operation: XLTW_Oper::Type,
    );
    pub fn BuildIndexInfo(index: Relation) -> *mut IndexInfo;
    pub fn index_insert(
        index: Relation,
        values: *mut Datum,
        nulls: *mut bool,
        tid: ItemPointer,
        heap: Relation,
        check: IndexUniqueCheck::Type,
        unchanged: bool,
        info: *mut IndexInfo,
    ) -> bool;
    pub fn pg_detoast_datum_packed(datum: *mut varlena) -> *mut varlena;
    pub fn pg_detoast_datum_copy(datum: *mut varlena) -> *mut varlena;
}

/// The root of an index, to read; 0 where it has none yet.
///
/// # Safety
/// As all of these.
pub unsafe fn bt_getroot(index: Relation, heap: Relation) -> Buffer {
    let access = BUFFER_LOCK_SHARE as c_int;
    // SAFETY: as the caller says.
    #[cfg(feature = "pg15")]
    return unsafe {
        let _ = heap;
        _bt_getroot(index, access)
    };
    #[cfg(not(feature = "pg15"))]
    return unsafe { _bt_getroot(index, heap, access) };
}
