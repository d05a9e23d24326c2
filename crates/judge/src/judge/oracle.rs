//! Explains a call's answer by `ratelimit_core`: on a state at an instant, or at any instant of a span if that of the
//! decision is unknown.
//!
//! The model has an oracle of its own (`crates/model/src/oracle.rs`). Both are thin layers over the core's `decide`.
//! Here neither the instant nor the state is surely known, so answers are explained on beliefs; there both are known,
//! and each change must lead to a single state.

use std::cmp::Ordering;

use ratelimit_core::hold::{Hold, Took};
use ratelimit_core::{Decision, Limit, Micros, State, credit, decide};

use super::holds::{self, Known};
use crate::history::{Asked, Invocation, Reply};

/// A possible state of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Belief {
    /// `None`: nothing is stored.
    pub state: Option<State>,
    /// How much later the times in the state may be, because the instant of a decision was unknown.
    pub slack: i64,
    /// The holds.
    pub holds: Known,
}

impl Belief {
    /// Nothing is stored.
    pub(super) fn nothing() -> Belief {
        Belief { state: None, slack: 0, holds: Known::default() }
    }

    /// Mixes the belief into a hash.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = self.slack as u64;
        let mut mix = |value: u64| {
            hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 32;
        };
        for (number, hold) in self.holds.iter() {
            mix(*number);
            mix(hold.count.to_bits() ^ hold.spent.to_bits().rotate_left(7));
            mix(hold.expires_at.0 as u64);
        }
        match &self.state {
            None => mix(1),
            Some(State::Tokens(tokens)) => {
                mix(2);
                mix(tokens.value.to_bits());
                mix(tokens.ts.0 as u64);
            }
            Some(State::Counters(counters)) => {
                mix(3);
                mix(counters.value.to_bits());
                mix(counters.prior.to_bits());
                mix(counters.ts.0 as u64);
            }
            Some(State::Log(log)) => {
                mix(4);
                log.entries.iter().for_each(|entry| mix(entry.0 as u64));
            }
            Some(State::Leases(leases)) => {
                mix(5);
                // In no order.
                mix(leases.leases.iter().fold(0, |sum, lease| {
                    sum.wrapping_add(
                        (lease.id.0 as u64).wrapping_mul(lease.expires_at.0 as u64 | 1),
                    )
                }));
            }
        }
        hash
    }
}

/// A call's answer, and the state after it.
struct Outcome {
    ok: bool,
    remaining: Option<f64>,
    /// The time when a denied call can pass.
    retry_at: Option<i64>,
    /// The stored state after it; `None`: the same as before.
    after: Option<Option<State>>,
    /// The holds after it.
    holds: Known,
    /// The tokens of a hold after it.
    held: Option<f64>,
    /// Whether it has counted the tokens: if so, `remaining` is the number in the state after it.
    counted: bool,
}

impl Outcome {
    fn new(decision: Decision, now: Micros, writes: bool) -> Outcome {
        Outcome {
            ok: decision.ok,
            remaining: Some(decision.level.remaining),
            retry_at: decision.retry_after.map(|wait| now.plus(wait).0),
            counted: decision.state.is_some(),
            after: decision.state.filter(|_| writes).map(Some),
            holds: Known::default(),
            held: None,
        }
    }

    /// The outcome of a call that answers yes or no.
    fn from_yes(ok: bool, after: Option<Option<State>>) -> Outcome {
        let (remaining, retry_at, holds, held) = (None, None, Known::default(), None);
        Outcome { ok, remaining, retry_at, after, holds, held, counted: false }
    }
}

/// A way to explain a call on a belief.
pub(super) struct Explained {
    /// A possible state after it.
    pub after: Belief,
    /// Whether the call changed the state.
    pub wrote: bool,
}

/// Explains the calls of one key.
pub(super) struct Oracle {
    /// The limit.
    pub limit: Limit,
    /// As in [`Limit::initial_state`].
    pub phase: Micros,
    /// The error allowed in `remaining`, which is rounded to a whole number that is nearer than this.
    pub tolerance: f64,
}

