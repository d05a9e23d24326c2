//! PostgreSQL functions without pgrx's guard around each: one guard is around a whole operation. Call them only from
//! frames with plain data, which an error may jump over, and never together with functions of `pg_sys`: errors of those
//! unwind instead.
//!
//! The callbacks of the table's access method are called by `access_method!`, or by functions at the end, named as in
//! tableam.h.

use std::ffi::c_int;

use pgrx::pg_sys::*;

unsafe extern "C-unwind" {
    pub fn table_open(relation: Oid, lockmode: LOCKMODE) -> Relation;
    pub fn table_close(relation: Relation, lockmode: LOCKMODE);
    pub fn index_open(relation: Oid, lockmode: LOCKMODE) -> Relation;
    pub fn index_close(relation: Relation, lockmode: LOCKMODE);
    pub fn LockRelationOid(relation: Oid, lockmode: LOCKMODE);
    pub fn GetLatestSnapshot() -> Snapshot;
    pub fn GetActiveSnapshot() -> Snapshot;
    pub fn PushActiveSnapshot(snapshot: Snapshot);
    pub fn PopActiveSnapshot();
    #[cfg(not(feature = "pg18"))]
    fn index_beginscan(
        heap: Relation,
        index: Relation,
        snapshot: Snapshot,
        nkeys: c_int,
        norderbys: c_int,
    ) -> IndexScanDesc;
    #[cfg(feature = "pg18")]
    fn index_beginscan(
        heap: Relation,
        index: Relation,
        snapshot: Snapshot,
        instrument: *mut std::ffi::c_void,
        nkeys: c_int,
        norderbys: c_int,
    ) -> IndexScanDesc;
    fn index_rescan(
        scan: IndexScanDesc,
        keys: ScanKey,
        nkeys: c_int,
        orderbys: ScanKey,
        norderbys: c_int,
    );
    pub fn index_getnext_tid(scan: IndexScanDesc, direction: ScanDirection::Type) -> ItemPointer;
    pub fn index_fetch_heap(scan: IndexScanDesc, slot: *mut TupleTableSlot) -> bool;
    pub fn index_endscan(scan: IndexScanDesc);
    pub fn table_slot_create(relation: Relation, slots: *mut *mut List) -> *mut TupleTableSlot;
    pub fn MakeSingleTupleTableSlot(
        description: TupleDesc,
        kind: *const TupleTableSlotOps,
    ) -> *mut TupleTableSlot;
    pub fn ExecStoreHeapTuple(
        tuple: HeapTuple,
        slot: *mut TupleTableSlot,
        free: bool,
    ) -> *mut TupleTableSlot;
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
    pub fn TransactionIdIsCurrentTransactionId(xid: TransactionId) -> bool;
    fn ProcessInterrupts();
    pub fn heap_form_tuple(
        description: TupleDesc,
        values: *mut Datum,
        nulls: *mut bool,
    ) -> HeapTuple;
    pub fn HeapTupleSatisfiesUpdate(
        tuple: HeapTuple,
        cid: CommandId,
        buffer: Buffer,
    ) -> TM_Result::Type;
    pub fn LockBuffer(buffer: Buffer, mode: c_int);
    pub fn RelationGetNumberOfBlocksInFork(
        relation: Relation,
        fork: ForkNumber::Type,
    ) -> BlockNumber;
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

/// Begins a scan of an index with these scan keys.
///
/// # Safety
/// Inside a guard; the relations are open, and the keys outlive the scan.
pub unsafe fn begin_scan(
    table: Relation,
    index: Relation,
    snapshot: Snapshot,
    keys: &mut [ScanKeyData],
) -> IndexScanDesc {
    let (nkeys, none) = (keys.len() as c_int, std::ptr::null_mut());
    // SAFETY: as the caller says.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        let scan = index_beginscan(table, index, snapshot, nkeys, 0);
        #[cfg(feature = "pg18")]
        let scan = index_beginscan(table, index, snapshot, std::ptr::null_mut(), nkeys, 0);
        index_rescan(scan, keys.as_mut_ptr(), nkeys, none, 0);
        scan
    }
}

/// Processes a cancel or a shutdown: CHECK_FOR_INTERRUPTS.
///
/// # Safety
/// Inside a guard.
pub unsafe fn check_for_interrupts() {
    // SAFETY: reads a flag that signal handlers set.
    unsafe {
        if std::ptr::read_volatile(&raw const InterruptPending) != 0 {
            ProcessInterrupts();
        }
    }
}

