//! Background workers: what autoprewarm.c, worker_spi.c and the apply worker do, step by step.
//!
//! - RegisterDynamicBackgroundWorker → [`register`]: needs no shared_preload_libraries, also in a read-only transaction
//! - pqsignal, BackgroundWorkerUnblockSignals → [`begin`]; SIGINT keeps the handler of bgworker.c, which cancels
//! - WaitLatch with the postmaster's death, then a look at the flag of SIGTERM → [`sleep_until`]
//! - settings of its own before it connects, as autovacuum.c's workers → `prepare`
//! - BackgroundWorkerInitializeConnectionByOid → [`connect`], also where connections are not allowed
//! - StartTransactionCommand to CommitTransactionCommand, with the start of a statement and an active snapshot, then
//!   pgstat_report_stat → [`transaction`]
//! - the last work after SIGTERM, which autoprewarm does without a database → [`end_at_once`]: from then on SIGTERM ends
//!   every wait, as in a session; a timeout does in each transaction ([`within`])

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, SignalWakeFlags};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

use ratelimit_core::Micros;

use crate::clock;
use crate::interrupts::check_for_interrupts;

unsafe extern "C-unwind" {
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
    fn die(signal: c_int);
}
/// Of the enum TimeoutId, the same in 15 to 18.
const STATEMENT_TIMEOUT: c_int = 3;

/// The line of postmaster.pid that tells whether the server stops (LOCK_FILE_LINE_PM_STATUS), from 0.
const STATUS_LINE: usize = 7;

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

/// What this worker was registered with. A cancel ends what it waits for from now on, and SIGTERM what it sleeps for.
pub fn begin() -> &'static str {
    on_sigterm(asked_to_end);
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    BackgroundWorker::get_extra()
}

/// When this worker was asked to end, on the monotonic clock; 0: it was not.
static ASKED_AT: AtomicI64 = AtomicI64::new(0);

/// Sets what SIGTERM does.
fn on_sigterm(handler: unsafe extern "C-unwind" fn(c_int)) {
    // SAFETY: a C function.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(libc::SIGTERM, Some(handler));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(libc::SIGTERM, Some(handler));
    }
}

/// Called by the system.
///
/// # Safety
/// In a signal handler: reads the clock and sets the latch, which are allowed there.
unsafe extern "C-unwind" fn asked_to_end(_: c_int) {
    unsafe extern "C-unwind" {
        fn SetLatch(latch: *mut pg_sys::Latch);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    let _ = ASKED_AT.compare_exchange(0, clock::monotonic().0, SeqCst, SeqCst);
    // SAFETY: the latch is this process's own; what was interrupted finds its errno.
    unsafe {
        SetLatch(pg_sys::MyLatch);
        #[cfg(target_os = "linux")]
        {
            *libc::__errno_location() = error.unwrap_or_default();
        }
    }
}

/// Sleeps until `due` on the monotonic clock, which is asked at each wake-up; false if this worker is to end first.
pub fn sleep_until(due: impl Fn() -> Micros) -> bool {
    while !is_asked_to_end() {
        let wait = due().minus(clock::monotonic());
        if wait <= Micros(0) {
            return true;
        }
        let wait = Duration::from_micros(wait.0.unsigned_abs()).min(Duration::from_secs(3600));
        rest(wait + Duration::from_millis(1));
    }
    false
}

/// Waits as [`pause`] between two transactions, where a cancel is one of nothing.
pub fn rest(duration: Duration) {
    // SAFETY: reads and writes this process's own variables; the error of a cancel is held off.
    unsafe {
        pg_sys::QueryCancelHoldoffCount += 1;
        pause(duration);
        pg_sys::QueryCancelHoldoffCount -= 1;
        pg_sys::QueryCancelPending = 0;
    }
}

/// Whether this worker was asked to end.
pub fn is_asked_to_end() -> bool {
    asked_at().is_some()
}

/// When this worker was asked to end, on the monotonic clock.
pub fn asked_at() -> Option<Micros> {
    Some(Micros(ASKED_AT.load(SeqCst))).filter(|&at| at != Micros(0))
}

/// From now on SIGTERM ends whatever this worker waits for.
pub fn end_at_once() {
    on_sigterm(die);
}

/// Runs `work`, whose waits end with a cancel after so long.
pub fn within<T>(limit: Micros, work: impl FnOnce() -> T) -> T {
    // SAFETY: the timeout is registered in each process that is connected; a cancel after it is one of nothing.
    unsafe {
        enable_timeout_after(STATEMENT_TIMEOUT, (limit.0 / 1000).max(1) as c_int);
        let result = work();
        disable_timeout(STATEMENT_TIMEOUT, false);
        pg_sys::QueryCancelPending = 0;
        result
    }
}

/// Whether the server stops: as postmaster.pid tells pg_ctl.
pub fn is_server_stopping() -> bool {
    // Relative to the data folder, in which every process runs.
    let file = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    file.lines().nth(STATUS_LINE).is_some_and(|status| status.trim() == "stopping")
}

/// Whether other processes are connected to a database: but for walsenders, which a stop leaves to the end.
pub fn has_others(database: pg_sys::Oid) -> bool {
    // SAFETY: reads a copy of what the processes tell of themselves, which is made again.
    unsafe {
        pg_sys::pgstat_clear_backend_activity_snapshot();
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).any(|n| {
            #[cfg(feature = "pg15")]
            let process = pg_sys::pgstat_fetch_stat_local_beentry(n);
            #[cfg(not(feature = "pg15"))]
            let process = pg_sys::pgstat_get_local_beentry_by_index(n);
            let process = &(*process).backendStatus;
            process.st_databaseid == database
                && process.st_procpid != pg_sys::MyProcPid
                && process.st_backendType != pg_sys::BackendType::B_WAL_SENDER
        })
    }
}

