//! Holds: tokens taken before it is known how many will be used, with the right to give back the rest.
//!
//! A hold is an ordinary take. It is either settled once, by the actual use, or it expires: then all tokens that can
//! come back do so at the instant of the expiry, no matter which call notices it, and when. So answers don't depend on
//! earlier looks.

use crate::kinds::{AsMany, Decision, Lease, Take, credit, decide, reserved_last, returnable};
use crate::{Limit, Micros, State};

/// The maximum number of expiries after which a denied call is tried, to find when it passes.
pub const MAX_EXPIRIES: usize = 1_000;

/// The time after the expiry during which a settlement still counts.
pub const SETTLED_LATE: Micros = Micros::DAY;

/// Tokens that a hold has of a limit.
///
/// ```
/// use ratelimit_core::hold::{Hold, Took};
/// use ratelimit_core::{Micros, config, decide};
///
/// let limit = config::parse(r#"{"kind": "token bucket", "rate": 10, "period": "1 hour"}"#)?;
/// let now = Micros(1_798_804_800_000_000);
/// let full = limit.initial_state(now, now);
/// let after = decide(&limit, &full, now, 8.0, false).state.expect("it takes");
/// let minute = Micros::SECOND.0 * 60;
/// let hold = Hold::of(None, &limit, &after, now, Took::at_once(8.0), now.plus(Micros(minute)), false);
///
/// // 3 of the 8 were used.
/// let settled = hold.settle(&limit, &after, now, Some(3.0)).expect("a bucket");
/// assert_eq!(settled.level.remaining, 7.0);
/// # Ok::<(), ratelimit_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// Tokens taken and not given back.
    pub count: f64,
    /// The part of `count` that can't come back: tokens of windows that have ended, or all after the expiry; also
    /// slots, which come back with their lease.
    pub spent: f64,
    /// Tokens that came back when it expired.
    pub returned: f64,
    /// The time when the tokens beyond `spent` were taken; for a reservation, when all tokens are there.
    pub taken_at: Micros,
    /// The time of the expiry.
    pub expires_at: Micros,
    /// Whether the tokens stay taken after the expiry.
    pub charge: bool,
    /// For slots, the id of their lease, which expires in the state of the limit.
    pub lease: Option<Micros>,
}

/// Tokens that a hold takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Took {
    /// The number of tokens.
    pub tokens: f64,
    /// For a reservation, the wait until the tokens are there; `None`: they are there.
    pub wait: Option<Micros>,
}

impl Took {
    /// Tokens that are there.
    pub fn at_once(tokens: f64) -> Took {
        Took { tokens, wait: None }
    }
}

impl Hold {
    /// The hold after a take at `now` that left `after`; `before` is the same hold before it. It expires at
    /// `expires_at`, or at its previous expiry if that is later.
    pub fn of(
        before: Option<&Hold>,
        limit: &Limit,
        after: &State,
        now: Micros,
        took: Took,
        expires_at: Micros,
        charge: bool,
    ) -> Hold {
        // The clock may be behind the state.
        let present = limit.present(after, now);
        let taken_at = took.wait.map_or(present, |wait| present.max(now.plus(wait)));
        // Tokens of windows before the one that begins at `taken_at`. When an earlier reservation is given back, others
        // move up into those windows, so it isn't known which of the tokens remain.
        let early = match taken_at > present {
            true => took.tokens - reserved_last(limit, after, taken_at).min(took.tokens),
            false => 0.0,
        };
        let Some(&before) = before else {
            let (count, spent, returned, lease) = (took.tokens, early, 0.0, None);
            return Hold { count, spent, returned, taken_at, expires_at, charge, lease };
        };
        let expires_at = before.expires_at.max(expires_at);
        let mut hold = Hold { returned: 0.0, expires_at, ..before };
        if took.tokens > 0.0 {
            let since = returnable(limit, after, taken_at).map(|returnable| returnable.since);
            // Tokens of a window that has ended don't come back.
            if since.is_none_or(|since| before.taken_at < since) {
                hold.spent = before.count;
            }
            if hold.spent == before.count || taken_at > present {
                hold.taken_at = taken_at;
            }
            hold.spent += early;
            hold.count = before.count + took.tokens;
        }
        hold
    }

    /// The wait from `now` until the tokens of a reservation are there; `None`: they are there.
    pub fn wait(&self, limit: &Limit, state: &State, now: Micros) -> Option<Micros> {
        (self.taken_at > limit.present(state, now)).then(|| self.taken_at.minus(now))
    }

    /// The hold of slots of a concurrency limit, taken first at `taken_at`.
    pub fn of_slots(slots: f64, lease: Micros, taken_at: Micros, expires_at: Micros) -> Hold {
        let (count, spent, returned, lease) = (slots, slots, 0.0, Some(lease));
        Hold { count, spent, returned, taken_at, expires_at, charge: false, lease }
    }

    /// Whether it gives tokens back when it expires.
    pub fn returns(&self) -> bool {
        !self.charge && self.count > self.spent
    }

