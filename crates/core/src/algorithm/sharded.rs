//! One limit divided over several rows, its parts: rate, capacity and debt are shared out equally,
//! and what the parts hold together is what the limit holds. Where their number has changed, the rows
//! stay the parts that they were until they are rearranged, each with the refill of its own.
//!
//! Conservative: a part that is full loses its refill, so after uneven use the parts together
//! refill no faster, and maybe more slowly, than one row would.

use std::borrow::Cow;
use std::rc::Rc;

use super::refill::Refill;
use super::{Decision, Level, Limit, State, decide, left};
use crate::Micros;

impl Limit {
    /// Over how many rows the limit is spread; 1 for the sliding kinds.
    pub fn shards(&self) -> u32 {
        match self {
            Limit::TokenBucket(limit) => limit.shards,
            Limit::FixedWindow(limit) => limit.shards,
            Limit::SlidingWindow(_) | Limit::SlidingLog(_) => 1,
        }
    }

    /// One of `shards` equal parts of the limit; the sliding kinds have no parts.
    pub fn shard_limit(&self, shards: u32) -> Limit {
        let share = |tokens: f64| tokens / f64::from(shards.max(1));
        let mut part = self.clone();
        match &mut part {
            Limit::TokenBucket(part) => {
                part.rate = share(part.rate);
                part.capacity = share(part.capacity);
                part.max_reserved = part.max_reserved.map(share);
                part.shards = 1;
            }
            Limit::FixedWindow(part) => {
                part.rate = share(part.rate);
                part.capacity = share(part.capacity);
                part.max_reserved = part.max_reserved.map(share);
                part.shards = 1;
            }
            Limit::SlidingWindow(_) | Limit::SlidingLog(_) => {}
        }
        part
    }
}

/// A limit and the states of the parts that it is divided into: one for a limit without shards,
/// whose state is its own.
#[derive(Clone, Debug)]
pub struct Shards<'a> {
    limit: &'a Limit,
    part: Cow<'a, Limit>,
    states: Vec<State>,
    /// Where the rows stand as another number of parts: the one that each state belongs to.
    standing: Vec<Rc<Limit>>,
}