/// The maximum number of states that can follow a decision at an unknown instant: a window may end within the call.
const MOST: usize = 8;

impl Oracle {
    pub(super) fn new(limit: Limit, phase: Micros) -> Oracle {
        let capacity = limit.capacity();
        let tolerance = if capacity.is_finite() { (1e-12 * capacity).max(4e-6) } else { 4e-6 };
        Oracle { limit, phase, tolerance }
    }

    /// Whether the state has times of decisions. The times of windows are boundaries.
    fn has_slack(&self) -> bool {
        !matches!(self.limit, Limit::FixedWindow(_) | Limit::SlidingWindow(_))
    }

    /// The believed state, with its times `later`; the initial one if nothing is stored.
    fn state(&self, belief: &Belief, later: i64, now: Micros) -> State {
        match &belief.state {
            Some(state) => shifted(state, later),
            None => self.limit.initial_state(now, self.phase),
        }
    }

    /// The outcome of a call at `now`, on the believed state with its times `later`.
    fn outcome(&self, belief: &Belief, asked: Asked, later: i64, now: Micros) -> Outcome {
        let before = self.state(belief, later, now);
        let (before, known) = holds::expired(&self.limit, before, &belief.holds, now);
        let outcome = self.on_state(belief, &before, &known, asked, now);
        if known.is_empty() {
            return outcome;
        }
        self.with_holds(outcome, (&before, known), asked, now)
    }

    /// The same outcome, with the holds that are known.
    fn with_holds(
        &self,
        outcome: Outcome,
        (before, known): (&State, Known),
        asked: Asked,
        now: Micros,
    ) -> Outcome {
        let wanted = match asked {
            Asked::Limit { count, reserve } | Asked::Check { count, reserve } => {
                Some((count, reserve))
            }
            _ => None,
        };
        let retry_at = match wanted {
            Some(wanted) if !outcome.ok => {
                let denied = outcome.retry_at.map(|at| Micros(at).minus(now));
                holds::retry_at(&self.limit, (before, &known), now, wanted, denied)
            }
            _ => outcome.retry_at,
        };
        let holds = match asked {
            Asked::Hold { .. } | Asked::Settle { .. } if outcome.ok => outcome.holds.clone(),
            Asked::Reset => Known::default(),
            _ => known,
        };
        Outcome { retry_at, holds, ..outcome }
    }

    /// The outcome on a state and holds, with no expiry left by `now`.
    fn on_state(
        &self,
        belief: &Belief,
        before: &State,
        known: &Known,
        asked: Asked,
        now: Micros,
    ) -> Outcome {
        let limit = &self.limit;
        match asked {
            Asked::Hold { hold, .. } => self.hold((before, known), asked, hold, now),
            Asked::Settle { hold, used } => {
                let settled =
                    holds::of(known, hold).and_then(|of| of.settle(limit, before, now, used));
                let Some(decision) = settled else { return Outcome::from_yes(false, None) };
                let after = decision.state.clone().unwrap_or_else(|| before.clone());
                let outcome = Outcome::new(decision, now, true);
                Outcome {
                    after: Some(Some(after)),
                    holds: holds::put(known, hold, None),
                    ..outcome
                }
            }
            Asked::Limit { count, reserve } => {
                Outcome::new(decide(limit, before, now, count, reserve), now, true)
            }
            Asked::Check { count, reserve } => {
                let outcome = Outcome::new(decide(limit, before, now, count, reserve), now, false);
                // Before the tokens that would be taken.
                Outcome { remaining: Some(limit.level(before, now).remaining), ..outcome }
            }
            Asked::Credit { count } => match credit(limit, before, now, count, None) {
                Some(decision) => Outcome::new(decision, now, true),
                None => Outcome::from_yes(false, None),
            },
            Asked::Reset => {
                let was = belief.state.is_some();
                Outcome::from_yes(was, was.then_some(None))
            }
            Asked::Acquire { count, lease } => {
                Outcome::new(limit.acquire(before, now, count, Micros(lease)), now, true)
            }
            Asked::Extend { lease } => lease_changed(limit.extend(before, now, Micros(lease))),
            Asked::Release { lease } => lease_changed(limit.release(before, now, Micros(lease))),
        }
    }

