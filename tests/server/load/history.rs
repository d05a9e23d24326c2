//! The history of a load, for the judge.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use postgres::{Client, Error, Statement};
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage};

use super::rules::Rule::{self, SlidingLog, TokenBucket};

/// Where refused histories are left.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");

/// What the sessions of a load do.
pub struct Notebook {
    pub recorder: Recorder,
    limits: HashMap<String, (Rule, Storage)>,
    /// The numbers of the keys that were called, by limit and key.
    keys: Mutex<HashMap<(String, String), u32>>,
}

/// The answer of a take, with the time that the row shows.
pub struct Answer {
    pub ok: bool,
    remaining: Option<f64>,
    retry_at: Option<i64>,
    at: Option<i64>,
}

/// A take of name, key and count from the extension.
pub const LIMITER: &str = "SELECT ok, remaining, retry_at FROM rl_limit($1, $2, $3)";

/// A take that is noted in the table `takes`.
pub struct Take {
    call: Statement,
    /// Reads when a row was taken from; none for a limiter whose answers are not judged.
    at: Option<Statement>,
    /// Reads the rows that this transaction has changed; none where such a read could conflict.
    rows: Option<Statement>,
}

impl Take {
    /// `limiter` is a query of name, key and count, which returns `ok`; `note` are the columns of a note, from these.
    pub fn prepare(client: &mut Client, limiter: &str, note: &str) -> Result<Take, Error> {
        let is_extension = limiter == LIMITER;
        let told = match is_extension {
            true => "remaining, (extract(epoch FROM retry_at) * 1000000)::bigint",
            false => "NULL::float8, NULL::bigint",
        };
        let call = format!(
            "WITH told AS MATERIALIZED ({limiter}),
                  noted AS (INSERT INTO takes SELECT {note} FROM told WHERE ok)
             SELECT ok, {told} FROM told"
        );
        let call = client.prepare(&call)?;
        // Not of the table, which a transaction sees by its snapshot.
        let at =
            "SELECT round(coalesce(state -> 'log' -> -1, state -> 'ts')::numeric * 1000)::bigint
                  FROM (SELECT rl_value($1, $2) -> 'state') AS read (state)";
        let at = if is_extension { Some(client.prepare(at)?) } else { None };
        // Of rows that are seen, those of transactions in progress are one's own.
        let rows = "SELECT shard, value, (extract(epoch FROM ts) * 1000000)::bigint FROM rateLimits
                    WHERE name = $1 AND key = $2 AND shard > 0
                    AND pg_xact_status(xmin::text::xid8) = 'in progress'";
        let level: String = client.query_one("SHOW default_transaction_isolation", &[])?.get(0);
        let rows = if is_extension && level == "read committed" {
            Some(client.prepare(rows)?)
        } else {
            None
        };
        Ok(Take { call, at, rows })
    }

    /// Reads the rows of a limit with shards that the transaction has changed: shard, value and time.
    fn rows(
        &self,
        client: &mut Client,
        name: &str,
        key: &str,
    ) -> Result<Vec<(i32, f64, i64)>, Error> {
        let Some(rows) = &self.rows else { return Ok(Vec::new()) };
        let rows = client.query(rows, &[&name, &key])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    /// Takes; the row then shows when.
    fn call(
        &self,
        client: &mut Client,
        name: &str,
        key: &str,
        count: f64,
    ) -> Result<Answer, Error> {
        let row = client.query_one(&self.call, &[&name, &key, &count])?;
        let (ok, remaining, retry_at) = (row.get(0), row.get(1), row.get(2));
        let at = match &self.at {
            // NULL where another's change of the limit came between.
            Some(at) if ok => client.query_opt(at, &[&name, &key])?.and_then(|row| row.get(0)),
            _ => None,
        };
        Ok(Answer { ok, remaining, retry_at, at })
    }
}

impl Notebook {
    /// Starts one for these limits, with all keys full.
    pub fn new(limits: impl IntoIterator<Item = (String, Rule, Storage)>) -> Notebook {
        let limits = limits.into_iter().map(|(name, rule, storage)| (name, (rule, storage)));
        Notebook { recorder: Recorder::new(), limits: limits.collect(), keys: Mutex::default() }
    }

    /// Returns the number of a key.
    pub fn number(&self, name: &str, key: &str) -> u32 {
        let (rule, storage) = self.limits[name];
        let mut keys = self.keys.lock().unwrap();
        let number = || self.recorder.key(name, key, &rule.config(), storage);
        *keys.entry((name.to_owned(), key.to_owned())).or_insert_with(number)
    }

    /// Takes within a transaction, and records the call, with what it left in the rows of a limit with shards.
    pub fn take(
        &self,
        (recording, client): (&mut Recording, &mut Client),
        take: &Take,
        (name, key, count): (&str, &str, f64),
    ) -> Result<Answer, Error> {
        let answer = recording.call(
            || take.call(client, name, key, count),
            |answer| vec![self.call(name, key, count, answer)],
        )?;
        if answer.ok && self.limits[name].1 == Storage::Shards {
            recording.rows(self.number(name, key), take.rows(client, name, key)?);
        }
        Ok(answer)
    }

    /// The answer to a take.
    fn call(
        &self,
        name: &str,
        key: &str,
        count: f64,
        answer: &Answer,
    ) -> (u32, Asked, Option<i64>, Reply) {
        let (rule, storage) = self.limits[name];
        let shows =
            storage == Storage::Row && matches!(rule, TokenBucket { .. } | SlidingLog { .. });
        let number = self.number(name, key);
        let &Answer { ok, remaining, retry_at, at } = answer;
        let reply = Reply { ok, remaining, retry_at: (!ok).then_some(retry_at) };
        (number, Asked::Limit { count, reserve: false }, at.filter(|_| shows), reply)
    }

    /// Judges what was recorded; the error is the reason.
    pub fn judge(&self) -> Result<(), String> {
        let judged = self.recorder.judge(Path::new(FOLDER), "refused-history")?;
        println!("{judged}");
        Ok(())
    }
}
