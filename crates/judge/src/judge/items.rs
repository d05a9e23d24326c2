//! The items that the search orders: for a row, the tenures of transactions, each from its first take to its end, and
//! the reads; for memory, each call.

use std::collections::HashMap;

use crate::history::{Asked, End, History, Invocation, Storage};

/// Whether a call changes what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    Yes,
    No,
    /// The answer doesn't say.
    Perhaps,
}

/// A step of a tenure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The call of this index.
    Call(u32),
    /// A savepoint undoes the last remaining change.
    Undo,
}

/// A part of the order: it reads or changes what is stored, and ends before the next one begins.
#[derive(Debug)]
pub(super) struct Item {
    /// The calls and undos.
    pub steps: Vec<Step>,
    /// Whether it changes what is stored.
    pub writes: Writes,
    /// The earliest time at which it takes effect.
    pub earliest: i64,
    /// The earliest time if it turns out to have changed something.
    pub earliest_end: i64,
    /// The latest time at which it takes effect.
    pub latest: i64,
    /// The latest time at which the items before a change have ended.
    pub begun: i64,
    /// The latest time at which the kept changes before were committed: when the change read the clock.
    pub seen: i64,
    /// Whether the change is kept; `None`: unknown.
    pub kept: Option<bool>,
    /// Whether an order may leave it out: a call that may have been made, or not.
    pub optional: bool,
}

/// Whether a call changes what is stored, by its answer.
pub(super) fn writes(call: &Invocation) -> Writes {
    let yes = |ok| if ok { Writes::Yes } else { Writes::No };
    match call.asked {
        Asked::Limit { count, .. } | Asked::Acquire { count, .. } => {
            yes(call.reply.ok && count > 0.0)
        }
        Asked::Check { .. } => Writes::No,
        Asked::Credit { .. } => Writes::Perhaps,
        // A call that takes nothing still writes the hold's row, under the lock of the limit's.
        Asked::Hold { .. } | Asked::Settle { .. } => yes(call.reply.ok),
        Asked::Reset | Asked::Extend { .. } | Asked::Release { .. } => yes(call.reply.ok),
    }
}

/// Makes the items of one key from its calls, given by their indexes in the order of invocation.
///
/// # Errors
/// A credit can't be judged if it is unknown whether its transaction has the row afterwards.
pub(super) fn items(
    history: &History,
    storage: Storage,
    calls: &[u32],
) -> Result<Vec<Item>, (u32, String)> {
    let mut items = Vec::new();
    let mut transactions: HashMap<u32, Vec<u32>> = HashMap::new();
    for &n in calls {
        let call = &history.calls[n as usize];
        match call.end {
            _ if call.unanswered => items.push(unanswered(history, n)),
            Some(_) if storage != Storage::Memory => {
                transactions.entry(call.transaction).or_default().push(n)
            }
            _ => items.push(at_once(history, n)),
        }
    }
    let mut transactions: Vec<Vec<u32>> = transactions.into_values().collect();
    transactions.sort();
    for calls in &transactions {
        of_transaction(history, calls, &mut items)?;
    }
    Ok(items)
}

/// The latest instant at which a call read the stored state: before it read the clock.
fn read_by(history: &History, call: &Invocation) -> i64 {
    match (history.skew, call.now) {
        (Some(skew), Some(now)) => call.answered.min(now.saturating_add(skew)),
        _ => call.answered,
    }
}

/// A call that is its own transaction, or in memory.
fn at_once(history: &History, n: u32) -> Item {
    let call = &history.calls[n as usize];
    Item {
        steps: vec![Step::Call(n)],
        writes: writes(call),
        earliest: call.invoked,
        earliest_end: call.invoked,
        latest: call.answered,
        begun: call.answered,
        seen: read_by(history, call),
        kept: Some(true),
        optional: false,
    }
}

/// A call that may have been made, and may have ended at any time.
fn unanswered(history: &History, n: u32) -> Item {
    let forever = i64::MAX;
    Item { latest: forever, begun: forever, seen: forever, optional: true, ..at_once(history, n) }
}

/// A call of a transaction that doesn't hold the row.
fn read(history: &History, n: u32) -> Item {
    let mut item = at_once(history, n);
    item.latest = item.seen;
    item
}

/// The tenures of a transaction, and its reads outside of them.
fn of_transaction(
    history: &History,
    calls: &[u32],
    items: &mut Vec<Item>,
) -> Result<(), (u32, String)> {
    // The ends of the changes not undone yet.
    let mut open: Vec<End> = Vec::new();
    let mut tenure: Vec<Step> = Vec::new();
    for (place, &n) in calls.iter().enumerate() {
        let call = &history.calls[n as usize];
        let end = call
            .end
            .map_or(End { invoked: 0, answered: 0, kept: None }, |end| history.ends[end as usize]);
        let mut last = None;
        while let Some(ended) = open.last().copied().filter(|ended| ended.answered <= call.invoked)
        {
            open.pop();
            tenure.push(Step::Undo);
            last = Some(ended);
        }
        if let (true, Some(ended)) = (open.is_empty(), last) {
            items.push(closed(history, std::mem::take(&mut tenure), ended));
        }
        match writes(call) {
            Writes::Yes => {
                tenure.push(Step::Call(n));
                open.push(end);
            }
            Writes::No if open.is_empty() => items.push(read(history, n)),
            Writes::No => tenure.push(Step::Call(n)),
            Writes::Perhaps if open.is_empty() && place + 1 < calls.len() => {
                let why =
                    "a credit before other calls of its transaction on the key can't be judged";
                return Err((n, why.to_owned()));
            }
            Writes::Perhaps if open.is_empty() => {
                items.push(Item {
                    writes: Writes::Perhaps,
                    earliest: call.invoked,
                    ..closed(history, vec![Step::Call(n)], end)
                });
            }
            // Its own savepoint would undo it or not.
            Writes::Perhaps if open.last() != Some(&end) => {
                return Err((n, "a credit in a savepoint of a tenure can't be judged".to_owned()));
            }
            Writes::Perhaps => tenure.push(Step::Call(n)),
        }
    }
    if let Some(&end) = open.first() {
        // A savepoint has undone these before the end.
        let undone = open.iter().filter(|&&other| other != end);
        tenure.extend(undone.map(|_| Step::Undo));
        items.push(closed(history, tenure, end));
    }
    Ok(())
}

/// A tenure with its end, which is not before its last call was made, wherever the history has the end begin.
fn closed(history: &History, steps: Vec<Step>, end: End) -> Item {
    let call = |step: &Step| match step {
        Step::Call(n) => Some(&history.calls[*n as usize]),
        Step::Undo => None,
    };
    let first = steps.iter().find_map(call);
    let last = steps.iter().rev().find_map(call);
    let begun = first.map_or(end.invoked, |call| call.answered);
    let earliest = last.map_or(end.invoked, |call| call.invoked.max(end.invoked));
    Item {
        steps,
        writes: Writes::Yes,
        earliest,
        earliest_end: earliest,
        latest: end.answered,
        begun,
        seen: first.map_or(begun, |call| read_by(history, call)),
        kept: end.kept,
        optional: false,
    }
}
