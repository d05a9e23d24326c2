//! Right histories are refused after any one change.

use ratelimit_judge::{Asked, End, History, Invocation, Storage, judge};

use super::simulate::{Random, simulate};
use super::{BUCKET, SLOTS, scene};

/// Changes a history at a call; false: there is nothing to change there.
type Change = fn(&mut History, usize) -> bool;

/// A take that changes what is stored.
fn is_take(call: &Invocation) -> bool {
    call.reply.ok && matches!(call.asked, Asked::Limit { .. })
}

fn is_kept(history: &History, call: &Invocation) -> bool {
    call.end.is_none_or(|end| history.ends[end as usize].kept == Some(true))
}

/// Moves a call, with its decision.
fn moved(history: &mut History, at: usize, by: i64) -> bool {
    let call = &mut history.calls[at];
    let is_denied = !call.reply.ok && matches!(call.asked, Asked::Limit { .. });
    (call.invoked, call.answered) = (call.invoked + by, call.answered + by);
    call.now = call.now.map(|now| now + by);
    is_denied
}

/// Reports the other end of a transaction.
fn ended(history: &mut History, at: usize, kept: bool) -> bool {
    let call = history.calls[at];
    let Some(end) = call.end else { return false };
    let was = history.ends[end as usize].kept;
    history.ends[end as usize].kept = Some(kept);
    is_take(&call) && was == Some(!kept)
}

const CHANGES: [(&str, Change); 10] = [
    ("a take doubled", |history, at| {
        let call = history.calls[at];
        let end = End { invoked: call.answered + 1, answered: call.answered + 2, kept: Some(true) };
        let after = call.end.map_or(end, |end| history.ends[end as usize]).answered;
        history.calls.push(Invocation {
            transaction: u32::MAX,
            invoked: after + 1,
            answered: after + 2,
            now: Some(after + 1),
            end: None,
            ..call
        });
        is_take(&call) && is_kept(history, &call)
    }),
    ("a take denied", |history, at| {
        let call = &mut history.calls[at];
        let was = is_take(call);
        call.reply.ok = false;
        was
    }),
    ("a denial 5 ms later", |history, at| moved(history, at, 5_000)),
    ("a denial 5 ms earlier", |history, at| moved(history, at, -5_000)),
    ("what was committed rolled back", |history, at| ended(history, at, false)),
    ("what was rolled back committed", |history, at| ended(history, at, true)),
    ("an answer of another key", |history, at| {
        let keys = history.keys.len() as u32;
        let call = &mut history.calls[at];
        call.key = (call.key + 1) % keys;
        is_take(call)
    }),
    ("one more left", |history, at| {
        let reply = &mut history.calls[at].reply;
        reply.remaining = reply.remaining.map(|remaining| remaining + 1.0);
        reply.remaining.is_some()
    }),
    ("a retry 2 ms later", |history, at| {
        let reply = &mut history.calls[at].reply;
        let Some(Some(retry)) = reply.retry_at else { return false };
        reply.retry_at = Some(Some(retry + 2_000));
        true
    }),
    ("a reset that did nothing", |history, at| {
        let call = &mut history.calls[at];
        // During a wait another reset might have been committed.
        let at_once = call.answered - call.invoked < 350;
        let was = call.reply.ok && matches!(call.asked, Asked::Reset) && at_once;
        call.reply.ok = false;
        was
    }),
];

const LEASES: [(&str, Change); 2] = [
    ("a lease given twice", |history, at| {
        let call = history.calls[at];
        let Asked::Acquire { lease, count } = call.asked else { return false };
        let other = history.calls[..at].iter().rev().find_map(|other| match other.asked {
            Asked::Acquire { lease, .. } if other.key == call.key && lease > 0 => Some(lease),
            _ => None,
        });
        let Some(other) = other.filter(|_| lease > 0) else { return false };
        history.calls[at].asked = Asked::Acquire { lease: other, count };
        true
    }),
    ("a release that did nothing", |history, at| {
        let call = &mut history.calls[at];
        let was = call.reply.ok && matches!(call.asked, Asked::Release { .. });
        call.reply.ok = false;
        was
    }),
];

/// Makes each change at some calls, and counts the refusals.
fn each_is_refused(history: &History, changes: &[(&str, Change)]) {
    let mut random = Random(7);
    for (what, change) in changes {
        let (mut made, mut refused, mut tries) = (0, 0, 0);
        while made < 20 {
            tries += 1;
            assert!(tries < 100_000, "{what}: nothing to change");
            let mut changed = history.clone();
            let at = random.below(history.calls.len() as u64 - 200) as usize;
            if !change(&mut changed, at) {
                continue;
            }
            made += 1;
            refused += u32::from(judge(&changed).is_err());
        }
        println!("{what}: {refused} of {made} refused");
        // A take may be reset, or refilled, unseen.
        let least = if what.contains("rolled back") { made - 3 } else { made };
        assert!(refused >= least, "{what}");
    }
}

#[test]
fn a_history_with_one_change_is_refused() {
    for storage in [Storage::Row, Storage::Memory] {
        let history = simulate(scene(BUCKET, storage, true)).history;
        assert!(judge(&history).is_ok());
        // In memory it doesn't matter how a transaction ends.
        let of_ends = |what: &str| what.contains("rolled back");
        let changes: Vec<_> = CHANGES
            .into_iter()
            .filter(|(what, _)| storage == Storage::Row || !of_ends(what))
            .collect();
        each_is_refused(&history, &changes);
    }
}

#[test]
fn a_history_of_leases_with_one_change_is_refused() {
    for storage in [Storage::Row, Storage::Memory] {
        each_is_refused(&simulate(scene(SLOTS, storage, false)).history, &LEASES);
    }
}
