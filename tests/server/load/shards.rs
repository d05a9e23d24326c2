//! Shards under load: every token of a key is taken once, from any of its rows, also during resharding,
//! and for new keys.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use ratelimit_judge::judge;

use super::caller::{Caller, Ending, STILL};
use super::{End, TokenBucket, now, slow};
use super::{FixedWindow, LEVELS, LIMITER, Load, MICROS, Random, Rule, SECOND, SESSIONS};
use crate::database::Database;

/// Redefines a limit, without rows.
fn define(client: &mut Client, name: &str, config: &str) {
    let sql = format!("SELECT rl_reset_keys('{name}'), rl_define('{name}', {config})");
    client.batch_execute(&sql).unwrap();
}

fn bucket(capacity: f64, shards: u32) -> String {
    format!("rl_token_bucket({capacity}, '1 day', shards => {shards})")
}

/// Returns the tokens in the rows of a key, and the number of rows with tokens.
fn rows(client: &mut Client, name: &str, key: &str) -> (f64, i64) {
    let sql = "SELECT coalesce(sum(value), 0), count(*) FROM rateLimits
               WHERE name = $1 AND key = $2 AND kind <> '#'";
    let row = client.query_one(sql, &[&name, &key]).unwrap();
    (row.get(0), row.get(1))
}

/// Takes random ones of these counts from a limit that doesn't refill, until none passes; returns the
/// committed tokens. Stops above `capacity`, which is a failure.
fn exhaust(
    caller: &mut Caller,
    random: &mut Random,
    (name, key): (&str, &str),
    counts: &[f64],
    capacity: f64,
) -> f64 {
    let (mut counts, mut taken) = (counts.to_vec(), 0.0);
    while !counts.is_empty() && taken <= capacity {
        let count = counts[random.below(counts.len() as u64) as usize];
        let ending = Ending::random(random);
        if !caller.limit(ending, name, key, count) {
            // Denied by the committed state, which never has more.
            counts.retain(|&other| other < count);
        } else if ending.keeps() {
            taken += count;
        }
    }
    taken
}

/// Runs `work` in 16 sessions at once; returns the sum of the results, and of the retries.
fn at_once(
    database: &Database,
    level: &'static str,
    session: impl Fn(&mut Caller, &mut Random) -> f64 + Sync,
) -> (f64, u64) {
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|n| {
                let session = &session;
                scope.spawn(move || {
                    let mut caller = Caller::new(database, level, STILL);
                    (session(&mut caller, &mut Random(n as u64)), caller.retries)
                })
            })
            .collect();
        sessions
            .into_iter()
            .map(|session| session.join().unwrap())
            .fold((0.0, 0), |(tokens, retries), (more, again)| (tokens + more, retries + again))
    })
}

