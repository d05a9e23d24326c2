//! Time: the clock of a call, and times of Postgres as instants.

use std::cell::Cell;

use pgrx::pg_sys;
use ratelimit_core::Micros;

use crate::pg::transaction::unguarded;

thread_local! {
    /// What `ratelimit.clock` says instead of the server's clock.
    static FIXED: Cell<Option<Micros>> = const { Cell::new(None) };
}

/// Now: the server's clock, or what `ratelimit.clock` says instead.
pub fn now() -> Micros {
    FIXED.get().unwrap_or_else(system_time)
}

/// Replaces the server's clock, or gives it back.
pub fn fix(clock: Option<Micros>) {
    FIXED.set(clock);
}

/// Microseconds between the Unix epoch and Postgres's, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
/// The first timestamptz, in 4714 BC: MIN_TIMESTAMP of Postgres.
const MIN_TIMESTAMP: i64 = -211_813_488_000_000_000;
/// The last timestamptz, exclusive: END_TIMESTAMP of Postgres.
const END_TIMESTAMP: i64 = 9_223_371_331_200_000_000;

/// What -infinity and infinity are as instants; the latter is also what is later than instants can tell.
pub const INFINITE: [Micros; 2] = [Micros(i64::MIN + POSTGRES_EPOCH), Micros(i64::MAX)];

/// A timestamptz as an instant.
pub fn from_timestamptz(timestamp: i64) -> Micros {
    Micros(timestamp.saturating_add(POSTGRES_EPOCH))
}

/// An instant as a timestamptz; `None` where it is earlier or later than that type can tell.
pub fn to_timestamptz(at: Micros) -> Option<i64> {
    let timestamp = at.0.checked_sub(POSTGRES_EPOCH)?;
    (MIN_TIMESTAMP..END_TIMESTAMP).contains(&timestamp).then_some(timestamp)
}

/// An instant as the nearest timestamptz that there is.
pub fn to_nearest_timestamptz(at: Micros) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH).clamp(MIN_TIMESTAMP, END_TIMESTAMP - 1)
}

/// The server's clock.
fn system_time() -> Micros {
    // SAFETY: reads the clock.
    from_timestamptz(unsafe { unguarded::GetCurrentTimestamp() })
}

/// A timestamptz as an instant; `None` for an infinite one.
pub fn instant(datum: pg_sys::Datum) -> Option<Micros> {
    match datum.value() as i64 {
        i64::MIN | i64::MAX => None,
        timestamp => Some(from_timestamptz(timestamp)),
    }
}
