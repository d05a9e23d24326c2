//! Several limits in one call, all or nothing.
//!
//! First a look that locks nothing: if a limit refuses, that is the answer. Otherwise the rows are
//! locked in one order, by name, key and shard, whatever order was asked, so that two such calls
//! never deadlock; then all is decided again, at one instant. If now one refuses, the locks are
//! given back.

use std::collections::BTreeMap;

use pgrx::pg_sys;
use ratelimit_core::algorithm::first_pass;
use ratelimit_core::{Decision, Micros, Shards, State, decide};

use crate::limiter::definitions;
use crate::limiter::request::{Answer, Request, Target, check_count};
use crate::limiter::shards::{self, Locked};
use crate::pg::catalog::{self, Catalog, TableLock};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::subtransaction::attempt;
use crate::store::{self, Store, TRIES, TupleId};

/// What one of the requests is answered.
pub struct Outcome {
    /// Whether this limit alone would allow it, after the requests before it for the same limit.
    pub allows: bool,
    /// Its `ok` is that of the whole call.
    pub answer: Answer,
}

impl Outcome {
    fn at_once(mut self) -> Outcome {
        self.answer.retry_after = Some(Micros(0));
        self
    }
}

/// The requests for one (name, key).
struct Group<'a> {
    target: Target<'a>,
    /// Whether one of them goes by the definition.
    defined: bool,
    /// Their numbers, count and reserve, in the order given.
    takes: Vec<(usize, f64, bool)>,
}

/// What a group's limit answers at an instant.
struct Verdict<'a> {
    parts: Shards<'a>,
    decisions: Vec<Decision>,
    /// The state of the total before, and after all that passed; `None`: nothing changes.
    change: Option<(State, State)>,
}

/// Takes tokens from all the limits, or from none.
///
/// # Errors
/// Those of a single call, each naming its request.
pub fn limit(function: pg_sys::Oid, requests: &[Request]) -> Result<Vec<Outcome>> {
    catalog::with(function, TableLock::Write, |catalog| {
        let groups = group(catalog, requests)?;
        store::with_store(catalog, TableLock::Write, |store| take(store, &groups))
    })
}

fn take(store: &dyn Store, groups: &[Group]) -> Result<Vec<Outcome>> {
    for tried in 0..TRIES {
        check_for_interrupts();
        let (now, looked) = look(store, groups)?;
        let ok = looked.iter().all(Verdict::allows);
        if !ok || looked.iter().all(|verdict| verdict.change.is_none()) {
            return Ok(outcomes(groups, &looked, now, ok));
        }
        let mut refused = None;
        let refusal = outcomes(groups, &looked, now, false);
        let taken = attempt(|| {
            // At first of a limit with shards one row, then whatever it takes.
            let Some(locked) = lock(store, groups, looked, tried == 0)? else {
                return Ok(None);
            };
            let now = clock::now();
            let mut verdicts = Vec::new();
            let mut enough = true;
            for (group, rows) in groups.iter().zip(&locked) {
                check_for_interrupts();
                let verdict = group.decide(rows.parts.clone(), now);
                enough &= verdict.fits(&rows.among, now);
                verdicts.push(verdict);
            }
            if !verdicts.iter().all(Verdict::allows) {
                // Seen from some rows of a limit only, it may yet have enough.
                let whole = |rows: &Locked| {
                    rows.among.is_empty() || rows.among.len() == rows.parts.states().len()
                };
                if locked.iter().all(whole) {
                    refused = Some(outcomes(groups, &verdicts, now, false));
                }
                return Ok(None);
            }
            if !enough {
                return Ok(None);
            }
            for ((group, verdict), rows) in groups.iter().zip(&mut verdicts).zip(&locked) {
                verdict.write(store, &group.target, &rows.among, now)?;
            }
            Ok(Some(outcomes(groups, &verdicts, now, true)))
        });
        let taken = match taken {
            // It may be tried again at once.
            Err(Error::Busy) => return Ok(refusal.into_iter().map(Outcome::at_once).collect()),
            taken => taken?,
        };
        if let Some(outcomes) = taken.or(refused) {
            return Ok(outcomes);
        }
    }
    Err(store.not_written())
}

/// Tells what [`limit`] would answer, consuming, locking and writing nothing.
///
/// # Errors
/// As [`limit`].
pub fn check(function: pg_sys::Oid, requests: &[Request]) -> Result<Vec<Outcome>> {
    catalog::with(function, TableLock::Read, |catalog| {
        let groups = group(catalog, requests)?;
        store::with_store(catalog, TableLock::Read, |store| {
            let (now, looked) = look(store, &groups)?;
            let ok = looked.iter().all(Verdict::allows);
            Ok(outcomes(&groups, &looked, now, ok))
        })
    })
}

/// The requests by (name, key), in the order in which rows are locked.
fn group<'a>(catalog: &Catalog, requests: &'a [Request]) -> Result<Vec<Group<'a>>> {
    let mut groups: BTreeMap<(&[u8], &[u8]), Group> = BTreeMap::new();
    for (n, request) in requests.iter().enumerate() {
        let in_request = |error| Error::InRequest { n: n + 1, error: Box::new(error) };
        let defined = request.config.is_none();
        let earlier = groups.get_mut(&(request.name, request.key));
        let limit = match &earlier {
            // Looked up again, it may have changed since.
            Some(group) if defined && group.defined => group.target.limit.clone(),
            _ => definitions::resolve(catalog, request.name, request.key, request.config)
                .map_err(in_request)?,
        };
        check_count(&limit, request.count).map_err(in_request)?;
        let take = (n, request.count, request.reserve);
        match earlier {
            Some(group) if group.target.limit != limit => {
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
                let target = Target { name: request.name, key: request.key, limit };
                let takes = vec![take];
                groups.insert((request.name, request.key), Group { target, defined, takes });
            }
        }
    }
    Ok(groups.into_values().collect())
}

