//! Simulates a limiter: sessions whose calls take time, rows with versions, locks and waits, and entries of memory. It
//! decides by `ratelimit_core`, and can have one fault.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use ratelimit_core::hold::{Hold, Took};
use ratelimit_core::kinds::Leases;
use ratelimit_core::{Limit, Micros, State, config, credit, decide, phase};
use ratelimit_judge::{Asked, End, History, Invocation, Limited, Reply, Storage};

/// A fault, which happens once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// A take is decided on the state before its wait.
    StaleAfterWait,
    /// A take is decided at the time before its wait, for a transaction that was committed.
    ClockBeforeWait,
    /// A denial comes from a state of more than 5 ms ago.
    DenialFromOld,
    CommitLost,
    RollbackKept,
    SavepointKept,
    /// The call is made on another key.
    OtherKey,
    /// A row is free before its transaction ends.
    UnlockedEarly,
    ResetLost,
    /// A change in memory is lost.
    WriteLost,
    /// A live lease is not seen.
    LeaseOverlooked,
    /// A hold that has expired is not seen.
    ExpiryOverlooked,
    /// A hold is settled again.
    SettledTwice,
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n) as i64
    }
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub config: &'static str,
    pub storage: Storage,
    pub keys: u64,
    pub calls: usize,
    /// Whether the instants of decisions are recorded.
    pub knows_now: bool,
    pub fault: Fault,
    pub seed: u64,
    /// Whether there are holds.
    pub holds: bool,
}

/// What is stored of a key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stored {
    state: Option<State>,
    holds: Vec<(u64, Hold)>,
}

/// A version that others have not seen yet: of which call it is, by its number in the transaction.
type Own = (usize, Stored);

#[derive(Default)]
struct Row {
    committed: Stored,
    old: VecDeque<(i64, Stored)>,
    own: Vec<Own>,
    holder: Option<usize>,
    queue: VecDeque<usize>,
}

#[derive(Clone, Default)]
struct Session {
    transaction: u32,
    /// No BEGIN.
    alone: bool,
    key: usize,
    asked: Option<Asked>,
    invoked: i64,
    seen: Stored,
    seen_at: i64,
    left: u32,
    calls: Vec<Invocation>,
    savepoint: Option<usize>,
    leases: Vec<(usize, i64)>,
    step: Step,
    ending: Option<End>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Step {
    #[default]
    Begin,
    Invoke,
    Decide,
    Waited,
    RollBackTo,
    Undo,
    End,
    Ended,
}

pub struct Simulation {
    scene: Scene,
    limit: Limit,
    random: Random,
    rows: Vec<Row>,
    sessions: Vec<Session>,
    events: BinaryHeap<Reverse<(i64, usize)>>,
    pub history: History,
    made: usize,
    transactions: u32,
    leases: i64,
    /// The holds that were taken, with their keys.
    holds: Vec<(usize, u64)>,
    /// Whether the fault has happened.
    pub faulty: bool,
}

const SESSIONS: usize = 16;
pub const BASE: i64 = 1_800_000_000_000_000;

pub fn simulate(scene: Scene) -> Simulation {
    let limit = config::definition(scene.config).unwrap().limit;
    let keys = (0..scene.keys).map(|n| Limited {
        name: "limit".into(),
        key: format!("key {n}"),
        config: scene.config.into(),
        storage: scene.storage,
    });
    let mut simulation = Simulation {
        scene,
        limit,
        random: Random(scene.seed),
        rows: (0..scene.keys).map(|_| Row::default()).collect(),
        sessions: vec![Session::default(); SESSIONS],
        events: (0..SESSIONS).map(|n| Reverse((BASE + n as i64, n))).collect(),
        history: History { skew: Some(5), keys: keys.collect(), ..History::default() },
        made: 0,
        transactions: 0,
        leases: 0,
        holds: Vec::new(),
        faulty: false,
    };
    while let Some(Reverse((at, session))) = simulation.events.pop() {
        simulation.step(at, session);
    }
    simulation
}

impl Simulation {
    fn later(&mut self, at: i64, least: i64, session: usize, step: Step) -> i64 {
        let at = at + least + self.random.below(150);
        self.sessions[session].step = step;
        self.events.push(Reverse((at, session)));
        at
    }

