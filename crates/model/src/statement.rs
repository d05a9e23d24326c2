//! The statements of sessions: calls, and the beginnings and ends of transactions.

use ratelimit_core::Micros;
use ratelimit_limiter::error::Result;
use ratelimit_limiter::holds::{self, Settled, Used};
use ratelimit_limiter::several;

use ratelimit_limiter::request::{Answer, Request};
use ratelimit_limiter::{prune, single};

use crate::postgres::{Primitive, StepReply};
use crate::run::{Given, Run};
use crate::turn::{self, TurnEnd};

/// The limit's name.
pub const NAME: &[u8] = b"n";

/// The keys.
pub const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// The number of a key; the empty one, which has no rows, has the last.
pub fn key_number(key: &[u8]) -> u8 {
    key.first().map_or(u8::MAX, |letter| letter - b'a')
}

/// Represents the definition in force, in place of the number of one.
pub const DEFINED: u8 = u8::MAX;

/// The terms of a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The letter that is its id; `None`: a random one.
    pub id: Option<u8>,
    /// Its duration in seconds.
    pub ttl: u16,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
    /// The fewest tokens, if there are not as many as wanted.
    pub at_least: Option<u8>,
}

/// A statement. The last number of a call is the definition that it passes, or [`DEFINED`]: so sessions may use
/// different ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// `rl_limit`: key, count.
    Take(u8, u8, u8),
    /// The same with `reserve`.
    Reserve(u8, u8, u8),
    /// `rl_take`: key, the most.
    Part(u8, u8, u8),
    /// `rl_check`: key, count.
    Check(u8, u8, u8),
    /// `rl_limit_all`: a key, a count and a definition for each request.
    TakeAll(Vec<(u8, u8, u8)>),
    /// `rl_credit`: key, count.
    Credit(u8, u8, u8),
    /// `rl_reset` of a key.
    Reset(u8, u8),
    /// `rl_reset_keys`.
    ResetAll(u8),
    /// `rl_prune`.
    Prune(u8),
    /// `rl_acquire`: key.
    Acquire(u8, u8),
    /// `rl_extend` of the session's last lease: key.
    Extend(u8, u8),
    /// `rl_release` of the session's last lease: key.
    Release(u8, u8),
    /// `rl_hold`: key, count.
    Hold(u8, u8, Terms, u8),
    /// `rl_hold_all`: a key, a count and a definition for each request.
    HoldAll(Vec<(u8, u8, u8)>, Terms),
    /// `rl_settle` of the hold with this letter, or of the session's last one, and the tokens used; `None`: all.
    Settle(Option<u8>, Option<u8>, u8),
    /// `rl_settle_all`, likewise.
    SettleAll(Option<u8>, Option<u8>, u8),
    /// `rl_define`: the definition.
    Define(u8),
    /// `rl_block`, without an end: key.
    Block(u8),
    /// The owner's UPDATE of the key of a row: from, to.
    Rename(u8, u8),
    /// A turn of the writer, and how it ends.
    Save(TurnEnd),
    /// SELECT of a row FOR UPDATE: key.
    LockRow(u8),
    /// Replays the primary's write of a row: key, tokens left.
    Replicate(u8, u8),
    /// `pg_promote`.
    Promote,
    /// SAVEPOINT.
    Savepoint,
    /// ROLLBACK TO the last savepoint.
    RollbackTo,
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The key.
    pub key: u8,
    /// The requested tokens.
    pub count: u8,
    /// Whether it is allowed.
    pub ok: bool,
    /// The wait after which it may be retried.
    pub retry_after: Option<Micros>,
    /// Whether the key is blocked.
    pub is_blocked: bool,
    /// The instant of the decision.
    pub now: Micros,
    /// Tokens left.
    pub remaining: f64,
    /// The lease.
    pub lease: Option<i64>,
}

/// A hold of a key after a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The hold's id; `None`: there is none.
    pub id: Option<Vec<u8>>,
    /// The tokens.
    pub count: f64,
    /// The time when it expires.
    pub expires_at: Option<i64>,
}

