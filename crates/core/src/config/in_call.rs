//! The checks of a config passed with a call.

use super::{ConfigError, Definition, StoreKind, not_in_memory};
use crate::text::{json_number, quoted};
use crate::{Kind, Limit, Micros};

impl Definition {
    /// The definition that a config passed with a call stands for, if it is a different one: a `save` implied only by
    /// `applyUpdates` needs a stored definition, and is left out. `None`: unchanged.
    pub fn passed(&self) -> Option<Definition> {
        let is_implied = self.save.is_some() && !self.names_save;
        is_implied.then(|| Definition { save: None, ..self.clone() })
    }

    /// Checks a config passed with a call for a limit that is not defined. It can't have `save`; in memory it must
    /// refill, or its leases expire, within a leap year, so that callers can't leave state there for longer.
    pub fn check_in_call(&self) -> Result<(), ConfigError> {
        self.check_unsaved()?;
        let time = self.limit.time_to_full();
        if self.store == StoreKind::Table || time <= Micros::YEAR {
            return Ok(());
        }
        let days = time.0 / Micros::DAY.0;
        let (problem, what) = if self.limit.kind().has_leases() {
            (format!("\"ttl\" is {days} days"), "a ttl of")
        } else {
            (format!("its \"rate\" and \"period\" refill it in {days} days"), "a refill in")
        };
        let allowed = format!(
            "{what} at most 366 days for a limit in memory whose config is passed with the call; \
             a defined limit has no such bound"
        );
        Err(self.refused(problem, &allowed))
    }

    /// Checks a config passed with a call for a limit that is not saved: it can't have `save`, which needs a
    /// definition.
    pub fn check_unsaved(&self) -> Result<(), ConfigError> {
        let Some(save) = self.save else { return Ok(()) };
        let allowed = "no \"save\" in a config that is passed with the call: only a limit whose definition has it is saved";
        Err(self.refused(format!("\"save\" is {}", json_number(save.as_millis())), allowed))
    }

    /// Adapts this config, passed with a call, to a defined limit with `save`: its states are in memory and saved, as
    /// the limit's.
    ///
    /// # Errors
    /// It names another store or another `save`, or is a limit that memory can't have.
    pub fn for_saved(&self, save: Micros) -> Result<Definition, ConfigError> {
        const DEFINED: &str = "for a limit whose definition has \"save\", which is in memory";
        let refused = |field, value: String, allowed: String| {
            Err(self.refused(format!("\"{field}\" is {value}"), &format!("{allowed} {DEFINED}")))
        };
        if self.store == StoreKind::Table && self.names_store {
            return refused("store", "\"table\"".into(), "\"memory\" or no \"store\"".into());
        }
        if let Some(other) = self.save.filter(|&other| other != save) {
            let (other, save) = (json_number(other.as_millis()), json_number(save.as_millis()));
            return refused("save", other, format!("no \"save\" or {save},"));
        }
        if let Limit::SlidingLog(_) = self.limit {
            let others = Kind::ALL.iter().filter(|&&other| other != Kind::SlidingLog);
            let others: Vec<&str> = others.map(|other| other.as_str()).collect();
            let error = refused("kind", "\"sliding log\"".into(), quoted(&others));
            // No example is right for this error.
            return error.map_err(|error| ConfigError { kind: None, ..error });
        }
        if let Some((field, value, allowed, _)) = not_in_memory(&self.limit) {
            return refused(field, value.to_string(), allowed);
        }
        Ok(Definition { store: StoreKind::Memory, save: Some(save), ..self.clone() })
    }

    /// The error of this config.
    fn refused(&self, problem: String, allowed: &str) -> ConfigError {
        ConfigError { kind: Some(self.limit.kind()), ..ConfigError::new(problem, allowed) }
    }
}
