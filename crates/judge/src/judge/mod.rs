//! The rules. Keys are judged one by one, since no answer depends on another key; each request of `rl_limit_all` is
//! judged as a call.
//!
//! - **Rows** (`items`, `order`): a transaction has the row from some instant of its first take to some instant of its
//!   end. A denial or a check sees the latest committed state, or the transaction's own, at some instant of the call.
//! - **Memory** (`items`, `order`): each call takes effect at some instant between call and answer.
//! - **Shards** (`shards`): the tokens admitted in any span, committed or in progress, are at most the capacity and the
//!   inflow; denials, and the `remaining` of denials and checks, are within the bounds of the tokens that can be left.
//!   If the rows after each take are known (`rows`), they have lost the tokens that it took.
//! - **Leases**: as a row or memory; and by their ids (`leases`): none is given twice, and no more slots are surely
//!   taken at once than there are.
//!
//! - **Holds** (`holds`): of limits in a row. A hold is a take, and a settlement a credit; what has expired has come
//!   back at its own instant, whichever calls came since. The rows of holds follow those of their limits.
//!
//! A call without an answer may have been made, or not: an order may leave it out.
//!
//! A take is explained where `ratelimit_core::decide` gives its answer on the state that the order leaves, at the
//! decision's instant, or at some instant of the call where that isn't known (`oracle`).
//!
//! The rules of rows, memory and leases refuse every history without such an order, but for this: unknown instants are
//! taken to be independent, and so are the keys and limits of one transaction. The rule of shards is weaker: it refuses
//! no right history, and accepts some that no order explains. It accepts a denial, whatever is left, where the
//! transaction has rows of the limit and `retry_at` is about the instant of the call, or not recorded.
//!
//! Not judged: `reset_at`; definitions that change; keys of limits in memory that make room for others; blocks.

mod holds;
mod items;
mod leases;
mod oracle;
mod order;
mod rows;
mod shards;

use std::fmt;

use ratelimit_core::{Limit, config, phase};

use crate::history::{History, Invocation, Storage};
use oracle::Oracle;
use order::{NoOrder, Search};

/// The number of calls judged, by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// On limits in a row, without leases.
    pub rows: usize,
    /// On limits in memory, without leases.
    pub memory: usize,
    /// On limits with shards.
    pub shards: usize,
    /// The number of these that took tokens and were judged by the changed rows.
    pub by_rows: usize,
    /// On concurrency limits.
    pub leases: usize,
    /// The number of calls on rows that hold or settle.
    pub holds: usize,
    /// The number of all that were denied.
    pub denied: usize,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Judgement { rows, memory, shards, by_rows, leases, holds, denied } = self;
        write!(
            f,
            "judged {rows} calls on rows ({holds} of holds), {memory} in memory, {shards} on shards ({by_rows} takes by their rows), \
             {leases} of leases; {denied} denied"
        )
    }
}

/// A history that can't be right, or can't be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit's name and its key.
    pub of: (String, String),
    /// The index of the unexplained call.
    pub call: usize,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, key) = &self.of;
        write!(f, "limit {name:?}, key {key:?}, call {}: {}", self.call, self.why)
    }
}

impl std::error::Error for Refusal {}

/// Judges a history.
///
/// # Errors
/// No order explains the history, or it can't be judged.
pub fn judge(history: &History) -> Result<Judgement, Refusal> {
    let mut by_key: Vec<Vec<u32>> = vec![Vec::new(); history.keys.len()];
    for (n, call) in history.calls.iter().enumerate() {
        match by_key.get_mut(call.key as usize) {
            Some(calls) => calls.push(n as u32),
            None => return Err(refusal(history, n as u32, "there is no such key".into())),
        }
    }
    let mut judgement = Judgement::default();
    for (key, mut calls) in by_key.into_iter().enumerate().filter(|(_, calls)| !calls.is_empty()) {
        calls.sort_by_key(|&n| (history.calls[n as usize].invoked, n));
        let judged = judge_key(history, key, &calls, &mut judgement);
        judged.map_err(|(n, why)| refusal(history, n, why))?;
        judgement.denied += calls.iter().filter(|&&n| !history.calls[n as usize].reply.ok).count();
    }
    Ok(judgement)
}

