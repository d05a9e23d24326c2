//! The history of a load, for the judge.

use std::collections::HashMap;
use std::path::Path;

use postgres::{Client, Error, Statement};
use ratelimit_judge::{Asked, Recorder, Reply, Storage};

use super::{Rule, SlidingLog, TokenBucket};

/// Where a history is left that is refused.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");

/// What the sessions of a load do.
pub struct Notebook {
    pub recorder: Recorder,
    /// The numbers of the keys, and whether a row shows when it was taken from.
    keys: HashMap<(String, String), (u32, bool)>,
}

/// The answer of a take, with the time that the row shows.
pub struct Answer {
    pub ok: bool,
    remaining: Option<f64>,
    retry_at: Option<i64>,
    at: Option<i64>,
}

/// A take that is noted in the table `takes`.
pub struct Take {
    call: Statement,
    /// Reads when a row was taken from; none for a limiter whose answers are not judged.
    at: Option<Statement>,
}

impl Take {
    /// `limiter` is a query of name, key and count, which returns `ok`; all columns of the extension's where it
    /// `is_extension`.
    pub fn prepare(client: &mut Client, limiter: &str, is_extension: bool) -> Take {
        let told = match is_extension {
            true => "remaining, (extract(epoch FROM retry_at) * 1000000)::bigint",
            false => "NULL::float8, NULL::bigint",
        };
        let call = format!(
            "WITH told AS MATERIALIZED ({limiter}),
                  noted AS (INSERT INTO takes SELECT $1, $2, $3, clock_timestamp() FROM told WHERE ok)
             SELECT ok, {told} FROM told"
        );
        let call = client.prepare(&call).unwrap();
        // Not of the table, which a transaction sees by its snapshot.
        let at =
            "SELECT round(coalesce(state -> 'log' -> -1, state -> 'ts')::numeric * 1000)::bigint
                  FROM rl_state($1, $2) AS state";
        Take { call, at: is_extension.then(|| client.prepare(at).unwrap()) }
    }

    /// Takes; the row then shows when.
    ///
    /// # Errors
    /// Those of the server.
    pub fn call(
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
    pub fn new(limits: &[(String, Rule)], keys: &[String], storage: Storage) -> Notebook {
        let recorder = Recorder::new();
        let mut numbers = HashMap::new();
        for (name, rule) in limits {
            for key in keys {
                let number = recorder.key(name, key, &rule.config(), storage);
                let shows = storage == Storage::Row
                    && matches!(rule, TokenBucket { .. } | SlidingLog { .. });
                numbers.insert((name.clone(), key.clone()), (number, shows));
            }
        }
        Notebook { recorder, keys: numbers }
    }

    /// What a take was answered.
    pub fn call(
        &self,
        name: &str,
        key: &str,
        count: f64,
        answer: &Answer,
    ) -> (u32, Asked, Option<i64>, Reply) {
        let (number, shows) = self.keys[&(name.to_owned(), key.to_owned())];
        let &Answer { ok, remaining, retry_at, at } = answer;
        let reply = Reply { ok, remaining, retry_at: (!ok).then_some(retry_at) };
        (number, Asked::Limit { count, reserve: false }, at.filter(|_| shows), reply)
    }

    /// Judges what was recorded.
    ///
    /// # Errors
    /// The judge's reason.
    pub fn judge(&self) -> Result<(), String> {
        let judged = self.recorder.judge(Path::new(FOLDER), "refused-history")?;
        println!("{judged}");
        Ok(())
    }
}
