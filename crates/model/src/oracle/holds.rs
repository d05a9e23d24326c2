//! Holds by the contract: the effects of a take, of a settlement, and of an expiry, as if it happened at its instant.

use ratelimit_core::config::Definition;
use ratelimit_core::hold::Hold;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Decision, Micros, State, decide, kinds};

use super::state_of;
use crate::content::{HoldOf, Total};
use crate::statement::Terms;

/// The time after its expiry during which a hold can be settled.
const DAY: i64 = 86_400_000_000;

/// A hold wanted by a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// The hold's id.
    pub id: Vec<u8>,
    /// The tokens.
    pub count: u8,
    /// Its terms.
    pub terms: Terms,
}

/// The books of a key: its state and its holds.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// The state; `None`: full.
    pub state: Option<Total>,
    /// The holds.
    pub holds: Vec<HoldOf>,
}

/// The outcome of a call on a hold.
pub struct Made {
    /// The state after it.
    pub state: State,
    /// The hold after it.
    pub hold: Hold,
    /// The tokens left.
    pub remaining: f64,
}

/// Whether a hold gives tokens back when it expires.
pub fn returns(hold: &Hold) -> bool {
    !hold.charge && hold.count > hold.spent
}

impl Book {
    /// The hold with this id.
    pub fn of_id(&self, id: &[u8]) -> Option<&Hold> {
        self.holds.iter().find(|of| of.id == id).map(|of| &of.hold)
    }

    /// Gives back the tokens of holds that have expired by `now`, each at its own instant.
    pub fn expire(&mut self, definition: &Definition, key: u8, now: Micros) {
        let mut due: Vec<usize> = (0..self.holds.len())
            .filter(|&n| returns(&self.holds[n].hold) && self.holds[n].hold.expires_at <= now)
            .collect();
        due.sort_by_key(|&n| (self.holds[n].hold.expires_at, self.holds[n].id.clone()));
        for n in due {
            let hold = self.holds[n].hold;
            let at = hold.expires_at;
            let before = state_of(definition, key, self.state.as_ref(), at);
            let more = hold.count - hold.spent;
            let credited = kinds::credit(&definition.limit, &before, at, more, Some(hold.taken_at));
            let mut came = 0.0;
            if let Some(Decision { level, state: Some(after), .. }) = credited {
                let had = definition.limit.level(&before, at).remaining;
                came = (level.remaining - had).clamp(0.0, more);
                self.state = Some(Total(after));
            }
            let left = hold.count - came;
            self.holds[n].hold = Hold { count: left, spent: left, returned: came, ..hold };
        }
    }

    /// The same after the expiries by `now`.
    pub fn at(&self, definition: &Definition, key: u8, now: Micros) -> Book {
        let mut book = self.clone();
        book.expire(definition, key, now);
        book
    }

    /// Holds the wanted tokens, after all expiries; `None`: denied.
    pub fn hold(
        &self,
        definition: &Definition,
        key: u8,
        now: Micros,
        wanted: &Wanted,
    ) -> Option<Made> {
        let (limit, terms) = (&definition.limit, &wanted.terms);
        let before = state_of(definition, key, self.state.as_ref(), now);
        let until = now.plus(Micros(i64::from(terms.ttl) * 1_000_000));
        let known = self.of_id(&wanted.id);
        if limit.concurrency().is_some() {
            let own = known.and_then(|hold| hold.lease).unwrap_or_else(|| lease_of(&wanted.id));
            return slots(definition, &before, now, (own, known), (wanted.count, until));
        }
        let had = known.map_or(0.0, |hold| hold.count);
        let more = (f64::from(wanted.count) - had).max(0.0);
        let fresh = Hold {
            count: 0.0,
            spent: 0.0,
            returned: 0.0,
            taken_at: now,
            expires_at: until,
            charge: terms.charge,
            lease: None,
        };
        let mut hold = *known.unwrap_or(&fresh);
        hold.expires_at = hold.expires_at.max(until);
        hold.returned = 0.0;
        if known.is_some() && more == 0.0 {
            let remaining = limit.level(&before, now).remaining;
            return Some(Made { state: before, hold, remaining });
        }
        let mut took = more;
        let mut decision = decide(limit, &before, now, more, false);
        if let (false, Some(least)) = (decision.ok, terms.at_least) {
            let whole = (limit.level(&before, now).remaining + 1e-9).floor();
            if whole >= (f64::from(least) - had).max(1.0) {
                took = whole;
                decision = decide(limit, &before, now, whole, false);
            }
        }
        if !decision.ok {
            return None;
        }
        let state = decision.state.unwrap_or_else(|| before.clone());
        let since = state.ts().max(now);
        // Tokens taken in a window that has ended can't come back.
        let is_window = matches!(&state, State::Tokens(tokens) if tokens.added.is_some());
        if known.is_some() && is_window && state.ts() > hold.taken_at {
            hold.spent = had;
        }
        if known.is_none() || hold.spent == had {
            hold.taken_at = since;
        }
        hold.count = had + took;
        Some(Made { state, hold, remaining: decision.level.remaining })
    }

