//! Concurrency: how many at once, not how often.
//!
//! A slot is taken by a lease, until that is released or lapses `ttl` after it was given or last extended: a
//! holder that dies gives its slot back. Free are the `slots` less those of the leases that have not lapsed: a
//! counting semaphore whose permits lapse, all by one clock.
//!
//! A lease is told from others by the instant at which it was given: of two at the same one, the second is
//! given a microsecond later.

use super::{Decision, Level, State};
use crate::Micros;

/// At most `slots` leases at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// 1 to 1,000.
    pub slots: u32,
    /// After which time a lease lapses, from a millisecond to 1e15 of them.
    pub ttl: Micros,
}

/// A slot that is taken. A lease of several slots is as many of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it was given, which tells it from others of the same key.
    pub id: Micros,
    /// When it lapses.
    pub lapses_at: Micros,
}

impl Lease {
    /// Reads the leases of a state, in no order.
    pub fn of(state: &State) -> impl Iterator<Item = Lease> {
        let pairs = state.log.as_deref().unwrap_or_default().chunks_exact(2);
        pairs.map(|pair| Lease { id: pair[0], lapses_at: pair[1] })
    }

    /// Whether it takes its slot at `now`.
    pub fn is_live(&self, now: Micros) -> bool {
        self.lapses_at > now
    }
}

impl Concurrency {
    pub(super) fn initial_state(&self, now: Micros) -> State {
        self.state(now.minus(Micros(1)), &[])
    }

    /// The state with these leases, of which `newest` is the greatest id that was given.
    fn state(&self, newest: Micros, leases: &[Lease]) -> State {
        let log = leases.iter().flat_map(|lease| [lease.id, lease.lapses_at]).collect();
        State { value: leases.len() as f64, ts: newest, prior: Some(0.0), log: Some(log) }
    }

    fn live(&self, state: &State, now: Micros) -> Vec<Lease> {
        Lease::of(state).filter(|lease| lease.is_live(now)).collect()
    }

    /// No lease that has not lapsed, and no id ahead of the clock, which the next one must be greater than.
    pub(super) fn is_idle(&self, state: &State, now: Micros) -> bool {
        state.ts < now && self.live(state, now).is_empty()
    }

    /// When the last lease has lapsed.
    pub(super) fn unused_at(&self, state: &State) -> Micros {
        let last = Lease::of(state).map(|lease| lease.lapses_at).max();
        last.unwrap_or(state.ts).max(state.ts.plus(Micros(1)))
    }

    fn level_of(&self, live: &[Lease], now: Micros) -> Level {
        Level {
            remaining: (f64::from(self.slots) - live.len() as f64).max(0.0),
            reset_at: Some(live.iter().map(|lease| lease.lapses_at).max().unwrap_or(now)),
        }
    }

    pub(super) fn level(&self, state: &State, now: Micros) -> Level {
        self.level_of(&self.live(state, now), now)
    }

    /// Gives a lease of `count` slots, a whole number. Its id is the `ts` of the state after it. A denial tells
    /// when enough leases lapse, if none is released or extended before.
    pub(super) fn decide(&self, state: &State, now: Micros, count: f64) -> Decision {
        let mut live = self.live(state, now);
        let level = self.level_of(&live, now);
        let taken = live.len() as f64 + count;
        if count == 0.0 || taken <= f64::from(self.slots) {
            let id = if state.ts < now { now } else { state.ts.plus(Micros(1)) };
            live.resize(taken as usize, Lease { id, lapses_at: now.plus(self.ttl) });
            let level = self.level_of(&live, now);
            let after = (count > 0.0).then(|| self.state(id, &live));
            return Decision { ok: true, retry_after: None, level, state: after };
        }
        if count > f64::from(self.slots) {
            return Decision::denied(None, level);
        }
        live.sort_by_key(|lease| lease.lapses_at);
        let excess = (taken - f64::from(self.slots)) as usize;
        let lapses = live.get(excess.saturating_sub(1)).map(|lease| lease.lapses_at.minus(now));
        Decision::denied(lapses, level)
    }

    /// The state after a lease was released; `None` where it has lapsed, or there is none of this id.
    pub fn release(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        let live = self.live(state, now);
        let kept: Vec<Lease> = live.iter().copied().filter(|lease| lease.id != id).collect();
        (kept.len() < live.len()).then(|| self.state(state.ts, &kept))
    }

    /// The state after a lease was extended, so that it lapses `ttl` from `now` on; `None` where it has lapsed,
    /// or there is none of this id.
    pub fn extend(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        let mut live = self.live(state, now);
        let mut found = false;
        for lease in live.iter_mut().filter(|lease| lease.id == id) {
            // Not sooner than before, where the clock stepped back or the ttl was shortened.
            lease.lapses_at = lease.lapses_at.max(now.plus(self.ttl));
            found = true;
        }
        found.then(|| self.state(state.ts, &live))
    }
}