    /// Whether the fault happens now: once, in the middle of the history.
    fn fails(&mut self, fault: Fault) -> bool {
        let now = self.scene.fault == fault && !self.faulty && self.made > self.scene.calls / 2;
        self.faulty |= now;
        now
    }

    fn step(&mut self, at: i64, n: usize) {
        match self.sessions[n].step {
            Step::Begin => self.begin(at, n),
            Step::Invoke => self.invoke(at, n),
            Step::Decide => self.decide(at, n, false),
            Step::Waited => self.decide(at, n, true),
            Step::RollBackTo => {
                self.sessions[n].ending = Some(End { invoked: at, answered: 0, kept: Some(false) });
                self.later(at, 1, n, Step::Undo);
            }
            Step::Undo => self.undo(at, n),
            Step::End => {
                let kept = Some(self.random.below(5) > 0);
                self.sessions[n].ending = Some(End { invoked: at, answered: 0, kept });
                self.later(at, 1, n, Step::Ended);
            }
            Step::Ended => self.end(at, n),
        }
    }

    fn begin(&mut self, at: i64, n: usize) {
        if self.made >= self.scene.calls {
            return;
        }
        let (alone, left) = (self.random.below(5) == 0, 1 + self.random.below(3) as u32);
        let session = &mut self.sessions[n];
        (session.transaction, session.alone, session.savepoint) = (self.transactions, alone, None);
        session.left = if alone { 1 } else { left };
        session.key = 0;
        self.transactions += 1;
        self.later(at, 1, n, Step::Invoke);
    }

    fn invoke(&mut self, at: i64, n: usize) {
        // Keys in order, so that nothing deadlocks.
        let least = self.sessions[n].key as u64;
        let key = (least as i64 + self.random.below(self.scene.keys - least)) as usize;
        if !self.sessions[n].alone && self.random.below(6) == 0 {
            self.sessions[n].savepoint = Some(self.sessions[n].calls.len());
        }
        let asked = self.asked(n, key);
        let session = &mut self.sessions[n];
        (session.key, session.asked, session.invoked) = (key, Some(asked), at);
        self.later(at, 1, n, Step::Decide);
    }

    fn asked(&mut self, n: usize, key: usize) -> Asked {
        let count = 1.0 + self.random.below(3) as f64;
        if let Limit::Concurrency(_) = self.limit {
            let own = self.sessions[n].leases.iter().position(|lease| lease.0 == key);
            return match (self.random.below(4), own) {
                (0, Some(own)) => Asked::Extend { lease: self.sessions[n].leases[own].1 },
                (1 | 2, Some(own)) => {
                    Asked::Release { lease: self.sessions[n].leases.swap_remove(own).1 }
                }
                _ => {
                    self.leases += 1;
                    Asked::Acquire { count: count.min(2.0), lease: self.leases }
                }
            };
        }
        if self.scene.holds && self.random.below(3) > 0 {
            return self.asked_of_holds(key, count);
        }
        match self.random.below(40) {
            0..4 => Asked::Check { count, reserve: false },
            4 => Asked::Reset,
            5 if self.sessions[n].alone && credit_of(&self.limit) => Asked::Credit { count },
            6 => Asked::Limit { count, reserve: credit_of(&self.limit) },
            _ => Asked::Limit { count, reserve: false },
        }
    }

