//! The settings `ratelimit.*`.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum, pg_sys};
use ratelimit_core::{Micros, parse_instant};
use ratelimit_pg::clock;
use ratelimit_pg::settings::{Setting, is_parallel_worker};

use crate::schema::error::{Error, Result};

pub use ratelimit_pg::settings::locally;

/// The form of a denial's error, with `throws`.
#[derive(Clone, Copy, PostgresGucEnum)]
pub enum ErrorStyle {
    /// SQLSTATE PT429.
    #[name = c"pt429"]
    Pt429,
    /// PostgREST's own form, with a Retry-After header.
    #[name = c"pgrst"]
    Pgrst,
}

/// How rows are accessed.
#[derive(Clone, Copy, PartialEq, PostgresGucEnum)]
pub enum Access {
    /// Directly, if the table allows.
    #[name = c"auto"]
    Auto,
    /// Through SQL.
    #[name = c"sql"]
    Sql,
    /// Directly, or with an error.
    #[name = c"heap"]
    Heap,
}

/// `ratelimit.access`.
pub static ACCESS: GucSetting<Access> = GucSetting::<Access>::new(Access::Auto);
/// `ratelimit.error_style`.
pub static ERROR_STYLE: GucSetting<ErrorStyle> = GucSetting::<ErrorStyle>::new(ErrorStyle::Pt429);
/// `ratelimit.log_denials`, a share from 0 to 1.
pub static LOG_DENIALS: GucSetting<f64> = GucSetting::<f64>::new(0.0);
static MEMORY_KEYS: GucSetting<i32> = GucSetting::<i32>::new(100_000);
/// `ratelimit.track`.
pub static TRACK: GucSetting<bool> = GucSetting::<bool>::new(true);
static CLOCK: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// Returns `ratelimit.memory_keys`.
pub fn memory_keys() -> usize {
    MEMORY_KEYS.get() as usize
}

/// Declares the settings, once, when the library is loaded.
pub fn init() {
    GucRegistry::define_enum_guc(
        c"ratelimit.access",
        c"How the rate limiter accesses its table.",
        c"heap: directly; sql: with SQL statements; auto: directly, unless something such as a trigger on the table \
          requires SQL.",
        &ACCESS,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"ratelimit.error_style",
        c"Form of the error that a denial raises with throws.",
        c"pt429: SQLSTATE PT429; pgrst: PostgREST's own form, with a Retry-After header.",
        &ERROR_STYLE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_float_guc(
        c"ratelimit.log_denials",
        c"Fraction of denials that the rate limiter writes to the server's log.",
        c"From 0 (none) to 1 (all). A line has the limit's name, the wait and the role, but not the key.",
        &LOG_DENIALS,
        0.0,
        1.0,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"ratelimit.memory_keys",
        c"Number of keys for which defined limits in memory have room, in all databases together.",
        c"Some 180 bytes per key, which include room for half as many keys of configs passed with calls. The first \
          call allocates them, so a change takes effect when the server starts.",
        &MEMORY_KEYS,
        1_000,
        1_000_000_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"ratelimit.track",
        c"Counts calls for rl_stats and rl_top_denied.",
        c"The counters are in shared memory.",
        &TRACK,
        GucContext::Suset,
        GucFlags::default(),
    );
    define_clock();
    // SAFETY: the prefix is a C string.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"ratelimit".as_ptr()) };
}

const CLOCK_NAME: &CStr = c"ratelimit.clock";

/// The allowed values of `ratelimit.clock`, as the detail of an error.
pub const CLOCK_ALLOWED: &CStr =
    c"Allowed: a time with its offset such as \"2027-01-01 12:00:00+00\", epoch \
    milliseconds, or an empty string for the server's clock.";

thread_local! {
    /// Whether `ratelimit.clock` is set to a value that is not empty.
    static IS_CLOCK_SET: Cell<bool> = const { Cell::new(false) };
    /// Whether `ratelimit.clock` takes any value: while it is declared, and in a parallel worker.
    static TAKES_ANY_CLOCK: Cell<bool> = const { Cell::new(true) };
}

/// Declares `ratelimit.clock`.
///
/// Until the library is loaded PostgreSQL stores any value that any role sets. The declaration would drop an invalid
/// one with a warning, and calls would silently use the server's clock. So the declaration accepts every value, and
/// [`check_clock`] refuses each call while an invalid one is set. Later values are checked by SET.
///
/// A parallel worker gets the leader's values after it has loaded the library, and its query must not fail for them.
fn define_clock() {
    // SAFETY: the hooks are C functions that live as long as the library.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            CLOCK_NAME,
            c"Time that the rate limiter uses in place of the server's clock, for tests.",
            c"A time with its offset, or epoch milliseconds; empty: the server's clock.",
            &CLOCK,
            GucContext::Userset,
            GucFlags::default(),
            Some(is_valid_clock),
            Some(assign_clock),
            None,
        );
    }
    if !is_parallel_worker()
        && let Some(setting) = Setting::find(CLOCK_NAME)
    {
        setting.restrict();
        TAKES_ANY_CLOCK.set(false);
    }
}

/// Refuses a call under a `ratelimit.clock` that was set before the library was loaded and that SET would refuse: for
/// its role (42501), or as an invalid time (22023).
#[inline]
pub fn check_clock() -> Result<()> {
    if IS_CLOCK_SET.get() { check_set_clock() } else { Ok(()) }
}

/// Checks a clock that is set.
#[cold]
fn check_set_clock() -> Result<()> {
    if let Some(role) = Setting::find(CLOCK_NAME).and_then(Setting::refused_role) {
        return Err(Error::ClockDenied { role });
    }
    match CLOCK.get() {
        Some(value) if parse(&value).is_err() => {
            Err(Error::InvalidClock { value: value.to_string_lossy().into() })
        }
        _ => Ok(()),
    }
}

/// Parses `ratelimit.clock`; `None`: the server's clock.
fn parse(value: &CStr) -> std::result::Result<Option<Micros>, ()> {
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(text) => parse_instant(text).map(Some).ok_or(()),
        Err(_) => Err(()),
    }
}

/// Reads a value from Postgres; null becomes the empty value.
///
/// # Safety
/// `value` is null or a C string.
unsafe fn given<'a>(value: *const c_char) -> &'a CStr {
    if value.is_null() {
        return c"";
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(value) }
}

/// The check hook of `ratelimit.clock`.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn is_valid_clock(
    value: *mut *mut c_char,
    _: *mut *mut c_void,
    _: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: Postgres passes a valid pointer to the new value; the detail is a palloc'd string.
    unsafe {
        let valid = TAKES_ANY_CLOCK.get() || parse(given(*value)).is_ok();
        if !valid {
            pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(CLOCK_ALLOWED.as_ptr());
        }
        valid
    }
}

/// The assign hook of `ratelimit.clock`.
///
/// # Safety
/// Called by Postgres, with a checked value.
unsafe extern "C-unwind" fn assign_clock(value: *const c_char, _: *mut c_void) {
    // SAFETY: Postgres passes a C string or null.
    let value = unsafe { given(value) };
    IS_CLOCK_SET.set(!value.is_empty());
    clock::fix(parse(value).unwrap_or(None));
}
