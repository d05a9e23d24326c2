//! Judges a limit with shards by bounds that every order keeps, if the rows of a call are unknown.
//!
//! The tokens surely admitted within any span, and committed or still in progress at its end, are at most the
//! capacity, the inflow, and the tokens given back. At every instant, the tokens left are at least the capacity minus
//! all that may be taken, and at most the capacity minus the tokens surely taken, plus all inflow and tokens given
//! back. A denial, and the `remaining` of a denial or a check, must be within the bounds of some instant of the call;
//! the `remaining` of a take is an estimate. The distribution of tokens over shards, and the number of shards, don't
//! matter here.

use std::collections::HashMap;

use ratelimit_core::kinds::{Start, Windows};
use ratelimit_core::{Limit, Micros};

use crate::history::{Asked, End, History, Invocation};

/// The most tokens that a call can find, and the inflow by an instant.
struct Source {
    most: f64,
    inflow: Box<dyn Fn(i64) -> f64>,
}

impl Source {
    /// The source of a limit; `None`: unknown for this kind, or these windows.
    fn new(limit: &Limit, phase: Micros) -> Option<Source> {
        let most = |reserved: Option<f64>| limit.capacity() + reserved.unwrap_or(f64::INFINITY);
        match limit {
            Limit::TokenBucket(bucket) => {
                let (rate, period) = (bucket.rate, bucket.period.0);
                // In whole periods, for the float's precision.
                let inflow = move |at: i64| {
                    at.div_euclid(period) as f64 * rate
                        + at.rem_euclid(period) as f64 * rate / period as f64
                };
                Some(Source { most: most(bucket.max_reserved), inflow: Box::new(inflow) })
            }
            Limit::FixedWindow(window) => {
                let Windows::Every { period, start } = window.windows else { return None };
                let start = match start {
                    Start::At(at) => at.0,
                    Start::Derived => phase.0 % period.0,
                    Start::FirstRequest => return None,
                };
                let rate = window.rate;
                let inflow = move |at: i64| (at - start).div_euclid(period.0) as f64 * rate;
                Some(Source { most: most(window.max_reserved), inflow: Box::new(inflow) })
            }
            _ => None,
        }
    }
}

/// A call that changes what is there.
struct Change {
    n: u32,
    /// Tokens taken; negative: given.
    count: f64,
    /// The time of the decision.
    from: i64,
    to: i64,
    end: End,
}

/// Judges the calls of one key.
///
/// # Errors
/// The index of a call, and the reason.
pub(super) fn judge(
    history: &History,
    limit: &Limit,
    phase: Micros,
    calls: &[u32],
) -> Result<(), (u32, String)> {
    let first = calls.first().copied().unwrap_or_default();
    let source = Source::new(limit, phase)
        .ok_or((first, "limits of this kind with shards can't be judged".to_owned()))?;
    let reserves = |call: &Invocation| matches!(call.asked, Asked::Limit { reserve: true, .. });
    let any_reserves = calls.iter().any(|&n| reserves(&history.calls[n as usize]));
    let most = if any_reserves { source.most } else { limit.capacity() };
    let changes = changes(history, most, calls)?;
    let slack = 1e-6 + 1e-9 * limit.capacity();
    if most.is_finite() {
        admitted(history, &source, most + slack, &changes)?;
    }
    found(history, &source, (limit.capacity(), slack), (&changes, calls))
}

/// The changes among the calls.
fn changes(history: &History, most: f64, calls: &[u32]) -> Result<Vec<Change>, (u32, String)> {
    let mut changes = Vec::new();
    let mut set = None;
    for &n in calls {
        let call = &history.calls[n as usize];
        if history.skew.is_none() && *set.get_or_insert(call.now) != call.now {
            return Err((
                n,
                "shards at several times of a clock that is set can't be judged".into(),
            ));
        }
        let count = match call.asked {
            Asked::Limit { count, .. } if call.reply.ok => count,
            Asked::Credit { count } => -count,
            Asked::Reset if call.reply.ok => -most,
            _ => continue,
        };
        let skew = history.skew.unwrap_or(0);
        let at_once = End { invoked: call.invoked, answered: call.answered, kept: Some(true) };
        changes.push(Change {
            n,
            count,
            from: call.invoked.saturating_sub(skew),
            to: call.answered.saturating_add(skew),
            end: call.end.map_or(at_once, |end| history.ends[end as usize]),
        });
    }
    Ok(changes)
}