fn refusal(history: &History, n: u32, why: String) -> Refusal {
    let key = history.calls.get(n as usize).and_then(|call| history.keys.get(call.key as usize));
    let of = key.map(|key| (key.name.clone(), key.key.clone())).unwrap_or_default();
    Refusal { of, call: n as usize, why }
}

/// Judges the calls of one key.
///
/// # Errors
/// The index of a call, and the reason.
fn judge_key(
    history: &History,
    key: usize,
    calls: &[u32],
    judgement: &mut Judgement,
) -> Result<(), (u32, String)> {
    let limited = &history.keys[key];
    let first = calls.first().copied().unwrap_or_default();
    holds::judge(history, limited.storage, calls)?;
    let limit =
        config::definition(&limited.config).map_err(|error| (first, error.to_string()))?.limit;
    for &n in calls {
        in_time(history, n)?;
    }
    has_expiring_instants(history, &limit, calls)?;
    let phase = phase(limited.name.as_bytes(), limited.key.as_bytes());
    if limited.storage == Storage::Shards {
        judgement.shards += calls.len();
        shards::judge(history, &limit, phase, calls)?;
        judgement.by_rows += rows::judge(history, &limit, calls)?;
        return Ok(());
    }
    if let Some(limit) = limit.concurrency() {
        if let Some(&n) = calls.iter().find(|&&n| history.calls[n as usize].unanswered) {
            return Err((n, "a lease whose id is not known can't be judged".to_owned()));
        }
        leases::judge(history, limit.slots, limited.storage, calls)?;
        judgement.leases += calls.len();
    } else if limited.storage == Storage::Row {
        judgement.rows += calls.len();
        let is_of_hold = |&&n: &&u32| holds::is_of_hold(&history.calls[n as usize]);
        judgement.holds += calls.iter().filter(is_of_hold).count();
    } else {
        judgement.memory += calls.len();
    }
    let items = items::items(history, limited.storage, calls)?;
    let search = Search::new(history, Oracle::new(limit, phase), items);
    search.run().map_err(|NoOrder { call, why }| (call, why))
}

/// Checks that a call was decided between call and answer, and that its instants are recorded.
fn in_time(history: &History, n: u32) -> Result<(), (u32, String)> {
    let call = &history.calls[n as usize];
    let wrong = |why: &str| Err((n, format!("{why}: {call:?}")));
    if call.invoked > call.answered {
        return wrong("it was answered before it was asked");
    }
    match (history.skew, call.now) {
        (None, None) => wrong("the clock was set, and the call doesn't say to what"),
        (Some(skew), Some(now)) => {
            let (from, to) =
                (call.invoked.saturating_sub(skew), call.answered.saturating_add(skew));
            if (from..=to).contains(&now) {
                Ok(())
            } else {
                wrong("it was not decided within the call")
            }
        }
        _ => Ok(()),
    }
}

/// Checks that the instants are known at which anything can expire within the history.
fn has_expiring_instants(
    history: &History,
    limit: &Limit,
    calls: &[u32],
) -> Result<(), (u32, String)> {
    // Only these kinds remember when each token was taken.
    if !limit.whole_counts() {
        return Ok(());
    }
    let lasts = limit.time_to_full().0;
    let call = |n: u32| &history.calls[n as usize];
    let from = calls.iter().map(|&n| call(n).invoked).min().unwrap_or(0);
    let to = calls.iter().map(|&n| call(n).answered).max().unwrap_or(0);
    let without = |&&n: &&u32| call(n).now.is_none() && call(n).reply.ok;
    match calls.iter().find(without) {
        Some(&n) if to.saturating_sub(from) >= lasts => {
            Err((n, "it can't be judged without the instant of the decision".to_owned()))
        }
        _ => Ok(()),
    }
}

/// The span in which a call was decided.
fn span(history: &History, call: &Invocation) -> (i64, i64) {
    match (call.now, history.skew) {
        (Some(now), _) => (now, now),
        (None, skew) => {
            let skew = skew.unwrap_or(0);
            (call.invoked.saturating_sub(skew), call.answered.saturating_add(skew))
        }
    }
}
