//! Several limits in one call, all or nothing.
//!
//! First a read without locks: if a limit refuses, that is the answer. Otherwise the rows are locked
//! in the order of name, key and shard, whatever the order of the requests, so that two such calls
//! never deadlock; then all limits are decided again, at one instant. If one refuses now, the locks
//! are released.
//!
//! Limits in memory come last, when no row is waited for any more: they are decided, and their states locked and
//! written together, all or none, if they are still the same. Only then rows are written; where that fails,
//! what was taken from memory stays taken.

use std::collections::BTreeMap;

use pgrx::pg_sys;
use ratelimit_core::algorithm::first_pass;
use ratelimit_core::{Decision, Kind, Micros, Shards, State, decide};

use crate::limiter::in_memory;
use crate::limiter::request::{Answer, Request, Target, after_block, check_count};
use crate::limiter::shards::{self, Locked, LockedShard};
use crate::limiter::tally::{self, Verdict as Tallied};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::subtransaction::attempt;
use crate::pg::transaction::{is_read_only, refuse_read_only_call};
use crate::store::memory::{Id, Kept, Memory};
use crate::store::{self, Store, TRIES};

/// How many requests of one call may be for limits in memory: what they take is written under locks that others wait
/// for.
pub const MAX_IN_MEMORY: usize = 1_000;

/// The outcome of one request.
pub struct Outcome {
    /// Whether this limit alone would allow it, after the earlier requests for the same limit.
    pub allows: bool,
    /// Whether it refuses for ever, and so never lets the whole call pass.
    pub never: bool,
    /// The answer; its `ok` is that of the whole call.
    pub answer: Answer,
}

impl Outcome {
    fn retry_at_once(mut self) -> Outcome {
        self.answer.retry_after = Some(Micros(0));
        self
    }
}

/// The requests for one (name, key).
struct Group<'a> {
    target: Target<'a>,
    /// Whether one of them has no config, and so uses the definition.
    defined: bool,
    /// The requests' index, count and reserve, in the given order.
    takes: Vec<(usize, f64, bool)>,
    /// Where its windows begin, of a kind that has windows.
    phase: Micros,
    /// Where the state is, of a limit in memory.
    in_memory: Option<InMemory>,
}

/// A state in memory.
struct InMemory {
    memory: &'static Memory,
    id: Id,
}

/// The decisions for a group at an instant.
struct Verdict<'a> {
    now: Micros,
    shards: Shards<'a>,
    /// Whether a refusal is one; otherwise this is a dry run.
    enforced: bool,
    /// In the order of the group's takes.
    decisions: Vec<Decision>,
    /// The state of the total before and after the takes that pass; `None`: unchanged.
    change: Option<(State, State)>,
}

/// Who has the rows that a group is to change.
enum Held {
    /// This transaction, or as first seen there is nothing to change.
    Here,
    /// Others, and of a dry run; it takes nothing then.
    Elsewhere,
    /// Nobody: it is in memory.
    Memory,
}

/// Takes tokens from all the limits, or from none.
///
/// # Errors
/// Those of [`single::limit`](crate::limiter::single::limit), each with the number of its request.
pub fn limit(function: pg_sys::Oid, requests: &[Request]) -> Result<Vec<Outcome>> {
    let read_only = is_read_only();
    let lock = if read_only { TableLock::Read } else { TableLock::Write };
    catalog::with(function, lock, |catalog| {
        let groups = group("rl_limit_all", catalog, requests)?;
        let outcomes = if !groups.iter().any(Group::is_in_table) {
            // No row is read, and no table locked.
            take_from_memory(&groups)?
        } else {
            refuse_read_only_call(function)?;
            store::with_store(catalog, TableLock::Write, |store| take(store, &groups))?
        };
        for (request, outcome) in requests.iter().zip(&outcomes) {
            let verdict = match (outcome.allows, outcome.answer.ok) {
                (true, true) => Tallied::Allowed,
                (true, false) => continue, // it took nothing, because of another
                _ => Tallied::Denied { enforced: outcome.answer.enforced },
            };
            let place = tally::place(catalog, request)?;
            tally::count(catalog, place, request, &outcome.answer, verdict);
        }
        Ok(outcomes)
    })
}

