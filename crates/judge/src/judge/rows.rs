//! Judges a limit with shards by the rows that each call left: together, the rows of a call have lost the tokens
//! that it took.
//!
//! A row stays locked to the end of the transaction, and its time never goes back, so its times order its versions. A
//! version that overwrites another, or that was decided on a version that was rolled back, takes more or less than its
//! call. Only token buckets refill from the time in the row.

use std::collections::HashMap;

use ratelimit_core::kinds::Tokens;
use ratelimit_core::{Limit, Micros, State};

use crate::history::{Asked, History, ShardSeen};

/// Judges the takes of one key by their rows; returns their number, 0 if a row or the end of a transaction is unknown,
/// or the number of shards changed.
///
/// # Errors
/// The index of a call, and the reason.
pub(super) fn judge(
    history: &History,
    limit: &Limit,
    calls: &[u32],
) -> Result<usize, (u32, String)> {
    let Limit::TokenBucket(_) = limit else { return Ok(0) };
    let Some(takes) = takes(history, calls) else { return Ok(0) };
    // The shard column has the number of shards before four digits of its own.
    let mut counts = takes.values().flatten().map(|row| row.shard / 10_000);
    let Some(count) = counts.next().filter(|&count| counts.all(|other| other == count)) else {
        return Ok(0);
    };
    let shard_limit = limit.shard_limit(count.unsigned_abs());
    let slack = 1e-6 + 1e-9 * limit.capacity();
    let mut versions: Vec<(&ShardSeen, u32)> = Vec::new();
    for (&n, rows) in &takes {
        versions.extend(rows.iter().map(|&row| (row, n)));
    }
    versions.sort_by_key(|(row, n)| (row.ts, history.calls[*n as usize].invoked, row.shard));
    let (mut now, mut taken) = (HashMap::new(), HashMap::<u32, f64>::new());
    for (row, n) in versions {
        let left = |state: &State| shard_limit.level(state, Micros(row.ts)).remaining;
        let before = now.get(&row.shard).map_or(shard_limit.capacity(), left);
        *taken.entry(n).or_default() += before - row.value;
        let after = Tokens { value: row.value, ts: Micros(row.ts), added: None };
        now.insert(row.shard, State::Tokens(after));
    }
    for (n, taken) in taken {
        let call = &history.calls[n as usize];
        let Asked::Limit { count, .. } = call.asked else { continue };
        if (taken - count).abs() > slack {
            return Err((n, format!("its rows lost {taken}: {call:?}")));
        }
    }
    Ok(takes.len())
}

/// The kept takes, by their indexes, each with its rows; `None` if one has no row or no known end, or if other calls
/// changed rows.
fn takes<'h>(history: &'h History, calls: &[u32]) -> Option<HashMap<u32, Vec<&'h ShardSeen>>> {
    let mut rows: HashMap<(u32, u32, i64), Vec<&ShardSeen>> = HashMap::new();
    let key = history.calls[*calls.first()? as usize].key;
    for row in history.rows.iter().filter(|row| row.key == key) {
        rows.entry((row.transaction, row.key, row.invoked)).or_default().push(row);
    }
    let mut takes = HashMap::new();
    for &n in calls {
        let call = &history.calls[n as usize];
        let kept = call.end.map_or(Some(true), |end| history.ends[end as usize].kept);
        match call.asked {
            Asked::Check { .. } => continue,
            Asked::Limit { .. } if !call.reply.ok || kept == Some(false) => continue,
            Asked::Limit { reserve: false, .. } if kept == Some(true) && !call.unanswered => {}
            _ => return None,
        }
        takes.insert(n, rows.remove(&(call.transaction, call.key, call.invoked))?);
    }
    Some(takes)
}
