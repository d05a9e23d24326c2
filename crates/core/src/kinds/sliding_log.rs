//! Sliding log: the time of every token taken, so the window slides exactly.
//!
//! Allowed iff the tokens taken in `(now - period, now]` plus `count` are at most `rate`: the sliding window log that
//! [Figma] describes, except that a denied call leaves no entry here.
//!
//! [Figma]: https://www.figma.com/blog/an-alternative-approach-to-rate-limiting/

use serde_json::{Value, json};

use super::limit_kind::{Formulas, LimitKind, soon};
use super::{Decision, Level, Log, State};
use crate::Micros;
use crate::config::times::PERIOD;
use crate::fields::{FieldError, Fields};
use crate::numbers::WHOLE_RATE;

/// At most `rate` tokens in any `period`, exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    /// Tokens a period, 1 to 10,000: the state keeps one entry for each.
    pub rate: u32,
    /// From a millisecond to 1e15 milliseconds.
    pub period: Micros,
}

impl SlidingLog {
    /// The entries still in the window at `now`. The log is sorted; a clock that stepped back
    /// behind the newest entry stands still until it has caught up.
    fn live<'a>(&self, log: &'a Log, now: Micros) -> &'a [Micros] {
        let now = log.entries.last().map_or(now, |&newest| newest.max(now));
        let gone = log.entries.partition_point(|&taken| now.minus(taken) >= self.period);
        &log.entries[gone..]
    }

    fn level_of(&self, live: &[Micros], now: Micros) -> Level {
        Level {
            remaining: (self.rate as f64 - live.len() as f64).max(0.0),
            reset_at: Some(live.last().map_or(now, |&newest| newest.plus(self.period))),
        }
    }
}

impl LimitKind for SlidingLog {
    const NAME: &'static str = "sliding log";
    const WITH_ARTICLE: &'static str = "a sliding log";
    const FIELDS: &'static [&'static str] = &["rate", "period"];

    type State = Log;

    fn read(fields: &Fields) -> Result<SlidingLog, FieldError> {
        let rate = fields.required("rate", &WHOLE_RATE)?;
        Ok(SlidingLog { rate, period: fields.required("period", &PERIOD)? })
    }

    fn resolved(&self, _: Micros) -> Value {
        json!({ "rate": self.rate, "period": self.period.to_json() })
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (self.rate.into(), Some(self.period))
    }

    fn initial_state(&self, now: Micros, _: Micros) -> Log {
        Log { entries: Vec::new(), ts: now }
    }

    /// No entry in the window, and none ahead of the clock.
    fn is_idle(&self, log: &Log, now: Micros, _: Micros) -> bool {
        self.live(log, now).is_empty()
    }

    /// The time when the newest entry is a period old; any time for an empty log.
    fn unused_at(&self, log: &Log) -> Option<Micros> {
        let newest = log.entries.last();
        Some(newest.map_or(Micros(i64::MIN), |newest| newest.plus(self.period)))
    }
}

impl Formulas for SlidingLog {
    #[inline]
    fn counts(&self, log: &Log, now: Micros) -> bool {
        log.entries.last() <= Some(&soon(now).max(now.plus(self.period)))
    }

    /// `count` is a whole number.
    fn take(&self, log: &Log, now: Micros, count: f64, _: bool) -> Decision {
        let live = self.live(log, now);
        let level = self.level_of(live, now);
        if count == 0.0 {
            // No debt, even if the rate was lowered below the tokens used.
            return Decision::unchanged(level);
        }
        if live.len() as f64 + count > self.rate as f64 {
            if count > self.rate as f64 {
                return Decision::denied(None, level);
            }
            // This number of the oldest entries must leave; the last of them does so a period after it was taken.
            let excess = live.len() + count as usize - self.rate as usize;
            let retry_after =
                excess.checked_sub(1).map(|last| live[last].plus(self.period).minus(now));
            return Decision::denied(retry_after, level);
        }
        let taken = live.last().map_or(now, |&newest| newest.max(now));
        let mut entries = live.to_vec();
        entries.resize(live.len() + count as usize, taken);
        let level = self.level_of(&entries, now);
        Decision::admitted(level, Some(State::Log(Log { entries, ts: taken })))
    }

    fn level(&self, log: &Log, now: Micros) -> Level {
        self.level_of(self.live(log, now), now)
    }
}