    /// The outcome of a hold.
    fn hold(
        &self,
        (before, known): (&State, &Known),
        asked: Asked,
        number: u64,
        now: Micros,
    ) -> Outcome {
        let Asked::Hold { count, at_least, ttl, charge, .. } = asked else {
            return Outcome::from_yes(false, None);
        };
        let (limit, of) = (&self.limit, holds::of(known, number));
        let had = of.map_or(0.0, |hold| hold.count);
        let more = (count - had).max(0.0);
        let until = now.plus(Micros(ttl));
        let kept = |took: f64, after: &State| {
            Hold::of(of, limit, after, now, Took::at_once(took), until, charge)
        };
        if of.is_some() && more == 0.0 {
            let outcome = Outcome::from_yes(true, Some(Some(before.clone())));
            return Outcome {
                remaining: Some(limit.level(before, now).remaining),
                holds: holds::put(known, number, Some(kept(0.0, before))),
                held: Some(had),
                ..outcome
            };
        }
        let (mut took, mut decision) = (more, decide(limit, before, now, more, false));
        let whole = (limit.level(before, now).remaining + 1e-9).floor();
        if !decision.ok && at_least < count && whole >= (at_least - had).max(1.0) {
            (took, decision) = (whole, decide(limit, before, now, whole, false));
        }
        let (is_taken, after) = (decision.ok, decision.state.clone());
        let outcome = Outcome::new(decision, now, true);
        if !is_taken {
            let needed = if at_least < count { (at_least - had).max(1.0) } else { more };
            let denied = decide(limit, before, now, needed, false).retry_after;
            let retry_at = holds::retry_at(limit, (before, known), now, (needed, false), denied);
            return Outcome { retry_at, ..outcome };
        }
        let after = after.unwrap_or_else(|| before.clone());
        let holds = holds::put(known, number, Some(kept(took, &after)));
        Outcome { after: Some(Some(after)), holds, held: Some(had + took), ..outcome }
    }

