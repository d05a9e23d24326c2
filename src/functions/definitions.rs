//! Defines and undefines limits, and checks writes to `rl_config`.

use ratelimit_limiter::error::LimiterError;
use ratelimit_limiter::target::check_key;

use super::arguments::{LimitKey, LimitName, valid_key, valid_name};
use crate::cache::definitions::{self, RowConfig};
use crate::declaration::sql_function;
use crate::host::Session;
use crate::redefined::{self, Change};
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::{Error, Result};
use ratelimit_pg::call::Call;
use ratelimit_pg::call::sql_types::Proceed;
use ratelimit_pg::call::trigger_data::{Event, Timing, Version};
use ratelimit_pg::values::Jsonb;

sql_function! {
    /// 22023: a bad config, or one for a key of a limit that takes no key; 42704: a plan that is not defined; 25006 in
    /// a read-only transaction.
    #[effect(Writes)]
    fn rl_define(call: &Call, name: LimitName, config: Jsonb, key: LimitKey) -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            // Write first: a call that reads a table before it writes can deadlock with REINDEX.
            let is_new = definitions::define(catalog, name.0, key.0, config)?;
            refuse_key(catalog, name.0, key.0, config)?;
            Ok(is_new)
        })
    }
}

/// Refuses the definition of a key (22023) if the definition of the name, the new one or its plan says that the limit
/// takes no key.
fn refuse_key(catalog: &Catalog, name: &[u8], key: &[u8], config: Jsonb) -> Result<()> {
    if key.is_empty() {
        return Ok(());
    }
    let of_all = |name: &[u8]| match definitions::look_up(catalog, name, b"") {
        Err(Error::Limiter(LimiterError::StoredConfig { .. })) => Ok(None),
        found => Ok::<_, Error>(found?.definition),
    };
    let own = match definitions::of_row(config, key)? {
        RowConfig::Own(definition) => Some(definition),
        RowConfig::Plan(plan) => of_all(&plan)?,
    };
    for definition in [of_all(name)?, own].into_iter().flatten() {
        let keyed = definition.keyed.filter(|keyed| !keyed);
        check_key::<Session>(name, key, keyed, &definition.limit)?;
    }
    Ok(())
}

sql_function! {
    /// 2BP01: keys have it as their plan; 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_undefine(call: &Call, name: LimitName, key: LimitKey) -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            definitions::undefine(catalog, name.0, key.0)
        })
    }
}

sql_function! {
    /// The triggers on `rl_config`: check each write, and make every session drop its cache. 22023; 39P01 if not called
    /// by a trigger.
    #[effect(Trigger)]
    fn rl_config_changed(call: &Call) -> Proceed {
        let trigger =
            call.trigger().ok_or(Error::NotATrigger { function: "rl_config_changed" })?;
        // The table's constraints refuse NULL.
        let name = trigger.text(Version::New, c"name")?.map(valid_name).transpose()?;
        let key = trigger.text(Version::New, c"key")?.map(valid_key).transpose()?;
        let of_row = |config, key: Option<&[u8]>| definitions::of_row(config, key.unwrap_or_default());
        let new = trigger.jsonb(Version::New, c"config")?.map(|config| of_row(config, key)).transpose();
        let new = new.map_err(|error| error.of_config(name.unwrap_or_default(), false))?;
        match trigger.timing() {
            Timing::BeforeRow => catalog::announce(call.function(), trigger.relation())?,
            _ => catalog::announce_written(call.function(), trigger.relation())?,
        }
        if let (Timing::BeforeRow, Some(RowConfig::Plan(plan))) = (trigger.timing(), &new) {
            let catalog = catalog::latest(call.function())?;
            // A trigger on a copy of a distributed table can't query the table.
            if !catalog.rl_config.distributed {
                definitions::lock_plan(&catalog, plan)?;
            }
        }
        if trigger.timing() != Timing::BeforeRow {
            let old_name = trigger.text(Version::Old, c"name")?;
            let has_key = |key: Option<&[u8]>| key.is_some_and(|key| !key.is_empty());
            let old_key = trigger.text(Version::Old, c"key")?;
            // An old config that is not valid any more was not saved.
            let old = trigger.jsonb(Version::Old, c"config")?.and_then(|old| of_row(old, old_key).ok());
            let note = |name, key, old, new| {
                let of_key = has_key(key);
                redefined::note(call.function(), Change { name, of_key, old, new })
            };
            match (old_name, name) {
                (None, None) if trigger.event() == Event::Truncate => note(None, None, None, None)?,
                (None, None) => {}
                (Some(from), Some(to)) if (from, old_key) != (to, key) => {
                    note(Some(from), old_key, old, None)?;
                    note(Some(to), key, None, new)?;
                }
                (from, to) => note(to.or(from), key.or(old_key), old, new)?,
            }
        }
        Ok(Proceed(trigger.proceed()))
    }
}
