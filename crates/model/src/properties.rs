//! The properties, of each answer, of each end of a transaction, of every state, and of the last one.

mod holds;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_limiter::target::Store;

use crate::content::Total;
use crate::oracle::holds::Book;
use crate::oracle::{self, Applied, Change};
use crate::postgres::{FROZEN, TransactionStatus};
use crate::run::AccessPath;
use crate::statement::{Answered, Command, KEYS, Outcome};
use crate::world::{Instant, Scenario, SessionState, World, Wrong};

/// The error of tokens divided between shards.
pub const TOLERANCE: f64 = 1e-5;

impl World {
    /// Notes that something is wrong.
    pub fn is_wrong(&mut self, wrong: Wrong) {
        if !self.wrong.contains(&wrong) {
            self.wrong.push(wrong);
        }
    }

    /// Whether every session has ended its program.
    pub fn has_ended(&self) -> bool {
        self.sessions.iter().all(|session| session.pending.is_none())
    }
}

impl Scenario {
    /// The definition that a session's call used for a key.
    fn definition(&self, world: &World, session: usize, key: u8) -> &Definition {
        &self.setting.limits[usize::from(world.sessions[session].used[usize::from(key)])]
    }

    /// Whether a key's limit is in memory.
    fn is_in_memory(&self, key: u8) -> bool {
        self.in_memory[usize::from(key)]
    }

    /// Judges the definition that a call used: unless passed with the call, it was in force at some instant since the
    /// call began.
    fn judge_definition(&self, world: &mut World, session: usize, statement: &Command) {
        let at = &world.sessions[session];
        let is_wrong = |key: u8| {
            let used = at.used[usize::from(key)];
            statement.is_for(key)
                && statement.limit(key).is_none()
                && at.seen.iter().all(|instant| instant.defined != used)
        };
        if (0..KEYS.len() as u8).any(is_wrong) {
            world.is_wrong(Wrong::Unexplained);
        }
    }

    /// Judges the outcome of a statement, and notes its changes.
    pub fn judge_outcome(
        &self,
        world: &mut World,
        session: usize,
        statement: &Command,
        outcome: Outcome,
    ) {
        self.judge_definition(world, session, statement);
        match (statement, outcome) {
            (_, Outcome::Failed(why)) if self.may_lack_room(&why) => world.denied = true,
            (_, Outcome::Failed(_)) => world.is_wrong(Wrong::Failed),
            (_, Outcome::Held(answers, held)) => {
                self.judge_held(world, session, statement, (&answers, &held));
            }
            (
                Command::Settle(_, used, _) | Command::SettleAll(_, used, _),
                Outcome::Settled(id, settled),
            ) => self.judge_settled(world, session, (&id, *used), settled.as_deref()),
            (_, Outcome::Pruned(_)) => self.note_pruned(world, session),
            (Command::Check(key, ..), Outcome::Answered(answers)) => {
                self.judge_check(world, session, *key, &answers[0]);
            }
            (_, Outcome::Answered(answers)) if answers[0].ok => {
                self.judge_admitted(world, session, statement, &answers);
            }
            (_, Outcome::Answered(answers)) => {
                self.judge_denied(world, session, statement, &answers)
            }
            (&Command::Credit(key, count, _), Outcome::Credited(at, _)) => {
                world.admitted = true;
                // A credit to a full limit is answered from a read.
                let is_locked = world.database.locked(session).iter().any(|place| place.key == key);
                if is_locked || self.is_in_memory(key) {
                    let credit = (key, at.0, Change::Credit(count));
                    self.change(world, session, credit);
                } else if !self.was_full(world, session, key) {
                    world.is_wrong(Wrong::TokensLost);
                }
            }
            (&Command::Reset(key, _), Outcome::Reset(false)) => {
                if !self.was_full(world, session, key) {
                    world.is_wrong(Wrong::TokensLost);
                }
                self.note_pruned(world, session);
                self.judge_locks(world, session);
            }
            (command, Outcome::Reset(true)) => self.note_reset(world, session, command),
            (&Command::Rename(from, to), Outcome::Renamed(true)) => {
                let states = self.instant(world, session).states;
                world.sessions[session].renamed =
                    Some((from, to, states[usize::from(from)].clone()));
            }
            (&Command::Extend(key, _), Outcome::Extended(id, until)) => {
                self.judge_lease(world, session, (key, id), until.is_some());
                if let Some(until) = until {
                    self.judge_extended(world, session, (key, id), until);
                }
            }
            (&Command::Release(key, _), Outcome::Released(id, was_there)) => {
                self.judge_lease(world, session, (key, id), was_there);
                world.sessions[session].leases.retain(|&lease| lease != id);
                if was_there {
                    let change = (key, world.database.now, Change::Release(id));
                    self.change(world, session, change);
                }
            }
            _ => {}
        }
        let at = &mut world.sessions[session];
        at.statement += 1;
        at.log.clear();
        at.seen.clear();
        at.locked.clear();
        at.used = [0; KEYS.len()];
    }