    /// Compares a call's answer with an outcome. `Less`: a later instant may give that answer; `Greater`: an earlier
    /// one, because tokens come and leases go with time.
    fn compare(&self, call: &Invocation, outcome: &Outcome) -> Ordering {
        let goes = matches!(call.asked, Asked::Extend { .. } | Asked::Release { .. });
        if call.reply.ok != outcome.ok {
            return if call.reply.ok == goes { Ordering::Greater } else { Ordering::Less };
        }
        match call.reply.remaining.zip(outcome.remaining) {
            Some((told, found)) if found < told - self.tolerance => Ordering::Less,
            Some((told, found)) if found > told + self.tolerance => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    /// The first and the last instant of a span that can give an answer.
    fn instants(&self, belief: &Belief, call: &Invocation, span: (i64, i64)) -> Option<(i64, i64)> {
        let compare =
            |now, later| self.compare(call, &self.outcome(belief, call.asked, later, Micros(now)));
        let from = first(span.0, span.1, |now| compare(now, 0) != Ordering::Less);
        let late = |now| compare(now, belief.slack) == Ordering::Greater;
        let to = first(from, span.1, late) - 1;
        (from <= to).then_some((from, to))
    }

    /// The ways to explain a call that was decided within `span`; empty: none.
    pub(super) fn explain(
        &self,
        belief: &Belief,
        call: &Invocation,
        span: (i64, i64),
    ) -> Vec<Explained> {
        let mut ways = Vec::new();
        for span in self.parts(belief, call, span) {
            ways.extend(self.explain_part(belief, call, span));
        }
        ways
    }

    /// The parts of a span between which nothing expires. The answer to a hold shows when it was decided.
    fn parts(&self, belief: &Belief, call: &Invocation, span: (i64, i64)) -> Vec<(i64, i64)> {
        let (mut from, mut to) = span;
        if let (Asked::Hold { hold, ttl, expires_at, .. }, true) = (call.asked, call.reply.ok)
            && expires_at < i64::MAX
        {
            let before = holds::of(&belief.holds, hold).map(|of| of.expires_at.0);
            match before.is_none_or(|before| before < expires_at) {
                true => (from, to) = (from.max(expires_at - ttl), to.min(expires_at - ttl)),
                // It was extended to no later than before.
                false if before != Some(expires_at) => return Vec::new(),
                false => to = to.min(expires_at - ttl),
            }
        }
        let mut parts = Vec::new();
        for at in holds::expiries(&belief.holds, to) {
            if at > from {
                parts.push((from, at - 1));
                from = at;
            }
        }
        parts.push((from, to));
        parts.retain(|(from, to)| from <= to);
        parts
    }

    /// The ways to explain a call that was decided within a part of its span.
    fn explain_part(&self, belief: &Belief, call: &Invocation, span: (i64, i64)) -> Vec<Explained> {
        let at = |now, later| self.outcome(belief, call.asked, later, Micros(now));
        let Some((from, to)) = self.instants(belief, call, span) else { return Vec::new() };
        let early = at(from, 0);
        let late = if from < to || belief.slack > 0 { Some(at(to, belief.slack)) } else { None };
        if !retries(&call.reply, &early, late.as_ref().unwrap_or(&early)) {
            return Vec::new();
        }
        let unchanged = || vec![Explained { after: belief.clone(), wrote: false }];
        if !call.reply.ok {
            return unchanged();
        }
        if let (Asked::Hold { held, .. }, Some(has)) = (call.asked, early.held)
            && !call.unanswered
            && (held - has).abs() > self.tolerance
        {
            return Vec::new();
        }
        let mut holds = early.holds.clone();
        if let Asked::Hold { hold, expires_at: i64::MAX, .. } = call.asked
            && let Some(of) = holds::of(&holds, hold).copied()
        {
            holds = holds::put(&holds, hold, Some(Hold { expires_at: Micros(i64::MAX), ..of }));
        }
        let wrote = |state, slack| {
            let holds = holds.clone();
            Explained { after: Belief { state, slack, holds }, wrote: true }
        };
        // Counted at each instant of the part, or at none.
        let counted = early.counted;
        let after = match counted && self.has_slack() {
            true => {
                early.after.map(|after| after.map(|after| told(after, &call.reply, late.is_none())))
            }
            false => early.after,
        };
        match (after, late) {
            (Some(after), None) => vec![wrote(after, 0)],
            (Some(after), Some(late)) if self.has_slack() => {
                // If time had filled it, nothing changed.
                let full = at(to, 0);
                let is_full = full.ok && full.after.is_none();
                let mut ways = if is_full { unchanged() } else { Vec::new() };
                let late = late.after.flatten();
                let (state, slack) = self.within(belief, (from, to), counted, after, late);
                ways.push(wrote(state, slack));
                ways
            }
            (Some(_), Some(late)) => {
                let mut states = Vec::new();
                self.pieces((from, to), &|now| at(now, 0).after.flatten(), &mut states);
                let ways =
                    states.into_iter().filter(|state| late.after.is_some() || state.is_some());
                let mut ways: Vec<_> = ways.map(|state| wrote(state, 0)).collect();
                if late.after.is_none() {
                    ways.extend(unchanged());
                }
                ways
            }
            // At the earliest of its times the lease had expired.
            (None, Some(late)) if !early.ok => {
                let after = late.after.flatten().map(|state| shifted(&state, -belief.slack));
                vec![wrote(after, belief.slack.max(to - from))]
            }
            (None, Some(late)) if late.after.is_some() => {
                let slack = belief.slack.max(to - from);
                let after = late.after.flatten().map(|state| shifted(&state, -slack));
                unchanged().into_iter().chain([wrote(after, slack)]).collect()
            }
            (None, _) => unchanged(),
        }
    }

    /// The state after a decision in a span: the earliest, and how much later it may be.
    fn within(
        &self,
        before: &Belief,
        (from, to): (i64, i64),
        counted: bool,
        early: Option<State>,
        late: Option<State>,
    ) -> (Option<State>, i64) {
        let most = before.slack.max(to - from);
        let slack = match (&early, &late) {
            // Not counted since the expiry of a hold at a known instant: the tokens at that instant are unknown, and
            // the latest state has had its number for some time.
            (Some(State::Tokens(tokens)), Some(late)) if !counted && late.ts() == tokens.ts => {
                let has = |at| self.limit.level(late, Micros(at)).remaining >= tokens.value;
                let start = tokens.ts.0;
                let slack = first(start, start + before.slack + to - from, has) - start;
                return (Some(shifted(late, -slack)), slack);
            }
            (Some(State::Tokens(tokens)), late) => {
                let last = late.as_ref().map_or(Micros(to), State::ts);
                last.minus(tokens.ts).0.max(0)
            }
            _ => most,
        };
        (early, slack)
    }

    /// Collects the values of a function of time over a span: it changes at a few instants.
    fn pieces(
        &self,
        (from, to): (i64, i64),
        state: &dyn Fn(i64) -> Option<State>,
        found: &mut Vec<Option<State>>,
    ) {
        let (one, other) = (state(from), state(to));
        if !found.contains(&one) {
            found.push(one.clone());
        }
        if one == other || found.len() > MOST {
            return;
        }
        let change = first(from, to, |now| state(now) != one);
        self.pieces((change, to), state, found);
    }
}

/// Shifts the times of a state.
fn shifted(state: &State, later: i64) -> State {
    let (mut state, by) = (state.clone(), Micros(later));
    match &mut state {
        State::Tokens(tokens) if later != 0 => tokens.ts = tokens.ts.plus(by),
        State::Log(log) if later != 0 => {
            log.entries.iter_mut().for_each(|entry| *entry = entry.plus(by));
        }
        State::Leases(leases) if later != 0 => {
            leases.leases.iter_mut().for_each(|lease| lease.expires_at = lease.expires_at.plus(by));
        }
        _ => {}
    }
    state
}

/// The state after a decision that has counted its tokens, with the number in the answer, which is more exact than one
/// computed from unknown instants. At a `known` instant it may have been rounded to a whole number.
fn told(state: State, reply: &Reply, known: bool) -> State {
    match (state, reply.remaining) {
        (State::Tokens(mut tokens), Some(value)) if !known || value.fract() != 0.0 => {
            tokens.value = value;
            State::Tokens(tokens)
        }
        (state, _) => state,
    }
}

/// The outcome of a change of a lease.
fn lease_changed(after: Option<State>) -> Outcome {
    Outcome::from_yes(after.is_some(), after.map(Some))
}

/// Whether a denial's `retry_at` is right, to the millisecond.
fn retries(reply: &Reply, early: &Outcome, late: &Outcome) -> bool {
    let (false, Some(told)) = (reply.ok, reply.retry_at) else { return true };
    // A state between the two denies.
    if early.ok || late.ok {
        return true;
    }
    match (told, early.retry_at, late.retry_at) {
        (None, None, _) | (None, _, None) => true,
        (Some(told), Some(early), Some(late)) => {
            let (least, most) = (early.min(late), early.max(late));
            // Rounded up to a millisecond.
            (least - 1..=most + 1_001).contains(&told)
        }
        _ => false,
    }
}

/// The first instant of a span from which on `is` holds; past the end if there is none.
fn first(from: i64, to: i64, is: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (from, to + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if is(middle) { high = middle } else { low = middle + 1 }
    }
    low
}
