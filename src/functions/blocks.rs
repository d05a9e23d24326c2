//! Blocks keys: denies their calls whatever tokens are left.

use ratelimit_core::config::Interval;
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::ports::Defined;
use ratelimit_limiter::target::check_key;

use super::arguments::{BlockReason, LimitKey, LimitName, valid_key, valid_name, valid_reason};
use crate::cache::blocks;
use crate::cache::definitions;
use crate::declaration::sql_function;
use crate::host::Session;
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::{Proceed, Timestamptz};
use ratelimit_pg::call::trigger_data::Version;
use ratelimit_pg::clock;
use ratelimit_pg::server_log;
use ratelimit_pg::values::utf8;

sql_function! {
    /// 22023 unless exactly one of duration and until is given and in the future, and the reason is short; 22008:
    /// outside the range of timestamptz; 22004: the limit is keyed, and the key is empty; 25006 in a read-only
    /// transaction.
    #[effect(Writes)]
    fn rl_block(
        call: &Call,
        name: LimitName,
        key: LimitKey,
        duration: Option<Interval>,
        until: Option<Timestamptz>,
        reason: Option<BlockReason>,
    ) -> Timestamptz {
        let until = end(duration, until)?;
        catalog::with(call.function(), TableLock::Read, |catalog| {
            // Write first: a call that reads a table before it writes can deadlock with REINDEX.
            blocks::put(catalog, name.0, key.0, until, reason.as_ref().map(|reason| reason.0))?;
            check_limit(catalog, name.0, key.0)
        })?;
        Ok(Timestamptz(clock::to_nearest_timestamptz(until.min(Micros::LATEST_SHOWN))))
    }
}

sql_function! {
    /// 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_unblock(call: &Call, name: LimitName, key: LimitKey) -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            blocks::remove(catalog, name.0, key.0)
        })
    }
}

sql_function! {
    /// The triggers on `rl_blocks`: check each write, and make every session drop its cache. 22023; 39P01 if not called
    /// by a trigger.
    #[effect(Trigger)]
    fn rl_blocks_changed(call: &Call) -> Proceed {
        let trigger =
            call.trigger().ok_or(Error::NotATrigger { function: "rl_blocks_changed" })?;
        // The table's constraints refuse NULL.
        let new = |column| trigger.text(Version::New, column);
        new(c"name")?.map(valid_name).transpose()?;
        new(c"key")?.map(valid_key).transpose()?;
        new(c"reason")?.map(valid_reason).transpose()?;
        catalog::announce(call.function(), trigger.relation())?;
        Ok(Proceed(trigger.proceed()))
    }
}

/// Warns if a limit is not defined. The block may come first, and calls may pass a config, but the name may also be
/// mistyped. 22004: the limit is keyed, and the key is empty.
fn check_limit(catalog: &Catalog, name: &[u8], key: &[u8]) -> Result<()> {
    match definitions::look_up(catalog, name, key) {
        Ok(Defined { definition: Some(definition), .. }) => {
            Ok(check_key::<Session>(name, key, definition.keyed, &definition.limit)?)
        }
        Ok(Defined { missing_plan: Some(_), .. }) => Ok(()),
        Ok(Defined { .. }) => {
            server_log::notice(&format!(
                "rate limit \"{}\" is not defined: the block applies to calls that pass a config, and to all calls \
                 once it is defined",
                utf8(name)
            ));
            Ok(())
        }
        Err(Error::Limiter(LimiterError::StoredConfig { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the end of a block, or [`Micros::FOREVER`]. Refuses both arguments, neither, and a time that is not in the
/// future.
fn end(duration: Option<Interval>, until: Option<Timestamptz>) -> Result<Micros, ArgumentError> {
    let refused = |argument, value: &str, allowed: &str| {
        Err(ArgumentError::invalid(argument, value, allowed))
    };
    let now = clock::now();
    match (duration, until) {
        (Some(duration), None) => {
            let at = clock::plus_interval(now, duration);
            if at <= now {
                return refused("duration", "not positive", "an interval greater than 0");
            }
            Ok(at)
        }
        (None, Some(Timestamptz(i64::MAX))) => Ok(Micros::FOREVER),
        (None, Some(until)) => match clock::instant(until.0) {
            Some(at) if at > now => Ok(at),
            _ => refused("until", "in the past", "a future time, or infinity"),
        },
        (Some(_), Some(_)) => refused("until", "given together with duration", "one of the two"),
        (None, None) => refused(
            "duration",
            "NULL, and until is not given",
            "an interval, or NULL if until is given",
        ),
    }
}
