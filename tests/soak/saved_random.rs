//! Random calls of limits in memory that are saved, with restarts of every kind in between, against the algorithm of
//! `crates/core`: after a clean restart nothing is lost, after a crash no more than what came since all was saved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use postgres::Client;
use ratelimit_core::{Limit, Micros, State, config, credit, decide, phase};

use crate::own::Server;
use crate::rules::Random;
use crate::saved::{number, until};
use crate::saved_faults::writer;
use crate::scale;
use crate::shared_memory::set_keys;

/// Their names and configs. The first moves between table and memory.
const LIMITS: [(&str, &str); 4] = [
    (
        "bucket",
        r#""kind": "token bucket", "rate": 3, "period": "1 second", "capacity": 20, "maxReserved": 10"#,
    ),
    ("window", r#""kind": "fixed window", "rate": 30, "period": "10 seconds", "maxReserved": 15"#),
    (
        "day",
        r#""kind": "fixed window", "rate": 500, "period": "1 day", "timezone": "Europe/Berlin""#,
    ),
    ("sliding", r#""kind": "sliding window", "rate": 12, "period": "5 seconds""#),
];
const SLIDING: usize = 3;
/// How many keys each has; the longest needs several pieces of memory.
const KEYS: u64 = 6;
/// 2027-01-01.
const BEGIN: Micros = Micros(1_798_761_600_000_000);

type Key = (usize, u64);

/// What should be in the limits.
struct Model {
    limits: Vec<Limit>,
    /// What a key had since all was saved, the last of it what it has now; `None`: it was full.
    states: BTreeMap<Key, Vec<Option<State>>>,
    blocked: BTreeSet<Key>,
    /// Whether the first limit is in the table.
    in_table: bool,
    now: Micros,
}

fn text(key: u64) -> String {
    format!("key {key} {}", "long ".repeat(40 * key as usize))
}

impl Model {
    fn new() -> Model {
        let limit = |(_, config): &(_, &str)| config::parse(&format!("{{{config}}}")).unwrap();
        let limits = LIMITS.iter().map(limit).collect();
        let (states, blocked) = (BTreeMap::new(), BTreeSet::new());
        Model { limits, states, blocked, in_table: false, now: BEGIN }
    }

    fn is_durable(&self, key: Key) -> bool {
        key.0 == 0 && self.in_table
    }

    /// A state as the limit takes it.
    fn or_full(&self, (limit, key): Key, state: Option<State>) -> State {
        let phase = phase(LIMITS[limit].0.as_bytes(), text(key).as_bytes());
        state.unwrap_or_else(|| self.limits[limit].initial_state(self.now, phase))
    }

    fn state(&self, key: Key) -> State {
        let last = self.states.get(&key).and_then(|states| states.last().cloned());
        self.or_full(key, last.unwrap_or_default())
    }

    fn remaining(&self, key: Key) -> f64 {
        self.limits[key.0].level(&self.state(key), self.now).remaining
    }

    fn set(&mut self, key: Key, state: Option<State>) {
        let is_durable = self.is_durable(key);
        let states = self.states.entry(key).or_insert_with(|| vec![None]);
        if is_durable {
            states.clear();
        }
        states.push(state);
    }

    /// All is saved.
    fn saved(&mut self) {
        for states in self.states.values_mut() {
            states.drain(..states.len() - 1);
        }
    }
}

/// Calls, and what they should tell.
struct Run {
    server: Server,
    client: Client,
    model: Model,
    random: Random,
    restarts: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let server = Server::start();
        let mut client = server.client();
        set_keys(&mut client, 1000);
        let mut run =
            Run { server, client, model: Model::new(), random: Random(seed), restarts: 0 };
        for (name, config) in LIMITS {
            run.define(name, config, true);
        }
        run.define("flood", LIMITS[0].1, true);
        run.tick(0);
        run
    }

    fn define(&mut self, name: &str, config: &str, in_memory: bool) {
        let home = if in_memory { r#""memory", "save": "100 ms""# } else { r#""table""# };
        let config = format!("{{{config}, \"store\": {home}}}");
        let sql = "SELECT rl_define($1, $2::text::jsonb)";
        self.client.execute(sql, &[&name, &config]).unwrap();
    }

    fn tick(&mut self, micros: i64) {
        self.model.now = self.model.now.plus(Micros(micros));
        let sql = "SELECT set_config('ratelimit.clock',
                       (timestamptz 'epoch' + $1 * interval '1 microsecond')::text, false)";
        self.client.execute(sql, &[&(self.model.now.0 as f64)]).unwrap();
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn key(&mut self) -> Key {
        (self.below(LIMITS.len() as u64) as usize, self.below(KEYS))
    }

    /// Calls a function for a key, in a transaction that may be rolled back, or must not write, where it is in memory.
    fn call(&mut self, (limit, key): Key, sql: &str, count: f64) -> (bool, f64) {
        let how = if self.model.is_durable((limit, key)) { 0 } else { self.below(4) };
        let mut transaction = self.client.build_transaction().read_only(how == 1).start().unwrap();
        let row = transaction.query_one(sql, &[&LIMITS[limit].0, &text(key), &count]).unwrap();
        if how == 2 { transaction.rollback() } else { transaction.commit() }.unwrap();
        (row.get(0), row.get(1))
    }

    fn check(&mut self, key: Key, ok: bool, told: (bool, f64), what: &str) {
        let expected = (ok, self.model.remaining(key));
        let is_equal = told.0 == expected.0 && (told.1 - expected.1).abs() < 1e-6;
        assert!(
            is_equal || self.model.blocked.contains(&key),
            "{what} of {key:?}: {told:?}, not {expected:?}"
        );
        assert_eq!(told.0, expected.0, "{what} of {key:?}");
    }

    fn take(&mut self) {
        let (key, count, reserve) = (self.key(), self.below(6) as f64, self.below(4) == 0);
        let sql = format!("SELECT ok, remaining FROM rl_limit($1, $2, $3, reserve => {reserve})");
        let told = self.call(key, &sql, count);
        let limit = &self.model.limits[key.0];
        let decision = decide(limit, &self.model.state(key), self.model.now, count, reserve);
        let ok = decision.ok && !self.model.blocked.contains(&key);
        if let Some(state) = decision.state.filter(|_| ok) {
            self.model.set(key, Some(state));
        }
        self.check(key, ok, told, "rl_limit");
    }

    fn credit(&mut self) {
        let (key, count) = (self.key(), self.below(9) as f64 - 3.0);
        if key.0 == SLIDING || self.model.blocked.contains(&key) {
            return;
        }
        let told = self.call(key, "SELECT ok, remaining FROM rl_credit($1, $2, $3)", count);
        let limit = &self.model.limits[key.0];
        let decision = credit(limit, &self.model.state(key), self.model.now, count, None).unwrap();
        if let Some(state) = decision.state {
            self.model.set(key, Some(state));
        }
        self.check(key, true, told, "rl_credit");
    }

    /// Of two keys both or none.
    fn take_all(&mut self) {
        let keys = [self.key(), self.key()];
        if keys[0] == keys[1] {
            return;
        }
        let (count, now) = (self.below(6) as f64, self.model.now);
        let request = |(limit, key): Key| {
            let name = LIMITS[limit].0;
            format!(r#"{{"name": "{name}", "key": "{}", "count": {count}}}"#, text(key))
        };
        let requests = format!("[{}, {}]", request(keys[0]), request(keys[1]));
        let sql = "SELECT ok, remaining FROM rl_limit_all($1::text::jsonb)";
        let rows = self.client.query(sql, &[&requests]).unwrap();
        let decide = |&key: &Key| {
            let decision =
                decide(&self.model.limits[key.0], &self.model.state(key), now, count, false);
            decision.ok && !self.model.blocked.contains(&key)
        };
        let ok = keys.iter().all(decide);
        for key in keys.into_iter().filter(|_| ok) {
            let limit = &self.model.limits[key.0];
            let decision = ratelimit_core::decide(limit, &self.model.state(key), now, count, false);
            if let Some(state) = decision.state {
                self.model.set(key, Some(state));
            }
        }
        // In the order of the requests.
        for (key, row) in keys.into_iter().zip(rows) {
            self.check(key, ok, (row.get(0), row.get(1)), "rl_limit_all");
        }
    }

    fn reset(&mut self) {
        let key = self.key();
        if self.below(3) > 0 {
            let arguments: [&(dyn postgres::types::ToSql + Sync); 2] =
                [&LIMITS[key.0].0, &text(key.1)];
            self.client.execute("SELECT rl_reset($1, $2)", &arguments).unwrap();
            return self.model.set(key, None);
        }
        self.client.execute("SELECT rl_reset_all($1)", &[&LIMITS[key.0].0]).unwrap();
        for n in 0..KEYS {
            if self.model.states.contains_key(&(key.0, n)) {
                self.model.set((key.0, n), None);
            }
        }
    }

    fn block(&mut self) {
        let key = self.key();
        let sql = match self.model.blocked.remove(&key) {
            true => "SELECT rl_unblock($1, $2)",
            false => "SELECT rl_block($1, $2, until => 'infinity')",
        };
        self.client.execute(sql, &[&LIMITS[key.0].0, &text(key.1)]).unwrap();
        if sql.contains("rl_block") {
            self.model.blocked.insert(key);
        }
    }

    /// Has the rest evicted.
    fn flood(&mut self) {
        let sql = "SELECT rl_limit('flood', gen_random_uuid()::text) FROM generate_series(1, 1500)";
        self.client.batch_execute(sql).unwrap();
    }

    fn save(&mut self) {
        if self.below(2) == 0 {
            assert_eq!(number(&mut self.client, "SELECT rl_save()"), 0);
        } else {
            let unsaved = "SELECT unsaved_keys FROM rl_memory()";
            until("all is saved", || number(&mut self.client, unsaved) == 0);
        }
        self.model.saved();
    }

    fn move_it(&mut self) {
        self.model.in_table = !self.model.in_table;
        self.define(LIMITS[0].0, LIMITS[0].1, !self.model.in_table);
        for n in 0..KEYS {
            // What was in memory is saved.
            if let Some(states) = self.model.states.get_mut(&(0, n)) {
                states.drain(..states.len() - 1);
            }
        }
    }

    /// Restarts the server, or ends the session.
    fn restart(&mut self) {
        self.restarts += 1;
        let how = self.below(6);
        // Those who save when they end must know that they have to.
        match how {
            0 => self.server.restart_by("fast"),
            1 => {
                self.client = self.server.client();
                let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                self.client.batch_execute(ends).unwrap();
            }
            2 => {
                let pid = number(&mut self.client, "SELECT pg_backend_pid()::bigint");
                std::thread::scope(|scope| {
                    scope.spawn(|| self.server.restart_by("smart"));
                    let sql = format!("SELECT pg_sleep(0.1), pg_terminate_backend({pid})");
                    let _ = self.client.batch_execute(&sql);
                });
            }
            3 => self.server.restart_by("immediate"),
            4 => {
                self.server.kill();
                self.server.restart();
            }
            _ => self.kill_writer(),
        }
        self.client = self.server.client();
        self.tick(0);
        if how > 2 {
            self.forgotten();
        }
    }

    /// Kills the writer, if there is one: then the server restarts.
    fn kill_writer(&mut self) {
        let postmaster = self.server.exec("head -n 1 data/postmaster.pid");
        let Some(writer) = writer(&postmaster) else { return };
        self.server.exec(&format!("kill -KILL {writer} || true"));
        // It may have ended by itself.
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end && self.client.batch_execute("SELECT").is_ok() {}
    }

    /// After a crash each key has something that it had since all was saved.
    fn forgotten(&mut self) {
        for (key, states) in self.model.states.clone() {
            let told = self.rest(key);
            let is_it = |state: &&Option<State>| {
                let state = self.model.or_full(key, (*state).clone());
                let level = self.model.limits[key.0].level(&state, self.model.now);
                (level.remaining - told).abs() < 1e-6
            };
            let Some(found) = states.iter().rev().find(is_it) else {
                panic!("after a crash {key:?} has {told}, which it never had: {states:?}");
            };
            self.model.states.insert(key, vec![found.clone()]);
            if key.0 == SLIDING {
                // Others may have as much left now, but later more.
                let arguments: [&(dyn postgres::types::ToSql + Sync); 2] =
                    [&LIMITS[key.0].0, &text(key.1)];
                self.client.execute("SELECT rl_reset($1, $2)", &arguments).unwrap();
                self.model.set(key, None);
            }
        }
    }

    fn rest(&mut self, (limit, key): Key) -> f64 {
        let sql = "SELECT remaining FROM rl_check($1, $2)";
        let arguments: [&(dyn postgres::types::ToSql + Sync); 2] = [&LIMITS[limit].0, &text(key)];
        // A block hides what is left.
        self.client.query_one(sql, &arguments).unwrap().get(0)
    }

    fn unblock_all(&mut self) {
        for (limit, key) in std::mem::take(&mut self.model.blocked) {
            let sql = "SELECT rl_unblock($1, $2)";
            self.client.execute(sql, &[&LIMITS[limit].0, &text(key)]).unwrap();
        }
    }

    fn check_all(&mut self) {
        for key in self.model.states.keys().copied().collect::<Vec<_>>() {
            let (told, expected) = (self.rest(key), self.model.remaining(key));
            let is_equal = (told - expected).abs() < 1e-6;
            assert!(
                is_equal,
                "after {} restarts {key:?} has {told}, not {expected}",
                self.restarts
            );
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..50 => self.take(),
            50..60 => self.credit(),
            60..70 => self.take_all(),
            70..75 => self.reset(),
            75..79 => self.block(),
            79..81 => self.flood(),
            81..85 => self.save(),
            85..88 => self.move_it(),
            _ => {
                let micros = self.below(1_500_000) as i64;
                self.tick(micros);
            }
        }
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn random_calls_and_restarts_lose_what_they_may_and_give_nothing_twice() {
    for seed in 1..=scale(1, 40) {
        let mut run = Run::new(seed);
        for _ in 0..scale(10, 40) {
            for _ in 0..60 + run.below(60) {
                run.step();
            }
            run.unblock_all();
            run.check_all();
            run.restart();
            run.check_all();
        }
        println!("seed {seed}: {} restarts", run.restarts);
    }
}