    /// Settles a hold, after all expiries: returns the state, and the tokens left; `None`: there is no such hold.
    pub fn settle(
        &self,
        definition: &Definition,
        key: u8,
        now: Micros,
        (id, used): (&[u8], Option<u8>),
    ) -> Option<(State, f64)> {
        let hold = self.of_id(id)?;
        let limit = &definition.limit;
        let before = state_of(definition, key, self.state.as_ref(), now);
        if let State::Leases(leases) = &before {
            let mut leases = leases.clone();
            leases.leases.retain(|lease| Some(lease.id) != hold.lease);
            let state = State::Leases(leases);
            let remaining = limit.level(&state, now).remaining;
            return Some((state, remaining));
        }
        let used = used.map_or(hold.count + hold.returned, f64::from);
        let credited = if used > hold.count {
            kinds::credit(limit, &before, now, hold.count - used, None)
        } else {
            let back = hold.count - used.max(hold.spent);
            kinds::credit(limit, &before, now, back, Some(hold.taken_at))
        };
        let Decision { level, state, .. } = credited?;
        Some((state.unwrap_or(before), level.remaining))
    }

    /// Drops a pruned hold; false if it should have stayed.
    pub fn prune(&mut self, id: &[u8], now: Micros) -> bool {
        let is_old = |of: &HoldOf| {
            of.id == id && !returns(&of.hold) && of.hold.expires_at.plus(Micros(DAY)) <= now
        };
        let count = self.holds.len();
        self.holds.retain(|of| !is_old(of));
        self.holds.len() < count
    }

    /// Writes a hold.
    pub fn put(&mut self, id: &[u8], hold: Hold) {
        self.holds.retain(|of| of.id != id);
        self.holds.push(HoldOf { id: id.to_vec(), hold });
        self.holds.sort_by(|one, other| one.id.cmp(&other.id));
    }
}

/// The id of a hold's leases in the books.
fn lease_of(id: &[u8]) -> Micros {
    Micros(id.iter().fold(-1, |sum, byte| 31 * sum % 1_000_003 - i64::from(*byte)))
}

/// Holds slots by leases with an id of the hold's own, or extends these.
fn slots(
    definition: &Definition,
    before: &State,
    now: Micros,
    (id, known): (Micros, Option<&Hold>),
    (count, until): (u8, Micros),
) -> Option<Made> {
    let State::Leases(Leases { leases, ts }) = before else { return None };
    let lives = |lease: &&Lease| lease.expires_at > now;
    let others: Vec<Lease> =
        leases.iter().filter(lives).filter(|lease| lease.id != id).copied().collect();
    let had = leases.iter().filter(lives).count() - others.len();
    let wanted = usize::from(count).max(had);
    let capacity = definition.limit.capacity() as usize;
    if wanted > had && others.len() + wanted > capacity {
        return None;
    }
    let expires_at = known.map_or(until, |hold| hold.expires_at.max(until));
    let remaining = (capacity - others.len() - wanted) as f64;
    let own = std::iter::repeat_n(Lease { id, expires_at }, wanted);
    let leases = others.into_iter().chain(own).collect();
    let state = State::Leases(Leases { leases, ts: now.max(*ts) });
    let taken_at = known.map_or(now, |hold| hold.taken_at);
    let hold = Hold::of_slots(wanted as f64, id, taken_at, expires_at);
    Some(Made { state, hold, remaining })
}