/// A change of the sums of spans, or a check.
enum Event {
    /// Tokens are taken (negative: given) in the spans that begin by an instant.
    Add { count: f64, since: i64 },
    /// No span has taken more than there is, at the call of this index.
    Check { n: u32 },
}

/// Checks the tokens admitted in every span.
fn admitted(
    history: &History,
    source: &Source,
    most: f64,
    changes: &[Change],
) -> Result<(), (u32, String)> {
    let still = history.skew.is_none();
    let inflow = |at| if still { 0.0 } else { (source.inflow)(at) };
    let Some(base) = changes.iter().map(|change| change.from).min() else { return Ok(()) };
    let mut starts: Vec<i64> = changes.iter().map(|change| change.from).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut sums = Sums::new(starts.iter().map(|&at| inflow(at) - inflow(base)).collect());
    // At one instant: first tokens given back or ended spans, then tokens taken, then the check.
    let mut events: Vec<(i64, u8, Event)> = Vec::new();
    for change in changes {
        let &Change { n, count, from, to, end } = change;
        if count < 0.0 {
            let ends = if end.kept == Some(false) { continue } else { end.answered };
            events.push((from, 0, Event::Add { count, since: ends.max(to) }));
            continue;
        }
        events.push((to, 1, Event::Add { count, since: from }));
        events.push((to, 2, Event::Check { n }));
        if end.kept != Some(true) {
            // Not before it is there.
            events.push((end.invoked.max(to), 0, Event::Add { count: -count, since: from }));
        }
    }
    events.sort_by_key(|&(at, order, ref event)| {
        // Undone changes of the same instant come first.
        let undone = matches!(event, Event::Add { count, .. } if *count < 0.0 && order == 0);
        (at, order, undone)
    });
    for (at, _, event) in events {
        match event {
            Event::Add { count, since } => sums.add(starts.partition_point(|&s| s <= since), count),
            Event::Check { n } => {
                let over = sums.most() - (inflow(at) - inflow(base)) - most;
                if over > 0.0 {
                    let call = &history.calls[n as usize];
                    return Err((n, format!("{over} more was admitted than is there: {call:?}")));
                }
            }
        }
    }
    Ok(())
}

/// Sums the tokens of changes by an instant: `of` gives the instant and the tokens of each.
fn by(
    changes: &[Change],
    of: impl Fn(&Change) -> Option<(i64, f64)>,
) -> Box<dyn Fn(i64, bool) -> f64> {
    let mut sums: Vec<(i64, f64)> = changes.iter().filter_map(of).collect();
    sums.sort_by_key(|sum| sum.0);
    let mut total = 0.0;
    for sum in &mut sums {
        total += sum.1;
        sum.1 = total;
    }
    Box::new(move |at, inclusive| {
        let until = sums.partition_point(|sum| sum.0 < at || (inclusive && sum.0 == at));
        until.checked_sub(1).map_or(0.0, |last| sums[last].1)
    })
}

/// The tokens that a transaction has taken, and whether it has rows, by its calls before an instant. Calls rolled back
/// to a savepoint by then don't count.
fn own(history: &History, before: &[&Invocation], at: i64) -> (f64, bool) {
    let stays = |call: &&&Invocation| {
        let end = call.end.map(|end| history.ends[end as usize]);
        end.is_some_and(|end| end.kept != Some(false) || end.answered > at)
    };
    before.iter().filter(stays).fold((0.0, false), |(taken, has_rows), call| match call.asked {
        Asked::Limit { count, .. } if call.reply.ok => (taken + count, true),
        Asked::Credit { count } => (taken - count.min(0.0), true),
        Asked::Reset => (taken, true),
        _ => (taken, has_rows),
    })
}

