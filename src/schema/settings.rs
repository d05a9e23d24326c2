//! The settings.

use std::ffi::{CStr, CString, c_char, c_void};

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum, pg_sys};
use ratelimit_core::{Micros, parse_instant};
use ratelimit_pg::clock;

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

/// The access to the rows.
#[derive(Clone, Copy, PartialEq, PostgresGucEnum)]
pub enum Access {
    /// Direct, if the table allows.
    #[name = c"auto"]
    Auto,
    /// Through SQL.
    #[name = c"sql"]
    Sql,
    /// Direct, or an error.
    #[name = c"heap"]
    Heap,
}

static ACCESS: GucSetting<Access> = GucSetting::<Access>::new(Access::Auto);
static ERROR_STYLE: GucSetting<ErrorStyle> = GucSetting::<ErrorStyle>::new(ErrorStyle::Pt429);
static LOG_DENIALS: GucSetting<f64> = GucSetting::<f64>::new(0.0);
static MEMORY_KEYS: GucSetting<i32> = GucSetting::<i32>::new(100_000);
static TRACK: GucSetting<bool> = GucSetting::<bool>::new(true);
static CLOCK: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// Returns `ratelimit.error_style`.
pub fn error_style() -> ErrorStyle {
    ERROR_STYLE.get()
}

/// Returns `ratelimit.access`.
pub fn access() -> Access {
    ACCESS.get()
}

/// Returns `ratelimit.log_denials`, a share from 0 to 1.
pub fn log_denials() -> f64 {
    LOG_DENIALS.get()
}

/// Returns `ratelimit.memory_keys`.
pub fn memory_keys() -> usize {
    MEMORY_KEYS.get() as usize
}

/// Returns `ratelimit.track`.
pub fn track() -> bool {
    TRACK.get()
}

/// Declares the settings; called once, when the library is loaded.
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

/// Declares `ratelimit.clock`.
fn define_clock() {
    // SAFETY: the hooks are C functions that live as long as the library.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"ratelimit.clock",
            c"Time that the rate limiter uses in place of the server's clock, for tests.",
            c"A time with its offset, or epoch milliseconds; empty: the server's clock.",
            &CLOCK,
            GucContext::Suset,
            GucFlags::default(),
            Some(check_clock),
            Some(assign_clock),
            None,
        );
    }
}

/// Parses `ratelimit.clock`; `None`: the server's clock.
///
/// # Errors
/// The value is no time.
///
/// # Safety
/// `value` is null or a C string.
unsafe fn parse_clock(value: *const c_char) -> Result<Option<Micros>, ()> {
    if value.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    match unsafe { CStr::from_ptr(value) }.to_str() {
        Ok("") => Ok(None),
        Ok(text) => parse_instant(text).map(Some).ok_or(()),
        Err(_) => Err(()),
    }
}

/// The check hook of `ratelimit.clock`.
///
/// # Safety
/// Called by Postgres.
unsafe extern "C-unwind" fn check_clock(
    value: *mut *mut c_char,
    _: *mut *mut c_void,
    _: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: Postgres passes a valid pointer to the new value; the detail is a palloc'd string.
    unsafe {
        let valid = parse_clock(*value).is_ok();
        if !valid {
            pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(
                c"Allowed: a time with its offset such as \"2027-01-01 12:00:00+00\", epoch milliseconds, or an \
                  empty string for the server's clock."
                    .as_ptr(),
            );
        }
        valid
    }
}

/// The assign hook of `ratelimit.clock`.
///
/// # Safety
/// Called by Postgres, with a checked value.
unsafe extern "C-unwind" fn assign_clock(value: *const c_char, _: *mut c_void) {
    // SAFETY: Postgres passes a value that `check_clock` accepted.
    clock::fix(unsafe { parse_clock(value) }.unwrap_or(None));
}
