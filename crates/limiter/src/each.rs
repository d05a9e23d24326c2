//! Several requests in one call, each made on its own: one that is denied takes nothing, and one that is wrong has its
//! error; neither stops another.
//!
//! Rows are locked in the order of name and key, as in a call for all or nothing, and the requests for one key in their
//! order, with one lock and one version of its row. Limits in memory come last: a rollback keeps what was taken there.

use ratelimit_core::Micros;

use crate::change::{Ask, Change, Mode};
use crate::engine;
use crate::error::{LimiterError, Result};
use crate::ports::{
    Host, KeyRows, KeyedRow, Row, RowAccess, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
};
use crate::request::{Answer, Request};
use crate::several::{Group, groups};
use crate::single;
use crate::target::{Store, Target};

/// The most waits of a call, each in a subtransaction: a transaction with many of them slows all sessions down.
const MAX_WAITS: u32 = 32;

/// Takes tokens for each request as [`single::limit`] would; the answers are in the order of the requests. `lock_wait`:
/// how long the call waits for locked rows, all in all; `None`: as long as [`single::limit`].
///
/// # Errors
/// For a request those of [`single::limit`], and [`LimiterError::Locked`] (55P03): its row is locked for longer than
/// the call waits. For the call [`LimiterError::NotWritten`] (55000) and those of the host.
pub fn limit<H: Host>(
    host: &H,
    requests: &[Request],
    lock_wait: Option<Micros>,
) -> Result<Vec<Result<Answer>>> {
    let mut call = Call { host, requests, answers: Vec::new(), lock_wait, waits: 0 };
    call.answers.resize_with(requests.len(), || None);
    let mut groups = groups("rl_limit", host, requests, |n, error| call.answer(n, Err(error)))?;
    for Group { target, numbers, .. } in &mut groups {
        if target.blocked_until.is_none() {
            continue;
        }
        for n in std::mem::take(numbers) {
            match single::denied_by_block(host, &call.ask(target, n)).transpose() {
                None => numbers.push(n),
                Some(answer) => call.answer(n, answer)?,
            }
        }
    }
    let (in_table, others): (Vec<Group>, Vec<Group>) =
        groups.into_iter().partition(|group| group.target.store.is_in_table());
    if in_table.iter().any(|group| !group.numbers.is_empty()) {
        host.refuse_read_only()?;
        host.with_rows(RowAccess::Write, |rows| {
            in_table.iter().try_for_each(|group| call.take_in_table(rows, group))
        })?;
    }
    for Group { target, numbers, .. } in &others {
        for &n in numbers {
            let answer = single::apply(host, &call.ask(target, n));
            call.answer(n, answer)?;
        }
    }
    call.counted()
}

/// A call.
struct Call<'a, H> {
    host: &'a H,
    requests: &'a [Request<'a>],
    /// The answers so far.
    answers: Vec<Option<Result<Answer>>>,
    /// The rest of the time that it waits for locked rows.
    lock_wait: Option<Micros>,
    /// The number of its waits.
    waits: u32,
}