/// Every token was taken, and the rows and rl_check say so.
fn assert_drained(client: &mut Client, (name, key): (&str, &str), capacity: f64, taken: f64) {
    assert_eq!(taken, capacity);
    let (held, _) = rows(client, name, key);
    assert!(held.abs() <= 1e-9 * capacity, "the rows hold {held}");
    client.batch_execute(STILL).unwrap();
    for function in ["rl_check", "rl_limit"] {
        let sql = format!("SELECT ok, remaining FROM {function}($1, $2)");
        let row = client.query_one(&sql, &[&name, &key]).unwrap();
        assert_eq!((row.get(0), row.get(1)), (false, 0.0), "{function}");
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn every_token_of_a_sharded_key_is_taken_once_and_none_is_left() {
    let database = Database::new("load_shards");
    let mut client = database.connect();
    for level in LEVELS {
        for (capacity, shards, counts) in [
            (1500.0, 8, &[1.0][..]),
            (3000.0, 8, &[1.0, 2.0, 3.0]),
            // Many calls need several rows, some nearly all.
            (3000.0, 10, &[1.0, 2.0, 50.0, 350.0, 1000.0]),
            // A row's share is fractional, and less than most counts.
            (500.0, 96, &[1.0, 2.0, 7.0]),
        ] {
            define(&mut client, "api", &bucket(capacity, shards));
            let (taken, retries) = at_once(&database, level, |caller, random| {
                exhaust(caller, random, ("api", ""), counts, capacity)
            });
            println!("{level}, {shards} shards, {counts:?}: {taken}, {retries} retries");
            assert_drained(&mut client, ("api", ""), capacity, taken);
            assert_eq!(rows(&mut client, "api", "").1, i64::from(shards));
        }
    }
}

/// The load and checks of a limit without shards: several takes a transaction, from several keys. Two
/// such transactions can deadlock; one of them is retried.
#[test]
#[ignore = "needs a server: make test"]
fn transactions_of_several_takes_from_sharded_keys_take_every_token_once() {
    let database = Database::new("load_shards_scripts");
    for level in LEVELS {
        for (rules, keys) in [(&slow(1000.0)[..1], 1), (&slow(100.0)[..2], 3)] {
            let mut load = Load::new(&database, rules, keys);
            // Powers of two, so that the floats are exact.
            let shards = "UPDATE rl_config SET config = config || '{\"shards\": 8}'";
            load.client.batch_execute(shards).unwrap();
            load.in_shards();
            let tally = load.run(1, level, LIMITER, End::Transactions(60));
            load.check(&tally, false).unwrap();
            if level == LEVELS[0] {
                // Row by row, which a row that says otherwise is not.
                let mut history = load.notebook.recorder.history();
                assert!(judge(&history).unwrap().by_rows > 0);
                history.rows.iter_mut().for_each(|row| row.value += 0.5);
                assert!(judge(&history).is_err());
            }
        }
    }
}

/// Keys are resharded during the takes.
#[test]
#[ignore = "needs a server: make test"]
fn changing_the_number_of_shards_under_load_gives_no_token_twice_and_loses_none() {
    const CAPACITY: f64 = 4000.0;
    let database = Database::new("load_reshard");
    let mut client = database.connect();
    for level in LEVELS {
        define(&mut client, "api", &bucket(CAPACITY, 1));
        let running = AtomicUsize::new(SESSIONS);
        let ((taken, retries), changes) = while_shards_change(
            &mut database.connect(),
            |shards| bucket(CAPACITY, shards),
            || running.load(Ordering::Relaxed) > 0,
            || {
                at_once(&database, level, |caller, random| {
                    let _done = Done(&running);
                    exhaust(caller, random, ("api", ""), &[1.0, 2.0, 3.0, 200.0], CAPACITY)
                })
            },
        );
        println!("{level}: {taken}, {changes} changes, {retries} retries");
        assert_drained(&mut client, ("api", ""), CAPACITY, taken);
        assert!(changes >= 3, "{changes} changes");
    }
}

/// Counts a session as done, also if it panics.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` while the limit `api` gets 10 shards, 3, 1 and so on, while `running` is true; returns
/// its result, and the number of changes.
fn while_shards_change<T>(
    changer: &mut Client,
    config: impl Fn(u32) -> String + Sync,
    running: impl Fn() -> bool + Sync,
    work: impl FnOnce() -> T,
) -> (T, u32)
where
    T: Send,
{
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut changes = 0;
            while running() {
                let shards = [10, 3, 1, 10, 1, 3][changes as usize % 6];
                let sql = format!("SELECT rl_define('api', {})", config(shards));
                changer.batch_execute(&sql).unwrap();
                changes += 1;
                // Long enough for some calls to come in between.
                thread::sleep(Duration::from_millis(2));
            }
            changes
        });
        let result = work();
        (result, changing.join().unwrap())
    })
}