/// Takes tokens for all groups, of which none is in the table, or for none.
///
/// # Errors
/// None that happens.
fn take_from_memory(groups: &[Group]) -> Result<Vec<Outcome>> {
    let mut verdicts = Vec::new();
    if groups.iter().any(|group| group.in_memory.is_none()) {
        verdicts = peek(None, groups)?;
        if !verdicts.iter().all(Verdict::allows) {
            return Ok(outcomes(groups, &verdicts, false));
        }
    }
    let (taken, ok) = match decide_in_memory(groups) {
        Ok(taken) => (taken, true),
        Err(refused) => (refused, false),
    };
    if verdicts.is_empty() {
        return Ok(outcomes(groups, &taken, ok));
    }
    put(groups, &mut verdicts, taken);
    Ok(outcomes(groups, &verdicts, ok))
}

/// Decides the groups that are in memory, and takes their tokens if all of them allow it. Windows of a calendar and
/// debts take their time, so all is decided before anything is locked: under the locks no more is done than to see
/// that the states are the same, and to write. Where others have changed many of them meanwhile it begins anew.
///
/// # Errors
/// The same verdicts, if one refuses.
fn decide_in_memory<'a>(
    groups: &'a [Group],
) -> std::result::Result<Vec<Verdict<'a>>, Vec<Verdict<'a>>> {
    let kept = |group: &'a Group| Some((group, group.in_memory.as_ref()?));
    let kept: Vec<(&Group, &InMemory)> = groups.iter().filter_map(kept).collect();
    let Some(&(_, InMemory { memory, .. })) = kept.first() else { return Ok(Vec::new()) };
    let (mut plans, mut ok) = (Vec::with_capacity(kept.len()), false);
    for tried in 1..=PLANS {
        plans.clear();
        for &(group, place) in &kept {
            check_for_interrupts();
            plans.push(Plan::new(group, place));
        }
        if !plans.iter().all(|plan| plan.verdict.allows()) {
            break;
        }
        let most = if tried < PLANS { DECIDED_UNDER_LOCKS } else { usize::MAX };
        if let Some(passed) = take_as_planned(memory, &mut plans, most) {
            ok = passed;
            break;
        }
    }
    in_memory::tell_losses(memory);
    let verdicts = plans.into_iter().map(|plan| plan.verdict(ok)).collect();
    if ok { Ok(verdicts) } else { Err(verdicts) }
}

/// How often the groups in memory are decided before they are locked. The last time, what has changed since is
/// decided under the locks however much it is.
const PLANS: usize = 4;

/// How many takes, of states that have changed since, are decided under the locks before that: some microseconds each.
const DECIDED_UNDER_LOCKS: usize = 16;

/// What is to become of a group in memory.
struct Plan<'a> {
    group: &'a Group<'a>,
    id: Id,
    /// The state that is stored; `None`: none is.
    found: Option<State>,
    /// The takes, decided on it.
    verdict: Verdict<'a>,
    /// The state after them, and when it is idle; `None`: they change nothing.
    after: Option<(State, Option<Micros>)>,
    /// Where it had changed: the state before the takes as they were decided under the locks, and at what instant.
    again: Option<(State, Micros)>,
}

impl<'a> Plan<'a> {
    /// Reads the state and decides the takes.
    fn new(group: &'a Group<'a>, &InMemory { memory, id }: &InMemory) -> Plan<'a> {
        let found = memory.states.call(id).and_then(Kept::state);
        // Of this state no take is later.
        let now = clock::now();
        let before = in_memory::state(&group.target, found.clone(), now, group.phase);
        let verdict = group.decide(Shards::new(&group.target.limit, vec![before]), now);
        let after = verdict.change.as_ref().map(|(_, after)| group.idle_at(after, now));
        Plan { group, id, found, verdict, after, again: None }
    }

    /// Decides the takes anew, under the locks: no more than that; whether they pass.
    fn decide_again(&mut self, found: Option<State>, now: Micros) -> bool {
        let before = in_memory::state(&self.group.target, found, now, self.group.phase);
        let (passes, after) = self.group.pass(&before, now);
        self.after = after.map(|after| self.group.idle_at(&after, now));
        self.again = Some((before, now));
        passes
    }

    /// The verdict on the takes, with the state that they left where they were taken.
    fn verdict(self, taken: bool) -> Verdict<'a> {
        let mut verdict = match self.again {
            None => self.verdict,
            Some((before, now)) => {
                self.group.decide(Shards::new(&self.group.target.limit, vec![before]), now)
            }
        };
        if let (true, Some((after, _))) = (taken, self.after) {
            verdict.shards.states_mut()[0] = after;
        }
        verdict
    }
}

