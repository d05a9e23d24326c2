//! Background workers, as in autoprewarm.c, worker_spi.c and the apply worker, step by step:
//!
//! - RegisterDynamicBackgroundWorker → [`register`]: needs no shared_preload_libraries, also in a read-only
//!   transaction
//! - pqsignal, BackgroundWorkerUnblockSignals → [`begin`]; SIGINT keeps the handler of bgworker.c, which cancels
//! - WaitLatch, also for the postmaster's death, then a look at the flag of SIGTERM → [`sleep_until`]
//! - settings of its own before it connects, like autovacuum.c's workers, then
//!   BackgroundWorkerInitializeConnectionByOid, even if the database allows no connections → [`connect`]
//! - StartTransactionCommand to CommitTransactionCommand, with the start of a statement and an active snapshot, then
//!   pgstat_report_stat → [`transaction`]
//! - the last work after SIGTERM, which autoprewarm does without a database → [`end_at_once`]: from then on another
//!   SIGTERM ends every wait, as in a session; a timeout does in each transaction ([`within`])

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
/// STATEMENT_TIMEOUT in the enum TimeoutId, the same in 15 to 18.
const STATEMENT_TIMEOUT: c_int = 3;

/// The line of postmaster.pid with the server's status (LOCK_FILE_LINE_PM_STATUS), from 0.
const STATUS_LINE: usize = 7;

/// Starts a worker that runs an exported function of the library; false if the server has no slot for it.
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

/// Installs signal handlers, and returns the argument of this worker's registration. From now on a cancel ends its
/// waits, and SIGTERM its sleep.
pub fn begin() -> &'static str {
    on_sigterm(asked_to_end);
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    BackgroundWorker::get_extra()
}

/// The time when this worker was asked to end, on the monotonic clock; 0: not yet.
static ASKED_AT: AtomicI64 = AtomicI64::new(0);

/// Sets the handler of SIGTERM.
fn on_sigterm(handler: extern "C-unwind" fn(c_int)) {
    // SAFETY: a C function.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(libc::SIGTERM, Some(handler));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(libc::SIGTERM, Some(handler));
    }
}