    /// Whether a key was full at some instant of the call.
    fn was_full(&self, world: &World, session: usize, key: u8) -> bool {
        let definition = self.definition(world, session, key);
        world.sessions[session].seen.iter().any(|instant| {
            let now = Micros(instant.now);
            let state = instant.state(definition, key, now);
            if let Some(bounds) = instant.bounds.get(usize::from(key)) {
                let mut bounds = bounds.clone();
                bounds.refill(&self.setting.limits, now);
                return bounds.most as f64 / 1e6 > definition.limit.capacity() - TOLERANCE;
            }
            let left = oracle::left(definition, key, state.as_ref(), now);
            left > definition.limit.capacity() - TOLERANCE
        })
    }

    /// Notes that a key was reset, or all.
    fn note_reset(&self, world: &mut World, session: usize, command: &Command) {
        let keys = match command {
            Command::Reset(key, _) => *key..*key + 1,
            _ => 0..KEYS.len() as u8,
        };
        // Memory removes keys partition by partition, and notes them there. In rows these are the locked ones, and at
        // least the keys that were never full.
        let rows = world.database.locked(session);
        let is_noted = |key: &u8| match self.is_in_memory(*key) {
            true => command.is_for(*key),
            false => {
                rows.iter().any(|place| place.key == *key) || !self.was_full(world, session, *key)
            }
        };
        let keys: Vec<u8> = keys.filter(is_noted).collect();
        for key in keys {
            let reset = (key, world.database.now, Change::Reset);
            self.change(world, session, reset);
        }
    }

    /// Notes a change: in memory it counts at once.
    fn change(&self, world: &mut World, session: usize, (key, now, change): (u8, i64, Change)) {
        let limit = world.sessions[session].used[usize::from(key)];
        let effect = Applied { xid: world.database.xid(session), key, limit, now, change };
        if !self.is_in_memory(key) {
            world.sessions[session].effects.push(effect);
            return;
        }
        let (key, mut none) = (usize::from(key), Vec::new());
        if !self.apply(&mut world.committed[key], &mut none, &effect) {
            world.is_wrong(Wrong::Unexplained);
        }
    }

    /// Judges an admitted call: the state that the session sees explains it, because it has the rows.
    fn judge_admitted(
        &self,
        world: &mut World,
        session: usize,
        statement: &Command,
        answers: &[Answered],
    ) {
        world.admitted = true;
        let reserve = matches!(statement, Command::Reserve(..));
        let blocked =
            |key: u8| world.sessions[session].seen.iter().all(|at| at.blocked.contains(&key));
        if answers.iter().any(|answer| blocked(answer.key))
            && !world.sessions[session].seen.is_empty()
        {
            world.is_wrong(Wrong::Unexplained);
        }
        for answer in answers {
            // A part is all of the wanted tokens, or all whole tokens.
            if matches!(statement, Command::Part(_, most, _) if answer.count < *most) {
                let more = Answered { count: answer.count + 1, ..answer.clone() };
                let mut seen = world.sessions[session].seen.iter();
                if answer.remaining >= 1.0 - TOLERANCE
                    || !seen.any(|seen| self.may_deny(world, session, seen, &more, false))
                {
                    world.is_wrong(Wrong::Unexplained);
                }
            }
            let mut instants = world.sessions[session].seen.iter();
            if !self.is_in_memory(answer.key) && instants.all(|instant| instant.now != answer.now.0)
            {
                world.is_wrong(Wrong::Unexplained);
            }
            let definition = self.definition(world, session, answer.key);
            let instant = self.instant(world, session);
            let state = instant.state(definition, answer.key, answer.now);
            if self.is_exact() && !oracle::explains(definition, state.as_ref(), answer, reserve) {
                world.is_wrong(Wrong::Unexplained);
            }
            let change = match answer.lease {
                Some(id) => Change::Acquire(id),
                None => Change::Take(answer.count, reserve, oracle::millionths(answer.remaining)),
            };
            if let Some(id) = answer.lease {
                let is_given = |session: &SessionState| session.leases.contains(&id);
                if world.sessions.iter().any(is_given) {
                    world.is_wrong(Wrong::LeaseTwice);
                }
                world.sessions[session].leases.push(id);
            }
            let change = (answer.key, answer.now.0, change);
            self.change(world, session, change);
        }
    }

