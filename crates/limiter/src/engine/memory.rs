//! Asks for limits in memory: decided before anything is locked, then written together. Other sessions wait for these
//! locks, so under them little more is done than to check that the states are unchanged.

use ratelimit_core::{Decision, Micros, State};
use ratelimit_faults::Fault;

use super::Outcome;
use crate::change::{Ask, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Entries, Host, Id, LockedEntries, Retention, Seen, TRIES};
use crate::stores::memory;

/// How often asks are decided without locks. From the last time on, takes of states that have changed since are decided
/// under the locks, however many there are.
const PLANS: u32 = 4;

/// The most takes of changed states that are decided under the locks before that: some microseconds each.
const DECIDED_UNDER_LOCKS: usize = 16;

/// An ask, decided on its state.
struct Plan<'a> {
    ask: &'a Ask<'a>,
    /// The entry as read; `None`: there is no limit.
    entry: Option<(Id, Seen)>,
    /// The start of its windows.
    phase: Micros,
    /// The state that was decided on, and the decision.
    before: State,
    decided: Decided,
    /// The state afterwards, and how long it is kept; `None`: nothing changes.
    after: Option<(State, Retention)>,
    /// The instant, if the takes were decided again under the locks.
    again: Option<Micros>,
}

/// Decides asks of limits outside the table, and takes their tokens if all pass. Decides before anything is locked,
/// since windows of a calendar and debts take time. Begins again if others have changed many of the states meanwhile.
///
/// # Errors
/// [`LimiterError::MemoryFull`] (53200): the memory has no space for all keys of saved limits.
pub(super) fn take<'a, H: Host>(
    host: &H,
    asks: impl Iterator<Item = &'a Ask<'a>> + Clone,
) -> Result<Outcome> {
    let (mut plans, mut ok) = (Vec::new(), false);
    for tried in 1..=TRIES {
        plans.clear();
        for ask in asks.clone() {
            host.check_for_interrupts();
            plans.push(Plan::new(host, ask)?);
        }
        if !plans.iter().all(|plan| plan.decided.passes()) {
            break;
        }
        if plans.iter().all(|plan| plan.entry.is_none()) {
            ok = true;
            break;
        }
        let most = if tried < PLANS { DECIDED_UNDER_LOCKS } else { usize::MAX };
        match take_as_planned(host, &mut plans, most) {
            Ok(Some(passed)) => {
                ok = passed;
                break;
            }
            Ok(None) => {}
            Err(LimiterError::MemoryFull(_)) if Fault::AbsentDenied.is_on() => break,
            // If these keys keep evicting each other, all other keys are unsaved.
            Err(LimiterError::MemoryFull(_))
                if (tried < PLANS || host.wait_for_save()?) && tried < TRIES => {}
            Err(error) => return Err(error),
        }
    }
    let decided = plans.into_iter().map(|plan| plan.decided(host, ok)).collect::<Result<_>>()?;
    Ok(Outcome { decided, ok })
}

impl<'a> Plan<'a> {
    /// Reads the state and decides the takes.
    fn new<H: Host>(host: &H, ask: &'a Ask<'a>) -> Result<Plan<'a>> {
        let (target, phase) = (&ask.target, ask.target.phase());
        let entry = match target.store.is_in_memory() {
            false => None,
            true => {
                let id = memory::id(host.entries()?, target, ask.entry);
                Some((id, memory::touch(host, target, id)?))
            }
        };
        // Read after the state: none of its takes is later.
        let now = host.now();
        let found = entry.as_ref().and_then(|(_, seen)| seen.state.clone());
        let before = target.limit().state_or_initial(found, now, phase);
        let mut decided = ask.decide(host, &ask.on(&before), None, now)?;
        let after = decided.after.take().map(|after| kept(ask, phase, after, now));
        Ok(Plan { ask, entry, phase, before, decided, after, again: None })
    }

    /// Decides the takes again, under the locks; returns whether they pass.
    fn decide_again(&mut self, found: Option<State>, now: Micros) -> bool {
        let Plan { ask: ask @ Ask { target, change, .. }, phase, .. } = *self;
        self.before = target.limit().state_or_initial(found, now, phase);
        let (mut pass, takes) = (true, change.takes());
        let each = |decision: &Decision| pass &= decision.ok;
        let after = target.limit().decide_in_turn(takes, &self.before, now, each);
        self.after = after.map(|after| kept(ask, phase, after, now));
        self.again = Some(now);
        ask.block(now).is_none() && (pass || !target.definition.enforce)
    }

    /// The decision, with the level after the takes if they were made.
    fn decided<H: Host>(self, host: &H, ok: bool) -> Result<Decided> {
        let mut decided = match self.again {
            Some(now) => self.ask.decide(host, &self.ask.on(&self.before), None, now)?,
            None => self.decided,
        };
        let left = self.after.filter(|_| ok).map_or(self.before, |(after, _)| after);
        decided.set_level(self.ask.target.limit().level(&left, decided.answer.now));
        Ok(decided)
    }
}

/// A state of an ask at `now`, and how long it is kept.
fn kept(Ask { target, .. }: &Ask, phase: Micros, after: State, now: Micros) -> (State, Retention) {
    let retention = memory::retention(target, &after, now, phase);
    (after, retention)
}

/// Takes as planned, unless a state that has changed since refuses; returns whether the tokens were taken. Decides at
/// most `most` takes of such states again; `None`: there are more, and nothing was decided. Under the locks, calls
/// nothing of the host but the clock.
///
/// # Errors
/// [`LimiterError::MemoryFull`]: a key of a saved limit is no longer in memory.
fn take_as_planned<H: Host>(host: &H, plans: &mut [Plan], most: usize) -> Result<Option<bool>> {
    let ids: Vec<Id> = plans.iter().filter_map(|plan| Some(plan.entry.as_ref()?.0)).collect();
    let mut locked = host.entries()?.lock(&ids);
    let now = host.now();
    let (mut passes, mut decided) = (true, 0);
    for plan in plans.iter_mut() {
        let Some((id, seen)) = &plan.entry else { continue };
        let Ok(found) = locked.read(*id) else {
            return Err(LimiterError::MemoryFull(plan.ask.target.name_text()));
        };
        if found != *seen && !Fault::ChangedEntryOverlooked.is_on() {
            decided += plan.ask.change.takes().len();
            if decided > most {
                return Ok(None);
            }
            passes &= plan.decide_again(found.state, now);
        }
    }
    for plan in plans.iter().filter(|_| passes) {
        if let (Some((id, _)), Some((after, retention))) = (&plan.entry, &plan.after) {
            // These states have no leases, and only leases can lack capacity.
            locked.write(*id, Some(after), Retention { now, ..*retention });
        }
    }
    locked.unlock();
    Ok(Some(passes))
}