/// A signal handler: reads the clock and sets the latch, which are allowed there.
extern "C-unwind" fn asked_to_end(_: c_int) {
    unsafe extern "C-unwind" {
        fn SetLatch(latch: *mut pg_sys::Latch);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    let _ = ASKED_AT.compare_exchange(0, clock::monotonic().0, SeqCst, SeqCst);
    // SAFETY: the latch is this process's own; the interrupted code finds its errno unchanged.
    unsafe {
        SetLatch(pg_sys::MyLatch);
        #[cfg(target_os = "linux")]
        {
            *libc::__errno_location() = error.unwrap_or_default();
        }
    }
}

/// Sleeps until `due` on the monotonic clock, read again at each wake-up, or until this worker is asked to end; returns
/// the time of that request.
pub fn sleep_until(due: impl Fn() -> Micros) -> Option<Micros> {
    while !is_asked_to_end() {
        let wait = due().minus(clock::monotonic());
        if wait <= Micros(0) {
            return None;
        }
        let wait = Duration::from_micros(wait.0.unsigned_abs()).min(Duration::from_secs(3600));
        rest(wait + Duration::from_millis(1));
    }
    asked_at()
}

/// Waits like [`pause`], between two transactions, and ignores a cancel: there is nothing to cancel.
pub fn rest(duration: Duration) {
    // SAFETY: reads and writes this process's own variables; a cancel raises no error meanwhile.
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

/// The time when this worker was asked to end, on the monotonic clock.
fn asked_at() -> Option<Micros> {
    Some(Micros(ASKED_AT.load(SeqCst))).filter(|&at| at != Micros(0))
}

/// The postmaster signals a process, then its process group (signal_child): a second SIGTERM within this time is
/// the same one.
const SAME_SIGNAL: Micros = Micros(1_000_000);

/// Makes another SIGTERM end every wait of this worker from now on.
pub fn end_at_once() {
    on_sigterm(asked_again);
}

/// A signal handler: reads the clock, and calls one of PostgreSQL.
extern "C-unwind" fn asked_again(signal: c_int) {
    if asked_at().is_some_and(|at| clock::monotonic().minus(at) >= SAME_SIGNAL) {
        // SAFETY: as a session's own.
        unsafe { die(signal) };
    }
}

/// Runs `work`; a wait after this time ends with a cancel.
pub fn within<T>(limit: Micros, work: impl FnOnce() -> T) -> T {
    // SAFETY: the timeout is registered in each connected process; a later cancel has nothing to cancel.
    unsafe {
        enable_timeout_after(STATEMENT_TIMEOUT, (limit.0 / 1000).max(1) as c_int);
        let result = work();
        disable_timeout(STATEMENT_TIMEOUT, false);
        pg_sys::QueryCancelPending = 0;
        result
    }
}

/// Whether the server is stopping, by postmaster.pid, as pg_ctl reads it.
pub fn is_server_stopping() -> bool {
    // Relative to the data directory, the working directory of every process.
    let file = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    file.lines().nth(STATUS_LINE).is_some_and(|status| status.trim() == "stopping")
}

/// Whether other processes are connected to a database, except walsenders, which end last.
pub fn has_others(database: pg_sys::Oid) -> bool {
    // SAFETY: reads a new copy of the processes' status.
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

/// Changes a setting, overriding the values of database and role.
fn set(name: &CStr, value: &CStr) {
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    // SAFETY: C strings; the settings exist.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
}

/// Sets the maximum wait for a lock from now on.
pub fn set_lock_timeout(limit: &CStr) {
    set(c"lock_timeout", limit);
}

/// Connects this worker to a database as the bootstrap superuser, even if the database allows no connections. Before,
/// sets its settings: it can write, waits only briefly for locks and for no standby, only [`within`] ends its
/// transactions, and its connections are not logged.
pub fn connect(database: pg_sys::Oid) {
    // SAFETY: the setting exists, and is copied before another one is read.
    let logged = unsafe {
        let value = pg_sys::GetConfigOption(c"log_min_messages".as_ptr(), false, false);
        CStr::from_ptr(value).to_owned()
    };
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
    // SAFETY: called once, in a worker that was registered for it.
    unsafe {
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        let user = pg_sys::InvalidOid;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, user, flags);
    }
    set(c"log_min_messages", &logged);
}

/// Runs `work` in a transaction of its own. An error of Postgres rolls it back; `failed` converts its SQLSTATE.
pub fn transaction<T, E>(
    work: impl FnOnce() -> Result<T, E>,
    failed: impl Fn(String) -> E,
) -> Result<T, E> {
    let run = || {
        // SAFETY: outside any transaction, as in a worker of Postgres.
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
            // SAFETY: aborts the transaction after an error.
            unsafe { pg_sys::AbortCurrentTransaction() };
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. }) = &caught;
            Err((*failed)(sqlstate(report.sql_error_code())))
        })
        .execute();
    // SAFETY: outside any transaction. Autovacuum needs these counts.
    unsafe { pg_sys::pgstat_report_stat(true) };
    result
}

/// Unpacks the five characters of an SQLSTATE (MAKE_SQLSTATE).
fn sqlstate(code: PgSqlErrorCode) -> String {
    (0..5).map(|n| ((code as i32 >> (6 * n) & 0x3f) as u8 + b'0') as char).collect()
}

/// Returns the number of this process in the server's list.
pub fn process() -> i32 {
    // SAFETY: the process is an element of the array.
    unsafe { pg_sys::MyProc.offset_from((*pg_sys::ProcGlobal).allProcs) as i32 }
}

/// Wakes a process that sleeps.
pub fn wake(process: i32) {
    // SAFETY: a process had this number; at worst another process wakes up.
    unsafe { pg_sys::ProcSendSignal(process) };
}

/// Waits for this duration; raises a cancel.
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

/// Runs `work`, which calls nothing of Postgres, whenever and however this process ends.
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
