//! The properties of holds: each answer follows from the books, a hold is settled once, missing tokens are either used
//! or held, and the rows agree with the books.

use ratelimit_core::config::Definition;
use ratelimit_core::{Limit, Micros, State};
use ratelimit_limiter::ports::Stored;

use super::TOLERANCE;
use crate::content::{Content, HoldOf, Total};
use crate::oracle::holds::{Book, Wanted, returns};
use crate::oracle::{self, Applied, Change, millionths};
use crate::postgres::Version;
use crate::statement::{Answered, Command, Held, KEYS, SettledKey, Terms};
use crate::world::{Instant, Scenario, World, Wrong};

/// The maximum gain of tokens in a scenario of a bucket that hardly refills.
const HARDLY: f64 = 0.01;

impl Instant {
    /// A key at an instant, after all expiries by then.
    pub fn book(&self, definition: &Definition, key: u8, now: Micros) -> Book {
        let (state, holds) = (&self.states[usize::from(key)], &self.holds[usize::from(key)]);
        Book { state: state.clone(), holds: holds.clone() }.at(definition, key, now)
    }

    /// The state of a key, likewise.
    pub fn state(&self, definition: &Definition, key: u8, now: Micros) -> Option<Total> {
        if self.holds[usize::from(key)].is_empty() {
            return self.states[usize::from(key)].clone();
        }
        self.book(definition, key, now).state
    }
}

/// The terms of a statement that holds.
fn terms_of(statement: &Command) -> Terms {
    match statement {
        Command::Hold(.., terms, _) | Command::HoldAll(_, terms) => *terms,
        _ => Terms::default(),
    }
}

/// The hold wanted by a request.
fn wanted(terms: Terms, answered: &Answered, id: Option<&[u8]>) -> Wanted {
    let letter = terms.id.map(|letter| vec![letter]);
    let id = letter.or_else(|| id.map(<[u8]>::to_vec)).unwrap_or_default();
    Wanted { id, count: answered.count, terms }
}

impl Scenario {
    /// The definition that the first call of a key uses.
    fn definition_of(&self, key: u8) -> &Definition {
        let mut statements = self.programs.iter().flatten().flatten();
        let limit = statements.find(|at| at.is_for(key)).and_then(|at| at.limit(key));
        &self.setting.limits[usize::from(limit.unwrap_or(0))]
    }

    /// Judges the answers to a call that holds, and notes its changes.
    pub(super) fn judge_held(
        &self,
        world: &mut World,
        session: usize,
        statement: &Command,
        (answers, held): (&[Answered], &[Held]),
    ) {
        let terms = terms_of(statement);
        if !answers[0].ok {
            self.judge_hold_denied(world, session, terms, answers);
            return;
        }
        world.admitted = true;
        let id = held[0].id.clone();
        let (Some(id), true) = (id.clone(), held.iter().all(|held| held.id == id)) else {
            world.is_wrong(Wrong::Unexplained);
            return;
        };
        let is_given = world.sessions.iter().any(|session| session.holds.contains(&id));
        if terms.id.is_none() && is_given {
            world.is_wrong(Wrong::LeaseTwice);
        }
        world.sessions[session].holds.retain(|known| *known != id);
        world.sessions[session].holds.push(id.clone());
        for (answer, held) in answers.iter().zip(held) {
            let wanted = wanted(terms, answer, Some(&id));
            let seen = &world.sessions[session].seen;
            let is_blocked = seen.iter().all(|at| at.blocked.contains(&answer.key));
            let is_of_now = seen.iter().any(|at| at.now == answer.now.0);
            let definition = self.definition(world, session, answer.key);
            let book = self.instant(world, session).book(definition, answer.key, answer.now);
            let made = book.hold(definition, answer.key, answer.now, &wanted);
            let is_right = made.is_some_and(|made| {
                (made.remaining - answer.remaining).abs() < TOLERANCE
                    && (made.hold.count - held.count).abs() < TOLERANCE
                    && held.expires_at == Some(made.hold.expires_at.0)
            });
            if !is_right || is_blocked || !is_of_now {
                world.is_wrong(Wrong::Unexplained);
            }
            let hold = Change::Hold(wanted, millionths(answer.remaining));
            self.change(world, session, (answer.key, answer.now.0, hold));
        }
    }