/// Whether a denied call may be retried at once, or `retry_at` isn't recorded.
fn at_once(history: &History, call: &Invocation) -> bool {
    const MILLISECOND: i64 = 1_000;
    let (from, to) = super::span(history, call);
    let takes = matches!(call.asked, Asked::Limit { .. });
    takes
        && call.reply.retry_at.is_none_or(|at| {
            at.is_some_and(|at| (from - MILLISECOND..=to + MILLISECOND).contains(&at))
        })
}

/// Checks denials, and the `remaining` of calls.
fn found(
    history: &History,
    source: &Source,
    (capacity, slack): (f64, f64),
    (changes, calls): (&[Change], &[u32]),
) -> Result<(), (u32, String)> {
    let base = changes.iter().map(|change| change.from).min();
    let inflow = |at| match base {
        Some(base) if history.skew.is_some() => {
            ((source.inflow)(at) - (source.inflow)(base)).max(0.0)
        }
        _ => 0.0,
    };
    let takes = |change: &Change| change.count > 0.0;
    let perhaps = by(changes, |change| {
        let is_there = takes(change) && change.end.kept != Some(false);
        is_there.then_some((change.end.invoked, change.count))
    });
    let surely = by(changes, |change| {
        let is_there = takes(change) && change.end.kept == Some(true);
        is_there.then_some((change.end.answered, change.count))
    });
    let given = by(changes, |change| (!takes(change)).then_some((change.from, -change.count)));
    let mut before: HashMap<u32, Vec<&Invocation>> = HashMap::new();
    for &n in calls {
        let call = &history.calls[n as usize];
        let earlier = before.entry(call.transaction).or_default();
        let (own, has_rows) = own(history, earlier, call.invoked);
        earlier.push(call);
        let least = capacity - perhaps(call.answered, true) - own - slack;
        let until = call.answered.saturating_add(history.skew.unwrap_or(0));
        let more = inflow(until) + given(until, true);
        // In debt no tokens are left.
        let greatest = (capacity - surely(call.invoked, false) + more).clamp(0.0, capacity) + slack;
        let is_check = matches!(call.asked, Asked::Check { .. });
        if let Some(remaining) = call.reply.remaining
            && (is_check || !call.reply.ok)
            && !(least..=greatest).contains(&remaining)
        {
            return Err((n, format!("{least} to {greatest} were there: {call:?}")));
        }
        let (Asked::Limit { count, .. } | Asked::Check { count, .. }) = call.asked else {
            continue;
        };
        // A transaction that has rows doesn't wait for the rows of others.
        let is_busy = has_rows && at_once(history, call);
        if !call.reply.ok && !is_busy && least > count {
            return Err((n, format!("it was denied, and {least} were there at least: {call:?}")));
        }
    }
    Ok(())
}

/// Sums of spans by their beginnings, and the greatest of them: a segment tree.
struct Sums {
    leaves: usize,
    most: Vec<f64>,
    more: Vec<f64>,
}

impl Sums {
    fn new(sums: Vec<f64>) -> Sums {
        let leaves = sums.len().next_power_of_two();
        let mut most = vec![f64::MIN; 2 * leaves];
        most[leaves..leaves + sums.len()].copy_from_slice(&sums);
        for n in (1..leaves).rev() {
            most[n] = most[2 * n].max(most[2 * n + 1]);
        }
        Sums { leaves, most, more: vec![0.0; 2 * leaves] }
    }

    /// Adds to the first `until` sums.
    fn add(&mut self, until: usize, count: f64) {
        self.add_below(1, self.leaves, until, count);
    }

    fn add_below(&mut self, node: usize, width: usize, until: usize, count: f64) {
        if until == 0 {
            return;
        }
        if until >= width {
            self.most[node] += count;
            self.more[node] += count;
            return;
        }
        let half = width / 2;
        self.add_below(2 * node, half, until.min(half), count);
        self.add_below(2 * node + 1, half, until.saturating_sub(half), count);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.more[node];
    }

    fn most(&self) -> f64 {
        self.most[1]
    }
}
