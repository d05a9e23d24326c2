//! The clock, which tests can fix, and the conversion between timestamptz and instants.

use std::cell::Cell;

use pgrx::{direct_function_call, pg_sys};
use ratelimit_core::Micros;
use ratelimit_core::config::Interval;

use crate::unguarded;

thread_local! {
    static FIXED: Cell<Option<Micros>> = const { Cell::new(None) };
}

/// Returns the fixed time, or else the server's.
pub fn now() -> Micros {
    FIXED.get().unwrap_or_else(system_time)
}

/// Whether the clock is fixed.
pub fn is_fixed() -> bool {
    FIXED.get().is_some()
}

/// Fixes the clock; `None`: returns to the server's.
pub fn fix(clock: Option<Micros>) {
    FIXED.set(clock);
}

/// Microseconds between the Unix epoch and Postgres's, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
/// The first timestamptz, in 4714 BC: MIN_TIMESTAMP of Postgres.
const MIN_TIMESTAMP: i64 = -211_813_488_000_000_000;
/// The last timestamptz, exclusive: END_TIMESTAMP of Postgres.
const END_TIMESTAMP: i64 = 9_223_371_331_200_000_000;

/// -infinity and infinity as instants; the latter also stands for times beyond the range of instants.
pub const INFINITE: [Micros; 2] = [Micros(i64::MIN + POSTGRES_EPOCH), Micros(i64::MAX)];

/// Converts a timestamptz to an instant.
pub fn from_timestamptz(timestamp: i64) -> Micros {
    Micros(timestamp.saturating_add(POSTGRES_EPOCH))
}

/// Converts an instant to a timestamptz; `None` outside that type's range.
pub fn to_timestamptz(at: Micros) -> Option<i64> {
    let timestamp = at.0.checked_sub(POSTGRES_EPOCH)?;
    (MIN_TIMESTAMP..END_TIMESTAMP).contains(&timestamp).then_some(timestamp)
}

/// Converts an instant to the nearest finite timestamptz.
pub fn to_nearest_timestamptz(at: Micros) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH).clamp(MIN_TIMESTAMP, END_TIMESTAMP - 1)
}

/// Adds an interval to an instant as `timestamptz + interval` does, in the session's time zone. An infinite interval
/// gives ±infinity. Raises 22008 outside the range of timestamptz.
pub fn plus_interval(at: Micros, interval: Interval) -> Micros {
    let mut interval =
        pg_sys::Interval { time: interval.micros, day: interval.days, month: interval.months };
    let arguments = [
        Some(pg_sys::Datum::from(to_nearest_timestamptz(at))),
        Some(pg_sys::Datum::from(&raw mut interval)),
    ];
    // SAFETY: these are the arguments of the function, which keeps none of them.
    let sum = unsafe { direct_function_call::<i64>(pg_sys::timestamptz_pl_interval, &arguments) };
    sum.map_or(Micros(i64::MAX), from_timestamptz)
}

/// Reads the server's clock.
pub fn system_time() -> Micros {
    // SAFETY: reads the clock.
    from_timestamptz(unsafe { unguarded::GetCurrentTimestamp() })
}

/// Reads the system's monotonic clock.
pub fn monotonic() -> Micros {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Micros(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
}

/// Converts a timestamptz to an instant; `None` for ±infinity.
pub fn instant(timestamp: i64) -> Option<Micros> {
    match timestamp {
        i64::MIN | i64::MAX => None,
        timestamp => Some(from_timestamptz(timestamp)),
    }
}
