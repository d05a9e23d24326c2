//! Several limits in one call, under load: all or nothing, in any order of the requests, and without a
//! deadlock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use ratelimit_tests::times;
use serde_json::{Value, json};

use super::caller::{Caller, Ending, STILL};
use super::{LEVELS, Random, SESSIONS};
use crate::database::Database;

const LIMITS: usize = 20;
const CAPACITY: f64 = 150.0;
/// One session's, for one key.
const TRANSACTIONS: usize = 30;

/// The tokens taken, by limit.
type Taken = HashMap<String, f64>;

fn name(n: usize) -> String {
    format!("limit {n:02}")
}

/// Every kind, and some of them in shards.
fn config(n: usize, shards: u32) -> String {
    match n % 5 {
        0 => format!("rl_token_bucket({CAPACITY}, '1 day')"),
        1 => format!("rl_token_bucket({CAPACITY}, '1 day', shards => {shards})"),
        2 => format!("rl_fixed_window({CAPACITY}, '1 day', shards => {shards})"),
        3 => format!("rl_sliding_window({CAPACITY}, '1 day')"),
        _ => format!("rl_sliding_log({CAPACITY}, '1 day')"),
    }
}

/// Some limits in any order, some of them twice.
fn requests(random: &mut Random) -> Vec<(String, f64)> {
    let mut limits: Vec<usize> = (0..LIMITS).collect();
    (0..1 + random.below(8))
        .map(|_| {
            let n = match random.below(10) {
                0 => random.below(LIMITS as u64) as usize,
                _ => limits.swap_remove(random.below(limits.len() as u64) as usize),
            };
            let count = if random.below(12) == 0 { 30.0 } else { random.below(4) as f64 };
            (name(n), count)
        })
        .collect()
}

/// Makes one call; returns whether it took its tokens, which each of its rows must confirm.
fn limit_all(
    client: &mut Client,
    key: &str,
    requests: &[(String, f64)],
) -> Result<bool, postgres::Error> {
    let list: Vec<Value> = requests
        .iter()
        .map(|(name, count)| json!({ "name": name, "key": key, "count": count }))
        .collect();
    let sql = "SELECT n, name, ok, limited_by FROM rl_limit_all($1::text::jsonb)";
    let rows = client.query(sql, &[&Value::from(list).to_string()])?;
    let ok: bool = rows[0].get("ok");
    assert_eq!(rows.len(), requests.len());
    for (n, (row, (name, _))) in rows.iter().zip(requests).enumerate() {
        assert_eq!((row.get("n"), row.get("name")), (n as i32 + 1, name.as_str()));
        assert_eq!(row.get::<_, bool>("ok"), ok);
    }
    assert_eq!(rows.iter().all(|row| row.get::<_, Option<&str>>("limited_by").is_none()), ok);
    Ok(ok)
}

/// Makes the calls of a session for one key; returns its takes.
fn session(caller: &mut Caller, random: &mut Random, key: &str) -> Taken {
    let mut taken = Taken::new();
    for _ in 0..TRANSACTIONS {
        let mut requests = requests(random);
        let ending = Ending::random(random);
        let ok = if random.below(5) == 0 {
            requests.truncate(1);
            let (name, count) = &requests[0];
            caller.limit(ending, name, key, *count)
        } else {
            caller.run(ending, |client| limit_all(client, key, &requests))
        };
        if ok && ending.keeps() {
            for (name, count) in requests {
                *taken.entry(name).or_default() += count;
            }
        }
    }
    taken
}

/// Returns the tokens taken according to the rows of a key, by limit.
fn used(client: &mut Client, key: &str) -> Taken {
    let sql = "SELECT name, CASE WHEN left(config ->> 'kind', 7) = 'sliding' THEN sum(value)
                                 ELSE (config ->> 'rate')::float8 - sum(value) END
               FROM rateLimits r JOIN rl_config c USING (name)
               WHERE r.key = $1 AND kind <> '#' GROUP BY name, config";
    client.query(sql, &[&key]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Runs 16 sessions, key after key, while `more` returns true; compares each key's rows with the takes.
fn load(database: &Database, mut more: impl FnMut(usize) -> bool) {
    let mut client = database.connect();
    let mut round = 0;
    let mut callers: Vec<Vec<Caller>> = LEVELS
        .iter()
        .map(|level| (0..SESSIONS).map(|_| Caller::new(database, level, STILL)).collect())
        .collect();
    let (mut tokens, mut full) = (0.0, 0);
    while more(round) {
        let key = format!("key {round}");
        let mut taken = Taken::new();
        thread::scope(|scope| {
            let sessions: Vec<_> = callers[round % LEVELS.len()]
                .iter_mut()
                .enumerate()
                .map(|(n, caller)| {
                    let mut random = Random((round * SESSIONS + n) as u64);
                    let key = &key;
                    scope.spawn(move || session(caller, &mut random, key))
                })
                .collect();
            for session in sessions {
                for (name, count) in session.join().unwrap() {
                    *taken.entry(name).or_default() += count;
                }
            }
        });
        let used = used(&mut client, &key);
        for name in (0..LIMITS).map(name) {
            let of = |taken: &Taken| taken.get(&name).copied().unwrap_or(0.0);
            let (taken, used) = (of(&taken), of(&used));
            assert!((taken - used).abs() < 1e-6, "{key}: {name} gave {taken}, its rows say {used}");
            assert!(taken <= CAPACITY, "{key}: {name} gave {taken}");
            tokens += taken;
            full += u32::from(taken > CAPACITY - 3.0);
        }
        round += 1;
    }
    let retries: u64 = callers.iter().flatten().map(|caller| caller.retries).sum();
    println!("{round} keys, {tokens} tokens, {full} limits exhausted, {retries} retries");
    assert!(full > 0, "nothing was refused");
}

fn define(client: &mut Client, n: usize, shards: u32) {
    let sql = format!("SELECT rl_define('{}', {})", name(n), config(n, shards));
    client.batch_execute(&Database::limits(&sql)).unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn all_is_taken_or_nothing_and_no_two_calls_deadlock() {
    let database = Database::new("load_limit_all");
    let mut client = database.connect();
    for n in 0..LIMITS {
        define(&mut client, n, [1, 2, 3, 8][n / 5]);
    }
    let rounds = (6.0 * times()).ceil() as usize;
    load(&database, |round| round < rounds);
}

#[test]
#[ignore = "needs a server: make test"]
fn all_is_taken_or_nothing_while_the_numbers_of_shards_change() {
    let database = Database::new("load_limit_all_reshard");
    let mut client = database.connect();
    for n in 0..LIMITS {
        define(&mut client, n, 1);
    }
    let running = AtomicBool::new(true);
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let (mut random, mut changes) = (Random(1), 0);
            while running.load(Ordering::Relaxed) {
                let n = random.below(LIMITS as u64) as usize;
                define(&mut client, n, [1, 3, 10][random.below(3) as usize]);
                changes += 1;
                thread::sleep(Duration::from_millis(1));
            }
            changes
        });
        let stop = Stop(&running);
        load(&database, |round| round < 3);
        drop(stop);
        println!("{} definitions", changing.join().unwrap());
    });
}

/// Stops the other sessions when dropped, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