impl<'a, H: Host> Call<'a, H> {
    /// The ask of one request.
    fn ask(&self, target: &Target<'a>, n: usize) -> Ask<'a> {
        let change = Change::Take(self.requests[n].tokens());
        Ask { target: target.clone(), change, entry: None }
    }

    /// Takes for the requests of one key, of a limit in the table: with one version of their row, if it is one and no
    /// request needs a step of its own.
    fn take_in_table(&mut self, rows: &dyn Rows, group: &Group<'a>) -> Result<()> {
        let (Group { target, numbers, .. }, host) = (group, self.host);
        if numbers.len() > 1 && target.store == Store::Row {
            let takes = numbers.iter().map(|&n| self.requests[n].tokens()).collect();
            let change = Change::Takes(takes, Mode::Each);
            let ask = Ask { target: target.clone(), change, entry: None };
            match self.waiting(rows, target, |rows| engine::short(host, rows, &ask)) {
                Ok(Some(decided)) => {
                    let mut answered = numbers.iter().zip(decided.answers());
                    return answered
                        .try_for_each(|(&n, answer)| self.answer(n, Ok(answer.clone())));
                }
                // A denial on a locked row waits for no transaction.
                Ok(None) | Err(LimiterError::BadState { .. } | LimiterError::Locked { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for &n in numbers {
            let ask = self.ask(target, n);
            let answer = self.waiting(rows, target, |rows| engine::run_one(host, rows, &ask));
            self.answer(n, answer)?;
        }
        Ok(())
    }

    /// Runs `work` on the rows, which waits for locked ones no longer than the call does.
    fn waiting<T>(
        &mut self,
        rows: &dyn Rows,
        target: &Target,
        work: impl Fn(&dyn Rows) -> Result<T>,
    ) -> Result<T> {
        self.host.check_for_interrupts();
        let Some(left) = self.lock_wait else { return work(rows) };
        match work(&Unwaiting { rows, target }) {
            Err(LimiterError::Locked { .. }) if left > Micros(0) && self.waits < MAX_WAITS => {}
            done => return done,
        }
        self.waits += 1;
        let (done, took) = self.host.attempt_within(left, || work(rows).map(Some))?;
        self.lock_wait = Some(left.minus(took).max(Micros(0)));
        done.ok_or_else(|| LimiterError::Locked(target.name_text()))
    }

    /// Notes the answer to a request, from 0; fails with an error that is not the request's alone.
    fn answer(&mut self, n: usize, answer: Result<Answer>) -> Result<()> {
        match answer {
            Err(error) if !error.is_of_request() => Err(error),
            answer => {
                self.answers[n] = Some(answer);
                Ok(())
            }
        }
    }

    /// Counts all answers, and returns them.
    fn counted(self) -> Result<Vec<Result<Answer>>> {
        let Call { host, requests, answers, .. } = self;
        let counted = |(request, answer): (&Request, Option<Result<Answer>>)| {
            let answer = answer.ok_or_else(LimiterError::not_written)?;
            if let Ok(answer) = &answer {
                let counter = host.counter(request.name, request.key)?;
                host.count(counter, request.counted(answer));
            }
            Ok(answer.map(Answer::or_let_pass))
        };
        requests.iter().zip(answers).map(counted).collect()
    }
}

/// Rows that are never waited for: where others would wait, it fails.
struct Unwaiting<'r> {
    rows: &'r dyn Rows,
    target: &'r Target<'r>,
}

impl Unwaiting<'_> {
    /// Fails instead of a wait for a row that is there, or not there to be seen.
    fn refuse(&self, waits: bool, id: RowId, is_there: bool) -> Result<()> {
        match waits && self.rows.read(id)?.is_some() == is_there {
            true => Err(LimiterError::Locked(self.target.name_text())),
            false => Ok(()),
        }
    }
}

impl Rows for Unwaiting<'_> {
    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        let row = self.rows.lock(id, false)?;
        self.refuse(wait && row.is_none(), id, true)?;
        Ok(row)
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> Result<bool> {
        let inserted = self.rows.insert(id, version, false)?;
        self.refuse(wait && !inserted, id, false)?;
        Ok(inserted)
    }

    fn replace(&self, id: RowId, seen: &Row, version: &Version, _: bool) -> Result<bool> {
        self.rows.replace(id, seen, version, false)
    }

    /// A row that could not be replaced is locked next: that shows whether it is free.
    fn facts(&self) -> RowFacts {
        RowFacts { locks_first: true, ..self.rows.facts() }
    }

    crate::pass_on! { rows:
        read(id: RowId) -> Result<Option<Row>>;
        read_key(name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>>;
        read_after(after: (&[u8], &[u8]), same_name: bool, rows: i64) -> Result<Vec<KeyedRow>>;
        random_key() -> Result<Option<(Vec<u8>, Vec<u8>)>>;
        update(id: RowId, locked: TupleId, version: &Version) -> Result<()>;
        delete(id: RowId, locked: TupleId) -> Result<()>;
        remove(keys: &[KeyRows]) -> Result<u64>;
        delete_name(name: &[u8]) -> Result<Option<Vec<KeyedRow>>>;
    }
}