    /// The first expiry of holds that give tokens back: of this one and of others, given by their first.
    pub fn first_expiry(&self, others: Option<Micros>) -> Option<Micros> {
        match self.returns() {
            true => Some(others.map_or(self.expires_at, |first| first.min(self.expires_at))),
            false => others,
        }
    }

    /// The same hold, giving nothing back any more.
    pub fn lost(self) -> Hold {
        Hold { spent: self.count, ..self }
    }

    /// The hold after its expiry, which gives back as many tokens as there is room for at that instant; and the state
    /// after it, `None`: unchanged.
    pub fn expired(self, limit: &Limit, state: &State) -> (Hold, Option<State>) {
        let at = self.expires_at;
        let room = returnable(limit, state, at)
            .filter(|returnable| self.taken_at >= returnable.since)
            .map_or(0.0, |returnable| returnable.room);
        let held = self.count - self.spent;
        let back = held.min(room);
        if back <= 0.0 {
            return (self.lost(), None);
        }
        let count = if back == held { self.spent } else { self.count - back };
        let after = credit(limit, state, at, back, Some(self.taken_at));
        let hold = Hold { count, returned: self.returned + back, ..self }.lost();
        (hold, after.and_then(|decision| decision.state))
    }

    /// The credit that settles the hold: the tokens, negative if more were used than it has, and the time when they
    /// were taken. `used` is in tokens; `None`: all held tokens.
    pub fn credit(&self, used: Option<f64>) -> (f64, Option<Micros>) {
        let used = used.unwrap_or(self.count + self.returned);
        match used > self.count {
            true => (self.count - used, None),
            false => (self.count - used.max(self.spent), Some(self.taken_at)),
        }
    }

    /// Settles the hold at `now`, with `used` as in [`credit`](Hold::credit): gives back unused tokens, or takes those
    /// used beyond the hold; frees slots. `None` for tokens of a limit that can't be credited.
    pub fn settle(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        used: Option<f64>,
    ) -> Option<Decision> {
        if let Some(lease) = self.lease {
            let unchanged = Decision::unchanged(limit.level(state, now));
            return Some(Decision { state: limit.release(state, now, lease), ..unchanged });
        }
        let (count, taken_at) = self.credit(used);
        credit(limit, state, now, count, taken_at)
    }
}

/// A take that holds its tokens or slots.
#[derive(Clone, Copy, Debug)]
pub struct HeldTake {
    /// The tokens that the hold is to have: with `at_least`, as many as there are; for slots, with the id of their
    /// lease if the hold has none yet.
    pub take: Take,
    /// How long the hold lasts.
    pub ttl: Micros,
    /// As in [`Hold`].
    pub charge: bool,
}

/// The change that a call makes to a hold.
#[derive(Clone, Debug, Default)]
pub struct HoldChange {
    /// The hold before; `None`: there was none.
    pub before: Option<Hold>,
    /// The part of it that still counts: tokens, or live slots.
    pub had: f64,
    /// Tokens taken now.
    pub took: f64,
    /// Whether the call asks for any: a repeat takes nothing.
    pub asks: bool,
    /// The hold to write; `None`: nothing, or the hold is settled.
    pub after: Option<Hold>,
}

impl HoldChange {
    /// The number of tokens held after the call for `count`; without a hold, the number that would be. A call `passes`
    /// also if its denial is not `enforced`.
    pub fn held(&self, limit: &Limit, count: f64, passes: bool, enforced: bool) -> f64 {
        match &self.after {
            _ if !passes => self.had,
            // Slots that it had may have been freed since.
            Some(_) if enforced && limit.concurrency().is_some() => self.had + self.took,
            Some(after) if enforced => after.count,
            // A dry run admits everything, whatever the limit has.
            _ => count.max(self.had),
        }
    }
}

impl HeldTake {
    /// Decides on the missing tokens; `own`: the hold with the same id. A denial that is not `enforced` passes.
    pub fn decide(
        &self,
        limit: &Limit,
        state: &State,
        own: Option<&Hold>,
        now: Micros,
        enforced: bool,
    ) -> (Decision, HoldChange) {
        let before = suited(limit, own);
        let (decision, took) = self.on_state(limit, state, now, before);
        let took = if decision.ok { took } else { 0.0 };
        let mut change = HoldChange { took, ..self.denied(limit, state, own, now) };
        let passes = decision.ok || before.is_some() && !enforced;
        if !passes || limit.is_unlimited() {
            return (decision, change);
        }
        let wait = decision.retry_after.filter(|_| decision.ok);
        let expires_at = now.plus(wait.unwrap_or(Micros(0))).plus(self.ttl);
        let slots = change.had + took;
        change.after = Some(match limit.concurrency() {
            Some(_) if slots > 0.0 => {
                let until = before.map_or(expires_at, |before| before.expires_at.max(expires_at));
                let taken_at = before.map_or(now, |before| before.taken_at);
                Hold::of_slots(slots, self.lease(before), taken_at, until)
            }
            _ => {
                let after = decision.state.as_ref().unwrap_or(state);
                let taken = Took { tokens: took, wait };
                let after = Hold::of(before, limit, after, now, taken, expires_at, self.charge);
                // The sum may differ in its last bit.
                let is_all = took == (self.take.count - change.had).max(0.0);
                let least = if is_all { self.take.count } else { 0.0 };
                Hold { count: after.count.max(least), ..after }
            }
        });
        (decision, change)
    }

