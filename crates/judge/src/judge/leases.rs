//! Judges leases by their ids: none is given twice, none is released that was never given, and the slots surely
//! taken at any time are not more than there are. For leases that outlive the history: one that may expire does not
//! surely exist.

use std::collections::HashMap;

use crate::history::{Asked, History, Storage};

/// Judges the calls of one key by the ids of their leases.
///
/// # Errors
/// The index of a call, and the reason.
pub(super) fn judge(
    history: &History,
    slots: u32,
    storage: Storage,
    calls: &[u32],
) -> Result<(), (u32, String)> {
    // The latest time at which each lease is given.
    let mut given: HashMap<i64, u32> = HashMap::new();
    for &n in calls {
        let call = &history.calls[n as usize];
        if let Asked::Acquire { lease, count } = call.asked
            && call.reply.ok
            && count > 0.0
            && given.insert(lease, n).is_some()
        {
            return Err((n, format!("a lease was given twice: {call:?}")));
        }
    }
    for &n in calls {
        let call = &history.calls[n as usize];
        let (Asked::Extend { lease } | Asked::Release { lease }) = call.asked else { continue };
        let acquired = given.get(&lease).map(|&n| &history.calls[n as usize]);
        if call.reply.ok && acquired.is_none_or(|given| given.invoked > call.answered) {
            return Err((n, format!("a lease that was not given is live: {call:?}")));
        }
    }
    at_once(history, slots, storage, calls)
}

/// Checks the number of slots surely taken at the same time.
fn at_once(
    history: &History,
    slots: u32,
    storage: Storage,
    calls: &[u32],
) -> Result<(), (u32, String)> {
    // The end that a call depends on; in memory none.
    let end = |n: u32| {
        let call = &history.calls[n as usize];
        call.end.filter(|_| storage != Storage::Memory).map(|end| history.ends[end as usize])
    };
    let mut released: HashMap<i64, i64> = HashMap::new();
    let mut was_reset = false;
    for &n in calls {
        let call = &history.calls[n as usize];
        match call.asked {
            Asked::Release { lease } if call.reply.ok => {
                let first = released.entry(lease).or_insert(call.invoked);
                *first = (*first).min(call.invoked);
            }
            Asked::Reset => was_reset |= call.reply.ok,
            _ => {}
        }
    }
    if was_reset {
        return Ok(());
    }
    let mut events: Vec<(i64, f64, u32)> = Vec::new();
    for &n in calls {
        let call = &history.calls[n as usize];
        let Asked::Acquire { count, lease } = call.asked else { continue };
        let ended = end(n).filter(|end| end.kept != Some(true)).map_or(i64::MAX, |end| end.invoked);
        let until = released.get(&lease).copied().unwrap_or(i64::MAX).min(ended);
        if call.reply.ok && until > call.answered {
            events.push((call.answered, count, n));
            events.push((until, -count, n));
        }
    }
    // At one instant, ends come before beginnings.
    events.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let mut taken = 0.0;
    for (_, count, n) in events {
        taken += count;
        if taken > f64::from(slots) {
            let call = &history.calls[n as usize];
            return Err((n, format!("{taken} of {slots} slots are taken at once: {call:?}")));
        }
    }
    Ok(())
}
