//! Named limits: defined, undefined, and what `rl_config` does when it is written to.

use super::arguments::{LimitKey, LimitName, valid_key, valid_name};
use crate::declaration::{Proceed, sql_function};
use crate::keyed::definitions;
use crate::save;
use crate::schema::catalog::{self, TableLock};
use crate::schema::error::Error;
use ratelimit_pg::call::Call;
use ratelimit_pg::call::trigger_data::{Event, Timing};
use ratelimit_pg::values::Jsonb;

sql_function! {
    /// 22023 for a bad config, 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_define(call: &Call, name: LimitName, config: Jsonb, key: LimitKey) -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            definitions::define(catalog, name.0, key.0, config)
        })
    }
}

sql_function! {
    /// 25006 in a read-only transaction.
    #[effect(Writes)]
    fn rl_undefine(call: &Call, name: LimitName, key: LimitKey) -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            definitions::undefine(catalog, name.0, key.0)
        })
    }
}

sql_function! {
    /// The triggers on `rl_config`: check what is written there by whatever means, and make every
    /// backend forget what it remembers. 22023; 39P01 when it is no trigger that calls.
    #[effect(Trigger)]
    fn rl_config_changed(call: &Call) -> Proceed {
        let trigger =
            call.trigger().ok_or(Error::NotATrigger { function: "rl_config_changed" })?;
        // A NULL is left to the table's own constraints.
        let name = trigger.text(c"name")?.map(valid_name).transpose()?;
        let key = trigger.text(c"key")?.map(valid_key).transpose()?;
        let definition = trigger.jsonb(c"config")?.map(definitions::inline).transpose()?;
        // One that is not valid any more is not saved.
        let old = trigger.old_jsonb(c"config")?.map(definitions::inline);
        let was_saved = old.is_some_and(|old| old.is_ok_and(|old| old.save.is_some()));
        if trigger.timing() == Timing::BeforeRow {
            if let (Some(name), Some(key), Some(new)) = (name, key, definition) {
                save::before_change(call.function(), (name, key), &new, was_saved)?;
            }
        } else {
            let old = trigger.old_text(c"name")?.filter(|old| Some(*old) != name);
            let is_truncated = trigger.event() == Event::Truncate;
            if is_truncated || old.is_some() {
                save::before_removal(call.function(), old, is_truncated || was_saved)?;
            }
        }
        catalog::announce(call.function(), trigger.relation())?;
        Ok(Proceed(trigger.proceed()))
    }
}
