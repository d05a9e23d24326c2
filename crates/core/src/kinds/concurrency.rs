//! Concurrency: limits how many run at once, not how often.
//!
//! A lease takes a slot until it is released, or until it expires `ttl` after it was granted or last extended, so a
//! holder that dies loses its slot. The free slots are `slots` minus the leases that have not expired: a counting
//! semaphore with permits that expire.
//!
//! Each lease has an id. The caller passes [`Limit::acquire`] a random one, so that no id is used twice, even
//! after a reset or a step of the clock: with an id derived from state or time, a holder from before a reset could
//! release another holder's slot. [`decide`](super::decide()), which is pure, uses the instant.

use serde_json::{Value, json};

use super::limit_kind::{Formulas, LimitKind};
use super::{Decision, Kind, Leases, Level, Limit, State, decide};
use crate::Micros;
use crate::config::times::PERIOD;
use crate::fields::{FieldError, Fields};
use crate::numbers::SLOTS;

/// At most `slots` leases at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// 1 to 1,000.
    pub slots: u32,
    /// The time after which a lease expires, 1 to 1e15 milliseconds.
    pub ttl: Micros,
}

/// A taken slot. A lease of several slots is as many of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Identifies the lease among those of the key: a random number.
    pub id: Micros,
    /// The time when it expires.
    pub expires_at: Micros,
}

impl Lease {
    /// An id of random bits: greater than 0 and less than 2^52, which fits a float, also in milliseconds, and a
    /// timestamp.
    pub fn random_id(random: u64) -> Micros {
        Micros((random >> 12).max(1) as i64)
    }

    /// Whether it has not expired at `now`.
    pub fn is_live(&self, now: Micros) -> bool {
        self.expires_at > now
    }
}

impl Limit {
    /// The limit as a concurrency limit, the kind with leases; `None` for the others.
    pub fn concurrency(&self) -> Option<&Concurrency> {
        match self {
            Limit::Concurrency(limit) => Some(limit),
            _ => None,
        }
    }

    /// Takes `count` slots, a whole number, by a lease; [`Leases::given`] returns it. Its id is `id`, or the next one
    /// that no lease of the state has. A denial's `retry_after` is the time until enough leases expire, if none is
    /// released or extended before. From other kinds it takes tokens, as [`decide`](super::decide()) does.
    pub fn acquire(&self, state: &State, now: Micros, count: f64, id: Micros) -> Decision {
        match self.concurrency() {
            Some(limit) => limit.acquire(&limit.current(state, now), now, count, id),
            None => decide(self, state, now, count, false),
        }
    }

    /// Makes a lease hold `count` slots, a whole number, until it expires: takes missing slots, and extends and keeps
    /// all others. A denial changes nothing. `None` for other kinds.
    pub fn hold_slots(
        &self,
        state: &State,
        now: Micros,
        count: f64,
        lease: Lease,
    ) -> Option<Decision> {
        let limit = self.concurrency()?;
        Some(limit.hold(&limit.current(state, now), now, count, lease))
    }

    /// The state after a lease was extended, so that it expires `ttl` from `now` on; `None` if it has expired, or
    /// does not exist.
    pub fn extend(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        let expires_at = now.plus(self.concurrency()?.ttl);
        // Not earlier than before, if the clock stepped back or the ttl was shortened.
        let extended =
            |lease: Lease| Lease { expires_at: lease.expires_at.max(expires_at), ..lease };
        self.with_lease(state, now, id, |lease| Some(extended(lease)))
    }

    /// The state after a lease was released; `None` if it has expired, or does not exist.
    pub fn release(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        self.with_lease(state, now, id, |_| None)
    }

    /// The state in which a lease that has not expired is changed, or taken out.
    fn with_lease(
        &self,
        state: &State,
        now: Micros,
        id: Micros,
        change: impl Fn(Lease) -> Option<Lease>,
    ) -> Option<State> {
        let state = self.concurrency()?.current(state, now);
        let live = Concurrency::live(&state, now);
        live.iter().any(|lease| lease.id == id).then(|| {
            let changed = |lease: Lease| if lease.id == id { change(lease) } else { Some(lease) };
            let leases = live.into_iter().filter_map(changed).collect();
            State::Leases(Leases { leases, ts: state.ts.max(now) })
        })
    }
}

