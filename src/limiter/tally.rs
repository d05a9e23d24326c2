//! What calls are answered, counted for `rl_stats` and `rl_top_denied`, and told in the server's log.

use std::cell::Cell;

use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::CaughtError;
use ratelimit_core::Micros;

use crate::limiter::request::{Answer, Request};
use crate::pg::catalog::Catalog;
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::server_log;
use crate::pg::settings;
use crate::pg::shared_memory::Need;
use crate::pg::values::utf8;
use crate::store::memory::{Count, Id, Memory, Scope};

thread_local! {
    /// When this session last found no memory to count in.
    static FAILED: Cell<Option<Micros>> = const { Cell::new(None) };
}

/// How a request was answered.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// It passed.
    Allowed,
    /// It was denied; `false`: in a dry run, so it passed.
    Denied { enforced: bool },
}

/// Where a name and key are in the memory that sessions share.
#[derive(Clone, Copy)]
pub struct Place {
    pub memory: &'static Memory,
    pub id: Id,
}

impl Place {
    pub fn of(memory: &'static Memory, catalog: &Catalog, name: &[u8], key: &[u8]) -> Place {
        Place { memory, id: memory.id(Scope::new(catalog.extension), name, key) }
    }
}

/// Returns where a request is counted; `None`: nowhere.
///
/// # Errors
/// A cancel. Where there is no memory calls go on, uncounted.
pub fn place(catalog: &Catalog, request: &Request) -> Result<Option<Place>> {
    if !settings::track() {
        return Ok(None);
    }
    let memory = memory_if_any(true)?;
    Ok(memory.map(|memory| Place::of(memory, catalog, request.name, request.key)))
}

/// Counts a request, and writes a share of the denials to the server's log.
pub fn count(
    catalog: &Catalog,
    place: Option<Place>,
    request: &Request,
    answer: &Answer,
    verdict: Verdict,
) {
    if let Verdict::Denied { enforced: true } = verdict {
        log(request, answer);
    }
    let Some(Place { memory, id }) = place else { return };
    let scope = Scope::new(catalog.extension);
    let count = match verdict {
        Verdict::Allowed => Count::Allowed(request.count),
        Verdict::Denied { enforced: true } => Count::Denied,
        Verdict::Denied { enforced: false } => Count::DeniedInDryRun,
    };
    memory.tallies.count(id, scope, request.name, count);
    if let Verdict::Denied { .. } = verdict {
        memory.rankings.count(id, scope, request.name, request.key);
    }
}

/// How long a session that found no memory goes without.
const TRY_AGAIN: Micros = Micros(60_000_000);

/// Returns the memory that sessions share; `None`, with a warning at the first time, where it can't be had:
/// limits in the table don't depend on it. With `make`, it is made where there is none, unless another session does
/// that now: until then calls go on uncounted.
///
/// # Errors
/// A cancel, or the end of the session.
pub fn memory_if_any(make: bool) -> Result<Option<&'static Memory>> {
    match Memory::seen() {
        Some(memory) => Ok(Some(memory)),
        None => open(make),
    }
}

/// Makes the memory, or maps it.
///
/// # Errors
/// As [`memory_if_any`].
#[cold]
fn open(make: bool) -> Result<Option<&'static Memory>> {
    let now = clock::system_time();
    if FAILED.get().is_some_and(|at| now.minus(at) < TRY_AGAIN) {
        return Ok(None);
    }
    let need = if make { Need::Should } else { Need::May };
    let opened = PgTryBuilder::new(|| Memory::open(need).map_err(|error| error.to_string()))
        .catch_others(|caught| match caught {
            CaughtError::PostgresError(error) if !is_end(error.sql_error_code() as i32) => {
                Err(error.message().to_owned())
            }
            caught => caught.rethrow(),
        })
        .execute();
    opened.or_else(|problem| {
        if FAILED.replace(Some(now)).is_none() {
            server_log::warning(&format!(
                "the rate limiter does not count this session's calls: {problem}"
            ));
        }
        Ok(None)
    })
}

/// Whether an error is a cancel or a shutdown, class 57.
fn is_end(sqlstate: i32) -> bool {
    sqlstate & 0xfff == 5 | 7 << 6
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