/// Takes what was planned, unless a state that has changed since refuses it; whether it was taken. `None` where more
/// than `most` takes are of states that have changed since: nothing was decided. Under the locks nothing of Postgres
/// is called but the clock.
fn take_as_planned(memory: &Memory, plans: &mut [Plan], most: usize) -> Option<bool> {
    let mut states = memory.states.lock_all(plans.iter().map(|plan| plan.id));
    let now = clock::now();
    let (mut passes, mut decided) = (true, 0);
    for plan in plans.iter_mut() {
        let found = states.state(plan.id).and_then(Kept::state);
        if found != plan.found {
            decided += plan.group.takes.len();
            if decided > most {
                return None;
            }
            passes &= plan.decide_again(found, now);
        }
    }
    for plan in plans.iter().filter(|_| passes) {
        if let Some((after, idle_at)) = &plan.after
            && let Some(kept) = Kept::of(after)
        {
            let half_used = plan.group.target.limit.is_half_used(after);
            states.set(plan.id, kept, *idle_at, half_used, now);
        }
    }
    Some(passes)
}

/// Takes tokens for all groups, or for none.
///
/// # Errors
/// Those of the store; [`Error::NotWritten`] (55000) when rows keep vanishing.
fn take(store: &dyn Store, groups: &[Group]) -> Result<Vec<Outcome>> {
    for tried in 0..TRIES {
        check_for_interrupts();
        let peeked = peek(Some(store), groups)?;
        let ok = peeked.iter().all(Verdict::allows);
        if !ok || peeked.iter().all(|verdict| verdict.change.is_none()) {
            return Ok(outcomes(groups, &peeked, ok));
        }
        let mut refused = None;
        let refusal = outcomes(groups, &peeked, false);
        let taken = attempt(|| {
            // One row of each limit with shards on the first try, then as many as needed.
            let Some(locked) = lock(store, groups, peeked, tried == 0)? else {
                return Ok(None);
            };
            let now = clock::now();
            let mut verdicts = Vec::new();
            let mut sufficient = true;
            for (group, (rows, held)) in groups.iter().zip(&locked) {
                check_for_interrupts();
                let mut verdict = group.decide(rows.shards.clone(), now);
                match held {
                    Held::Memory => {}
                    Held::Elsewhere => verdict.give_up(),
                    Held::Here => sufficient &= verdict.fits(&rows.locked),
                }
                verdicts.push(verdict);
            }
            if !verdicts.iter().all(Verdict::allows) {
                // A limit of which only some rows are locked may have enough in the others.
                let whole = |(rows, _): &(Locked, Held)| {
                    rows.locked.is_empty() || rows.locked.len() == rows.shards.states().len()
                };
                if locked.iter().all(whole) {
                    refused = Some(outcomes(groups, &verdicts, false));
                }
                return Ok(None);
            }
            if !sufficient {
                return Ok(None);
            }
            let in_memory = match decide_in_memory(groups) {
                Ok(taken) => taken,
                Err(refusing) => {
                    put(groups, &mut verdicts, refusing);
                    refused = Some(outcomes(groups, &verdicts, false));
                    return Ok(None);
                }
            };
            for ((group, verdict), (rows, _)) in groups.iter().zip(&mut verdicts).zip(&locked) {
                if group.in_memory.is_none() {
                    verdict.write(store, &group.target, &rows.locked)?;
                }
            }
            put(groups, &mut verdicts, in_memory);
            Ok(Some(outcomes(groups, &verdicts, true)))
        });
        let taken = match taken {
            // Locked rows: retry at once.
            Err(Error::Busy) => {
                return Ok(refusal.into_iter().map(Outcome::retry_at_once).collect());
            }
            taken => taken?,
        };
        if let Some(outcomes) = taken.or(refused) {
            return Ok(outcomes);
        }
    }
    Err(store.not_written())
}

/// Puts the verdicts of the groups that are in memory into their places among all.
fn put<'a>(groups: &[Group], verdicts: &mut [Verdict<'a>], in_memory: Vec<Verdict<'a>>) {
    let places = groups.iter().zip(verdicts).filter(|(group, _)| group.in_memory.is_some());
    places.zip(in_memory).for_each(|((_, place), verdict)| *place = verdict);
}

