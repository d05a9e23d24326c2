//! Asks for limits in memory: decided before anything is locked, then written together. Other sessions wait for these
//! locks, so under them little more is done than to check that the states are unchanged.

use ratelimit_core::{Micros, Shards, State};
use ratelimit_faults::Fault;

use super::{Ask, Outcome};
use crate::change::takes;
use crate::change::{Change, Contents, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Entries, Host, Id, LockedEntries, Retention, Seen, TRIES};
use crate::request::Take;
use crate::stores::memory;

/// How often asks are decided without locks. From the last time on, takes of states that have changed since are decided
/// under the locks, however many there are.
const PLANS: u32 = 4;

/// The most takes of changed states that are decided under the locks before that: some microseconds each.
const DECIDED_UNDER_LOCKS: usize = 16;

/// An ask, decided on its entry's state.
struct Plan<'a> {
    ask: &'a Ask<'a>,
    takes: &'a [Take],
    id: Id,
    /// The start of its windows.
    phase: Micros,
    /// The entry as read.
    found: Seen,
    /// The state that was decided on, and the decision.
    before: State,
    decided: Decided,
    /// The state afterwards, and how long it is kept; `None`: nothing changes.
    after: Option<(State, Retention)>,
    /// The state before the takes, and the instant, if they were decided again under the locks.
    again: Option<(State, Micros)>,
}

/// Decides the asks for memory, and takes their tokens if all pass. Decides before anything is locked, since windows of
/// a calendar and debts take time. Begins again if others have changed many of the states meanwhile.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): the memory has no space for all keys of saved limits.
pub(super) fn take<'a, H: Host>(host: &H, asks: &'a [Ask<'a>]) -> Result<Outcome> {
    let in_memory = || asks.iter().filter(|ask| ask.is_in_memory());
    if in_memory().next().is_none() {
        return Ok(Outcome { decided: Vec::new(), ok: true });
    }
    let entries = host.entries()?;
    let (mut plans, mut ok) = (Vec::new(), false);
    for tried in 1..=TRIES {
        plans.clear();
        for ask in in_memory() {
            host.check_for_interrupts();
            plans.push(Plan::new(host, entries, ask)?);
        }
        if !plans.iter().all(|plan| plan.decided.passes()) {
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
                // If these keys keep evicting each other, all other keys are unsaved.
                let waited = tried < PLANS || host.wait_for_save()?;
                if !waited || tried == TRIES {
                    return Err(LimiterError::MemoryFull(name));
                }
            }
        }
    }
    let decided = plans.into_iter().map(|plan| plan.decided(host, ok)).collect::<Result<_>>()?;
    Ok(Outcome { decided, ok })
}

impl<'a> Plan<'a> {
    /// Reads the state and decides the takes.
    fn new<H: Host>(host: &H, entries: &H::Entries, ask: &'a Ask<'a>) -> Result<Plan<'a>> {
        let Ask { target, change, entry } = ask;
        let id = entry.unwrap_or_else(|| memory::id(entries, target, None));
        let takes: &[Take] = match change {
            Change::Takes(takes) => takes,
            Change::Take(take) => std::slice::from_ref(take),
            _ => &[],
        };
        let (found, phase) = (memory::touch(host, target, id)?, target.phase());
        // Read after the state: none of its takes is later.
        let now = host.now();
        let before = memory::state(target, found.state.clone(), now, phase);
        let decided = decide(host, ask, &before, now)?;
        let keep = |after: &State| (after.clone(), memory::retention(target, after, now, phase));
        let after = decided.after.as_ref().map(keep);
        Ok(Plan { ask, takes, id, phase, found, before, decided, after, again: None })
    }

    /// Decides the takes again, under the locks; returns whether they pass.
    fn decide_again(&mut self, found: Option<State>, now: Micros) -> bool {
        let Plan { ask: Ask { target, change, .. }, phase, .. } = *self;
        let before = memory::state(target, found, now, phase);
        let (pass, after) = takes::pass(target.limit(), self.takes, &before, now);
        self.after = after.map(|after| {
            let retention = memory::retention(target, &after, now, phase);
            (after, retention)
        });
        self.again = Some((before, now));
        change.block(target, now).is_none() && (pass || !target.definition.enforce)
    }

    /// The decision, with the level after the takes if they were made.
    fn decided<H: Host>(self, host: &H, ok: bool) -> Result<Decided> {
        let (mut decided, mut before) = (self.decided, self.before);
        if let Some((state, now)) = self.again {
            decided = decide(host, self.ask, &state, now)?;
            before = state;
        }
        let left = match self.after {
            Some((after, _)) if ok => after,
            _ => before,
        };
        let level = self.ask.target.limit().level(&left, decided.answer.now);
        decided.set_level(level);
        Ok(decided)
    }
}

/// Decides an ask on a state.
fn decide<H: Host>(host: &H, ask: &Ask, state: &State, now: Micros) -> Result<Decided> {
    let shards = Shards::new(ask.target.limit(), vec![state.clone()]);
    ask.change.decide(host, &ask.target, Contents::All(&shards, None), now)
}

/// The outcome under the locks.
enum Locked {
    /// Decided as planned, or again: whether the tokens were taken.
    Done(bool),
    /// Nothing was decided: too many takes are of states that have changed since.
    Changed,
    /// Nothing was decided: a key of the saved limit with this name is no longer in memory.
    Absent(String),
}

/// Takes as planned, unless a state that has changed since refuses. Decides again at most `most` takes of such states.
/// Under the locks, calls nothing of the host but the clock.
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
            return Locked::Absent(plan.ask.target.name_text());
        };
        let has_changed = match Fault::GoneEntryOverlooked.is_on() {
            true => found.state != plan.found.state,
            false => found != plan.found && !Fault::ChangedEntryOverlooked.is_on(),
        };
        if has_changed {
            decided += plan.takes.len();
            if decided > most {
                return Locked::Changed;
            }
            passes &= plan.decide_again(found.state, now);
        }
    }
    for plan in plans.iter().filter(|_| passes) {
        if let Some((after, retention)) = &plan.after {
            // These states have no leases, and only leases can lack capacity.
            locked.write(plan.id, Some(after), Retention { now, ..*retention });
        }
    }
    locked.unlock();
    Locked::Done(passes)
}