    /// A new hold, a top-up, or the settlement of one, which may have been settled.
    fn asked_of_holds(&mut self, key: usize, count: f64) -> Asked {
        let of_key = self.holds.iter().rev().filter(|hold| hold.0 == key);
        let known: Vec<u64> = of_key.map(|hold| hold.1).take(6).collect();
        let any = self.random.below(6) as usize;
        let (ttl, charge) = (1_000 * (1 + self.random.below(20)), self.random.below(4) == 0);
        let used = [None, Some(0.0), Some(1.0), Some(4.0)][self.random.below(4) as usize];
        let hold = |hold, count: f64, at_least| Asked::Hold {
            hold,
            count,
            at_least,
            ttl,
            charge,
            held: 0.0,
            expires_at: 0,
        };
        match (self.random.below(5), known.get(any)) {
            (0, Some(&number)) => hold(number, count + 2.0, count + 2.0),
            (1 | 2, Some(&number)) => Asked::Settle { hold: number, used },
            (way, _) => {
                self.leases += 1;
                self.holds.push((key, self.leases as u64));
                hold(self.leases as u64, 2.0 * count, if way == 3 { 1.0 } else { 2.0 * count })
            }
        }
    }

    /// What is stored once what has expired by `now` has come back.
    fn expired(&self, key: usize, stored: &Stored, now: Micros) -> Stored {
        let Stored { mut state, mut holds } = stored.clone();
        let mut due: Vec<&mut Hold> = holds.iter_mut().map(|(_, hold)| hold).collect();
        due.retain(|hold| hold.returns() && hold.expires_at <= now);
        due.sort_by_key(|hold| hold.expires_at);
        for hold in due {
            let phase = phase(b"limit", format!("key {key}").as_bytes());
            let full = || self.limit.initial_state(hold.expires_at, phase);
            let (after, changed) = hold.expired(&self.limit, &state.clone().unwrap_or_else(full));
            *hold = after;
            state = changed.or(state);
        }
        Stored { state, holds }
    }

    /// A call's answer on what is stored, and what is stored after it if that changes.
    fn answer(
        &self,
        key: usize,
        stored: &Stored,
        asked: Asked,
        now: i64,
    ) -> (Reply, Option<Stored>) {
        let stored = self.expired(key, stored, Micros(now));
        let holds = &stored.holds;
        let with = |state: Option<State>, holds: &[(u64, Hold)]| {
            Some(Stored { state, holds: holds.to_vec() })
        };
        let now = Micros(now);
        let phase = phase(b"limit", format!("key {key}").as_bytes());
        let state = stored.state.clone().unwrap_or_else(|| self.limit.initial_state(now, phase));
        let truth = |ok| Reply { ok, ..Reply::default() };
        let leases = |after: Option<State>| {
            let is_there = after.is_some();
            (truth(is_there), after.and_then(|after| with(Some(after), holds)))
        };
        let of = |number: u64| holds.iter().position(|hold| hold.0 == number);
        let decision = match (asked, &self.limit, &state) {
            (Asked::Limit { count, reserve } | Asked::Check { count, reserve }, ..) => {
                decide(&self.limit, &state, now, count, reserve)
            }
            (Asked::Credit { count }, ..) => credit(&self.limit, &state, now, count, None).unwrap(),
            (Asked::Reset, ..) => {
                let was = stored.state.is_some();
                return (truth(was), was.then(Stored::default));
            }
            (Asked::Settle { hold, used }, ..) => {
                let Some(at) = of(hold) else { return (truth(false), None) };
                let settled = holds[at].1.settle(&self.limit, &state, now, used).unwrap();
                let mut holds = holds.clone();
                holds.remove(at);
                let remaining = Some(settled.level.remaining);
                let reply = Reply { ok: true, remaining, retry_at: None };
                return (reply, with(Some(settled.state.unwrap_or(state)), &holds));
            }
            (Asked::Hold { hold, count, at_least, ttl, charge, .. }, ..) => {
                let at = of(hold);
                let before = at.map(|at| &holds[at].1);
                let had = before.map_or(0.0, |hold| hold.count);
                let mut took = (count - had).max(0.0);
                let left = self.limit.level(&state, now).remaining;
                if at_least < count && took > left && left.floor() >= (at_least - had).max(1.0) {
                    took = left.floor();
                }
                let repeats = before.is_some() && took == 0.0;
                let decision = decide(&self.limit, &state, now, took, false);
                let remaining = Some(decision.level.remaining);
                if !decision.ok && !repeats {
                    return (Reply { ok: false, remaining, retry_at: None }, None);
                }
                let after = decision.state.unwrap_or(state);
                let until = now.plus(Micros(ttl));
                let new =
                    Hold::of(before, &self.limit, &after, now, Took::at_once(took), until, charge);
                let mut holds = holds.clone();
                holds.retain(|other| other.0 != hold);
                holds.push((hold, new));
                return (Reply { ok: true, remaining, retry_at: None }, with(Some(after), &holds));
            }
            (Asked::Acquire { count, lease }, Limit::Concurrency(_), State::Leases(_)) => {
                self.limit.acquire(&state, now, count, Micros(lease))
            }
            (Asked::Extend { lease }, limit @ Limit::Concurrency(_), State::Leases(_)) => {
                return leases(limit.extend(&state, now, Micros(lease)));
            }
            (Asked::Release { lease }, limit @ Limit::Concurrency(_), State::Leases(_)) => {
                return leases(limit.release(&state, now, Micros(lease)));
            }
            _ => unreachable!(),
        };
        let retry = decision.retry_after.map(|wait| now.plus(wait).ceil_to_millis().0);
        let is_check = matches!(asked, Asked::Check { .. });
        let level = if is_check { self.limit.level(&state, now) } else { decision.level };
        let remaining = Some(level.remaining);
        // Holds that expire make it earlier.
        let is_judged = !decision.ok && !self.scene.holds;
        let reply = Reply { ok: decision.ok, remaining, retry_at: is_judged.then_some(retry) };
        let after = decision.state.filter(|_| !is_check);
        (reply, after.and_then(|after| with(Some(after), holds)))
    }