/// A key with a settled hold.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledKey {
    /// The key.
    pub key: u8,
    /// The instant, and the tokens left; `None`: there is no limit any more.
    pub left: Option<(i64, f64)>,
}

/// The outcome of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The answers of a take, or of a check, to each request.
    Answered(Vec<Answered>),
    /// Gave tokens back: the instant, and the tokens left.
    Credited(Micros, f64),
    /// Whether there was a state to reset.
    Reset(bool),
    /// The time until which a lease lives; `None`: there was no lease.
    Extended(i64, Option<Micros>),
    /// Whether there was a lease.
    Released(i64, bool),
    /// Whether the owner has renamed it.
    Renamed(bool),
    /// The answers to each request of a hold, and the hold after it.
    Held(Vec<Answered>, Vec<Held>),
    /// A hold was settled: its id, and the limits; `None`: there is no such hold.
    Settled(Vec<u8>, Option<Vec<SettledKey>>),
    /// The number of deleted rows.
    Pruned(i64),
    /// Nothing else.
    Done,
    /// An error, after which only a rollback is possible.
    Failed(String),
}

/// Parses the programs of sessions: `take a 2; commit | take a 1 @1; take b 1`. Sessions are separated by `|`,
/// statements by `;`; a transaction ends at `commit` or `rollback`, and the last one commits. `@1` is the number of the
/// definition that a call brings, 0 without.
///
/// # Panics
/// It is none.
pub fn programs(text: &str) -> Vec<Vec<Vec<Command>>> {
    let session = |text: &str| {
        let mut transactions = vec![Vec::new()];
        for statement in text.split(';').map(str::trim).filter(|text| !text.is_empty()) {
            let statement = Command::parse(statement);
            let ends = matches!(statement, Command::Commit | Command::Rollback);
            transactions.last_mut().into_iter().for_each(|last| last.push(statement.clone()));
            if ends {
                transactions.push(Vec::new());
            }
        }
        transactions.retain(|transaction| !transaction.is_empty());
        transactions
    };
    text.split('|').map(session).collect()
}

impl Command {
    /// Parses a statement.
    ///
    /// # Panics
    /// It is none.
    pub fn parse(text: &str) -> Command {
        if let Some(requests) = text.strip_prefix("all ") {
            return Command::TakeAll(requests.split(',').map(arguments).collect());
        }
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let all = Arguments::read(rest);
        if let ("hold_all", Arguments { terms, .. }) = (verb, &all) {
            return Command::HoldAll(rest.split(',').map(arguments).collect(), *terms);
        }
        let (first, second, limit) = arguments(rest);
        match verb {
            "take" => Command::Take(first, second, limit),
            "reserve" => Command::Reserve(first, second, limit),
            "part" => Command::Part(first, second, limit),
            "check" => Command::Check(first, second, limit),
            "credit" => Command::Credit(first, second, limit),
            "reset" => Command::Reset(first, limit),
            "reset_all" => Command::ResetAll(limit),
            "prune" => Command::Prune(limit),
            "acquire" => Command::Acquire(first, limit),
            "extend" => Command::Extend(first, limit),
            "release" => Command::Release(first, limit),
            "hold" => Command::Hold(first, second, all.terms, limit),
            "settle" => Command::Settle(all.terms.id, all.number, limit),
            "settle_all" => Command::SettleAll(all.terms.id, all.number, limit),
            "define" => Command::Define(second),
            "block" => Command::Block(first),
            "rename" => Command::Rename(first, 1 - first),
            "save" => Command::Save(TurnEnd::Committed),
            "save_fails" => Command::Save(TurnEnd::RolledBack),
            "save_dies" => Command::Save(TurnEnd::Killed),
            "lock" => Command::LockRow(first),
            "replicate" => Command::Replicate(first, second),
            "promote" => Command::Promote,
            "savepoint" => Command::Savepoint,
            "rollback_to" => Command::RollbackTo,
            "commit" => Command::Commit,
            "rollback" => Command::Rollback,
            _ => panic!("{text:?} is no statement"),
        }
    }