    /// Whether the states of an instant may deny a request.
    fn may_deny(
        &self,
        world: &World,
        session: usize,
        instant: &Instant,
        answer: &Answered,
        reserve: bool,
    ) -> bool {
        if self.has_bounds() {
            let mut bounds = instant.bounds[usize::from(answer.key)].clone();
            bounds.refill(&self.setting.limits, answer.now);
            return bounds.least < i64::from(answer.count) * 1_000_000;
        }
        let definition = self.definition(world, session, answer.key);
        let state = instant.state(definition, answer.key, answer.now);
        oracle::denies(definition, state.as_ref(), answer, reserve)
    }

    /// Judges a denied call: it was right at some instant since it began, and locked nothing.
    fn judge_denied(
        &self,
        world: &mut World,
        session: usize,
        statement: &Command,
        answers: &[Answered],
    ) {
        world.denied = true;
        let at = &world.sessions[session];
        let reserve = matches!(statement, Command::Reserve(..));
        let (exact, single) = (self.is_exact(), answers.len() == 1);
        let is_right = at.seen.iter().any(|instant| {
            answers.iter().any(|answer| {
                if answer.is_blocked {
                    return instant.blocked.contains(&answer.key);
                }
                if self.has_bounds() || !(exact && single) {
                    return self.may_deny(world, session, instant, answer, reserve);
                }
                let definition = self.definition(world, session, answer.key);
                let state = instant.state(definition, answer.key, answer.now);
                oracle::explains(definition, state.as_ref(), answer, reserve)
            })
        });
        // A transaction that has a row of the key can't wait for others: as documented, it has to retry.
        let may_not_wait = |answer: &Answered| {
            let holds = at.locked.iter().any(|place| place.key == answer.key);
            answer.retry_after == Some(Micros(0)) && holds && !(exact && single)
        };
        let is_of_now =
            |answer: &Answered| at.seen.iter().any(|instant| instant.now == answer.now.0);
        let is_right = is_right || answers.iter().any(may_not_wait);
        if !is_right || !answers.iter().all(is_of_now) {
            world.is_wrong(Wrong::BadDenial);
        }
        self.judge_locks(world, session);
    }

    /// Checks that a call that took nothing has locked nothing.
    fn judge_locks(&self, world: &mut World, session: usize) {
        let was_locked = &world.sessions[session].locked;
        let keeps = world.database.locked(session).iter().any(|place| !was_locked.contains(place));
        // Through SQL, as documented, a row stays locked if another call came between its read and its lock.
        if keeps && self.setting.access == AccessPath::Heap && !self.may_expire(world) {
            world.is_wrong(Wrong::LockKept);
        }
    }

    fn judge_check(&self, world: &mut World, session: usize, key: u8, answer: &Answered) {
        let definition = self.definition(world, session, key);
        let is_right = |instant: &Instant| {
            let mut after = answer.clone();
            // A check answers with the tokens left before.
            after.remaining -= if answer.ok { f64::from(answer.count) } else { 0.0 };
            let is_blocked = instant.blocked.contains(&key);
            is_blocked == answer.is_blocked
                && (is_blocked
                    || oracle::explains(
                        definition,
                        instant.state(definition, key, answer.now).as_ref(),
                        &after,
                        false,
                    ))
        };
        if self.is_exact() && !world.sessions[session].seen.iter().any(is_right) {
            world.is_wrong(Wrong::Unexplained);
        }
        self.judge_locks(world, session);
    }

