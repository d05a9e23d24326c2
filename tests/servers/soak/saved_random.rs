//! Random calls of limits in memory that are saved, with moves, evictions and restarts of every kind in between: after
//! a clean restart nothing is lost, after a crash no more than what came since all was saved. The limits refill within
//! years, so that what is left is a count.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;

use crate::own::Server;
use crate::rules::Random;
use crate::saved::{SAVE, UNSAVED, kill_writer, number, until};
use crate::scale;
use crate::shared_memory::set_keys;

/// Their names and configs. The first moves between table and memory.
const LIMITS: [(&str, &str); 3] = [
    ("bucket", r#""kind": "token bucket", "rate": 20, "period": "3000 days", "maxReserved": 10"#),
    ("window", r#""kind": "fixed window", "rate": 20, "period": "3000 days", "maxReserved": 10"#),
    ("sliding", r#""kind": "sliding window", "rate": 20, "period": "3000 days""#),
];
const CAPACITY: f64 = 20.0;
const SLIDING: usize = 2;
/// How many keys each has; the longest needs several pieces of memory.
const KEYS: u64 = 6;

type Key = (usize, u64);

fn text(key: u64) -> String {
    format!("key {key} {}", "long ".repeat(40 * key as usize))
}

/// Calls, and what they should return.
struct Run {
    server: Server,
    client: Client,
    random: Random,
    /// What was left of a key since all was saved, the last of it what is now.
    left: BTreeMap<Key, Vec<f64>>,
    blocked: BTreeSet<Key>,
    /// Whether the first limit is in the table.
    in_table: bool,
}

impl Run {
    fn new(seed: u64) -> Run {
        let server = Server::start();
        let mut client = server.client();
        set_keys(&mut client, 1000);
        let keys = (0..LIMITS.len()).flat_map(|limit| (0..KEYS).map(move |key| (limit, key)));
        let left = keys.map(|key| (key, vec![CAPACITY])).collect();
        let (random, blocked) = (Random(seed), BTreeSet::new());
        let mut run = Run { server, client, random, left, blocked, in_table: false };
        LIMITS.iter().for_each(|(name, config)| run.define(name, config, true));
        run.define("flood", LIMITS[0].1, true);
        run
    }

    fn define(&mut self, name: &str, config: &str, in_memory: bool) {
        let home = if in_memory { r#""memory", "save": "100 ms""# } else { r#""table""# };
        let config = format!("{{{config}, \"store\": {home}}}");
        let sql = "SELECT rl_define($1, $2::text::jsonb)";
        self.client.execute(sql, &[&name, &config]).unwrap();
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn key(&mut self) -> Key {
        (self.below(LIMITS.len() as u64) as usize, self.below(KEYS))
    }

    fn now(&self, key: Key) -> f64 {
        *self.left[&key].last().unwrap()
    }

    /// Notes what is left of a key; in the table it lasts at once.
    fn set(&mut self, key: Key, left: f64) {
        let (lasts, states) = (key.0 == 0 && self.in_table, self.left.get_mut(&key).unwrap());
        if lasts {
            states.clear();
        }
        states.push(left);
    }

    /// Only what is now can be read from now on, of the keys of one limit or of all.
    fn saved(&mut self, limit: Option<usize>) {
        let keys = self.left.iter_mut().filter(|(key, _)| limit.is_none_or(|limit| key.0 == limit));
        keys.for_each(|(_, states)| drop(states.drain(..states.len() - 1)));
    }

    /// Calls a function for a key, in a transaction that may be rolled back, or must not write, where it is in memory.
    fn call(&mut self, (limit, key): Key, call: &str, count: f64) -> (bool, f64) {
        let how = if limit == 0 && self.in_table { 0 } else { self.below(4) };
        let mut transaction = self.client.build_transaction().read_only(how == 1).start().unwrap();
        let sql = format!("SELECT ok, remaining FROM {call}");
        let row = transaction.query_one(&sql, &[&LIMITS[limit].0, &text(key), &count]).unwrap();
        if how == 2 { transaction.rollback() } else { transaction.commit() }.unwrap();
        (row.get(0), row.get(1))
    }

    fn check(&mut self, key: Key, ok: bool, told: (bool, f64), what: &str) {
        assert_eq!(told.0, ok, "{what} of {key:?}");
        let is_equal = (told.1 - self.now(key)).abs() < 0.01 || self.blocked.contains(&key);
        assert!(is_equal, "{what} of {key:?}: {told:?}, not {}", self.now(key));
    }

    fn allows(&self, key: Key, count: f64, reserve: bool) -> bool {
        let reserved = if reserve && key.0 != SLIDING { 10.0 } else { 0.0 };
        !self.blocked.contains(&key) && self.now(key) + reserved >= count
    }

    fn take(&mut self) {
        let key = self.key();
        let (count, reserve) = (self.below(6) as f64, key.0 != SLIDING && self.below(4) == 0);
        let ok = self.allows(key, count, reserve);
        let told = self.call(key, &format!("rl_limit($1, $2, $3, reserve => {reserve})"), count);
        if ok {
            self.set(key, self.now(key) - count);
        }
        self.check(key, ok, told, "rl_limit");
    }

    fn credit(&mut self) {
        let (key, count) = (self.key(), self.below(6) as f64);
        if key.0 != SLIDING && !self.blocked.contains(&key) {
            let told = self.call(key, "rl_credit($1, $2, $3)", count);
            self.set(key, (self.now(key) + count).min(CAPACITY));
            self.check(key, true, told, "rl_credit");
        }
    }

    /// Of two keys both or none.
    fn take_all(&mut self) {
        let (keys, count) = ([self.key(), self.key()], self.below(6) as f64);
        if keys[0] == keys[1] {
            return;
        }
        let request = |(limit, key): Key| {
            let (name, key) = (LIMITS[limit].0, text(key));
            format!(r#"{{"name": "{name}", "key": "{key}", "count": {count}}}"#)
        };
        let requests = format!("[{}, {}]", request(keys[0]), request(keys[1]));
        let sql = "SELECT ok, remaining FROM rl_limit_all($1::text::jsonb)";
        let rows = self.client.query(sql, &[&requests]).unwrap();
        let ok = keys.iter().all(|&key| self.allows(key, count, false));
        for (key, row) in keys.into_iter().zip(rows) {
            if ok {
                self.set(key, self.now(key) - count);
            }
            self.check(key, ok, (row.get(0), row.get(1)), "rl_limit_all");
        }
    }

    fn reset(&mut self) {
        let (key, all) = (self.key(), self.below(3) == 0);
        let name = LIMITS[key.0].0;
        if all {
            self.client.execute("SELECT rl_reset_keys($1)", &[&name]).unwrap();
        } else {
            self.client.execute("SELECT rl_reset($1, $2)", &[&name, &text(key.1)]).unwrap();
        }
        for n in (0..KEYS).filter(|&n| all || n == key.1) {
            self.set((key.0, n), CAPACITY);
        }
    }

    fn block(&mut self) {
        let key = self.key();
        let sql = match self.blocked.remove(&key) {
            true => "SELECT rl_unblock($1, $2)",
            false => "SELECT rl_block($1, $2, until => 'infinity')",
        };
        self.client.execute(sql, &[&LIMITS[key.0].0, &text(key.1)]).unwrap();
        if sql.contains("rl_block") {
            self.blocked.insert(key);
        }
    }

    /// Has the rest evicted.
    fn flood(&mut self) {
        let sql = "SELECT rl_limit('flood', gen_random_uuid()::text) FROM generate_series(1, 1500)";
        self.client.batch_execute(sql).unwrap();
    }

    fn save(&mut self) {
        if self.below(2) == 0 {
            assert_eq!(number(&mut self.client, SAVE), 0);
        } else {
            until("all is saved", || number(&mut self.client, UNSAVED) == 0);
        }
        self.saved(None);
    }

    fn change_store(&mut self) {
        self.in_table = !self.in_table;
        self.define(LIMITS[0].0, LIMITS[0].1, !self.in_table);
        // What was in memory is saved.
        self.saved(Some(0));
    }

    /// Restarts the server, or ends all sessions or the writer.
    fn restart(&mut self) {
        let how = ["fast", "sessions", "writer", "smart", "immediate", "kill", "kill the writer"]
            [self.below(7) as usize];
        match how {
            "sessions" | "writer" => {
                let kind = if how == "writer" { "ratelimit writer" } else { "client backend" };
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = $1 AND pid <> $2";
                let pid: i32 =
                    self.client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
                self.client.execute(sql, &[&kind, &pid]).unwrap();
            }
            "smart" => {
                // It waits for this session.
                let end = "SELECT pg_sleep(0.2), pg_terminate_backend(pg_backend_pid())";
                std::thread::scope(|scope| {
                    scope.spawn(|| self.server.restart_by("smart"));
                    self.client.batch_execute(end).unwrap_err();
                });
            }
            "kill" => {
                self.server.kill();
                self.server.restart();
            }
            "kill the writer" => {
                // There is one as long as something is unsaved.
                kill_writer(&self.server, "SELECT rl_limit('flood', 'one', 0.0001)");
            }
            mode => self.server.restart_by(mode),
        }
        self.client = self.server.client();
        if !["fast", "sessions", "writer", "smart"].contains(&how) {
            self.forgotten(how);
        }
    }

    /// After a crash each key has something that it had since all was saved.
    fn forgotten(&mut self, how: &str) {
        for key in self.left.keys().copied().collect::<Vec<_>>() {
            let (told, had) = (self.rest(key), &self.left[&key]);
            let Some(&found) = had.iter().rev().find(|had| (*had - told).abs() < 0.01) else {
                panic!("after {how} {key:?} has {told}, which it never had: {had:?}");
            };
            self.left.insert(key, vec![found]);
        }
    }

    fn rest(&mut self, (limit, key): Key) -> f64 {
        let sql = "SELECT remaining FROM rl_check($1, $2)";
        self.client.query_one(sql, &[&LIMITS[limit].0, &text(key)]).unwrap().get(0)
    }

    /// A block hides what is left.
    fn unblock_all(&mut self) {
        for (limit, key) in std::mem::take(&mut self.blocked) {
            let sql = "SELECT rl_unblock($1, $2)";
            self.client.execute(sql, &[&LIMITS[limit].0, &text(key)]).unwrap();
        }
    }

    fn check_all(&mut self) {
        for key in self.left.keys().copied().collect::<Vec<_>>() {
            let (told, expected) = (self.rest(key), self.now(key));
            assert!((told - expected).abs() < 0.01, "{key:?} has {told}, not {expected}");
        }
    }

    fn step(&mut self) {
        match self.below(90) {
            0..50 => self.take(),
            50..60 => self.credit(),
            60..70 => self.take_all(),
            70..76 => self.reset(),
            76..80 => self.block(),
            80..82 => self.flood(),
            82..86 => self.save(),
            _ => self.change_store(),
        }
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn random_calls_and_restarts_lose_what_they_may_and_give_nothing_twice() {
    for seed in 1..=scale(1, 40) {
        let mut run = Run::new(seed);
        for _ in 0..scale(7, 40) {
            for _ in 0..60 + run.below(60) {
                run.step();
            }
            run.unblock_all();
            run.check_all();
            run.restart();
            run.check_all();
        }
        println!("seed {seed}");
    }
}
