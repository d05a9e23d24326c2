//! Sliding log: the time of every token taken, so the window slides exactly.
//!
//! Allowed iff what was taken in `(now - period, now]` plus `count` is at most `rate`: the sliding
//! window log that [Figma] describes, except that a denied call leaves no entry here.
//!
//! [Figma]: https://www.figma.com/blog/an-alternative-approach-to-rate-limiting/

use super::{Decision, Level, Log, State};
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
    pub(super) fn initial_state(now: Micros) -> Log {
        Log { entries: Vec::new(), ts: now }
    }

    /// The entries still in the window at `now`. The log is sorted; a clock that stepped back
    /// behind the newest entry stands still until it has caught up.
    fn live<'a>(&self, log: &'a Log, now: Micros) -> &'a [Micros] {
        let now = log.entries.last().map_or(now, |&newest| newest.max(now));
        let gone = log.entries.partition_point(|&taken| now.minus(taken) >= self.period);
        &log.entries[gone..]
    }

    /// No entry in the window, and none ahead of the clock.
    pub(super) fn is_idle(&self, log: &Log, now: Micros) -> bool {
        self.live(log, now).is_empty()
    }

    /// When the newest entry is a period old; of an empty log, at any time.
    pub(super) fn unused_at(&self, log: &Log) -> Micros {
        let newest = log.entries.last();
        newest.map_or(Micros(i64::MIN), |newest| newest.plus(self.period))
    }

    fn level_of(&self, live: &[Micros], now: Micros) -> Level {
        Level {
            remaining: (self.rate as f64 - live.len() as f64).max(0.0),
            reset_at: Some(live.last().map_or(now, |&newest| newest.plus(self.period))),
        }
    }

    pub(super) fn level(&self, log: &Log, now: Micros) -> Level {
        self.level_of(self.live(log, now), now)
    }

    /// `count` is a whole number.
    pub(super) fn decide(&self, log: &Log, now: Micros, count: f64) -> Decision {
        let live = self.live(log, now);
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
        let mut entries = live.to_vec();
        entries.resize(live.len() + count as usize, taken);
        Decision {
            ok: true,
            retry_after: None,
            level: self.level_of(&entries, now),
            state: Some(State::Log(Log { entries, ts: taken })),
        }
    }
}