/// Reservations, credits and debits during ordinary takes: in the end the rows hold the capacity less
/// the takes and debits, plus the credits.
#[test]
#[ignore = "needs a server: make test"]
fn reservations_and_credits_under_changing_shards_lose_and_make_no_token() {
    const CAPACITY: f64 = 400.0;
    const CALLS: u32 = 60;
    let database = Database::new("load_reshard_credit");
    let mut client = database.connect();
    let config = |shards| {
        format!("rl_token_bucket({CAPACITY}, '1 day', shards => {shards}, max_reserved => 100)")
    };
    for level in LEVELS {
        define(&mut client, "api", &config(3));
        let running = AtomicUsize::new(SESSIONS);
        let session = |caller: &mut Caller, random: &mut Random| {
            let _done = Done(&running);
            let mut taken = 0.0;
            for _ in 0..CALLS {
                let count = 1.0 + random.below(20) as f64;
                let ending = Ending::random(random);
                let (sql, count) = match random.below(8) {
                    // At most the takes of this session, so never above the capacity.
                    0..3 if taken >= count => ("SELECT ok FROM rl_credit('api', '', $1)", -count),
                    3 => ("SELECT ok FROM rl_credit('api', '', $1)", count),
                    4 => ("SELECT ok FROM rl_limit('api', '', $1, reserve => true)", count),
                    _ => ("SELECT ok FROM rl_limit('api', '', $1)", count),
                };
                let given = if sql.contains("credit") { -count } else { count };
                let ok: bool =
                    caller.run(ending, |client| Ok(client.query_one(sql, &[&given])?.get(0)));
                if ok && ending.keeps() {
                    taken += count;
                }
            }
            taken
        };
        let ((taken, retries), changes) = while_shards_change(
            &mut database.connect(),
            config,
            || running.load(Ordering::Relaxed) > 0,
            || at_once(&database, level, session),
        );
        let (held, rows) = rows(&mut client, "api", "");
        println!(
            "{level}: {taken} taken, {held} in {rows} rows, {changes} changes, {retries} retries"
        );
        assert!((CAPACITY - taken - held).abs() < 1e-6);
        assert!(changes >= 3, "{changes} changes");
    }
}

/// Transactions with one call, for a key or for several, lock rows in one order, and hold no useless
/// lock: they never deadlock.
#[test]
#[ignore = "needs a server: make test"]
fn no_two_of_takes_credits_and_resets_wait_for_each_other() {
    const CAPACITY: f64 = 300.0;
    const CALLS: u32 = 150;
    let database = Database::new("load_shards_resets");
    let mut client = database.connect();
    for (level, shards) in [(LEVELS[0], 3), (LEVELS[0], 10), (LEVELS[1], 3), (LEVELS[2], 3)] {
        define(&mut client, "api", &bucket(CAPACITY, shards));
        let (_, retries) = at_once(&database, level, |caller, random| {
            for _ in 0..CALLS {
                let count = [20.0, 30.0, 50.0, 100.0, 150.0][random.below(5) as usize];
                let key = ["a", "b"][random.below(2) as usize];
                let sql = match random.below(16) {
                    0..3 => format!("SELECT rl_reset('api', '{key}')"),
                    3 | 4 => format!(
                        r#"SELECT rl_limit_all('[{{"name": "api", "key": "b", "count": {count}}},
                                                 {{"name": "api", "key": "a"}}]')"#
                    ),
                    5..9 => format!("SELECT rl_credit('api', '{key}', {count})"),
                    _ => format!("SELECT rl_limit('api', '{key}', {count})"),
                };
                caller.run(Ending::random(random), |client| client.batch_execute(&sql));
            }
            0.0
        });
        println!("{level}, {shards} shards: {retries} retries");
        for key in ["a", "b"] {
            let sql = "SELECT remaining FROM rl_check('api', $1)";
            let remaining: f64 = client.query_one(sql, &[&key]).unwrap().get(0);
            assert!((0.0..=CAPACITY).contains(&remaining), "{remaining} in {key}");
        }
    }
}

/// A take, decided between `since` and `at`, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Noted {
    since: i64,
    at: i64,
    count: f64,
}

