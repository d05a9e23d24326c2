//! Runs work under other settings, and reads PostgreSQL's record of a setting.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::values::string;

/// PostgreSQL's record of a setting, which lives as long as the session.
#[derive(Clone, Copy)]
pub struct Setting(*mut pg_sys::config_generic);

impl Setting {
    /// Finds a setting by its name.
    pub fn find(name: &CStr) -> Option<Setting> {
        // SAFETY: reads PostgreSQL's list; each of its records has a name.
        unsafe {
            #[cfg(feature = "pg15")]
            let found = {
                let count = pg_sys::GetNumConfigOptions() as usize;
                let all = std::slice::from_raw_parts(pg_sys::get_guc_variables(), count);
                *all.iter().find(|&&setting| CStr::from_ptr((*setting).name) == name)?
            };
            #[cfg(not(feature = "pg15"))]
            let found = pg_sys::find_option(name.as_ptr(), false, true, 0);
            (!found.is_null()).then_some(Setting(found))
        }
    }

    /// Restricts a setting to superusers and roles with GRANT SET. Its current value stays, whichever role has set it.
    pub fn restrict(self) {
        // SAFETY: the record is the session's own.
        unsafe { (*self.0).context = pg_sys::GucContext::PGC_SUSET };
    }

    /// Returns the role that set the current value, quoted for SQL, if it may not set a
    /// [restricted](Setting::restrict) setting.
    pub fn refused_role(self) -> Option<String> {
        use pg_sys::GucContext::{PGC_BACKEND, PGC_USERSET};
        // SAFETY: reads the record and the catalogs, in a transaction.
        unsafe {
            let setting = &*self.0;
            // The same check as in set_config_option.
            if !matches!(setting.scontext, PGC_USERSET | PGC_BACKEND)
                || pg_sys::pg_parameter_aclcheck(
                    setting.name,
                    setting.srole,
                    pg_sys::ACL_SET as pg_sys::AclMode,
                ) == pg_sys::AclResult::ACLCHECK_OK
            {
                return None;
            }
            let role = pg_sys::GetUserNameFromId(setting.srole, true);
            let is_there = !role.is_null();
            let quoted = is_there.then(|| string(pg_sys::quote_identifier(role))).flatten();
            Some(quoted.unwrap_or_default())
        }
    }
}

/// Whether this is a parallel worker, into which the leader's settings are copied.
pub fn is_parallel_worker() -> bool {
    // SAFETY: reads the session's state.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Runs `work` under these settings; after an error the abort of the (sub)transaction restores the session's.
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