/// Clears a slot, and unpins its page: ExecClearTuple.
///
/// # Safety
/// Inside a guard; the slot exists.
pub unsafe fn clear(slot: *mut TupleTableSlot) {
    // SAFETY: every kind of slot has this function.
    unsafe {
        if let Some(clear) = (*(*slot).tts_ops).clear {
            clear(slot);
        }
    }
}

/// Reads all columns of the row in a slot.
///
/// # Safety
/// Inside a guard; the slot holds a row.
pub unsafe fn deform(slot: *mut TupleTableSlot) {
    // SAFETY: a slot has a description; no more columns than that has are read.
    unsafe { slot_getsomeattrs_int(slot, (*(*slot).tts_tupleDescriptor).natts) };
}

/// Calls a callback of the table's access method, inside a guard; the heap has all of them (GetTableAmRoutine).
macro_rules! access_method {
    ($table:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        (*(*$table).rd_tableam).$function.unwrap_unchecked()($($argument),*)
    };
}

pub(super) use access_method;

/// Fetches the version at a tuple id; false if it is not visible to the snapshot.
///
/// # Safety
/// Inside a guard; the page of `tid` exists, the slot is one of the table.
pub unsafe fn table_tuple_fetch_row_version(
    table: Relation,
    tid: &mut ItemPointerData,
    snapshot: Snapshot,
    slot: *mut TupleTableSlot,
) -> bool {
    // SAFETY: as the caller says.
    unsafe { access_method!(table, tuple_fetch_row_version(table, tid, snapshot, slot)) }
}

/// Locks a row like SELECT … FOR UPDATE and fetches the locked version. Also returns whether an update was followed.
///
/// # Safety
/// Inside a guard; `tid` is that of a version of the table, the slot is one of the table.
pub unsafe fn table_tuple_lock(
    table: Relation,
    tid: &mut ItemPointerData,
    slot: *mut TupleTableSlot,
    policy: LockWaitPolicy::Type,
    flags: u32,
) -> (TM_Result::Type, bool) {
    let mut failure = TM_FailureData::default();
    // SAFETY: as the caller says.
    unsafe {
        let result = access_method!(
            table,
            tuple_lock(
                table,
                tid,
                GetLatestSnapshot(),
                slot,
                GetCurrentCommandId(false),
                LockTupleMode::LockTupleExclusive,
                policy,
                flags as u8,
                &mut failure,
            )
        );
        (result, failure.traversed)
    }
}

/// Replaces a version by the slot's, after waiting for locks on it: heap_update asserts that it may wait. Also returns
/// whether the new version needs index entries.
///
/// # Safety
/// Inside a guard; `old` is that of a version of the table, the slot holds a row of it.
pub unsafe fn table_tuple_update(
    table: Relation,
    old: &mut ItemPointerData,
    slot: *mut TupleTableSlot,
) -> (TM_Result::Type, bool) {
    let mut failure = TM_FailureData::default();
    let mut mode = LockTupleMode::LockTupleNoKeyExclusive;
    #[cfg(feature = "pg15")]
    let mut indexes = false;
    #[cfg(not(feature = "pg15"))]
    let mut indexes = TU_UpdateIndexes::TU_None;
    // SAFETY: as the caller says.
    unsafe {
        let result = access_method!(
            table,
            tuple_update(
                table,
                old,
                slot,
                GetCurrentCommandId(true),
                GetActiveSnapshot(),
                std::ptr::null_mut(),
                true,
                &mut failure,
                &mut mode,
                &mut indexes,
            )
        );
        #[cfg(not(feature = "pg15"))]
        let indexes = indexes == TU_UpdateIndexes::TU_All;
        (result, indexes)
    }
}

/// Deletes a version of a row, with `wait` after waiting for locks on it.
///
/// # Safety
/// Inside a guard; `tid` is that of a version of the table.
pub unsafe fn table_tuple_delete(
    table: Relation,
    tid: &mut ItemPointerData,
    wait: bool,
) -> TM_Result::Type {
    let mut failure = TM_FailureData::default();
    // SAFETY: as the caller says.
    unsafe {
        access_method!(
            table,
            tuple_delete(
                table,
                tid,
                GetCurrentCommandId(true),
                GetActiveSnapshot(),
                std::ptr::null_mut(),
                wait,
                &mut failure,
                false,
            )
        )
    }
}