/// What every limit would answer now, under the latest state; locks nothing.
fn look<'a>(store: &dyn Store, groups: &'a [Group]) -> Result<(Micros, Vec<Verdict<'a>>)> {
    let parts = groups
        .iter()
        .map(|group| {
            check_for_interrupts();
            Ok(shards::look(store, &group.target)?.1.parts)
        })
        .collect::<Result<Vec<Shards>>>()?;
    let now = clock::now();
    let decide = |(group, parts): (&'a Group, Shards<'a>)| {
        check_for_interrupts();
        group.decide(parts, now)
    };
    Ok((now, groups.iter().zip(parts).map(decide).collect()))
}

/// Locks what is to be changed, limit by limit; nothing if it must be looked at again.
fn lock<'a>(
    store: &dyn Store,
    groups: &'a [Group],
    looked: Vec<Verdict<'a>>,
    sparing: bool,
) -> Result<Option<Vec<Locked<'a>>>> {
    let mut locked = Vec::new();
    for (group, verdict) in groups.iter().zip(looked) {
        check_for_interrupts();
        let Some((before, after)) = &verdict.change else {
            locked.push(Locked { parts: verdict.parts, among: Vec::new() });
            continue;
        };
        let amount = after.value - before.value;
        match shards::lock(store, &group.target, verdict.parts, amount, sparing)? {
            Some(rows) => locked.push(rows),
            None => return Ok(None),
        }
    }
    Ok(Some(locked))
}

impl Group<'_> {
    /// What the limit, as its parts stand, answers at `now`.
    fn decide<'a>(&'a self, parts: Shards<'a>, now: Micros) -> Verdict<'a> {
        let (mut decisions, change) = self.run(parts.total(now), now);
        // When all of this limit's requests can pass, one after the other: never, if they couldn't
        // on a new one.
        let ever = self.takes.len() == 1 || {
            let fresh = self.target.limit.initial_state(now, self.target.phase());
            self.run(fresh, now).0.iter().all(|decision| decision.ok)
        };
        if decisions.iter().any(|decision| !decision.ok) {
            let soonest = self.run(parts.upper_bound(now), now).0;
            let refused = soonest.iter().filter(|decision| !decision.ok);
            let least = refused
                .map(|decision| decision.retry_after)
                .max_by_key(|wait| wait.unwrap_or(Micros(i64::MAX)))
                .unwrap_or(Some(Micros(0)));
            let passes = |wait: Micros| {
                let then = now.plus(wait);
                self.run(parts.total(then), then).0.iter().all(|decision| decision.ok)
            };
            let retry_after = least.filter(|_| ever).and_then(|least| first_pass(least, passes));
            for decision in decisions.iter_mut().filter(|decision| !decision.ok) {
                decision.retry_after = retry_after;
            }
        }
        Verdict { parts, decisions, change }
    }

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
        self.decisions.iter().all(|decision| decision.ok)
    }

    /// Whether the rows of `among` bear the change without the others.
    fn fits(&self, among: &[(usize, TupleId)], now: Micros) -> bool {
        let Some((before, after)) = &self.change else { return true };
        among.len() == self.parts.states().len()
            || self.held(among, now) + after.value - before.value >= 0.0
    }

    /// The tokens in some of the parts.
    fn held(&self, among: &[(usize, TupleId)], now: Micros) -> f64 {
        among.iter().map(|&(n, _)| self.parts.available(n, now)).sum()
    }

    /// Stores the change in the rows of `among`.
    fn write(
        &mut self,
        store: &dyn Store,
        target: &Target,
        among: &[(usize, TupleId)],
        now: Micros,
    ) -> Result<()> {
        let Some((before, after)) = &self.change else { return Ok(()) };
        if self.parts.states().len() == 1 {
            self.parts.states_mut()[0] = after.clone();
            return store.update(target.row(0), among[0].1, after);
        }
        let tokens = match among.len() == self.parts.states().len() {
            true => after.value,
            false => self.held(among, now) + after.value - before.value,
        };
        let ts = after.ts;
        shards::write(store, target, &mut self.parts, among, now, tokens, ts)
    }
}

/// The answers in the order of the requests.
fn outcomes(groups: &[Group], verdicts: &[Verdict], now: Micros, ok: bool) -> Vec<Outcome> {
    let mut outcomes: Vec<(usize, Outcome)> = Vec::new();
    let refuses = |decision: &&Decision| !ok && !decision.ok;
    let refusals = || verdicts.iter().flat_map(|verdict| &verdict.decisions).filter(refuses);
    let never = refusals().any(|decision| decision.retry_after.is_none());
    for (group, verdict) in groups.iter().zip(verdicts) {
        let level = verdict.parts.level(now);
        for (&(n, ..), decision) in group.takes.iter().zip(&verdict.decisions) {
            let mut answer = group.target.answer(decision, level, now);
            answer.ok = ok;
            // In a call that is refused, one that this limit allows has nothing to wait for; and
            // where one can never pass, the same call never can.
            answer.retry_after = answer.retry_after.filter(|_| ok || !(decision.ok || never));
            outcomes.push((n, Outcome { allows: decision.ok, answer }));
        }
    }
    outcomes.sort_by_key(|&(n, _)| n);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