    /// The number of the definition that a call for a key passes; `None`: it uses the one in force.
    pub fn limit(&self, key: u8) -> Option<u8> {
        let limit = match self {
            Command::Take(.., limit)
            | Command::Reserve(.., limit)
            | Command::Part(.., limit)
            | Command::Check(.., limit)
            | Command::Credit(.., limit)
            | Command::Reset(_, limit)
            | Command::ResetAll(limit)
            | Command::Prune(limit)
            | Command::Acquire(_, limit)
            | Command::Extend(_, limit)
            | Command::Release(_, limit)
            | Command::Hold(.., limit)
            | Command::Settle(.., limit)
            | Command::SettleAll(.., limit) => *limit,
            Command::TakeAll(takes) | Command::HoldAll(takes, _) => {
                takes.iter().find(|take| take.0 == key).map_or(DEFINED, |take| take.2)
            }
            _ => DEFINED,
        };
        (limit != DEFINED).then_some(limit)
    }

    /// Whether it is a call for this key.
    pub fn is_for(&self, wanted: u8) -> bool {
        match self {
            Command::Take(key, ..)
            | Command::Reserve(key, ..)
            | Command::Part(key, ..)
            | Command::Check(key, ..)
            | Command::Credit(key, ..)
            | Command::Reset(key, _)
            | Command::Acquire(key, _)
            | Command::Extend(key, _)
            | Command::Hold(key, ..)
            | Command::Release(key, _) => *key == wanted,
            Command::TakeAll(takes) | Command::HoldAll(takes, _) => {
                takes.iter().any(|take| take.0 == wanted)
            }
            _ => false,
        }
    }

    /// Whether it changes definitions or blocks.
    pub fn changes_definitions(&self) -> bool {
        matches!(self, Command::Define(_) | Command::Block(_))
    }

    /// Whether it takes or settles a hold.
    pub fn is_of_holds(&self) -> bool {
        matches!(
            self,
            Command::Hold(..) | Command::HoldAll(..) | Command::Settle(..) | Command::SettleAll(..)
        )
    }