/// Answers as [`limit`] would, without locking or writing anything.
///
/// # Errors
/// As [`limit`].
pub fn check(function: pg_sys::Oid, requests: &[Request]) -> Result<Vec<Outcome>> {
    catalog::with(function, TableLock::Read, |catalog| {
        let groups = group("rl_check_all", catalog, requests)?;
        let check = |store: Option<&dyn Store>| {
            let peeked = peek(store, &groups)?;
            let ok = peeked.iter().all(Verdict::allows);
            Ok(outcomes(&groups, &peeked, ok))
        };
        if !groups.iter().any(Group::is_in_table) {
            return check(None);
        }
        store::with_store(catalog, TableLock::Read, |store| check(Some(store)))
    })
}

/// Groups the requests by (name, key), in the order in which rows are locked.
///
/// # Errors
/// [`Error::InRequest`]: as [`Request::resolve`], [`Target::refuse_leases`] or [`check_count`];
/// 22023 also for two configs of one limit, and for more requests of limits in memory than [`MAX_IN_MEMORY`].
fn group<'a>(
    function: &'static str,
    catalog: &Catalog,
    requests: &'a [Request],
) -> Result<Vec<Group<'a>>> {
    let mut groups: BTreeMap<(&[u8], &[u8]), Group> = BTreeMap::new();
    let mut in_memory = 0;
    for (n, request) in requests.iter().enumerate() {
        let in_request = |error| Error::InRequest { n: n + 1, error: Box::new(error) };
        let defined = request.config.is_none();
        let earlier = groups.get_mut(&(request.name, request.key));
        let target = match &earlier {
            // Not resolved again, since the definition may have changed meanwhile.
            Some(group) if defined && group.defined => Target {
                limit: group.target.limit.clone(),
                blocked_until: group.target.blocked_until,
                ..group.target
            },
            _ => request.resolve(catalog).map_err(in_request)?,
        };
        target.refuse_leases(function).map_err(in_request)?;
        check_count(&target.limit, request.count).map_err(in_request)?;
        let take = (n, request.count, request.reserve);
        in_memory += usize::from(target.is_in_memory());
        match earlier {
            Some(group) if group.target.limit != target.limit => {
                return Err(in_request(Error::InvalidArgument {
                    argument: "config",
                    value: "not that of an earlier request for the same name and key".into(),
                    allowed: "one config for a limit".into(),
                }));
            }
            Some(group) => {
                group.defined |= defined;
                group.takes.push(take);
            }
            None => {
                let takes = vec![take];
                let in_memory = match target.is_in_memory() {
                    false => None,
                    true => {
                        let memory = Memory::get()?;
                        let id = in_memory::id(memory, catalog, &target);
                        Some(InMemory { memory, id })
                    }
                };
                let phase = in_memory::phase(&target);
                let group = Group { target, defined, takes, phase, in_memory };
                groups.insert((request.name, request.key), group);
            }
        }
    }
    if in_memory > MAX_IN_MEMORY {
        return Err(Error::InvalidArgument {
            argument: "requests",
            value: format!("a list with {in_memory} requests for limits in memory"),
            allowed: format!("at most {MAX_IN_MEMORY} of them in one call"),
        });
    }
    Ok(groups.into_values().collect())
}

/// Decides every group under the latest state, without locks. Where all are in memory there is no store.
///
/// # Errors
/// Those of the store.
fn peek<'a>(store: Option<&dyn Store>, groups: &'a [Group]) -> Result<Vec<Verdict<'a>>> {
    let shards = groups
        .iter()
        .map(|group| {
            check_for_interrupts();
            let target = &group.target;
            match (&group.in_memory, store) {
                _ if target.limit.kind() == Kind::Unlimited => {
                    let now = clock::now();
                    Ok(Shards::new(&target.limit, vec![target.limit.initial_state(now, now)]))
                }
                (None, Some(store)) => Ok(shards::peek(store, target)?.1.shards),
                (Some(InMemory { memory, id }), _) => {
                    let found = memory.states.call(*id).and_then(Kept::state);
                    let state = in_memory::state(target, found, clock::now(), group.phase);
                    Ok(Shards::new(&target.limit, vec![state]))
                }
                (None, None) => Err(Error::Moved), // which does not happen: see `check`
            }
        })
        .collect::<Result<Vec<Shards>>>()?;
    let now = clock::now();
    let decide = |(group, shards): (&'a Group, Shards<'a>)| {
        check_for_interrupts();
        group.decide(shards, now)
    };
    Ok(groups.iter().zip(shards).map(decide).collect())
}

