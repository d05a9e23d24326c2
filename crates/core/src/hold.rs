//! Holds: tokens that are taken before it is known how many are used, with the right to give back the others.
//!
//! A hold is an ordinary take. It is settled once, with what was used, or it expires: then what can come back does, at
//! that instant, whichever call notices it, and when. So answers don't depend on earlier looks.

use crate::kinds::{Decision, credit, reserved_last, returnable};
use crate::{Limit, Micros, State};

/// After how many expiries a denied call is tried, to find when it passes.
pub const MAX_EXPIRIES: usize = 1_000;

/// How long a settlement counts after the expiry.
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
    /// Tokens that it has taken and not given back.
    pub count: f64,
    /// Those of `count` that can't come back: of windows that have ended, or after its expiry; slots, which come back
    /// with their lease.
    pub spent: f64,
    /// Tokens that came back when it expired.
    pub returned: f64,
    /// When those beyond `spent` were taken; of a reservation, when all are there.
    pub taken_at: Micros,
    /// When it expires.
    pub expires_at: Micros,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
    /// Of slots the id of their lease, which expires in the state of the limit.
    pub lease: Option<Micros>,
}

/// Tokens that a hold takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Took {
    /// How many.
    pub tokens: f64,
    /// The wait until they are there, of a reservation; `None`: they are.
    pub wait: Option<Micros>,
}

impl Took {
    /// Tokens that are there.
    pub fn at_once(tokens: f64) -> Took {
        Took { tokens, wait: None }
    }
}

impl Hold {
    /// The hold after a take at `now`, which left `after`; `before` is what the same hold had. It expires at
    /// `expires_at`, or when it would have, if that is later.
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
        // Those of windows before that of its start: others move up in these once an earlier reservation is given back, so
        // it isn't known which are left of them.
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
            // What is of an ended window returns nothing.
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

    /// The wait from `now` until the tokens of a reservation are there; `None`: they are.
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

    /// The first expiry of holds that give tokens back: of this one and others, of which the first is known.
    pub fn first_expiry(&self, others: Option<Micros>) -> Option<Micros> {
        match self.returns() {
            true => Some(others.map_or(self.expires_at, |first| first.min(self.expires_at))),
            false => others,
        }
    }

    /// The same hold, which gives nothing back any more.
    pub fn lost(self) -> Hold {
        Hold { spent: self.count, ..self }
    }

    /// The hold after its expiry, which gives back what there is room for at that instant; and the state after it,
    /// `None`: unchanged.
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

    /// The credit that settles it: the tokens, negative where more was used than it has; and when they were taken.
    /// `used` in tokens; `None`: all that it held.
    pub fn credit(&self, used: Option<f64>) -> (f64, Option<Micros>) {
        let used = used.unwrap_or(self.count + self.returned);
        match used > self.count {
            true => (self.count - used, None),
            false => (self.count - used.max(self.spent), Some(self.taken_at)),
        }
    }

    /// Settles it at `now`, with `used` as in [`credit`](Hold::credit): gives back what was not used, or takes what was
    /// used beyond it. `None` for a limit that can't be credited.
    pub fn settle(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        used: Option<f64>,
    ) -> Option<Decision> {
        let (count, taken_at) = self.credit(used);
        credit(limit, state, now, count, taken_at)
    }
}

/// Applies the expiry of a hold to a state; its limit is that of the name and key, or else of its own config.
pub type Expiry<'l> = (&'l Limit, Hold);

/// The state after those of these holds that expire by `until`, which are in the order of their expiry; and how many
/// these are. `None`: unchanged.
pub fn after_expiries(state: &State, holds: &[Expiry], until: Micros) -> (Option<State>, usize) {
    let (mut after, mut applied) = (None, 0);
    for (limit, hold) in holds.iter().take_while(|(_, hold)| hold.expires_at <= until) {
        after = hold.expired(limit, after.as_ref().unwrap_or(state)).1.or(after);
        applied += 1;
    }
    (after, applied)
}

/// The wait from `now` until a call passes that is denied then, if no other call takes, settles or extends: after one of these
/// holds has expired, which are in the order of their expiry, or without that. `decide` says of a state and an instant
/// whether it passes, and otherwise after which wait; `denied` is that on the state now.
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
