//! Computes the right answers: the algorithms of `ratelimit_core` on the state that a session should see. A key's
//! committed state has its takes in the order of their commits; a session sees it with its own takes since.
//!
//! The judge has an oracle of its own (`crates/judge/src/judge/oracle.rs`), for histories with unknown order and
//! instants. Here both are known: a change leads to one state, which is compared with the rows.

pub mod holds;

use std::rc::Rc;

use ratelimit_core::config::Definition;
use ratelimit_core::kinds::{self, Leases, Tokens};
use ratelimit_core::{Decision, Micros, State, decide};
use ratelimit_limiter::ports::{Row, TupleId};
use ratelimit_limiter::stores;
use ratelimit_limiter::target::Target;

use crate::content::{Content, Total};
use crate::postgres::{Version, Xid};
use crate::run::Run;
use crate::statement::{Answered, KEYS, NAME};
use holds::Wanted;

/// The allowed difference of two counts of tokens: shards divide theirs.
const TOLERANCE: f64 = 1e-6;

/// A change by a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Took tokens: their number, whether it may go into debt, and the answered remaining tokens in millionths.
    Take(u8, bool, i64),
    /// Gave tokens back.
    Credit(u8),
    /// Reset the key.
    Reset,
    /// Took a slot, by this lease.
    Acquire(i64),
    /// Extended a lease up to an instant.
    Extend(i64, i64),
    /// Released a lease.
    Release(i64),
    /// Held tokens: those wanted, and the answered remaining tokens in millionths.
    Hold(Wanted, i64),
    /// Settled a hold: its id, and the tokens used; `None`: all.
    Settle(Vec<u8>, Option<u8>),
    /// Deleted a hold that had expired long ago.
    Prune(Vec<u8>),
}

/// A change of a key by a transaction in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Applied {
    /// The transaction or subtransaction.
    pub xid: Xid,
    /// The key.
    pub key: u8,
    /// The number of the definition that the call used.
    pub limit: u8,
    /// The instant of the decision.
    pub now: i64,
    /// The change.
    pub change: Change,
}

/// Tokens in millionths.
pub fn millionths(tokens: f64) -> i64 {
    (tokens * 1e6).round() as i64
}

/// The state of a key, or its initial one.
pub fn state_of(definition: &Definition, key: u8, state: Option<&Total>, now: Micros) -> State {
    let phase = ratelimit_core::phase(NAME, KEYS[usize::from(key)]);
    match state {
        Some(Total(state)) if definition.limit.accepts(state.shape()) => state.clone(),
        _ => definition.limit.initial_state(now, phase),
    }
}

/// Decides a take, or the acquisition of a lease.
fn decide_change(definition: &Definition, state: &State, now: Micros, change: &Change) -> Decision {
    match *change {
        Change::Acquire(id) => definition.limit.acquire(state, now, 1.0, Micros(id)),
        Change::Take(count, reserve, _) => {
            decide(&definition.limit, state, now, count.into(), reserve)
        }
        _ => decide(&definition.limit, state, now, 1.0, false),
    }
}

/// Whether a state explains the answer to a request.
pub fn explains(
    definition: &Definition,
    state: Option<&Total>,
    answered: &Answered,
    reserve: bool,
) -> bool {
    let state = state_of(definition, answered.key, state, answered.now);
    let change = match answered.lease {
        Some(id) => Change::Acquire(id),
        None => Change::Take(answered.count, reserve, 0),
    };
    let Decision { ok, level, .. } = decide_change(definition, &state, answered.now, &change);
    ok == answered.ok && (level.remaining - answered.remaining).abs() < TOLERANCE
}

/// Whether a state denies a request.
pub fn denies(
    definition: &Definition,
    state: Option<&Total>,
    answered: &Answered,
    reserve: bool,
) -> bool {
    let state = state_of(definition, answered.key, state, answered.now);
    !decide(&definition.limit, &state, answered.now, answered.count.into(), reserve).ok
}