/// Locks the rows to be changed, limit by limit; of a limit with shards only one where `single_row`.
/// `None` if they must be read again.
///
/// # Errors
/// Those of the store; [`Error::Busy`].
fn lock<'a>(
    store: &dyn Store,
    groups: &'a [Group],
    peeked: Vec<Verdict<'a>>,
    single_row: bool,
) -> Result<Option<Vec<(Locked<'a>, Held)>>> {
    let mut locked = Vec::new();
    let without_rows = |shards| Locked { shards, locked: Vec::new() };
    for (group, verdict) in groups.iter().zip(peeked) {
        check_for_interrupts();
        if group.in_memory.is_some() {
            locked.push((without_rows(verdict.shards), Held::Memory));
            continue;
        }
        let Some((before, after)) = &verdict.change else {
            locked.push((without_rows(verdict.shards), Held::Here));
            continue;
        };
        let amount = after.value() - before.value();
        let seen = (!verdict.enforced).then(|| verdict.shards.clone());
        match (shards::lock(store, &group.target, verdict.shards, amount, single_row), seen) {
            (Err(Error::Busy), Some(seen)) => locked.push((without_rows(seen), Held::Elsewhere)),
            (rows, _) => match rows? {
                Some(rows) => locked.push((rows, Held::Here)),
                None => return Ok(None),
            },
        }
    }
    Ok(Some(locked))
}

impl Group<'_> {
    /// Whether its state is in the table.
    fn is_in_table(&self) -> bool {
        self.in_memory.is_none() && self.target.limit.kind() != Kind::Unlimited
    }

    /// Decides the takes at `now`, unless the key is blocked.
    fn decide<'a>(&'a self, shards: Shards<'a>, now: Micros) -> Verdict<'a> {
        let Some(until) = self.target.block(now) else { return self.decide_unblocked(shards, now) };
        let then = self.decide_unblocked(shards.clone(), until).decisions;
        let denied = |then: Decision| Decision {
            ok: false,
            retry_after: after_block(until, now, |_| {
                let passes = then.ok || !self.target.limit.enforce;
                if passes { Some(Micros(0)) } else { then.retry_after }
            }),
            level: shards.level(now),
            state: None,
        };
        let decisions = then.into_iter().map(denied).collect();
        Verdict { now, shards: shards.clone(), enforced: true, decisions, change: None }
    }

    /// Decides the takes at `now`, whether the key is blocked or not.
    fn decide_unblocked<'a>(&'a self, shards: Shards<'a>, now: Micros) -> Verdict<'a> {
        let (mut decisions, change) = self.run(shards.total(now), now);
        // Takes that exceed even a full limit together never pass.
        let ever = self.takes.len() == 1 || {
            let fresh = self.target.limit.initial_state(now, self.phase);
            self.run(fresh, now).0.iter().all(|decision| decision.ok)
        };
        if decisions.iter().any(|decision| !decision.ok) {
            let soonest = self.run(shards.upper_bound(now), now).0;
            let refused = soonest.iter().filter(|decision| !decision.ok);
            let least = refused
                .map(|decision| decision.retry_after)
                .max_by_key(|wait| wait.unwrap_or(Micros(i64::MAX)))
                .unwrap_or(Some(Micros(0)));
            let passes = |wait: Micros| {
                check_for_interrupts();
                let then = now.plus(wait);
                self.run(shards.total(then), then).0.iter().all(|decision| decision.ok)
            };
            let retry_after = least.filter(|_| ever).and_then(|least| first_pass(least, passes));
            for decision in decisions.iter_mut().filter(|decision| !decision.ok) {
                decision.retry_after = retry_after;
            }
        }
        Verdict { now, shards, enforced: self.target.limit.enforce, decisions, change }
    }

    /// A state of its limit in memory, with when it is idle; `None`: never.
    fn idle_at(&self, state: &State, now: Micros) -> (State, Option<Micros>) {
        (state.clone(), self.target.limit.idle_at(state, now, self.phase))
    }

    /// Whether the takes pass at `now`, and the state after those that do; `None`: the same. As
    /// [`run`](Group::run), without a list of the decisions.
    fn pass(&self, before: &State, now: Micros) -> (bool, Option<State>) {
        let (limit, mut after) = (&self.target.limit, None);
        let mut passes = self.target.block(now).is_none();
        for &(_, count, reserve) in &self.takes {
            let decision = decide(limit, after.as_ref().unwrap_or(before), now, count, reserve);
            passes &= decision.ok || !limit.enforce;
            after = decision.state.or(after);
        }
        (passes, after)
    }

    /// Decides the takes one after the other, each on the state that those before it left. Returns the
    /// decisions and the states before and after; `None` if unchanged.
    fn run(&self, before: State, now: Micros) -> (Vec<Decision>, Option<(State, State)>) {
        let limit = &self.target.limit;
        let (mut after, mut changed) = (before.clone(), false);
        let decide = |&(_, count, reserve): &(usize, f64, bool)| {
            let decision = decide(limit, &after, now, count, reserve);
            if let Some(state) = &decision.state {
                after = state.clone();
                changed = true;
            }
            decision
        };
        let decisions = self.takes.iter().map(decide).collect();
        (decisions, changed.then_some((before, after)))
    }
}

