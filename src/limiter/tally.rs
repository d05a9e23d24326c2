//! What calls are answered, counted for `rl_stats` and `rl_top_denied`, and told in the server's log.

use std::cell::Cell;

use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::CaughtError;

use crate::limiter::request::{Answer, Request};
use crate::pg::error::Result;
use crate::pg::server_log;
use crate::pg::settings;
use crate::pg::values::utf8;
use crate::store::memory::{Count, Memory, Scope};

thread_local! {
    /// Whether this session has told that there is no memory to count in.
    static WARNED: Cell<bool> = const { Cell::new(false) };
}

/// How a request was answered.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// It passed.
    Allowed,
    /// It was denied; `false`: in a dry run, so it passed.
    Denied { enforced: bool },
}

/// Counts a request, and writes a share of the denials to the server's log.
///
/// # Errors
/// Those of Postgres, but for a lack of memory: calls then go on, uncounted.
pub fn count(scope: Scope, request: &Request, answer: &Answer, verdict: Verdict) -> Result<()> {
    if let Verdict::Denied { enforced: true } = verdict {
        log(request, answer);
    }
    if !settings::track() {
        return Ok(());
    }
    let Some(memory) = memory_if_any()? else { return Ok(()) };
    let id = memory.id(scope, request.name, request.key);
    let count = match verdict {
        Verdict::Allowed => Count::Allowed(request.count),
        Verdict::Denied { enforced: true } => Count::Denied,
        Verdict::Denied { enforced: false } => Count::DeniedInDryRun,
    };
    memory.tallies.count(id, scope, request.name, count);
    if let Verdict::Denied { .. } = verdict {
        memory.rankings.count(id, scope, request.name, request.key);
    }
    Ok(())
}

/// The memory that sessions share; `None`, with a warning at the first time, where there is no room for
/// it: limits in the table don't depend on it.
///
/// # Errors
/// Those of Postgres, but for a lack of memory.
pub fn memory_if_any() -> Result<Option<&'static Memory>> {
    if let Some(memory) = Memory::seen() {
        return Ok(Some(memory));
    }
    if WARNED.get() {
        return Ok(None);
    }
    open()
}

/// Makes the memory, or maps it.
///
/// # Errors
/// As [`memory_if_any`].
#[cold]
fn open() -> Result<Option<&'static Memory>> {
    let opened = PgTryBuilder::new(|| Memory::get().map(Ok))
        .catch_others(|caught| match caught {
            CaughtError::PostgresError(error) if is_lack(error.sql_error_code() as i32) => {
                Ok(Err(error.message().to_owned()))
            }
            caught => caught.rethrow(),
        })
        .execute()?;
    match opened {
        Ok(memory) => Ok(Some(memory)),
        Err(lack) => {
            WARNED.set(true);
            server_log::warning(&format!(
                "the rate limiter does not count this session's calls: {lack}"
            ));
            Ok(None)
        }
    }
}

/// Whether an error is a lack of resources, class 53.
fn is_lack(sqlstate: i32) -> bool {
    sqlstate & 0xfff == 5 | 3 << 6
}

/// Writes a line for a denied call, or for a share of such calls: name, wait and role, never the key.
fn log(request: &Request, answer: &Answer) {
    let share = settings::log_denials();
    if share == 0.0 || fastrand::f64() >= share {
        return; // what is drawn is less than 1
    }
    let name = utf8(request.name);
    let role = server_log::current_role();
    let when = match answer.retry_after {
        Some(wait) => format!("retry after {} s", wait.ceil_to_millis().as_secs()),
        None => "this call can never pass".into(),
    };
    server_log::line(&format!("rate limit \"{name}\" exceeded by role \"{role}\": {when}"));
}