impl Kind {
    /// Whether its slots are taken by leases.
    pub fn has_leases(self) -> bool {
        self == Kind::Concurrency
    }
}

impl Concurrency {
    fn live(state: &Leases, now: Micros) -> Vec<Lease> {
        state.leases.iter().copied().filter(|lease| lease.is_live(now)).collect()
    }

    fn level_of(&self, live: &[Lease], now: Micros) -> Level {
        Level {
            remaining: (f64::from(self.slots) - live.len() as f64).max(0.0),
            reset_at: Some(live.iter().map(|lease| lease.expires_at).max().unwrap_or(now)),
        }
    }

    /// See [`Limit::acquire`].
    fn acquire(&self, state: &Leases, now: Micros, count: f64, id: Micros) -> Decision {
        let mut lease = Lease { id, expires_at: now.plus(self.ttl) };
        while state.leases.iter().any(|other| other.id == lease.id) {
            lease.id = Micros(lease.id.0.wrapping_add(1));
        }
        self.hold(state, now, count, lease)
    }

    /// See [`Limit::hold_slots`].
    fn hold(&self, state: &Leases, now: Micros, count: f64, lease: Lease) -> Decision {
        let mut live = Concurrency::live(state, now);
        let had = live.iter().filter(|other| other.id == lease.id).count();
        let more = (count - had as f64).max(0.0);
        let excess = live.len() as f64 + more - f64::from(self.slots);
        if more > 0.0 && excess > 0.0 {
            let level = self.level_of(&live, now);
            if more > f64::from(self.slots) {
                return Decision::denied(None, level);
            }
            live.sort_by_key(|lease| lease.expires_at);
            let last = live.get((excess as usize).saturating_sub(1));
            return Decision::denied(last.map(|lease| lease.expires_at.minus(now)), level);
        }
        let mut expires_at = lease.expires_at;
        for own in live.iter_mut().filter(|other| other.id == lease.id) {
            expires_at = own.expires_at.max(expires_at);
            own.expires_at = expires_at;
        }
        live.resize(live.len() + more as usize, Lease { expires_at, ..lease });
        let (ts, level) = (state.ts.max(now), self.level_of(&live, now));
        let is_changed = had > 0 || more > 0.0;
        let after = is_changed.then_some(State::Leases(Leases { leases: live, ts }));
        Decision::admitted(level, after)
    }
}

impl LimitKind for Concurrency {
    const NAME: &'static str = "concurrency";
    const WITH_ARTICLE: &'static str = "a concurrency limit";
    const FIELDS: &'static [&'static str] = &["slots", "ttl"];

    type State = Leases;

    fn read(fields: &Fields) -> Result<Concurrency, FieldError> {
        let slots = fields.required("slots", &SLOTS)?;
        Ok(Concurrency { slots, ttl: fields.required("ttl", &PERIOD)? })
    }

    fn resolved(&self, _: Micros) -> Value {
        json!({ "slots": self.slots, "ttl": self.ttl.to_json() })
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (self.slots.into(), None)
    }

    fn time_to_full(&self) -> Micros {
        self.ttl
    }

    fn initial_state(&self, now: Micros, _: Micros) -> Leases {
        Leases { leases: Vec::new(), ts: now }
    }

    /// Only expired leases, and a time not ahead of the clock, because the state keeps that time.
    fn is_idle(&self, state: &Leases, now: Micros, _: Micros) -> bool {
        state.ts <= now && !state.leases.iter().any(|lease| lease.is_live(now))
    }

    /// The time when the last lease has expired.
    fn unused_at(&self, state: &Leases) -> Option<Micros> {
        let last = state.leases.iter().map(|lease| lease.expires_at).max();
        Some(last.unwrap_or(state.ts).max(state.ts))
    }
}

impl Formulas for Concurrency {
    /// Always: a lease has a holder.
    #[inline]
    fn counts(&self, _: &Leases, _: Micros) -> bool {
        true
    }

    /// The lease's id is the instant: pure, for leases that are never released.
    fn take(&self, state: &Leases, now: Micros, count: f64, _: bool) -> Decision {
        self.acquire(state, now, count, now)
    }

    fn level(&self, state: &Leases, now: Micros) -> Level {
        self.level_of(&Concurrency::live(state, now), now)
    }
}