    fn visible(&self, n: usize, key: usize) -> Stored {
        let row = &self.rows[key];
        match row.own.last() {
            Some(own) if row.holder == Some(n) => own.1.clone(),
            _ => row.committed.clone(),
        }
    }

    fn decide(&mut self, at: i64, n: usize, waited: bool) {
        let Session { key, asked: Some(asked), .. } = self.sessions[n] else { unreachable!() };
        let is_row = self.scene.storage == Storage::Row;
        let mut place = key;
        let other = (key + 1) % self.rows.len();
        if self.scene.fault == Fault::OtherKey && self.rows[other].holder.is_none() {
            let there = self.answer(key, &self.visible(n, other), asked, at + 3).0;
            let here = self.answer(key, &self.visible(n, key), asked, at + 3).0;
            let differs = there.ok && there.remaining != here.remaining;
            if differs && self.fails(Fault::OtherKey) {
                place = other;
            }
        }
        // The server's clock is a little ahead.
        let (mut state, mut now) = (self.visible(n, place), at + 3);
        let current = self.answer(key, &state, asked, now);
        if !waited && self.scene.fault == Fault::DenialFromOld && self.rows[place].holder != Some(n)
        {
            let row = &self.rows[place];
            if let Some((_, old)) = row.old.iter().rev().find(|old| old.0 < at - 5_000) {
                let other = self.answer(key, old, asked, now);
                let differs = !other.0.ok && other.0.remaining != current.0.remaining;
                let old = old.clone();
                if differs && self.fails(Fault::DenialFromOld) {
                    state = old;
                }
            }
        }
        if waited && self.sessions[n].seen != state {
            let on_old = self.answer(key, &self.sessions[n].seen, asked, now).0;
            if on_old != current.0 && self.fails(Fault::StaleAfterWait) {
                state = self.sessions[n].seen.clone();
            }
        }
        if waited
            && self.sessions[n].seen != state
            && now - self.sessions[n].seen_at > 100
            && self.fails(Fault::ClockBeforeWait)
        {
            now = self.sessions[n].seen_at;
        }
        if let Some(State::Leases(held)) = &state.state
            && matches!(asked, Asked::Acquire { .. })
            && !current.0.ok
            && self.scene.fault == Fault::LeaseOverlooked
        {
            let fewer = Leases { leases: Vec::new(), ts: held.ts };
            if self.fails(Fault::LeaseOverlooked) {
                state.state = Some(State::Leases(fewer));
            }
        }
        // A call that waits decides again.
        if self.scene.holds && self.rows[place].holder.is_none_or(|holder| holder == n) {
            state = self.with_fault_of_holds(place, state, (asked, &current.0), now);
        }
        let (reply, after) = self.answer(key, &state, asked, now);
        let held = self.rows[place].holder.is_some_and(|holder| holder != n);
        if is_row && held && after.is_some() {
            let session = &mut self.sessions[n];
            (session.seen, session.seen_at) = (state, now);
            self.rows[place].queue.push_back(n);
            return;
        }
        let asked = told(asked, after.as_ref());
        self.write(at, n, place, after);
        self.answered(at, n, (asked, reply, now));
    }