/// Checks for every span that the takes certainly within it are at most the capacity and the inflow.
/// Takes from different rows have no order, only bounds.
fn bounded(takes: &mut [Noted], capacity: f64, inflow: impl Fn(i64) -> f64) -> Result<(), String> {
    takes.sort_by_key(|take| take.at);
    for first in takes.iter() {
        let mut taken = 0.0;
        for take in takes.iter().filter(|take| take.since >= first.since) {
            taken += take.count;
            let most = capacity + inflow(take.at) - inflow(first.since);
            if taken > most + 1e-6 {
                return Err(format!(
                    "{taken} from {first:?} to {take:?}, where {most} was the most"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the tokens that flow in from the epoch to an instant.
fn inflow(rule: Rule) -> impl Fn(i64) -> f64 {
    move |at| match rule {
        TokenBucket { rate, period, .. } => {
            // Whole periods apart, for the float's precision.
            let period = period as i64;
            (at / period) as f64 * rate + (at % period) as f64 * rate / period as f64
        }
        FixedWindow { rate, period, start, .. } => (at - start).div_euclid(period) as f64 * rate,
        _ => unreachable!("a sliding kind has no shards"),
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn no_more_is_taken_from_shards_than_flows_in() {
    let database = Database::new("load_shards_refill");
    let mut client = database.connect();
    client
        .batch_execute("CREATE TABLE noted (since timestamptz, at timestamptz, count float8)")
        .unwrap();
    let period = SECOND / 4;
    for level in LEVELS {
        for rule in [
            TokenBucket { capacity: 30.0, rate: 200.0, period: SECOND as f64 },
            FixedWindow { capacity: 70.0, rate: 50.0, period, start: 1_000 },
        ] {
            let config = rule.config().replacen('{', "{\"shards\": 4, ", 1);
            define(&mut client, "api", &format!("'{config}'"));
            client.batch_execute("TRUNCATE noted").unwrap();
            let take = "INSERT INTO noted SELECT statement_timestamp(), clock_timestamp(), $1
                        FROM rl_limit('api', '', $1) WHERE ok";
            let started = Instant::now();
            let (_, retries) = at_once(&database, level, |caller, random| {
                caller.run(Ending::Commit, |client| client.batch_execute("RESET ratelimit.clock"));
                while started.elapsed() < Duration::from_millis(700) {
                    let count = 1.0 + random.below(3) as f64;
                    let ending = Ending::random(random);
                    caller.run(ending, |client| client.execute(take, &[&count]));
                }
                0.0
            });
            let micros = |column| format!("(extract(epoch FROM {column}) * 1000000)::bigint");
            let sql = format!("SELECT {}, {}, count FROM noted", micros("since"), micros("at"));
            let mut takes: Vec<Noted> = client
                .query(&sql, &[])
                .unwrap()
                .iter()
                .map(|row| Noted { since: row.get(0), at: row.get(1), count: row.get(2) })
                .collect();
            println!("{level}, {rule:?}: {} takes, {retries} retries", takes.len());
            bounded(&mut takes, rule.capacity(), inflow(rule)).unwrap();
        }
    }
}

/// Rows that never overflow: every token of the inflow is either taken or still there.
#[test]
#[ignore = "needs a server: make test"]
fn hungry_clients_get_all_that_flows_into_the_shards() {
    const RATE: f64 = 300.0;
    const SHARDS: f64 = 7.0;
    let database = Database::new("load_shards_hungry");
    let mut client = database.connect();
    for level in LEVELS {
        let config = "rl_token_bucket(300, '1 second', capacity => 1e6, shards => 7)";
        define(&mut client, "api", config);
        client.batch_execute("SELECT rl_credit('api', '', -1e6)").unwrap();
        let sql = format!("SELECT {MICROS}").replace("clock_timestamp()", "ts")
            + " FROM rateLimits WHERE shard > 0 GROUP BY ts";
        let from: i64 = client.query_one(&sql, &[]).unwrap().get(0);
        let flowed_in = |until: i64| (until - from) as f64 * RATE / SECOND as f64;

        let started = Instant::now();
        let (taken, retries) = at_once(&database, level, |caller, _| {
            caller.run(Ending::Commit, |client| client.batch_execute("RESET ratelimit.clock"));
            let mut taken = 0.0;
            while started.elapsed() < Duration::from_millis(800) {
                taken += f64::from(u8::from(caller.limit(Ending::Commit, "api", "", 1.0)));
            }
            taken
        });
        let (mut taken, mut before) = (taken, now(&mut client));
        let mut caller = Caller::new(&database, level, "");
        while caller.limit(Ending::Commit, "api", "", 1.0) {
            taken += 1.0;
            before = now(&mut client);
        }
        let after = now(&mut client);

        let (least, most) = (flowed_in(before).floor(), flowed_in(after).floor());
        println!("{level}: {taken} taken, {least} to {most} flowed in, {retries} retries");
        assert!((least..=most).contains(&taken));
        let sql = "SELECT value, (extract(epoch FROM ts) * 1000000)::bigint FROM rateLimits WHERE shard > 0";
        let rows = client.query(sql, &[]).unwrap();
        assert_eq!(rows.len() as f64, SHARDS);
        // Each row has the inflow up to its own time.
        let missing = |row: &postgres::Row| flowed_in(row.get(1)) / SHARDS - row.get::<_, f64>(0);
        let given: f64 = rows.iter().map(missing).sum();
        assert!((given - taken).abs() < 1e-6, "{taken} taken, the rows gave {given}");
    }
}

/// New keys, whose rows all sessions insert at the same moment; in every second round some of them
/// roll back.
#[test]
#[ignore = "needs a server: make test"]
fn the_rows_of_a_new_sharded_key_are_made_once() {
    const ROUNDS: usize = 32;
    let database = Database::new("load_shards_first");
    let mut client = database.connect();
    for level in LEVELS {
        // Fewer tokens than sessions, and fewer than shards; and enough for all.
        define(&mut client, "few", &bucket(5.0, 8));
        define(&mut client, "many", &bucket(64.0, 4));
        let mut callers: Vec<Caller> =
            (0..SESSIONS).map(|_| Caller::new(&database, level, STILL)).collect();
        for round in 0..ROUNDS {
            let (name, capacity, shards) =
                if round % 4 < 2 { ("few", 5.0, 8) } else { ("many", 64.0, 4) };
            let rolling_back = round % 2 == 1;
            let key = format!("key {round}");
            let barrier = Barrier::new(SESSIONS);
            let taken: f64 = thread::scope(|scope| {
                let sessions: Vec<_> = callers
                    .iter_mut()
                    .enumerate()
                    .map(|(n, caller)| {
                        let (key, barrier) = (&key, &barrier);
                        scope.spawn(move || {
                            let back = rolling_back && n % 3 == 0;
                            let ending = if back { Ending::RollBack } else { Ending::Commit };
                            let count = if name == "few" { 1.0 } else { 1.0 + (n % 3) as f64 };
                            barrier.wait();
                            let ok = caller.limit(ending, name, key, count);
                            if ok && ending.keeps() { count } else { 0.0 }
                        })
                    })
                    .collect();
                sessions.into_iter().map(|session| session.join().unwrap()).sum()
            });
            let (held, rows) = rows(&mut client, name, &key);
            assert!((capacity - held - taken).abs() < 1e-9, "{key}: {taken} taken, {held} left");
            assert_eq!(rows, shards, "{key}");
            // There is enough for 5 of those that commit, or for all.
            let wanted: f64 = (0..SESSIONS)
                .filter(|n| !rolling_back || n % 3 > 0)
                .map(|n| if name == "few" { 1.0 } else { 1.0 + (n % 3) as f64 })
                .sum();
            assert_eq!(taken, wanted.min(capacity), "{key}");
        }
    }
}

#[test]
fn a_token_too_many_in_any_span_is_seen() {
    let rule = TokenBucket { capacity: 30.0, rate: 10.0, period: SECOND as f64 };
    // From a full bucket, and after a pause of two seconds.
    let takes = |more: i64| {
        let note = |n: i64, from: i64| Noted { since: from, at: from + n, count: 1.0 };
        let mut takes: Vec<Noted> = (0..30).map(|n| note(n, 0)).collect();
        takes.extend((0..more).map(|n| note(n, 2 * SECOND)));
        takes
    };
    assert_eq!(bounded(&mut takes(20), rule.capacity(), inflow(rule)), Ok(()));
    assert!(bounded(&mut takes(21), rule.capacity(), inflow(rule)).is_err());
    // With wider bounds, they may have been decided later.
    let late = |n: i64| Noted { since: 0, at: SECOND, count: n as f64 };
    assert_eq!(bounded(&mut [late(40)], rule.capacity(), inflow(rule)), Ok(()));
    assert!(bounded(&mut [late(41)], rule.capacity(), inflow(rule)).is_err());
    let turns = FixedWindow { capacity: 3.0, rate: 2.0, period: SECOND, start: 500 };
    let turn = |count: f64| Noted { since: 0, at: 501, count };
    assert_eq!(bounded(&mut [turn(5.0)], 3.0, inflow(turns)), Ok(()));
    assert!(bounded(&mut [turn(5.1)], 3.0, inflow(turns)).is_err());
}
