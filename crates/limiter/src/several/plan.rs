//! The groups that are in memory: decided before anything is locked, and written together under locks that others wait
//! for, on which no more is done than to see that the states are the same.

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::decide::{Group, GroupVerdict};
use crate::error::{LimiterError, Result};
use crate::ports::{Entries, Host, Id, LockedEntries, Retention, Seen, TRIES};
use crate::stores::memory;

/// How often the groups in memory are decided before they are locked. From the last time on, what has changed since is
/// decided under the locks however much it is.
const PLANS: u32 = 4;

/// How many takes, of states that have changed since, are decided under the locks before that: some microseconds each.
const DECIDED_UNDER_LOCKS: usize = 16;

/// What is to become of a group in memory.
struct Plan<'a> {
    group: &'a Group<'a>,
    id: Id,
    /// What was stored.
    found: Seen,
    /// The takes, decided on it.
    verdict: GroupVerdict<'a>,
    /// The state after them, and how long it is kept; `None`: they change nothing.
    after: Option<(State, Retention)>,
    /// Where it had changed: the state before the takes as they were decided under the locks, and at what instant.
    again: Option<(State, Micros)>,
}

/// Decides the groups that are in memory, and takes their tokens if all of them allow it; whether it did. Windows of a
/// calendar and debts take their time, so all is decided before anything is locked. If others have changed many of
/// them meanwhile, it begins again.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): the memory has no space for all keys of saved limits.
pub(super) fn take<'a, H: Host>(
    host: &H,
    groups: &'a [Group],
) -> Result<(Vec<GroupVerdict<'a>>, bool)> {
    let in_memory: Vec<(&Group, Id)> =
        groups.iter().filter_map(|group| Some((group, group.entry?))).collect();
    if in_memory.is_empty() {
        return Ok((Vec::new(), true));
    }
    let entries = host.entries()?;
    let (mut plans, mut ok) = (Vec::with_capacity(in_memory.len()), false);
    for tried in 1..=TRIES {
        plans.clear();
        for &(group, id) in &in_memory {
            host.check_for_interrupts();
            plans.push(Plan::new(host, group, id)?);
        }
        if !plans.iter().all(|plan| plan.verdict.allows()) {
            break;
        }
        let most = if tried < PLANS { DECIDED_UNDER_LOCKS } else { usize::MAX };
        match take_as_planned(host, entries, &mut plans, most) {
            Locked::Done(passed) => {
                ok = passed;
                break;
            }
            Locked::Changed => {}
            Locked::Absent(_) if Fault::AbsentDenied.is_on() => break,
            Locked::Absent(name) => {
                // Where it makes room again and again, for another of these keys, all else is unsaved.
                let waited = tried < PLANS || host.wait_for_save()?;
                if !waited || tried == TRIES {
                    return Err(LimiterError::MemoryFull { name });
                }
            }
        }
    }
    Ok((plans.into_iter().map(|plan| plan.verdict(host, ok)).collect(), ok))
}

impl<'a> Plan<'a> {
    /// Reads the state and decides the takes.
    fn new<H: Host>(host: &H, group: &'a Group<'a>, id: Id) -> Result<Plan<'a>> {
        let found = memory::touch(host, &group.target, id)?;
        // Of this state no take is later.
        let now = host.now();
        let before = memory::state(&group.target, found.state.clone(), now, group.phase);
        let verdict = group.decide(host, Shards::new(group.target.limit(), vec![before]), now);
        let keep = |after: &State| memory::retention(&group.target, after, now, group.phase);
        let after = verdict.change.as_ref().map(|(_, after)| (after.clone(), keep(after)));
        Ok(Plan { group, id, found, verdict, after, again: None })
    }

    /// Decides the takes again, under the locks, and returns whether they pass.
    fn decide_again(&mut self, found: Option<State>, now: Micros) -> bool {
        let Group { target, phase, .. } = self.group;
        let before = memory::state(target, found, now, *phase);
        let (passes, after) = self.group.pass(&before, now);
        self.after = after.map(|after| {
            let retention = memory::retention(target, &after, now, *phase);
            (after, retention)
        });
        self.again = Some((before, now));
        passes
    }

    /// The verdict on the takes, with the state that they left where they were taken.
    fn verdict<H: Host>(self, host: &H, taken: bool) -> GroupVerdict<'a> {
        let mut verdict = match self.again {
            None => self.verdict,
            Some((before, now)) => {
                let shards = Shards::new(self.group.target.limit(), vec![before]);
                self.group.decide(host, shards, now)
            }
        };
        if let (true, Some((after, _))) = (taken, self.after) {
            verdict.shards.states_mut()[0] = after;
        }
        verdict
    }
}

/// What the locks found.
enum Locked {
    /// What was planned, or decided again: whether it was taken.
    Done(bool),
    /// Nothing was decided: too many takes are of states that have changed since.
    Changed,
    /// Nothing was decided: a key of the limit of this name, which is saved, is not in memory any more.
    Absent(String),
}

/// Takes what was planned, unless a state that has changed since refuses it. A bounded number of takes is decided
/// again, for states that have changed since. Under the locks nothing of the host is called but the clock.
fn take_as_planned<H: Host>(
    host: &H,
    entries: &H::Entries,
    plans: &mut [Plan],
    most: usize,
) -> Locked {
    let ids: Vec<Id> = plans.iter().map(|plan| plan.id).collect();
    let mut locked = entries.lock(&ids);
    let now = host.now();
    let (mut passes, mut decided) = (true, 0);
    for plan in plans.iter_mut() {
        let Ok(found) = locked.read(plan.id) else {
            return Locked::Absent(plan.group.target.name_text());
        };
        let has_changed = match Fault::GoneEntryOverlooked.is_on() {
            true => found.state != plan.found.state,
            false => found != plan.found && !Fault::ChangedEntryOverlooked.is_on(),
        };
        if has_changed {
            decided += plan.group.takes.len();
            if decided > most {
                return Locked::Changed;
            }
            passes &= plan.decide_again(found.state, now);
        }
    }
    for plan in plans.iter().filter(|_| passes) {
        if let Some((after, retention)) = &plan.after {
            // No such state has leases, which alone could lack capacity.
            locked.write(plan.id, Some(after), Retention { now, ..*retention });
        }
    }
    locked.unlock();
    Locked::Done(passes)
}
