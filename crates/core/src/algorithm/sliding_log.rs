//! Sliding log: the time of every token taken, so the window slides exactly.
//!
//! Allowed iff what was taken in `(now - period, now]` plus `count` is at most `rate`: the sliding
//! window log that [Figma] describes, except that a denied call leaves no entry here.
//!
//! [Figma]: https://www.figma.com/blog/an-alternative-approach-to-rate-limiting/

use super::{Decision, Level, State};
use crate::Micros;

/// At most `rate` tokens in any `period`, exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    /// Tokens a period, 1 to 10,000: the state keeps one entry for each.
    pub rate: u32,
    /// From a millisecond to 1e15 of them.
    pub period: Micros,
}

impl SlidingLog {
    pub(super) fn initial_state(&self, now: Micros) -> State {
        State { value: 0.0, ts: now, prior: None, log: Some(Vec::new()) }
    }

    /// The entries still in the window at `now`. The log is sorted; a clock that stepped back
    /// behind the newest entry stands still until it has caught up.
    fn live<'a>(&self, log: &'a [Micros], now: Micros) -> &'a [Micros] {
        let now = log.last().map_or(now, |&newest| newest.max(now));
        let gone = log.partition_point(|&taken| now.minus(taken) >= self.period);
        &log[gone..]
    }

    /// No entry in the window, and none ahead of the clock.
    pub(super) fn is_idle(&self, state: &State, now: Micros) -> bool {
        let log = state.log.as_deref().unwrap_or_default();
        self.live(log, now).is_empty()
    }

    /// When the newest entry is a period old; of an empty log, at any time.
    pub(super) fn unused_at(&self, state: &State) -> Micros {
        let newest = state.log.as_deref().and_then(<[Micros]>::last);
        newest.map_or(Micros(i64::MIN), |newest| newest.plus(self.period))
    }

    fn level_of(&self, live: &[Micros], now: Micros) -> Level {
        Level {
            remaining: (self.rate as f64 - live.len() as f64).max(0.0),
            reset_at: Some(live.last().map_or(now, |&newest| newest.plus(self.period))),
        }
    }

    pub(super) fn level(&self, state: &State, now: Micros) -> Level {
        self.level_of(self.live(state.log.as_deref().unwrap_or_default(), now), now)
    }

    /// `count` is a whole number.
    pub(super) fn decide(&self, state: &State, now: Micros, count: f64) -> Decision {
        let live = self.live(state.log.as_deref().unwrap_or_default(), now);
        let level = self.level_of(live, now);
        if count == 0.0 {
            // There is no debt to be in: a rate that was lowered below what is used is none.
            return Decision { ok: true, retry_after: None, level, state: None };
        }
        if live.len() as f64 + count > self.rate as f64 {
            if count > self.rate as f64 {
                return Decision::denied(None, level);
            }
            // So many of the oldest entries must leave; the last of them leaves a period after it
            // was taken.
            let excess = live.len() + count as usize - self.rate as usize;
            let retry_after =
                excess.checked_sub(1).map(|last| live[last].plus(self.period).minus(now));
            return Decision::denied(retry_after, level);
        }
        let taken = live.last().map_or(now, |&newest| newest.max(now));
        let mut log = live.to_vec();
        log.resize(live.len() + count as usize, taken);
        Decision {
            ok: true,
            retry_after: None,
            level: self.level_of(&log, now),
            state: Some(State { value: log.len() as f64, ts: taken, prior: None, log: Some(log) }),
        }
    }
}