    /// Judges a denied call: at some instant since it began it was right, and it locked nothing.
    fn judge_hold_denied(
        &self,
        world: &mut World,
        session: usize,
        terms: Terms,
        answers: &[Answered],
    ) {
        world.denied = true;
        let at = &world.sessions[session];
        let denies = |instant: &Instant, answer: &Answered| {
            if answer.is_blocked {
                return instant.blocked.contains(&answer.key);
            }
            let definition = self.definition(world, session, answer.key);
            let book = instant.book(definition, answer.key, answer.now);
            let state = book.state.as_ref();
            let left = oracle::left(definition, answer.key, state, answer.now);
            let is_left = answers.len() > 1 || (left - answer.remaining).abs() < TOLERANCE;
            let made = book.hold(definition, answer.key, answer.now, &wanted(terms, answer, None));
            made.is_none() && is_left
        };
        let is_right =
            at.seen.iter().any(|instant| answers.iter().any(|answer| denies(instant, answer)));
        let is_of_now =
            |answer: &Answered| at.seen.iter().any(|instant| instant.now == answer.now.0);
        if !is_right || !answers.iter().all(is_of_now) {
            world.is_wrong(Wrong::BadDenial);
        }
        self.judge_locks(world, session);
    }

    /// Judges a settlement, and notes its changes.
    pub(super) fn judge_settled(
        &self,
        world: &mut World,
        session: usize,
        (id, used): (&[u8], Option<u8>),
        settled: Option<&[SettledKey]>,
    ) {
        let keys = || 0..KEYS.len() as u8;
        let has = |instant: &Instant, key: u8| {
            instant.holds[usize::from(key)].iter().any(|hold| hold.id == id)
        };
        let seen = &world.sessions[session].seen;
        let Some(settled) = settled else {
            let is_gone = |instant: &Instant| keys().all(|key| !has(instant, key));
            if seen.iter().all(is_gone) {
                self.judge_locks(world, session);
            } else if !seen.iter().any(is_gone) {
                world.is_wrong(Wrong::HoldLost);
            }
            return;
        };
        // Holds added while the call waited may stay.
        let is_settled = |key: u8| settled.iter().any(|settled| settled.key == key);
        if keys().any(|key| !is_settled(key) && seen.iter().all(|instant| has(instant, key))) {
            world.is_wrong(Wrong::HoldLost);
        }
        for &SettledKey { key, left } in settled {
            let Some((now, left)) = left else {
                world.is_wrong(Wrong::Unexplained);
                continue;
            };
            let definition = self.definition(world, session, key);
            let book = self.instant(world, session).book(definition, key, Micros(now));
            match book.settle(definition, key, Micros(now), (id, used)) {
                None => world.is_wrong(Wrong::SettledTwice),
                Some((_, right)) if (right - left).abs() > TOLERANCE => {
                    world.is_wrong(Wrong::Unexplained);
                }
                Some(_) => {}
            }
            self.change(world, session, (key, now, Change::Settle(id.to_vec(), used)));
        }
    }

    /// Notes the holds that a session has deleted without a settlement.
    pub(super) fn note_pruned(&self, world: &mut World, session: usize) {
        for (place, HoldOf { id, .. }) in world.database.deleted_holds(session) {
            let instant = self.instant(world, session);
            if instant.holds[usize::from(place.key)].iter().any(|hold| hold.id == id) {
                let prune = (place.key, world.database.now, Change::Prune(id));
                self.change(world, session, prune);
            }
        }
    }

    /// Whether a row may say that a hold has expired, so that the session that notices it has locked the row.
    pub(super) fn may_expire(&self, world: &World) -> bool {
        self.setting.has_holds && world.moves > 0
    }

    /// Changes a key by a change of a hold; false if the books don't explain it.
    pub fn apply_to_hold(&self, book: &mut Book, effect: &Applied) -> bool {
        let definition = &self.setting.limits[usize::from(effect.limit)];
        let (key, now) = (effect.key, Micros(effect.now));
        match &effect.change {
            Change::Hold(wanted, left) => {
                let Some(made) = book.hold(definition, key, now, wanted) else { return false };
                book.state = Some(Total(made.state));
                book.put(&wanted.id, made.hold);
                millionths(made.remaining) == *left
            }
            Change::Settle(id, used) => {
                let settled = book.settle(definition, key, now, (id, *used));
                let Some((state, _)) = settled else { return false };
                book.state = Some(Total(state));
                book.holds.retain(|hold| hold.id != *id);
                true
            }
            Change::Prune(id) => book.prune(id, now),
            _ => false,
        }
    }

    /// The tokens that a change has used up permanently, according to its caller.
    pub fn used(&self, book: &Book, effect: &Applied) -> i64 {
        match &effect.change {
            Change::Take(count, ..) => i64::from(*count),
            Change::Settle(_, Some(used)) => i64::from(*used),
            Change::Settle(id, None) => {
                let definition = &self.setting.limits[usize::from(effect.limit)];
                let book = book.at(definition, effect.key, Micros(effect.now));
                book.of_id(id).map_or(0, |hold| (hold.count + hold.returned).round() as i64)
            }
            _ => 0,
        }
    }

