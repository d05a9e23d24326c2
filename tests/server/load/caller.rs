//! A session with one call a transaction, for which any error is a failure, and its clock.

use postgres::{Client, Error};

use super::{Random, is_conflict, may_conflict};
use crate::database::Database;

/// A clock that stands still, so that nothing refills.
pub const STILL: &str = "SET ratelimit.clock = '2027-01-01 00:00:00+00'";

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Commit,
    RollBack,
    /// To a savepoint before the call; the transaction itself is committed.
    RollBackTo,
    /// The savepoint before the call is released.
    Release,
}

impl Ending {
    /// A third of them roll back.
    pub fn random(random: &mut Random) -> Ending {
        match random.below(6) {
            0 => Ending::RollBack,
            1 => Ending::RollBackTo,
            2 => Ending::Release,
            _ => Ending::Commit,
        }
    }

    /// Returns whether the take is committed.
    pub fn keeps(self) -> bool {
        matches!(self, Ending::Commit | Ending::Release)
    }
}

/// A connection whose transactions meet no error, except serialization failures with the SQL store
/// above READ COMMITTED, which it retries. A deadlock is always an error: of two transactions with
/// one call each, neither holds a lock that the other waits for.
pub struct Caller {
    client: Client,
    /// Whether a serialization failure may happen.
    conflicts: bool,
    pub retries: u64,
}

impl Caller {
    /// `setup` is SQL for the new session.
    pub fn new(database: &Database, level: &'static str, setup: &str) -> Caller {
        let mut client = database.connect();
        client
            .batch_execute(&format!(
                "SET default_transaction_isolation = '{level}'; SET deadlock_timeout = '50ms'; {setup}"
            ))
            .unwrap();
        let conflicts = may_conflict(&mut client, level);
        Caller { client, conflicts, retries: 0 }
    }

    /// Runs the call in a transaction with this end, until it has no conflict.
    pub fn run<T>(
        &mut self,
        ending: Ending,
        mut call: impl FnMut(&mut Client) -> Result<T, Error>,
    ) -> T {
        loop {
            match self.try_run(ending, &mut call) {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(self.conflicts && is_conflict(&error), "{error:?}");
                    self.retries += 1;
                    self.client.batch_execute("ROLLBACK").unwrap();
                }
            }
        }
    }

    fn try_run<T>(
        &mut self,
        ending: Ending,
        call: &mut impl FnMut(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // A snapshot that is older than the call, where a transaction keeps its first.
        self.client.batch_execute("BEGIN; SELECT 1")?;
        if matches!(ending, Ending::RollBackTo | Ending::Release) {
            self.client.batch_execute("SAVEPOINT s")?;
        }
        let answer = call(&mut self.client)?;
        self.client.batch_execute(match ending {
            Ending::Commit => "COMMIT",
            Ending::RollBack => "ROLLBACK",
            Ending::RollBackTo => "ROLLBACK TO SAVEPOINT s; COMMIT",
            Ending::Release => "RELEASE SAVEPOINT s; COMMIT",
        })?;
        Ok(answer)
    }

    /// Returns whether these tokens were taken.
    pub fn limit(&mut self, ending: Ending, name: &str, key: &str, count: f64) -> bool {
        let sql = "SELECT ok FROM rl_limit($1, $2, $3)";
        self.run(ending, |client| Ok(client.query_one(sql, &[&name, &key, &count])?.get(0)))
    }
}