impl<'a> Shards<'a> {
    /// `states` of which each belongs to an equal part of the limit; one at least.
    pub fn new(limit: &'a Limit, states: Vec<State>) -> Shards<'a> {
        let part = match states.len() {
            1 => Cow::Borrowed(limit),
            shards => Cow::Owned(limit.shard_limit(shards as u32)),
        };
        Shards { limit, part, states, standing: Vec::new() }
    }

    /// Rows that are not those that the limit wants, as they stand: each state with the part of the
    /// limit that it belongs to, by which it refills until the rows are
    /// [`rearranged`](Shards::rearranged).
    pub fn unequal(limit: &'a Limit, rows: Vec<(Rc<Limit>, State)>) -> Shards<'a> {
        let (standing, states) = rows.into_iter().unzip();
        Shards { standing, ..Shards::new(limit, states) }
    }

    /// Whether the states are those of as many equal parts, and not of rows that
    /// [stand](Shards::standing) as they were.
    pub fn are_equal(&self) -> bool {
        self.standing.is_empty()
    }

    /// The limit of one of equal parts.
    pub fn shard_limit(&self) -> &Limit {
        &self.part
    }

    pub fn states(&self) -> &[State] {
        &self.states
    }

    pub fn states_mut(&mut self) -> &mut [State] {
        &mut self.states
    }

    /// The tokens in the `n`th part at `now`; negative: debt.
    pub fn available(&self, n: usize, now: Micros) -> f64 {
        self.tokens(n, now).1
    }

    /// The limit that the `n`th state belongs to.
    fn part_of(&self, n: usize) -> &Limit {
        self.standing.get(n).map_or(&*self.part, |part| part)
    }

    /// The tokens in the `n`th part at `now`, and the time that they count from.
    fn tokens(&self, n: usize, now: Micros) -> (Micros, f64) {
        let state = &self.states[n];
        match self.part_of(n) {
            Limit::TokenBucket(part) => part.refilled(state, now),
            Limit::FixedWindow(part) => part.refilled(state, now),
            Limit::SlidingWindow(_) | Limit::SlidingLog(_) => (state.ts, state.value),
        }
    }

    /// The state of a limit that is not divided.
    fn undivided(&self) -> Option<&State> {
        match &self.states[..] {
            [state] if self.are_equal() => Some(state),
            _ => None,
        }
    }

    /// What the parts hold together at `now`, as the state of one row. It counts from the latest
    /// time that any of them counts from: nothing refills earlier than it would in its part.
    pub fn total(&self, now: Micros) -> State {
        if let Some(state) = self.undivided() {
            return state.clone();
        }
        let mut total = State { value: 0.0, ts: Micros(i64::MIN), prior: None, log: None };
        for n in 0..self.states.len() {
            let (ts, tokens) = self.tokens(n, now);
            total.value += tokens;
            total.ts = total.ts.max(ts);
        }
        total.value = total.value.min(self.limit.capacity());
        total
    }

    /// The total as a row that refills no later than any of the parts: as long as it can't let a
    /// call pass, the parts can't. Theirs count from different times where the clock stepped back,
    /// or where windows were the parts of a token bucket.
    pub fn upper_bound(&self, now: Micros) -> State {
        let total = self.total(now);
        if self.undivided().is_some() {
            return total;
        }
        let ts = (0..self.states.len()).map(|n| self.tokens(n, now).0).min();
        // Rows that no change of shards leaves, but somebody's own INSERT, may be more than the
        // whole: of them nothing is known but that they hold no more than it can.
        let rate: f64 = self.standing.iter().map(|part| part.policy().0).sum();
        let more = rate > self.limit.policy().0 * (1.0 + 1e-12);
        let value = if more { self.limit.capacity() } else { total.value };
        State { value, ts: ts.unwrap_or(total.ts), ..total }
    }

    /// What the parts hold at `now`, shared out anew over so many equal ones.
    pub fn resharded(&self, shards: u32, now: Micros) -> Vec<State> {
        if self.are_equal() && self.states.len() == shards as usize {
            return self.states.clone();
        }
        let mut total = self.total(now);
        total.value /= f64::from(shards.max(1));
        vec![total; shards as usize]
    }

    /// The `n`th part's tokens at `now`, and the time that they count from, as its state.
    pub fn refilled(&self, n: usize, now: Micros) -> State {
        let (ts, value) = self.tokens(n, now);
        State { value, ts, prior: None, log: None }
    }

    /// What the limit holds at `now`; it is full when its last part is.
    pub fn level(&self, now: Micros) -> Level {
        if let Some(state) = self.undivided() {
            return self.limit.level(state, now);
        }
        let level = self.limit.level(&self.total(now), now);
        let reset_at = (0..self.states.len())
            .map(|n| self.part_of(n).level(&self.states[n], now).reset_at)
            .reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)));
        Level { reset_at: reset_at.flatten(), ..level }
    }

    /// As [`super::decide`], for the parts together; the state is that of the total.
    pub fn decide(&self, now: Micros, count: f64, reserve: bool) -> Decision {
        let decision = decide(self.limit, &self.total(now), now, count, reserve);
        if self.undivided().is_some() || decision.ok {
            return decision;
        }
        let passes = |wait| {
            let then = now.plus(wait);
            decide(self.limit, &self.total(then), then, count, reserve).ok
        };
        let soonest = decide(self.limit, &self.upper_bound(now), now, count, reserve);
        let least = if soonest.ok { Some(Micros(0)) } else { soonest.retry_after };
        let retry_after = least.and_then(|least| first_pass(least, passes));
        Decision { retry_after, level: self.level(now), ..decision }
    }

    /// Changes those of equal parts that are `among` so that together they hold `target` tokens: takes
    /// from the richest first and gives to the poorest first; a debt is shared equally, so that it is
    /// paid back as fast as by the whole limit, and before any part gets more. Shards that need no
    /// change keep their state. `ts` is what their tokens count from.
    pub fn distribute(&mut self, among: &[usize], now: Micros, target: f64, ts: Micros) {
        let held: Vec<f64> = among.iter().map(|&n| self.available(n, now)).collect();
        let sum: f64 = held.iter().sum();
        let mut values = held.clone();
        let mut order: Vec<usize> = (0..held.len()).collect();
        order.sort_by(|&one, &other| held[one].total_cmp(&held[other]));
        let in_debt = held.iter().any(|&held| held < 0.0);
        if target < 0.0 || (in_debt && target > sum) {
            values.fill(target / held.len() as f64);
        } else if target < sum {
            let mut need = sum - target;
            for &n in order.iter().rev() {
                let take = need.min(held[n].max(0.0));
                values[n] = left(held[n], take);
                need -= take;
            }
        } else {
            let mut more = target - sum;
            for &n in &order {
                let give = more.min((self.part.capacity() - held[n]).max(0.0));
                values[n] = held[n] + give;
                more -= give;
            }
        }
        for ((&n, value), held) in among.iter().zip(values).zip(held) {
            if value != held {
                self.states[n] = State { value, ts, prior: None, log: None };
            }
        }
    }
}

/// The first span from `least` on after which a call passes, which it then does ever after; `None`
/// if that is beyond what an instant can hold.
pub fn first_pass(least: Micros, passes: impl Fn(Micros) -> bool) -> Option<Micros> {
    if passes(least) {
        return Some(least);
    }
    let (mut fails, mut step) = (least, Micros(1));
    let mut wait = least.plus(step);
    while !passes(wait) {
        if wait.0 > i64::MAX / 4 {
            return None;
        }
        fails = wait;
        step = step.plus(step);
        wait = least.plus(step);
    }
    while wait.0 - fails.0 > 1 {
        let middle = Micros(fails.0 + (wait.0 - fails.0) / 2);
        *(if passes(middle) { &mut wait } else { &mut fails }) = middle;
    }
    Some(wait)
}