/// The state after a change, as it was answered; `None`: the state before doesn't explain it.
pub fn follows(definition: &Definition, state: Option<&Total>, effect: &Applied) -> Option<Total> {
    let now = Micros(effect.now);
    let before = state_of(definition, effect.key, state, now);
    match (&effect.change, &definition.limit, &before) {
        (change @ (Change::Take(..) | Change::Acquire(_)), ..) => {
            let decision = decide_change(definition, &before, now, change);
            let same = match change {
                Change::Take(.., left) => millionths(decision.level.remaining) == *left,
                _ => true,
            };
            (decision.ok && same).then(|| Total(decision.state.unwrap_or(before)))
        }
        (&Change::Credit(count), ..) => credited(definition, &before, now, count.into()),
        (&Change::Extend(id, until), _, State::Leases(before)) => {
            let mut before = before.clone();
            let lease = before.leases.iter_mut().find(|lease| lease.id.0 == id)?;
            lease.expires_at = Micros(until);
            Some(Total(State::Leases(before)))
        }
        (&Change::Release(id), _, State::Leases(before)) => {
            let Leases { mut leases, ts } = before.clone();
            let count = leases.len();
            leases.retain(|lease| lease.id.0 != id);
            (leases.len() < count).then_some(Total(State::Leases(Leases { leases, ts })))
        }
        _ => None,
    }
}

/// The total of shards after a change. Takes are never refused here, because others may take at the same time.
pub fn sums(definition: &Definition, state: Option<&Total>, effect: &Applied) -> Option<Total> {
    let now = Micros(effect.now);
    let before = state_of(definition, effect.key, state, now);
    match effect.change {
        Change::Take(count, ..) => credited(definition, &before, now, -f64::from(count)),
        _ => follows(definition, state, effect),
    }
}

fn credited(definition: &Definition, before: &State, now: Micros, count: f64) -> Option<Total> {
    let credited = kinds::credit(&definition.limit, before, now, count, None)?;
    Some(Total(credited.state.unwrap_or_else(|| before.clone())))
}

/// The tokens left at an instant, or the free slots.
pub fn left(definition: &Definition, key: u8, state: Option<&Total>, now: Micros) -> f64 {
    let state = state_of(definition, key, state, now);
    decide(&definition.limit, &state, now, 0.0, false).level.remaining
}

/// The tokens left in committed rows, as a call reads them; infinite if it can't.
pub fn left_in_rows(
    definition: &Definition,
    key: u8,
    rows: &[(i32, &Version)],
    now: Micros,
) -> f64 {
    let target =
        Target::defined::<Run>(NAME, KEYS[usize::from(key)], Rc::new(definition.clone()), None);
    let row = |(shard, version): &(i32, &Version)| match version.content.clone() {
        Content::Limit(version) => Some((*shard, Row { version, tuple: TupleId::NONE })),
        Content::Hold(_) => None,
    };
    let found = stores::interpret(&target, rows.iter().filter_map(row).collect(), now);
    found.map_or(f64::INFINITY, |found| found.shards.level(now).remaining)
}

/// Adds up the states of shards.
pub fn total(states: impl Iterator<Item = State>) -> Option<Total> {
    states
        .reduce(|sum, state| match (sum, state) {
            (State::Tokens(sum), State::Tokens(state)) => {
                let (value, ts) = (sum.value + state.value, sum.ts.max(state.ts));
                State::Tokens(Tokens { value, ts, added: None })
            }
            (sum, _) => sum,
        })
        .map(Total)
}

/// The time when the lease with this id expires.
pub fn expiry(state: Option<&Total>, id: i64) -> Option<Micros> {
    let Some(Total(State::Leases(leases))) = state else { return None };
    leases.leases.iter().find(|lease| lease.id.0 == id).map(|lease| lease.expires_at)
}

/// Whether a lease of this id is live.
pub fn has_lease(state: Option<&Total>, id: i64, now: Micros) -> bool {
    expiry(state, id).is_some_and(|expires_at| expires_at > now)
}
