//! A take of a limit, and the takes of a list, decided one after the other.

use super::{AsMany, Decision, Kind, Limit, Shards, State, decide, first_pass};
use crate::Micros;
use crate::argument::{ArgumentError, valid_tokens};

/// How much a call takes.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// Tokens, or slots.
    pub count: f64,
    /// Whether it may go into debt, for which the caller waits; see [`decide`].
    pub reserve: bool,
    /// The id of the lease of a concurrency limit; `None`: the instant, as in [`decide`].
    pub lease: Option<Micros>,
    /// Takes as many tokens as there are up to `count`, if these are at least this number; `None`: all of `count` or
    /// none. Used with neither `reserve` nor a lease.
    pub at_least: Option<f64>,
}

impl Take {
    /// The numbers of a take of as many tokens as there are; `None`: it takes a fixed count.
    pub fn as_many(&self) -> Option<AsMany> {
        self.at_least.map(|at_least| AsMany { count: self.count, at_least })
    }

    /// Checks its numbers for a limit.
    ///
    /// # Errors
    /// A number that is not a count, or `at_least` above `count`.
    pub fn check(&self, limit: &Limit) -> Result<(), ArgumentError> {
        limit.check_tokens("count", self.count)?;
        let Some(wanted) = self.as_many() else { return Ok(()) };
        limit.check_tokens("at_least", wanted.at_least)?;
        wanted.check()
    }

    /// Decides it on a limit's state or shards; sets `taken` if it takes as many tokens as there are.
    #[inline]
    pub fn decide(&self, shards: &Shards, now: Micros, taken: &mut f64) -> Decision {
        if let Some(id) = self.lease {
            return shards.limit().acquire(&shards.total(now), now, self.count, id);
        }
        let Some(wanted) = self.as_many() else {
            return shards.decide(now, self.count, self.reserve);
        };
        let decision;
        (decision, *taken) = shards.decide_as_many(now, wanted);
        decision
    }
}

impl Limit {
    /// Checks an argument with a number of tokens to take.
    ///
    /// # Errors
    /// Not a number from 0 to 1e15, or not a whole number if [`Limit::whole_counts`].
    pub fn check_tokens(&self, argument: &'static str, tokens: f64) -> Result<(), ArgumentError> {
        valid_tokens(argument, tokens)?;
        if self.whole_counts() && tokens.fract() != 0.0 {
            let allowed = format!("a whole number, for {}", self.kind().with_article());
            return Err(ArgumentError::tokens(argument, tokens, &allowed));
        }
        Ok(())
    }

    /// Decides takes of counts at `now`, each on the state that those before it left; passes each decision to `each`.
    /// Returns the state afterwards; `None`: unchanged.
    pub fn decide_in_turn(
        &self,
        takes: &[Take],
        before: &State,
        now: Micros,
        mut each: impl FnMut(&Decision),
    ) -> Option<State> {
        let mut after = None;
        for take in takes {
            let state = after.as_ref().unwrap_or(before);
            let decision = decide(self, state, now, take.count, take.reserve);
            each(&decision);
            after = decision.state.or(after);
        }
        after
    }
}

impl Shards<'_> {
    /// The wait from `now` until takes of counts pass one after the other; `None`: they never do. `phase` returns
    /// that of the key's windows; `check` is called before each try.
    pub fn retry_after_in_turn(
        &self,
        takes: &[Take],
        phase: impl FnOnce() -> Micros,
        now: Micros,
        check: impl Fn(),
    ) -> Option<Micros> {
        let limit = self.limit();
        let pass = |state: &State, at| {
            let mut pass = true;
            limit.decide_in_turn(takes, state, at, |decision| pass &= decision.ok);
            pass
        };
        // Takes that exceed even a full limit together never pass.
        if takes.len() > 1 && !pass(&limit.initial_state(now, phase()), now) {
            return None;
        }
        let mut least = Some(Micros(0));
        limit.decide_in_turn(takes, &self.upper_bound(now), now, |decision| {
            if !decision.ok {
                least = least.and_then(|least| Some(least.max(decision.retry_after?)));
            }
        });
        let passes = |wait: Micros| {
            check();
            let then = now.plus(wait);
            pass(&self.total(then), then)
        };
        // The first take of a window would adopt a changed rate; a denial doesn't.
        let has_windows = limit.kind() == Kind::FixedWindow;
        let is_late = |least: Micros| {
            takes.len() > 1 && has_windows && least.0 > 0 && passes(Micros(least.0 - 1))
        };
        let least = least?;
        first_pass(if is_late(least) { Micros(0) } else { least }, passes)
    }
}