impl Verdict<'_> {
    fn allows(&self) -> bool {
        self.decisions.iter().all(|decision| self.passes(decision))
    }

    /// Whether a request passes as far as this limit is asked.
    fn passes(&self, decision: &Decision) -> bool {
        decision.ok || !self.enforced
    }

    /// Whether the locked rows suffice for the change. None do where none were locked, because as they
    /// were seen first nothing would have changed.
    fn fits(&self, locked: &[LockedShard]) -> bool {
        let Some((before, after)) = &self.change else { return true };
        locked.len() == self.shards.states().len()
            || !locked.is_empty() && self.available(locked) + after.value() - before.value() >= 0.0
    }

    /// Takes nothing, as if the tokens were not there: the rows are locked by others, and can't be waited
    /// for.
    fn give_up(&mut self) {
        self.change = None;
        for decision in &mut self.decisions {
            (decision.ok, decision.retry_after) = (false, Some(Micros(0)));
        }
    }

    /// Returns the tokens in the locked rows.
    fn available(&self, locked: &[LockedShard]) -> f64 {
        locked.iter().map(|&(shard, _)| self.shards.available(shard, self.now)).sum()
    }

    /// Writes the change to the locked rows.
    ///
    /// # Errors
    /// Those of the store.
    fn write(&mut self, store: &dyn Store, target: &Target, locked: &[LockedShard]) -> Result<()> {
        let Some((before, after)) = &self.change else { return Ok(()) };
        if self.shards.states().len() == 1 {
            self.shards.states_mut()[0] = after.clone();
            return store.update(target.row(0), locked[0].1, &after.clone().into());
        }
        let tokens = match locked.len() == self.shards.states().len() {
            true => after.value(),
            false => self.available(locked) + after.value() - before.value(),
        };
        let (now, ts) = (self.now, after.ts());
        shards::write(store, target, &mut self.shards, locked, now, tokens, ts)
    }
}

/// Returns the outcomes in the order of the requests.
fn outcomes(groups: &[Group], verdicts: &[Verdict], ok: bool) -> Vec<Outcome> {
    let mut outcomes: Vec<(usize, Outcome)> = Vec::new();
    let never = !ok
        && verdicts.iter().any(|verdict| {
            let mut refusals =
                verdict.decisions.iter().filter(|decision| !verdict.passes(decision));
            refusals.any(|decision| decision.retry_after.is_none())
        });
    for (group, verdict) in groups.iter().zip(verdicts) {
        let level = verdict.shards.level(verdict.now);
        for (&(n, ..), decision) in group.takes.iter().zip(&verdict.decisions) {
            let mut answer = group.target.answer(decision, level, verdict.now);
            answer.ok = ok;
            answer.enforced = verdict.enforced;
            answer.blocked = group.target.block(verdict.now);
            // In a refused call a request that its limit allows has nothing to wait for; and a call
            // with a request that never passes never passes.
            let waits = if ok { decision.ok } else { !(verdict.passes(decision) || never) };
            answer.retry_after = answer.retry_after.filter(|_| waits);
            let never = !verdict.passes(decision) && decision.retry_after.is_none();
            outcomes.push((n, Outcome { allows: decision.ok, never, answer }));
        }
    }
    outcomes.sort_by_key(|&(n, _)| n);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
