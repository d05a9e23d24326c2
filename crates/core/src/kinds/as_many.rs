//! A take of as many tokens as there are, for each kind and for shards together.

use super::{Decision, Limit, Shards, State, decide, tolerance};
use crate::text::float_text;
use crate::{ArgumentError, Micros};

/// The tokens wanted by a take of as many as there are: all of `count`, or else the whole tokens that are there, if
/// these are at least `at_least`.
///
/// Both are from 0 to [`MAX_TOKENS`](crate::config::MAX_TOKENS), and whole numbers if [`Limit::whole_counts`];
/// `at_least` is not above `count`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsMany {
    /// The most tokens to take; a fraction only if all of it is there.
    pub count: f64,
    /// The fewest tokens to take; 0: the take always passes, also in debt.
    pub at_least: f64,
}

impl AsMany {
    /// Checks `at_least`.
    ///
    /// # Errors
    /// Not a number from 0 to the count.
    pub fn check(self) -> Result<(), ArgumentError> {
        if (0.0..=self.count).contains(&self.at_least) {
            return Ok(());
        }
        let allowed = format!("a number from 0 to count, which is {}", float_text(self.count));
        Err(ArgumentError::tokens("at_least", self.at_least, &allowed))
    }

    /// The fewest tokens that it can take: it passes if, and only if, a take of these does.
    pub fn fewest(self) -> f64 {
        self.at_least.ceil().min(self.count)
    }

    /// Decides the take by `take`, which decides takes of a count, all on one state of a limit with this capacity and
    /// at one instant. Returns the number of tokens taken, too. A denial is that of the [fewest](AsMany::fewest).
    pub fn decide(self, capacity: f64, take: impl Fn(f64) -> Decision) -> (Decision, f64) {
        let (all, fewest) = (take(self.count), self.fewest());
        if all.ok || fewest == self.count && fewest > 0.0 {
            return taken(all, self.count);
        }
        // The number that the count of a take is compared with; floats may miss it by their last bit.
        let there = (all.level.remaining + tolerance(capacity)).min(self.count).floor();
        for count in [there, there - 1.0] {
            if count > fewest {
                let decision = take(count);
                if decision.ok {
                    return taken(decision, count);
                }
            }
        }
        match fewest {
            0.0 => taken(Decision::unchanged(all.level), 0.0),
            _ => taken(take(fewest), fewest),
        }
    }
}

/// A decision on a take of a count, with the number of tokens taken.
fn taken(decision: Decision, count: f64) -> (Decision, f64) {
    let count = if decision.ok { count } else { 0.0 };
    (decision, count)
}

/// Decides a take of as many tokens as there are in `state` at `now`, as [`decide`] does one of a count, and returns
/// the tokens that it takes.
///
/// ```
/// use ratelimit_core::{AsMany, Micros, config, decide_as_many};
///
/// let limit = config::parse(r#"{"kind": "token bucket", "rate": 10, "period": "1 minute"}"#)?;
/// let now = Micros(0);
/// let full = limit.initial_state(now, now);
/// let (decision, taken) = decide_as_many(&limit, &full, now, AsMany { count: 50.0, at_least: 1.0 });
/// assert_eq!((decision.ok, taken), (true, 10.0));
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
pub fn decide_as_many(
    limit: &Limit,
    state: &State,
    now: Micros,
    wanted: AsMany,
) -> (Decision, f64) {
    wanted.decide(limit.capacity(), |count| decide(limit, state, now, count, false))
}

impl Shards<'_> {
    /// Decides a take of as many tokens as the shards together have, as [`decide`](Shards::decide) does one of a count,
    /// and returns the tokens that it takes.
    pub fn decide_as_many(&self, now: Micros, wanted: AsMany) -> (Decision, f64) {
        if let Some(state) = self.undivided() {
            return decide_as_many(self.limit(), state, now, wanted);
        }
        let (decision, taken) = decide_as_many(self.limit(), &self.total(now), now, wanted);
        match decision.ok {
            true => (decision, taken),
            // The wait of the total may be too short for the shards.
            false => (self.decide(now, wanted.fewest(), false), 0.0),
        }
    }
}