/// Sets what this worker runs under, before it connects: it can write, waits for nobody long and for no standby, and
/// nothing but [`within`] ends its transactions; and what a connection tells each time is not told.
fn prepare() {
    for (name, value) in [
        (c"log_min_messages", c"error"),
        (c"lock_timeout", c"0"),
        (c"statement_timeout", c"0"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"synchronous_commit", c"local"),
    ] {
        set(name, value);
    }
}

/// Sets a setting, whatever the database or role has.
fn set(name: &CStr, value: &CStr) {
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    // SAFETY: C strings, of settings that there are.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
}

/// Sets how long a lock is waited for from now on.
pub fn set_lock_timeout(limit: &CStr) {
    set(c"lock_timeout", limit);
}

/// Connects a worker to a database, as the role that installed the server, also where connections are not allowed.
pub fn connect(database: pg_sys::Oid) {
    // SAFETY: the setting is there; it is copied before the next one is asked for.
    let logged = unsafe {
        let value = pg_sys::GetConfigOption(c"log_min_messages".as_ptr(), false, false);
        CStr::from_ptr(value).to_owned()
    };
    prepare();
    // SAFETY: once in a worker that was registered for it.
    unsafe {
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        let user = pg_sys::InvalidOid;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, user, flags);
    }
    set(c"log_min_messages", &logged);
}

/// Runs `work` in a transaction of its own, where there is none; the SQLSTATE of what went wrong, if it was rolled back.
pub fn transaction<T, E>(
    work: impl FnOnce() -> Result<T, E>,
    failed: impl Fn(String) -> E,
) -> Result<T, E> {
    let run = || {
        // SAFETY: as a worker runs one: outside any transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
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
    let failed = AssertUnwindSafe(failed);
    let result = PgTryBuilder::new(AssertUnwindSafe(run))
        .catch_others(|caught| {
            // SAFETY: ends the transaction that an error has ended.
            unsafe { pg_sys::AbortCurrentTransaction() };
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. }) = &caught;
            Err((*failed)(sqlstate(report.sql_error_code())))
        })
        .execute();
    // SAFETY: outside any transaction; so autovacuum sees what was written.
    unsafe { pg_sys::pgstat_report_stat(true) };
    result
}

/// The five characters of an SQLSTATE (MAKE_SQLSTATE).
fn sqlstate(code: PgSqlErrorCode) -> String {
    (0..5).map(|n| ((code as i32 >> (6 * n) & 0x3f) as u8 + b'0') as char).collect()
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
    check_for_interrupts();
}

thread_local! {
    static AT_EXIT: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Sees to it that `work`, which calls nothing of Postgres, is done when this process ends, however that is.
pub fn at_exit(work: fn()) {
    if AT_EXIT.replace(Some(work)).is_none() {
        // SAFETY: a C function that lives as long as the library.
        unsafe { pg_sys::before_shmem_exit(Some(run_at_exit), pg_sys::Datum::from(0)) };
    }
}

/// Called by PostgreSQL when the process ends.
#[pgrx::pg_guard]
extern "C-unwind" fn run_at_exit(_code: c_int, _argument: pg_sys::Datum) {
    if let Some(work) = AT_EXIT.get() {
        work();
    }
}
