//! No limit: for exempt keys and names.

use serde_json::{Value, json};

use super::limit_kind::{Formulas, LimitKind};
use super::{Decision, Level, Limit, Tokens};
use crate::Micros;
use crate::fields::{FieldError, Fields};
use crate::headers::CallOutcome;

/// No limit: every call is admitted, and nothing is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unlimited;

impl Limit {
    /// Whether it admits every call and stores nothing.
    pub fn is_unlimited(&self) -> bool {
        matches!(self, Limit::Unlimited(_))
    }
}

impl LimitKind for Unlimited {
    const NAME: &'static str = "unlimited";
    const WITH_ARTICLE: &'static str = "an unlimited one";
    const FIELDS: &'static [&'static str] = &[];

    type State = Tokens;

    fn read(_: &Fields) -> Result<Unlimited, FieldError> {
        Ok(Unlimited)
    }

    fn resolved(&self, _: Micros) -> Value {
        json!({})
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (f64::INFINITY, None)
    }

    fn initial_state(&self, now: Micros, _: Micros) -> Tokens {
        Tokens { value: 0.0, ts: now, added: None }
    }

    fn is_idle(&self, _: &Tokens, _: Micros, _: Micros) -> bool {
        true
    }

    fn unused_at(&self, _: &Tokens) -> Option<Micros> {
        Some(Micros(i64::MIN))
    }

    /// Finds none, unless the key has a limit of its own.
    fn until_more(&self, outcome: &CallOutcome, now: Micros) -> Option<Micros> {
        outcome.until_reset(now)
    }
}

impl Formulas for Unlimited {
    /// Never: there is nothing to remember.
    fn counts(&self, _: &Tokens, _: Micros) -> bool {
        false
    }

    fn take(&self, state: &Tokens, now: Micros, _: f64, _: bool) -> Decision {
        Decision::unchanged(self.level(state, now))
    }

    fn credit(&self, state: &Tokens, now: Micros, _: f64, _: Option<Micros>) -> Option<Decision> {
        Some(Decision::unchanged(self.level(state, now)))
    }

    fn level(&self, _: &Tokens, _: Micros) -> Level {
        Level { remaining: f64::INFINITY, reset_at: None }
    }
}
