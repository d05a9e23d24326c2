//! Messages to the server's log and the client.

use std::ffi::{CString, c_int};

use pgrx::pg_sys;
use pgrx::pg_sys::submodules::elog::PgLogLevel;
use pgrx::pg_sys::submodules::ffi::pg_guard_ffi_boundary;

use crate::unguarded::{errfinish, errhidecontext, errhidestmt, errmsg, errstart};
use crate::values::{server_text, string};

/// Writes one line at level LOG, without statement and context, which contain users' values.
pub fn line(text: &str) {
    report(PgLogLevel::LOG, text);
}

/// Sends a notice to the client.
pub fn notice(text: &str) {
    report(PgLogLevel::NOTICE, text);
}

/// Warns in the client and the log.
pub fn warning(text: &str) {
    report(PgLogLevel::WARNING, text);
}

fn report(level: PgLogLevel, text: &str) {
    // Characters that pgrx could not read can't be converted back.
    let text = CString::new(server_text(&text.replace('\u{fffd}', "?"))).unwrap_or_default();
    // SAFETY: the strings are valid. An error of a hook, or a cancel that errfinish looks for, jumps to the guard past
    // a closure that owns nothing, and unwinds from there as a panic.
    unsafe {
        pg_guard_ffi_boundary(|| {
            if errstart(level as c_int, std::ptr::null()) {
                errmsg(c"%s".as_ptr(), text.as_ptr());
                errhidestmt(true);
                errhidecontext(true);
                errfinish(c"server_log.rs".as_ptr(), line!() as c_int, c"report".as_ptr());
            }
        });
    }
}

/// Returns the name of the current role.
pub fn current_role() -> String {
    // SAFETY: reads a catalog; the name is a palloc'd C string, or null if the role is gone.
    unsafe {
        let role = pg_sys::GetUserId();
        let name = pg_sys::GetUserNameFromId(role, true);
        let Some(text) = string(name) else { return role.to_u32().to_string() };
        pg_sys::pfree(name.cast());
        text
    }
}
