//! Named limits: defined, undefined, and what `rl_config` does when it is written to.

use super::arguments::{Key, Name, valid_key, valid_name};
use crate::keyed::definitions;
use crate::pg::call::Call;
use crate::pg::catalog::{self, TableLock};
use crate::pg::declaration::{Proceed, sql_function};
use crate::pg::error::Error;
use crate::pg::values::Jsonb;

sql_function! {
    /// 22023 for a bad config, 25006 in a read-only transaction.
    #[sql(
        WRITES,
        comment = "creates or replaces a named rate limit, or its override for one key; false if it stood there already"
    )]
    fn rl_define(call: &Call, name: Name, config: Jsonb, key: Key = "''") -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            definitions::define(catalog, name.0, key.0, config)
        })
    }
}

sql_function! {
    /// 25006 in a read-only transaction.
    #[sql(
        WRITES,
        comment = "drops a named rate limit, or its override for one key; false if there was none; state stays until reset"
    )]
    fn rl_undefine(call: &Call, name: Name, key: Key = "''") -> bool {
        catalog::with(call.function(), TableLock::Read, |catalog| {
            definitions::undefine(catalog, name.0, key.0)
        })
    }
}

sql_function! {
    /// The triggers on `rl_config`: check what is written there by whatever means, and make every
    /// backend forget what it remembers. 22023; 39P01 when it is no trigger that calls.
    #[sql(TRIGGER, comment = "rate limiter, internal: checks a definition and tells every session")]
    fn rl_config_changed(call: &Call) -> Proceed {
        let trigger =
            call.trigger().ok_or(Error::NotATrigger { function: "rl_config_changed" })?;
        // A NULL is left to the table's own constraints.
        trigger.text(c"name")?.map(valid_name).transpose()?;
        trigger.text(c"key")?.map(valid_key).transpose()?;
        trigger.jsonb(c"config")?.map(definitions::inline).transpose()?;
        catalog::announce(call.function(), trigger.relation())?;
        Ok(Proceed(trigger.proceed()))
    }
}

// Definitions written by plain SQL are checked before they are stored; after it every session's
// memory of them is cleared. Row triggers that fire always: logical replication and restores write
// here as well. Told only afterwards, so that nothing remembers the old row in between.
pgrx::extension_sql!(
    r#"
CREATE TRIGGER rl_config_check BEFORE INSERT OR UPDATE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_check;
COMMENT ON TRIGGER rl_config_check ON @extschema@.rl_config IS 'checks a definition';

CREATE TRIGGER rl_config_changed AFTER INSERT OR UPDATE OR DELETE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_changed;
COMMENT ON TRIGGER rl_config_changed ON @extschema@.rl_config IS 'tells every session that definitions changed';

CREATE TRIGGER rl_config_truncated AFTER TRUNCATE ON @extschema@.rl_config
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_truncated;
COMMENT ON TRIGGER rl_config_truncated ON @extschema@.rl_config IS 'tells every session that definitions changed';
"#,
    name = "rl_config_triggers",
    requires = ["rl_config_changed"],
);