    /// What is stored, or what a fault of holds makes of it.
    fn with_fault_of_holds(
        &mut self,
        key: usize,
        stored: Stored,
        (asked, right): (Asked, &Reply),
        now: i64,
    ) -> Stored {
        let mut wrong = stored.clone();
        match (self.scene.fault, asked) {
            (Fault::ExpiryOverlooked, Asked::Limit { .. }) => {
                wrong.holds.retain(|(_, hold)| hold.expires_at.0 > now);
            }
            (Fault::SettledTwice, Asked::Settle { hold, .. }) if !right.ok => {
                let mut old = self.rows[key].old.iter().flat_map(|(_, old)| &old.holds);
                wrong.holds.extend(old.find(|of| of.0 == hold && of.1.expires_at.0 > now));
            }
            _ => return stored,
        }
        let differs = self.answer(key, &wrong, asked, now).0 != *right;
        if differs && self.fails(self.scene.fault) { wrong } else { stored }
    }

    fn write(&mut self, at: i64, n: usize, key: usize, after: Option<Stored>) {
        let Some(after) = after else {
            // A session that waited and changed nothing lets the next one go on.
            if self.rows[key].holder.is_none() {
                self.wake(at, key);
            }
            return;
        };
        let is_reset = after.state.is_none();
        let lost = self.fails(Fault::WriteLost) || (is_reset && self.fails(Fault::ResetLost));
        let after = if lost { self.visible(n, key) } else { after };
        if self.scene.storage == Storage::Memory
            || (self.sessions[n].alone && self.rows[key].own.is_empty())
        {
            self.commit(at, key, after);
            self.wake(at, key);
            return;
        }
        let number = self.sessions[n].calls.len();
        self.rows[key].own.push((number, after));
        self.rows[key].holder = Some(n);
        if !self.rows[key].queue.is_empty() && self.fails(Fault::UnlockedEarly) {
            self.rows[key].holder = None;
            self.wake(at, key);
        }
    }

    fn commit(&mut self, at: i64, key: usize, state: Stored) {
        let row = &mut self.rows[key];
        row.old.push_back((at, std::mem::replace(&mut row.committed, state)));
        if row.old.len() > 64 {
            row.old.pop_front();
        }
    }

    /// The next one that waits for a row decides again.
    fn wake(&mut self, at: i64, key: usize) {
        if let Some(next) = self.rows[key].queue.pop_front() {
            self.sessions[next].step = Step::Waited;
            self.events.push(Reverse((at + 1, next)));
        }
    }