    /// Executes it; the leases and holds are the session's.
    pub fn execute(&self, run: &Run, given: Given) -> Outcome {
        let outcome = match self {
            Command::Savepoint => return at_once(run, Primitive::BeginSub),
            Command::RollbackTo | Command::Commit | Command::Rollback => {
                unreachable!("a session ends its transactions itself")
            }
            &Command::Define(number) => return at_once(run, Primitive::Define(number)),
            &Command::Block(key) => return at_once(run, Primitive::Block(key)),
            &Command::Rename(from, to) => return rename(run, from, to),
            &Command::LockRow(key) => return lock_row(run, key),
            &Command::Replicate(key, left) => return step(run, Primitive::Replicate(key, left)),
            Command::Promote => return step(run, Primitive::Promote),
            call => call.call(run, given),
        };
        outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:?}")))
    }

    /// Calls a function of the extension.
    fn call(&self, run: &Run, given: Given) -> Result<Outcome> {
        let leases = given.leases;
        Ok(match self {
            &Command::Take(key, count, _) => {
                answered(key, count, single::limit(run, &request(key, count), |_| Ok(()))?)
            }
            &Command::Reserve(key, count, _) => {
                let request = Request { reserve: true, ..request(key, count) };
                answered(key, count, single::limit(run, &request, |_| Ok(()))?)
            }
            &Command::Part(key, most, _) => {
                let answer = single::take(run, &request(key, most), 1.0)?;
                // A take of the tokens taken, or of the fewest possible.
                let count = if answer.ok { answer.taken as u8 } else { 1 };
                answered(key, count, answer)
            }
            &Command::Check(key, count, _) => {
                answered(key, count, single::check(run, &request(key, count))?)
            }
            Command::TakeAll(takes) => {
                let requests: Vec<Request> =
                    takes.iter().map(|&(key, count, _)| request(key, count)).collect();
                let answers = several::limit(run, &requests)?.into_iter();
                let answers = takes.iter().zip(answers);
                let answers = answers.map(|(&(key, count, _), one)| answer(key, count, &one));
                Outcome::Answered(answers.collect())
            }
            &Command::Credit(key, count, _) => {
                let answer = single::credit(run, &request(key, count), None)?;
                Outcome::Credited(answer.now, answer.level.remaining)
            }
            &Command::Reset(key, _) => {
                Outcome::Reset(single::reset(run, NAME, KEYS[usize::from(key)])?)
            }
            Command::ResetAll(_) => {
                let mut count = 0;
                single::reset_keys(run, NAME, &mut count)?;
                Outcome::Reset(count > 0)
            }
            Command::Prune(_) => {
                let mut deleted = 0;
                prune::prune(run, i64::MAX, None, &mut None, &mut deleted)?;
                Outcome::Pruned(deleted)
            }
            &Command::Acquire(key, _) => answered(key, 1, single::acquire(run, &request(key, 1))?),
            &Command::Extend(key, _) => extended(run, key, leases)?,
            &Command::Release(key, _) => released(run, key, leases)?,
            &Command::Hold(key, count, terms, _) => hold(run, key, count, terms)?,
            Command::HoldAll(takes, terms) => hold_all(run, takes, *terms)?,
            &Command::Settle(id, used, _) | &Command::SettleAll(id, used, _) => {
                let Some(id) = hold_id(id, given) else { return Ok(Outcome::Done) };
                let used = used.map_or(Used::All, |used| Used::Count(used.into()));
                let alone = matches!(self, Command::Settle(..));
                let settled = holds::settle(run, &id, &used, alone)?;
                let settled: Vec<_> = settled.iter().map(settled_key).collect();
                Outcome::Settled(id, (!settled.is_empty()).then_some(settled))
            }
            &Command::Save(end) => {
                turn::save(run, end)?;
                Outcome::Done
            }
            _ => Outcome::Done,
        })
    }
}

/// The arguments of a statement.
struct Arguments {
    key: u8,
    number: Option<u8>,
    limit: u8,
    terms: Terms,
}

impl Arguments {
    /// Reads a key, a number and the number of a definition: `a 1 @2`, `@defined` for the one in force. For holds also
    /// the id `:x`, the seconds `~1`, the fewest tokens `>1`, and `charge`.
    fn read(text: &str) -> Arguments {
        let terms = Terms { ttl: 3600, ..Terms::default() };
        let mut arguments = Arguments { key: 0, number: None, limit: 0, terms };
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let rest = &word[1..];
            let number = || rest.parse().unwrap_or_else(|_| panic!("{word:?}"));
            match (word.as_bytes()[0], word.parse()) {
                (b'@', _) if rest == "defined" => arguments.limit = DEFINED,
                (b'@', _) => arguments.limit = number() as u8,
                (b':', _) => arguments.terms.id = Some(rest.as_bytes()[0]),
                (b'~', _) => arguments.terms.ttl = number(),
                (b'>', _) => arguments.terms.at_least = Some(number() as u8),
                (_, Ok(number)) => arguments.number = Some(number),
                _ if word == "charge" => arguments.terms.charge = true,
                _ => arguments.key = key_number(word.as_bytes()),
            }
        }
        arguments
    }
}

/// The key, the number and the number of the definition.
fn arguments(text: &str) -> (u8, u8, u8) {
    let Arguments { key, number, limit, .. } = Arguments::read(text);
    (key, number.unwrap_or(1), limit)
}

/// The id of the hold with this letter, or of the session's last one.
fn hold_id(letter: Option<u8>, given: Given) -> Option<Vec<u8>> {
    letter.map(|letter| vec![letter]).or_else(|| given.holds.last().cloned())
}