    /// The hold as a denial leaves it.
    pub fn denied(
        &self,
        limit: &Limit,
        state: &State,
        own: Option<&Hold>,
        now: Micros,
    ) -> HoldChange {
        let before = suited(limit, own);
        let had = match state {
            State::Leases(_) => slots(state, self.lease(before), now),
            _ => before.map_or(0.0, |before| before.count),
        };
        let asks = self.take.count > had || before.is_none();
        HoldChange { before: own.copied(), had, took: 0.0, asks, after: None }
    }

    /// The lease id of its slots.
    fn lease(&self, before: Option<&Hold>) -> Micros {
        let own = before.and_then(|before| before.lease);
        own.or(self.take.lease).unwrap_or(Micros(0))
    }

    /// Decides on the missing tokens on a state, and returns how many it takes.
    fn on_state(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        before: Option<&Hold>,
    ) -> (Decision, f64) {
        let lease = Lease { id: self.lease(before), expires_at: now.plus(self.ttl) };
        if let Some(decision) = limit.hold_slots(state, now, self.take.count, lease) {
            let own = |state: &State| slots(state, lease.id, now);
            let took = decision.state.as_ref().map_or(0.0, |after| own(after) - own(state));
            return (decision, took);
        }
        let had = before.map_or(0.0, |before| before.count);
        let missing = (self.take.count - had).max(0.0);
        if let Some(before) = before.filter(|_| missing == 0.0) {
            // A reservation keeps its start.
            let retry_after = before.wait(limit, state, now);
            let unchanged = Decision::unchanged(limit.level(state, now));
            return (Decision { retry_after, ..unchanged }, 0.0);
        }
        let take = |count| decide(limit, state, now, count, self.take.reserve);
        match self.take.at_least {
            // In a top-up, `at_least` is of the total.
            Some(at_least) => {
                let at_least = (at_least - had).max(0.0);
                AsMany { count: missing, at_least }.decide(limit.capacity(), take)
            }
            None => (take(missing), missing),
        }
    }
}

/// The hold, unless the limit's kind has changed: a hold of tokens means nothing to slots, nor a hold of slots to
/// tokens.
fn suited<'h>(limit: &Limit, own: Option<&'h Hold>) -> Option<&'h Hold> {
    own.filter(|own| own.lease.is_some() == limit.concurrency().is_some())
}

/// The number of live slots of a lease.
fn slots(state: &State, lease: Micros, now: Micros) -> f64 {
    match state {
        State::Leases(leases) => {
            let own = leases.leases.iter().filter(|own| own.id == lease && own.is_live(now));
            own.count() as f64
        }
        _ => 0.0,
    }
}

/// A hold to expire, with its limit: that of the name and key, or else of the hold's own config.
pub type Expiry<'l> = (&'l Limit, Hold);

/// Applies the holds that expire by `until` to a state. The holds are in the order of their expiry. Returns the state
/// after them, `None`: unchanged, and the number of expired holds.
pub fn after_expiries(state: &State, holds: &[Expiry], until: Micros) -> (Option<State>, usize) {
    let (mut after, mut applied) = (None, 0);
    for (limit, hold) in holds.iter().take_while(|(_, hold)| hold.expires_at <= until) {
        after = hold.expired(limit, after.as_ref().unwrap_or(state)).1.or(after);
        applied += 1;
    }
    (after, applied)
}

/// The wait from `now` until a denied call passes, if no other call takes, settles or extends: after one of these holds
/// has expired, or without that. The holds are in the order of their expiry. `decide` returns whether the call passes
/// on a state at an instant, or else its wait; `denied` is the wait on the present state.
pub fn retry_after(
    state: &State,
    now: Micros,
    holds: &[Expiry],
    denied: Option<Micros>,
    mut decide: impl FnMut(&State, Micros) -> (bool, Option<Micros>),
) -> Option<Micros> {
    let (mut state, mut retry_after) = (state.clone(), denied);
    for (limit, hold) in holds {
        let at = hold.expires_at;
        let wait = at.minus(now).max(Micros(0));
        if retry_after.is_some_and(|retry_after| retry_after <= wait) {
            break;
        }
        let Some(after) = hold.expired(limit, &state).1 else { continue };
        state = after;
        let (passes, later) = decide(&state, at);
        if passes {
            return Some(wait);
        }
        retry_after = later.map(|later| wait.plus(later));
    }
    retry_after
}