    fn answered(&mut self, at: i64, n: usize, (asked, reply, now): (Asked, Reply, i64)) {
        let answered = at + 1 + self.random.below(150);
        let asked = match asked {
            Asked::Acquire { count, .. } if !reply.ok => Asked::Acquire { count, lease: 0 },
            asked => asked,
        };
        let session = &mut self.sessions[n];
        if let (Asked::Acquire { lease, .. }, true) = (asked, reply.ok) {
            session.leases.push((session.key, lease));
        }
        session.calls.push(Invocation {
            unanswered: false,
            session: n as u32,
            transaction: session.transaction,
            key: session.key as u32,
            asked,
            invoked: session.invoked,
            answered,
            now: self.scene.knows_now.then_some(now),
            reply,
            end: None,
        });
        session.left -= 1;
        let (alone, more, back) = (session.alone, session.left > 0, session.savepoint.is_some());
        self.made += 1;
        if alone {
            self.history.calls.append(&mut self.sessions[n].calls);
            self.later(answered, 1, n, Step::Begin);
        } else if back && self.random.below(2) == 0 {
            self.later(answered, 1, n, Step::RollBackTo);
        } else {
            self.later(answered, 1, n, if more { Step::Invoke } else { Step::End });
        }
    }

    /// Ends a session's changes since one of its calls.
    fn finish(&mut self, at: i64, n: usize, since: usize, fault: Fault) -> i64 {
        let mut end = self.sessions[n].ending.take().unwrap();
        end.answered = at + 1 + self.random.below(150);
        for key in 0..self.rows.len() {
            let row = &mut self.rows[key];
            let Some(first) = row.own.iter().position(|own| own.0 >= since) else { continue };
            if row.holder != Some(n) {
                continue;
            }
            let undone = row.own.split_off(first);
            let last = undone.last().unwrap().1.clone();
            let was = row.own.last().map_or_else(|| row.committed.clone(), |own| own.1.clone());
            let free = row.own.is_empty();
            let fails = last != was && self.fails(fault);
            if end.kept == Some(true) && !fails || end.kept != Some(true) && fails {
                match free {
                    true => self.commit(at, key, last),
                    false => self.rows[key].own.last_mut().unwrap().1 = last,
                }
            }
            if free {
                self.rows[key].holder = None;
                self.wake(at, key);
            }
        }
        let number = self.history.ends.len() as u32;
        self.history.ends.push(end);
        let calls = self.sessions[n].calls.split_off(since);
        if end.kept != Some(true) && self.scene.storage == Storage::Row {
            let gone: Vec<i64> = calls
                .iter()
                .filter_map(|call| match call.asked {
                    Asked::Acquire { lease, .. } => Some(lease),
                    _ => None,
                })
                .collect();
            self.sessions[n].leases.retain(|lease| !gone.contains(&lease.1));
        }
        self.history
            .calls
            .extend(calls.into_iter().map(|call| Invocation { end: Some(number), ..call }));
        end.answered
    }

    fn undo(&mut self, at: i64, n: usize) {
        let since = self.sessions[n].savepoint.take().unwrap();
        let answered = self.finish(at, n, since, Fault::SavepointKept);
        let next = if self.sessions[n].left > 0 { Step::Invoke } else { Step::End };
        self.later(answered, 1, n, next);
    }

    fn end(&mut self, at: i64, n: usize) {
        let committed = self.sessions[n].ending.unwrap().kept == Some(true);
        let fault = if committed { Fault::CommitLost } else { Fault::RollbackKept };
        // A savepoint has a fault of its own.
        let answered = self.finish(at, n, 0, fault);
        self.later(answered, 1, n, Step::Begin);
    }
}

/// The arguments with what the answer says of a hold.
fn told(asked: Asked, after: Option<&Stored>) -> Asked {
    let Asked::Hold { hold, count, at_least, ttl, charge, .. } = asked else { return asked };
    let of = after.and_then(|after| after.holds.iter().find(|of| of.0 == hold));
    let (held, expires_at) = of.map_or((0.0, 0), |(_, of)| (of.count, of.expires_at.0));
    Asked::Hold { hold, count, at_least, ttl, charge, held, expires_at }
}

fn credit_of(limit: &Limit) -> bool {
    matches!(limit, Limit::TokenBucket(_) | Limit::FixedWindow(_))
}
