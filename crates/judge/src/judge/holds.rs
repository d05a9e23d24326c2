//! Holds: their tokens, and their expiries.

use std::collections::HashSet;
use std::rc::Rc;

use ratelimit_core::hold::{Hold, after_expiries, retry_after};
use ratelimit_core::{Limit, Micros, State, decide};

use crate::history::{Asked, History, Invocation, Storage};

/// The holds of a key, in the order of their numbers.
pub(super) type Known = Rc<Vec<(u64, Hold)>>;

/// Whether a call is about a hold.
pub(super) fn is_of_hold(call: &Invocation) -> bool {
    matches!(call.asked, Asked::Hold { .. } | Asked::Settle { .. })
}

/// Checks that holds can be judged here: in a row, and with an expiry in the answer; and that none is settled that was
/// never taken.
///
/// # Errors
/// The index of a call, and the reason.
pub(super) fn judge(
    history: &History,
    storage: Storage,
    calls: &[u32],
) -> Result<(), (u32, String)> {
    let call = |n: u32| &history.calls[n as usize];
    let mut taken = HashSet::new();
    for &n in calls {
        if is_of_hold(call(n)) && storage != Storage::Row {
            return Err((n, format!("only a row has holds: {:?}", call(n))));
        }
        if let Asked::Hold { hold, .. } = call(n).asked
            && call(n).reply.ok
        {
            taken.insert(hold);
        }
    }
    let is_unknown = |&&n: &&u32| {
        matches!(call(n).asked, Asked::Settle { hold, .. } if !taken.contains(&hold))
            && call(n).reply.ok
    };
    match calls.iter().find(is_unknown) {
        Some(&n) => Err((n, format!("a hold that was not taken is settled: {:?}", call(n)))),
        None => Ok(()),
    }
}

/// The holds that give tokens back, in the order of their expiry.
fn returning(known: &[(u64, Hold)]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = known.iter().map(|(_, hold)| *hold).filter(Hold::returns).collect();
    holds.sort_by_key(|hold| hold.expires_at);
    holds
}

/// The instants up to `to` at which a hold gives tokens back.
pub(super) fn expiries(known: &[(u64, Hold)], to: i64) -> Vec<i64> {
    let holds = returning(known).into_iter().map(|hold| hold.expires_at.0);
    holds.filter(|&at| at <= to).collect()
}

/// The state and the holds after the expiries by `now`.
pub(super) fn expired(limit: &Limit, state: State, known: &Known, now: Micros) -> (State, Known) {
    if !known.iter().any(|(_, hold)| hold.returns() && hold.expires_at <= now) {
        return (state, known.clone());
    }
    let mut holds = known.to_vec();
    let mut order: Vec<usize> = (0..holds.len()).collect();
    order.sort_by_key(|&n| holds[n].1.expires_at);
    let mut state = state;
    for n in order {
        let hold = &mut holds[n].1;
        if hold.returns() && hold.expires_at <= now {
            let (after, changed) = hold.expired(limit, &state);
            *hold = after;
            state = changed.unwrap_or(state);
        }
    }
    (state, Rc::new(holds))
}

/// The time when a denied call passes, if no other call takes or settles.
pub(super) fn retry_at(
    limit: &Limit,
    (state, known): (&State, &Known),
    now: Micros,
    (count, reserve): (f64, bool),
    denied: Option<Micros>,
) -> Option<i64> {
    let holds = returning(known);
    let expiries: Vec<_> = holds.into_iter().map(|hold| (limit, hold)).collect();
    let full = || after_expiries(state, &[], now).0.unwrap_or(limit.initial_state(now, Micros(0)));
    if denied.is_none() && !decide(limit, &full(), now, count, reserve).ok {
        return None;
    }
    let passes = |state: &State, at: Micros| {
        let decision = decide(limit, state, at, count, reserve);
        (decision.ok, decision.retry_after)
    };
    retry_after(state, now, &expiries, denied, passes).map(|wait| now.plus(wait).0)
}

/// The holds after one was written, or deleted (`None`).
pub(super) fn put(known: &Known, number: u64, hold: Option<Hold>) -> Known {
    let mut holds = known.to_vec();
    holds.retain(|(other, _)| *other != number);
    holds.extend(hold.map(|hold| (number, hold)));
    holds.sort_by_key(|(number, _)| *number);
    Rc::new(holds)
}

/// A hold by its number.
pub(super) fn of(known: &Known, number: u64) -> Option<&Hold> {
    known.iter().find(|(other, _)| *other == number).map(|(_, hold)| hold)
}
