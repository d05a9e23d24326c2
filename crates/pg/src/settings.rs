//! Work under other settings than the session's.

use std::ffi::CStr;

use pgrx::pg_sys;

/// Runs `work` under these settings; after an error the abort of the (sub)transaction restores the
/// session's, as everywhere in Postgres.
pub fn locally<T>(settings: &[(&CStr, &CStr)], work: impl FnOnce() -> T) -> T {
    if settings.is_empty() {
        return work();
    }
    // SAFETY: every nest level is closed again, and the strings are valid.
    unsafe {
        let nest_level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        let result = work();
        pg_sys::AtEOXact_GUC(false, nest_level);
        result
    }
}
