//! Concurrency: limits how many run at once, not how often.
//!
//! A lease takes a slot until it is released, or until it expires `ttl` after it was granted or last extended, so a
//! holder that dies loses its slot. The free slots are `slots` minus the leases that have not expired: a counting
//! semaphore whose permits expire.
//!
//! Each lease has an id. The caller passes [`Concurrency::acquire`] a random one, so that no id is used twice, even
//! after a reset or a step of the clock: if it were derived from state or time, a holder from before a reset could
//! release another's slot. [`decide`](super::decide()), which is pure, uses the instant.

use super::{Decision, Leases, Level, State};
use crate::Micros;

/// At most `slots` leases at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// 1 to 1,000.
    pub slots: u32,
    /// The time after which a lease expires, 1 to 1e15 milliseconds.
    pub ttl: Micros,
}

/// A slot that is taken. A lease of several slots is as many of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Identifies the lease among those of the key: a number, stored and shown as a time.
    pub id: Micros,
    /// When it expires.
    pub expires_at: Micros,
}

impl Lease {
    /// An id of random bits: greater than 0 and less than 2^52, which a float holds, also in milliseconds, and a
    /// timestamp.
    pub fn random_id(random: u64) -> Micros {
        Micros((random >> 12).max(1) as i64)
    }

    /// Whether it holds its slot at `now`.
    pub fn is_live(&self, now: Micros) -> bool {
        self.expires_at > now
    }
}

impl Concurrency {
    pub(super) fn initial_state(now: Micros) -> Leases {
        Leases { leases: Vec::new(), ts: now }
    }

    fn live(state: &Leases, now: Micros) -> Vec<Lease> {
        state.leases.iter().copied().filter(|lease| lease.is_live(now)).collect()
    }

    /// No lease that has not expired, and a time that is not ahead of the clock, since the state keeps that.
    pub(super) fn is_idle(state: &Leases, now: Micros) -> bool {
        state.ts <= now && !state.leases.iter().any(|lease| lease.is_live(now))
    }

    /// When the last lease has expired.
    pub(super) fn unused_at(state: &Leases) -> Micros {
        let last = state.leases.iter().map(|lease| lease.expires_at).max();
        last.unwrap_or(state.ts).max(state.ts)
    }

    fn level_of(&self, live: &[Lease], now: Micros) -> Level {
        Level {
            remaining: (f64::from(self.slots) - live.len() as f64).max(0.0),
            reset_at: Some(live.iter().map(|lease| lease.expires_at).max().unwrap_or(now)),
        }
    }

    pub(super) fn level(&self, state: &Leases, now: Micros) -> Level {
        self.level_of(&Concurrency::live(state, now), now)
    }

    /// [`acquire`](Concurrency::acquire) with the instant as the id: pure, for what is never released.
    pub(super) fn decide(&self, state: &Leases, now: Micros, count: f64) -> Decision {
        self.acquire(state, now, count, now)
    }

    /// Grants a lease of `count` slots, a whole number; [`Leases::given`] returns it. Its id is `id`, or the next one
    /// that no lease of the state has. A denial's `retry_after` is the time until enough leases expire, if none is
    /// released or extended before.
    pub fn acquire(&self, state: &Leases, now: Micros, count: f64, id: Micros) -> Decision {
        let mut live = Concurrency::live(state, now);
        let level = self.level_of(&live, now);
        let taken = live.len() as f64 + count;
        if count == 0.0 || taken <= f64::from(self.slots) {
            let mut lease = Lease { id, expires_at: now.plus(self.ttl) };
            while state.leases.iter().any(|other| other.id == lease.id) {
                lease.id = Micros(lease.id.0.wrapping_add(1));
            }
            live.resize(taken as usize, lease);
            let level = self.level_of(&live, now);
            let after = (count > 0.0)
                .then(|| State::Leases(Leases { leases: live, ts: state.ts.max(now) }));
            return Decision { ok: true, retry_after: None, level, state: after };
        }
        if count > f64::from(self.slots) {
            return Decision::denied(None, level);
        }
        live.sort_by_key(|lease| lease.expires_at);
        let excess = (taken - f64::from(self.slots)) as usize;
        let expires = live.get(excess.saturating_sub(1)).map(|lease| lease.expires_at.minus(now));
        Decision::denied(expires, level)
    }

    /// The state after a lease was released; `None` where it has expired, or there is none of this id.
    pub fn release(&self, state: &Leases, now: Micros, id: Micros) -> Option<Leases> {
        let mut leases = Concurrency::live(state, now);
        let live = leases.len();
        leases.retain(|lease| lease.id != id);
        (leases.len() < live).then(|| Leases { leases, ts: state.ts.max(now) })
    }

    /// The state after a lease was extended, so that it expires `ttl` from `now` on; `None` where it has expired,
    /// or there is none of this id.
    pub fn extend(&self, state: &Leases, now: Micros, id: Micros) -> Option<Leases> {
        let mut live = Concurrency::live(state, now);
        let mut found = false;
        for lease in live.iter_mut().filter(|lease| lease.id == id) {
            // Not sooner than before, where the clock stepped back or the ttl was shortened.
            lease.expires_at = lease.expires_at.max(now.plus(self.ttl));
            found = true;
        }
        found.then(|| Leases { leases: live, ts: state.ts.max(now) })
    }
}
