//! Background workers, and what a session does at its end.
//!
//! A worker that is registered by a session (RegisterDynamicBackgroundWorker) needs no shared_preload_libraries, and
//! can be registered in a read-only transaction, too.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, SignalWakeFlags};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};

use ratelimit_core::Micros;

use crate::clock;

/// Asks the server for a worker, which runs an exported function of the library; false where it has no place for one.
pub fn register(name: &str, function: &str, extra: &str) -> bool {
    // A single-user server has no workers.
    // SAFETY: reads a variable.
    if !unsafe { pg_sys::IsUnderPostmaster } {
        return false;
    }
    BackgroundWorkerBuilder::new(name)
        .set_library("ratelimit")
        .set_function(function)
        .set_extra(extra)
        .enable_spi_access()
        .load_dynamic()
        .is_ok()
}

/// What this worker was registered with. It can be ended from now on; a cancel ends what it waits for.
pub fn begin() -> &'static str {
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP | SignalWakeFlags::SIGTERM);
    BackgroundWorker::get_extra()
}

/// Sleeps until `due` tells that it is time, which is asked at each wake-up; false if the server stops first.
pub fn sleep_until(due: impl Fn() -> Micros) -> bool {
    loop {
        let wait = due().minus(clock::system_time());
        if wait <= Micros(0) {
            return true;
        }
        let wait = Duration::from_micros(wait.0.unsigned_abs()).min(Duration::from_secs(3600));
        // SAFETY: a cancel of nothing: it would end the process, which runs no statement.
        unsafe { pg_sys::QueryCancelPending = 0 };
        if !BackgroundWorker::wait_latch(Some(wait + Duration::from_millis(1))) {
            return false;
        }
    }
}

/// Whether this worker was asked to end.
pub fn is_asked_to_end() -> bool {
    BackgroundWorker::sigterm_received()
}

/// Connects a worker to a database, as the role that installed the server, under settings with which it can write,
/// waits for nobody long, and is not slowed by a standby.
pub fn connect(database: pg_sys::Oid) {
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(database), None);
    for (name, value) in [
        (c"lock_timeout", c"900ms"),
        (c"statement_timeout", c"0"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"synchronous_commit", c"local"),
    ] {
        let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
        // SAFETY: C strings, of settings that there are.
        unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
    }
}

/// Runs `work` in a transaction of its own, where there is none; what went wrong, if it was rolled back.
///
/// # Errors
/// The message of the error that ended it.
pub fn transaction<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let run = || {
        // SAFETY: as a worker or a session at its end runs one: outside any transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            // Whatever the session's defaults are; before the first snapshot, as SET TRANSACTION.
            pg_sys::XactReadOnly = pg_sys::RecoveryInProgress();
            pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
            pg_sys::XactDeferrable = false;
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let outcome = work();
            if outcome.is_ok() {
                pg_sys::PopActiveSnapshot();
                pg_sys::CommitTransactionCommand();
            } else {
                pg_sys::AbortCurrentTransaction();
            }
            outcome
        }
    };
    let result = PgTryBuilder::new(AssertUnwindSafe(run))
        .catch_others(|caught| {
            // SAFETY: ends the transaction that an error has ended.
            unsafe { pg_sys::AbortCurrentTransaction() };
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. }) = &caught;
            Err(report.message().to_owned())
        })
        .execute();
    // SAFETY: outside any transaction; so autovacuum sees what was written.
    unsafe { pg_sys::pgstat_report_stat(true) };
    result
}

/// Locks a table as who writes rows does, unless somebody holds it otherwise.
pub fn lock_to_write(table: pg_sys::Oid) -> bool {
    // SAFETY: in a transaction.
    unsafe { pg_sys::ConditionalLockRelationOid(table, pg_sys::RowExclusiveLock as _) }
}

/// The number of this process in the server's list.
pub fn process() -> i32 {
    // SAFETY: the process is one of the array's.
    unsafe { pg_sys::MyProc.offset_from((*pg_sys::ProcGlobal).allProcs) as i32 }
}

/// Wakes a process that sleeps.
pub fn wake(process: i32) {
    // SAFETY: a number that a process had; at worst another one looks what there is to do.
    unsafe { pg_sys::ProcSendSignal(process) };
}

/// Waits for some milliseconds, or until a cancel, which is raised.
pub fn pause(duration: Duration) {
    let flags = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the latch is this process's own.
    unsafe {
        let millis = duration.as_millis() as std::ffi::c_long;
        pg_sys::WaitLatch(pg_sys::MyLatch, flags as i32, millis, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    crate::interrupts::check_for_interrupts();
}

/// What is done when a session ends.
#[derive(Clone, Copy)]
struct AtExit {
    work: fn(),
    then: fn(),
}

thread_local! {
    static AT_EXIT: Cell<Option<AtExit>> = const { Cell::new(None) };
}

/// Sees to it that `work` is done once more when this session ends, outside any transaction, and `then` after it: also
/// where an error of PostgreSQL's ends the work, which is FATAL there.
pub fn at_exit(work: fn(), then: fn()) {
    if AT_EXIT.replace(Some(AtExit { work, then })).is_none() {
        // SAFETY: the last is called first: while the session can still run a transaction, as what drops temporary
        // tables does.
        unsafe {
            pg_sys::before_shmem_exit(Some(run_after_exit), pg_sys::Datum::from(0));
            pg_sys::before_shmem_exit(Some(run_at_exit), pg_sys::Datum::from(0));
        }
    }
}

/// Called by PostgreSQL when the session ends.
#[pgrx::pg_guard]
extern "C-unwind" fn run_at_exit(_code: std::ffi::c_int, _argument: pg_sys::Datum) {
    let Some(AtExit { work, .. }) = AT_EXIT.get() else { return };
    // SAFETY: ends what the session was in.
    unsafe { pg_sys::AbortOutOfAnyTransaction() };
    PgTryBuilder::new(AssertUnwindSafe(work)).catch_others(|_| ()).execute();
}

/// Called after it.
#[pgrx::pg_guard]
extern "C-unwind" fn run_after_exit(_code: std::ffi::c_int, _argument: pg_sys::Datum) {
    if let Some(AtExit { then, .. }) = AT_EXIT.take() {
        then();
    }
}