    /// Judges whether a lease that a call extends or releases exists.
    fn judge_lease(
        &self,
        world: &mut World,
        session: usize,
        (key, id): (u8, i64),
        was_there: bool,
    ) {
        let lives = |instant: &Instant| {
            oracle::has_lease(instant.states[usize::from(key)].as_ref(), id, Micros(instant.now))
        };
        if !world.sessions[session].seen.iter().any(|instant| lives(instant) == was_there) {
            world.is_wrong(Wrong::Unexplained);
        }
        if !was_there {
            self.judge_locks(world, session);
        }
    }

    /// Judges the time until which a lease is extended.
    fn judge_extended(
        &self,
        world: &mut World,
        session: usize,
        (key, id): (u8, i64),
        until: Micros,
    ) {
        let definition = self.definition(world, session, key);
        let ttl = definition.limit.concurrency().map_or(Micros(0), |limit| limit.ttl);
        // Not earlier than before, if the clock stepped back.
        let is_extended = |instant: &Instant| {
            let before = oracle::expiry(instant.states[usize::from(key)].as_ref(), id);
            before.is_some_and(|before| before.max(Micros(instant.now).plus(ttl)) == until)
        };
        if !world.sessions[session].seen.iter().any(is_extended) {
            world.is_wrong(Wrong::Unexplained);
        }
        let change = (key, world.database.now, Change::Extend(id, until.0));
        self.change(world, session, change);
    }

    /// Ends a session's transaction in the books: the committed state explains its changes, which count from now on.
    pub fn end(&self, world: &mut World, session: usize, commits: bool) {
        let effects = std::mem::take(&mut world.sessions[session].effects);
        let renamed = world.sessions[session].renamed.take();
        for effect in effects.iter().filter(|_| commits) {
            if self.has_bounds() {
                world.history.push(Applied { xid: FROZEN, ..effect.clone() });
            }
            let key = usize::from(effect.key);
            let (state, holds) = (&world.committed[key], &world.holds[key]);
            let book = Book { state: state.clone(), holds: holds.clone() };
            world.used[key] += self.used(&book, effect);
            let World { committed, holds, .. } = world;
            if !self.apply(&mut committed[key], &mut holds[key], effect) {
                world.is_wrong(Wrong::Unexplained);
            }
        }
        if let Some((from, to, state)) = renamed.filter(|_| commits) {
            world.committed[usize::from(to)] = state;
            world.committed[usize::from(from)] = None;
        }
        let at = &mut world.sessions[session];
        (at.transaction, at.statement, at.savepoint) = (at.transaction + 1, 0, None);
        at.first_read = None;
        at.log.clear();
        at.seen.clear();
        at.locked.clear();
    }

    /// Drops the changes of subtransactions that were rolled back.
    pub fn forget_rolled_back(&self, world: &mut World, session: usize) {
        let database = &world.database;
        let is_open = |effect: &Applied| {
            database.open[session].contains(&effect.xid)
                && database.status(effect.xid) != TransactionStatus::Aborted
        };
        // The savepoint's subtransaction began again, without effects.
        let fresh = database.xid(session);
        world.sessions[session].effects.retain(|effect| is_open(effect) && effect.xid != fresh);
    }

    /// Checks a state.
    pub fn check(&self, world: &mut World) {
        for key in 0..KEYS.len() as u8 {
            self.check_key(world, key);
            // Rows and the books change in one step, a commit.
            if self.saved[usize::from(key)] {
                self.check_saved(world, key);
            } else if !self.is_in_memory(key) || world.has_ended() {
                self.check_committed(world, key);
            }
            self.check_holds(world, key);
        }
        let waits = |(session, at): (usize, &SessionState)| {
            at.pending.as_ref().map(|step| !world.database.is_enabled(session, step))
        };
        let waits: Vec<bool> = world.sessions.iter().enumerate().filter_map(waits).collect();
        if !self.may_deadlock && !waits.is_empty() && waits.iter().all(|waits| *waits) {
            world.is_wrong(Wrong::Deadlock);
        }
    }

