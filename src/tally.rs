//! Counts answers in shared memory, for `rl_stats`, `rl_top_denied` and `rl_memory`, and logs denials.

use std::cell::Cell;
use std::collections::BTreeSet;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};
use ratelimit_core::Micros;
use ratelimit_limiter::ports::{Counted, Id, Verdict};

use crate::schema::catalog::{self, Catalog};
use crate::schema::error::Result;
use crate::schema::settings;
use crate::store::memory::{Count, Denied, Memory, Scope, Totals};
use ratelimit_pg::clock;
use ratelimit_pg::server_log;
use ratelimit_pg::shared_memory::Need;
use ratelimit_pg::values::utf8;

thread_local! {
    /// The time when this session last found no memory to count in.
    static FAILED: Cell<Option<Micros>> = const { Cell::new(None) };
}

/// The counters of a name and key.
#[derive(Clone, Copy)]
pub struct Counter {
    pub memory: &'static Memory,
    pub id: Id,
}

/// Returns the counters of a request; `None`: it is not counted. Fails only if the call is cancelled: without memory,
/// calls continue uncounted.
pub fn counter(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<Option<Counter>> {
    if !settings::TRACK.get() {
        return Ok(None);
    }
    let counter = |memory: &'static Memory| {
        let id = memory.id(Scope::new(memory, catalog.extension), name, key);
        Counter { memory, id }
    };
    Ok(memory_if_any(true)?.map(counter))
}

/// Counts a request, and logs a share of the denials, including those of dry runs.
pub fn count(catalog: &Catalog, counter: Option<Counter>, counted: Counted) {
    let Counted { name, key, count, verdict, retry_after } = counted;
    if let Verdict::Denied { enforced } = verdict {
        log(name, enforced, retry_after);
    }
    let Some(Counter { memory, id }) = counter else { return };
    let scope = Scope::new(memory, catalog.extension);
    let count = match verdict {
        Verdict::Allowed => Count::Allowed(count),
        Verdict::Denied { enforced: true } => Count::Denied,
        Verdict::Denied { enforced: false } => Count::DeniedInDryRun,
    };
    memory.count(id, scope, name, count);
    if let Verdict::Denied { .. } = verdict {
        memory.count_denial(id, scope, name, key);
    }
}

/// The time that a session without memory waits before it tries again.
const TRY_AGAIN: Micros = Micros(60_000_000);

/// Returns the shared memory. If it can't be mapped or created, warns once and returns `None`: limits in the table
/// don't depend on it. With `make` it is created if there is none; while another session creates it, calls continue
/// uncounted. Fails only if the call is cancelled or the session ends.
pub fn memory_if_any(make: bool) -> Result<Option<&'static Memory>> {
    match Memory::seen() {
        Some(memory) => Ok(Some(memory)),
        None => open(make),
    }
}

/// Maps the memory, or creates it.
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

/// Whether an error is of class 57: a cancel or a shutdown.
fn is_end(sqlstate: i32) -> bool {
    sqlstate & 0xfff == 5 | 7 << 6
}

/// Logs a share of the denied calls, including those of dry runs: with name, wait and role, never the key.
fn log(name: &[u8], enforced: bool, retry_after: Option<Micros>) {
    let share = settings::LOG_DENIALS.get();
    if share == 0.0 || fastrand::f64() >= share {
        return; // f64() is in [0, 1), so a share of 1 logs every denial
    }
    let name = utf8(name);
    let role = server_log::current_role();
    let line = match (enforced, retry_after) {
        (false, _) => format!("rate limit \"{name}\" would be exceeded by role \"{role}\""),
        (true, Some(wait)) => {
            let secs = wait.ceil_to_millis().as_secs();
            format!("rate limit \"{name}\" exceeded by role \"{role}\": retry after {secs} s")
        }
        (true, None) => {
            format!("rate limit \"{name}\" exceeded by role \"{role}\": this call can never pass")
        }
    };
    server_log::line(&line);
}

/// Returns the memory, after removing the counts of dropped databases and extensions, and this extension's scope.
fn counted(function: pg_sys::Oid) -> Result<(&'static Memory, Scope)> {
    let memory = Memory::get()?;
    let scope = Scope::new(memory, catalog::latest(function)?.extension);
    memory.forget_dropped(scope);
    Ok((memory, scope))
}

/// Returns the counters of all names, in their order. Raises 53100 or 53200 if there is no memory.
pub fn totals(function: pg_sys::Oid) -> Result<Vec<Totals>> {
    let (memory, scope) = counted(function)?;
    let mut totals = memory.tallies.totals(scope);
    totals.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(totals)
}

/// Resets the counters of a name or of all names, and forgets which of their keys were denied; returns how many names
/// were reset.
pub fn reset(function: pg_sys::Oid, name: Option<&[u8]>) -> Result<i64> {
    let (memory, scope) = counted(function)?;
    memory.rankings.forget(scope, name);
    Ok(memory.tallies.reset(scope, name, clock::system_time()) as i64)
}

/// Returns the names with counts; none without memory.
pub fn names(function: pg_sys::Oid) -> Result<BTreeSet<Vec<u8>>> {
    let Some(memory) = memory_if_any(false)? else { return Ok(BTreeSet::new()) };
    let scope = Scope::new(memory, catalog::latest(function)?.extension);
    Ok(memory.tallies.totals(scope).into_iter().map(|totals| totals.name).collect())
}

/// Forgets the denials of a key, of every name.
pub fn forget_key(function: pg_sys::Oid, key: &[u8]) -> Result<()> {
    if let Some(memory) = memory_if_any(false)? {
        let scope = Scope::new(memory, catalog::latest(function)?.extension);
        memory.rankings.forget_key(scope, |name| memory.id(scope, name, key).key);
    }
    Ok(())
}

/// Returns the keys that are denied most, of one name or of all.
pub fn most_denied(
    function: pg_sys::Oid,
    name: Option<&[u8]>,
    max_rows: i64,
) -> Result<Vec<Denied>> {
    let (memory, scope) = counted(function)?;
    Ok(memory.rankings.most_denied(scope, name, max_rows as usize))
}

/// Returns the memory, for its usage. Raises 53100 or 53200 if there is none.
pub fn memory() -> Result<&'static Memory> {
    Memory::get()
}