fn hold(run: &Run, key: u8, count: u8, terms: Terms) -> Result<Outcome> {
    let id = terms.id.map(|letter| [letter]);
    let id = id.as_ref().map(|id| &id[..]);
    let ttl = Micros(i64::from(terms.ttl) * 1_000_000);
    let of = holds::Terms { ttl, id, charge: terms.charge };
    let held = holds::hold(run, &request(key, count), terms.at_least.map(f64::from), &of)?;
    let holds::Held { answer, id, count: has, expires_at } = held;
    let answered = self::answer(key, count, &answer);
    let held = Held { id, count: has, expires_at: expires_at.map(|Micros(at)| at) };
    Ok(Outcome::Held(vec![answered], vec![held]))
}

fn hold_all(run: &Run, takes: &[(u8, u8, u8)], terms: Terms) -> Result<Outcome> {
    let id = terms.id.map(|letter| [letter]);
    let id = id.as_ref().map(|id| &id[..]);
    let ttl = Micros(i64::from(terms.ttl) * 1_000_000);
    let requests: Vec<Request> = takes.iter().map(|&(key, count, _)| request(key, count)).collect();
    let of = holds::Terms { ttl, id, charge: terms.charge };
    let outcomes = holds::hold_all(run, &requests, &of)?;
    let (mut answers, mut held) = (Vec::new(), Vec::new());
    for (&(key, count, _), holds::Held { answer, id, count: has, expires_at }) in
        takes.iter().zip(outcomes)
    {
        answers.push(self::answer(key, count, &answer));
        held.push(Held { id, count: has, expires_at: expires_at.map(|Micros(at)| at) });
    }
    Ok(Outcome::Held(answers, held))
}

fn settled_key(settled: &Settled) -> SettledKey {
    let left = settled.answer.as_ref().map(|answer| (answer.now.0, answer.level.remaining));
    SettledKey { key: key_number(&settled.key), left }
}

fn request(key: u8, count: u8) -> Request<'static> {
    let key = KEYS[usize::from(key)];
    Request { name: NAME, key, count: f64::from(count), reserve: false, config: None }
}

fn at_once(run: &Run, step: Primitive) -> Outcome {
    run.at_once(step);
    Outcome::Done
}

fn answer(key: u8, count: u8, answer: &Answer) -> Answered {
    Answered {
        key,
        count,
        ok: answer.ok,
        retry_after: answer.retry_after,
        is_blocked: answer.blocked.is_some(),
        now: answer.now,
        remaining: answer.level.remaining,
        lease: answer.lease.map(|lease| lease.id.0),
    }
}

fn answered(key: u8, count: u8, answer: Answer) -> Outcome {
    Outcome::Answered(vec![self::answer(key, count, &answer)])
}

/// Extends the session's last lease.
fn extended(run: &Run, key: u8, leases: &[i64]) -> Result<Outcome> {
    let Some(&id) = leases.last() else { return Ok(Outcome::Done) };
    Ok(Outcome::Extended(id, single::extend(run, &request(key, 1), Micros(id))?))
}

/// Releases the session's last lease.
fn released(run: &Run, key: u8, leases: &[i64]) -> Result<Outcome> {
    let Some(&id) = leases.last() else { return Ok(Outcome::Done) };
    Ok(Outcome::Released(id, single::release(run, &request(key, 1), Micros(id))?))
}

fn step(run: &Run, step: Primitive) -> Outcome {
    run.step(step);
    Outcome::Done
}

/// Locks a row, if there is one.
fn lock_row(run: &Run, key: u8) -> Outcome {
    let place = crate::postgres::RowKey { key, shard: 0 };
    if let StepReply::Row(Some((tid, ..))) = run.step(Primitive::Read(place)) {
        run.step(Primitive::Lock(tid, place));
    }
    Outcome::Done
}

/// The owner renames the key of a row.
fn rename(run: &Run, from: u8, to: u8) -> Outcome {
    let place = crate::postgres::RowKey { key: from, shard: 0 };
    let StepReply::Row(found) = run.step(Primitive::Read(place)) else { return Outcome::Done };
    let Some((tid, ..)) = found else { return Outcome::Renamed(false) };
    Outcome::Renamed(run.step(Primitive::Rename(tid, to)) == StepReply::Was(true))
}