    /// Checks that no more is admitted than the limit has, whichever of the transactions in progress commit.
    fn check_key(&self, world: &mut World, key: u8) {
        let definition = self.largest();
        let of = |session: &SessionState| -> Vec<Applied> {
            session.effects.iter().filter(|effect| effect.key == key).cloned().collect()
        };
        let in_progress: Vec<Vec<Applied>> =
            world.sessions.iter().map(of).filter(|effects| !effects.is_empty()).collect();
        if self.is_exact() {
            if in_progress.len() > 1 {
                world.is_wrong(Wrong::TwoWriters);
            }
            return;
        }
        if self.has_bounds() {
            let takes = |effects: &&Vec<Applied>| effects.iter().map(gives).sum::<f64>() < 0.0;
            let takes: Vec<Applied> = in_progress.iter().filter(takes).flatten().cloned().collect();
            if (self.bounds(world, key, &takes).lowest as f64) < -1e6 * (self.debt + TOLERANCE) {
                world.is_wrong(Wrong::OverAdmitted);
            }
            return;
        }
        let now = Micros(world.database.now);
        let left = |state: &Option<Total>| oracle::left(definition, key, state.as_ref(), now);
        let after = |mut state: Option<Total>, effects: &Vec<Applied>| {
            let mut none = Vec::new();
            effects.iter().for_each(|effect| _ = self.apply(&mut state, &mut none, effect));
            state
        };
        // A transaction that gives more than it takes may be rolled back: no other may spend that.
        let committed = &world.committed[usize::from(key)];
        let takes =
            |effects: &&Vec<Applied>| left(&after(committed.clone(), effects)) < left(committed);
        let state = in_progress.iter().filter(takes).fold(committed.clone(), after);
        if left(&state) < -self.debt - TOLERANCE {
            world.is_wrong(Wrong::OverAdmitted);
        }
    }

    /// Checks that the committed rows, or the entry, have the state explained by the answers.
    fn check_committed(&self, world: &mut World, key: u8) {
        let now = Micros(world.database.now);
        let rows = world.database.committed(key);
        let shards: std::collections::BTreeSet<i32> =
            rows.iter().map(|(shard, _)| *shard).collect();
        let has_two = shards.len() < rows.len();
        let committed = world.committed[usize::from(key)].as_ref();
        let entry = self.stored_entry(world, key);
        let has_holds = self.setting.has_holds && self.is_exact();
        let bounds = self.has_bounds().then(|| {
            let mut bounds = self.bounds(world, key, &[]);
            bounds.refill(&self.setting.limits, now);
            (bounds.least as f64 / 1e6, bounds.most as f64 / 1e6)
        });
        let (mut is_more, mut is_less) = (false, false);
        for definition in self.setting.limits.iter().filter(|definition| {
            Store::from_definition(definition).is_in_memory() == self.is_in_memory(key)
        }) {
            let is = match self.is_in_memory(key) {
                true => oracle::left(definition, key, entry.as_ref(), now),
                false if has_holds => {
                    let book = self.book_of_rows(world, key, &rows).at(definition, key, now);
                    oracle::left(definition, key, book.state.as_ref(), now)
                }
                false => oracle::left_in_rows(definition, key, &rows, now),
            };
            let should = match has_holds {
                true => {
                    let holds = world.holds[usize::from(key)].clone();
                    let book = Book { state: committed.cloned(), holds };
                    let book = book.at(definition, key, now);
                    oracle::left(definition, key, book.state.as_ref(), now)
                }
                false => oracle::left(definition, key, committed, now),
            };
            let (least, most) = bounds.unwrap_or((should, should));
            is_more |= is > most + TOLERANCE;
            is_less |= is < least - TOLERANCE;
        }
        for (is, wrong) in
            [(has_two, Wrong::TwoRows), (is_more, Wrong::TakeLost), (is_less, Wrong::TokensLost)]
        {
            if is {
                world.is_wrong(wrong);
            }
        }
    }

    /// The state of a key in memory.
    fn stored_entry(&self, world: &World, key: u8) -> Option<Total> {
        let mut entries = world.database.entries.iter();
        let found = entries.find(|(id, _)| id[0] == u64::from(key));
        found.map(|(_, entry)| entry.content.clone())
    }
}

/// The tokens that a change gives; negative: takes.
fn gives(effect: &Applied) -> f64 {
    match effect.change {
        Change::Take(count, ..) => -f64::from(count),
        Change::Credit(count) => f64::from(count),
        Change::Reset => f64::INFINITY,
        _ => 0.0,
    }
}