    /// Whether only holds add or give back tokens.
    fn conserves(&self) -> bool {
        let hardly = |definition: &Definition| match &definition.limit {
            Limit::TokenBucket(bucket) => bucket.period > Micros(1000 * 86_399_000_000),
            _ => false,
        };
        let mut statements = self.programs.iter().flatten().flatten();
        self.setting.limits.len() == 1
            && self.setting.limits.iter().all(hardly)
            && self.is_exact()
            && !statements.any(|statement| {
                matches!(
                    statement,
                    Command::Reset(..)
                        | Command::ResetAll(_)
                        | Command::Credit(..)
                        | Command::Prune(_)
                        | Command::Rename(..)
                )
            })
    }

    /// The committed rows of a key, as a book.
    pub(super) fn book_of_rows(&self, world: &World, key: u8, rows: &[(i32, &Version)]) -> Book {
        let state = rows.iter().find_map(|(_, version)| match &version.content {
            Content::Limit(row) => match &row.stored {
                Stored::State(state) => Some(Total(state.clone())),
                _ => None,
            },
            Content::Hold(_) => None,
        });
        let mut book = Book { state, holds: Vec::new() };
        for (_, HoldOf { id, hold }) in world.database.committed_holds(key) {
            book.put(&id, hold);
        }
        book
    }

    /// Checks the committed rows of holds.
    pub(super) fn check_holds(&self, world: &mut World, key: u8) {
        if !self.setting.has_holds || !self.is_exact() || self.is_in_memory(key) {
            return;
        }
        let (definition, now) = (self.definition_of(key), Micros(world.database.now));
        let rows = world.database.committed(key);
        let holds = world.database.committed_holds(key);
        let mut places: Vec<_> = holds.iter().map(|(place, _)| *place).collect();
        places.dedup();
        let has_two = places.len() < holds.len();
        let first = holds.iter().filter(|(_, of)| returns(&of.hold));
        let first = first.map(|(_, of)| of.hold.expires_at).min();
        let holds_due = rows.iter().find_map(|(_, version)| match &version.content {
            Content::Limit(version) => version.holds_due,
            Content::Hold(_) => None,
        });
        let is_overlooked =
            first.is_some_and(|first| holds_due.is_none_or(|holds_due| holds_due > first));
        let is = self.book_of_rows(world, key, &rows);
        let should = Book {
            state: world.committed[usize::from(key)].clone(),
            holds: world.holds[usize::from(key)].clone(),
        };
        let (is, should) = (is.at(definition, key, now), should.at(definition, key, now));
        let held: f64 = is.holds.iter().map(|of| of.hold.count).sum();
        let differs = is.holds.len() != should.holds.len()
            || is.holds.iter().zip(&should.holds).any(|(is, should)| !is_same(is, should));
        let left = oracle::left(definition, key, is.state.as_ref(), now);
        let used = world.used[usize::from(key)] as f64;
        let unexplained = definition.limit.capacity() - left - held - used;
        let conserves = self.conserves();
        for (is, wrong) in [
            (has_two, Wrong::TwoRows),
            (is_overlooked, Wrong::ExpiryOverlooked),
            (differs, Wrong::HoldsDiffer),
            (conserves && unexplained > HARDLY, Wrong::TokensLost),
            (conserves && unexplained < -HARDLY, Wrong::TakeLost),
        ] {
            if is {
                world.is_wrong(wrong);
            }
        }
    }

    /// The tokens of a key used before a scenario begins.
    pub fn used_at_first(&self, key: u8) -> i64 {
        let definition = self.definition_of(key);
        let rows = self.rows.iter().filter(|row| row.0 == key);
        let tokens = rows.filter_map(|(.., stored)| match stored {
            Stored::State(State::Tokens(tokens)) => Some(tokens.value),
            _ => None,
        });
        let capacity = definition.limit.capacity();
        (capacity - tokens.reduce(|sum, more| sum + more).unwrap_or(capacity)).round() as i64
    }
}

/// Whether two holds are the same, apart from float error.
fn is_same(one: &HoldOf, other: &HoldOf) -> bool {
    let (a, b) = (&one.hold, &other.hold);
    let near = |a: f64, b: f64| (a - b).abs() < TOLERANCE;
    one.id == other.id
        && near(a.count, b.count)
        && near(a.spent, b.spent)
        && near(a.returned, b.returned)
        && (a.expires_at, a.charge) == (b.expires_at, b.charge)
}
